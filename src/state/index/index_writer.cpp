// SPDX-License-Identifier: Apache-2.0
#include "state/index/index_writer.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/shard_index.hpp"
#include "format/utf8.hpp"
#include "state/index/index_folder.hpp"
#include "state/update/checkpoint_folder.hpp"
#include "state/writing/file_writer.hpp"
#include "stream/when_room.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <utility>

namespace penstock::state {

namespace {

void check_name(const std::string& path) {
    if (!format::is_utf8(base::last_name(path))) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "save",
                                "an index names its shards after itself, in JSON, which is UTF-8; "
                                "give it a name of UTF-8",
                                path));
    }
}

bool is_out_of_memory(const std::exception& error) {
    const auto* of_ours = dynamic_cast<const Error*>(&error);
    return of_ours != nullptr ? of_ours->reason() == ErrorCode::kOutOfMemory
                              : dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
}

bool is_there(const FileSystem& files, const std::string& path) {
    try {
        return files.status(path).kind == FileKind::kFile;
    } catch (const Error&) {  // only a note
        return false;
    }
}

class IndexSave {
public:
    IndexSave(Engine& engine, const FileSystem& files, const std::string& path,
              NamedTensors tensors, const IndexOptions& options)
        : engine_(engine),
          files_(files),
          commit_(engine, files, path, options.sync),
          progress_(options.progress),
          sync_(options.sync),
          watch_(options.watch),
          note_(options.note) {
        index_.total_bytes = 0;
        std::vector<std::uint64_t> bytes;
        for (const FileImage::Payload& payload : tensors.payloads) {
            bytes.push_back(payload.bytes);
        }
        for (const auto& shard : plan_shards(bytes, options.shard_bytes)) {
            add(shard, tensors, options.checksums);
        }
    }

    void run() {
        try {
            commit_.refuse_checkpoint();
            begin();
            refuse_full();
            write_shards();
            const std::string note = commit_.commit();
            if (note_ != nullptr) {
                *note_ = note;
            }
        } catch (...) {  // also what the caller's progress throws
            commit_.give_up();
            throw;
        }
    }

private:
    void add(const std::vector<std::size_t>& shard, NamedTensors& from, bool checksums) {
        std::vector<format::safetensors::Tensor> tensors;
        std::vector<FileImage::Payload> payloads;
        std::vector<bool> copies;
        for (const std::size_t i : shard) {
            index_.weight_map.emplace_back(from.tensors[i].name, "");
            shard_of_.push_back(images_.size());
            tensors.push_back(std::move(from.tensors[i]));
            payloads.push_back(from.payloads[i]);
            copies.push_back(!from.copies.empty() && from.copies[i]);
            index_.total_bytes = *index_.total_bytes + payloads.back().bytes;
        }
        images_.push_back(FileImage::safetensors(std::move(tensors), from.metadata,
                                                 std::move(payloads), checksums));
        images_.back().set_copies(std::move(copies));
        tensors_.push_back(shard);
        total_bytes_ += images_.back().file().total_bytes();
    }

    void begin() {
        std::vector<std::uint64_t> bytes;
        for (const FileImage& image : images_) {
            bytes.push_back(image.file().total_bytes());
        }
        names_ = commit_.begin(std::move(index_), shard_of_, bytes);
    }

    // Checks the room before the first of several files; each also preallocates.
    void refuse_full() const {
        const IndexFolder& folder = commit_.folder();
        const std::uint64_t free = files_.space(folder.path()).free_bytes;
        if (total_bytes_ > free) {
            base::raise(base::system_error(
                ENOSPC, "preallocate", folder.index(), kNoOffset,
                fmt::format("the shards need {} bytes and {} are free: {} bytes are missing; "
                            "nothing was written. Free room, or save elsewhere",
                            total_bytes_, free, total_bytes_ - free)));
        }
    }

    void write_shards() {
        std::uint64_t before = 0;
        for (std::size_t i = 0; i < images_.size(); ++i) {
            Progress part;
            if (progress_) {
                part = [this, before](std::uint64_t done, std::uint64_t /*of the shard*/) {
                    return progress_(before + done, total_bytes_);
                };
            }
            commit_.shard_begins();
            save_file(engine_, files_, commit_.folder().in(names_[i]), images_[i], part, sync_,
                      {watch_.changing, stream::renumbered(watch_.look, tensors_[i])});
            commit_.shard_made();
            before += images_[i].file().total_bytes();
        }
    }

    Engine& engine_;
    const FileSystem& files_;
    IndexCommit commit_;
    Progress progress_;
    bool sync_;
    stream::Watch watch_;
    std::string* note_;
    format::ShardIndex index_;
    std::vector<std::size_t> shard_of_;  // one per tensor of the index
    std::vector<FileImage> images_;
    std::vector<std::vector<std::size_t>> tensors_;  // of each image
    std::vector<std::string> names_;                 // one per image
    std::uint64_t total_bytes_ = 0;                  // of all shards
};

}  // namespace

