// SPDX-License-Identifier: Apache-2.0
// Ranks: the processes (or threads) that save one state together, the mailbox between them, and the
// step at which all of them stop.
//
//     auto ranks = penstock::Ranks::of_threads(4);  // or Ranks(number, count, host, mailbox)
//     penstock::CheckpointStore store(engine, files, {"checkpoints"}, {.ranks = ranks[number]});
//     store.save(state, {.step = 100});  // each rank; returns on none before the commit
//
// Only small messages go through a mailbox; whatever is large goes through the folder of the
// checkpoints. Nothing here is a collective operation: a rank that stops cannot block the others,
// and training may communicate meanwhile.
#pragma once

#include <penstock/error.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// Values by their keys, which all ranks of a group reach: a TCPStore of torch, messages of MPI.
/// Implementations are thread-safe; each call of one rank is seen by its later calls. What they
/// throw counts as: the mailbox is gone.
class Mailbox {
public:
    Mailbox() = default;
    Mailbox(const Mailbox&) = delete;
    Mailbox& operator=(const Mailbox&) = delete;
    virtual ~Mailbox() = default;

    /// Sets the value of a key, at most some KiB. Replaces an earlier one.
    virtual void put(const std::string& key, std::string_view value) = 0;
    /// The value of a key; waits for it up to `timeout`, 0: looks once. Nothing when the time is
    /// over, and not earlier: limits on ranks that stand still are counted in such waits.
    virtual std::optional<std::string> get(const std::string& key,
                                           std::chrono::nanoseconds timeout) = 0;
    /// Forgets a key. No error if it is not there.
    virtual void erase(const std::string& key) = 0;
};

/// A rank: who it is, how many there are, and how they reach each other. Cheap to copy; copies
/// share their mailbox.
class PENSTOCK_API Ranks {
public:
    /// The only rank.
    Ranks() = default;
    /// `number`: 0 to `count` - 1. `host`: for messages. The mailbox is empty, and is given to no
    /// other Ranks of this number: what another run, or others, left there would be taken for
    /// messages of these. Throws kInvalidArgument for a number that is not below the count, and for
    /// several ranks without a mailbox.
    Ranks(std::uint32_t number, std::uint32_t count, std::string host,
          std::shared_ptr<Mailbox> mailbox);
    /// The ranks of one process: each for a thread of its own, with a mailbox in its memory.
    [[nodiscard]] static std::vector<Ranks> of_threads(std::uint32_t count);

    [[nodiscard]] std::uint32_t number() const { return number_; }
    [[nodiscard]] std::uint32_t count() const { return count_; }
    [[nodiscard]] const std::string& host() const { return host_; }
    [[nodiscard]] const std::shared_ptr<Mailbox>& mailbox() const { return mailbox_; }
    /// How many called this on this rank's copies before: the number of a store, by which those of
    /// all ranks find each other. So all ranks open their stores in the same order.
    [[nodiscard]] std::uint64_t next_user() const;

private:
    std::uint32_t number_ = 0;
    std::uint32_t count_ = 1;
    std::string host_;
    std::shared_ptr<Mailbox> mailbox_;
    std::shared_ptr<std::atomic<std::uint64_t>> users_ =
        std::make_shared<std::atomic<std::uint64_t>>(0);
};

struct StopOptions {
    /// A rank that is ahead waits so long for rank 0; then step_end() throws.
    std::chrono::nanoseconds limit = std::chrono::seconds(300);
    /// The number of steps between two messages of rank 0; 0: as many as cost little next to the
    /// steps, 16 at most.
    std::uint32_t stride = 0;
    /// Called while this rank waits. What it throws ends the wait.
    std::function<void()> look = {};
};

/// One step at which all ranks stop, because one of them was asked to.
///
///     penstock::StopTogether stop(ranks);
///     for (...) {
///         train();
///         if (stop.step_end(was_asked)) { save(); return; }  // true at the same step on all
///     }
///     if (stop.end(was_asked)) { save(); }
///
/// All ranks have one step_end() for each of the others', so their steps have the same numbers.
/// Rank 0 says up to which one everybody may go without asking, always some steps ahead of its own;
/// when somebody has asked, that one is the last. So nobody passes it, and nobody has to wait for a
/// rank that is behind: who is ahead of rank 0 by more than that waits until rank 0 comes, which
/// needs nothing of it. Most calls send nothing. Not thread-safe.
class PENSTOCK_API StopTogether {
public:
    /// All ranks make it in the same order as their stores.
    explicit StopTogether(Ranks ranks, StopOptions options = {});
    StopTogether(const StopTogether&) = delete;
    StopTogether& operator=(const StopTogether&) = delete;
    ~StopTogether();

    /// The end of a step; `is_asked`: this rank is to stop. True: this step is the last on all
    /// ranks. Throws if rank 0, or the mailbox, is gone; later calls then return false.
    [[nodiscard]] bool step_end(bool is_asked);
    /// The end of all steps. True: all ranks were asked to stop, but the last step came before.
    /// Waits for rank 0. False after an error.
    [[nodiscard]] bool end(bool is_asked);
    /// For a rank that leaves early, by an error: those that wait for it go on. True: the others
    /// stop at a step that this rank will not come to.
    bool leave() noexcept;

private:
    enum class Word : std::uint64_t { kGo, kStop, kOver };
    [[nodiscard]] std::string key(std::string_view what) const;
    void say(Word word, std::uint64_t until);
    [[nodiscard]] bool hear();
    void wait_for_word();
    [[nodiscard]] bool lead(bool is_asked, bool is_end);
    [[nodiscard]] bool follow(bool is_asked, bool is_end);
    void ask(bool is_asked);
    [[nodiscard]] std::uint64_t stride();
    template <typename Call>
    bool guarded(const Call& call);

    const Ranks ranks_;
    const StopOptions options_;
    const std::string name_;
    std::uint64_t step_ = 0;
    std::uint64_t until_ = 2;  ///< the step at which this rank has to know more
    Word word_ = Word::kGo;
    bool has_asked_ = false;
    std::chrono::steady_clock::time_point said_;
    std::uint64_t said_at_ = 0;
    std::chrono::nanoseconds cost_{0};  ///< of the last messages
};

}  // namespace penstock
