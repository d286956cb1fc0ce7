// SPDX-License-Identifier: Apache-2.0
#include "format/pickle/pickle.hpp"

#include "format/grammar.hpp"
#include "format/random_tree.hpp"
#include "format/torch_file.hpp"
#include "format/unread.hpp"
#include "format/zip/crc32.hpp"
#include "support/seeds.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace penstock::format {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace)
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace test;  // NOLINT(google-build-using-namespace)

Result<PickleRead> read(std::string_view pickle) {
    return read_pickle(bytes_of(pickle));
}

// Why it is not read, or what of it is not.
std::string not_read(const Result<PickleRead>& read) {
    return read ? why_not_whole(read->tree) : why(read);
}
std::string not_read(std::string_view pickle) {
    return not_read(read(pickle));
}

TEST(Pickle, RandomStatesAreReadBackEqual) {
    int with_tensors = 0;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        SCOPED_TRACE(seed);
        const ValueTree tree = RandomTree(seed).make();
        const auto pickle = write_pickle(tree);
        ASSERT_TRUE(pickle) << why(pickle);
        const auto back = read(*pickle);
        ASSERT_TRUE(back) << why(back);
        EXPECT_EQ(back->bytes, pickle->size());
        EXPECT_TRUE(same(tree, back->tree));
        const auto again = write_pickle(back->tree);
        ASSERT_TRUE(again) << why(again);
        with_tensors += tree.tensors.empty() ? 0 : 1;
    }
    EXPECT_GT(with_tensors, 50);
}

// {"a": 1, "opt": {"groups": [0, <what>]}} as torch's pickler would write it.
std::string state_with(const std::string& what) {
    return "\x80\x02}(X\x01\0\0\0aK\x01X\x03\0\0\0opt}X\x06\0\0\0groups](K\0"s + what + "esu.";
}

TEST(Pickle, WhatIsNotInTheListIsNotReadAndHasItsPlace) {
    struct Case {
        std::string what;
        std::string_view says;
    };
    for (const Case& c :
         {Case{"cos\nsystem\nX\x02\0\0\0ls\x85R"s, "'os.system'"},
          Case{"c__builtin__\neval\nX\x01\0\0\0"
               "1\x85R"s,
               "'__builtin__.eval'"},
          Case{"cmy.module\nClass\n)\x81}X\x01\0\0\0xK\x01sb"s, "'my.module.Class'"},
          Case{"cmy.module\nDict\n)R(K\x01K\x02u"s, "'my.module.Dict'"},
          Case{"ctorch._utils\n_rebuild_tensor_v2\n"s, "'_rebuild_tensor_v2' itself"},
          Case{"ctorch._utils\n_rebuild_tensor_v2\n)R"s, "a tensor is made of"},
          Case{"c__builtin__\nset\n](}e\x85R"s, "key"},
          Case{"c__builtin__\nlist\n)R"s, "'list' is called"},
          Case{"c_codecs\nencode\nX\x01\0\0\0aX\x05\0\0\0rot13\x86R"s, "otherwise than as Latin-1"},
          Case{"c_codecs\nencode\nX\x03\0\0\0\xe2\x82\xacX\x06\0\0\0latin1\x86R"s, "past U+00FF"},
          Case{"ctorch\ndevice\nX\x03\0\0\0../\x85R"s, "impossible name"},
          Case{"X\x01\0\0\0\xff"s, "not UTF-8"}, Case{"X\x01\0\0\0aQ"s, "stored outside"},
          Case{"](}]K\x01se"s, "of such"},
          Case{"cnumpy.core.multiarray\n_reconstruct\n)R"s, "without a state"},
          Case{"cnumpy\ndtype\nX\x01\0\0\0O\x85R(K\x03X\x01\0\0\0|NNNJ"s +
                   "\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb"s,
               "'O'"}}) {
        EXPECT_THAT(not_read(state_with(c.what)),
                    AllOf(HasSubstr("state['opt']['groups'][1]"), HasSubstr(c.says)))
            << c.what;
    }
    EXPECT_THAT(not_read("\x80\x02"
                         "cos\nsystem\n."s),
                HasSubstr("state: "));
}

