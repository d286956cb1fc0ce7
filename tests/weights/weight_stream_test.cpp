// SPDX-License-Identifier: Apache-2.0
// Units of a model, streamed: the bytes are those of the files, whatever the memory, the budget and
// the order.
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"
#include "weights/in_each_memory.hpp"

#include <penstock/state_file.hpp>
#include <penstock/tensor.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace penstock::weights {
namespace {

using namespace std::chrono_literals;
using support::pattern;
using test::error_of;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

class WeightStreamTest : public InEachMemory {
protected:
    // Layers with a few tensors each, an embedding that is a unit's own, in shards.
    void save(std::size_t layers, std::uint64_t rows, const std::string& name) {
        State state;
        for (std::size_t i = 0; i < layers; ++i) {
            WeightUnit unit{fmt::format("layers.{}", i), {}};
            for (const auto& [tensor, share] :
                 {std::pair{"q", 4U}, {"k", 1U}, {"up", 11U}, {"norm", 0U}}) {
                add(fmt::format("layers.{}.{}", i, tensor), share == 0 ? 3 : share * rows, unit);
            }
            units_.push_back(unit);
        }
        WeightUnit head{"head", {}};
        add("head", 30 * rows, head);
        units_.push_back(head);
        for (const auto& [tensor, bytes] : data_) {
            state.tensors.push_back({tensor, "BF16", {bytes.size() / 2}, bytes});
        }
        save_file(engine_, folder_ / name, state, {.shard_bytes = 300 * rows});
        table_ = inspect(engine_, folder_ / name);
    }
    void add(const std::string& name, std::uint64_t elements, WeightUnit& unit) {
        data_[name] = pattern(elements * 2, data_.size() + 1);
        unit.tensors.push_back(name);
        total_ += elements * 2;
    }
    void expect_view(const WeightView& view, std::size_t unit) {
        ASSERT_EQ(view.tensors.size(), units_[unit].tensors.size());
        for (std::size_t i = 0; i < view.tensors.size(); ++i) {
            ASSERT_TRUE(read(view.tensors[i]) == data_[units_[unit].tensors[i]])
                << units_[unit].tensors[i];
        }
    }
    void expect_unit(WeightStream& stream, std::size_t unit) {
        expect_view(stream.acquire(unit, handle()), unit);
    }
    void release(WeightStream& stream, std::size_t unit) { stream.release(unit, handle()); }
    void expect_pass(WeightStream& stream) {
        for (std::size_t unit = 0; unit < units_.size(); ++unit) {
            expect_unit(stream, unit);
            release(stream, unit);
        }
    }
    // A third of the model has room in pinned memory, where there is such.
    [[nodiscard]] WeightStreamOptions with(std::uint64_t memory_bytes) const {
        return {.memory_bytes = memory_bytes,
                .gpu = gpu(),
                .host_memory_bytes = GetParam() == Where::kPinned ? total_ / 3 : 0};
    }
    [[nodiscard]] std::uint64_t least() const {
        return least_weight_memory(table_, units_, with(0));
    }
    [[nodiscard]] std::uint64_t all() const { return most_weight_memory(table_, units_, with(0)); }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    std::map<std::string, Bytes> data_;
    std::vector<WeightUnit> units_;
    TensorTable table_;
    std::uint64_t total_ = 0;
};

TEST_P(WeightStreamTest, AnyBudgetGivesTheBytesOfTheFiles) {
    save(7, 9000, "model.safetensors.index.json");
    for (const double share : {0.0, 0.3, 0.5, 0.8, 1.2}) {
        const std::uint64_t budget =
            std::max(least(), static_cast<std::uint64_t>(share * static_cast<double>(total_)));
        WeightStream stream(engine_, table_, units_, with(budget));
        const WeightPlan& plan = stream.plan();
        EXPECT_LE(plan.used_bytes(), budget);
        for (int pass = 0; pass < 3; ++pass) {
            expect_pass(stream);
        }
        const WeightStreamStats stats = stream.stats();
        EXPECT_EQ(stats.passes, 3U);
        EXPECT_EQ(stats.acquired, 3 * units_.size());
        // All was read ahead, and nothing for nothing but the two units that come next.
        EXPECT_EQ(stats.on_demand, 0U);
        EXPECT_GE(stats.bytes_read, 3 * plan.read_bytes);
        EXPECT_LE(stats.bytes_read, 3 * plan.read_bytes + 2 * plan.slot_bytes);
        EXPECT_EQ(stats.needed_bytes, 3 * plan.read_bytes);
        EXPECT_GE(stats.running, std::accumulate(stats.stall.begin(), stats.stall.end(), 0LL));
    }
}

// A later pass that leaves units out, or has another order, is right, and its order is learned.
TEST_P(WeightStreamTest, AnyOrderIsRight) {
    save(6, 3000, "model.safetensors.index.json");
    WeightStream stream(engine_, table_, units_, with(least()));
    std::mt19937_64 random(1);
    for (int step = 0; step < 100; ++step) {
        const std::size_t unit = random() % units_.size();
        expect_unit(stream, unit);
        release(stream, unit);
    }
    const std::vector<std::size_t> order{5, 1, 3, 0};
    std::uint64_t demanded = 0;
    for (int pass = 0; pass < 4; ++pass) {
        for (const std::size_t unit : order) {
            expect_unit(stream, unit);
            release(stream, unit);
        }
        if (pass == 1) {
            demanded = stream.stats().on_demand;
        }
    }
    EXPECT_EQ(stream.stats().on_demand, demanded);
}

// A first pass in an order that is not that of the list reads each unit once all the same.
TEST_P(WeightStreamTest, AFirstPassReadsEachUnitOnce) {
    save(12, 3000, "model.safetensors");
    for (const std::size_t step : {12U, 5U}) {  // backwards, and in leaps
        WeightStream stream(engine_, table_, units_, with(least()));
        for (std::size_t i = 1; i <= units_.size(); ++i) {
            const std::size_t unit = i * step % units_.size();
            expect_unit(stream, unit);
            release(stream, unit);
        }
        const std::uint64_t needed = stream.stats().needed_bytes;
        EXPECT_EQ(needed, stream.plan().read_bytes);
        EXPECT_LE(stream.stats().bytes_read, needed + 2 * stream.plan().slot_bytes);  // the next
    }
}

TEST_P(WeightStreamTest, HeldUnitsStay) {
    save(5, 3000, "model.safetensors.index.json");
    WeightStreamOptions options = with(3 * least() / 2);
    options.slots = 3;
    WeightStream stream(engine_, table_, units_, options);
    ASSERT_EQ(stream.plan().slots, 3U);
    std::vector<std::size_t> moved;
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
        const WeightPlan::Unit& its = stream.plan().units[unit];
        if (its.read_bytes + its.copied_bytes != 0) {
            moved.push_back(unit);
        }
    }
    ASSERT_GE(moved.size(), 4U);
    for (std::size_t i = 0; i < 3; ++i) {
        expect_unit(stream, moved[i]);
    }
    EXPECT_THAT(error_of([&] { stream.acquire(moved[3], handle()); }).what(),
                HasSubstr("release a unit"));
    expect_unit(stream, moved[0]);  // a second time
    release(stream, moved[0]);
    expect_unit(stream, moved[1]);
    release(stream, moved[1]);
    release(stream, moved[1]);
    expect_unit(stream, moved[3]);
    EXPECT_EQ(error_of([&] { release(stream, moved[1]); }).reason(), ErrorCode::kInvalidArgument);
}

