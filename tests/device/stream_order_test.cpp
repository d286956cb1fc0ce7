// SPDX-License-Identifier: Apache-2.0
// What a transfer begins after: streams that are none, were destroyed, are idle or busy.
#include "device/mover/stream_order.hpp"

#include "device/cuda/context.hpp"
#include "device/fake_gpu.hpp"
#include "memory/block.hpp"

#include <gmock/gmock.h>

#include <memory>
#include <vector>

namespace penstock::device {
namespace {

using ::testing::HasSubstr;

class StreamOrders : public OnFakeGpu {
protected:
    using Order = std::shared_ptr<const engine::MoveOrder>;

    void SetUp() override {
        OnFakeGpu::SetUp();
        ASSERT_EQ(driver_->cuCtxPushCurrent(primary_context(*driver_, 0).value()),
                  cuda::CUDA_SUCCESS);
        ASSERT_EQ(driver_->cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING),
                  cuda::CUDA_SUCCESS);
        host_ = memory::Block::make(4096).value();
        ASSERT_EQ(driver_->cuMemHostRegister(host_.data(), host_.size(), 0), cuda::CUDA_SUCCESS);
        memory_of_ = device_bytes(4096);
        fake_->reset_counters();
        events_ = fake_->counters().events_now;
    }
    void TearDown() override {
        fake_->calm();
        driver_->cuStreamDestroy(stream_);
        driver_->cuMemHostUnregister(host_.data());
        cuda::CUcontext popped = nullptr;
        driver_->cuCtxPopCurrent(&popped);
        OnFakeGpu::TearDown();
    }
    [[nodiscard]] static StreamHandle handle(cuda::CUstream stream) {
        return {reinterpret_cast<std::uintptr_t>(stream), 0};
    }
    /// Work that is not done before the fake is calm.
    void busy(cuda::CUstream stream) {
        fake_->hold(true);
        ASSERT_EQ(driver_->cuMemcpyHtoDAsync(memory_of_, host_.data(), 4096, stream),
                  cuda::CUDA_SUCCESS);
    }
    [[nodiscard]] std::string refusal(const StreamHandle& stream) {
        const auto order = make_order({&stream, 1}, {&place_, 1});
        if (order) {
            ADD_FAILURE() << "taken";
            return {};
        }
        EXPECT_EQ(order.error().code, ErrorCode::kInvalidArgument) << order.error().describe();
        return order.error().describe();
    }

    const engine::MemoryPlace place_{MemoryKind::kDevice, 0};
    cuda::CUstream stream_ = nullptr;
    cuda::CUdeviceptr memory_of_ = 0;
    memory::Block host_;
    std::uint64_t events_ = 0;
};

TEST_F(StreamOrders, OfIdleStreamsAreNothing) {
    const StreamHandle mine = handle(stream_);
    auto order = make_order({&mine, 1}, {&place_, 1});
    ASSERT_TRUE(order.has_value()) << order.error().describe();
    EXPECT_EQ(*order, nullptr);
    order = make_order({}, {&place_, 1});
    ASSERT_TRUE(order.has_value()) << order.error().describe();
    EXPECT_EQ(*order, nullptr);
    EXPECT_EQ(fake_->counters().events_now, events_);
}

TEST_F(StreamOrders, OfBusyStreamsHoldOneEventUntilTheirEnd) {
    busy(stream_);
    const StreamHandle mine = handle(stream_);
    auto order = make_order({&mine, 1}, {&place_, 1});
    ASSERT_TRUE(order.has_value()) << order.error().describe();
    ASSERT_NE(*order, nullptr);
    EXPECT_EQ(fake_->counters().events_now, events_ + 1);
    EXPECT_FALSE((*order)->passed().value());
    fake_->fail("cuEventQuery", 1, cuda::CUDA_ERROR_ECC_UNCORRECTABLE);
    const auto failed = (*order)->passed();
    ASSERT_FALSE(failed.has_value());
    EXPECT_THAT(failed.error().describe(), HasSubstr("CUDA_ERROR_ECC_UNCORRECTABLE"));
    fake_->hold(false);
    while (!(*order)->passed().value()) {
    }
    const std::uint64_t asked = fake_->calls("cuEventQuery");
    EXPECT_TRUE((*order)->passed().value());
    EXPECT_EQ(fake_->calls("cuEventQuery"), asked);  // for good
    order->reset();
    EXPECT_EQ(fake_->counters().events_now, events_);
    EXPECT_EQ(fake_->counters().synchronizations, 0U);
    EXPECT_EQ(fake_->counters().missing_contexts, 0U);
}

// Without a stream it is the default one, and each of its three names is that of the thread's GPU.
TEST_F(StreamOrders, OfTheDefaultStreamHaveItsThreeNames) {
    for (const std::uintptr_t name : {0U, 1U, 2U}) {
        busy(reinterpret_cast<cuda::CUstream>(name));
        const StreamHandle mine{name, -1};
        auto order = make_order({&mine, 1}, {&place_, 1});
        ASSERT_TRUE(order.has_value()) << order.error().describe();
        EXPECT_NE(*order, nullptr) << name;
        if (name < 2) {
            order = make_order({}, {&place_, 1});
            ASSERT_TRUE(order.has_value());
            EXPECT_NE(*order, nullptr);
        }
        order->reset();
        fake_->hold(false);
        while (driver_->cuStreamQuery(reinterpret_cast<cuda::CUstream>(name)) ==
               cuda::CUDA_ERROR_NOT_READY) {
        }
    }
}

TEST_F(StreamOrders, NeedAStreamThatExists) {
    EXPECT_THAT(refusal({0xDEAD'BEEF'0000, 0}), HasSubstr("0xdeadbeef0000"));
    cuda::CUstream gone = nullptr;
    ASSERT_EQ(driver_->cuStreamCreate(&gone, 0), cuda::CUDA_SUCCESS);
    ASSERT_EQ(driver_->cuStreamDestroy(gone), cuda::CUDA_SUCCESS);
    EXPECT_THAT(refusal(handle(gone)), HasSubstr("was destroyed"));
    EXPECT_THAT(refusal({0, 7}), HasSubstr("GPU 7"));
    EXPECT_EQ(fake_->counters().events_now, events_);
}

TEST_F(StreamOrders, AreErrorsOrWholeWhicheverCallFails) {
    busy(stream_);
    const StreamHandle mine = handle(stream_);
    std::uint64_t nth = 1;
    for (;; ++nth) {
        ASSERT_LT(nth, 50U);
        const std::uint64_t failed = fake_->counters().failed_by_order;
        fake_->fail("*", nth, cuda::CUDA_ERROR_UNKNOWN);
        auto order = make_order({&mine, 1}, {&place_, 1});
        const bool met = fake_->counters().failed_by_order != failed;
        fake_->fail("*", 0, 0);
        if (!order) {
            EXPECT_THAT(order.error().describe(), HasSubstr("CUDA_ERROR_UNKNOWN"));
        } else {
            EXPECT_NE(*order, nullptr);
            order->reset();
        }
        if (!met) {
            break;
        }
    }
    EXPECT_GT(nth, 5U);
    EXPECT_LE(fake_->counters().events_now, events_ + 1);  // one end met the fault
}

TEST_F(StreamOrders, AreRefusedInTheCaptureOfAGraph) {
    fake_->fail("cuStreamIsCapturing", 1, 906);
    EXPECT_THAT(refusal(handle(stream_)), HasSubstr("CUDA graph"));
}

}  // namespace
}  // namespace penstock::device
