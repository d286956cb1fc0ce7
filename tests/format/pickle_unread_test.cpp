// SPDX-License-Identifier: Apache-2.0
// An object that is not read costs only itself: it is a place-holder in the tree, with what the
// pickle gives it, whatever code makes it.
#include "format/pickle/pickle.hpp"
#include "format/support.hpp"
#include "format/unread.hpp"

#include <penstock/error.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace penstock::format {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace test;  // NOLINT(google-build-using-namespace)

const std::string kUnreadHead = "\x80\x02";
// A tensor of two floats on storage "0", and its name in a pickle of protocol 2.
const std::string kPlainTensor =
    "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
    "0X\3\0\0\0cpuK\2tQK\0K\2\x85K\1\x85\x89"
    "ccollections\nOrderedDict\n)RtR"s;

std::string word(const std::string& text) {
    return "X" + std::string(1, static_cast<char>(text.size())) + "\0\0\0"s + text;
}

ValueTree tree_of(const std::string& pickle) {
    auto made = read_pickle(bytes_of(pickle));
    EXPECT_TRUE(made) << why(made) << shown(pickle);
    return made ? std::move(made->tree) : ValueTree();
}

// {"w": <tensor>, "x": <what>}
ValueTree beside(const std::string& what) {
    return tree_of(kUnreadHead + "}(" + word("w") + kPlainTensor + word("x") + what + "u.");
}

// The names of the tensors below a value, by keys.
void collect(const ValueTree& tree, ValueId id, const std::string& name, int depth,
             std::vector<std::string>& out) {
    const Value& v = tree.at(id);
    if (v.kind == ValueKind::kTensor) {
        out.push_back(name);
    }
    const std::size_t step = is_dict(v.kind) ? 2 : 1;
    for (std::size_t i = 0; i + step <= v.items.size() && depth < 8; i += step) {
        std::string own = name;
        if (step == 2) {
            append_key(own, tree, v.items[i]);
        } else {
            own += fmt::format("[{}]", i);
        }
        collect(tree, v.items[i + step - 1], own, depth + 1, out);
    }
}
std::vector<std::string> tensors_of(const ValueTree& tree) {
    std::vector<std::string> out;
    collect(tree, tree.root, "", 0, out);
    return out;
}

TEST(Unread, EveryCodeThatMakesAnObjectMakesAPlaceHolder) {
    struct Case {
        std::string code;
        std::string name;
        std::vector<std::string> tensors;  // in it
    };
    const std::string args = "(" + kPlainTensor + "K\1t";
    const std::string attributes = "}" + word("a") + kPlainTensor + "s";
    for (const Case& c : {
             Case{"cmy.mod\nClass\n", "my.mod.Class", {}},
             Case{"\x8c\6my.mod\x8c\5Class\x93"s, "my.mod.Class", {}},
             Case{"cmy.mod\nClass\n" + args + "R", "my.mod.Class", {"['__args__'][0]"}},
             Case{"cmy.mod\nClass\n" + args + "\x81", "my.mod.Class", {"['__args__'][0]"}},
             Case{"cmy.mod\nClass\n)" + attributes + "\x92",
                  "my.mod.Class",
                  {"['__kwargs__']['a']"}},
             Case{"cmy.mod\nClass\n)\x81" + attributes + "b", "my.mod.Class", {"['a']"}},
             Case{"cmy.mod\nClass\n)\x81N" + attributes + "\x86" + "b", "my.mod.Class", {"['a']"}},
             Case{"cmy.mod\nClass\n)\x81" + args + "b", "my.mod.Class", {"['__state__'][0]"}},
             Case{"(cmy.mod\nClass\n" + kPlainTensor + "o", "my.mod.Class", {"['__args__'][0]"}},
             Case{"(" + kPlainTensor + "imy.mod\nClass\n", "my.mod.Class", {"['__args__'][0]"}},
             Case{"cmy.mod\nRow\n)R(" + kPlainTensor + kPlainTensor + "e",
                  "my.mod.Row",
                  {"[0]", "[1]"}},
             Case{"cmy.mod\nRow\n)R" + kPlainTensor + "a" + kPlainTensor + "a",
                  "my.mod.Row",
                  {"[0]", "[1]"}},
             Case{"cmy.mod\nSet\n)R(" + kPlainTensor + "\x90", "my.mod.Set", {"[0]"}},
             Case{"cmy.mod\nDict\n)R(" + word("k") + kPlainTensor + "u", "my.mod.Dict", {"['k']"}},
             Case{"cmy.mod\nDict\n)R" + word("k") + kPlainTensor + "s", "my.mod.Dict", {"['k']"}},
             Case{"cmy.mod\nmake\n)R" + args + "R", "my.mod.make", {"['__args__'][0]"}},
             Case{"\x82\7", "copyreg.extension7", {}},
             Case{"\x83\7\0"s, "copyreg.extension7", {}},
             Case{"\x84\7\0\0\0"s + args + "R", "copyreg.extension7", {"['__args__'][0]"}},
             Case{"Pmy-id\n", "persistent id", {}},
             Case{args + "Q", "persistent id", {"['data'][0]"}},
             Case{"\x97", "buffer", {}},
             Case{"X\1\0\0\0\xff"s, "str", {}},
             Case{"ccopyreg\n_reconstructor\ncmy.mod\nClass\nc__builtin__\nobject\nN\x87R",
                  "my.mod.Class",
                  {}},
             Case{"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\ncmy."
                  "mod\nTensor\n" +
                      kPlainTensor.substr(kPlainTensor.find('('),
                                          kPlainTensor.size() - kPlainTensor.find('(') - 1) +
                      "}tR",
                  "my.mod.Tensor",
                  {"['data']"}},
             // A known name that takes no state, or not this one.
             Case{kPlainTensor + attributes + "b", "torch.Tensor", {"['data']", "['a']"}},
             Case{"](" + kPlainTensor + "e" + attributes + "b", "list", {"[0]", "['a']"}},
             Case{"ccollections\nCounter\n)R" + word("k") + "K\1s" + attributes + "b",
                  "Counter",
                  {"['a']"}},
             Case{"c__builtin__\nset\n]" + kPlainTensor + "a\x85R", "set", {"[0]"}},
             Case{
                 "ccollections\ndefaultdict\ncmy.mod\nmake\n\x85R" + word("k") + kPlainTensor + "s",
                 "collections.defaultdict",
                 {"['k']"}},
         }) {
        const ValueTree tree = beside(c.code);
        SCOPED_TRACE(shown(c.code));
        EXPECT_THAT(unread_places(tree), ElementsAre(fmt::format("state['x'] ({})", c.name)));
        std::vector<std::string> wanted{"['w']"};
        for (const std::string& one : c.tensors) {
            wanted.push_back("['x']" + one);
        }
        EXPECT_EQ(tensors_of(tree), wanted);
        EXPECT_FALSE(write_pickle(tree));
        for (const Value& v : tree.values) {
            EXPECT_FALSE(v.kind == ValueKind::kUnread && v.flag);
        }
    }
}

