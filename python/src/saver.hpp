// SPDX-License-Identifier: Apache-2.0
// save_async() as Python has it: waits with a look at signals, warnings, and Python's objects that
// must stay until a save is done. What saves is the public C++.
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
#include <utility>
#include <vector>

namespace penstock::python {

/// The AsyncOptions of one call: waits look at signals, warn of their reason, and call `progress`.
class AsyncCall {
public:
    /// `copy`: True, False, or a list of (address, bytes) that need no copy. `keeps`: what the save
    /// needs besides the storages, until it is done.
    AsyncCall(nb::handle copy, const std::vector<StorageMemory>& storages, nb::handle progress,
              std::shared_ptr<void> keeps = nullptr);
    AsyncCall(const AsyncCall&) = delete;
    AsyncCall& operator=(const AsyncCall&) = delete;
    ~AsyncCall() = default;
    [[nodiscard]] bool copies() const { return options_.copy; }
    /// Runs `begin(options)`, which is a save_async(), without the GIL.
    template <typename Begin>
    [[nodiscard]] PendingSave run(const Begin& begin) {
        check_interpreter_goes_on();
        const auto pending = [&] {
            const nb::gil_scoped_release nogil;
            return begin(std::as_const(options_));
        }();
        warn(pending.note());
        return pending;
    }

private:
    void warn(const std::string& note);
    void waits(const AsyncWait& wait);

    AsyncOptions options_;
    nb::handle progress_;
    bool warned_ = false;
    std::uint64_t reported_ = 0;
};

/// penstock.PendingSave.
struct PendingSaveObject final : FutureObject {
    PendingSaveObject(PendingSave began, nb::object called, bool store)
        : save(std::move(began)), progress(std::move(called)), of_store(store) {}

    PendingSave save;
    nb::object progress;    ///< called while a thread waits, or None
    bool of_store = false;  ///< result() is a CheckpointInfo; None of a file

    [[nodiscard]] bool done() override { return save.done(); }
    [[nodiscard]] bool cancelled() override { return save.cancelled(); }
    void cancel() override { save.cancel(); }
    [[nodiscard]] bool wait(double timeout_s) override { return wait(false, timeout_s); }
    [[nodiscard]] nb::object value() override;
    void notify(int eventfd) override { save.notify(eventfd); }
    [[nodiscard]] std::string name() const override { return "the save of " + save.name(); }
    /// True once it is staged (done); false when the time is over.
    bool wait(bool staged_is_enough, double timeout_s) const;
};

/// All with the GIL.
class Saver {
public:
    explicit Saver(std::shared_ptr<store::BackgroundSaver> saver);
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

    /// Copies what a stream gives; see store::collect(). Without the GIL.
    store::Collected collect(const TensorStream& stream, Changing changing);
    [[nodiscard]] store::BackgroundSaver& own() { return *saver_; }
    store::Staging& staging() { return saver_->staging(); }
    store::SaveQueue& queue() { return *saver_->queue(); }

private:
    std::shared_ptr<store::BackgroundSaver> saver_;
};

}  // namespace penstock::python
