// SPDX-License-Identifier: Apache-2.0
#include "store/save_job.hpp"

#include "base/align.hpp"
#include "base/hex.hpp"
#include "base/raise.hpp"
#include "store/placement.hpp"
#include "store/removal.hpp"
#include "store/shard_time.hpp"
#include "store/state_check.hpp"
#include "store/stock_index.hpp"
#include "store/store_folder.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <span>
#include <string_view>
#include <system_error>

namespace penstock::store {

namespace {

// What a file system takes for folders and the ends of files.
constexpr std::uint64_t kSlackBytes = std::uint64_t{64} << 10;
// From here on the manifest is worth a thread.
constexpr std::size_t kTensorsForAThread = 4096;

// A file system without hard links, a file with too many of them, one that may not be linked.
bool cannot_link(const Error& error) {
    switch (error.system_errno()) {
        case EMLINK:
        case EXDEV:
        case EPERM:
        case EACCES:
        case EOPNOTSUPP:
        case ENOSYS:
        case ENOENT:
            return true;
        default:
            return error.reason() == ErrorCode::kUnsupported;
    }
}

void append_note(std::string& note, std::string_view more) {
    if (!more.empty()) {
        note += note.empty() ? "" : "; ";
        note += more;
    }
}

}  // namespace

SaveJob::SaveJob(const SaveContext& context, const State& state, const SaveOptions& options,
                 const LastCheckpoint& last, std::uint64_t generation)
    : context_(context),
      state_(state),
      options_(options),
      last_(last),
      generation_(generation),
      entries_(check_state(state)),
      name_(checkpoint_name(generation, options.step)),
      final_path_(join(context.folders.front(), name_)),
      shard_folders_(context.folders.size()),
      progress_(options.progress, "save checkpoint") {}

SaveJob::~SaveJob() = default;

void SaveJob::run() {
    find_before();
    changed_.assign(state_.tensors.size(), true);
    if (context_.options.checksums) {
        sums_ = std::make_unique<ChunkSums>(state_.tensors);
        changed_ = sums_->compare(before_, last_.manifest.shards, progress_);
    }
    plan();
    if (std::any_of(state_.tensors.begin(), state_.tensors.end(), is_slice)) {
        // That slices do not overlap is the one thing that check_state() leaves open.
        draft_manifest();
        check_draft();
    }
    std::string random;
    base::append_hex(random, context_.random());
    path_ = join(context_.folders.front(), unfinished_name(generation_, random));
    shard_folders_.front() = path_;
    try {
        context_.files.make_folder(path_);
        link_shards();
        place();
        write_files();
        commit();
    } catch (...) {
        take_away();
        throw;
    }
    append_note(note_, writer_->note());
    const std::vector<double> speeds = writer_->speeds();
    context_.speeds.resize(speeds.size(), 0);
    for (std::size_t i = 0; i < speeds.size(); ++i) {
        context_.speeds[i] = speeds[i] > 0 ? speeds[i] : context_.speeds[i];
    }
}

// Of a store's other folders, the one with this checkpoint's shards is made when it is needed.
const std::string& SaveJob::shard_folder(std::uint32_t folder) {
    std::string& path = shard_folders_[folder];
    if (path.empty()) {
        path = join(context_.folders[folder],
                    parts_name(name_, context_.folders.front(), context_.random()));
        context_.files.make_folder(path);
    }
    return path;
}

bool SaveJob::link(const Part& part) {
    const Shard& shard = last_.manifest.shards[part.plan.linked];
    const std::string path = join(shard_folder(part.folder), part.file);
    try {
        context_.files.link(shard_path(last_.manifest, shard, last_.path), path);
    } catch (const Error& error) {
        if (!cannot_link(error)) {
            throw;
        }
        if (note_.empty()) {
            note_ = fmt::format(
                "unchanged shards were written again, for they cannot be linked: {}", error.what());
        }
        return false;
    }
    if (part.folder != 0) {
        context_.files.symbolic_link(path, join(path_, part.file));
    }
    return true;
}

// What cannot be linked is written: its bytes are at hand, and known to be good.
void SaveJob::link_shards() {
    for (Part& part : parts_) {
        if (part.plan.linked != kNoShard && !link(part)) {
            part.plan.linked = kNoShard;
            lay_out(part);
        }
    }
}

std::uint64_t SaveJob::metadata_bytes() const {
    std::uint64_t bytes = 2 * kSlackBytes + state_.structure.size() * 2;
    for (const auto& [key, value] : state_.metadata) {
        bytes += key.size() + value.size() + 8;
    }
    for (const StateTensor& tensor : state_.tensors) {
        // In the manifest with numbers and sums, and in the index.
        bytes += 2 * tensor.name.size() + 160 + 40 * tensor.shape.size() +
                 2 * base::kHexDigits * (tensor.data.size() / kChunkBytes + 1);
    }
    return bytes + parts_.size() * 256;
}

void SaveJob::place() {
    std::vector<FolderRoom> folders;
    for (std::size_t i = 0; i < context_.folders.size(); ++i) {
        const std::string& path = context_.folders[i];
        const FileStatus status = context_.files.status(path);
        folders.push_back(
            {.path = path,
             .bytes_per_second = i < context_.speeds.size() ? context_.speeds[i] : 0,
             .device = std::uint64_t{status.device_major} << 32U | status.device_minor,
             .free_bytes = context_.files.space(path).free_bytes});
    }
    std::vector<Part*> written;
    std::vector<std::uint64_t> bytes;
    for (Part& part : parts_) {
        if (part.plan.linked == kNoShard) {
            written.push_back(&part);
            bytes.push_back(base::align_up(part.layout->file().total_bytes(), base::kPageBytes));
        }
    }
    const std::vector<std::uint32_t> places = place_files(bytes, folders, metadata_bytes());
    for (std::size_t i = 0; i < written.size(); ++i) {
        written[i]->folder = places[i];
    }
}

void SaveJob::write_files() {
    writer_ =
        std::make_unique<ShardWriter>(context_.engine, context_.files, context_.folders.size());
    std::vector<ShardFile> shards;
    std::uint64_t total = 0;
    for (const Part& part : parts_) {
        if (part.plan.linked != kNoShard) {
            continue;
        }
        ShardFile shard{.path = join(shard_folder(part.folder), part.file),
                        .lane = part.folder,
                        .layout = &part.layout->file(),
                        .payloads = {}};
        if (part.folder != 0) {
            context_.files.symbolic_link(shard.path, join(path_, part.file));
        }
        for (const std::size_t i : part.plan.tensors) {
            shard.payloads.push_back(state_.tensors[i].data);
        }
        if (sums_) {
            sums_->want(part.plan.tensors);
        }
        total += shard.layout->total_bytes();
        shards.push_back(std::move(shard));
    }
    progress_.set_total(total);
    draft_beside();
    writer_->write(
        shards,
        [this] {
            if (sums_ && sums_->step()) {
                return true;
            }
            render_texts();
            if (manifest_text_.size() <= context_.engine.options().inline_bytes_max) {
                write_metadata();  // it goes past what waits for the device
            }
            return false;
        },
        progress_);
    if (!has_metadata_) {
        write_metadata();
    }
    writer_->finish();
    set_times();
    progress_.tick(true);
}

void SaveJob::draft_beside() {
    if (state_.tensors.size() >= kTensorsForAThread) {
        try {
            drafting_ = std::async(std::launch::async, [this] { draft_manifest(); });
            return;
        } catch (const std::system_error&) {  // there is no thread: then later, on this one
        }
    }
    drafting_ = std::async(std::launch::deferred, [this] { draft_manifest(); });
}

// After the last write, which has a time of its own. Where it cannot be set, or goes with a power
// cut, the next save writes what it might have linked.
void SaveJob::set_times() {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        const Part& part = parts_[i];
        if (part.plan.linked != kNoShard) {
            continue;
        }
        try {
            context_.files.set_modified(join(shard_folder(part.folder), part.file),
                                        time_of(manifest_.shards[i], manifest_.saved_unix_ns));
        } catch (const Error&) {
            return;
        }
    }
}