TEST(Pickle, HostilePicklesAreRefused) {
    const std::string head = "\x80\x02";
    for (const std::string& hostile : {""s,
                                       "\x80"s,
                                       head,
                                       head + ".",
                                       "\x80\x09N."s,
                                       head + "X\xff\xff\xff\xff"s,
                                       head + "\x8d\xff\xff\xff\xff\xff\xff\xff\xffN.",
                                       head + "r\xff\xff\xff\x7fN.",
                                       head + "h\0."s,
                                       head + "(N.",
                                       head + "e.",
                                       head + "Ne.",
                                       head + "NNs.",
                                       head + "}(Nu.",
                                       head + "t.",
                                       head + "c" + std::string(5000, 'x') + "\nx\n.",
                                       head + "cx",
                                       head + "R.",
                                       head + "NNNNNNNN.",
                                       head + "b.",
                                       head + "Q.",
                                       head + "0.",
                                       head + "\xff.",
                                       head + "I1.",
                                       head + "p1\n.",
                                       head + "g1\n.",
                                       head + "(Nd.",
                                       head + "2.",
                                       head + "(o.",
                                       head + "(ix\n.",
                                       head + "N\x92.",
                                       head + "\x82.",
                                       head + "(N0N1."}) {
        EXPECT_FALSE(read(hostile)) << shown(hostile);
    }
    // A tuple of two of the tuple before, 60 times: small, and its hash would take forever.
    std::string laughs = head + "}K\x01";
    for (int i = 0; i < 60; ++i) {
        laughs += fmt::format("q{}h{}\x86", static_cast<char>(i), static_cast<char>(i));
    }
    EXPECT_THAT(not_read(laughs + "Ns."), HasSubstr("short tuple"));
    EXPECT_TRUE(read(head + "]" + laughs.substr(3) + "a."));  // as a value it is one
}

// A reader that calls what it reads would have called it.
TEST(Pickle, WhatIsThrownAwayIsRefusedToo) {
    const std::string head = "\x80\x02";
    for (const std::string& hostile :
         {"cos\nsystem\n0N."s, "cos\nsystem\nX\x01\0\0\0a\x85R0N."s, "(cos\nsystem\n1N."s,
          "]q\0"
          "cos\nsystem\nq\1"
          "00N."s}) {
        EXPECT_THAT(why(read(head + hostile)), HasSubstr("'os.system'")) << shown(hostile);
    }
    EXPECT_TRUE(read(head + "X\x01\0\0\0a0N."s));
    EXPECT_TRUE(read(head + "(K\1K\2"s + "1N."));
}

TEST(Pickle, CodesOfListsAndSetsAreNotTakenForEachOther) {
    const std::string head = "\x80\x04";
    EXPECT_TRUE(read(head + "\x8f(K\1\x90."s));
    EXPECT_TRUE(read(head + "](K\1e."s));
    EXPECT_TRUE(read(head + "]K\1a."s));
    for (const std::string& wrong :
         {"\x8f(K\1e."s, "\x8fK\1a."s, "](K\1\x90."s, "}(K\1\x90."s, ")(K\1e."s, "](K\1K\2u."s}) {
        EXPECT_FALSE(read(head + wrong)) << shown(wrong);
    }
}

TEST(Pickle, AStorageHasOneType) {
    const auto both = [](const std::string& second, std::string_view bytes) {
        const auto tensor = [&](const std::string& type, std::string_view elements) {
            return "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n"s + type +
                   "\nX\x01\0\0\0"s + "0X\x03\0\0\0cpuK"s + std::string(elements) + "tQK\0)("s +
                   "t\x89}tR"s;
        };
        return read("\x80\x02("s + tensor("FloatStorage", bytes) + tensor(second, bytes) + "t.");
    };
    EXPECT_TRUE(both("FloatStorage", "\1"));
    EXPECT_THAT(why(both("IntStorage", "\1")), HasSubstr("two types"));
}

