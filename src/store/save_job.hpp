// SPDX-License-Identifier: Apache-2.0
// One save, under the store's lock:
//
//   1. which tensors changed; which shards are linked, which are written, and with what in them
//   2. a folder of a name that no reader looks at; links
//   3. is there room? Nothing is written before that is known
//   4. shards, each preallocated, written, made durable; sums, index and manifest are made
//      meanwhile and written behind them, as durable
//   5. the shards' times set; the folders' names durable; rename to the name that readers look for;
//      its parent durable
//
// In which order the files of 4 become durable is of no account: nobody looks for them before 5.
// Whatever fails before the end of 5: everything is taken away, and what was there before stays.
#pragma once

#include "format/safetensors.hpp"
#include "store/chunk_sums.hpp"
#include "store/manifest.hpp"
#include "store/shard_writer.hpp"
#include "store/shards.hpp"
#include "stream/progress_clock.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::store {

/// Of the store; outlives the job.
struct SaveContext {
    Engine& engine;
    const FileSystem& files;
    const std::vector<std::string>& folders;
    const StoreOptions& options;
    std::function<std::uint64_t()> random;
    std::vector<double>& speeds;  ///< of each folder, bytes a second; 0: not known
};

/// The checkpoint that shards may be linked from; empty path: none.
struct LastCheckpoint {
    Manifest manifest;
    std::string path;
    std::uint64_t hash = 0;  ///< stream::content_hash() of its manifest's text
};

class SaveJob {
public:
    SaveJob(const SaveContext& context, const State& state, const SaveOptions& options,
            const LastCheckpoint& last, std::uint64_t generation);
    SaveJob(const SaveJob&) = delete;
    SaveJob& operator=(const SaveJob&) = delete;
    ~SaveJob();

    /// Throws Error; then nothing is left of it.
    void run();

    // Afterwards.
    [[nodiscard]] const Manifest& manifest() const { return manifest_; }
    [[nodiscard]] Manifest take_manifest() { return std::move(manifest_); }
    [[nodiscard]] const std::string& path() const { return final_path_; }
    /// content_hash() of the manifest as it was written.
    [[nodiscard]] std::uint64_t manifest_hash() const;
    /// Empty, or what was out of the ordinary.
    [[nodiscard]] const std::string& note() const { return note_; }

private:
    struct Part {  // a shard of the new checkpoint
        ShardPlan plan;
        std::unique_ptr<format::safetensors::Layout> layout;  // of one that is written
        std::uint32_t folder = 0;                             // of the store's
        std::string file;
    };

    void find_before();
    void plan();
    [[nodiscard]] bool is_linkable(const Shard& shard, std::uint32_t& folder,
                                   std::string& edited) const;
    void lay_out(Part& part);
    void draft_manifest();
    void check_draft() const;
    void add_shard(const Part& part);
    [[nodiscard]] Slice& slice_in_manifest(std::size_t tensor);

    const std::string& shard_folder(std::uint32_t folder);
    bool link(const Part& part);
    void link_shards();
    void place();
    [[nodiscard]] std::uint64_t metadata_bytes() const;
    void write_files();
    void draft_beside();
    void set_times();
    void name_folders();
    void fill_sums();
    void render_texts();
    void write_metadata();
    void commit();
    void take_away() noexcept;

    const SaveContext& context_;
    const State& state_;
    const SaveOptions& options_;
    const LastCheckpoint& last_;
    const std::uint64_t generation_;
    const std::vector<format::safetensors::Tensor> entries_;  // as in a shard, by tensor
    const std::string name_;
    const std::string final_path_;
    std::string path_;                        // where it is now
    std::vector<std::string> shard_folders_;  // of each folder: where its shards are, or empty
    std::vector<const Slice*> before_;        // of each tensor, in last_, or nullptr
    std::vector<bool> changed_;
    std::vector<Part> parts_;
    Manifest manifest_;
    std::vector<std::pair<std::size_t, std::size_t>> slice_of_;  // tensor -> manifest's, slice
    std::future<void> drafting_;  // of the manifest, on a thread of its own
    std::string index_text_;
    std::string manifest_text_;
    bool has_metadata_ = false;
    stream::ProgressClock progress_;
    std::unique_ptr<ChunkSums> sums_;
    std::unique_ptr<ShardWriter> writer_;
    std::string note_;
};

}  // namespace penstock::store
