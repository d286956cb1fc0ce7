// SPDX-License-Identifier: Apache-2.0
// A question about GPUs is answered, or is an error, at whichever allocation memory runs out, and
// so is a transfer of device memory.
#include "allocations/failing.hpp"
#include "api/options.hpp"
#include "base/clock.hpp"
#include "base/raise.hpp"
#include "engine/core.hpp"
#include "os/local_file_system.hpp"
#include "support/temp_folder.hpp"

#include <penstock/engine.hpp>
#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>
#include <penstock/weights.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

/// A device whose memory the host can copy. It allocates nothing but slots, so that what fails is
/// the engine's.
class CopyingMover final : public engine::Mover {
public:
    base::Result<memory::Block> slot_memory(std::uint64_t bytes) override {
        return memory::Block::make(bytes, {});
    }
    void start(engine::Move& move) override {
        move.copy_now();
        done_.push_back(move);
    }
    base::Fifo<engine::Move> reap() override { return std::exchange(done_, {}); }
    [[nodiscard]] bool ready() const override { return !done_.empty(); }
    [[nodiscard]] base::Nanos look_again() const override { return 0; }
    base::Error explain(const engine::Move& /*move*/) override { return {}; }

private:
    base::Fifo<engine::Move> done_;
};

std::shared_ptr<engine::Core> core_with_a_device() {
    engine::Platform platform;
    platform.file_system = os::local_file_system();
    platform.backends = api::backends_for(BackendKind::kPosix);
    platform.clock = std::make_shared<base::SteadyClock>();
    platform.make_mover = [](const engine::MemoryPlace& place, const auto& /*wake*/) {
        using Made = base::Result<std::unique_ptr<engine::Mover>>;
        return place.kind == MemoryKind::kHost ? Made() : Made(std::make_unique<CopyingMover>());
    };
    platform.make_order = [](auto /*streams*/, auto /*devices*/) {
        return base::Result<std::shared_ptr<const engine::MoveOrder>>();
    };
    return base::unwrap(
        engine::Core::make(base::unwrap(api::core_options({})), std::move(platform)));
}

/// Waits for the transfer, and throws its error.
void run(engine::Core& core, engine::TransferSpec spec) {
    struct Drop {
        void operator()(engine::Transfer* transfer) const {
            transfer->mark_observed();
            transfer->abandon();
            transfer->release();
        }
    };
    const std::unique_ptr<engine::Transfer, Drop> transfer(
        base::unwrap(core.start(std::move(spec))));
    while (!transfer->wait(100'000'000)) {
    }
    if (const base::Error* error = transfer->error()) {
        base::raise(*error);
    }
}

