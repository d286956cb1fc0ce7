// SPDX-License-Identifier: Apache-2.0
// One file that is about to be written: its layout, the memory of its payloads, and its checksums.
// Every offset is known when it is made; the sums are not, and a range of the file may be written
// once its sums are set.
//
//   .pt           the CRC-32 of each storage, in its local header and in the directory
//   .safetensors  XXH3 of each 256 KiB of each tensor, in one string of the metadata
//                (sum_table.hpp), which other readers ignore
//
// The writer of the file hashes the payloads piece by piece, in any order and on any threads
// (hash), and sets the sums of a payload when it has all of them (set_sums, one thread).
#pragma once

#include "format/file_layout.hpp"
#include "format/safetensors.hpp"
#include "format/torch_file.hpp"
#include "format/value.hpp"

#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace penstock::state {

/// Data that is in the file already, in the order of its tensors.
struct WrittenData {
    std::uint64_t begin = 0;        ///< offset in the file; 0: it is not there
    std::uint64_t piece_bytes = 0;  ///< of its sums
};

class FileImage {
public:
    using Payload = ConstMemory;  ///< of the host or of a GPU

    /// A `.pt`: payload i is storage i of the tree. `folder`: the archive's own name ("archive", or
    /// the file's stem). A payload has the size of its storage. Throws Error kInvalidArgument for a
    /// value that the format cannot hold.
    [[nodiscard]] static FileImage torch_zip(format::ValueTree tree, const std::string& folder,
                                             std::vector<Payload> payloads,
                                             const format::PickleOptions& options = {});
    /// A `.safetensors`: payload i is tensor i. Throws as torch_zip().
    [[nodiscard]] static FileImage safetensors(std::vector<format::safetensors::Tensor> tensors,
                                               format::safetensors::Metadata metadata,
                                               std::vector<Payload> payloads, bool checksums = true,
                                               const WrittenData& written = {});

    [[nodiscard]] const format::FileLayout& file() const;
    [[nodiscard]] std::uint64_t payload_bytes() const;
    [[nodiscard]] std::span<const Payload> payloads() const { return payloads_; }
    /// Uses other memory with the same payloads (staged copies): as many, each of its size.
    void replace_payloads(std::vector<Payload> payloads);
    /// Payloads that are copies, which nobody changes. Empty: none is.
    void set_copies(std::vector<bool> copies) { copies_ = std::move(copies); }
    [[nodiscard]] bool is_copy(std::size_t payload) const {
        return !copies_.empty() && copies_[payload];
    }
    /// A payload as the user knows it, for errors: "tensor 'w'", or the place in the state of the
    /// first tensor in this storage.
    [[nodiscard]] std::string name_of(std::size_t payload) const;

    // ---- checksums
    /// Payloads are hashed in pieces of so many bytes, cut from the beginning of each; 0: the file
    /// has no sums.
    [[nodiscard]] std::uint64_t piece_bytes() const { return piece_bytes_; }
    /// Pieces may be cut shorter anywhere (CRCs of any pieces can be combined).
    [[nodiscard]] bool takes_cuts() const;
    [[nodiscard]] std::uint64_t hash(std::span<const std::byte> piece) const;
    /// Payloads whose sums a range of the file holds: set them before it is written.
    [[nodiscard]] std::vector<std::size_t> sums_in(format::FileRange range) const;
    /// `sums`: hash() of each piece of it, in order, and the bytes of each. Each payload once, each
    /// time that the file is written.
    void set_sums(std::size_t payload, std::span<const std::uint64_t> sums,
                  std::span<const std::uint64_t> bytes);

private:
    FileImage() = default;

    std::variant<format::torch_file::Layout, format::safetensors::Layout> layout_;
    std::vector<Payload> payloads_;
    std::vector<bool> copies_;
    format::ValueTree tree_;  // of a `.pt`, for names
    std::uint64_t piece_bytes_ = 0;
    // .safetensors: the table while it is gathered.
    format::safetensors::Metadata metadata_;
    std::vector<std::vector<std::uint64_t>> sums_;
    std::size_t sums_missing_ = 0;
};

}  // namespace penstock::state
