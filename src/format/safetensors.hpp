// SPDX-License-Identifier: Apache-2.0
// safetensors: u64 N, N bytes of JSON, then the tensors, packed, to the end of the file.
//
// The format has no gaps: each tensor begins where the previous one ends. Alignment is possible in
// two ways. The JSON may end in spaces, so that the data begins at a multiple of 4 KiB (64 bytes
// below 1 MiB of data). And tensors whose size is divisible by a larger power of two (up to 4 KiB)
// come first, so that each begins at a multiple of the power that divides its own size: a weight of
// 4096 columns at 4 KiB, every tensor at least at a multiple of its element.
//
// Reading is stricter than in the reference implementation in one point: duplicate names are an
// error. The other rules are the same: no holes, no overlap, nothing after the last tensor, header
// <= 100 MB.
#pragma once

#include "format/fault.hpp"
#include "format/file_layout.hpp"
#include "tensor/element_type.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::format::safetensors {

inline constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // the reference's
inline constexpr std::size_t kRankMax = 64;                    // torch's own limit

using Metadata = std::vector<std::pair<std::string, std::string>>;

struct Tensor {
    std::string name;
    tensor::ElementType type = tensor::ElementType::kU8;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin = 0;  ///< from the start of the data; a layout sets it
    std::uint64_t end = 0;
};

/// The format's spelling: "F32", "BF16", "F8_E4M3"; empty if it has no such type.
[[nodiscard]] std::string_view name_of(tensor::ElementType type);
[[nodiscard]] std::optional<tensor::ElementType> type_named(std::string_view name);

using penstock::bytes_of;

/// Spaces that a layout leaves at the end of its header, at least. Others round theirs up to 8
/// bytes, so a header with fewer is not a layout's, whatever metadata it has taken over.
inline constexpr std::uint64_t kPaddingMin = 8;

struct LayoutOptions {
    /// Extra room in the header, for metadata that is known later (checksums).
    std::uint64_t reserve_bytes = 0;
    /// The tensors are in the data in their given order, which begins here; 0: the layout decides.
    std::uint64_t data_begin = 0;
};

/// A file about to be written. Payload i of `file()` is tensor i as given, in any order of the
/// data.
class Layout {
public:
    /// Errors: a duplicate or reserved name, invalid UTF-8, a type that the format lacks, a header
    /// past its limit.
    [[nodiscard]] static Result<Layout> make(std::vector<Tensor> tensors,
                                             const Metadata& metadata = {},
                                             const LayoutOptions& options = {});

    [[nodiscard]] const FileLayout& file() const noexcept { return file_; }
    /// The tensors in their given order, with begin and end.
    [[nodiscard]] const std::vector<Tensor>& tensors() const noexcept { return tensors_; }
    [[nodiscard]] std::uint64_t data_begin() const noexcept { return data_begin_; }
    /// Writes another header of the same size: no offset moves. Error: it does not fit into the
    /// reserve.
    [[nodiscard]] Result<void> set_metadata(const Metadata& metadata);

private:
    std::vector<Tensor> tensors_;
    std::vector<std::size_t> order_;  // order of the data
    FileLayout file_;
    std::uint64_t data_begin_ = 0;
};

struct Header {
    std::vector<Tensor> tensors;  ///< in the order of the data
    Metadata metadata;
    bool has_metadata = false;  ///< it may be empty
    std::uint64_t data_begin = 0;
    /// It has metadata, and is byte for byte what a layout writes, kPaddingMin included.
    bool is_of_layout = false;
};

/// The JSON of a header, without padding. `order`: of the data.
[[nodiscard]] std::string header_text(const std::vector<Tensor>& tensors,
                                      const std::vector<std::size_t>& order,
                                      const Metadata& metadata);

/// The size of the JSON from the first 8 bytes of a file, checked against the file's.
[[nodiscard]] Result<std::uint64_t> header_bytes(std::span<const std::byte> head,
                                                 std::uint64_t file_bytes);
/// Parses the JSON, of the size that header_bytes() returned.
[[nodiscard]] Result<Header> parse_header(std::span<const std::byte> json,
                                          std::uint64_t file_bytes);
/// Does both, for a whole file (or its beginning: `file_bytes` is its size).
[[nodiscard]] Result<Header> read_header(std::span<const std::byte> file, std::uint64_t file_bytes);

}  // namespace penstock::format::safetensors
