// SPDX-License-Identifier: Apache-2.0
#include "store/write/save.hpp"

#include "base/align.hpp"
#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "store/keep/store_folder.hpp"
#include "store/manifest/manifest_check.hpp"
#include "store/manifest/metadata.hpp"
#include "store/write/metadata_writer.hpp"
#include "store/write/placement.hpp"
#include "store/write/shard_time.hpp"
#include "store/write/shard_writer.hpp"
#include "store/write/state_check.hpp"
#include "stream/checksum.hpp"
#include "stream/window_sums.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <span>
#include <string_view>
#include <utility>

namespace penstock::store {

namespace {

// A file system may have no hard links, and a file too many of them; it may not be linked, or its
// checkpoint may be one that the system does not give at all. Its bytes are at hand in each case.
// On a disk that takes no more, they would not be written either.
bool cannot_link(const Error& error) {
    const int number = error.system_errno();
    return number != ENOSPC && number != EDQUOT && number != EROFS && may_concern_it_alone(error);
}

// Checks whether a shard can be linked: it has its size, lies in a folder of this store, and was
// not written to since.
ShardThere look_at(const SaveContext& context, const LastCheckpoint& last, const Shard& shard) {
    ShardThere there;
    if (shard.folder != 0) {
        const std::string& parts = last.manifest.folders.at(shard.folder);
        const auto base =
            std::find(context.folders.begin() + 1, context.folders.end(), base::folder_of(parts));
        if (base == context.folders.end()) {
            return there;
        }
        there.folder = static_cast<std::uint32_t>(base - context.folders.begin());
    }
    try {
        const std::string path = shard_path(last.manifest, shard, last.path);
        const FileStatus status = context.files.status(path);
        if (status.kind == FileKind::kFile && status.bytes == shard.bytes) {
            there.linkable = has_its_time(shard, status, last.manifest.saved_unix_ns);
            there.edited = there.linkable ? "" : path;
        }
    } catch (const Error&) {  // then it is written
        return there;
    }
    return there;
}

// Looks only for shards that hold a known tensor.
std::vector<ShardThere> shards_there(const SaveContext& context, const SavePlan& plan) {
    const LastCheckpoint& last = plan.last;
    std::vector<ShardThere> there(last.path.empty() ? 0 : last.manifest.shards.size());
    if (std::any_of(plan.before.begin(), plan.before.end(), [](auto* slice) { return slice; })) {
        std::transform(last.manifest.shards.begin(), last.manifest.shards.end(), there.begin(),
                       [&](const Shard& shard) { return look_at(context, last, shard); });
    }
    return there;
}

// Checks that slices do not overlap: check_state() checks everything else.
void check_slices(const SaveContext& context, const SavePlan& plan) {
    if (!std::any_of(plan.state.tensors.begin(), plan.state.tensors.end(), is_slice)) {
        return;
    }
    const ManifestDraft draft(plan, context.random);
    if (const std::string wrong = check_manifest(draft.manifest()); !wrong.empty()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint", wrong));
    }
}

bool link(const SaveContext& context, const SavePlan& plan, const SavePart& part,
          UnfinishedFolder& folder, std::string& note) {
    const LastCheckpoint& last = plan.last;
    const std::string path = folder.shard_path(part.folder, part.file);
    try {
        context.files.link(shard_path(last.manifest, last.manifest.shards[part.linked], last.path),
                           path);
    } catch (const Error& error) {
        if (!cannot_link(error)) {
            throw;
        }
        if (note.empty()) {
            note = fmt::format("unchanged shards were written again, for they cannot be linked: {}",
                               error.what());
        }
        return false;
    }
    folder.point_to(part.folder, part.file);
    return true;
}

// Shards that cannot be linked are written: their bytes are at hand, and known to be good.
bool link_shards(const SaveContext& context, SavePlan& plan, UnfinishedFolder& folder) {
    bool all = true;
    for (SavePart& part : plan.parts) {
        if (!part.is_written() && !link(context, plan, part, folder, plan.note)) {
            write_instead(plan, part);
            all = false;
        }
    }
    return all;
}

std::vector<ShardFile> files_to_write(const SavePlan& plan, UnfinishedFolder& folder) {
    std::vector<ShardFile> files;
    for (const SavePart& part : plan.parts) {
        if (!part.is_written()) {
            continue;
        }
        ShardFile& file = files.emplace_back();
        file.path = folder.shard_path(part.folder, part.file);
        file.queue = part.folder;
        file.layout = &part.layout->file();
        file.sources = part.tensors;
        for (const std::size_t i : part.tensors) {
            file.payloads.push_back(plan.state.tensors[i].data);
        }
        folder.point_to(part.folder, part.file);
    }
    return files;
}

// One source per tensor of the state; those that are not written have no bytes.
std::vector<stream::WindowSums::Source> sources_of(const SavePlan& plan) {
    std::vector<stream::WindowSums::Source> sources(plan.state.tensors.size());
    for (const SavePart& part : plan.parts) {
        for (std::size_t k = 0; part.is_written() && k < part.tensors.size(); ++k) {
            const StateTensor& tensor = plan.state.tensors[part.tensors[k]];
            sources[part.tensors[k]] = {tensor.data,
                                        part.layout->data_begin() + part.layout->tensors()[k].begin,
                                        tensor.is_copy};
        }
    }
    return sources;
}

stream::WindowSums::Options sums_options(const SavePlan& plan, bool summed,
                                         const std::string& path) {
    stream::WindowSums::Options options;
    options.piece_bytes = kChunkBytes;
    if (summed) {
        options.hash = stream::content_hash;
    }
    options.watch = plan.watch;
    options.name = [&plan](std::size_t tensor) {
        return fmt::format("tensor {}", format::shown(plan.state.tensors[tensor].name));
    };
    options.path = path;
    return options;
}

// A tensor that did not change since the last checkpoint does not change during the save either.
void expect_unchanged(const SavePlan& plan, const ChunkSums& known, stream::WindowSums& sums) {
    for (const SavePart& part : plan.parts) {
        for (const std::size_t i : part.tensors) {
            if (part.is_written() && !plan.changed[i]) {
                sums.expect(i, known.contents(i));
            }
        }
    }
}

// Runs after the last write, which sets a time of its own. If the time cannot be set, or is lost in
// a power cut, the next save writes what it might have linked.
void set_times(const FileSystem& files, const SavePlan& plan, const Manifest& manifest,
               UnfinishedFolder& folder) {
    for (std::size_t i = 0; i < plan.parts.size(); ++i) {
        const SavePart& part = plan.parts[i];
        if (!part.is_written()) {
            continue;
        }
        try {
            files.set_modified(folder.shard_path(part.folder, part.file),
                               time_of(manifest.shards[i], manifest.saved_unix_ns));
        } catch (const Error&) {
            return;
        }
    }
}

void learn_speeds(std::vector<double>& known, const std::vector<double>& seen) {
    known.resize(seen.size(), 0);
    for (std::size_t i = 0; i < seen.size(); ++i) {
        known[i] = seen[i] > 0 ? seen[i] : known[i];
    }
}

}  // namespace

std::int64_t now_unix_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

void append_note(std::string& note, std::string_view more) {
    if (!more.empty()) {
        note += note.empty() ? "" : "; ";
        note += more;
    }
}

SavePlan plan_save(const SaveContext& context, const State& state, const SaveOptions& options,
                   const LastCheckpoint& last, std::uint64_t generation, StateSums& sums,
                   stream::ProgressClock& progress, ShareOfRank share) {
    SavePlan plan{.state = state,
                  .last = last,
                  .generation = generation,
                  .step = options.step,
                  .pinned = options.pinned,
                  .metadata = metadata_of(options, state),
                  .entries = check_state(state),
                  .before = {},
                  .changed = {},
                  .parts = {},
                  .watch = {options.changing, options.look},
                  .note = {},
                  .store = context.store,
                  .saved_unix_ns = now_unix_ns(),
                  .share = std::move(share)};
    plan.before.assign(state.tensors.size(), nullptr);
    plan.changed.assign(state.tensors.size(), true);
    if (context.options.checksums) {
        if (context.options.incremental && !last.path.empty()) {
            plan.before = find_before(state, last.manifest);
        }
        sums.emplace(state.tensors);
        look_at_all(plan.state, plan.watch.look, context.folders.front());
        plan.changed = sums->compare(plan.before, last.manifest.shards, progress);
    }
    plan_parts(plan, shards_there(context, plan), context.options.shard_bytes,
               context.folders.size());
    check_slices(context, plan);
    return plan;
}

std::vector<std::uint64_t> place_shards(const SaveContext& context, SavePlan& plan) {
    std::vector<FolderRoom> folders;
    for (std::size_t i = 0; i < context.folders.size(); ++i) {
        const std::string& path = context.folders[i];
        const FileStatus status = context.files.status(path);
        folders.push_back(
            {.path = path,
             .bytes_per_second = i < context.speeds.size() ? context.speeds[i] : 0,
             .device = std::uint64_t{status.device.major} << 32U | status.device.minor,
             .free_bytes = context.files.space(path).free_bytes});
    }
    std::vector<SavePart*> written;
    std::vector<std::uint64_t> bytes;
    for (SavePart& part : plan.parts) {
        if (part.is_written()) {
            written.push_back(&part);
            bytes.push_back(base::align_up(part.layout->file().total_bytes(), base::kPageBytes));
        }
    }
    const std::vector<std::uint32_t> places = place_files(bytes, folders, metadata_bytes(plan));
    std::vector<std::uint64_t> needed(folders.size(), 0);
    needed.front() = metadata_bytes(plan);
    for (std::size_t i = 0; i < written.size(); ++i) {
        written[i]->folder = places[i];
        needed[places[i]] += bytes[i];
    }
    return needed;
}

WrittenShards write_shards(const SaveContext& context, SavePlan&& plan, UnfinishedFolder& folder,
                           StateSums& sums, stream::ProgressClock& progress) {
    WrittenShards out;
    if (!link_shards(context, plan, folder)) {
        static_cast<void>(place_shards(context, plan));  // more is written than was planned
    }
    const std::vector<ShardFile> files = files_to_write(plan, folder);
    std::uint64_t total = 0;
    for (const ShardFile& file : files) {
        total += file.layout->total_bytes();
    }
    progress.set_total(total);
    ShardWriter writer(context.engine, context.files, context.folders.size());
    stream::WindowSums written(sources_of(plan),
                               sums_options(plan, sums.has_value(), context.folders.front()));
    if (sums && plan.watch.changing == Changing::kFails) {
        expect_unchanged(plan, *sums, written);
        // A tensor with the sum of the last checkpoint is linked, and not looked at again.
        look_at_all(plan.state, plan.watch.look, context.folders.front());
    }
    MetadataWriter metadata(plan, folder, sums ? &*sums : nullptr, written, writer,
                            context.engine.options().inline_bytes_max, context.random);
    writer.write(
        files, written, [&] { metadata.make(); }, progress);
    metadata.finish();
    writer.finish();
    out.manifest = metadata.take_manifest();
    out.manifest_hash = metadata.manifest_hash();
    set_times(context.files, plan, out.manifest, folder);
    progress.tick(true);
    out.note = std::move(plan.note);
    append_note(out.note, writer.note());
    learn_speeds(context.speeds, writer.speeds());
    return out;
}

void commit(UnfinishedCheckpoint& folder, bool shared) {
    try {
        folder.give_name(shared);
    } catch (const Error& error) {
        throw explained_rename(error);
    }
}

}  // namespace penstock::store
