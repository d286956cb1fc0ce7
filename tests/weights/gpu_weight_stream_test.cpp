// SPDX-License-Identifier: Apache-2.0
// Units of a model, streamed to the memory of a GPU, on the fake driver: what a stream of the
// caller's sees is the bytes of the files, whatever the budgets, and however late the GPU is.
#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"
#include "fake_gpu/control.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/state_file.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::weights {
namespace {

using namespace std::chrono_literals;
using namespace device::cuda;
using support::pattern;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

class GpuWeights : public testing::Test {
protected:
    void SetUp() override {
        ::dlopen(PENSTOCK_FAKE_GPU, RTLD_LAZY | RTLD_LOCAL);
        fake_ = fake_gpu::FakeGpu::find();
        ASSERT_TRUE(fake_.has_value()) << "the fake driver is not loaded: " << PENSTOCK_FAKE_GPU;
        fake_->calm();
        auto loaded = device::driver();
        ASSERT_TRUE(loaded.has_value()) << loaded.error().describe();
        driver_ = *loaded;
        context_ = device::primary_context(*driver_, 0).value();
        const device::Current current(*driver_, context_);
        ASSERT_EQ(driver_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        save();
        memory_.resize(2 * total_);
        ASSERT_EQ(driver_->cuMemHostRegister(memory_.data(), memory_.size(), 1), CUDA_SUCCESS);
        fake_->reset_counters();
    }
    void TearDown() override {
        fake_->calm();
        synchronize();
        const device::Current current(*driver_, context_);
        driver_->cuMemHostUnregister(memory_.data());
        driver_->cuStreamDestroy(stream_);
    }
    // Layers with a few tensors each and a larger head, in shards; odd lengths, so that places in
    // the files are odd.
    void save() {
        State state;
        for (std::size_t i = 0; i < 6; ++i) {
            WeightUnit& unit = units_.emplace_back();
            unit.name = fmt::format("layers.{}", i);
            for (const auto& [tensor, bytes] :
                 {std::pair{"q", 40'002U}, {"k", 10'000U}, {"up", 110'006U}, {"norm", 66U}}) {
                add(fmt::format("layers.{}.{}", i, tensor), bytes, unit);
            }
        }
        WeightUnit& head = units_.emplace_back();
        head.name = "head";
        add("head", 300'000, head);
        for (const auto& [tensor, bytes] : data_) {
            state.tensors.push_back({tensor, "BF16", {bytes.size() / 2}, bytes});
        }
        save_file(engine_, path_, state, {.shard_bytes = 400'000});
        table_ = inspect(engine_, path_);
        least_ = least_weight_memory(table_, units_, {.gpu = 0});
    }
    void add(const std::string& name, std::uint64_t bytes, WeightUnit& unit) {
        data_[name] = pattern(bytes, data_.size() + 1);
        unit.tensors.push_back(name);
        total_ += bytes;
    }
    [[nodiscard]] WeightStream open(double on_device, double in_host) {
        const auto share = [this](double of) {
            return static_cast<std::uint64_t>(of * static_cast<double>(total_));
        };
        return {engine_,
                table_,
                units_,
                {.memory_bytes = std::max(least_, share(on_device)),
                 .gpu = 0,
                 .host_memory_bytes = share(in_host)}};
    }
    [[nodiscard]] StreamHandle handle() const {
        return {.handle = reinterpret_cast<std::uintptr_t>(stream_)};
    }
    // Copies what a stream sees of the tensors, when it comes to that.
    std::byte* copy_out(const WeightView& view, std::byte* to) {
        const device::Current current(*driver_, context_);
        for (const ConstMemory& one : view.tensors) {
            EXPECT_EQ(one.kind, MemoryKind::kDevice);
            EXPECT_EQ(driver_->cuMemcpyDtoHAsync(to, reinterpret_cast<std::uintptr_t>(one.data),
                                                 one.bytes, stream_),
                      CUDA_SUCCESS);
            to += one.bytes;
        }
        return to;
    }
    void synchronize() {
        const device::Current current(*driver_, context_);
        while (driver_->cuStreamQuery(stream_) == CUDA_ERROR_NOT_READY) {
            std::this_thread::sleep_for(50us);
        }
    }
    // A pass in which this thread waits for files alone; looked at when the stream is done.
    void expect_pass(WeightStream& stream) {
        std::fill(memory_.begin(), memory_.end(), std::byte{0x5a});
        std::byte* to = memory_.data();
        for (std::size_t unit = 0; unit < units_.size(); ++unit) {
            to = copy_out(stream.acquire(unit, handle()), to);
            stream.release(unit, handle());
        }
        synchronize();
        expect_bytes();
    }
    void expect_bytes() {
        const std::byte* at = memory_.data();
        for (const WeightUnit& unit : units_) {
            for (const std::string& name : unit.tensors) {
                const Bytes& expected = data_[name];
                ASSERT_TRUE(std::equal(expected.begin(), expected.end(), at)) << name;
                at += expected.size();
            }
        }
    }

    std::optional<fake_gpu::FakeGpu> fake_;
    const device::Driver* driver_ = nullptr;
    CUcontext context_ = nullptr;
    CUstream stream_ = nullptr;
    support::TempFolder folder_;
    std::string path_ = folder_ / "model.safetensors.index.json";
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    std::map<std::string, Bytes> data_;
    std::vector<WeightUnit> units_;
    TensorTable table_;
    std::uint64_t total_ = 0;
    std::uint64_t least_ = 0;
    Bytes memory_;
};

TEST_F(GpuWeights, AnyBudgetsGiveTheStreamTheBytesOfTheFilesHoweverLateItIs) {
    std::uint64_t seed = 1;
    for (const double on_device : {0.0, 0.5, 0.8, 1.2}) {
        for (const double in_host : {0.0, 0.3, 1.2}) {
            fake_->set_delays(seed++, 300);
            const FakeGpuCounters before = fake_->counters();
            {
                WeightStream stream = open(on_device, in_host);
                const WeightPlan& plan = stream.plan();
                EXPECT_LE(plan.used_bytes(),
                          std::max(least_, static_cast<std::uint64_t>(
                                               on_device * static_cast<double>(total_))));
                EXPECT_LE(static_cast<double>(plan.host_bytes),
                          in_host * static_cast<double>(total_));
                EXPECT_EQ(plan.copied_bytes != 0, on_device < 1 && in_host > 0);
                EXPECT_EQ(plan.read_bytes != 0, on_device < 1 && in_host < 1);
                for (int pass = 0; pass < 3; ++pass) {
                    expect_pass(stream);
                }
                const WeightStreamStats stats = stream.stats();
                EXPECT_EQ(stats.passes, 3U);
                EXPECT_EQ(stats.acquired, 3 * units_.size());
                EXPECT_EQ(stats.on_demand, 0U);
                EXPECT_GE(stats.bytes_read, 3 * plan.read_bytes);
                EXPECT_EQ(stats.folders[0].bytes_read, stats.bytes_read);
                EXPECT_GE(stats.bytes_copied, 3 * plan.copied_bytes);
            }
            const FakeGpuCounters after = fake_->counters();
            EXPECT_EQ(after.device_bytes_now, before.device_bytes_now);
            EXPECT_LE(after.pinned_bytes_now, memory_.size() + (40U << 20));
            EXPECT_EQ(after.synchronizations, 0U);
            EXPECT_EQ(after.unpinned_async_copies, 0U);
            EXPECT_EQ(after.missing_contexts, 0U);
        }
    }
}

TEST_F(GpuWeights, ASlotIsNotUsedAgainBeforeTheStreamHasPassedAndNobodyWaitsForIt) {
    for (const double in_host : {0.0, 1.2}) {
        WeightStream stream = open(0, in_host);
        expect_pass(stream);
        // Both slots are with a stream that does not go on.
        std::byte* to = memory_.data();
        static_cast<void>(stream.acquire(0, handle()));
        static_cast<void>(stream.acquire(1, handle()));
        synchronize();
        fake_->hold(true);
        std::fill(memory_.begin(), memory_.end(), std::byte{0x5a});
        for (const std::size_t unit : {0U, 1U}) {
            to = copy_out(stream.acquire(unit, handle()), to);
            stream.release(unit, handle());  // once for each acquire()
            stream.release(unit, handle());
        }
        if (in_host == 0) {  // its file cannot be read into the slot yet
            EXPECT_EQ(stream.acquire_for(2, 30ms, handle()), nullptr);
        } else {  // the copies come after those of the stream
            EXPECT_NE(stream.acquire_for(2, 30ms, handle()), nullptr);
            stream.release(2, handle());
        }
        fake_->hold(false);
        for (std::size_t unit = 2; unit < units_.size(); ++unit) {
            to = copy_out(stream.acquire(unit, handle()), to);
            stream.release(unit, handle());
        }
        synchronize();
        expect_bytes();
    }
}

TEST_F(GpuWeights, WaitingHasATimeLimitAndAnyOrderIsRight) {
    WeightStream stream = open(0.4, 0.2);
    fake_->set_delays(3, 200);
    const std::size_t order[] = {3, 0, 6, 6, 1, 2, 5, 4, 0, 3};
    for (const std::size_t unit : order) {
        const WeightView* view = nullptr;
        while (view == nullptr) {
            view = stream.acquire_for(unit, 1ns, handle());
            if (view == nullptr && unit == 5) {  // another one meanwhile
                static_cast<void>(stream.acquire(2, handle()));
                stream.release(2, handle());
            }
        }
        const std::byte* at = memory_.data();
        copy_out(*view, memory_.data());
        synchronize();
        for (const std::string& name : units_[unit].tensors) {
            EXPECT_TRUE(std::equal(data_[name].begin(), data_[name].end(), at)) << name;
            at += data_[name].size();
        }
        stream.release(unit, handle());
    }
    WeightStream moved = std::move(stream);
    expect_pass(moved);
    moved.close();
    moved.close();
    EXPECT_EQ(error_of([&] { moved.acquire(0); }).reason(), ErrorCode::kClosed);
}

// One that is over before the call begins, however far, is over.
TEST_F(GpuWeights, AnyLimitThatIsOverIsOver) {
    WeightStream stream = open(0, 0);
    const Region memory = Region::gpu(1 << 20, 0);
    for (const auto& [limit, unit] : {std::pair{-1ns, 5U}, {std::chrono::nanoseconds::min(), 3U}}) {
        synchronize();
        fake_->hold(true);
        std::atomic<bool> is_held = true;
        std::thread later([&] {
            std::this_thread::sleep_for(50ms);
            is_held = false;
            fake_->hold(false);
        });
        Transfer transfer = engine_->read_async(table_.files.back(), memory.memory(0, 100'000));
        EXPECT_FALSE(transfer.wait_for(limit).has_value());
        EXPECT_FALSE(transfer.join_for({}, limit));
        TransferGroup group;
        group.add(std::move(transfer));
        EXPECT_FALSE(group.wait_any(limit).has_value());
        EXPECT_EQ(stream.acquire_for(unit, limit, handle()), nullptr);
        EXPECT_TRUE(is_held) << "it waited";
        later.join();
        static_cast<void>(stream.acquire(unit, handle()));
        stream.release(unit, handle());
    }
}

TEST_F(GpuWeights, AFaultOfTheGpuOrTheFilesEndsInAnErrorAndTheNextPassIsRight) {
    const auto pass = [this](WeightStream& stream) {
        std::optional<Error> first;
        for (std::size_t unit = 0; unit < units_.size(); ++unit) {
            try {
                static_cast<void>(stream.acquire(unit, handle()));
                stream.release(unit, handle());
            } catch (const Error& error) {
                first = first ? first : error;
                // An order that failed leaves the unit held.
                if (std::string_view(error.what()).find("the order of") != std::string_view::npos) {
                    try {
                        stream.release(unit, handle());
                    } catch (const Error&) {
                        continue;
                    }
                }
            }
        }
        return first;
    };
    for (const char* const call : {"cuMemcpyHtoDAsync", "cuEventRecord", "cuStreamWaitEvent"}) {
        WeightStream stream = open(0.3, 0.3);
        for (std::uint64_t nth = 1; nth < 8; ++nth) {
            synchronize();
            fake_->fail(call, nth, CUDA_ERROR_LAUNCH_FAILED);
            if (const std::optional<Error> error = pass(stream)) {
                EXPECT_THAT(error->what(),
                            AllOf(HasSubstr("CUDA_ERROR_LAUNCH_FAILED"), HasSubstr("GPU 0")));
            }
            fake_->fail(call, 0, 0);
            expect_pass(stream);
            expect_pass(stream);
        }
    }
    WeightStream stream = open(0, 0);
    const std::string path = table_.files.back();
    const std::string whole = folder_ / "whole";
    std::filesystem::copy_file(path, whole);
    const auto time = std::filesystem::last_write_time(path);
    expect_pass(stream);
    std::filesystem::resize_file(path, 1000);
    std::filesystem::last_write_time(path, time);
    const std::optional<Error> error = pass(stream);
    ASSERT_TRUE(error.has_value());
    std::filesystem::copy_file(whole, path, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::last_write_time(path, time);
    expect_pass(stream);
}

TEST_F(GpuWeights, WhatCannotBeHadIsRefusedWithWordsAndLeavesNothing) {
    EXPECT_THAT(error_of([&] {
                    WeightStream(engine_, table_, units_, {.memory_bytes = least_ - 1, .gpu = 0});
                }).what(),
                HasSubstr("too small for these units"));
    EXPECT_EQ(error_of([&] {
                  WeightStream(engine_, table_, units_, {.memory_bytes = least_, .gpu = 7});
              }).reason(),
              ErrorCode::kInvalidArgument);
    const FakeGpuCounters before = fake_->counters();
    for (const std::uint64_t nth : {1U, 2U}) {
        fake_->fail("cuMemAlloc", nth, CUDA_ERROR_OUT_OF_MEMORY);
        const Error error = error_of([&] { static_cast<void>(open(0.5, 0.2)); });
        EXPECT_EQ(error.reason(), ErrorCode::kOutOfMemory);
        EXPECT_THAT(error.what(), HasSubstr("ask for less"));
    }
    fake_->fail("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_THAT(error_of([&] { static_cast<void>(open(0.5, 0.2)); }).what(),
                HasSubstr("ulimit -l"));
    fake_->calm();
    EXPECT_EQ(fake_->counters().device_bytes_now, before.device_bytes_now);
    EXPECT_EQ(fake_->counters().streams_now, before.streams_now);
    WeightStream stream = open(0, 0);
    static_cast<void>(stream.acquire(0));
    static_cast<void>(stream.acquire(1));
    EXPECT_THAT(error_of([&] { stream.acquire(2); }).what(), HasSubstr("all 2 slots are held"));
    EXPECT_THAT(error_of([&] { stream.release(2); }).what(), HasSubstr("is not held"));
    EXPECT_THAT(error_of([&] { stream.acquire(99); }).what(), HasSubstr("there are 7"));
    const pid_t child = ::fork();
    if (child == 0) {
        const bool refused =
            error_of([&] { stream.acquire(1); }).reason() == ErrorCode::kUnsupported;
        ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

// The driver may keep pages that were given back. They are pinned again all the same.
TEST_F(GpuWeights, MemoryThatTheDriverKeptPinnedIsPinnedAgain) {
    WeightStream stream = open(0, 1.2);
    expect_pass(stream);
    fake_->fail("cuMemHostUnregister", 1, CUDA_ERROR_INVALID_VALUE, 4);
    stream.set_memory(most_weight_memory(table_, units_, {.gpu = 0}));
    expect_pass(stream);
    fake_->calm();
    stream.set_memory(least_);
    expect_pass(stream);
    EXPECT_NE(stream.plan().copied_bytes, 0U);
}

TEST_F(GpuWeights, ThePlanPutsEachTensorInOneTierAndSpreadsThem) {
    for (const double in_host : {0.0, 0.25, 0.6, 1.2}) {
        const WeightPlan plan = plan_weights(table_, units_,
                                             {.memory_bytes = least_ + total_ / 5,
                                              .gpu = 0,
                                              .host_memory_bytes = static_cast<std::uint64_t>(
                                                  in_host * static_cast<double>(total_))});
        const WeightPlan device =
            plan_weights(table_, units_, {.memory_bytes = least_ + total_ / 5, .gpu = 0});
        std::uint64_t copied = 0;
        std::uint64_t read = 0;
        for (std::size_t i = 0; i < units_.size(); ++i) {
            EXPECT_EQ(plan.units[i].copied_bytes + plan.units[i].read_bytes,
                      device.units[i].read_bytes);
            copied += plan.units[i].copied_bytes;
            read += plan.units[i].read_bytes;
        }
        EXPECT_EQ(plan.copied_bytes, copied);
        EXPECT_EQ(plan.read_bytes, read);
        EXPECT_EQ(plan.used_bytes(), device.used_bytes());
        EXPECT_GE(plan.host_bytes, copied);
    }
}

}  // namespace
}  // namespace penstock::weights
