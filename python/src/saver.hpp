// SPDX-License-Identifier: Apache-2.0
// Saves in the background as Python has them (store/background_saver.hpp): waits with a look at
// signals, warnings, and Python's objects that must stay until a save is done.
#pragma once

#include "engine_object.hpp"
#include "future_object.hpp"
#include "nanobind.hpp"
#include "state.hpp"
#include "store/background/background_saver.hpp"
#include "store/background/collected.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::python {

/// Converts save_async(copy=...): True, False, or a list of (address, bytes) that need no copy.
[[nodiscard]] store::CopyChoice copy_choice_of(nb::handle copy);

/// penstock.PendingSave.
struct PendingSaveObject final : FutureObject {
    std::shared_ptr<store::PendingSave> save;
    std::shared_ptr<std::optional<CheckpointInfo>> info;  ///< of a store: what result() gives
    nb::object progress;                                  ///< called while a thread waits, or None
    double waited_s = 0;  ///< for room in the budget, before the copy

    [[nodiscard]] bool done() override { return save->done(); }
    [[nodiscard]] bool cancelled() override { return save->cancelled(); }
    void cancel() override { save->cancel(); }
    [[nodiscard]] bool wait(double timeout_s) override { return wait(false, timeout_s); }
    [[nodiscard]] nb::object value() override;
    void notify(int eventfd) override { save->notify(eventfd); }
    [[nodiscard]] std::string name() const override { return "the save of " + save->name(); }
    /// True once it is staged (done); false when the time is over.
    bool wait(bool staged_is_enough, double timeout_s) const;
};

/// All with the GIL.
class Saver {
public:
    explicit Saver(std::uint64_t budget_bytes);
    Saver(const Saver&) = delete;
    Saver& operator=(const Saver&) = delete;
    /// Finishes the saves in flight, and warns of failures that were not reported.
    ~Saver();

    /// What becomes of failures that were not reported.
    enum class Failures { kRaise, kWarn, kAtExit };

    /// Raises the failure of an earlier save that was not reported, as the reason why `what` was
    /// not begun.
    void raise_failure(const std::string& what) { saver_->raise_failure(what); }
    /// Everything is durable or failed. False when the time is over.
    bool wait_idle(double timeout_s);
    /// At the end: cancels where a signal came, finishes, and reports failures. kRaise: the first
    /// is raised, and the others are warned of.
    void finish(Failures how);

    /// Copies `spans`, which lie in `storages`, and makes them those of the copy. Waits for room in
    /// the budget, and warns where that took long.
    store::StagedSave stage(std::vector<ConstMemory>& spans, const store::CopyChoice& choice,
                            const std::vector<StorageMemory>& storages);
    /// Copies what a stream gives; see store::collect(). Without the GIL.
    store::Collected collect(const TensorStream& stream, Changing changing);
    /// Waits until the tensors may change, and warns, if the state exceeded the budget.
    PendingSaveObject add(store::SaveQueue::Work work, const std::string& name,
                          const store::StagedSave& staged,
                          const std::vector<StorageMemory>& storages, nb::object progress);

    store::Staging& staging() { return saver_->staging(); }
    store::SaveQueue& queue() { return *saver_->queue(); }

private:
    std::unique_ptr<store::BackgroundSaver> saver_;
};

}  // namespace penstock::python