IndexCommit::IndexCommit(Engine& engine, const FileSystem& files, const std::string& path,
                         bool sync)
    : engine_(engine), files_(files), folder_(engine, files, path, sync), sync_(sync) {
    check_name(path);
    check_name(folder_.index());
}

void IndexCommit::refuse_checkpoint() const {
    if (is_checkpoint_folder(files_, base::folder_of(folder_.index()))) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "save",
                                "its folder is a checkpoint of a store, whose shards this index "
                                "would replace; give the path of an index in another folder",
                                folder_.index()));
    }
}

const std::vector<std::string>& IndexCommit::begin(format::ShardIndex index,
                                                   std::span<const std::size_t> shard_of,
                                                   std::span<const std::uint64_t> shard_bytes) {
    const FileLock alone = folder_.lock();
    const std::set<std::string> taken = folder_.collect();
    names_ = folder_.free_names(shard_bytes.size(), taken, alone.held());
    new_record_ = folder_.note(names_);
    for (std::size_t i = 0; i < index.weight_map.size(); ++i) {
        index.weight_map[i].second = names_[shard_of[i]];
    }
    index.mark = folder_.mark_of(names_, shard_bytes);
    text_ = base::unwrap(format::render_shard_index(index));
    return names_;
}

void IndexCommit::give_up() {
    try {
        throw;
    } catch (const std::exception& error) {
        remove_made(is_out_of_memory(error));
    } catch (...) {
        remove_made(false);
    }
}

void IndexCommit::remove_made(bool no_memory) {
    // A shard whose save failed exists only if its folder could not be synced.
    const std::string* half = no_memory || begun_ == made_ ? nullptr : &names_[made_];
    if (!may_be_named_ && folder_.remove_made(std::span(names_).first(made_), half)) {
        return;
    }
    // The index may exist already, if the sync of its folder failed: then it names them, and
    // they stay.
    remove(names_, new_record_);
}

std::string IndexCommit::commit() {
    const FileLock alone = folder_.lock();
    static_cast<void>(folder_.collect());
    const std::vector<std::string> before = folder_.shards();
    const std::vector<std::string> old = folder_.own_shards();
    old_record_ = folder_.note(old);
    Replacement index(files_, folder_.index(), Abandoned::kLeave);
    stream::write_when_room(engine_, index.file(), std::as_bytes(std::span(text_)), 0);
    try {
        index.commit(sync_);
    } catch (const std::exception& error) {
        // A rename that failed may have happened all the same, but not one without memory.
        may_be_named_ = index.is_in_place() || !is_out_of_memory(error);
        if (index.is_in_place() || (may_be_named_ && folder_.shards() != before)) {
            old_record_->abandon();  // a power cut may bring the old index back
        }
        throw;
    }
    may_be_named_ = true;
    remove(old, old_record_);  // except those that the new one names
    return old.empty() ? note_of_left(before) : std::string();
}

// `before`: shards of the earlier index, which stay, for it is not known who wrote them.
std::string IndexCommit::note_of_left(const std::vector<std::string>& before) const {
    std::vector<std::string> left;
    std::copy_if(before.begin(), before.end(), std::back_inserter(left),
                 [&](const std::string& name) {
                     return std::find(names_.begin(), names_.end(), name) == names_.end() &&
                            is_there(files_, folder_.in(name));
                 });
    if (left.empty()) {
        return {};
    }
    const bool one = left.size() == 1;
    const char* const them = one ? "it" : "them";
    return fmt::format(
        "'{}'{} of the earlier index '{}' {} left: it is not known that Penstock "
        "wrote {}, and the new index does not name {}; delete {} yourself when "
        "nothing else needs {}",
        folder_.in(left.front()), one ? "" : fmt::format(" and {} more shards", left.size() - 1),
        folder_.index(), one ? "was" : "were", them, them, them, them);
}

// Leaves the record of shards that cannot be removed now, for the next save.
void IndexCommit::remove(const std::vector<std::string>& shards,
                         std::unique_ptr<Replacement>& record) {
    if (!folder_.remove(shards) && record) {
        record->abandon();
    }
}

std::vector<std::vector<std::size_t>> plan_shards(std::span<const std::uint64_t> tensor_bytes,
                                                  std::uint64_t shard_bytes) {
    std::vector<std::vector<std::size_t>> shards;
    std::uint64_t room = 0;  // left in the last one
    for (std::size_t i = 0; i < tensor_bytes.size(); ++i) {
        if (shards.empty() || tensor_bytes[i] > room) {
            shards.emplace_back();
            room = std::max(shard_bytes, tensor_bytes[i]);
        }
        shards.back().push_back(i);
        room -= tensor_bytes[i];
    }
    return shards;
}

void save_index(Engine& engine, const FileSystem& files, const std::string& path,
                NamedTensors tensors, const IndexOptions& options) {
    IndexSave(engine, files, path, std::move(tensors), options).run();
}

}  // namespace penstock::state
