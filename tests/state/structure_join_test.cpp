// SPDX-License-Identifier: Apache-2.0
// States of ranks that become one: joined dicts, equal values, and values of each rank.
#include "state/structure/structure_join.hpp"

#include "state/structure/per_rank.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::state {
namespace {

using format::Value;
using format::ValueId;
using format::ValueKind;
using format::ValueTree;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Entries = std::vector<std::pair<std::string, ValueId>>;

// The state of a rank, under construction.
struct RankState {
    ValueTree tree;
    std::vector<std::vector<std::byte>> memory;

    ValueId value(ValueKind kind, std::int64_t integer = 0, std::string text = {},
                  std::vector<ValueId> items = {}) {
        Value v;
        v.kind = kind;
        v.integer = integer;
        v.text = std::move(text);
        v.items = std::move(items);
        return tree.add(std::move(v));
    }
    ValueId number(std::int64_t n) { return value(ValueKind::kInt, n); }
    ValueId string(std::string text) { return value(ValueKind::kString, 0, std::move(text)); }
    ValueId list(std::vector<ValueId> items) {
        return value(ValueKind::kList, 0, {}, std::move(items));
    }
    ValueId dict(const Entries& entries) {
        std::vector<ValueId> items;
        for (const auto& [key, item] : entries) {
            items.insert(items.end(), {string(key), item});
        }
        return value(ValueKind::kDict, 0, {}, std::move(items));
    }
    ValueId per_rank(std::int64_t rank, ValueId own) {
        return value(ValueKind::kPerRank, 0, {}, {number(rank), own});
    }
    ValueId view(std::uint32_t storage, std::uint64_t elements) {
        tree.tensors.push_back({storage, tensor::ElementType::kF32, 0, {elements}, {1}});
        return value(ValueKind::kTensor, static_cast<std::int64_t>(tree.tensors.size() - 1));
    }
    ValueId tensor(std::uint64_t elements, std::string location = "cpu") {
        tree.storages.push_back({4 * elements, std::move(location), ""});
        memory.emplace_back(4 * elements);
        return view(static_cast<std::uint32_t>(tree.storages.size() - 1), elements);
    }
    State state(ValueId root) {
        tree.root = root;
        std::vector<std::span<const std::byte>> storages(memory.begin(), memory.end());
        return state_of(tree, storages);
    }
};

class Joined {
public:
    void add(const State& state) {
        std::vector<StoredTensor> tensors;
        for (const StateTensor& t : state.tensors) {
            tensors.push_back({t.name, t.dtype, t.shape, t.data.bytes});
            if (known_.insert(t.name).second) {
                all_.push_back({t.name, t.dtype, t.shape, t.data.bytes, 0});
            }
        }
        join_.add(state.structure, tensors, fmt::format("rank {}", ranks_++));
    }
    [[nodiscard]] Skeleton skeleton() const { return skeleton_of(join_.text(), all_); }
    [[nodiscard]] std::string shown() const { return text(skeleton().tree); }
    // A tree in one line.
    static std::string text(const ValueTree& tree) { return text(tree, tree.root); }

private:
    static std::string text(const ValueTree& tree, ValueId id) {
        const Value& v = tree.at(id);
        std::string inner;
        for (const ValueId item : v.items) {
            inner += (inner.empty() ? "" : " ") + text(tree, item);
        }
        switch (v.kind) {
            case ValueKind::kInt:
                return fmt::to_string(v.integer);
            case ValueKind::kString:
                return v.text;
            case ValueKind::kTensor:
                return fmt::format("T{}",
                                   tree.tensors[static_cast<std::size_t>(v.integer)].storage);
            case ValueKind::kDict:
                return "{" + inner + "}";
            case ValueKind::kPerRank:
                return "<" + inner + ">";
            case ValueKind::kNone:
                return "None";
            default:
                return "[" + inner + "]";
        }
    }

