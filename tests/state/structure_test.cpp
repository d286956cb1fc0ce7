// SPDX-License-Identifier: Apache-2.0
#include "state/structure/structure.hpp"

#include "base/clock.hpp"
#include "format/grammar.hpp"
#include "format/random_tree.hpp"
#include "store/support.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace penstock::state {
namespace {

using format::kNestingMax;
using format::TensorValue;
using format::Value;
using format::ValueId;
using format::ValueKind;
using format::ValueTree;
using format::test::Bytes;
using format::test::Random;
using format::test::RandomTree;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<CheckpointTensor> kNoTensors;

Value of(ValueKind kind, std::string text = {}) {
    Value value;
    value.kind = kind;
    value.text = std::move(text);
    return value;
}

// A tree under construction, with memory for its storages.
struct Tree {
    ValueTree tree;
    std::vector<Bytes> memory;

    std::uint32_t storage(std::uint64_t bytes, std::string location = "cpu") {
        Random random(tree.storages.size() + 7);
        tree.storages.push_back({bytes, std::move(location), ""});
        memory.push_back(format::test::random_bytes(random, bytes));
        return static_cast<std::uint32_t>(tree.storages.size() - 1);
    }
    ValueId string(std::string text) { return tree.add(of(ValueKind::kString, std::move(text))); }
    ValueId tensor(TensorValue t) {
        Value value = of(ValueKind::kTensor);
        value.integer = static_cast<std::int64_t>(tree.tensors.size());
        tree.tensors.push_back(std::move(t));
        return tree.add(std::move(value));
    }
    ValueId tensor(std::uint32_t storage, std::vector<std::uint64_t> shape,
                   std::vector<std::uint64_t> strides, std::uint64_t offset = 0) {
        TensorValue t;
        t.storage = storage;
        t.offset = offset;
        t.shape = std::move(shape);
        t.strides = std::move(strides);
        return tensor(std::move(t));
    }
    ValueId dict(std::vector<std::pair<std::string, ValueId>> entries) {
        Value value = of(ValueKind::kDict);
        for (auto& [key, item] : entries) {
            value.items.push_back(string(std::move(key)));
            value.items.push_back(item);
        }
        return tree.add(std::move(value));
    }
    [[nodiscard]] std::vector<std::span<const std::byte>> spans() const {
        return {memory.begin(), memory.end()};
    }
    [[nodiscard]] State state() const { return state_of(tree, spans()); }
};

std::vector<CheckpointTensor> tensors_of(const State& state) {
    std::vector<CheckpointTensor> out;
    for (const StateTensor& t : state.tensors) {
        out.push_back({t.name, t.dtype, t.shape, t.data.bytes, 1});
    }
    return out;
}

// The elements that a tensor sees, as bytes.
std::string seen(const TensorValue& t, std::span<const std::byte> storage) {
    const std::uint64_t each = format::torch_type(t.type)->torch_bytes();
    std::string out;
    std::vector<std::uint64_t> at(t.shape.size(), 0);
    if (std::find(t.shape.begin(), t.shape.end(), 0U) != t.shape.end()) {
        return out;
    }
    while (true) {
        std::uint64_t element = t.offset;
        for (std::size_t d = 0; d < at.size(); ++d) {
            element += at[d] * t.strides[d];
        }
        out += format::test::text_of(storage.subspan(element * each, each));
        std::size_t d = at.size();
        while (d > 0 && ++at[d - 1] == t.shape[d - 1]) {
            at[--d] = 0;
        }
        if (d == 0) {
            return out;
        }
    }
}

// A state that is read again is equal: values as same() says, but of storages only the viewed part
// comes back; tensors see the same bytes, and share storages in the same places.
void expect_same(const Tree& before, const State& state, const Skeleton& after) {
    std::map<std::string, std::span<const std::byte>> by_name;
    for (const StateTensor& t : state.tensors) {
        EXPECT_TRUE(by_name.emplace(t.name, t.data.span()).second) << t.name;
    }
    ValueTree a = before.tree;
    ValueTree b = after.tree;
    ASSERT_EQ(b.storages.size(), after.sources.size());
    // Tensors by what they see; then made equal, so that same() looks at all else.
    std::map<std::uint32_t, std::uint32_t> storages;
    std::vector<std::pair<ValueId, ValueId>> open{{a.root, b.root}};
    std::map<ValueId, ValueId> met;
    while (!open.empty()) {
        const auto [x, y] = open.back();
        open.pop_back();
        if (!met.emplace(x, y).second) {
            continue;
        }
        const Value& v = a.at(x);
        const Value& w = b.at(y);
        ASSERT_EQ(v.kind, w.kind);
        ASSERT_EQ(v.items.size(), w.items.size());
        ASSERT_EQ(v.attributes == format::kNoValue, w.attributes == format::kNoValue);
        for (std::size_t i = 0; i < v.items.size(); ++i) {
            open.emplace_back(v.items[i], w.items[i]);
        }
        if (v.attributes != format::kNoValue) {
            open.emplace_back(v.attributes, w.attributes);
        }
        if (v.kind == ValueKind::kTensor) {
            const TensorValue& t = a.tensors[static_cast<std::size_t>(v.integer)];
            TensorValue& u = b.tensors[static_cast<std::size_t>(w.integer)];
            const auto& source = by_name.at(after.sources[u.storage]);
            ASSERT_EQ(source.size(), b.storages[u.storage].bytes);
            EXPECT_EQ(t.type, u.type);
            EXPECT_EQ(t.shape, u.shape);
            EXPECT_EQ(t.strides.size(), u.strides.size());
            EXPECT_EQ(seen(t, before.memory[t.storage]), seen(u, source));
            const auto [known, fresh] = storages.emplace(t.storage, u.storage);
            EXPECT_EQ(known->second, u.storage);
            EXPECT_EQ(b.storages[u.storage].location, a.storages[t.storage].location);
        }
    }
    for (const auto& [x, y] : met) {
        if (a.at(x).kind == ValueKind::kTensor) {
            TensorValue& u = b.tensors[static_cast<std::size_t>(b.at(y).integer)];
            const TensorValue& t = a.tensors[static_cast<std::size_t>(a.at(x).integer)];
            u.offset = t.offset;
            u.strides = t.strides;
            b.storages[u.storage].bytes = a.storages[t.storage].bytes;
        }
    }
    EXPECT_TRUE(format::same(a, b));
}

TEST(Structure, RandomTreesComeBack) {
    for (std::uint64_t seed = 1; seed <= 400; ++seed) {
        SCOPED_TRACE(seed);
        Tree before;
        before.tree = RandomTree(seed).make();
        Random random(seed);
        for (const auto& s : before.tree.storages) {
            before.memory.push_back(format::test::random_bytes(random, s.bytes));
        }
        const State state = before.state();
        const auto tensors = tensors_of(state);
        expect_same(before, state, skeleton_of(state.structure, tensors));
    }
}

TEST(Structure, NamesAreTheTensorsPlaces) {
    Tree t;
    const ValueId weight = t.tensor(t.storage(64), {4, 4}, {4, 1});
    const ValueId bias = t.tensor(t.storage(16), {4}, {1});
    Value list = of(ValueKind::kList);
    list.items = {t.tensor(t.storage(8), {2}, {1})};
    const ValueId group = t.tree.add(std::move(list));
    t.tree.root = t.dict(
        {{"model", t.dict({{"layer.0.weight", weight}, {"layer.0.bias", bias}})}, {"opt", group}});
    const State state = t.state();
    ASSERT_EQ(state.tensors.size(), 3U);
    EXPECT_EQ(state.tensors[0].name, "model.layer.0.weight");
    EXPECT_EQ(state.tensors[0].dtype, "F32");
    EXPECT_EQ(state.tensors[0].shape, (std::vector<std::uint64_t>{4, 4}));
    EXPECT_EQ(state.tensors[1].name, "model.layer.0.bias");
    EXPECT_EQ(state.tensors[2].name, "opt.0");
}

TEST(Structure, NamesThatMeetAreToldApart) {
    Tree t;
    const ValueId inner = t.dict({{"b", t.tensor(t.storage(4), {1}, {1})}});
    t.tree.root = t.dict({{"a", inner},
                          {"a.b", t.tensor(t.storage(4), {1}, {1})},
                          {"", t.tensor(t.storage(4), {1}, {1})},
                          {"__metadata__", t.tensor(t.storage(4), {1}, {1})}});
    const State state = t.state();
    std::vector<std::string> names;
    for (const StateTensor& tensor : state.tensors) {
        names.push_back(tensor.name);
    }
    EXPECT_EQ(names, (std::vector<std::string>{"a.b", "a.b~2", "tensor", "__metadata__~2"}));
    expect_same(t, state, skeleton_of(state.structure, tensors_of(state)));
}

TEST(Structure, OnlyThePartThatIsLookedAtIsSaved) {
    Tree t;
    t.tree.root = t.dict({{"view", t.tensor(t.storage(4096), {3}, {1}, 10)}});
    const State state = t.state();
    ASSERT_EQ(state.tensors.size(), 1U);
    EXPECT_EQ(state.tensors[0].name, "view");
    EXPECT_EQ(state.tensors[0].data.bytes, 12U);
    EXPECT_EQ(state.tensors[0].data.data, t.memory[0].data() + 40);
}

TEST(Structure, ViewsThatOverlapShareTheirStorageAgain) {
    Tree t;
    const auto storage = t.storage(64);
    t.tree.root =
        t.dict({{"a", t.tensor(storage, {10}, {1}, 0)}, {"b", t.tensor(storage, {10}, {1}, 5)}});
    const State state = t.state();
    ASSERT_EQ(state.tensors.size(), 1U);
    EXPECT_EQ(state.tensors[0].name, "a.storage");
    EXPECT_EQ(state.tensors[0].dtype, "U8");
    expect_same(t, state, skeleton_of(state.structure, tensors_of(state)));
}

TEST(Structure, TiedWeightsAreOneTensor) {
    Tree t;
    const auto storage = t.storage(64);
    t.tree.root = t.dict({{"row", t.tensor(storage, {4}, {1}, 4)},
                          {"embedding", t.tensor(storage, {4, 4}, {4, 1})},
                          {"head", t.tensor(storage, {4, 4}, {4, 1})}});
    const State state = t.state();
    ASSERT_EQ(state.tensors.size(), 1U);
    EXPECT_EQ(state.tensors[0].name, "embedding");
    expect_same(t, state, skeleton_of(state.structure, tensors_of(state)));
}

TEST(Structure, EmptyTensorsOfEveryKindComeBack) {
    Tree t;
    const auto storage = t.storage(64);
    TensorValue empty;
    empty.storage = storage;
    empty.offset = 9;
    empty.shape = {0, 5};
    empty.strides = {7, 3};
    t.tree.root = t.dict({{"in a storage", t.tensor(empty)},
                          {"of no bytes", t.tensor(t.storage(0), {3, 0}, {1, 1})}});
    const State state = t.state();
    expect_same(t, state, skeleton_of(state.structure, tensors_of(state)));
}

TEST(Structure, NumbersKeepEveryBit) {
    Tree t;
    const auto real = [&t](double value) {
        Value v = of(ValueKind::kFloat);
        v.real = value;
        return t.tree.add(std::move(v));
    };
    const auto integer = [&t](std::int64_t value) {
        Value v = of(ValueKind::kInt);
        v.integer = value;
        return t.tree.add(std::move(v));
    };
    Value list = of(ValueKind::kList);
    for (const double d : {0.0, -0.0, 1.0, 0.1, 1e300, 5e-324, 123456789012345678.0, HUGE_VAL,
                           -HUGE_VAL, std::numeric_limits<double>::quiet_NaN()}) {
        list.items.push_back(real(d));
    }
    for (const std::int64_t i :
         {std::int64_t{0}, std::int64_t{-1}, INT64_MAX, INT64_MIN, -(std::int64_t{1} << 53) - 1}) {
        list.items.push_back(integer(i));
    }
    t.tree.root = t.tree.add(std::move(list));
    const Skeleton after = skeleton_of(t.state().structure, kNoTensors);
    EXPECT_TRUE(format::same(t.tree, after.tree));
}

TEST(Structure, ListsThatContainThemselvesComeBack) {
    Tree t;
    t.tree.root = t.tree.add(of(ValueKind::kList));
    Value tuple = of(ValueKind::kTuple);
    tuple.items = {t.tree.root};
    const ValueId inner = t.tree.add(std::move(tuple));
    t.tree.values[t.tree.root].items = {t.tree.root, inner, inner};
    EXPECT_TRUE(format::same(t.tree, skeleton_of(t.state().structure, kNoTensors).tree));
}

// state_of() does this with all that it writes: here with what it did not write.
TEST(Structure, WhatWouldNotComeBackIsNamedByItsPlace) {
    Tree t;
    const auto storage = t.storage(64);
    Value list = of(ValueKind::kList);
    list.items = {t.string("one"), t.string("two"), t.tensor(storage, {2}, {1}, 4),
                  t.tensor(storage, {4, 4}, {4, 1})};
    t.tree.root = t.dict({{"opt", t.tree.add(std::move(list))}});
    State state = t.state();
    check_readback(t.tree, t.spans(), state);
    const auto changed = [&](const std::string& from, const std::string& to) {
        State other = state;
        const std::size_t at = other.structure.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        other.structure.replace(at, from.size(), to);
        return std::string(error_of([&] { check_readback(t.tree, t.spans(), other); }).what());
    };
    EXPECT_THAT(changed("\"two\"", "\"tvo\""), HasSubstr("state['opt'][1]"));
    EXPECT_THAT(changed("\"two\"", "2"), HasSubstr("state['opt'][1]"));
    EXPECT_THAT(changed("\"two\"", "[\"tuple\"]"), HasSubstr("state['opt'][1]"));
    EXPECT_THAT(changed("\"opt\"", "\"0pt\""), HasSubstr("state['opt']: "));
    EXPECT_THAT(changed("\"float32\",4", "\"float32\",5"), HasSubstr("state['opt'][2]"));
    EXPECT_THAT(changed("\"float32\",4", "\"int32\",4"), HasSubstr("state['opt'][2]"));
    EXPECT_THAT(changed("[0,\"\"", "[0,\"g\""), HasSubstr("state['opt'][2]"));
    EXPECT_THAT(changed("\"list\",", "\"list\",0,"), HasSubstr("state['opt']"));
    EXPECT_THAT(changed("\"list\"", "\"lisp\""), HasSubstr("cannot be read again"));
    EXPECT_THAT(changed("\"opt.3\"", "\"opt.4\""), HasSubstr("cannot be read again"));
}

TEST(Structure, WithoutStructureAllTensorsByName) {
    const std::vector<CheckpointTensor> tensors{{"b", "F32", {2, 3}, 24, 1},
                                                {"a", "I64", {}, 8, 1}};
    const Skeleton s = skeleton_of("null", tensors);
    EXPECT_EQ(s.sources, (std::vector<std::string>{"b", "a"}));
    EXPECT_EQ(s.tree.at(s.tree.root).kind, ValueKind::kDict);
    ASSERT_EQ(s.tree.tensors.size(), 2U);
    EXPECT_EQ(s.tree.tensors[0].strides, (std::vector<std::uint64_t>{3, 1}));
    EXPECT_EQ(s.tree.storages[0].bytes, 24U);
}

TEST(Structure, WhatCannotBeSavedIsNamedByItsPlace) {
    Tree t;
    Value list = of(ValueKind::kList);
    list.items = {t.tree.add(of(ValueKind::kNone)),
                  t.tree.add(of(ValueKind::kGlobal, "my.function"))};
    const ValueId inner = t.tree.add(std::move(list));
    t.tree.root = t.dict({{"opt", inner}});
    const Error error = error_of([&] { (void)t.state(); });
    EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("state['opt'][1]: 'my.function' itself is not a value"));
}

