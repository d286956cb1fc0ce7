// SPDX-License-Identifier: Apache-2.0
// One update:
//
//   1. the files are found and locked: the one given, or the index and its shards that change
//   2. what an earlier update left of them is finished
//   3. what is asked is planned, or refused
//   4. a log for each file is written, synced and named: from here on readers see the new tensors.
//      Logs of several files are valid with one more, the leader, which is named last
//   5. the files are written and synced, and the logs removed, the leader first
//
// Programs that take no lock may write to a file meanwhile, or replace it. The status of each is
// compared before the log has its name, and before the file is written.
//
// A log that does not fit its file is of another content; it is reported, and left.
#include "base/handles.hpp"
#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/random.hpp"
#include "state/tensor_file.hpp"
#include "state/update/find_update.hpp"
#include "state/update/log_writer.hpp"
#include "state/update/update_plan.hpp"
#include "state/writing/state_image.hpp"

#include <penstock/state_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

namespace penstock::state {

namespace {

constexpr std::string_view kUpdateFile = "update";
constexpr std::chrono::seconds kUpdateWait{2};
constexpr std::chrono::milliseconds kLockAgain{5};
// The name of the manifest in a checkpoint of a store; a part of the name of a folder with shards;
// and the begin of the names of a store's own files in the folder above.
constexpr std::string_view kManifestBeside = "manifest.json";
constexpr std::string_view kStepInName = "-step-";
constexpr std::string_view kStoreName = ".store";

[[noreturn]] void refuse_update(const std::string& why, const std::string& path,
                                ErrorCode code = ErrorCode::kInvalidArgument) {
    base::raise(base::error(code, kUpdateFile, why + "; nothing was written", path));
}

bool is_of_store(const FileSystem& files, const std::string& path) {
    const std::string folder = base::folder_of(path);
    try {
        const auto names = files.list(folder);
        if (std::binary_search(names.begin(), names.end(), kManifestBeside)) {
            return true;
        }
        if (base::last_name(folder).find(kStepInName) == std::string_view::npos) {
            return false;
        }
        const auto above = files.list(base::folder_of(folder));
        return std::any_of(above.begin(), above.end(), [](const std::string& name) {
            return name == kStoreName || name.starts_with(std::string(kStoreName) + "-");
        });
    } catch (const Error&) {  // it may not be listed
        return false;
    }
}

void check_file(const FileSystem& files, const std::string& path) {
    const FileStatus status = files.status(path);
    if (status.kind != FileKind::kFile) {
        refuse_update("it is no regular file", path);
    }
    constexpr std::uint32_t kMayWrite = 0222;
    if ((status.mode & kMayWrite) == 0) {
        base::raise(base::system_error(EACCES, kUpdateFile, path, kNoOffset,
                                       "the file is read-only; nothing was written"));
    }
    if (status.links > 1) {
        refuse_update(
            fmt::format("the file has {} names (hard links), and would change under all of "
                        "them; a CheckpointStore shares unchanged shards so. Update a copy",
                        status.links),
            path);
    }
    if (is_of_store(files, path)) {
        refuse_update(
            "the file belongs to a CheckpointStore, whose checkpoints do not change; load the "
            "checkpoint and save another, or update a copy",
            path);
    }
}

class Update {
public:
    Update(std::shared_ptr<Engine> engine, const FileSystem& files, const std::string& path,
           std::span<const StateTensor> tensors, const UpdateFileOptions& options)
        : shared_(std::move(engine)),
          engine_(*shared_),
          files_(files),
          path_(path),
          tensors_(tensors),
          progress_(options.progress, std::string(kUpdateFile), path) {}

    void run() {
        lock_all();
        for (const std::string& path : wanted_) {
            finish(path);
        }
        if (tensors_.empty() || !index_.empty()) {  // of one file: the new log does it
            for (const auto& [folder, names] : logs_) {
                remove_abandoned(files_, folder, names);
            }
        }
        if (tensors_.empty()) {
            return;
        }
        const TensorReader reader(shared_, files_, path_, {}, true);
        const std::vector<PlannedFile> plans = plan_update(engine_, reader, path_, tensors_);
        std::vector<std::string> paths;
        for (const PlannedFile& plan : plans) {
            paths.push_back(place_of(reader.file(plan.number)));
            if (!locked_.contains(paths.back())) {
                refuse_update("it was saved again just then; update it when that is over", path_);
            }
            const TensorFile& file = reader.file(plan.number);
            planned_[paths.back()] = file.status ? *file.status : take(paths.back()).status();
        }
        write(plans, paths);
    }

private:
    struct Locked {
        File file;
        FileLock lock;
    };

    // The path of a file, from the root and without symbolic links: the folder of the process may
    // change meanwhile.
    std::string place_of(const TensorFile& file) const {
        return files_.resolve(
            file.update_path.substr(0, file.update_path.size() - kUpdateSuffix.size()));
    }

