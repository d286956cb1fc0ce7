// SPDX-License-Identifier: Apache-2.0
// What fails each allocation of a call in turn, in a child process, so that a crash or a hang is a
// failure of one test.
#pragma once

#include "allocations/allocator.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace penstock::allocator {

/// Runs `body` in a child of this process. Returns its report, or how the child died: empty, if all
/// is well. Killed after `seconds`.
[[nodiscard]] std::string in_child(unsigned seconds, const std::function<std::string()>& body);

/// One call, in which the n-th allocation fails.
class Attempt {
public:
    Attempt(std::uint64_t n, Fails how) : n_(n), how_(how) {}

    /// Runs `call`, in which allocations fail. False when it said that memory ran out; what else it
    /// throws goes on.
    bool operator()(const std::function<void()>& call);
    /// The same for what runs between the two, and says itself how it ended.
    void begin() const { fail(n_, how_); }
    void end() { seen_ += stop_failing(); }
    /// Allocations of what ran.
    [[nodiscard]] std::uint64_t seen() const { return seen_; }
    [[nodiscard]] std::uint64_t n() const { return n_; }
    /// Adds the count of another process.
    void add_seen(std::uint64_t seen) { seen_ += seen; }

private:
    const std::uint64_t n_;
    const Fails how_;
    std::uint64_t seen_ = 0;
};

/// Descriptors that this process has open.
[[nodiscard]] std::size_t open_descriptors();

/// `step`, for `make test`: one allocation in so many. Each of them with twenty times its seeds,
/// one in four times as many with a fiftieth, as the sanitizers have it.
[[nodiscard]] std::uint64_t sampled(std::uint64_t step);

/// `body` once for each allocation that its Attempt sees, every `step`-th, failing alone; and every
/// `more_step`-th, failing with all that follow. Empty, or what it said first, with the number of
/// the allocation.
[[nodiscard]] std::string each_allocation(const std::function<std::string(Attempt&)>& body,
                                          std::uint64_t step = 1, std::uint64_t more_step = 1);

}  // namespace penstock::allocator
