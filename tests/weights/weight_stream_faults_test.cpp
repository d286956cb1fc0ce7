// SPDX-License-Identifier: Apache-2.0
// Reads that fail, on a fake disk: right bytes or one error that names file and tensor, no slot
// lost, and the next pass is right.
#include "support/crash_harness.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/state_file.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::weights {
namespace {

using support::pattern;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

class WeightStreamFaults : public testing::Test {
protected:
    static constexpr std::uint64_t kNever = UINT64_MAX;

    void SetUp() override {
        State state;
        for (int i = 0; i < 4; ++i) {
            WeightUnit& unit = units_.emplace_back();
            unit.name = fmt::format("layers.{}", i);
            for (const auto& [name, elements] : {std::pair{"up", 21'000U}, {"down", 20'000U}}) {
                const std::string full = unit.name + "." + name;
                data_[full] = pattern(elements * 2, data_.size() + 1);
                state.tensors.push_back({full, "BF16", {elements}, data_[full]});
                unit.tensors.push_back(full);
            }
        }
        rig_.files().make_folder("/model");
        const std::string path = "/model/model.safetensors.index.json";
        save_file(rig_.engine(), path, state, {.shard_bytes = 150'000}, rig_.files());
        table_ = inspect(rig_.engine(), path, rig_.files());
        rig_.disks()[0]->set_faults([this](const simulation::DiskAccess&) -> simulation::Fault {
            const std::uint64_t number = reads_++;
            const bool fails = fails_for_good_ ? number >= fail_at_ : number == fail_at_;
            return fails ? simulation::Fault{.system_errno = EIO} : simulation::Fault{};
        });
    }
    // The read number `at` from here on fails, and with `for_good` all that come after it.
    void fail(std::uint64_t at, bool for_good = false) {
        fails_for_good_ = for_good;
        fail_at_ = kNever;
        reads_ = 0;
        fail_at_ = at;
    }
    [[nodiscard]] WeightStream stream(std::uint64_t memory) const {
        return {rig_.engine(), table_, units_, {.memory_bytes = memory}, rig_.files()};
    }
    void expect_unit(WeightStream& stream, std::size_t unit) {
        const WeightView& view = stream.acquire(unit);
        for (std::size_t i = 0; i < view.tensors.size(); ++i) {
            const std::vector<std::byte>& expected = data_[units_[unit].tensors[i]];
            ASSERT_TRUE(std::equal(view.tensors[i].span().begin(), view.tensors[i].span().end(),
                                   expected.begin(), expected.end()));
        }
    }
    // The error that ends a pass, if one does.
    std::optional<Error> pass(WeightStream& stream) {
        for (std::size_t unit = 0; unit < units_.size(); ++unit) {
            try {
                expect_unit(stream, unit);
            } catch (const Error& error) {
                return error;
            }
            stream.release(unit);
        }
        return std::nullopt;
    }
    void expect_named(const Error& error) const {
        EXPECT_EQ(error.system_errno(), EIO);
        EXPECT_THAT(error.path(), HasSubstr("/model/model-"));
        EXPECT_THAT(error.what(), AllOf(HasSubstr("tensor 'layers."), HasSubstr(error.path())));
    }
    // All units, and as many at once as there are slots.
    void expect_whole(WeightStream& stream) {
        ASSERT_FALSE(pass(stream));
        for (std::size_t unit = 0; unit < stream.plan().slots; ++unit) {
            expect_unit(stream, unit);
        }
        for (std::size_t unit = 0; unit < stream.plan().slots; ++unit) {
            stream.release(unit);
        }
        ASSERT_FALSE(pass(stream));
    }

    test::CrashRig rig_{1, {}, false};
    std::map<std::string, std::vector<std::byte>> data_;
    std::vector<WeightUnit> units_;
    TensorTable table_;
    std::atomic<std::uint64_t> reads_ = 0;
    std::atomic<std::uint64_t> fail_at_ = kNever;
    std::atomic<bool> fails_for_good_ = false;
};

TEST_F(WeightStreamFaults, AFaultAtAnyReadIsOneErrorOrNone) {
    const std::uint64_t least = least_weight_memory(table_, units_);
    for (const std::uint64_t memory : {least, least + 50'000}) {
        std::uint64_t errors = 0;
        for (std::uint64_t at = 0;; ++at) {
            WeightStream weights = stream(memory);
            ASSERT_FALSE(pass(weights));
            fail(at);
            std::uint64_t found = 0;
            for (int passes = 0; passes < 3; ++passes) {
                if (const std::optional<Error> error = pass(weights)) {
                    expect_named(*error);
                    EXPECT_THAT(error->what(), HasSubstr("the next pass tries again"));
                    ++found;
                }
            }
            const bool met = reads_ > at;
            fail(kNever);
            found += pass(weights) ? 1 : 0;  // of what was read ahead
            EXPECT_LE(found, met ? 1U : 0U) << at;
            errors += found;
            expect_whole(weights);
            if (!met) {
                break;
            }
        }
        EXPECT_GE(errors, 3 * 4U);  // a layer at least in each of three passes
    }
}

TEST_F(WeightStreamFaults, AnErrorComesAgainWhileTheDiskFailsAndNoLonger) {
    WeightStream weights = stream(least_weight_memory(table_, units_));
    fail(0, true);
    for (int tries = 0; tries < 5; ++tries) {
        std::optional<Error> error = pass(weights);
        if (tries == 0 && !error) {
            error = pass(weights);  // all of the first was read ahead
        }
        ASSERT_TRUE(error);
        expect_named(*error);
    }
    fail(kNever);
    expect_whole(weights);  // what was read ahead failed too, and is no error any more
}

TEST_F(WeightStreamFaults, AFaultWhileWeightsAreReadToStayIsNamed) {
    const std::uint64_t most = 2 * 8 * 50'000;
    for (std::uint64_t at = 0;; ++at) {
        fail(at);
        std::optional<Error> error;
        try {
            WeightStream weights = stream(most);
            ASSERT_FALSE(pass(weights));
        } catch (const Error& thrown) {
            error = thrown;
        }
        if (reads_ <= at) {
            ASSERT_FALSE(error);
            ASSERT_GT(at, 2U);
            return;
        }
        ASSERT_TRUE(error);
        expect_named(*error);
    }
}

TEST_F(WeightStreamFaults, AFaultWhileTheBudgetChangesIsOneErrorAndTheNextPassHasTheBudget) {
    const std::uint64_t least = least_weight_memory(table_, units_);
    std::uint64_t errors = 0;
    for (std::uint64_t at = 0;; ++at) {
        WeightStream weights = stream(least);
        ASSERT_FALSE(pass(weights));
        weights.set_memory(least + 100'000);
        fail(at);
        std::optional<Error> error = pass(weights);
        const bool met = reads_ > at;
        fail(kNever);
        if (const std::optional<Error> later = pass(weights)) {  // of what was read ahead
            EXPECT_FALSE(error) << at;
            error = later;
        }
        if (error) {
            expect_named(*error);
            ++errors;
        }
        expect_whole(weights);
        EXPECT_EQ(weights.plan().memory_bytes, least + 100'000);
        if (!met) {
            break;
        }
    }
    EXPECT_GE(errors, 2U);
}

// An open file has its bytes, whatever its name leads to.
TEST_F(WeightStreamFaults, AFileThatIsReplacedOrRemovedIsReadToTheEnd) {
    WeightStream weights = stream(least_weight_memory(table_, units_));
    ASSERT_FALSE(pass(weights));
    rig_.files().rename(table_.files[0], "/model/old");
    expect_whole(weights);
    const File other =
        rig_.files().open(table_.files[0], {.access = Access::kReadWrite, .create = true});
    rig_.engine()->write(other, pattern(1000, 77));
    expect_whole(weights);
}

}  // namespace
}  // namespace penstock::weights
