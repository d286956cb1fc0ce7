// SPDX-License-Identifier: Apache-2.0
// Room for descriptors: what the transfers of this process that open files by path may hold,
// compared with the limit on open files. It is one limit for all engines, so this is one object.
//
// A transfer takes room before it opens files, and is queued if none is left; closing files gives
// room back, which admits the next ones, oldest first. No thread sleeps here. If none of our files
// is open, one is always admitted, so that the caller gets the system's own error.
//
// How many descriptors the rest of the program has is seen in the numbers that openings return:
// the system gives the lowest that is free, so that all below it are taken.
#pragma once

#include "base/intrusive.hpp"

#include <cstdint>
#include <mutex>

namespace penstock::engine {

/// An entry in the queue for room; part of the object that waits.
struct RoomWaiter {
    base::Link<RoomWaiter> room_link;
    std::uint32_t files = 0;          ///< asked for, then let in
    const void* waits_for = nullptr;  ///< what drop() looks for
    void (*admitted)(RoomWaiter&) noexcept = nullptr;
};

class Descriptors {
public:
    using Waiters = base::Fifo<RoomWaiter, &RoomWaiter::room_link>;

    [[nodiscard]] static Descriptors& of_process();

    Descriptors() = default;
    Descriptors(const Descriptors&) = delete;
    Descriptors& operator=(const Descriptors&) = delete;

    /// A local file has one descriptor, and one more for direct I/O.
    static constexpr std::uint32_t kPerFile = 2;

    /// True: `waiter.files` may be opened now, at least one. False: it is queued, and `admitted` is
    /// called when its turn comes, on the thread that gave room back.
    [[nodiscard]] bool take(RoomWaiter& waiter);
    /// Room was taken for `files`; `open` descriptors came of it, the highest of them `highest`.
    void opened(std::uint32_t files, std::uint32_t open, int highest);
    /// `open`: the descriptors that opened() was given.
    void closed(std::uint32_t open);

    enum class Refused : std::uint8_t { kNoneOfOurs, kTryAgain, kQueued };
    /// The system had no descriptor for the first of `waiter.files`, asked for after closings()
    /// was `before`. The room is given up.
    [[nodiscard]] Refused refused(RoomWaiter& waiter, std::uint64_t before);
    [[nodiscard]] std::uint64_t closings();

    /// An opening returned `number`: should no more be opened than must be?
    [[nodiscard]] static bool scarce(int number);

    /// Takes the waiters for `what` out of the queue; they are the caller's.
    [[nodiscard]] Waiters drop(const void* what);

    // fork()
    void before_fork() { mutex_.lock(); }
    void after_fork_in_parent() { mutex_.unlock(); }
    void after_fork_in_child();

private:
    [[nodiscard]] std::uint64_t room(std::uint64_t files) const;
    [[nodiscard]] Waiters let_in();
    static void tell(Waiters waiters);

    std::mutex mutex_;
    Waiters waiting_;
    std::uint64_t reserved_ = 0;  ///< taken, and not opened yet
    std::uint64_t open_ = 0;
    std::uint64_t others_ = 0;  ///< of the rest of the program, when we last looked
    std::uint64_t closings_ = 0;
};

}  // namespace penstock::engine