// It is in the structure of a `.pt` that was read, so that its tensors have names, and in nothing
// that is saved.
TEST(Structure, WhatWasNotReadIsKeptAndNotSaved) {
    Tree t;
    Value unread = of(ValueKind::kUnread, "my.Class");
    unread.data = "it is made by 'my.Class'";
    unread.items = {t.tree.add(of(ValueKind::kString, "a")), t.tree.add(of(ValueKind::kNone))};
    t.tree.root = t.dict({{"x", t.tree.add(std::move(unread))}});
    const State state = t.state();
    EXPECT_TRUE(format::same(t.tree, skeleton_of(state.structure, kNoTensors).tree));
    EXPECT_THAT(wrong_structure(state.structure, {}),
                HasSubstr("state['x']: it is made by 'my.Class'"));
}

TEST(Structure, DepthHasALimit) {
    for (const int depth : {kNestingMax, kNestingMax + 1}) {
        Tree t;
        ValueId inner = t.tree.add(of(ValueKind::kNone));
        for (int i = 0; i < depth; ++i) {
            Value list = of(ValueKind::kList);
            list.items = {inner};
            inner = t.tree.add(std::move(list));
        }
        t.tree.root = inner;
        if (depth == kNestingMax) {
            EXPECT_TRUE(format::same(t.tree, skeleton_of(t.state().structure, kNoTensors).tree));
        } else {
            EXPECT_THAT(error_of([&] { (void)t.state(); }).what(), HasSubstr("nested deeper"));
        }
    }
}

