// SPDX-License-Identifier: Apache-2.0
// What saves behind the caller's back as Python holds it: memory for copies, a queue, and the
// objects that must stay until a save is done.
//
// The queue's thread never touches a Python object. What a save still needs of Python's is kept
// here and let go by the next call that finds it done, on a thread of Python's.
#pragma once

#include "engine_object.hpp"
#include "nanobind.hpp"
#include "state.hpp"
#include "store/save_queue.hpp"
#include "store/staging.hpp"
#include "without_gil.hpp"

#include <penstock/checkpoint.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

/// Memory that needs no copy: [first, second).
using Ranges = std::vector<std::pair<const std::byte*, const std::byte*>>;

/// What save_async(copy=...) was given: True, False, or a list of (address, bytes) that need none.
struct CopyChoice {
    explicit CopyChoice(nb::handle copy);
    bool copy = true;
    Ranges straight;
};

/// penstock.PendingSave.
struct PendingSaveObject {
    std::shared_ptr<store::PendingSave> save;
    std::shared_ptr<std::optional<CheckpointInfo>> info;  ///< of a store: what result() gives
    nb::object progress;                                  ///< called while somebody waits, or None
    double waited_s = 0;  ///< for room in the budget, before the copy

    [[nodiscard]] nb::object result(double timeout_s);
    /// True once it is staged (done); false when the time is over.
    bool wait(bool staged_is_enough, double timeout_s) const;
};

/// All with the GIL.
class Saver {
public:
    explicit Saver(std::uint64_t budget_bytes);
    Saver(const Saver&) = delete;
    Saver& operator=(const Saver&) = delete;
    /// Finishes what is in flight, and warns of a failure that nobody was told of.
    ~Saver();

    /// Raises the failure of an earlier save that nobody was told of, as the reason why `what` was
    /// not begun.
    void raise_failure(const std::string& what);
    /// Everything is durable or failed. False when the time is over.
    bool wait_idle(double timeout_s);
    /// Lets go of what is not needed any more.
    void sweep();
    /// At the end: cancels where a signal came, finishes, warns.
    void finish();

    struct Staged {
        store::StagedCopy copy;
        bool all = true;     ///< nothing is left that the caller might change
        bool tight = false;  ///< nothing was copied: more than the whole budget
        double waited_s = 0;
        nb::object keeps = nb::none();  ///< what the save needs of Python's until it is done
    };
    /// Where nothing was copied (tight), the caller waits, and this says why.
    void warn_tight();
    /// Copies `spans`, those that lie in `straight` excepted, and makes them those of the copy.
    /// Waits for room in the budget.
    Staged stage(std::vector<std::span<const std::byte>>& spans, const Ranges& straight);
    /// With what was copied from devices already, which nobody changes: also as it is.
    Staged stage(std::vector<std::span<const std::byte>>& spans, const CopyChoice& choice,
                 const std::vector<StorageMemory>& storages);

    /// `keeps`: what the save needs of Python's until it is done. `staged`: its memory will not
    /// change.
    std::shared_ptr<store::PendingSave> add(store::SaveQueue::Work work, const std::string& name,
                                            bool staged, nb::object keeps);

    store::Staging& staging() { return *staging_; }
    store::SaveQueue& queue() { return *queue_; }

private:
    std::unique_ptr<store::Staging> staging_;
    std::shared_ptr<store::SaveQueue> queue_;  ///< shared by who waits without the GIL
    std::vector<std::pair<std::shared_ptr<store::PendingSave>, nb::object>> keeps_;
};

}  // namespace penstock::python