TEST(Pickle, NamesOfPython2) {
    for (const auto& [name, known] :
         {std::pair("long", "int"), std::pair("unicode", "str"), std::pair("int", "int")}) {
        const auto back =
            read(fmt::format("\x80\x02"
                             "ccollections\ndefaultdict\nc__builtin__\n{}\n\x85R.",
                             name));
        ASSERT_TRUE(back) << why(back);
        EXPECT_EQ(back->tree.at(back->tree.root).text, known);
    }
    EXPECT_THAT(not_read("\x80\x02"
                         "ccollections\ndefaultdict\ncbuiltins\nlong\n\x85R."),
                HasSubstr("'builtins.long'"));
}

TEST(Pickle, ACounterAsPythonWritesIt) {
    const auto back = read(
        "\x80\x02"
        "ccollections\nCounter\n}(X\x01\0\0\0aK\x01u\x85R."s);
    ASSERT_TRUE(back) << why(back);
    const Value& counter = back->tree.at(back->tree.root);
    EXPECT_EQ(counter.kind, ValueKind::kCounter);
    EXPECT_EQ(counter.items.size(), 2U);
}

// NumPy says of a text of no characters that it has one, which is 0.
TEST(Pickle, ATextOfNumpyWithoutCharacters) {
    for (const auto& [type, zeros] : {std::pair("U0", 4), std::pair("S0", 1)}) {
        for (const int count : {zeros, zeros + 1}) {
            const auto back = read(
                "\x80\x02"
                "cnumpy._core.multiarray\nscalar\ncnumpy\ndtype\nX\x02\0\0\0"s +
                type + "\x89\x88\x87R(K\x03X\x01\0\0\0<NNNK\0K\4K\x08tbc_codecs\nencode\nX"s +
                static_cast<char>(count) + "\0\0\0"s +
                std::string(static_cast<std::size_t>(count), '\0') +
                "X\x06\0\0\0latin1\x86R\x86R."s);
            EXPECT_EQ(back.has_value(), count == zeros) << type << why(back);
        }
    }
}

TEST(Pickle, NumpysNamesAreThoseThatAreAskedFor) {
    ValueTree tree;
    Value scalar;
    scalar.kind = ValueKind::kNumpyScalar;
    scalar.text = "|b1";
    scalar.data = "\1";
    tree.root = tree.add(scalar);
    for (const std::string& module : {"numpy._core.multiarray"s, "numpy.core.multiarray"s}) {
        const auto pickle = write_pickle(tree, {.numpy_module = module});
        ASSERT_TRUE(pickle) << why(pickle);
        EXPECT_THAT(*pickle, HasSubstr("c" + module + "\nscalar\n"));
    }
    EXPECT_THAT(*write_pickle(tree), HasSubstr("cnumpy._core.multiarray\n"));
}

TEST(Value, WhatIsSharedAndWhatIsNotAreDifferent) {
    const auto tree_of = [](bool shared, ValueKind kind) {
        ValueTree tree;
        Value item;
        item.kind = kind;
        const ValueId first = tree.add(item);
        Value list;
        list.kind = ValueKind::kList;
        list.items = {first, shared ? first : tree.add(item)};
        tree.root = tree.add(std::move(list));
        return tree;
    };
    for (const KindRow& row : kKinds) {
        if (row.kind == ValueKind::kTensor) {
            continue;
        }
        const ValueTree one = tree_of(true, row.kind);
        const ValueTree two = tree_of(false, row.kind);
        EXPECT_TRUE(same(one, one)) << row.tag;
        EXPECT_TRUE(same(two, two)) << row.tag;
        EXPECT_EQ(same(one, two), !row.changes) << row.tag;
        EXPECT_EQ(same(two, one), !row.changes) << row.tag;
        if (row.changes) {
            EXPECT_EQ(place_of(one, difference(one, two)), "state[0]") << row.tag;
        }
    }
}

TEST(Pickle, ReadsLaterProtocols) {
    const auto back = read(
        "\x80\x04\x95\x20\0\0\0\0\0\0\0}\x94(\x8c\x01k\x94"
        "C\x02\xff\x00\x94\x8c\x01s\x94\x8f\x94(K\x01K\x02\x90\x8c\x01"
        "f(K\x03\x91\x94u."s);
    ASSERT_TRUE(back) << why(back);
    const Value& root = back->tree.at(back->tree.root);
    ASSERT_EQ(root.items.size(), 6U);
    EXPECT_EQ(back->tree.at(root.items[1]).text, "\xff\x00"s);
    EXPECT_EQ(back->tree.at(root.items[3]).items.size(), 2U);
    EXPECT_EQ(back->tree.at(root.items[5]).kind, ValueKind::kFrozenSet);
}

