// SPDX-License-Identifier: Apache-2.0
#include "state/index_writer.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/shard_index.hpp"
#include "format/utf8.hpp"
#include "state/file_writer.hpp"
#include "state/index_folder.hpp"
#include "stream/when_room.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
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

class IndexSave {
public:
    IndexSave(Engine& engine, const FileSystem& files, const std::string& path,
              NamedTensors tensors, const IndexOptions& options)
        : engine_(engine),
          files_(files),
          folder_(engine, files, path, options.sync),
          progress_(options.progress),
          sync_(options.sync) {
        check_name(path);
        check_name(folder_.index());
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
            begin();
            refuse_full();
            write_shards();
            commit();
        } catch (const std::exception& error) {
            give_up(is_out_of_memory(error));
            throw;
        } catch (...) {  // thrown by the caller's progress
            give_up(false);
            throw;
        }
    }

private:
    void add(const std::vector<std::size_t>& shard, NamedTensors& from, bool checksums) {
        std::vector<format::safetensors::Tensor> tensors;
        std::vector<FileImage::Payload> payloads;
        for (const std::size_t i : shard) {
            index_.weight_map.emplace_back(from.tensors[i].name, "");
            shard_of_.push_back(images_.size());
            tensors.push_back(std::move(from.tensors[i]));
            payloads.push_back(from.payloads[i]);
            index_.total_bytes = *index_.total_bytes + payloads.back().bytes;
        }
        images_.push_back(FileImage::safetensors(std::move(tensors), from.metadata,
                                                 std::move(payloads), checksums));
        total_bytes_ += images_.back().file().total_bytes();
    }

    void begin() {
        const FileLock alone = folder_.lock();
        const std::set<std::string> taken = folder_.collect();
        names_ = folder_.free_names(images_.size(), taken, alone.held());
        new_record_ = folder_.note(names_);
        for (std::size_t i = 0; i < index_.weight_map.size(); ++i) {
            index_.weight_map[i].second = names_[shard_of_[i]];
        }
        text_ = base::unwrap(format::render_shard_index(index_));
    }

    void give_up(bool no_memory) {
        // A shard whose save failed exists only if its folder could not be synced.
        const std::string* half = no_memory || begun_ == made_ ? nullptr : &names_[made_];
        if (!may_be_named_ && folder_.remove_made(std::span(names_).first(made_), half)) {
            return;
        }
        // The index may exist already, if the sync of its folder failed: then it names them, and
        // they stay.
        remove(names_, new_record_);
    }

    // Checks the room before the first of several files; each also preallocates.
    void refuse_full() const {
        const std::uint64_t free = files_.space(folder_.path()).free_bytes;
        if (total_bytes_ > free) {
            base::raise(base::system_error(
                ENOSPC, "preallocate", folder_.index(), kNoOffset,
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
            ++begun_;
            save_file(engine_, files_, folder_.in(names_[i]), images_[i], part, sync_);
            ++made_;
            before += images_[i].file().total_bytes();
        }
    }

    void commit() {
        const FileLock alone = folder_.lock();
        static_cast<void>(folder_.collect());
        const std::vector<std::string> old = folder_.shards();
        old_record_ = folder_.note(old);
        Replacement index(files_, folder_.index(), Abandoned::kLeave);
        stream::write_when_room(engine_, index.file(), std::as_bytes(std::span(text_)), 0);
        try {
            index.commit(sync_);
        } catch (const std::exception& error) {
            // A rename that failed may have happened all the same, but not one without memory.
            may_be_named_ = index.is_in_place() || !is_out_of_memory(error);
            if (index.is_in_place() || (may_be_named_ && folder_.shards() != old)) {
                old_record_->abandon();  // a power cut may bring the old index back
            }
            throw;
        }
        may_be_named_ = true;
        remove(old, old_record_);  // except those that the new one names
    }

    // Leaves the record of shards that cannot be removed now, for the next save.
    void remove(const std::vector<std::string>& shards, std::unique_ptr<Replacement>& record) {
        if (!folder_.remove(shards) && record) {
            record->abandon();
        }
    }

    Engine& engine_;
    const FileSystem& files_;
    IndexFolder folder_;
    Progress progress_;
    bool sync_;
    format::ShardIndex index_;
    std::vector<std::size_t> shard_of_;  // one per tensor of the index
    std::vector<FileImage> images_;
    std::vector<std::string> names_;  // one per image
    std::size_t begun_ = 0;           // begun so far
    std::size_t made_ = 0;            // finished so far
    std::uint64_t total_bytes_ = 0;   // of all shards
    std::string text_;                // the index as JSON
    bool may_be_named_ = false;       // by an index that may exist already
    std::unique_ptr<Replacement> new_record_;
    std::unique_ptr<Replacement> old_record_;
};

}  // namespace

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
