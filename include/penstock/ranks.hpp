// SPDX-License-Identifier: Apache-2.0
// Ranks: the processes (or threads) that save one state together, and the mailbox between them.
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

}  // namespace penstock