    // Finds the files by a first look, which needs no lock.
    void lock_all() {
        const TensorReader reader(shared_, files_, path_, {}, true);
        std::set<std::uint32_t> numbers;
        std::set<std::string_view> names;
        for (const StateTensor& tensor : tensors_) {
            names.insert(tensor.name);
        }
        for (std::size_t i = 0; reader.is_index() && i < reader.items().size(); ++i) {
            if (names.contains(reader.tensor(i).name)) {
                numbers.insert(reader.items()[i].described_by);
            }
        }
        std::set<std::string> paths;
        for (std::uint32_t i = 0; i < reader.headers(); ++i) {
            const bool is_wanted =
                !reader.is_index() || numbers.contains(i) || reader.file(i).is_update_there;
            const std::string place = place_of(reader.file(i));
            if (is_wanted) {
                paths.insert(place);
            }
            logs_[base::folder_of(place)].push_back(std::string(base::last_name(place)) +
                                                    std::string(kUpdateSuffix));
        }
        if (reader.is_index()) {
            index_ = files_.resolve(path_);
            index_lock_ = lock(index_);
            for (auto& [folder, logs] : logs_) {
                logs.push_back(std::string(base::last_name(index_)) + std::string(kUpdateSuffix));
            }
        }
        for (const std::string& path : paths) {
            take(path);
        }
        wanted_.assign(paths.begin(), paths.end());
    }

    FileLock lock(const std::string& path) const {
        const auto until = std::chrono::steady_clock::now() + kUpdateWait;
        while (true) {
            try {
                FileLock out = files_.lock(path, false);
                if (out.held()) {
                    return out;
                }
            } catch (const Error& error) {
                if (error.system_errno() != EWOULDBLOCK) {
                    throw;
                }
                if (std::chrono::steady_clock::now() >= until) {
                    base::raise(
                        base::system_error(EWOULDBLOCK, kUpdateFile, path, kNoOffset,
                                           "another update of this file is under way; "
                                           "nothing was written. Try again when it is over"));
                }
            }
            std::this_thread::sleep_for(kLockAgain);
        }
    }

    File& take(const std::string& path) {
        const auto found = locked_.find(path);
        if (found != locked_.end()) {
            return found->second.file;
        }
        check_file(files_, path);
        Locked out;
        out.lock = lock(path);
        out.file = files_.open(path, {.access = Access::kReadWrite, .follow = false});
        return locked_.emplace(path, std::move(out)).first->second.file;
    }

    // Finishes an update that did not come to its end, or takes away what it had only begun.
    void finish(const std::string& path) {
        const FileStatus before = take(path).status();
        const FoundUpdate found = find_update(engine_, files_, path, take(path));
        switch (found.found) {
            case UpdateFound::kNone:
                return;
            case UpdateFound::kForeign:
                refuse_update(fmt::format("{}", note_of(found)), path);
            case UpdateFound::kDamaged:
                refuse_damaged(found, path);
                return;
            case UpdateFound::kBegun:
                remove({found.path}, found.update->log.id);
                return;
            case UpdateFound::kPending:
                break;
        }
        finish(*found.update, path, before);
    }

    void finish(const OpenUpdate& first, const std::string& path, const FileStatus& before) {
        if (first.log.leader.empty()) {
            check_update(engine_, first);
            redo_update(engine_, first, take(path), before);
            remove({first.path}, first.log.id);
            return;
        }
        const std::string folder = base::folder_of(first.path);
        struct Part {
            OpenUpdatePtr update;
            std::string path;
            FileStatus before;
        };
        std::vector<Part> all;
        for (const std::string& name : first.log.followers) {
            const std::string other =
                base::join(folder, name.substr(0, name.size() - kUpdateSuffix.size()));
            const FileStatus status = take(other).status();
            const FoundUpdate found = find_update(engine_, files_, other, take(other));
            if (found.found == UpdateFound::kNone) {
                continue;
            }
            if (found.found != UpdateFound::kPending || found.update->log.id != first.log.id) {
                refuse_damaged(found, other);
                refuse_update(
                    fmt::format("'{}' is of another update than '{}'", found.path, first.path),
                    other);
            }
            check_update(engine_, *found.update);
            all.push_back({found.update, other, status});
        }
        std::vector<std::string> logs;
        for (const Part& part : all) {
            redo_update(engine_, *part.update, take(part.path), part.before);
            logs.push_back(part.update->path);
        }
        remove({base::join(folder, first.log.leader)}, first.log.id);
        remove(logs, first.log.id);
    }

    // Removes logs of one call, in one folder. Returns when they are gone for good. If the file was
    // replaced meanwhile, the name may be that of the log of another update.
    void remove(const std::vector<std::string>& logs, std::uint64_t id) const {
        for (const std::string& log : logs) {
            try {
                const FoundUpdate there = open_update(engine_, files_, log);
                if (!there.update || there.update->log.id != id) {
                    continue;
                }
                files_.remove(log);
            } catch (const Error& error) {
                if (error.system_errno() != ENOENT) {  // a save of the file takes it away, too
                    throw;
                }
            }
        }
        if (!logs.empty()) {
            files_.sync_folder(base::folder_of(logs[0]));
        }
    }