// The pickle of NumPy at protocol 5: a call of _frombuffer with bytes, a type, a shape and an
// order.
struct FromBuffer {
    std::string module = "numpy._core.numeric";
    std::string buffer = "\x96\x06\0\0\0\0\0\0\0abcdef"s;  // a bytearray
    std::string type = "i1";
    std::string byte_order = "|";
    std::string shape = "K\x02K\x03\x86"s;
    std::string order =
        "\x8c\x01"
        "C"s;

    [[nodiscard]] std::string call() const {
        return "c" + module + "\n_frombuffer\n(" + buffer + "cnumpy\ndtype\n\x8c\x02" + type +
               "\x89\x88\x87R(K\x03\x8c\x01" + byte_order + "NNNJ\xff\xff\xff\xffJ" +
               "\xff\xff\xff\xffK\0tb"s + shape + order + "tR";
    }
    [[nodiscard]] Result<PickleRead> read() const { return test_read("\x80\x05" + call() + "."); }
    static Result<PickleRead> test_read(const std::string& pickle) {
        return read_pickle(bytes_of(pickle));
    }
};

TEST(Pickle, NumpyArraysOfProtocol5) {
    const std::string bytes =
        "C\x06"
        "abcdef"s;
    const std::string fortran =
        "\x8c\x01"
        "F"s;
    for (const char* const module : {"numpy.core.numeric", "numpy._core.numeric"}) {
        for (const std::string& buffer : {FromBuffer().buffer, bytes}) {
            for (const std::string& order : {FromBuffer().order, fortran}) {
                const FromBuffer made{.module = module, .buffer = buffer, .order = order};
                const auto back = made.read();
                ASSERT_TRUE(back) << why(back);
                const Value& array = back->tree.at(back->tree.root);
                EXPECT_EQ(array.kind, ValueKind::kNumpyArray);
                EXPECT_EQ(array.text, "|i1");
                EXPECT_EQ(array.data, "abcdef");
                EXPECT_EQ(array.flag, order == fortran);
                ASSERT_EQ(array.items.size(), 2U);
                EXPECT_EQ(back->tree.at(array.items[1]).integer, 3);
                EXPECT_TRUE(write_pickle(back->tree));
            }
        }
    }
    // With axes in another order, the bytes are those of the array before, and so is the shape.
    const auto turned = FromBuffer{.order = "\x8c\x01KK\x01K\x00\x86"s}.read();
    ASSERT_TRUE(turned) << why(turned);
    const Value& array = turned->tree.at(turned->tree.root);
    EXPECT_EQ(array.data, "adbecf");
    EXPECT_FALSE(array.flag);
    ASSERT_EQ(array.items.size(), 2U);
    EXPECT_EQ(turned->tree.at(array.items[0]).integer, 3);
    EXPECT_EQ(turned->tree.at(array.items[1]).integer, 2);
}