TEST(Structure, HostileTextIsRefused) {
    const std::vector<CheckpointTensor> tensors{{"w", "F32", {4}, 16, 1}};
    const auto text = [](std::string values, std::string t = "", std::string storages = "") {
        return "{\"penstock_structure\":1,\"values\":[" + values + "],\"tensors\":[" + t +
               "],\"storages\":[" + storages + "]}";
    };
    // This much is right, so that what follows is wrong for its own reason.
    (void)skeleton_of(text(R"(["tensor",0])", "[0]", R"("w")"), tensors);
    const std::pair<std::string, std::string> cases[] = {
        {"", "not JSON"},
        {"[]", "not an object"},
        {"{}", "missing"},
        {R"({"penstock_structure":2,"values":[null],"tensors":[],"storages":[]})", "of version 2"},
        {R"({"penstock_structure":1,"values":[null],"tensors":[],"storages":[],"more":1})",
         "does not know"},
        {text(""), "no values"},
        {text("[]"), "form"},
        {text(R"(["eval","1"])"), "form"},
        {text(R"(["list",1])"), "not there"},
        {text(R"(["list",-1])"), "form"},
        {text(R"(["list",4294967295])"), "form"},
        {text(R"(["list",null])"), "form"},
        {text(R"([["list"]])"), "form"},
        {text("18446744073709551615"), "form"},
        {text(R"(["dict",1],"a")"), "without a value"},
        {text(R"(["dict",1,1],["list"])"), "key"},
        {text(R"(["set",1],["dict"])"), "key"},
        {text(R"(["tuple",0])"), "contains itself"},
        {text(R"(["tuple",1],["tuple",0])"), "contains itself"},
        {text(R"(["OrderedDict",1],["list"])"), "attributes"},
        {text(R"(["OrderedDict",7])"), "not there"},
        {text(R"(["OrderedDict",1],["dict",2,2],1)"), "not a string"},
        {text(R"(["defaultdict","eval"])"), "not allowed"},
        {text(R"(["Size",1],1.5)"), "extent"},
        {text(R"(["dtype","__builtins__"])"), "not a dtype"},
        {text(R"(["device","a b"])"), "not a device"},
        {text(R"(["tensor",0])"), "not there"},
        {text(R"(["bytes","a"])"), "form"},
        {text(R"(["bytes","YQ=a"])"), "form"},
        {text(R"(["int","YQ=="])"), "an integer of"},
        {text(R"(["float","7ff8"])"), "form"},
        {text(R"(["complex","0000000000000000"])"), "form"},
        {text(R"(["numpy","<f8","YQ=="])"), "does not have"},
        {text(R"(["numpy","O","AAAAAAAAAAA="])"), "not read"},
        {text(R"(["ndarray","<f8",false,"",1],9223372036854775807)"), "does not have"},
        {text("null", "[0]"), "storage that is not there"},
        {text("null", "", R"("v")"), "does not have"},
        {text("null", "", R"(["w","no device!"])"), "no device"},
        {text("null", R"([0,"x"])", R"("w")"), "properties"},
        {text("null", R"([0,"","float32",1,[4],[1]])", R"("w")"), "does not lie"},
        {text("null", R"([0,"","float32",0,[4],[]])", R"("w")"), "does not lie"},
        {text("null", R"([0,"","float32",0,[2,9223372036854775807],[9223372036854775807,4]])",
              R"("w")"),
         "does not lie"},
        {text("null", R"([0,"","qint8",0,[4],[1]])", R"("w")"), "no type"},
        {text("null", R"([0,"","float32",0,[[4]],[1]])", R"("w")"), "form"},
    };
    for (const auto& [structure, why] : cases) {
        const Error error = error_of([&, s = structure] { (void)skeleton_of(s, tensors); });
        EXPECT_EQ(error.reason(), ErrorCode::kDamaged) << structure;
        EXPECT_THAT(error.what(), HasSubstr(why)) << structure;
    }
}

TEST(Structure, ManyTensorsTakeNoTime) {
    Tree t;
    std::vector<std::pair<std::string, ValueId>> entries;
    for (int i = 0; i < 65536; ++i) {
        entries.emplace_back("layers." + std::to_string(i) + ".weight",
                             t.tensor(t.storage(16), {4}, {1}));
    }
    t.tree.root = t.dict(std::move(entries));
    const base::SteadyClock clock;
    const base::Nanos begin = clock.now();
    const State state = t.state();
    const base::Nanos made = clock.now();
    const auto tensors = tensors_of(state);
    const Skeleton read = skeleton_of(state.structure, tensors);
    const base::Nanos done = clock.now();
    EXPECT_EQ(read.sources.size(), 65536U);
    RecordProperty("made_ms", static_cast<int>((made - begin) / 1'000'000));
    RecordProperty("read_ms", static_cast<int>((done - made) / 1'000'000));
    // 0.15 s on two quiet cores, 20 times as long under AddressSanitizer on busy ones.
    EXPECT_LT(done - begin, 10'000'000'000);
}

}  // namespace
}  // namespace penstock::state
