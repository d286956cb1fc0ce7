// SPDX-License-Identifier: Apache-2.0
// The rules of saves in the background, over a budget of memory and a queue:
//
//   copied      what the caller may change meanwhile, at once, when the budget has room
//   uncopied    what the caller says will not change, and what was copied from a device for this
//               save already: written from where it is, which is kept until the save is done
//   tight       a state that the whole budget does not hold: nothing is copied, the caller waits
//   failures    one that nobody asked for is thrown by the next save, which has then not begun
//
// Thread-safe. What a save keeps is let go on a thread that calls, never on the queue's own.
#pragma once

#include "store/background/save_queue.hpp"
#include "store/background/staging.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::store {

/// Memory that a state lies in.
struct SourceMemory {
    std::span<const std::byte> bytes;
    bool copied = false;  ///< made for this save: nobody else changes it
};

struct CopyChoice {
    using Range = std::pair<const std::byte*, const std::byte*>;  ///< [first, second)

    bool copy = true;
    std::vector<Range> unchanging;  ///< needs no copy
};

struct StagedSave {
    StagedCopy copy;
    bool all = true;       ///< nothing is left that the caller might change
    bool borrows = false;  ///< the save reads memory of the caller's
    bool tight = false;    ///< nothing was copied: more than the whole budget
    double waited_s = 0;   ///< for room in the budget
};

class BackgroundSaver {
public:
    /// Calls `step(time)` until it says true; may throw in between.
    using Wait = std::function<void(const std::function<bool(std::chrono::nanoseconds)>& step)>;

    explicit BackgroundSaver(std::uint64_t budget_bytes);
    BackgroundSaver(const BackgroundSaver&) = delete;
    BackgroundSaver& operator=(const BackgroundSaver&) = delete;
    /// Finishes what is in flight, unless somebody else has the queue.
    ~BackgroundSaver() { queue_.reset(); }

    /// Copies `spans`, which lie in `sources`, and makes them those of the copy; as `choice` says.
    [[nodiscard]] StagedSave stage(std::vector<std::span<const std::byte>>& spans,
                                   std::span<const SourceMemory> sources, const CopyChoice& choice,
                                   const Wait& wait);
    /// `keeps`: what the save needs of the caller's until it is done, or nullptr.
    std::shared_ptr<PendingSave> add(SaveQueue::Work work, const std::string& name, bool staged,
                                     std::shared_ptr<void> keeps);
    /// Throws the failure of an earlier save that nobody asked for, as the reason why `what` was
    /// not begun.
    void raise_failure(const std::string& what);
    /// At the end: the failures that nobody asked for, one text each.
    [[nodiscard]] std::vector<std::string> take_failures();
    /// Lets go of what is not needed any more.
    void sweep();

    /// Why the caller had to wait, for a warning; empty: it did not, or not for long.
    [[nodiscard]] std::string reason_of_wait(const StagedSave& staged) const;

    [[nodiscard]] Staging& staging() { return staging_; }
    /// Shared by who waits while another thread destroys the saver.
    [[nodiscard]] const std::shared_ptr<SaveQueue>& queue() const { return queue_; }

private:
    void copy(std::vector<std::span<const std::byte>>& spans,
              const std::vector<CopyChoice::Range>& uncopied, StagedSave& out, const Wait& wait);

    Staging staging_;
    std::shared_ptr<SaveQueue> queue_;
    std::mutex mutex_;
    std::vector<std::pair<std::shared_ptr<PendingSave>, std::shared_ptr<void>>> keeps_;
};

}  // namespace penstock::store