    StructureJoin join_;
    std::set<std::string> known_;
    std::vector<CheckpointTensor> all_;
    int ranks_ = 0;
};

// Returns the text of the error of a call; empty: it has none.
template <typename Call>
std::string why_of(const Call& call) {
    try {
        call();
        return {};
    } catch (const Error& error) {
        return error.what();
    }
}

State stage(const std::string& key, std::int64_t step = 3, std::string location = "cpu") {
    RankState s;
    const ValueId weight = s.tensor(4, std::move(location));
    return s.state(s.dict({{"model", s.dict({{key, weight}})}, {"step", s.number(step)}}));
}

TEST(StructureJoin, DictsAreJoinedAndEqualStatesStay) {
    Joined joined;
    joined.add(stage("a"));
    joined.add(stage("b"));
    joined.add(stage("a", 3, "cuda:1"));  // where a tensor was is a rank's own affair
    EXPECT_EQ(joined.shown(), "{model {a T0 b T1} step 3}");
    EXPECT_THAT(joined.skeleton().sources, ElementsAre("model.a", "model.b"));

    const State one = stage("a");
    std::vector<StoredTensor> tensors{{"model.a", "F32", one.tensors[0].shape, 16}};
    StructureJoin same;
    same.add(one.structure, tensors, "rank 0");
    EXPECT_EQ(same.text(), one.structure);
    same.add(one.structure, tensors, "rank 1");
    EXPECT_EQ(same.text(), one.structure);
}

TEST(StructureJoin, KeysInAnotherOrderAreTheSame) {
    Joined joined;
    for (const bool turned : {false, true}) {
        RankState s;
        const ValueId a = s.number(1);
        const ValueId b = s.list({s.number(2)});
        joined.add(s.state(turned ? s.dict({{"b", b}, {"a", a}}) : s.dict({{"a", a}, {"b", b}})));
    }
    EXPECT_EQ(joined.shown(), "{a 1 b [2]}");
}

TEST(StructureJoin, OtherValuesAreRefusedByPlace) {
    const auto joining = [](const State& a, const State& b) {
        return why_of([&] {
            Joined joined;
            joined.add(a);
            joined.add(b);
        });
    };
    EXPECT_THAT(joining(stage("a", 3), stage("a", 4)),
                AllOf(HasSubstr("state['step']: another value on rank 1 than on rank 0"),
                      HasSubstr("PerRank")));
    const auto listed = [](std::vector<std::int64_t> numbers) {
        RankState s;
        std::vector<ValueId> items;
        for (const std::int64_t n : numbers) {
            items.push_back(s.number(n));
        }
        return s.state(s.dict({{"x", s.list(items)}}));
    };
    EXPECT_THAT(joining(listed({1, 2}), listed({1})), HasSubstr("state['x']: 1 items, and not 2,"));
    EXPECT_THAT(joining(listed({1, 2}), listed({1, 5})), HasSubstr("state['x'][1]: another value"));
    EXPECT_THAT(joining(listed({}), stage("a", 3)), "");  // no key in common
    RankState s;
    EXPECT_THAT(joining(listed({1}), s.state(s.dict({{"x", s.tensor(2)}}))),
                HasSubstr("state['x']: a value of another type"));
}

TEST(StructureJoin, TheFirstIsTakenWhereThatIsAskedFor) {
    StructureJoin join(true);
    const State first = stage("a", 3);
    const State second = stage("a", 4);
    const std::vector<StoredTensor> tensors{{"model.a", "F32", first.tensors[0].shape, 16}};
    join.add(first.structure, tensors, "rank 0");
    join.add(second.structure, tensors, "rank 1");
    EXPECT_EQ(join.text(), first.structure);
    RankState s;
    const State other = s.state(s.dict({{"model", s.number(1)}, {"step", s.number(3)}}));
    EXPECT_THAT(why_of([&] { join.add(other.structure, {}, "rank 2"); }),
                HasSubstr("state['model']: a value of another type on rank 2 than on rank 0"));
}

TEST(StructureJoin, ANameOfTwoPlacesIsRefused) {
    RankState nested;
    RankState flat;
    Joined joined;
    joined.add(nested.state(nested.dict({{"a", nested.dict({{"b", nested.tensor(2)}})}})));
    EXPECT_THAT(why_of([&] {
                    joined.add(flat.state(flat.dict({{"a.b", flat.tensor(2)}})));
                }),
                HasSubstr("tensor 'a.b' is at another place on rank 1 than on rank 0"));
}

TEST(StructureJoin, TiedTensorsStayTied) {
    RankState first;
    RankState second;
    Joined joined;
    joined.add(first.state(first.dict({{"embed", first.tensor(2)}})));
    const ValueId embed = second.tensor(2);
    joined.add(second.state(second.dict({{"embed", embed}, {"head", second.view(0, 2)}})));
    EXPECT_EQ(joined.shown(), "{embed T0 head T0}");
}

TEST(StructureJoin, EachRankHasAValueOfItsOwn) {
    Joined joined;
    for (std::int64_t rank = 0; rank < 3; ++rank) {
        RankState s;
        const ValueId own = s.dict({{"rng", s.tensor(2)}, {"seed", s.number(rank * 10)}});
        Entries entries{{"step", s.number(7)}};
        if (rank != 1) {
            entries.emplace_back("own", s.per_rank(rank, own));
        }
        joined.add(s.state(s.dict(entries)));
    }
    Skeleton all = joined.skeleton();
    EXPECT_EQ(Joined::text(all.tree), "{step 7 own <0 {rng T0 seed 0} 2 {rng T1 seed 20}>}");
    EXPECT_THAT(all.sources, ElementsAre("own.0.rng", "own.2.rng"));
    EXPECT_EQ(place_of_per_rank(all.tree), "state['own']");
    const auto taken = [&](std::optional<std::uint32_t> rank) {
        ValueTree tree = all.tree;
        take_per_rank(tree, rank, 3);
        EXPECT_EQ(place_of_per_rank(tree), std::nullopt);
        return Joined::text(tree);
    };
    EXPECT_EQ(taken(2), "{step 7 own {rng T1 seed 20}}");
    EXPECT_EQ(taken(1), "{step 7}");
    EXPECT_EQ(taken(std::nullopt), "{step 7 own [{rng T0 seed 0} None {rng T1 seed 20}]}");
}

TEST(StructureJoin, AValueOfARankMayBeTheWholeState) {
    RankState s;
    State state = s.state(s.per_rank(0, s.number(5)));
    Skeleton read = skeleton_of(state.structure, std::span<const CheckpointTensor>());
    take_per_rank(read.tree, 0, 1);
    EXPECT_EQ(Joined::text(read.tree), "5");
}

TEST(StructureJoin, ATensorIsNotBothOwnAndShared) {
    RankState s;
    const ValueId weight = s.tensor(2);
    const ValueId own = s.per_rank(0, s.list({s.view(0, 1)}));
    EXPECT_THAT(why_of([&] {
                    s.state(s.dict({{"w", weight}, {"own", own}}));
                }),
                AllOf(HasSubstr("state['own'][0][0]"), HasSubstr("clone()")));
    RankState nested;
    const ValueId inner = nested.per_rank(0, nested.number(1));
    EXPECT_THAT(why_of([&] { nested.state(nested.list({nested.per_rank(0, inner)})); }),
                HasSubstr("PerRank in another PerRank"));
}

}  // namespace
}  // namespace penstock::state