void SaveJob::name_folders() {
    std::vector<std::uint32_t> numbers(context_.folders.size(), 0);
    for (std::size_t i = 1; i < shard_folders_.size(); ++i) {
        if (!shard_folders_[i].empty()) {
            numbers[i] = static_cast<std::uint32_t>(manifest_.folders.size());
            manifest_.folders.push_back(shard_folders_[i]);
        }
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        manifest_.shards[i].folder = numbers[parts_[i].folder];
    }
}

void SaveJob::fill_sums() {
    if (!sums_) {
        return;
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        const Part& part = parts_[i];
        if (part.plan.linked != kNoShard) {
            continue;
        }
        Shard& shard = manifest_.shards[i];
        const std::string_view header = part.layout->file().literals();
        shard.header_sum = stream::bind(stream::content_hash(std::as_bytes(std::span(header))),
                                        shard.id, shard.generation, 0);
        for (const std::size_t tensor : part.plan.tensors) {
            Slice& slice = slice_in_manifest(tensor);
            slice.sums = sums_->bound(tensor, shard, slice.begin);
        }
    }
}

void SaveJob::render_texts() {
    drafting_.get();
    name_folders();
    fill_sums();
    index_text_ = base::unwrap(format::render_shard_index(stock_index(manifest_)));
    manifest_text_ = render(manifest_);
    if (!holds_structure(manifest_text_, state_.structure)) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint",
                                "its structure would not come back as it is"));
    }
    if (manifest_text_.size() > kManifestBytesMax) {
        base::raise(base::error(
            ErrorCode::kInvalidArgument, "save checkpoint",
            fmt::format("its manifest would have {} bytes, and {} are what a reader takes; save "
                        "large values as tensors instead of text, or fewer tensors",
                        manifest_text_.size(), kManifestBytesMax)));
    }
}

