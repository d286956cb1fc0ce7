// SPDX-License-Identifier: Apache-2.0
// What `penstock checkpoint` works on, whatever form it has: named tensors, where their bytes lie,
// the structure around them, and a way to read and verify them.
#pragma once

#include "store/manifest.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::cli {

struct SourceTensor {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::uint64_t bytes = 0;
    std::string file;          ///< its name, in the source's folder
    std::uint64_t offset = 0;  ///< of its first byte, in the file
    bool in_one_piece = true;  ///< else these are of its first slice
};

struct Verified {
    std::vector<CheckpointProblem> problems;
    std::string note;  ///< what could not be verified, and why; or empty
};

class CheckpointSource {
public:
    CheckpointSource() = default;
    CheckpointSource(const CheckpointSource&) = delete;
    CheckpointSource& operator=(const CheckpointSource&) = delete;
    virtual ~CheckpointSource() = default;

    [[nodiscard]] const std::string& path() const { return path_; }
    /// "checkpoint of a store", "safetensors file", ...
    [[nodiscard]] const std::string& kind() const { return kind_; }
    [[nodiscard]] const std::vector<SourceTensor>& tensors() const { return tensors_; }
    /// As checkpoint/structure.hpp has it; "null": nothing but the tensors.
    [[nodiscard]] const std::string& structure() const { return structure_; }
    [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& metadata() const {
        return metadata_;
    }
    [[nodiscard]] std::uint64_t bytes() const;
    /// Of the file that has a tensor's bytes.
    [[nodiscard]] std::string path_of(const SourceTensor& tensor) const;
    /// What is known of it as a checkpoint of a store.
    [[nodiscard]] virtual const CheckpointInfo* info() const { return nullptr; }
    [[nodiscard]] virtual const store::Manifest* manifest() const { return nullptr; }

    /// Rows [begin, end) of the first dimension; of a tensor without dimensions all of it.
    virtual void read(std::size_t tensor, std::uint64_t begin, std::uint64_t end,
                      std::span<std::byte> into) = 0;
    /// All tensors; into[i] has the bytes of tensor i.
    virtual void read_all(std::span<const std::span<std::byte>> into,
                          const penstock::Progress& progress) = 0;
    /// Whether read() and read_all() check what they read.
    [[nodiscard]] virtual bool checks_reads() const { return false; }
    [[nodiscard]] virtual Verified verify(const penstock::Progress& progress) = 0;

protected:
    std::string path_;
    std::string kind_;
    std::vector<SourceTensor> tensors_;
    std::string structure_ = "null";
    std::vector<std::pair<std::string, std::string>> metadata_;
};

enum class PathForm : std::uint8_t {
    kStore,        ///< a folder of checkpoints
    kCheckpoint,   ///< one of them
    kSafetensors,  ///< a file
    kIndex,        ///< *.index.json
    kTorch,        ///< a .pt, .pth, .bin, .ckpt
};

/// By what is there. Throws kInvalidArgument for what is none of these.
[[nodiscard]] PathForm form_of(const std::string& path);

/// Of a store: the newest whole checkpoint, or `generation`. Throws Error.
[[nodiscard]] std::unique_ptr<CheckpointSource> open_source(
    const std::shared_ptr<Engine>& engine, const std::string& path,
    std::optional<std::uint64_t> generation = std::nullopt);

// The forms that are files (checkpoint_files.cpp, checkpoint_torch.cpp).
[[nodiscard]] std::unique_ptr<CheckpointSource> open_safetensors(
    const std::shared_ptr<Engine>& engine, const std::string& path);
[[nodiscard]] std::unique_ptr<CheckpointSource> open_index(const std::shared_ptr<Engine>& engine,
                                                           const std::string& path);
[[nodiscard]] std::unique_ptr<CheckpointSource> open_torch(const std::shared_ptr<Engine>& engine,
                                                           const std::string& path);

}  // namespace penstock::cli
