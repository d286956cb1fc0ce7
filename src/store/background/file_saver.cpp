// SPDX-License-Identifier: Apache-2.0
#include "store/background/file_saver.hpp"

#include "base/handles.hpp"
#include "base/raise.hpp"
#include "state/writing/file_writer.hpp"
#include "state/writing/state_image.hpp"

#include <penstock/state_file.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

namespace store {

penstock::PendingSave save_image_async(BackgroundSaver& saver, std::shared_ptr<Engine> engine,
                                       FileSystem files, const std::string& path,
                                       state::FileImage image, AsyncSave save,
                                       const AsyncOptions& options) {
    save.name = "'" + path + "'";
    const Changing changing = save.changing;
    // A function is copyable, an image is not.
    const auto own = std::make_shared<state::FileImage>(std::move(image));
    save.work = [&](StagedMemory staged) {
        own->replace_payloads(std::move(staged.memory));
        own->set_copies(std::move(staged.copies));
        return [own, engine = std::move(engine), files = std::move(files), path,
                watch = stream::Watch{changing, std::move(staged.look)}](PendingSave& running,
                                                                         CheckpointInfo& info) {
            state::save_file(*engine, files, path, *own, running.progress(), true, watch);
            info.path = path;
        };
    };
    return save_async(saver, std::move(save), options);
}

}  // namespace store

struct FileSaver::Impl {
    std::shared_ptr<Engine> engine;
    FileSystem files;
    std::shared_ptr<store::BackgroundSaver> saver;
};

namespace {

template <typename T>
const T& not_moved(const std::unique_ptr<T>& impl) {
    if (!impl) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "save file",
                                "this FileSaver was moved from; use the one that it was moved to"));
    }
    return *impl;
}

}  // namespace

std::shared_ptr<store::BackgroundSaver> store::saver_of(const FileSaver& saver) {
    return not_moved(saver.impl_).saver;
}

FileSaver::FileSaver(std::shared_ptr<Engine> engine, std::uint64_t host_memory_bytes,
                     FileSystem files)
    : impl_(std::make_unique<Impl>(
          Impl{base::engine_given(std::move(engine), "save file"), std::move(files),
               std::make_shared<store::BackgroundSaver>(host_memory_bytes)})) {}

FileSaver::FileSaver(FileSaver&& other) noexcept = default;
FileSaver& FileSaver::operator=(FileSaver&& other) noexcept = default;
FileSaver::~FileSaver() = default;

PendingSave FileSaver::save_async(const std::string& path, State state,
                                  const SaveFileOptions& options, const AsyncOptions& async) {
    const Impl& own = not_moved(impl_);
    static_cast<void>(state::check_state(state, path, options.format));  // now, not by result()
    store::AsyncSave save{.name = "'" + path + "'",
                          .memory = store::memory_of(state),
                          .streams = options.streams,
                          .changing = options.changing,
                          .look = options.look};
    save.work = [&](store::StagedMemory staged) {
        store::place(state, staged);
        SaveFileOptions later = options;
        later.streams = {};
        later.look = std::move(staged.look);
        return [engine = own.engine, files = own.files, path, state = std::move(state),
                later = std::move(later)](store::PendingSave& running, CheckpointInfo& info) {
            SaveFileOptions now = later;
            now.progress = running.progress(later.progress);
            now.note = &info.note;
            save_file(engine, path, state, now, files);
            info.path = path;
            info.tensors = state.tensors.size();
            for (const StateTensor& tensor : state.tensors) {
                info.tensor_bytes += tensor.data.bytes;
            }
        };
    };
    return store::save_async(*own.saver, std::move(save), async);
}

bool FileSaver::wait(std::chrono::nanoseconds timeout) {
    const std::shared_ptr<store::BackgroundSaver> saver = not_moved(impl_).saver;
    const bool idle = saver->queue()->wait_idle(timeout);
    saver->raise_failure({});
    return idle;
}

}  // namespace penstock
