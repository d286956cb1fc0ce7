// SPDX-License-Identifier: Apache-2.0
// Brings bytes between slots and the memory of one GPU: slots are pinned once, copies go on two
// streams of its own (one a direction, so that both copy engines work at once), and an event after
// each move returns its slot. No call here waits for the GPU.
#pragma once

#include "base/clock.hpp"
#include "base/intrusive.hpp"
#include "base/result.hpp"
#include "device/cuda/owned.hpp"
#include "device/mover/copy_rate.hpp"
#include "engine/mover.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace penstock::device {

/// One channel's, for one GPU. Made on any thread; all calls on the thread that turns the channel;
/// any context that is current there is so again afterwards. Moves that are out when it is
/// destroyed are waited for. While the process ends, and in the child of a fork, it leaves CUDA's
/// objects alone.
class GpuMover final : public engine::Mover {
public:
    /// kInvalidArgument where there is no such GPU, kUnsupported where the process has no GPU at
    /// all. `clock` outlives the mover.
    [[nodiscard]] static base::Result<std::unique_ptr<GpuMover>> make(
        std::int32_t device, const base::Clock& clock = kSteadyClock);
    GpuMover(const GpuMover&) = delete;
    GpuMover& operator=(const GpuMover&) = delete;
    ~GpuMover() override;

    /// Huge pages near the GPU, pinned until this is destroyed.
    [[nodiscard]] base::Result<memory::Block> slot_memory(std::uint64_t bytes) override;
    void start(engine::Move& move) override;
    [[nodiscard]] base::Fifo<engine::Move> reap() override;
    [[nodiscard]] bool ready() const override { return !done_.empty(); }
    /// With many copies out, when a quarter of them should have ended: the rest keeps the GPU busy,
    /// and their slots are filled by fewer system calls.
    [[nodiscard]] base::Nanos look_again() const override;
    [[nodiscard]] base::Error explain(const engine::Move& move) override;
    void abandon_after_fork() override { abandoned_ = true; }

private:
    /// The call that failed; with the driver's error it is `Move::error`.
    enum class Step : std::uint8_t { kMemory, kContext, kCopy, kRecord, kQuery };
    /// A move that is out, and the event that says when it is through. Kept for the next.
    struct Flight {
        base::Link<Flight> link;
        engine::Move* move = nullptr;
        Event event;
        std::uint64_t bytes = 0;
        bool recorded = false;  ///< else the whole stream is asked
    };
    struct MoveStream {
        Stream stream;
        base::Fifo<Flight> out;      ///< in the order of the stream
        std::uint64_t bytes = 0;     ///< of them all
        std::uint32_t refusals = 0;  ///< in a row, to say how far its copies are
        CopyRate rate;
    };
    /// Pieces that go to the driver in one call.
    struct Batch {
        static constexpr std::size_t kPieces = 128;
        std::array<cuda::CUdeviceptr, kPieces> to;
        std::array<cuda::CUdeviceptr, kPieces> from;
        std::array<std::size_t, kPieces> bytes;
        std::size_t count = 0;
    };

    static inline const base::SteadyClock kSteadyClock;

    GpuMover(const Driver& driver, cuda::CUcontext context, std::int32_t device,
             const base::Clock& clock);
    [[nodiscard]] MoveStream& queue_of(const engine::Move& move);
    [[nodiscard]] cuda::CUresult take_flight(const Current& current, Flight*& flight);
    [[nodiscard]] cuda::CUresult copy(MoveStream& queue, engine::Move& move, bool& queued);
    [[nodiscard]] cuda::CUresult copy(MoveStream& queue, engine::Move& move, bool& queued,
                                      bool& joins);
    [[nodiscard]] cuda::CUresult hand_over(MoveStream& queue, bool to_device);
    [[nodiscard]] cuda::CUresult ask(MoveStream& queue, Flight& flight, cuda::CUresult& seen) const;
    void reap(MoveStream& queue, cuda::CUresult context, base::Fifo<engine::Move>& done);
    [[nodiscard]] bool wait_until_idle();
    void leave_all() noexcept;
    static void fail(engine::Move& move, Step step, cuda::CUresult result);

    const Driver& driver_;
    const cuda::CUcontext context_;
    const base::Clock& clock_;
    const std::int32_t device_;
    int numa_node_ = -1;
    bool batches_ = false;  ///< the driver takes several copies in one call
    bool abandoned_ = false;
    std::uint32_t refusals_ = 0;  ///< of the context, in a row
    MoveStream in_;               ///< to the GPU
    MoveStream out_;              ///< from the GPU
    Batch batch_;
    std::vector<std::unique_ptr<Flight>> flights_;
    base::Fifo<Flight> free_;
    base::Fifo<engine::Move> done_;  ///< failed before anything was queued
    std::vector<PinnedPages> pinned_;
};

/// An engine::MakeMover: nullptr for the host, for which the engine has its own.
[[nodiscard]] base::Result<std::unique_ptr<engine::Mover>> make_mover(
    const engine::MemoryPlace& place, const std::function<void()>& wake);

}  // namespace penstock::device