TEST_P(WeightStreamTest, BudgetsMayChange) {
    save(6, 9000, "model.safetensors.index.json");
    WeightStream stream(engine_, table_, units_, with(2 * total_));
    const std::uint64_t small = least();
    std::mt19937_64 random(2);
    for (int step = 0; step < 20; ++step) {
        const std::uint64_t budget = small + random() % total_;
        stream.acquire(2, handle());
        stream.set_memory(budget);
        expect_unit(stream, 2);  // as it was
        release(stream, 2);
        release(stream, 2);
        expect_pass(stream);
        EXPECT_LE(stream.plan().used_bytes(), budget);
        EXPECT_EQ(stream.plan().memory_bytes, budget);
    }
    EXPECT_EQ(error_of([&] { stream.set_memory(small - 1); }).reason(), ErrorCode::kOutOfMemory);
    expect_pass(stream);
}

TEST_P(WeightStreamTest, TheBudgetFollowsWhatIsLeftBothWays) {
    save(6, 9000, "model.safetensors");
    std::int64_t spare = 0;
    WeightStreamOptions options = with(all());
    options.spare = [&] { return spare; };
    options.spare_interval = std::chrono::nanoseconds(0);
    WeightStream stream(engine_, table_, units_, options);
    expect_pass(stream);
    EXPECT_EQ(stream.plan().memory_bytes, all());
    EXPECT_EQ(stream.plan().slots, 0U);

    stream.acquire(0, handle());
    spare = -static_cast<std::int64_t>(all());
    ASSERT_EQ(stream.acquire(1, handle()).tensors.size(), 4U);  // not while a unit is held
    EXPECT_EQ(stream.plan().memory_bytes, all());
    release(stream, 0);
    release(stream, 1);
    expect_pass(stream);
    EXPECT_EQ(stream.plan().memory_bytes, least());
    EXPECT_GT(stream.plan().slots, 0U);

    spare = static_cast<std::int64_t>(2 * all());
    expect_pass(stream);
    expect_pass(stream);
    EXPECT_EQ(stream.plan().slots, 0U);

    std::mt19937_64 random(5);
    for (int passes = 0; passes < 30; ++passes) {
        spare =
            static_cast<std::int64_t>(random() % total_) - static_cast<std::int64_t>(total_ / 2);
        expect_pass(stream);
        EXPECT_GE(stream.plan().memory_bytes, least());
        EXPECT_LE(stream.plan().used_bytes(), stream.plan().memory_bytes);
    }
    stream.set_memory(least());  // from now on it stays
    spare = static_cast<std::int64_t>(all());
    expect_pass(stream);
    expect_pass(stream);
    EXPECT_EQ(stream.plan().memory_bytes, least());
}

