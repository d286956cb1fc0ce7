// SPDX-License-Identifier: Apache-2.0
// The owners of what the driver makes: streams, events, memory of GPUs, pinned memory of the host.
// Nobody else makes or ends any of it (tests/tools/test_owners.py). An owner ends its object in the
// context that it was made in: a context that a reset made later (cudaDeviceReset) may have given
// the same address to others. In a child of a fork, and while the process ends, CUDA's objects are
// left alone.
#pragma once

#include "base/assert.hpp"
#include "base/result.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/refusals.hpp"
#include "memory/block.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace penstock::device {

/// An object of the driver's and its end, which `Kind` says: Handle, and end(driver, handle).
template <typename Kind>
class Owned {
public:
    using Handle = typename Kind::Handle;

    Owned() = default;
    Owned(Owned&& other) noexcept
        : driver_(other.driver_),
          context_(other.context_),
          handle_(std::exchange(other.handle_, Handle{})) {}
    Owned& operator=(Owned&& other) noexcept {
        if (this != &other) {
            Owned old(std::move(*this));
            driver_ = other.driver_;
            context_ = other.context_;
            handle_ = std::exchange(other.handle_, Handle{});
        }
        return *this;
    }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() { static_cast<void>(end()); }

    [[nodiscard]] Handle get() const { return handle_; }
    [[nodiscard]] bool empty() const { return handle_ == Handle{}; }
    /// That it was made in.
    [[nodiscard]] cuda::CUcontext context() const { return context_; }
    /// Ends it now. False where the driver refuses: the GPU is broken, and may still use what this
    /// was. In a child of a fork, which has no GPU, nothing is to be ended.
    [[nodiscard]] bool end() noexcept {
        bool is_ended = handle_ == Handle{} || !may_call_driver();
        if (!is_ended) {
            end_in(*driver_, context_, [&](const Current& current) { is_ended = end(current); });
        }
        handle_ = Handle{};
        return is_ended;
    }
    /// The same, where its context is current already. A call that is refused is tried again, for
    /// nobody comes back to it.
    bool end(const Current& current) noexcept {
        cuda::CUresult result = cuda::CUDA_SUCCESS;
        if (handle_ != Handle{}) {
            PENSTOCK_ASSERT(current.context() == context_);
            for (int i = 0; i < kTries; ++i) {
                result = Kind::end(*driver_, handle_);
                if (result == cuda::CUDA_SUCCESS) {
                    break;
                }
            }
            handle_ = Handle{};
        }
        return result == cuda::CUDA_SUCCESS;
    }
    /// Gives it up: it stays until the process ends.
    void leave() noexcept { handle_ = Handle{}; }

protected:
    /// The object that `make(Handle&)` makes in the current context.
    template <typename Make>
    [[nodiscard]] CallResult make_with(const Current& current, const char* call, Make&& make) {
        PENSTOCK_ASSERT(handle_ == Handle{});
        if (current.result() != cuda::CUDA_SUCCESS) {
            return {.result = current.result()};
        }
        Handle made{};
        const cuda::CUresult result = make(made);
        if (result == cuda::CUDA_SUCCESS) {
            PENSTOCK_ASSERT(made != Handle{});
            driver_ = &current.driver();
            context_ = current.context();
            handle_ = made;
        }
        return {result, call};
    }

private:
    static constexpr int kTries = 4;

    const Driver* driver_ = nullptr;
    cuda::CUcontext context_ = nullptr;
    Handle handle_{};
};

struct StreamKind {
    using Handle = cuda::CUstream;
    static cuda::CUresult end(const Driver& driver, Handle stream) noexcept;
};
struct EventKind {
    using Handle = cuda::CUevent;
    static cuda::CUresult end(const Driver& driver, Handle event) noexcept;
};
struct DeviceMemoryKind {
    using Handle = cuda::CUdeviceptr;
    static cuda::CUresult end(const Driver& driver, Handle memory) noexcept;
};
struct PinnedKind {
    using Handle = std::byte*;
    static cuda::CUresult end(const Driver& driver, Handle memory) noexcept;
};

/// Work that is on it when it ends runs to its end.
class Stream : public Owned<StreamKind> {
public:
    /// One that the legacy default stream does not wait for, nor it for that.
    [[nodiscard]] CallResult make_in(const Current& current);
};

/// Without time. Streams that wait for it do so still when it has ended.
class Event : public Owned<EventKind> {
public:
    [[nodiscard]] CallResult make_in(const Current& current);
};

/// Its end waits for all work of the GPU.
class DeviceMemory : public Owned<DeviceMemoryKind> {
public:
    [[nodiscard]] CallResult make_in(const Current& current, std::uint64_t bytes);
    /// kOutOfMemory where the GPU has not so many bytes.
    [[nodiscard]] static base::Result<DeviceMemory> make(std::int32_t device, std::uint64_t bytes);

    /// At a multiple of 256; the host cannot read there.
    [[nodiscard]] std::byte* data() const {
        return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(get()));
    }
};

/// Pages of the host that stay where they are as long as this lives, for copies and kernels of all
/// GPUs. It ends before their memory does: what stays registered after its memory is unmapped would
/// be taken for what is mapped there next.
class PinnedPages : public Owned<PinnedKind> {
public:
    enum class Pages : std::uint8_t {
        kOfOthers,  ///< somebody may have pinned them
        kNew,       ///< nobody has: what is registered there is what others unmapped without taking
                    ///< it back, and that is done here
    };
    [[nodiscard]] CallResult make_in(const Current& current, std::span<std::byte> memory,
                                     Pages pages);
    /// The same, and the address for GPUs. kInvalidArgument where they are pinned already.
    [[nodiscard]] static base::Result<PinnedPages> make(std::int32_t device,
                                                        std::span<std::byte> memory, Pages pages);
    /// The address for GPUs; 0 where nobody asked for it.
    [[nodiscard]] std::uint64_t address() const { return address_; }

private:
    std::uint64_t address_ = 0;
};

/// New memory of the host, pinned. A child of a fork has not got it: it would share pages that a
/// device reads and writes.
class PinnedBlock {
public:
    PinnedBlock() = default;
    PinnedBlock(PinnedBlock&& other) noexcept = default;
    PinnedBlock& operator=(PinnedBlock&& other) noexcept {
        std::swap(block_, other.block_);  // what this had ends with `other`
        std::swap(pages_, other.pages_);
        return *this;
    }
    PinnedBlock(const PinnedBlock&) = delete;
    PinnedBlock& operator=(const PinnedBlock&) = delete;
    ~PinnedBlock();
    [[nodiscard]] static base::Result<PinnedBlock> make(std::int32_t device, std::uint64_t bytes);
    [[nodiscard]] std::byte* data() const { return block_.data(); }
    [[nodiscard]] std::uint64_t address() const { return pages_.address(); }
    /// Gives it up: it stays until the process ends.
    void leave() noexcept;

private:
    memory::Block block_;
    PinnedPages pages_;
};

}  // namespace penstock::device
