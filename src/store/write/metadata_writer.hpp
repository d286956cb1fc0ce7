// SPDX-License-Identifier: Apache-2.0
// Index, manifest and pin of a save, made while its shards are written: a draft of the manifest on
// a thread, and the texts when all sums are known.
#pragma once

#include "store/keep/unfinished.hpp"
#include "store/manifest/manifest_draft.hpp"
#include "store/write/chunk_sums.hpp"
#include "store/write/save_plan.hpp"
#include "store/write/shard_writer.hpp"
#include "stream/window_sums.hpp"

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>

namespace penstock::store {

/// Disk space that index and manifest will need, estimated; never less than they need.
[[nodiscard]] std::uint64_t metadata_bytes(const SavePlan& plan);

/// The texts of a manifest and of the index that follows from it.
struct MetadataTexts {
    std::string index;
    std::string manifest;
};
/// Throws kInvalidArgument for a structure that would not come back, and for too large a manifest.
[[nodiscard]] MetadataTexts render_texts(const Manifest& manifest);

class MetadataWriter {
public:
    /// All outlive it. sums: nullptr: without checksums; `written`: of what the shards got.
    /// `early_bytes_max`: a manifest of at most that many bytes is written while shards still wait
    /// for the device.
    MetadataWriter(const SavePlan& plan, const UnfinishedFolder& folder, ChunkSums* sums,
                   const stream::WindowSums& written, ShardWriter& writer,
                   std::uint64_t early_bytes_max, const std::function<std::uint64_t()>& random);

    /// Makes the texts, when the sums of all shards are known. Throws Error.
    void make();
    /// Writes what make() did not. Throws Error.
    void finish();

    // Valid after finish().
    [[nodiscard]] Manifest take_manifest() { return draft_->take(); }
    /// stream::content_hash() of the manifest as written.
    [[nodiscard]] std::uint64_t manifest_hash() const;

private:
    void begin_draft(const std::function<std::uint64_t()>& random);
    void write();

    const SavePlan& plan_;
    const UnfinishedFolder& folder_;
    ChunkSums* const sums_;
    const stream::WindowSums& written_sums_;
    ShardWriter& writer_;
    const std::uint64_t early_bytes_max_;
    std::optional<ManifestDraft> draft_;
    MetadataTexts texts_;
    bool is_written_ = false;
    std::future<void> drafting_;  // on a thread of its own
};

}  // namespace penstock::store