TEST(Unread, AKeyThatIsNotReadLeavesItsValueAndTheOthers) {
    const ValueTree tree =
        tree_of(kUnreadHead + "}(" + word("(my.Mode)") + "K\1" + "cmy\nMode\nK\1\x85R" +
                kPlainTensor + "cmy\nMode\nK\2\x85R" + word("a") + "\x86" + kPlainTensor + "]" +
                kPlainTensor + word("w") + kPlainTensor + "u.");
    EXPECT_THAT(unread_places(tree),
                ElementsAre("state['(my.Mode)~2'] (my.Mode)", "state['(my.Mode)~3'] (my.Mode)",
                            "state['(list)'] (list)"));
    EXPECT_THAT(tensors_of(tree),
                ElementsAre("['(my.Mode)~2']['value']", "['(my.Mode)~3']['value']",
                            "['(list)']['value']", "['w']"));
}

TEST(Unread, OneInSeveralPlacesIsOneAndMayHoldItself) {
    // x = Class(); x.me = x; x.t = (x,)
    const ValueTree tree = tree_of(kUnreadHead + "]cmy\nClass\n)\x81q\1}(" + word("me") + "h\1" +
                                   word("t") + "h\1\x85" + "uba" + "h\1" + "a.");
    const Value& root = tree.at(tree.root);
    ASSERT_EQ(root.items.size(), 2U);
    EXPECT_EQ(root.items[0], root.items[1]);
    EXPECT_EQ(tree.at(root.items[0]).items[1], root.items[0]);
    EXPECT_THAT(unread_places(tree), ElementsAre("state[0] (my.Class)"));
    EXPECT_TRUE(same(tree, tree));
}

TEST(Unread, ThoseInOthersAreNotListed) {
    const ValueTree tree = beside("cmy\nA\n)\x81}" + word("b") + "cmy\nB\n)\x81sb");
    EXPECT_THAT(unread_places(tree), ElementsAre("state['x'] (my.A)"));
    EXPECT_THAT(why_not_whole(tree), HasSubstr("state['x']: it is made by 'my.A'"));
    EXPECT_THAT(unread_places(beside("N")), IsEmpty());
    EXPECT_EQ(why_not_whole(beside("N")), "");
}

