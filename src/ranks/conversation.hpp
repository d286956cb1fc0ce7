// SPDX-License-Identifier: Apache-2.0
// One exchange among all ranks, led by rank 0: it announces, gathers what each of the others tells,
// and gives a verdict that all of them report. Blocking; starts no thread.
//
//     rank 0                                   each other rank
//     announce("offer", ...)          ->       hear("offer")
//     gather("ready")                 <-       tell("ready", ...)
//     agree(...) or fail(error)       ->       verdict()
//     end()                           <-       (has heard)
//
// Waits have no limit on time, but one on standing still: each rank leaves a count of its steps,
// and only who waits counts for how long another one's count has not changed. So a slow rank is
// waited for, one that stopped is named, and one that was stopped itself accuses nobody.
//
// The first failure is the failure of all: rank 0 takes it for the verdict. A rank that does not
// hear rank 0 any more throws Silence; what to do then is its caller's business.
#pragma once

#include <penstock/error.hpp>
#include <penstock/ranks.hpp>

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::ranks {

/// A rank, or the mailbox, is not heard from.
class Silence : public Error {
public:
    explicit Silence(const Error& error) : Error(error) {}
};

struct Waiting {
    /// A rank that does not move for so long has failed.
    std::chrono::nanoseconds limit = std::chrono::seconds(300);
    /// Called after each wait for a message, 50 ms to 1 s apart. What it throws is the failure of
    /// this rank. Then, and after any other kCancelled, the verdict is awaited for `patience` only.
    std::function<void()> look = nullptr;
    std::chrono::nanoseconds patience = std::chrono::seconds(5);
    /// Called with a text about every ten seconds: for whom this rank waits.
    std::function<void(const std::string&)> report = nullptr;
};

/// Keeps what ranks know from one exchange to the next. One exchange at a time; turns come on any
/// thread.
class Group {
public:
    /// Several ranks. `name`: of what they do together; the first part of each key. `stages`: all
    /// that an exchange may announce, gather or tell.
    Group(const Ranks& ranks, std::string name, std::vector<std::string> stages);
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group();
    [[nodiscard]] const Ranks& ranks() const { return ranks_; }
    /// "rank 2 of 4 (node-7)"; without the host while it is not known.
    [[nodiscard]] std::string name_of(std::uint32_t rank) const;

private:
    friend class Conversation;
    friend class Turn;
    [[nodiscard]] std::string key(std::uint64_t exchange, std::uint32_t rank,
                                  std::string_view stage) const;
    [[nodiscard]] std::vector<std::string> keys_of(std::uint64_t exchange,
                                                   std::uint32_t rank) const;
    /// Ends an exchange that this rank does not begin.
    void refuse(std::uint64_t exchange, const std::string& operation, const Error& error) noexcept;

    const Ranks ranks_;
    const std::string name_;
    const std::vector<std::string> stages_;
    std::atomic<std::uint64_t> exchanges_ = 0;
    std::vector<std::string> hosts_;  // one per rank; empty: not known
    std::mutex left_mutex_;
    // The keys of exchanges that a rank may still come to.
    std::map<std::uint64_t, std::vector<std::string>> left_keys_;
};

/// The right to begin the next exchange of a group. Each rank takes each of its turns, in the same
/// order. One that ends without an exchange is a failure of all: nobody waits for this rank, and
/// the next turns of all ranks are still those of one exchange. Its end may come on any thread.
class Turn {
public:
    Turn(Group& group, std::string operation);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();
    /// The reason, for the other ranks. Does nothing once the exchange has begun.
    void refuse(const Error& error) noexcept;

private:
    friend class Conversation;
    Group& group_;
    const std::string operation_;
    const std::uint64_t number_;
    const pid_t process_;  // the child of a fork says nothing
    std::atomic<bool> is_over_ = false;
};

class Conversation {
public:
    /// Begins the exchange of a turn. Throws kCancelled if that was refused.
    Conversation(Turn& turn, Waiting waiting);

    [[nodiscard]] bool leads() const { return group_.ranks_.number() == 0; }
    /// This rank has moved on; `steps`: whatever rises with it. Cheap to call often.
    void moved(std::uint64_t steps);

    // Rank 0.
    void announce(const std::string& stage, std::string_view message);
    /// The messages of all other ranks, by their number; that of rank 0 is empty. Throws the first
    /// failure of a rank, or Silence.
    [[nodiscard]] std::vector<std::string> gather(const std::string& stage);
    /// The verdict, which each rank gets.
    void agree(std::string_view message);
    void fail(const Error& error) noexcept;
    /// Waits until each rank has heard the verdict, and forgets the exchange. Returns who has not.
    [[nodiscard]] std::vector<std::uint32_t> end() noexcept;

    // The others.
    /// Throws the verdict if that is a failure, and Silence.
    [[nodiscard]] std::string hear(const std::string& stage);
    void tell(const std::string& stage, std::string_view message);
    /// Waits so long, unless the verdict comes and is a failure, which is thrown.
    void pause(std::chrono::nanoseconds time);
    /// This rank has failed. Rank 0 makes it the verdict; verdict() then throws it.
    void tell_failure(const Error& error) noexcept;
    /// Waits for it. Throws it if it is a failure, and Silence.
    [[nodiscard]] std::string verdict();
    [[nodiscard]] bool has_heard() const { return heard_.has_value(); }
    /// Forgets what this rank has left, for who ends without a verdict. Where rank 0 may still
    /// come, it finds the failure, and does not wait for this rank.
    void leave_silently() noexcept;
    /// Throws the verdict if there is one and it is a failure. Looks into the mailbox now and then.
    void stop_if_failed();

private:
    struct Record {  // what a rank leaves of itself
        std::string host;
        std::uint64_t steps = 0;
        std::string operation;  ///< or empty: not known
        std::optional<Error> failure;
    };
    struct Watch {  // one rank, as this one sees it
        std::uint64_t steps = 0;
        bool seen = false;
        std::chrono::nanoseconds still{0};  ///< waits of this rank since it moved
    };

    [[nodiscard]] std::string key(std::uint32_t rank, std::string_view stage) const;
    [[nodiscard]] std::optional<std::string> look(std::uint32_t rank, std::string_view stage,
                                                  std::chrono::nanoseconds timeout);
    void leave(std::string_view stage, std::string_view message);
    [[nodiscard]] Silence gone(std::string_view why) const;
    void leave_verdict(const std::string& verdict);
    void leave_record();
    [[nodiscard]] std::string record(const std::string& operation);
    void move_in_next();
    [[nodiscard]] std::optional<Record> record_of(std::uint32_t rank);
    [[nodiscard]] std::optional<Error> watch(std::uint32_t rank, std::chrono::nanoseconds waited);
    [[nodiscard]] Error silence_of(std::uint32_t rank) const;
    [[nodiscard]] bool is_silent(std::uint32_t rank);
    /// All ranks but 0, the last one first.
    [[nodiscard]] std::vector<std::uint32_t> others() const;
    template <typename Come>
    void wait_once(std::vector<std::uint32_t>& missing, std::string_view stage, const Come& come);
    void forget(const std::vector<std::uint32_t>& deaf);
    [[nodiscard]] std::string accept_verdict(std::string message);
    void waited_for(std::uint32_t rank, std::chrono::nanoseconds waited);
    [[nodiscard]] bool has_given_up() const;

    Group& group_;
    const std::string operation_;
    const Waiting waiting_;
    const std::uint64_t number_;
    const std::chrono::nanoseconds slice_;
    std::uint64_t steps_ = 0;
    std::uint64_t told_ = 0;            // the caller's steps at the last record
    std::vector<Watch> watches_;        // one per rank
    std::optional<std::string> heard_;  // the verdict
    bool is_left_ = false;              // the same, by rank 0
    bool has_failed_ = false;           // this rank
    bool is_stopped_ = false;           // by its user
    std::chrono::nanoseconds since_stopped_{0};
    std::optional<Error> failure_;  // of this rank
    std::chrono::nanoseconds reported_{0};
    std::chrono::steady_clock::time_point next_record_;
    std::chrono::steady_clock::time_point next_look_;
};

}  // namespace penstock::ranks