TEST_P(WeightStreamTest, ReadingWhatStaysReportsProgressAndEndsWhereTheCallerSaysSo) {
    save(8, 9000, "model.safetensors.index.json");
    std::vector<std::pair<std::uint64_t, std::uint64_t>> seen;
    WeightStreamOptions options = with(all());
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
        seen.emplace_back(done, total);
        return true;
    };
    WeightStream stream(engine_, table_, units_, options);
    ASSERT_FALSE(seen.empty());
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_EQ(seen.back(), std::pair(total_, total_));
    options.progress = [](std::uint64_t, std::uint64_t) { return false; };
    EXPECT_EQ(error_of([&] { WeightStream(engine_, table_, units_, options); }).reason(),
              ErrorCode::kCancelled);
}

// Tied tensors of a .pt: two names for the same bytes of the file.
TEST_P(WeightStreamTest, TensorsThatShareBytesOfAFileKeepThemWhenOneGoes) {
    save(6, 9000, "model.safetensors");
    const auto entry = [this](const std::string& name) {
        return std::find_if(table_.tensors.begin(), table_.tensors.end(),
                            [&](const TensorEntry& one) { return one.name == name; });
    };
    for (std::size_t layer = 1; layer < 6; ++layer) {
        for (const char* const tensor : {"q", "up"}) {
            const std::string first = fmt::format("layers.0.{}", tensor);
            const std::string name = fmt::format("layers.{}.{}", layer, tensor);
            entry(name)->stretches = entry(first)->stretches;
            data_[name] = data_[first];
        }
    }
    WeightStream stream(engine_, table_, units_, with(2 * total_));
    const std::uint64_t small = least();
    std::mt19937_64 random(3);
    for (int step = 0; step < 30; ++step) {
        stream.set_memory(small + random() % total_);
        expect_pass(stream);
    }
}

TEST_P(WeightStreamTest, ViewsOutliveTheStream) {
    save(3, 3000, "model.safetensors");
    WeightView kept;
    {
        WeightStream stream(engine_, table_, units_, with(2 * total_));
        kept = stream.acquire(1, handle());
    }
    if (!is_on_gpu()) {  // mapped: reading it is no fault
        EXPECT_NE(kept.tensors[0].data[0], std::byte{0x7f});
    } else {
        EXPECT_EQ(read(kept.tensors[0]).size(), kept.tensors[0].bytes);
    }
}

