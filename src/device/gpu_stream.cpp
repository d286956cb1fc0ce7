// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "device/gpu_lane.hpp"

#include <penstock/gpu.hpp>

#include <utility>

namespace penstock {

struct GpuStream::Impl {
    std::unique_ptr<device::GpuLane> lane;
};

namespace {

template <typename Impl>
device::GpuLane& lane_of(const std::unique_ptr<Impl>& impl) {
    if (impl == nullptr) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "gpu",
                                "this stream is of no GPU: it was moved from, or made without one; "
                                "make one with GpuStream(device)"));
    }
    return *impl->lane;
}

}  // namespace

GpuStream::GpuStream() noexcept = default;
GpuStream::GpuStream(std::int32_t device)
    : impl_(std::make_unique<Impl>(Impl{base::unwrap(device::GpuLane::make(device))})) {}
GpuStream::GpuStream(GpuStream&& other) noexcept = default;
GpuStream& GpuStream::operator=(GpuStream&& other) noexcept = default;
GpuStream::~GpuStream() = default;

StreamHandle GpuStream::handle() const {
    return lane_of(impl_).handle();
}

void GpuStream::copy_in(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    base::unwrap(lane_of(impl_).copy_in(to, from, bytes));
}

void GpuStream::wait_for(const StreamHandle& stream) {
    base::unwrap(lane_of(impl_).wait_for(stream));
}

void GpuStream::hold_up(const StreamHandle& stream) {
    base::unwrap(lane_of(impl_).hold_up(stream));
}

bool GpuStream::wait_until_idle(std::chrono::nanoseconds limit) noexcept {
    return impl_ == nullptr || impl_->lane->wait_until_idle(limit.count());
}

}  // namespace penstock
