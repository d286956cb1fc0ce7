// SPDX-License-Identifier: Apache-2.0
// Experts that are read when they are chosen: the bytes are those of the files, whatever the budget
// and the order.
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"
#include "weights/in_each_memory.hpp"

#include <penstock/state_file.hpp>
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
#include <optional>
#include <random>
#include <span>
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

constexpr std::size_t kExperts = 12;
constexpr std::uint64_t kUpBytes = 6000;
constexpr std::uint64_t kDownBytes = 3008;

class ExpertStreamTest : public InEachMemory {
protected:
    // Layers whose experts are parts of one tensor, and one layer of a tensor for each expert.
    ExpertStreamTest() {
        State state;
        for (std::size_t i = 0; i < 3; ++i) {
            ExpertLayer& layer = layers_.emplace_back();
            layer.name = fmt::format("layers.{}.experts", i);
            const std::string up = layer.name + ".up";
            data_[up] = pattern(kExperts * kUpBytes, i + 1);
            for (std::size_t number = 0; number < kExperts; ++number) {
                const std::string down = fmt::format("{}.{}.down", layer.name, number);
                data_[down] = pattern(kDownBytes, 100 * i + number);
                layer.experts.push_back({{up, number * kUpBytes, kUpBytes}, {down, 0, kDownBytes}});
            }
        }
        for (const auto& [name, bytes] : data_) {
            state.tensors.push_back({name, "BF16", {bytes.size() / 2}, bytes});
        }
        save_file(engine_, path_, state, {.shard_bytes = 100'000});
        table_ = inspect(engine_, path_);
        least_ = least_expert_memory(table_, layers_, {.gpu = gpu()});
    }
    [[nodiscard]] ExpertStream open(std::size_t slots) {
        return {engine_, table_, layers_, {.memory_bytes = least_ / 2 * slots, .gpu = gpu()}};
    }
    void expect_expert(const ExpertView& view, std::size_t layer, std::size_t number) {
        const std::vector<TensorPart>& parts = layers_[layer].experts[number];
        ASSERT_EQ(view.parts.size(), parts.size());
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const Bytes& whole = data_.at(parts[i].tensor);
            const Bytes seen = read(view.parts[i]);
            EXPECT_TRUE(std::equal(
                seen.begin(), seen.end(),
                whole.begin() + static_cast<std::ptrdiff_t>(parts[i].offset),
                whole.begin() + static_cast<std::ptrdiff_t>(parts[i].offset + parts[i].bytes)))
                << parts[i].tensor << " " << number;
        }
    }
    // Uses all experts of a call, in waves. How many these were.
    std::size_t use(ExpertStream& stream, std::size_t layer, std::span<const std::size_t> experts) {
        std::size_t waves = 0;
        for (; !experts.empty(); ++waves) {
            const std::vector<ExpertView> views = stream.acquire(layer, experts);
            for (std::size_t i = 0; i < views.size(); ++i) {
                expect_expert(views[i], layer, experts[i]);
            }
            stream.release(handle());
            experts = experts.subspan(views.size());
        }
        return waves;
    }

    support::TempFolder folder_;
    std::string path_ = folder_ / "model.safetensors.index.json";
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    std::map<std::string, Bytes> data_;
    std::vector<ExpertLayer> layers_;
    TensorTable table_;
    std::uint64_t least_ = 0;
};

TEST_P(ExpertStreamTest, AnyBudgetAndOrderGiveTheBytesOfTheFiles) {
    for (const std::size_t slots : {2, 3, 7, 20, 36, 100}) {
        ExpertStream stream = open(slots);
        std::mt19937_64 random(slots);
        std::uint64_t chosen = 0;
        for (std::size_t step = 0; step < 60; ++step) {
            std::vector<std::size_t> experts;
            for (std::size_t number = 0; number < kExperts; ++number) {
                if (step % 10 == 0 || random() % 5 == 0) {
                    experts.push_back(number);
                }
            }
            chosen += experts.size();
            const std::size_t waves = use(stream, step % 3, experts);
            EXPECT_LE(waves, experts.size() <= slots ? 1 : experts.size());
        }
        const ExpertStreamStats stats = stream.stats();
        EXPECT_EQ(stats.slots, std::min<std::size_t>(slots, 36));
        if (slots >= 36) {
            EXPECT_EQ(stats.misses, 36U);
            EXPECT_EQ(stats.bytes_read, 36 * (kUpBytes + kDownBytes));
        }
        EXPECT_EQ(stats.bytes_read, (stats.misses + stats.likely_reads) * (kUpBytes + kDownBytes));
        EXPECT_LE(stats.likely_hits, stats.likely_reads);
        // The next call asked for what was read ahead, so all of it was used.
        EXPECT_EQ(stats.hits + stats.misses, chosen);
    }
}

TEST_P(ExpertStreamTest, TheBudgetFollowsWhatIsSpareBothWays) {
    const std::uint64_t slot = least_ / 2;
    std::int64_t spare = 0;
    ExpertStream stream(engine_, table_, layers_,
                        {.memory_bytes = 20 * slot,
                         .gpu = gpu(),
                         .spare = [&spare] { return spare; },
                         .spare_interval = std::chrono::nanoseconds(0)});
    const std::vector<std::size_t> few{0, 3, 5, 7};
    const auto pass = [&] {
        for (std::size_t layer = 0; layer < 3; ++layer) {
            use(stream, layer, few);
        }
        return stream.stats().slots;
    };
    EXPECT_EQ(pass(), 20U);
    spare = -static_cast<std::int64_t>(100 * slot);
    EXPECT_EQ(pass(), 2U);  // the least
    spare = static_cast<std::int64_t>(20 * slot);
    EXPECT_EQ(pass(), 12U);  // half of it, at the beginning of a pass
    std::mt19937_64 random(7);
    for (int i = 0; i < 60; ++i) {
        spare = static_cast<std::int64_t>(random() % (20 * slot)) -
                static_cast<std::int64_t>(10 * slot);
        EXPECT_GE(pass(), 2U);
        EXPECT_LE(stream.stats().slots, 36U);
    }
    stream.set_memory(5 * slot);  // from now on it stays
    spare = -static_cast<std::int64_t>(100 * slot);
    EXPECT_EQ(pass(), 5U);
}

TEST_P(ExpertStreamTest, AWaveIsOneTransferAndTheNextIsReadMeanwhile) {
    ExpertStream stream = open(8);
    const std::vector<std::size_t> few{1, 5, 9};
    EXPECT_EQ(use(stream, 0, few), 1U);
    EXPECT_EQ(use(stream, 0, few), 1U);
    EXPECT_EQ(stream.stats().transfers, 1U);
    std::vector<std::size_t> all(kExperts);
    std::iota(all.begin(), all.end(), std::size_t{0});
    EXPECT_EQ(stream.acquire(1, all).size(), 4U);
    stream.release(handle());
    // Those that come next were asked for already.
    EXPECT_EQ(stream.stats().misses, 3U + 8U);
    EXPECT_EQ(stream.stats().transfers, 3U);
    EXPECT_EQ(use(stream, 1, std::span(all).subspan(4)), 1U);
}

TEST_P(ExpertStreamTest, AddressesModuloALineAreThoseOfTheTensorInMemory) {
    ExpertStream stream = open(4);
    const std::vector<std::size_t> experts{0, 1, 11};
    const std::vector<ExpertView> views = stream.acquire(0, experts);
    for (std::size_t i = 0; i < experts.size(); ++i) {
        for (std::size_t part = 0; part < 2; ++part) {
            const TensorPart& its = layers_[0].experts[experts[i]][part];
            const auto entry =
                std::find_if(table_.tensors.begin(), table_.tensors.end(),
                             [&](const auto& one) { return one.name == its.tensor; });
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(views[i].parts[part].data) % 64,
                      (entry->stretches[0].offset + its.offset) % 64);
        }
    }
}