std::uint64_t SaveJob::manifest_hash() const {
    return stream::content_hash(std::as_bytes(std::span(manifest_text_)));
}

void SaveJob::write_metadata() {
    writer_->write_text(join(path_, kIndexName), index_text_);
    if (options_.pinned) {
        writer_->write_text(join(path_, kPinnedName), "");
    }
    writer_->write_text(join(path_, kManifestName), manifest_text_);
    has_metadata_ = true;
}

void SaveJob::commit() {
    // Before the rename: a folder that cannot be opened (no descriptor is free) must not fail a
    // save whose checkpoint has its name already.
    const Folder store = context_.files.open_folder(context_.folders.front());
    for (std::size_t i = 1; i < shard_folders_.size(); ++i) {
        if (!shard_folders_[i].empty()) {
            context_.files.sync_folder(shard_folders_[i]);
            context_.files.sync_folder(context_.folders[i]);
        }
    }
    context_.files.sync_folder(path_);
    context_.files.rename(path_, final_path_);
    path_ = final_path_;
    store.sync();
}

// What cannot be removed now is collected by the next save.
void SaveJob::take_away() noexcept {
    try {
        writer_.reset();
        if (path_ == final_path_) {
            // The rename is there, and nobody knows whether it would outlive a power cut.
            path_ = join(context_.folders.front(), removed_name(name_));
            context_.files.rename(final_path_, path_);
        }
        Remover(context_.files, context_.folders)
            .take_away(path_.substr(path_.rfind('/') + 1), shard_folders_);
    } catch (const std::exception&) {
        return;
    }
}

}  // namespace penstock::store
