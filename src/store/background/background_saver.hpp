// SPDX-License-Identifier: Apache-2.0
// Rules for saves in the background, with a budget of memory and a queue:
//
//   copied      memory that the caller may change meanwhile: copied at once, if the budget has room
//   uncopied    memory that the caller promises not to change, and memory that was copied from a
//               device for this save: written from where it is and kept until the save is done
//   tight       a state larger than the whole budget: nothing is copied, the caller waits
//   crowded     the same where no save is in flight, and iterators that are read hold the room:
//               these may wait for this save
//   failures    an unreported failure is thrown by the next save, which then has not begun, or by a
//               call that waits for the saves
//
// Thread-safe. Memory kept for a save is freed on a thread of the caller, never on the queue's own.
#pragma once

#include "base/of_process.hpp"
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

/// For room where no save is in flight: what gives memory back just after its save is over.
constexpr std::chrono::milliseconds kLastLook{200};

/// The memory of a tensor.
struct SourceMemory {
    ConstMemory bytes;
    bool copied = false;  ///< made for this save: nobody else changes it
};

struct CopyChoice {
    using Range = std::pair<const std::byte*, const std::byte*>;  ///< [first, second)

    bool copy = true;
    std::vector<Range> unchanging;  ///< needs no copy
    /// Memory of GPUs is read after what they hold at the call; see copy_memory().
    std::vector<StreamHandle> streams = {};
};

struct StagedSave {
    StagedCopy copy;
    bool all = true;        ///< the save needs no memory that the caller might change
    bool borrows = false;   ///< the save reads memory of the caller's
    bool tight = false;     ///< nothing was copied: no room
    bool crowded = false;   ///< it is tight though it is no more than the whole budget
    StreamMark after = {};  ///< to be waited for before memory of a GPU is read that was not copied
    double waited_s = 0;    ///< for room in the budget
};

class BackgroundSaver {
public:
    /// Calls `step(time)` until it returns true; may throw in between.
    using Wait = std::function<void(const std::function<bool(std::chrono::nanoseconds)>& step)>;

    explicit BackgroundSaver(std::uint64_t budget_bytes);
    BackgroundSaver(const BackgroundSaver&) = delete;
    BackgroundSaver& operator=(const BackgroundSaver&) = delete;
    /// Finishes the saves in flight, unless another owner holds the queue.
    ~BackgroundSaver() { queue_.reset(); }

    /// Copies `spans`, each the bytes of its source, as `choice` says, and points them into the
    /// copy.
    [[nodiscard]] StagedSave stage(std::vector<ConstMemory>& spans,
                                   std::span<const SourceMemory> sources, const CopyChoice& choice,
                                   const Wait& wait);
    /// `keeps`: memory of the caller that the save needs until it is done, or nullptr.
    std::shared_ptr<PendingSave> add(SaveQueue::Work work, const std::string& name, bool staged,
                                     std::shared_ptr<void> keeps);
    /// Throws an unreported failure of an earlier save, as the reason why `what` was not begun.
    /// `what` is empty: nothing was to begin. `has_begun`: it began all the same.
    void raise_failure(const std::string& what, bool has_begun = false);
    /// Unreported failures, one text each; called at the end.
    [[nodiscard]] std::vector<std::string> take_failures();
    /// Frees memory that no save needs any more.
    void sweep();

    /// The reason why the caller had to wait; empty if the wait was short or none.
    [[nodiscard]] std::string reason_of_wait(const StagedSave& staged) const;

    [[nodiscard]] Staging& staging() { return staging_; }
    /// Shared with callers that wait while another thread destroys the saver.
    [[nodiscard]] const std::shared_ptr<SaveQueue>& queue() const { return queue_; }

private:
    void copy(std::vector<ConstMemory>& spans, const std::vector<CopyChoice::Range>& uncopied,
              std::span<const StreamHandle> streams, StagedSave& out, const Wait& wait);

    Staging staging_;
    std::shared_ptr<SaveQueue> queue_;
    // Memory of the caller that the saves need until they are done.
    struct Keeps {
        std::mutex mutex;
        std::vector<std::pair<std::shared_ptr<PendingSave>, std::shared_ptr<void>>> list;
    };
    base::OfProcess<Keeps> keeps_{[] { return std::make_shared<Keeps>(); }};
};

/// The memory of a save once it is staged: of the same pieces, in the same order.
struct StagedMemory {
    std::vector<ConstMemory> memory;  ///< in the copy, or where it was
    std::vector<bool> copies;         ///< nobody else changes it
    MemoryLook look;                  ///< sees what has changed since now, too
};

/// One save_async().
struct AsyncSave {
    /// Saves; `info` is what PendingSave::result() gives.
    using Work = std::function<void(PendingSave& save, CheckpointInfo& info)>;

    std::string name;                  ///< "step 100"
    std::vector<SourceMemory> memory;  ///< of its tensors
    std::vector<StreamHandle> streams = {};
    Changing changing = Changing::kFails;
    MemoryLook look = {};
    /// Also after a failure of an earlier one that was not reported.
    bool begins_always = false;
    std::function<Work(StagedMemory)> work = nullptr;  ///< called once, by save_async()
};

/// The one program of all saves in the background: throws the failure of an earlier one, stages the
/// memory, adds the work, and waits for it where the memory has no room. Throws Error, and what
/// AsyncOptions::waiting throws.
[[nodiscard]] penstock::PendingSave save_async(BackgroundSaver& saver, AsyncSave save,
                                               const AsyncOptions& options);

/// The memory of a state's tensors.
[[nodiscard]] std::vector<SourceMemory> memory_of(const State& state);
/// Points the tensors to where their memory lies now.
void place(State& state, const StagedMemory& staged);

}  // namespace penstock::store