TEST_P(ExpertStreamTest, BudgetsMayChange) {
    ExpertStream stream = open(36);
    std::vector<std::size_t> all(kExperts);
    std::iota(all.begin(), all.end(), std::size_t{0});
    for (const std::size_t slots : {3, 36, 2, 10}) {
        const std::vector<ExpertView> held = stream.acquire(2, all);
        stream.set_memory(least_ / 2 * slots);
        expect_expert(held[0], 2, 0);
        stream.release(handle());
        use(stream, 2, all);
        EXPECT_EQ(stream.stats().slots, slots);
    }
    EXPECT_EQ(error_of([&] { stream.set_memory(least_ - 1); }).reason(), ErrorCode::kOutOfMemory);
    use(stream, 1, all);
}

TEST_P(ExpertStreamTest, ExpertsStayWhereAnotherBudgetHasRoom) {
    ExpertStream stream = open(kExperts);
    std::vector<std::size_t> all(kExperts);
    std::iota(all.begin(), all.end(), std::size_t{0});
    use(stream, 2, all);
    stream.set_memory(least_ / 2 * 36);
    use(stream, 2, all);
    EXPECT_EQ(stream.stats().misses, kExperts);
    stream.set_memory(least_ / 2 * 6);
    use(stream, 2, std::span(all).first(6));  // those of the first slots
    EXPECT_EQ(stream.stats().misses, kExperts);
    use(stream, 2, all);
    EXPECT_EQ(stream.stats().misses, kExperts + 6);
}