// Each time of a new engine: the first transfer makes its mover and slots.
TEST(GpuOutOfMemory, TransfersOfDeviceMemoryAreErrorsOrWhole) {
    const support::TempFolder folder;
    const std::string path = folder / "file";
    std::vector<std::byte> content(300'001);
    for (std::size_t i = 0; i < content.size(); ++i) {
        content[i] = static_cast<std::byte>(i * 7 + i / 251);
    }
    Engine().write(path, ConstMemory(content));
    EXPECT_EQ(
        allocator::in_child(
            100,
            [&] {
                return allocator::each_allocation(
                    [&](allocator::Attempt& attempt) -> std::string {
                        const auto core = core_with_a_device();
                        std::vector<std::byte> into(content.size());
                        const auto spec = [&] {
                            engine::TransferSpec made;
                            made.paths = {path};
                            made.extents = engine::Extents(std::vector<Extent>{
                                {0, {into.data(), 100'000, MemoryKind::kDevice, 0}, 0},
                                {100'000, {into.data() + 100'000, 100'001}, 0},
                                {200'001,
                                 {into.data() + 200'001, 100'000, MemoryKind::kDevice, 1},
                                 0}});
                            return made;
                        };
                        engine::TransferSpec first = spec();
                        if (attempt([&] { run(*core, std::move(first)); }) && into != content) {
                            return "wrong bytes";
                        }
                        std::fill(into.begin(), into.end(), std::byte{0});
                        run(*core, spec());
                        return into == content ? "" : "wrong bytes afterwards";
                    },
                    1, 5);
            }),
        "");
}

TEST(GpuOutOfMemory, WhichThereAreIsAnAnswer) {
    EXPECT_EQ(allocator::each_allocation(
                  [](allocator::Attempt& attempt) -> std::string {
                      GpuReport report;
                      std::int32_t count = 0;
                      attempt([&] {
                          report = gpus();
                          count = gpu_count();
                      });
                      if (count != 0 && count != gpu_count()) {
                          return "it is another number";
                      }
                      return report.available || !report.reason.empty() ? ""
                                                                        : "no GPU, and no reason";
                  },
                  1, 1),
              "");
}

// Refused for another reason than memory, of which Attempt hears.
template <typename Call>
bool is_refused(const Call& call) {
    try {
        call();
        return false;
    } catch (const Error& error) {
        if (error.reason() == ErrorCode::kOutOfMemory) {
            throw;
        }
        return true;
    }
}

TEST(GpuOutOfMemory, WithoutAGpuCallsAreRefusedAndMemoryOfTheHostIsThere) {
    if (gpu_count() != 0) {
        GTEST_SKIP() << "this machine has a GPU";
    }
    EXPECT_EQ(allocator::each_allocation(
                  [](allocator::Attempt& attempt) -> std::string {
                      int refused = 0;
                      std::byte there{};
                      const auto ask = [&] {
                          Region region = Region::host(1 << 20);
                          region.data()[5000] = std::byte{1};
                          region.drop(0, region.size());
                          there = region.data()[5000];
                          GpuStream none;
                          refused += is_refused([] { const GpuStream made(0); }) ? 1 : 0;
                          refused += is_refused([] { const RowCopies made(0, 10); }) ? 1 : 0;
                          refused += is_refused([] { (void)free_gpu_memory(0); }) ? 1 : 0;
                          refused += is_refused([] { (void)spare_gpu_memory(0, 0)(); }) ? 1 : 0;
                          refused += is_refused([&] { none.copy_in(&there, &there, 1); }) ? 1 : 0;
                          refused += is_refused([&] { none.hold_up({}); }) ? 1 : 0;
                          refused += none.wait_until_idle(std::chrono::nanoseconds(1)) ? 0 : 1;
                      };
                      const bool through = attempt(ask);
                      return !through || (refused >= 6 && there == std::byte{0})
                                 ? ""
                                 : "taken, or memory that was dropped has its bytes";
                  },
                  1, 1),
              "");
}

TEST(GpuOutOfMemory, MemoryOfTheHostIsAnError) {
    int host = 0;
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      try {
                          const auto ask = [&] { static_cast<void>(device_memory(&host, 4)); };
                          return attempt(ask) ? "it is a GPU's" : "";
                      } catch (const Error& error) {
                          const ErrorCode why = error.reason();  // no driver; or it knows no such
                          return why == ErrorCode::kUnsupported ||
                                         why == ErrorCode::kInvalidArgument
                                     ? ""
                                     : error.what();
                      }
                  },
                  1, 1),
              "");
}

TEST(GpuOutOfMemory, WhatCuFileWantsIsAnAnswerOrAnError) {
    EXPECT_EQ(allocator::each_allocation(
                  [](allocator::Attempt& attempt) -> std::string {
                      CuFileReport report;
                      const auto ask = [&] { report = cufile_conditions(Gpu{}, "/"); };
                      return !attempt(ask) || report.usable == report.reasons.empty()
                                 ? ""
                                 : "neither usable nor a reason";
                  },
                  1, 1),
              "");
}

// Whether a call is an error of the kinds that a machine without that GPU gives.
template <typename Call>
std::string refused(allocator::Attempt& attempt, Call call) {
    try {
        return attempt(call) ? "it is a GPU's" : "";
    } catch (const Error& error) {
        const ErrorCode why = error.reason();
        return why == ErrorCode::kUnsupported || why == ErrorCode::kInvalidArgument ? ""
                                                                                    : error.what();
    }
}

TEST(GpuOutOfMemory, CopiesAreMadeOrAreAnError) {
    std::array<std::byte, 64> from{};
    std::array<std::byte, 64> to{};
    from.fill(std::byte{7});
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      to.fill(std::byte{0});
                      const MemoryCopy copy{std::span(to), std::span(from)};
                      const bool made = attempt([&] { copy_memory({&copy, 1}); });
                      return !made || to == from ? "" : "it was not made";
                  },
                  1, 1),
              "");
    EXPECT_EQ(
        allocator::each_allocation(
            [&](allocator::Attempt& attempt) -> std::string {
                const MemoryCopy copy{{to.data(), 64, MemoryKind::kDevice, 0}, std::span(from)};
                return refused(attempt, [&] { copy_memory({&copy, 1}); });
            },
            1, 1),
        "");
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      return refused(attempt, [&] { const PinnedMemory pinned(to, 64); });
                  },
                  1, 1),
              "");
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      const std::int32_t device = 64;
                      return refused(attempt, [&] { StreamMark({}, {&device, 1}).wait(); });
                  },
                  1, 1),
              "");
}

TEST(GpuOutOfMemory, ARegionIsMadeOrAnError) {
    EXPECT_EQ(allocator::each_allocation(
                  [](allocator::Attempt& attempt) -> std::string {
                      Region region;
                      const bool made = attempt([&] { region = Region::host(4096); });
                      return made == (region.data() != nullptr) ? "" : "half a region";
                  },
                  1, 1),
              "");
    EXPECT_EQ(allocator::each_allocation(
                  [](allocator::Attempt& attempt) -> std::string {
                      return refused(attempt, [] { static_cast<void>(Region::pinned(64, 64)); });
                  },
                  1, 1),
              "");
}

}  // namespace
}  // namespace penstock