TEST(Pickle, NumpyArraysOfProtocol5ThatAreNone) {
    const auto order = [](const std::string& code) { return FromBuffer{.order = code}; };
    const auto shape = [](const std::string& code) { return FromBuffer{.shape = code}; };
    for (const FromBuffer& wrong :
         {FromBuffer{.buffer = "\x8c\x06"
                               "abcdef"},
          FromBuffer{.buffer = "N"}, FromBuffer{.buffer = "K\x06"}, FromBuffer{.type = "i2"},
          FromBuffer{.type = "O8"}, FromBuffer{.type = "i2", .byte_order = ">"},
          FromBuffer{.module = "numpy.core.other"}, shape("K\x02K\x04\x86"), shape("K\x06"),
          shape("K\x02\x85"), shape("J\xff\xff\xff\xffJ\xfa\xff\xff\xff\x86"),
          // 2^62 * 4 is 0 in 64 bits.
          shape("\x8a\x08\0\0\0\0\0\0\0\x40K\x04\x86"s), shape("N"),
          shape("(" + std::string(200, '\x88') + "t"),
          order("\x8c\x01"
                "A"),
          order("N"), order("K\x01"), order(""), order("\x8c\x01K"), order("\x8c\x01KN"),
          order("\x8c\x01KK\x00K\x00\x86"s), order("\x8c\x01KK\x00K\x02\x86"s),
          order("\x8c\x01KK\x00\x85"s), order("\x8c\x01KK\x00K\x01K\x02\x87"s),
          order("\x8c\x01"
                "CK\x00K\x01\x86"s)}) {
        EXPECT_NE(not_read(wrong.read()), "") << shown(wrong.call());
    }
    const std::string whole = "\x80\x05" + FromBuffer().call() + ".";
    for (std::size_t cut = 0; cut < whole.size(); ++cut) {
        EXPECT_FALSE(read(whole.substr(0, cut))) << cut;
    }
}

// The same bytes, by the memo, in many: a file of 100 kB would take gigabytes.
TEST(Pickle, SharedBytesDoNotGrowIntoMoreThanTheFileHas) {
    const std::string zeros(60'000, '\0');
    const std::string memo = "B\x60\xea\0\0"s + zeros + "q\0"s + "0";
    const auto many = [&](const std::string& before, const std::string& each) {
        std::string pickle = "\x80\x05" + memo + before + "](";
        for (int i = 0; i < 10'000; ++i) {
            pickle += each;
        }
        return read(pickle + "e.");
    };
    const std::string type =
        "cnumpy\ndtype\n\x8c\x02i1\x89\x88\x87R(K\x03\x8c\x01|NNN"
        "J\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tbq\x01"
        "0"s;
    const std::string array =
        "cnumpy._core.numeric\n_frombuffer\n(h\0h\x01M\x60\xea\x85\x8c\x01"
        "CtR"s;
    EXPECT_THAT(not_read(many(type, array)), HasSubstr("more bytes"));
    EXPECT_THAT(not_read(many("", "c__builtin__\nbytearray\nh\0\x85R"s)), HasSubstr("more bytes"));
    EXPECT_THAT(not_read(many("",
                              "cnumpy.core.multiarray\n_reconstruct\n)R(K\x01M\x60\xea\x85"
                              "cnumpy\ndtype\n\x8c\x02i1\x89\x88\x87R(K\x03\x8c\x01|NNN"
                              "J\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89h\0tb"s)),
                HasSubstr("more bytes"));
    // One use of each is what there is.
    EXPECT_TRUE(read("\x80\x05" + memo + type + array + "."));
}

TEST(Pickle, WhatCannotBeWrittenIsNamedWithItsPlace) {
    ValueTree tree;
    const auto add = [&tree](ValueKind kind, std::vector<ValueId> items = {},
                             std::string text = {}) {
        Value value;
        value.kind = kind;
        value.items = std::move(items);
        value.text = std::move(text);
        return tree.add(std::move(value));
    };
    const ValueId key = add(ValueKind::kString, {}, "opt");
    const ValueId list = add(ValueKind::kList);
    tree.root = add(ValueKind::kDict, {key, list});
    tree.values[list].items = {add(ValueKind::kString, {}, "\xff")};
    EXPECT_THAT(why(write_pickle(tree)), HasSubstr("state['opt'][0]: it is a string that is not"));
    tree.values[list].items = {add(ValueKind::kSet, {list})};
    EXPECT_THAT(why(write_pickle(tree)), HasSubstr("state['opt'][0]: it has a key"));
    const ValueId tuple = add(ValueKind::kTuple, {list});
    tree.values[list].items = {tuple};
    EXPECT_TRUE(write_pickle(tree));  // through a list a tuple may contain itself
    tree.root = tuple;
    EXPECT_TRUE(write_pickle(tree));  // wherever it is met first
    const ValueId ring = add(ValueKind::kTuple);
    tree.values[ring].items = {ring};
    tree.root = ring;
    EXPECT_THAT(why(write_pickle(tree)), HasSubstr("deeper than 500"));
    tree.root = add(ValueKind::kBigInt, {}, std::string(kBigIntBytesMax + 1, '\x11'));
    EXPECT_THAT(why(write_pickle(tree)), HasSubstr("an integer of 65537 bytes"));
    ValueId deep = list;
    tree.values[list].items = {};
    for (int i = 0; i < 600; ++i) {
        deep = add(ValueKind::kList, {deep});
    }
    tree.root = deep;
    EXPECT_THAT(why(write_pickle(tree)), HasSubstr("deeper than 500"));
}

TEST(Pickle, EveryCutIsRefusedAndEveryFlippedByteIsAnErrorOrAState) {
    const std::uint64_t rounds = std::min<std::uint64_t>(4, support::engine_seeds(1));
    for (const std::uint64_t seed : {3U, 11U, 17U}) {
        const auto pickle = write_pickle(RandomTree(seed).make());
        ASSERT_TRUE(pickle) << why(pickle);
        const std::size_t end = std::min<std::size_t>(pickle->size(), 500);
        for (std::size_t cut = 0; cut < end; ++cut) {
            ASSERT_FALSE(read(pickle->substr(0, cut))) << cut;
        }
        Random random(seed);
        for (std::size_t at = 0; at < end; ++at) {
            for (std::uint64_t round = 0; round < rounds; ++round) {
                std::string damaged = *pickle;
                damaged[at] = static_cast<char>(random());
                const auto back = read(damaged);
                if (back) {
                    static_cast<void>(write_pickle(back->tree));
                }
            }
        }
    }
}

struct TorchFile {
    ValueTree tree;
    std::vector<Bytes> payloads;
    Bytes file;
};

TorchFile torch_file_of(std::uint64_t seed) {
    TorchFile out{RandomTree(seed).make(), {}, {}};
    Random random(seed);
    auto layout = torch_file::Layout::make(out.tree, "state");
    EXPECT_TRUE(layout) << why(layout);
    for (std::size_t i = 0; i < out.tree.storages.size(); ++i) {
        out.payloads.push_back(random_bytes(random, out.tree.storages[i].bytes));
        layout->set_crc(i, crc32(out.payloads[i]));
        EXPECT_TRUE(base::is_aligned(layout->payload_offset(i), 64));
    }
    out.file = assemble(layout->file(), out.payloads);
    return out;
}

TEST(TorchFile, RandomStatesComeBackWithTheirStorages) {
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
        SCOPED_TRACE(seed);
        const TorchFile made = torch_file_of(seed);
        MemorySource source(made.file);
        const auto file = torch_file::read(source, true);
        ASSERT_TRUE(file) << why(file);
        EXPECT_TRUE(same(made.tree, file->tree));
        // Storages that no tensor looks into are nowhere in the pickle.
        for (std::size_t i = 0; i < file->storages.size(); ++i) {
            const zip::Record& r = file->storages[i];
            const auto payload = std::stoul(file->tree.storages[i].key);
            EXPECT_TRUE(std::ranges::equal(std::span(made.file).subspan(r.offset, r.bytes),
                                           made.payloads[payload]));
        }
    }
}