TEST_P(ExpertStreamTest, WaitingHasATimeLimit) {
    ExpertStream stream = open(5);
    for (std::size_t step = 0; step < 30; ++step) {
        const std::vector<std::size_t> experts{step % 7, 7 + step % 5};
        std::optional<std::vector<ExpertView>> views;
        while (!views) {
            views = stream.acquire_for(step % 3, experts, 1ns);
            if (!views && step % 4 == 0) {  // another one meanwhile, as after Ctrl-C
                const std::vector<std::size_t> others{step % 11};
                use(stream, (step + 1) % 3, others);
            }
        }
        expect_expert((*views)[1], step % 3, experts[1]);
        stream.release(handle());
    }
}

TEST_P(ExpertStreamTest, WrongCallsAreRefused) {
    EXPECT_THAT(error_of([&] { static_cast<void>(open(1)); }).what(),
                HasSubstr("two of the largest"));
    std::vector<ExpertLayer> wrong = layers_;
    wrong[1].experts[3][1].tensor = "layers.1.experts.3.dow";
    EXPECT_THAT(error_of([&] { ExpertStream(engine_, table_, wrong, {least_}); }).what(),
                testing::AllOf(HasSubstr("'layers.1.experts'"), HasSubstr("did you mean")));
    wrong = layers_;
    wrong[0].experts[0][0].bytes = 100 * kUpBytes;
    EXPECT_THAT(error_of([&] { ExpertStream(engine_, table_, wrong, {least_}); }).what(),
                HasSubstr("600000 bytes from byte 0 on of 'layers.0.experts.up', which has 72000"));
    ExpertStream stream = open(4);
    const std::vector<std::size_t> one{1};
    const std::vector<std::size_t> twice{1, 1};
    const std::vector<std::size_t> beyond{kExperts};
    EXPECT_THAT(error_of([&] { stream.acquire(3, one); }).what(), HasSubstr("there are 3"));
    EXPECT_THAT(error_of([&] { stream.acquire(0, twice); }).what(), HasSubstr("each once"));
    EXPECT_THAT(error_of([&] { stream.acquire(0, beyond); }).what(), HasSubstr("below 12"));
    EXPECT_THAT(error_of([&] { stream.acquire(0, {}); }).what(), HasSubstr("one or more"));
    stream.acquire(0, one);
    EXPECT_THAT(error_of([&] { stream.acquire(0, one); }).what(), HasSubstr("release() first"));
    stream.close();
    stream.close();
    EXPECT_EQ(error_of([&] { stream.acquire(0, one); }).reason(), ErrorCode::kClosed);
}

