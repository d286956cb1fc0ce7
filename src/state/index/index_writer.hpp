// SPDX-License-Identifier: Apache-2.0
// Saves an index of shards, whole and durable, or not at all:
//
//   1. removal of leftovers of dead saves of the same index
//   2. a record of the names of the new shards, synced (index_folder.hpp)
//   3. the shards, each whole and durable under its name
//   4. a record of the shards of the old index
//   5. the index replaces the old one: the new state is there, in one step
//   6. removal of the old shards, and then of the records
//
//   killed in      state that a reader finds   removed by the next save, from the records
//   1 to 3         the old state               the new shards, whole or half written
//   4, 5           the old state               the new shards
//   5, 6           the new state               the old shards
//
// Steps 1 and 2, and 4 to 6, are done by one save at a time: a lock of the folder, held for
// moments. Among concurrent saves the last to commit wins. The names of old shards are free after
// step 6, and the next save may take them: a name alone does not identify the save of a file.
#pragma once

#include "format/safetensors.hpp"
#include "format/shard_index.hpp"
#include "state/index/index_folder.hpp"
#include "state/writing/file_image.hpp"
#include "state/writing/replace.hpp"
#include "stream/window_sums.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock::state {

inline constexpr std::uint64_t kShardBytes = 5'000'000'000;  // the default of Hugging Face's
                                                             // writers

/// The tensors of a `.safetensors`, or of several: payload i is tensor i.
struct NamedTensors {
    std::vector<format::safetensors::Tensor> tensors;
    format::safetensors::Metadata metadata;  ///< of each file
    std::vector<FileImage::Payload> payloads;
    std::vector<bool> copies = {};  ///< see FileImage::set_copies()
};

struct IndexOptions {
    std::uint64_t shard_bytes = kShardBytes;
    bool checksums = true;
    bool sync = true;        ///< durable when it returns
    Progress progress = {};  ///< in bytes of all shards
    stream::Watch watch = {};
    std::string* note = nullptr;  ///< see SaveFileOptions
};

/// The tensors of each shard: in their order, as many as fit `shard_bytes`; a larger tensor has a
/// shard of its own.
[[nodiscard]] std::vector<std::vector<std::size_t>> plan_shards(
    std::span<const std::uint64_t> tensor_bytes, std::uint64_t shard_bytes);

/// The names of new shards, and the index that replaces the old one: all steps but the shards
/// themselves. Calls in the order of the steps; one that throws is followed by give_up().
class IndexCommit {
public:
    /// Throws Error kInvalidArgument for a path that an index cannot have.
    IndexCommit(Engine& engine, const FileSystem& files, const std::string& path, bool sync);
    IndexCommit(const IndexCommit&) = delete;
    IndexCommit& operator=(const IndexCommit&) = delete;
    ~IndexCommit() = default;

    [[nodiscard]] const IndexFolder& folder() const { return folder_; }
    /// Throws kInvalidArgument where the folder is a checkpoint of a store.
    void refuse_checkpoint() const;
    /// Steps 1 and 2. The index to commit: its tensors, each with the number of its shard, and the
    /// bytes of each shard. Gives the names of the shards.
    const std::vector<std::string>& begin(format::ShardIndex index,
                                          std::span<const std::size_t> shard_of,
                                          std::span<const std::uint64_t> shard_bytes);
    /// Step 3, around each shard in their order.
    void shard_begins() { ++begun_; }
    void shard_made() { ++made_; }
    /// Steps 4 to 6. Returns a note of shards that the earlier index named, and that stay; or "".
    std::string commit();
    /// After an exception, which is being handled: removes what it left.
    void give_up();

private:
    void remove_made(bool no_memory);
    void remove(const std::vector<std::string>& shards, std::unique_ptr<Replacement>& record);
    [[nodiscard]] std::string note_of_left(const std::vector<std::string>& before) const;

    Engine& engine_;
    const FileSystem& files_;
    IndexFolder folder_;
    bool sync_;
    std::vector<std::string> names_;  // one per shard
    std::size_t begun_ = 0;           // begun so far
    std::size_t made_ = 0;            // finished so far
    std::string text_;                // the index as JSON
    bool may_be_named_ = false;       // by an index that may exist already
    std::unique_ptr<Replacement> new_record_;
    std::unique_ptr<Replacement> old_record_;
};

/// Throws Error: kInvalidArgument for a value that the format cannot hold, ENOSPC before the first
/// byte if the shards do not fit. Then the old index is unchanged, with its shards. Any thread; the
/// tensors must not change meanwhile.
void save_index(Engine& engine, const FileSystem& files, const std::string& path,
                NamedTensors tensors, const IndexOptions& options = {});

}  // namespace penstock::state