TEST(TorchFile, ADamagedStorageIsFoundWhenAskedFor) {
    TorchFile made;
    std::uint64_t seed = 0;
    std::optional<zip::Record> record;
    for (; !record; ++seed) {
        made = torch_file_of(seed);
        MemorySource source(made.file);
        const auto file = torch_file::read(source);
        ASSERT_TRUE(file) << why(file);
        for (const zip::Record& r : file->storages) {
            if (r.bytes > 0) {
                record = r;
            }
        }
    }
    made.file[record->offset] ^= std::byte{1};
    MemorySource source(made.file);
    EXPECT_TRUE(torch_file::read(source));
    EXPECT_THAT(why(torch_file::read(source, true)), HasSubstr(record->name));
}

TEST(TorchFile, NoFormatVersionIsWritten) {
    const TorchFile made = torch_file_of(1);
    EXPECT_EQ(text_of(made.file).find(".format_version"), std::string_view::npos);
    EXPECT_NE(text_of(made.file).find("state/version"), std::string_view::npos);
}

// Counts what is asked for.
class Counting final : public ByteSource {
public:
    explicit Counting(std::string head) : head_(std::move(head)) {}
    [[nodiscard]] std::uint64_t size() const override { return std::uint64_t{1} << 40; }
    [[nodiscard]] Result<void> read(std::uint64_t offset, std::span<std::byte> into) override {
        asked += into.size();
        for (std::size_t i = 0; i < into.size(); ++i) {
            into[i] =
                static_cast<std::byte>(offset + i < head_.size() ? head_[offset + i] : '\xff');
        }
        return {};
    }
    std::uint64_t asked = 0;

private:
    std::string head_;
};