TEST_P(WeightStreamTest, WrongCallsAreRefused) {
    save(3, 3000, "model.safetensors");
    const WeightStreamOptions enough = with(2 * total_);
    EXPECT_THAT(
        error_of([&] {
            WeightStream(engine_, table_, {{"a", {"layers.0.qq"}}}, enough);
        }).what(),
        testing::AllOf(HasSubstr("'layers.0.qq'"), HasSubstr("did you mean 'layers.0.q'?")));
    EXPECT_THAT(error_of([&] { WeightStream(engine_, table_, units_, with(10)); }).what(),
                testing::AllOf(HasSubstr("a budget of 10 B"), HasSubstr("'head'")));
    WeightStreamOptions one_slot = enough;
    one_slot.slots = 1;
    EXPECT_THAT(error_of([&] { static_cast<void>(plan_weights(table_, units_, one_slot)); }).what(),
                HasSubstr("slots=1"));
    WeightStream stream(engine_, table_, units_, enough);
    EXPECT_THAT(error_of([&] { stream.acquire(4); }).what(), HasSubstr("there are 4"));
    stream.close();
    stream.close();
    EXPECT_EQ(error_of([&] { stream.acquire(0); }).reason(), ErrorCode::kClosed);
}

TEST_P(WeightStreamTest, AFileThatWasCutIsRefusedByName) {
    save(3, 3000, "model.safetensors");
    std::filesystem::resize_file(folder_ / "model.safetensors", 50'000);
    EXPECT_THAT(error_of([&] { WeightStream(engine_, table_, units_, with(2 * total_)); }).what(),
                testing::AllOf(HasSubstr("model.safetensors"), HasSubstr("the file has 50000")));
}

TEST_P(WeightStreamTest, AFileThatIsChangedIsReportedInTheNextPass) {
    save(3, 3000, "model.safetensors");
    WeightStream stream(engine_, table_, units_, with(least()));
    expect_pass(stream);
    {
        std::fstream file(folder_ / "model.safetensors", std::ios::in | std::ios::out);
        file.seekp(20'000);
        file.put('x');
    }
    for (int tries = 0; tries < 2; ++tries) {
        EXPECT_EQ(error_of([&] { stream.acquire(0); }).reason(), ErrorCode::kDamaged);
    }
}

TEST_P(WeightStreamTest, AChildOfAForkIsRefusedAndTheParentGoesOn) {
    save(4, 3000, "model.safetensors");
    WeightStream stream(engine_, table_, units_, with(least()));
    expect_unit(stream, 0);
    const pid_t child = ::fork();
    if (child == 0) {
        const bool refused =
            error_of([&] { stream.acquire(1); }).reason() == ErrorCode::kUnsupported;
        ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    release(stream, 0);
    expect_pass(stream);
}

// A transfer of the parent never ends in a child that was forked meanwhile.
TEST_P(WeightStreamTest, AChildOfAForkClosesWithoutWaiting) {
    save(4, 200'000, "model.safetensors");
    for (int round = 0; round < 10; ++round) {
        WeightStream stream(engine_, table_, units_, with(least()));
        expect_unit(stream, 0);
        release(stream, 0);
        const pid_t child = ::fork();
        if (child == 0) {
            ::alarm(30);
            stream.close();
            ::_exit(0);
        }
        int status = -1;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_EQ(status, 0);
        expect_pass(stream);
    }
}

TEST_P(WeightStreamTest, WaitingHasATimeLimit) {
    save(4, 3000, "model.safetensors");
    WeightStream stream(engine_, table_, units_, with(least()));
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
        const WeightView* view = nullptr;
        while (view == nullptr) {
            view = stream.acquire_for(unit, 1ns, handle());
            if (view == nullptr && unit == 2) {
                expect_unit(stream, 3);  // another one meanwhile
                release(stream, 3);
            }
        }
        release(stream, unit);
    }
    expect_pass(stream);
}

INSTANTIATE_TEST_SUITE_P(, WeightStreamTest, each_memory(), name_of);

}  // namespace
}  // namespace penstock::weights
