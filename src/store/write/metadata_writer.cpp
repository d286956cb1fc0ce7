// SPDX-License-Identifier: Apache-2.0
#include "store/write/metadata_writer.hpp"

#include "base/raise.hpp"
#include "base/text/hex.hpp"
#include "format/shard_index.hpp"
#include "store/keep/store_folder.hpp"
#include "store/manifest/metadata.hpp"
#include "store/manifest/stock_index.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <span>
#include <system_error>

namespace penstock::store {

namespace {

// Space that a file system uses for folders and the ends of files.
constexpr std::uint64_t kSlackBytes = std::uint64_t{64} << 10;
// Tensors from which on a thread for the manifest pays.
constexpr std::size_t kTensorsForAThread = 4096;

}  // namespace

std::uint64_t metadata_bytes(const SavePlan& plan) {
    std::uint64_t bytes = 2 * kSlackBytes + plan.state.structure.size() * 2;
    bytes += 2 * bytes_of(plan.metadata) + plan.metadata.size() * 32;
    for (const StateTensor& tensor : plan.state.tensors) {
        // Each tensor is in the manifest with numbers and sums, and in the index.
        bytes += 2 * tensor.name.size() + 160 + 40 * tensor.shape.size() +
                 2 * base::kHexDigits * (tensor.data.bytes / kChunkBytes + 1);
    }
    return bytes + plan.parts.size() * 256;
}

MetadataTexts render_texts(const Manifest& manifest) {
    MetadataTexts texts{.index = base::unwrap(format::render_shard_index(stock_index(manifest))),
                        .manifest = render(manifest)};
    if (!holds_structure(texts.manifest, manifest.structure)) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint",
                                "its structure would not come back as it is"));
    }
    if (texts.manifest.size() > kManifestBytesMax) {
        base::raise(base::error(
            ErrorCode::kInvalidArgument, "save checkpoint",
            fmt::format("its manifest would have {} bytes, and {} are what a reader takes; save "
                        "large values as tensors instead of text, or fewer tensors",
                        texts.manifest.size(), kManifestBytesMax)));
    }
    return texts;
}

MetadataWriter::MetadataWriter(const SavePlan& plan, const UnfinishedFolder& folder,
                               ChunkSums* sums, const stream::WindowSums& written,
                               ShardWriter& writer, std::uint64_t early_bytes_max,
                               const std::function<std::uint64_t()>& random)
    : plan_(plan),
      folder_(folder),
      sums_(sums),
      written_sums_(written),
      writer_(writer),
      early_bytes_max_(early_bytes_max) {
    begin_draft(random);
}

void MetadataWriter::begin_draft(const std::function<std::uint64_t()>& random) {
    const auto draft = [this, &random] { draft_.emplace(plan_, random); };
    if (plan_.state.tensors.size() >= kTensorsForAThread) {
        try {
            drafting_ = std::async(std::launch::async, draft);
            return;
        } catch (const std::system_error&) {  // no thread can be started: drafted later, on this
                                              // one
        }
    }
    drafting_ = std::async(std::launch::deferred, draft);
}

void MetadataWriter::make() {
    drafting_.get();
    draft_->name_folders(plan_, folder_.shard_folders());
    if (sums_ != nullptr) {
        draft_->fill_sums(plan_, *sums_, written_sums_);
    }
    texts_ = render_texts(draft_->manifest());
    if (texts_.manifest.size() <= early_bytes_max_) {
        write();  // passes the transfers that wait for the device
    }
}

void MetadataWriter::finish() {
    if (!is_written_) {
        write();
    }
}

void MetadataWriter::write() {
    if (!plan_.share.name.empty()) {
        writer_.write_text(join(folder_.path(), plan_.share.name), texts_.manifest);
        is_written_ = true;
        return;
    }
    writer_.write_text(join(folder_.path(), format::kShardIndexName), texts_.index);
    if (plan_.pinned) {
        writer_.write_text(join(folder_.path(), kPinnedName), "");
    }
    writer_.write_text(join(folder_.path(), kManifestName), texts_.manifest);
    is_written_ = true;
}

std::uint64_t MetadataWriter::manifest_hash() const {
    return stream::content_hash(std::as_bytes(std::span(texts_.manifest)));
}

}  // namespace penstock::store
