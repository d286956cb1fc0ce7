// SPDX-License-Identifier: Apache-2.0
// A checkpoint of a store as a source of tensors, read by the store with its checksums.
#pragma once

#include "state/source.hpp"
#include "store/manifest/manifest.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace penstock::store {

class StoredSource final : public state::Source {
public:
    /// `path`: that of the checkpoint. Throws Error.
    StoredSource(const std::shared_ptr<Engine>& engine, const FileSystem& files,
                 const std::string& path, CachePolicy cache = CachePolicy::kAuto);

    [[nodiscard]] const CheckpointInfo& info() const { return checkpoint_.info(); }
    [[nodiscard]] const Manifest& manifest() const { return manifest_; }

    void read(std::size_t tensor, std::uint64_t begin, std::uint64_t end,
              std::span<std::byte> into) override;
    void read_tensors(std::span<const state::TensorInto> wanted,
                      const stream::ReadFileOptions& options, const Progress& progress) override;
    [[nodiscard]] bool checks_reads() const override { return true; }
    [[nodiscard]] state::Verified verify(const Progress& progress) override;

private:
    Manifest manifest_;
    Checkpoint checkpoint_;
};

/// Whether it is a folder with checkpoints in it.
[[nodiscard]] bool is_store(const FileSystem& files, const std::string& path);

/// Opens a checkpoint; for a store's folder the newest whole one, or `generation`; or any path that
/// state::open_source() takes. `cache`: of a checkpoint; a file takes it with each read. Throws
/// Error.
[[nodiscard]] std::unique_ptr<state::Source> open_source(
    const std::shared_ptr<Engine>& engine, const FileSystem& files, const std::string& path,
    std::optional<std::uint64_t> generation = std::nullopt, CachePolicy cache = CachePolicy::kAuto);

}  // namespace penstock::store