    void write(const std::vector<PlannedFile>& plans, const std::vector<std::string>& paths) {
        UpdateGroup group{.id = base::random_bits(), .leader = {}, .followers = {}};
        if (paths.size() > 1) {
            group.leader = std::string(base::last_name(index_)) + std::string(kUpdateSuffix);
            for (const std::string& path : paths) {
                check_folder(path, paths[0]);
                group.followers.push_back(std::string(base::last_name(path)) +
                                          std::string(kUpdateSuffix));
            }
        }
        std::uint64_t total = 0;
        for (const PlannedFile& plan : plans) {
            for (const PlannedTensor& tensor : plan.tensors) {
                total += tensor.bytes;
            }
        }
        progress_.set_total(total);
        std::vector<std::unique_ptr<Replacement>> logs;
        for (std::size_t i = 0; i < plans.size(); ++i) {
            logs.push_back(write_update_log(engine_, files_, paths[i], take(paths[i]), plans[i],
                                            group, progress_));
        }
        if (!group.leader.empty()) {
            logs.push_back(write_leader(
                engine_, files_, base::join(base::folder_of(paths[0]), group.leader), group));
        }
        progress_.tick(true);
        for (const auto& [path, locked] : locked_) {
            if (!locked.lock.held()) {
                refuse_update("another file was saved under its name meanwhile", path);
            }
        }
        for (const std::string& path : paths) {
            if (!is_unwritten(take(path).status(), planned_.at(path))) {
                refuse_update("another program wrote to the file meanwhile", path,
                              ErrorCode::kChanged);
            }
        }
        commit(logs, group.id);
        complete(paths, logs, group);
    }

    static void check_folder(const std::string& path, const std::string& first) {
        if (base::folder_of(path) != base::folder_of(first)) {
            refuse_update(
                fmt::format("its folder is another than that of '{}', and shards that are "
                            "updated together have to be in one; update one after the other",
                            first),
                path, ErrorCode::kUnsupported);
        }
    }

    // The last one makes the others valid, if there are others.
    void commit(const std::vector<std::unique_ptr<Replacement>>& logs, std::uint64_t id) const {
        try {
            for (const auto& log : logs) {
                log->commit();
            }
        } catch (...) {
            take_back(logs, id);
            throw;
        }
    }

    // If one cannot be removed, those after it may stay: they are not valid without it, or all are.
    void take_back(const std::vector<std::unique_ptr<Replacement>>& logs,
                   std::uint64_t id) const noexcept {
        try {
            for (auto log = logs.rbegin(); log != logs.rend(); ++log) {
                if ((*log)->is_in_place()) {
                    remove({(*log)->target()}, id);
                }
            }
        } catch (const std::exception&) {  // the next update finishes it, or takes it away
        }
    }

    void complete(const std::vector<std::string>& paths,
                  const std::vector<std::unique_ptr<Replacement>>& logs, const UpdateGroup& group) {
        const std::string log = paths.empty() ? "" : paths[0] + std::string(kUpdateSuffix);
        std::vector<std::string> done;
        try {
            for (const std::string& path : paths) {
                redo_update(engine_, *own_log(path, group.id), take(path), planned_.at(path));
                done.push_back(path + std::string(kUpdateSuffix));
            }
            if (!group.leader.empty()) {
                remove({base::join(base::folder_of(log), group.leader)}, group.id);
            }
            remove(done, group.id);
        } catch (const Error& error) {
            if (done.empty() && error.reason() == ErrorCode::kChanged) {
                take_back(logs, group.id);
                refuse_update("another program wrote to the file meanwhile", path_,
                              ErrorCode::kChanged);
            }
            throw Error(error.reason(), error.system_errno(), error.operation(), error.path(),
                        error.offset(),
                        fmt::format("{}. The new tensors are in '{}' and are read from there; the "
                                    "next update() of '{}' writes them into the file",
                                    error.what(), log, path_));
        }
    }

    // Throws kChanged if the log of this call is gone: a save under the name takes it away.
    OpenUpdatePtr own_log(const std::string& path, std::uint64_t id) const {
        FoundUpdate found = open_update(engine_, files_, path + std::string(kUpdateSuffix));
        if (!found.update || found.update->log.id != id) {
            refuse_update("its log was removed", path, ErrorCode::kChanged);
        }
        return std::move(found.update);
    }

    const std::shared_ptr<Engine> shared_;
    Engine& engine_;
    const FileSystem& files_;
    const std::string& path_;
    const std::span<const StateTensor> tensors_;
    stream::ProgressClock progress_;
    std::string index_;  // its path, of an index
    FileLock index_lock_;
    std::map<std::string, Locked> locked_;
    std::map<std::string, FileStatus> planned_;  // before its structure was read
    std::vector<std::string> wanted_;
    std::map<std::string, std::vector<std::string>> logs_;  // where they would be, by folder
};

}  // namespace

}  // namespace penstock::state

namespace penstock {

void update_file(const std::shared_ptr<Engine>& engine, const std::string& path,
                 std::span<const StateTensor> tensors, const UpdateFileOptions& options,
                 const FileSystem& files) {
    static_cast<void>(base::engine_given(engine, "update"));
    state::wait_for_streams(tensors, options.streams);
    state::Update(engine, files, path, tensors, options).run();
}

}  // namespace penstock
