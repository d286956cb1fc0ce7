// SPDX-License-Identifier: Apache-2.0
#include "store_saving.hpp"

#include "arguments.hpp"
#include "errors.hpp"
#include "metadata.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "request.hpp"
#include "saved_tensors.hpp"
#include "saver.hpp"
#include "slices.hpp"
#include "state.hpp"
#include "state/structure/structure.hpp"
#include "streams.hpp"

#include <penstock/checkpoint.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

// A state to be saved: the memory of its tensors is that of storages, or in `tree`.
struct Job {
    format::ValueTree tree;
    penstock::State state;
};

struct MadeJob {
    std::shared_ptr<Job> job;
    std::vector<StorageMemory> storages;  ///< with the GIL
    std::vector<StreamHandle> streams;    ///< see streams_of()
    std::vector<std::size_t> of;          ///< the storage of each tensor, or kNoStorage
    MemoryLook look;                      ///< as long as the storages are kept
};

MadeJob job_of(nb::handle object, nb::handle other, bool together, Changing changing,
               const StoreObject& store) {
    MadeJob made;
    made.job = std::make_shared<Job>();
    State state = state_of(object, other, together, SavingRank{store.rank, store.ranks});
    made.storages = std::move(state.storages);
    made.job->tree = std::move(state.tree);
    const auto spans = spans_of(made.job->tree, made.storages, state.sliced);
    made.streams = streams_of(made.storages);
    {
        const nb::gil_scoped_release nogil;
        made.job->state = state::state_of(made.job->tree, spans);
        made.of = place_tensors(made.job->state, made.job->tree, made.storages, state.sliced);
    }
    split_slices(made.job->state, made.of, made.job->tree, made.storages, state.sliced,
                 store.is_alone());
    made.look = look_of(made.storages, changing, made.of);
    return made;
}

std::string step_name(std::uint64_t step) {
    return fmt::format("step {}", step);
}

Replicas replicas_of(nb::handle replicas) {
    const std::string name = word_of(replicas, "replicas");
    if (name != "equal" && name != "first") {
        raise_value("replicas: expected 'equal' or 'first', got " + shown(replicas));
    }
    return name == "first" ? Replicas::kFirst : Replicas::kEqual;
}

SaveOptions options_of(std::uint64_t step, bool pinned, nb::handle metadata, nb::handle changing,
                       nb::handle replicas) {
    return {.step = step,
            .pinned = pinned,
            .metadata = metadata_of(metadata),
            .changing = changing_of(changing),
            .waiting =
                [](const std::string& whom) {
                    const nb::gil_scoped_acquire gil;
                    nb::module_::import_("penstock._base.log").attr("waits")(path_object(whom));
                },
            .replicas = replicas_of(replicas)};
}

thread_local bool called_store = false;

}  // namespace

bool has_called_store() {
    return called_store;
}

void note_call() {
    called_store = true;
}

void forget_call() {
    called_store = false;
}

CheckpointInfo save_to_store(StoreObject& self, nb::handle object, std::uint64_t step, bool pinned,
                             nb::handle metadata, nb::handle other, nb::handle progress,
                             nb::handle changing, nb::handle replicas) {
    const std::shared_ptr<CheckpointStore> store = self.writable();
    self.raise_failure(step_name(step));
    SaveOptions options = options_of(step, pinned, metadata, changing, replicas);
    const MadeJob made = job_of(object, other, false, options.changing, self);
    options.streams = made.streams;
    options.look = made.look;
    // Those in flight are earlier, and come first.
    self.saver.wait_idle(-1);
    CheckpointInfo info;
    called_store = true;
    run_with_progress(progress, [&](const Progress& on_progress) {
        options.progress = [&](std::uint64_t done, std::uint64_t total) {
            const Inside inside(self.saving);
            return on_progress(done, total);
        };
        info = store->save(made.job->state, options);
    });
    if (!self.is_alone()) {
        for (const std::string& failure : self.saver.own().take_failures()) {
            warn_of(failure);
        }
    }
    return info;
}

nb::object save_to_store_async(StoreObject& self, nb::handle object, std::uint64_t step,
                               bool pinned, nb::handle metadata, nb::handle other, nb::handle copy,
                               nb::object progress, nb::handle changing, nb::handle replicas) {
    const std::shared_ptr<CheckpointStore> store = self.writable();
    self.raise_failure(step_name(step));
    SaveOptions options = options_of(step, pinned, metadata, changing, replicas);
    MadeJob made = job_of(object, other, true, options.changing, self);
    options.streams = made.streams;
    options.look = made.look;
    AsyncCall call(copy, made.storages, progress, made.job);
    penstock::State& state = made.job->state;
    for (std::size_t i = 0; call.copies() && i < state.tensors.size(); ++i) {
        // Parts of the tree are copied too: else the save would keep the objects that the tree
        // was made of.
        state.tensors[i].is_copy = state.tensors[i].is_copy && made.of[i] != kNoStorage;
    }
    called_store = true;
    PendingSave pending = call.run([&](const AsyncOptions& async) {
        return store->save_async(std::move(state), options, async);
    });
    return nb::cast(PendingSaveObject(std::move(pending), std::move(progress), true));
}

}  // namespace penstock::python