TEST(TorchFile, ALargeFileThatIsNoneIsNotReadWhole) {
    for (const std::string& head : {"\x80\x02"s, "\x80\x02K\x01.\x80\x02K\x01.\x80\x02K\x01."s,
                                    "\x80\x02"
                                    "c"s,
                                    std::string(1, '\x80')}) {
        Counting source(head);
        EXPECT_FALSE(torch_file::read(source));
        EXPECT_LT(source.asked, 100'000U) << shown(head);
    }
}

TEST(TorchFile, WhatIsNoneSaysSo) {
    const auto error = [](std::string_view bytes) {
        MemorySource source(bytes_of(bytes));
        return why(torch_file::read(source));
    };
    EXPECT_THAT(error(""), HasSubstr("it is empty"));
    EXPECT_THAT(error("\x93NUMPY\x01"), HasSubstr("numpy.load()"));
    EXPECT_THAT(error("GGUF\x03"), HasSubstr("a GGUF model"));
    EXPECT_THAT(error("hello\n"), HasSubstr("neither a .pt nor a .safetensors: it is text"));
    EXPECT_THAT(error(" [1, 2]"), HasSubstr("JSON"));
    EXPECT_THAT(error("\x01\x02\xff"), HasSubstr("begins with the bytes 01 02 ff"));
    EXPECT_THAT(error("PK\x03\x04"), HasSubstr("at least 22"));
    EXPECT_THAT(error("\x80\x02K\x01.\x80\x02K\x01.\x80\x02K\x01.x"), HasSubstr("neither a zip"));
    EXPECT_THAT(error("\x80\x04K\x01."), HasSubstr("it is a pickle, and not one of torch.save"));
    const auto zip_of = [](std::vector<zip::NewRecord> records) {
        const auto layout = zip::Layout::make(std::move(records));
        return std::string(text_of(assemble(layout->file(), {})));
    };
    EXPECT_THAT(error(zip_of({{"a/x", 0, "y"}})), HasSubstr("without a data.pkl"));
    EXPECT_THAT(error(zip_of({{"arr_0.npy", 0, "y"}})), HasSubstr("array 'arr_0': "));
    EXPECT_THAT(error(zip_of({{"a/data.pkl", 0, "\x80\x02N."}, {"b/data.pkl", 0, "\x80\x02N."}})),
                HasSubstr("comes twice"));
    EXPECT_THAT(error(zip_of({{"a/data.pkl", 0, "\x80\x02N."}, {"a/byteorder", 0, "middle"}})),
                HasSubstr("the order 'middle'"));
    EXPECT_THAT(error(zip_of({{"a/data.pkl", 0, "\x80\x02N.N"}})), HasSubstr("behind the state"));
    EXPECT_THAT(error(zip_of({{"a/data.pkl", 0, "\x80\x02N."}, {"a/constants.pkl", 0, ""}})),
                HasSubstr("TorchScript"));
    for (const auto& [version, read] :
         {std::pair("1", true), std::pair("3\n", true), std::pair("10", true),
          std::pair("0", false), std::pair("11", false), std::pair("999999", false),
          std::pair("three", false), std::pair("", false)}) {
        EXPECT_EQ(error(zip_of({{"a/data.pkl", 0, "\x80\x02N."}, {"a/version", 0, version}})) ==
                      "it was accepted",
                  read)
            << version;
    }
    EXPECT_THAT(error(zip_of({{"a/data.pkl", 0, "\x80\x02N."}})), HasSubstr("it was accepted"));
}

}  // namespace
}  // namespace penstock::format