TEST(Unread, WhatIsNestedTooDeepCostsItself) {
    const ValueTree tree = beside(std::string(2000, ']') + std::string(1999, 'a'));
    EXPECT_THAT(why_not_whole(tree), HasSubstr("nested deeper than 500 levels"));
    EXPECT_THAT(tensors_of(tree), ElementsAre("['w']"));
    std::string chain;
    for (int i = 0; i < 2000; ++i) {
        chain += "cmy\nNode\n)\x81}" + word("next");
    }
    chain += "N";
    for (int i = 0; i < 2000; ++i) {
        chain += "sb";
    }
    EXPECT_THAT(unread_places(beside(chain)), ElementsAre("state['x'] (my.Node)"));
}

// One dict in the memo, given to many objects: 5 bytes each, and all entries of it.
TEST(Unread, AStateIsNotCopiedWithoutEnd) {
    std::string pickle = kUnreadHead + "}(";
    for (int i = 0; i < 255; ++i) {
        pickle += "K" + std::string(1, static_cast<char>(i)) + "N";
    }
    pickle += "uq\1cmy\nClass\n)\x81q\2](";
    for (int i = 0; i < 20'000; ++i) {
        pickle += "h\2h\1b";
    }
    const ValueTree tree = tree_of(pickle + "e\x87.");
    std::size_t items = 0;
    for (const Value& v : tree.values) {
        items += v.items.size();
    }
    EXPECT_LT(items, 2 * pickle.size());
}

TEST(Unread, BytesThatContradictThemselvesAreDamage) {
    const auto code_of = [](const std::string& pickle) {
        const auto made = read_pickle(bytes_of(pickle));
        EXPECT_FALSE(made);
        return made ? ErrorCode{} : made.error().code;
    };
    std::string outside = kPlainTensor;
    outside.replace(outside.find("K\0K\2\x85"s), 2, "K\1");
    // In a place-holder, and next to the state, too.
    for (const std::string& what : {outside, "cmy\nClass\n" + outside + "\x85R"}) {
        EXPECT_EQ(code_of(kUnreadHead + what + "."), ErrorCode::kInvalidArgument);
        EXPECT_EQ(code_of(kUnreadHead + what + "0N."), ErrorCode::kInvalidArgument);
    }
    EXPECT_EQ(code_of("\x80\6N."), ErrorCode::kUnsupported);
    EXPECT_EQ(code_of(kUnreadHead + "c" + std::string(600, 'x') + "\nx\n."),
              ErrorCode::kUnsupported);
    EXPECT_EQ(code_of(kUnreadHead + "cos\nsystem\n0N."), ErrorCode::kUnsupported);
}

TEST(Unread, LinesOfProtocols0And1) {
    const ValueTree tree = tree_of(
        "(lp0\nI7\naI-7\naI01\naI00\naL-123456789012345678901234567890L\naF0.5\naS'a\\n\\x41'"
        "\naV\\u20ac\xe9\n"
        "a(dp1\nS'k'\nI1\nsag1\na(I1\nI2\ntp2\na2a."s);
    const Value& root = tree.at(tree.root);
    ASSERT_EQ(root.items.size(), 12U);
    const auto at = [&](std::size_t i) -> const Value& { return tree.at(root.items[i]); };
    EXPECT_EQ(at(0).integer, 7);
    EXPECT_EQ(at(1).integer, -7);
    EXPECT_TRUE(at(2).kind == ValueKind::kBool && at(2).flag);
    EXPECT_TRUE(at(3).kind == ValueKind::kBool && !at(3).flag);
    EXPECT_EQ(at(4).kind, ValueKind::kBigInt);
    EXPECT_EQ(at(5).real, 0.5);
    EXPECT_EQ(at(6).text, "a\nA");
    EXPECT_EQ(at(7).text, "\u20ac\u00e9");
    EXPECT_EQ(at(8).kind, ValueKind::kDict);
    EXPECT_EQ(root.items[9], root.items[8]);
    EXPECT_EQ(at(10).items.size(), 2U);
    EXPECT_EQ(root.items[11], tree.root);
    EXPECT_THAT(unread_places(tree_of("(lI1x\naF1,5\naS'\\q'\na.")),
                ElementsAre("state[0] (int)", "state[1] (float)", "state[2] (str)"));
}

// OrderedDict of Python 2: weight files of torch 0.4, as those of LPIPS.
TEST(Unread, AnOrderedDictOfPairsIsRead) {
    const std::string pairs =
        "ccollections\nOrderedDict\n](](" + word("a") + "K\1e" + word("b") + "K\2\x86" + "e\x85R.";
    const ValueTree tree = tree_of(kUnreadHead + pairs);
    const Value& root = tree.at(tree.root);
    EXPECT_EQ(root.kind, ValueKind::kOrderedDict);
    EXPECT_EQ(root.items.size(), 4U);
    EXPECT_EQ(why_not_whole(tree), "");
    EXPECT_NE(why_not_whole(tree_of(kUnreadHead + "ccollections\nOrderedDict\n]K\1a\x85R.")), "");
}

}  // namespace
}  // namespace penstock::format
