// SPDX-License-Identifier: Apache-2.0
// Random programs of streams of experts: parts of tensors at odd places, budgets that jump, limits
// of time, refusals of the driver and a late GPU. What a user sees is the bytes of the files.
#include "support/seeds.hpp"
#include "support/text_files.hpp"
#include "weights/in_each_memory.hpp"
#include "weights/program_model.hpp"

#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::weights {
namespace {

using namespace std::chrono_literals;
using namespace device::cuda;
using test::error_of;

class ExpertPrograms : public InEachMemory, protected ProgramModel {
protected:
    void make_layers() {
        make_model();
        layers_.clear();
        for (std::uint64_t i = 1 + below(4); i != 0; --i) {
            ExpertLayer& layer = layers_.emplace_back();
            layer.name = fmt::format("layer {}", i);
            const std::uint64_t parts = 1 + below(3);
            for (std::uint64_t n = 1 + below(9); n != 0; --n) {
                std::vector<TensorPart>& expert = layer.experts.emplace_back();
                for (std::uint64_t part = 0; part < parts; ++part) {
                    const std::size_t tensor = below(data_.size());
                    const std::uint64_t size = data_[tensor].size();
                    const std::uint64_t at = below(size + 1);
                    const std::uint64_t bytes =
                        std::min<std::uint64_t>(below(size - at + 1), 60'000);
                    expert.push_back({table_.tensors[tensor].name, at, bytes});
                }
            }
        }
        least_ = least_expert_memory(table_, layers_, {.gpu = gpu()});
    }
    [[nodiscard]] std::string where() const {
        return fmt::format("seed {}, step {}: ", seed_, step_);
    }
    template <typename Call>
    bool tried(const Call& call) {
        try {
            call();
            return true;
        } catch (const Error& error) {
            EXPECT_TRUE(is_faulty_ || may_echo_) << where() << error.what();
            may_echo_ = is_faulty_;
        }
        return false;
    }
    void look(const std::vector<ExpertView>& views, std::size_t layer,
              const std::vector<std::size_t>& experts) {
        ASSERT_FALSE(views.empty()) << where();
        ASSERT_LE(views.size(), experts.size()) << where();
        for (std::size_t i = 0; i < views.size(); ++i) {
            const std::vector<TensorPart>& parts = layers_[layer].experts[experts[i]];
            ASSERT_EQ(views[i].parts.size(), parts.size()) << where();
            for (std::size_t part = 0; part < parts.size(); ++part) {
                ASSERT_EQ(views[i].parts[part].bytes, parts[part].bytes) << where();
                if (parts[part].bytes == 0) {
                    continue;
                }
                const std::vector<std::byte> seen = read(views[i].parts[part]);
                const std::size_t tensor = std::stoull(parts[part].tensor.substr(1));
                ASSERT_EQ(std::memcmp(seen.data(), data_[tensor].data() + parts[part].offset,
                                      seen.size()),
                          0)
                    << where() << "expert " << experts[i] << " of " << layer;
            }
        }
    }
    [[nodiscard]] std::uint64_t any_budget() {
        return one_in(8) ? UINT64_MAX : least_ / 2 * (2 + below(24)) + below(1000);
    }
    [[nodiscard]] SpareMemory any_spare() {
        if (!one_in(3)) {
            return {};
        }
        return [random = std::mt19937_64(random_())]() mutable -> std::int64_t {
            constexpr std::array<std::int64_t, 4> kSpare{INT64_MIN, INT64_MAX, -1, 0};
            const std::uint64_t one = random() % 8;
            return one < kSpare.size() ? kSpare[one]
                                       : static_cast<std::int64_t>(random() % kMiB) -
                                             static_cast<std::int64_t>(kMiB / 2);
        };
    }
    void use(ExpertStream& stream) {
        const std::size_t layer = one_in(3) ? below(layers_.size()) : next_++ % layers_.size();
        std::vector<std::size_t> experts(layers_[layer].experts.size());
        std::iota(experts.begin(), experts.end(), std::size_t{0});
        std::shuffle(experts.begin(), experts.end(), random_);
        experts.resize(1 + below(experts.size()));
        while (!experts.empty()) {
            constexpr std::array kLimits{0ns,
                                         -1ns,
                                         1'000ns,
                                         1'000'000ns,
                                         std::chrono::nanoseconds::max() - 1ns,
                                         std::chrono::nanoseconds::min()};
            std::optional<std::vector<ExpertView>> views;
            if (!tried([&] {
                    if (one_in(3)) {
                        views = stream.acquire_for(layer, experts, kLimits[below(kLimits.size())]);
                    } else {
                        views = stream.acquire(layer, experts);
                    }
                })) {
                return;
            }
            if (!views) {  // given up, or asked for again
                if (one_in(2)) {
                    return;
                }
                continue;
            }
            used_ += views->size();
            look(*views, layer, experts);
            if (HasFatalFailure()) {
                return;
            }
            if (one_in(6)) {
                kept_.push_back(views->front());
            }
            EXPECT_EQ(error_of([&] { static_cast<void>(stream.acquire(layer, experts)); }).reason(),
                      ErrorCode::kInvalidArgument)
                << where();
            while (!tried([&] { stream.release(handle()); })) {
            }
            experts.erase(experts.begin(),
                          experts.begin() + static_cast<std::ptrdiff_t>(views->size()));
        }
    }
    void fault() {
        if (!gpu_) {
            return;
        }
        constexpr std::array kCalls{"cuMemAlloc", "cuEventRecord", "cuStreamWaitEvent",
                                    "cuMemcpyHtoDAsync", "cuMemFree"};
        fault_ = kCalls[below(kCalls.size())];
        gpu_->fake().fail(fault_, 1 + below(9),
                          one_in(2) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_LAUNCH_FAILED,
                          1 + below(3));
        is_faulty_ = true;
        may_echo_ = true;
    }
    void heal() {
        if (is_faulty_) {
            gpu_->fake().fail(fault_, 0, 0);
            is_faulty_ = false;
        }
    }
    [[nodiscard]] std::array<std::uint64_t, 4> alive() {
        if (!gpu_) {
            return {};
        }
        const FakeGpuCounters now = gpu_->fake().counters();
        return {now.device_bytes_now, now.streams_now, now.events_now, now.pinned_bytes_now};
    }
    void run(std::uint64_t seed) {
        seed_ = seed;
        random_.seed(seed);
        make_layers();
        const std::array<std::uint64_t, 4> before = alive();
        std::optional<ExpertStream> stream;
        bool is_known = false;  // the budget
        for (step_ = 10 + below(50); step_ != 0 && !HasFatalFailure(); --step_) {
            if (!stream) {
                ExpertStreamOptions options{.memory_bytes = any_budget(), .gpu = gpu()};
                options.copies = copies_;
                options.spare = any_spare();
                options.spare_interval = 0ns;
                options.read_likely = one_in(2);
                is_known = !options.spare;
                tried([&] { stream.emplace(engine_, table_, layers_, options); });
                continue;
            }
            switch (below(14)) {
                case 0: {
                    SpareMemory spare = any_spare();
                    is_known = false;
                    stream->set_memory(any_budget(), std::move(spare));
                    break;
                }
                case 1:
                    is_faulty_ ? heal() : fault();
                    break;
                case 2:
                    if (gpu_) {
                        gpu_->fake().set_delays(random_(), static_cast<std::uint32_t>(below(300)));
                    }
                    break;
                case 3: {
                    ExpertStream other(std::move(*stream));
                    *stream = std::move(other);
                    break;
                }
                case 4:
                    if (one_in(3)) {
                        stream.reset();
                    }
                    break;
                case 5:
                    kept_.clear();
                    if (is_known) {
                        const ExpertStreamStats stats = stream->stats();
                        EXPECT_LE(alive()[0] - before[0], stats.slots * stats.slot_bytes)
                            << where();
                    }
                    break;
                default:
                    use(*stream);
            }
        }
        heal();
        if (stream && one_in(2)) {
            stream->close();
            EXPECT_EQ(error_of([&] { stream->release(handle()); }).reason(), ErrorCode::kClosed);
        }
        stream.reset();
        for (const ExpertView& view : kept_) {
            for (const ConstMemory& part : view.parts) {
                static_cast<void>(read(part));
            }
        }
        kept_.clear();
        EXPECT_EQ(alive()[0], before[0]) << where() << "memory of the GPU is left";
        EXPECT_TRUE(seed == 0 || alive()[1] == before[1]) << where() << "streams are left";
    }

    std::shared_ptr<Engine> engine_;
    std::vector<ExpertLayer> layers_;
    std::vector<ExpertView> kept_;
    std::uint64_t least_ = 0;
    std::uint64_t step_ = 0;
    std::uint64_t used_ = 0;
    std::size_t next_ = 0;
    bool is_faulty_ = false;
    bool may_echo_ = false;  // what was read ahead during a fault is one error later
    const char* fault_ = nullptr;
};

TEST_P(ExpertPrograms, SeeTheBytesOfTheFilesAndLeaveNothing) {
    const std::uint64_t seeds = support::engine_seeds(25);
    const std::array<std::uint64_t, 4> before = alive();
    engine_ = std::make_shared<Engine>();
    run(0);  // what the engine makes once
    for (std::uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed) {
        run(seed);
    }
    engine_.reset();
    EXPECT_EQ(alive(), before);
    EXPECT_GT(used_, 20 * seeds);
    RecordProperty("used", static_cast<int>(used_));
}

INSTANTIATE_TEST_SUITE_P(, ExpertPrograms, testing::Values(Where::kHost, Where::kGpu), name_of);

}  // namespace
}  // namespace penstock::weights
