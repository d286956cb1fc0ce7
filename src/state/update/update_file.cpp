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
// compared before the log has its name, and before the file is written; and whether its name is
// still its own, also after that.
//
// A log that does not fit its file is of another content; it is reported, and left.
#include "base/handles.hpp"
#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/random.hpp"
#include "state/tensor_file.hpp"
#include "state/update/checkpoint_folder.hpp"
#include "state/update/find_update.hpp"
#include "state/update/log_writer.hpp"
#include "state/update/update_plan.hpp"
#include "state/writing/state_image.hpp"
#include "stream/checksum.hpp"

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

[[noreturn]] void refuse_update(const std::string& why, const std::string& path,
                                ErrorCode code = ErrorCode::kInvalidArgument) {
    base::raise(base::error(code, kUpdateFile, why + "; nothing was written", path));
}

// The log of a file, or of an index.
std::string log_of(std::string_view path) {
    return std::string(path) + std::string(kUpdateSuffix);
}

// `of`: whose log it is.
void check_log_name(const std::string& log, const std::string& of) {
    const std::size_t bytes = base::last_name(log).size();
    if (bytes > base::kNameBytesMax) {
        const std::size_t most = base::last_name(of).size() - (bytes - base::kNameBytesMax);
        base::raise(base::system_error(
            ENAMETOOLONG, kUpdateFile, of, kNoOffset,
            fmt::format("the name of its log, '{}', has {} bytes, and a name has at most {}. "
                        "Rename it to a name of at most {} bytes, update it, and rename it back; "
                        "nothing was written",
                        base::last_name(log), bytes, base::kNameBytesMax, most)));
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
    if (is_checkpoint_folder(files, base::folder_of(path))) {
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
            if (planned_.contains(paths.back())) {  // there is one log of a file
                refuse_update(
                    "the index has this file by two names; update the tensors of one "
                    "name after those of the other",
                    paths.back(), ErrorCode::kUnsupported);
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
            logs_[base::folder_of(place)].push_back(log_of(base::last_name(place)));
        }
        if (reader.is_index()) {
            index_ = files_.resolve(path_);
            index_lock_ = lock(index_);
            for (auto& [folder, logs] : logs_) {
                logs.push_back(leader_in(folder));
            }
        }
        for (const std::string& path : paths) {
            take(path);
        }
        wanted_.assign(paths.begin(), paths.end());
    }

    // The name of the log that makes those of an index valid. In another folder than the index,
    // where it would be that of another index of the same name, it has a hash of the path.
    std::string leader_in(const std::string& folder) const {
        const std::string_view name = base::last_name(index_);
        if (folder == base::folder_of(index_)) {
            return log_of(name);
        }
        const std::uint64_t hash = stream::content_hash(std::as_bytes(std::span(index_)));
        return log_of(fmt::format("{}.{:016x}", name, hash));
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
            }
            if (std::chrono::steady_clock::now() >= until) {
                base::raise(base::system_error(EWOULDBLOCK, kUpdateFile, path, kNoOffset,
                                               "another update of this file is under way; "
                                               "nothing was written. Try again when it is over"));
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
        if (!out.lock.held()) {  // the one that was opened may be another than the one locked
            refuse_update("another file was saved under its name just then", path,
                          ErrorCode::kChanged);
        }
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
            check_place(path);
            remove({first.path}, first.log.id);
            return;
        }
        const std::string folder = base::folder_of(first.path);
        struct Follower {
            OpenUpdatePtr update;
            std::string path;
            FileStatus before;
        };
        std::vector<Follower> all;
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
                if (found.found == UpdateFound::kForeign) {
                    refuse_update(note_of(found), other);
                }
                refuse_update(
                    fmt::format("'{}' is of another update than '{}'", found.path, first.path),
                    other);
            }
            check_update(engine_, *found.update);
            all.push_back({found.update, other, status});
        }
        std::vector<std::string> logs;
        for (const Follower& part : all) {
            redo_update(engine_, *part.update, take(part.path), part.before);
            logs.push_back(part.update->path);
        }
        for (const Follower& part : all) {
            check_place(part.path);
        }
        remove({base::join(folder, first.log.leader)}, first.log.id);
        remove(logs, first.log.id);
    }

    // Removes logs of one call, in one folder. Returns when they are gone for good, if the folder
    // may be listed. If the file was replaced meanwhile, the name may be that of the log of another
    // update.
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
            sync_if_allowed(base::folder_of(logs[0]));
        }
    }

    // A process that may not list a folder cannot open it to sync it. A log that comes back with a
    // power cut then gives what the file has already.
    void sync_if_allowed(const std::string& folder) const {
        try {
            files_.sync_folder(folder);
        } catch (const Error& error) {
            if (error.system_errno() != EACCES) {
                throw;
            }
        }
    }

    void write(const std::vector<PlannedFile>& plans, const std::vector<std::string>& paths) {
        UpdateGroup group{.id = base::random_bits(), .leader = {}, .followers = {}};
        if (paths.size() > 1) {
            group.leader = leader_in(base::folder_of(paths[0]));
            for (const std::string& path : paths) {
                check_folder(path, paths[0]);
                group.followers.push_back(log_of(base::last_name(path)));
            }
            check_leader(base::join(base::folder_of(paths[0]), group.leader), paths.size());
        }
        for (const std::string& path : paths) {
            check_log_name(log_of(path), path);
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
            logs.push_back(write_leader(engine_, files_,
                                        base::join(base::folder_of(paths[0]), group.leader),
                                        paths[0], group));
        }
        progress_.tick(true);
        for (const auto& [path, locked] : locked_) {
            if (!locked.lock.held()) {
                refuse_update("another file was saved under its name meanwhile", path,
                              ErrorCode::kChanged);
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

    // Refuses if another update, or the user, has a file of the name of the leader. A leader whose
    // other logs are gone may be replaced.
    void check_leader(const std::string& path, std::size_t count) const {
        if (count > kUpdateFollowersMax) {
            refuse_update(fmt::format("{} shards are too many for one update, which has at most "
                                      "{}; update some after the others",
                                      count, kUpdateFollowersMax),
                          index_, ErrorCode::kUnsupported);
        }
        check_log_name(path, index_);
        const FoundUpdate there = open_update(engine_, files_, path);
        refuse_damaged(there, index_);
        if (there.found == UpdateFound::kForeign) {
            refuse_update(note_of(there), index_);
        }
        if (!there.update) {
            return;
        }
        const UpdateLog& log = there.update->log;
        if (!is_leader(log)) {
            refuse_update(fmt::format("'{}' is the log of an update of one file; remove it if that "
                                      "file is as you want it",
                                      path),
                          index_);
        }
        for (const std::string& name : log.followers) {
            const std::string other = base::join(base::folder_of(path), name);
            const FoundUpdate its = open_update(engine_, files_, other);
            if (its.update && its.update->log.id == log.id) {
                refuse_update(
                    fmt::format("'{}' is of an update that did not come to its end; finish that: "
                                "penstock.update('{}', {{}})",
                                path, other.substr(0, other.size() - kUpdateSuffix.size())),
                    index_);
            }
        }
    }

    // Throws kChanged if another program gave the name of a log to its own file meanwhile. A leader
    // whose other logs are gone may have it.
    void check_free(const std::string& log) const {
        const FoundUpdate there = open_update(engine_, files_, log);
        if (there.found != UpdateFound::kNone && !(there.update && is_leader(there.update->log))) {
            refuse_update(
                "another program made this file, which has the name of the log, meanwhile", log,
                ErrorCode::kChanged);
        }
    }

    // Throws kChanged if the file that is open is not the one with the name.
    void check_place(const std::string& path) const {
        if (!locked_.at(path).lock.held()) {
            base::raise(base::error(ErrorCode::kChanged, kUpdateFile,
                                    "another program gave its name to another file, or removed it, "
                                    "meanwhile",
                                    path));
        }
    }

    void check_before_writing(const std::string& path) const {
        check_place(path);
        if (locked_.at(path).file.status().links > 1) {
            base::raise(base::error(ErrorCode::kChanged, kUpdateFile,
                                    "another program made a hard link of it meanwhile, under which "
                                    "it would change, too",
                                    path));
        }
    }

    // The last one makes the others valid, if there are others.
    void commit(const std::vector<std::unique_ptr<Replacement>>& logs, std::uint64_t id) const {
        try {
            for (const auto& log : logs) {
                log->commit(true, [&] { check_free(log->target()); });
            }
        } catch (const Error& error) {
            throw_taken_back(logs, id, error, {});
        } catch (...) {
            static_cast<void>(take_back(logs, id));
            throw;
        }
    }

    // Throws what is known of an update that has written nothing, after its logs are gone.
    [[noreturn]] void throw_taken_back(const std::vector<std::unique_ptr<Replacement>>& logs,
                                       std::uint64_t id, const Error& error,
                                       std::string_view why) const {
        const std::string left =
            take_back(logs, id)
                ? std::string()
                : fmt::format(
                      ". Its log '{}' could not be removed: the new tensors are read from "
                      "there, and the next update() writes them; remove it if you want the "
                      "old ones",
                      logs.back()->target());
        throw Error(error.reason(), error.system_errno(), error.operation(), error.path(),
                    error.offset(), fmt::format("{}{}{}", error.what(), why, left));
    }

    // Whether the update is not valid any more. If one cannot be removed, those after it may stay:
    // they are not valid without it, or all are.
    [[nodiscard]] bool take_back(const std::vector<std::unique_ptr<Replacement>>& logs,
                                 std::uint64_t id) const noexcept {
        try {
            for (auto log = logs.rbegin(); log != logs.rend(); ++log) {
                if ((*log)->is_in_place()) {
                    remove({(*log)->target()}, id);
                }
            }
        } catch (const std::exception&) {  // the next update finishes it, or takes it away
        }
        try {
            const FoundUpdate last = open_update(engine_, files_, logs.back()->target());
            return !last.update || last.update->log.id != id;
        } catch (const std::exception&) {
            return false;
        }
    }

    void complete(const std::vector<std::string>& paths,
                  const std::vector<std::unique_ptr<Replacement>>& logs, const UpdateGroup& group) {
        const std::string log = log_of(paths.empty() ? std::string() : paths[0]);
        std::vector<std::string> done;
        try {
            for (const std::string& path : paths) {
                check_before_writing(path);
            }
            for (const std::string& path : paths) {
                const OpenUpdatePtr update = own_log(path, group.id);
                check_before_writing(path);
                redo_update(engine_, *update, take(path), planned_.at(path));
                done.push_back(log_of(path));
            }
            for (const std::string& path : paths) {
                check_place(path);
            }
            if (!group.leader.empty()) {
                remove({base::join(base::folder_of(log), group.leader)}, group.id);
            }
            remove(done, group.id);
        } catch (const Error& error) {
            if (error.reason() == ErrorCode::kChanged && done.empty()) {
                throw_taken_back(logs, group.id, error, "; nothing was written");
            }
            if (error.reason() == ErrorCode::kChanged && group.leader.empty()) {
                throw_taken_back(logs, group.id, error,
                                 "; the new tensors went into the file that had the name before");
            }
            const std::string what =
                error.reason() == ErrorCode::kChanged
                    ? ". Other shards have their new tensors already. If this one is as you want "
                      "it, remove its log and finish the others: penstock.update(path of another "
                      "shard, {})"
                    : fmt::format(
                          ". The new tensors are in '{}' and are read from there; the next "
                          "update() of '{}' writes them into the file",
                          log, path_);
            throw Error(error.reason(), error.system_errno(), error.operation(), error.path(),
                        error.offset(), error.what() + what);
        }
    }

    // Throws kChanged if the log of this call is gone: a save under the name takes it away.
    OpenUpdatePtr own_log(const std::string& path, std::uint64_t id) const {
        FoundUpdate found = open_update(engine_, files_, log_of(path));
        if (!found.update || found.update->log.id != id) {
            base::raise(base::error(ErrorCode::kChanged, kUpdateFile,
                                    "another program removed its log meanwhile", path));
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