TEST_P(ExpertStreamTest, AFileThatIsChangedIsReportedInTheNextPass) {
    ExpertStream stream = open(4);
    const std::vector<std::size_t> one{1};
    use(stream, 0, one);
    {
        std::fstream file(table_.files[0], std::ios::in | std::ios::out);
        file.seekp(20'000);
        file.put('x');
    }
    use(stream, 2, one);
    for (int tries = 0; tries < 2; ++tries) {
        EXPECT_EQ(error_of([&] { stream.acquire(0, one); }).reason(), ErrorCode::kDamaged);
    }
}

TEST_P(ExpertStreamTest, AReadThatFailsNamesTheExpertAndTheNextOneTriesAgain) {
    ExpertStream stream = open(4);
    const std::string path = table_.files.back();  // of the last layer
    const std::string whole = folder_ / "whole";
    std::filesystem::copy_file(path, whole);
    const auto time = std::filesystem::last_write_time(path);
    for (int tries = 0; tries < 6; ++tries) {  // more often than there are slots
        use(stream, 0, std::vector<std::size_t>{0});
        std::filesystem::resize_file(path, 1000);
        const std::vector<std::size_t> experts{2, 7, 10};
        EXPECT_THAT(error_of([&] { stream.acquire(2, experts); }).what(),
                    testing::AllOf(HasSubstr("experts of 'layers.2.experts', expert "),
                                   HasSubstr("tensor 'layers.2.experts."),
                                   HasSubstr("the next pass tries again")));
        std::filesystem::copy_file(whole, path, std::filesystem::copy_options::overwrite_existing);
        std::filesystem::last_write_time(path, time);
        use(stream, 0, std::vector<std::size_t>{1});
        use(stream, 2, std::vector<std::size_t>{static_cast<std::size_t>(tries)});
    }
}

// Each layer chooses the experts of one of six groups, the same in all layers.
TEST_P(ExpertStreamTest, AHabitOfTheRouterIsReadAheadAndGivesTheBytesOfTheFiles) {
    std::uint64_t misses[2] = {};
    for (const bool read_likely : {false, true}) {
        ExpertStream stream(
            engine_, table_, layers_,
            {.memory_bytes = least_ / 2 * 12, .gpu = gpu(), .read_likely = read_likely});
        std::mt19937_64 random(5);
        for (std::size_t token = 0; token < 120; ++token) {
            const std::size_t first = 2 * (random() % 6);
            for (std::size_t layer = 0; layer < 3; ++layer) {
                use(stream, layer, std::vector<std::size_t>{first, first + 1});
            }
            if (token == 60) {
                stream.set_memory(least_ / 2 * 8);
            }
        }
        const ExpertStreamStats stats = stream.stats();
        misses[read_likely ? 1 : 0] = stats.misses;
        EXPECT_EQ(stats.hits + stats.misses, 120U * 3 * 2);
        EXPECT_EQ(stats.bytes_read, (stats.misses + stats.likely_reads) * (kUpBytes + kDownBytes));
        EXPECT_LE(stats.likely_hits, stats.likely_reads);
        if (read_likely) {
            EXPECT_GT(2 * stats.likely_hits, stats.likely_reads);
        } else {
            EXPECT_EQ(stats.likely_reads, 0U);
        }
    }
    EXPECT_LT(4 * misses[1], 3 * misses[0]);
}

TEST_P(ExpertStreamTest, AChildOfAForkIsRefusedAndTheParentGoesOn) {
    ExpertStream stream = open(4);
    const std::vector<std::size_t> one{1};
    use(stream, 0, one);
    const pid_t child = ::fork();
    if (child == 0) {
        const bool refused =
            error_of([&] { stream.acquire(1, one); }).reason() == ErrorCode::kUnsupported;
        ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    use(stream, 1, one);
}

// Nothing is read of them, and they take slots and leave them as others do.
TEST_P(ExpertStreamTest, ExpertsWithoutBytesAreExperts) {
    std::vector<ExpertLayer> layers(2);
    for (ExpertLayer& layer : layers) {
        layer.name = "experts";
        for (std::size_t number = 0; number < kExperts; ++number) {
            layer.experts.push_back({{"layers.0.experts.up", 0, number % 3 == 0 ? 600U : 0U}});
        }
    }
    const std::uint64_t least = least_expert_memory(table_, layers, {.gpu = gpu()});
    ExpertStream stream(engine_, table_, layers, {.memory_bytes = least, .gpu = gpu()});
    std::mt19937_64 random(1);
    for (std::size_t step = 0; step < 60; ++step) {
        std::vector<std::size_t> experts(kExperts);
        std::iota(experts.begin(), experts.end(), std::size_t{0});
        std::shuffle(experts.begin(), experts.end(), random);
        for (std::span<const std::size_t> left(experts); !left.empty();) {
            const std::vector<ExpertView> views = stream.acquire(step % 2, left);
            for (std::size_t i = 0; i < views.size(); ++i) {
                ASSERT_EQ(views[i].parts[0].bytes, left[i] % 3 == 0 ? 600U : 0U);
            }
            stream.release(handle());
            left = left.subspan(views.size());
        }
    }
}

// A stream that is late uses its experts before others come into their slots, and nobody waits.
TEST_P(ExpertStreamTest, ASlotIsNotUsedAgainBeforeTheStreamHasPassed) {
    if (!is_on_gpu()) {
        return;  // memory of the host is not used any more when it is released
    }
    ExpertStream stream = open(2);
    const std::vector<std::size_t> first{0, 1};
    const std::vector<std::size_t> second{2, 3};
    const Region seen = Region::pinned(2 * kUpBytes, 0);
    const std::vector<ExpertView> views = stream.acquire(0, first);
    gpu_->fake().hold(true);
    for (std::size_t i = 0; i < 2; ++i) {
        gpu_->copy_out(views[i].parts[0], seen.data() + i * kUpBytes);
    }
    stream.release(handle());
    EXPECT_FALSE(stream.acquire_for(1, second, 30ms).has_value());
    gpu_->fake().hold(false);
    const std::vector<ExpertView> next = stream.acquire(1, second);
    for (std::size_t i = 0; i < 2; ++i) {
        expect_expert(next[i], 1, second[i]);
    }
    gpu_->synchronize();
    const Bytes& up = data_.at("layers.0.experts.up");
    EXPECT_TRUE(std::equal(seen.data(), seen.data() + 2 * kUpBytes, up.begin()));
}

INSTANTIATE_TEST_SUITE_P(, ExpertStreamTest, testing::Values(Where::kHost, Where::kGpu), name_of);

}  // namespace
}  // namespace penstock::weights
