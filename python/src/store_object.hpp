// SPDX-License-Identifier: Apache-2.0
// A CheckpointStore as Python has it, with its saves in the background.
#pragma once

#include "engine_object.hpp"
#include "names.hpp"
#include "saver.hpp"

#include <penstock/checkpoint.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::python {

/// Says that this thread is in a progress function of save(). Several threads may save: each waits
/// until the one before has ended, so the thread is set while the function runs.
struct Inside {
    explicit Inside(std::atomic<std::thread::id>& of) : thread(of) {
        thread = std::this_thread::get_id();
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() { thread = std::thread::id(); }
    std::atomic<std::thread::id>& thread;
};

struct StoreObject {
    StoreObject(std::vector<std::string> folders, const StoreOptions& options)
        : rank(options.ranks.number()),
          ranks(options.ranks.count()),
          engine(opened(default_engine())),
          store(made(engine, std::move(folders), options)),
          saver(store::saver_of(*store)) {}
    StoreObject(const StoreObject&) = delete;
    StoreObject& operator=(const StoreObject&) = delete;
    ~StoreObject() {
        try {
            close(Saver::Failures::kWarn);
        } catch (nb::python_error& e) {
            e.discard_as_unraisable("penstock: finishing the saves of a store");
        } catch (const std::bad_alloc&) {  // to warn of failures
        }
    }

    void close(Saver::Failures how) {
        std::exception_ptr failure;
        try {
            saver.finish(how);
        } catch (...) {  // the store is closed all the same
            failure = std::current_exception();
        }
        {
            const nb::gil_scoped_release nogil;
            if (!is_alone() && store) {
                closed = store;
                closed->close();
            }
            store.reset();
        }
        if (failure) {
            std::rethrow_exception(failure);
        }
    }
    [[nodiscard]] const std::shared_ptr<CheckpointStore>& open() const {
        if (!store) {
            raise_value("store: it is closed; make another one");
        }
        return store;
    }

    /// For who writes. The child of a fork may not: a save of the parent may hold the store for
    /// ever there.
    [[nodiscard]] const std::shared_ptr<CheckpointStore>& writable() {
        const std::shared_ptr<CheckpointStore>& own = open();
        if (writer != 0 && writer != ::getpid()) {
            raise_value(
                fmt::format("store: this process was forked from {}, which writes to this "
                            "store; make a CheckpointStore of its own here",
                            writer));
        }
        writer = ::getpid();
        if (is_inside()) {
            refuse_inside();
        }
        return own;
    }

    /// For who waits for the saves in flight: none of them can begin before the save returns whose
    /// progress function this thread is in.
    void check_wait_ends() {
        if (is_inside() && saver.queue().in_flight() != 0) {
            refuse_inside();
        }
    }

    /// The failure of an earlier save, as the reason why `what` was not begun. Of several ranks the
    /// others would save meanwhile: they report it once the save has begun.
    void raise_failure(const std::string& what) {
        if (is_alone()) {
            saver.raise_failure(what);
        }
    }

    [[nodiscard]] bool is_inside() const { return saving == std::this_thread::get_id(); }

    [[noreturn]] static void refuse_inside() {
        raise_value(
            "store: the progress function of a save of this store called this; call it when that "
            "save has returned");
    }

    static std::shared_ptr<CheckpointStore> made(const std::shared_ptr<Engine>& engine,
                                                 std::vector<std::string> folders,
                                                 const StoreOptions& options) {
        const nb::gil_scoped_release nogil;
        auto own = std::make_unique<CheckpointStore>(engine, FileSystem::any(), std::move(folders),
                                                     options);
        // The last one who has it finishes its saves, which may look at Python's objects.
        return {own.release(), [](CheckpointStore* last) {
                    std::optional<nb::gil_scoped_release> nogil_too;
                    if (PyGILState_Check() != 0) {
                        nogil_too.emplace();
                    }
                    delete last;  // NOLINT(cppcoreguidelines-owning-memory)
                }};
    }

    [[nodiscard]] bool is_alone() const { return ranks == 1; }
    /// Ends the save that the other ranks call, and this one does not. A store that is closed says
    /// so to them, too. The progress function of a save of this store has no save of its own.
    void refuse_save(const std::string& why) {
        const std::shared_ptr<CheckpointStore>& own = store ? store : closed;
        if (is_alone() || !own || is_inside()) {
            return;
        }
        const nb::gil_scoped_release nogil;  // a mailbox may need it
        own->refuse_save(
            Error(ErrorCode::kInvalidArgument, 0, "save checkpoint", "", kNoOffset, why));
    }

    std::uint32_t rank;
    std::uint32_t ranks;
    std::shared_ptr<Engine> engine;
    std::shared_ptr<CheckpointStore> store;   ///< nullptr: closed
    std::shared_ptr<CheckpointStore> closed;  ///< of several ranks
    Saver saver;
    pid_t writer = 0;                     ///< the process that has written
    std::atomic<std::thread::id> saving;  ///< the thread in the progress function of save()
};

}  // namespace penstock::python
