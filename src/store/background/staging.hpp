// SPDX-License-Identifier: Apache-2.0
// Copies of a state in host memory, so that training may change its tensors while they are written.
//
//     room in the budget  ->  an area, kept from an earlier save or new  ->  copy on all cores
//                                                     ^ goes back with the StagedCopy, pages and
//                                                     all
//
// Pieces of a GPU are copied by the GPU, into the same area, which is pinned for that as far as it
// is used, and stays so while it is kept.
//
// A copy is one area of huge pages with the pieces one after the other, so that many small tensors
// cost what one large one costs. Faulting memory in is dearer than copying into it: areas are kept,
// within the budget; a new one is faulted in by the copying threads. The copies in flight and the
// areas that wait hold `budget_bytes` together at most; a caller that finds it used up waits for a
// save to finish.
#pragma once

#include "base/of_process.hpp"

#include <penstock/gpu.hpp>
#include <penstock/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::store {

/// Memory of the host and of GPUs.
using Pieces = std::span<const ConstMemory>;

/// The pieces of a copy, in the order in which they were given. Movable; any thread may drop it.
class StagedCopy {
public:
    StagedCopy();
    StagedCopy(StagedCopy&& other) noexcept;
    StagedCopy& operator=(StagedCopy&& other) noexcept;
    StagedCopy(const StagedCopy&) = delete;
    StagedCopy& operator=(const StagedCopy&) = delete;
    ~StagedCopy();

    [[nodiscard]] const std::vector<std::span<const std::byte>>& pieces() const { return pieces_; }
    /// Empty, or why copies of a GPU's memory were slower than they could be.
    [[nodiscard]] const std::string& note() const { return note_; }

private:
    friend class Staging;
    struct Hold;
    std::unique_ptr<Hold> hold_;
    std::vector<std::span<const std::byte>> pieces_;
    std::string note_;
};

struct StagingOptions {
    std::uint64_t budget_bytes = 0;  ///< 0: default_budget_bytes()
    unsigned threads = 0;            ///< that copy; 0: one per core, 16 at most
};

/// Thread-safe. A child of fork() begins with an empty one of the same budget.
class Staging {
public:
    explicit Staging(const StagingOptions& options = {});
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;
    ~Staging();

    /// Nothing when `timeout` ended before the copies in flight left room: call again. Throws
    /// kOutOfMemory for pieces larger than the whole budget (see area_bytes()), and when the system
    /// has no memory.
    /// `streams`: pieces of GPUs are copied after what they hold at the call; see copy_memory().
    [[nodiscard]] std::optional<StagedCopy> copy(Pieces pieces, std::chrono::nanoseconds timeout,
                                                 std::span<const StreamHandle> streams = {});

    /// The bytes of the budget that a copy of the pieces uses.
    [[nodiscard]] static std::uint64_t area_bytes(Pieces pieces);
    /// Half of usable_memory_bytes().
    [[nodiscard]] static std::uint64_t default_budget_bytes();

    [[nodiscard]] std::uint64_t budget_bytes() const noexcept { return budget_bytes_; }
    /// Bytes of copies that are in use.
    [[nodiscard]] std::uint64_t used_bytes() const;
    /// Bytes of areas that wait for the next copy.
    [[nodiscard]] std::uint64_t kept_bytes() const;

private:
    friend struct StagedCopy::Hold;
    struct Impl;

    const std::uint64_t budget_bytes_;
    base::OfProcess<Impl> impl_;
};

}  // namespace penstock::store
