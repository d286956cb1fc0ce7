// SPDX-License-Identifier: Apache-2.0
// The header of NumPy's files of one array (.npy, versions 1 to 3), from any bytes. Pure.
//
//   \x93NUMPY, major, minor, length of the text (2 bytes; 4 from version 2 on), text, elements
//
// The text is a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
#pragma once

#include "format/fault.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::format::npy {

/// Bytes from which header_bytes() can tell.
inline constexpr std::uint64_t kStartBytes = 12;
/// Longer ones are refused; what NumPy writes has 128 bytes.
inline constexpr std::uint64_t kHeaderBytesMax = std::uint64_t{64} << 10;

struct Header {
    std::string dtype;  ///< "<f4"; ">f4" if it is big-endian
    std::vector<std::uint64_t> shape;
    std::uint64_t header_bytes = 0;  ///< the elements begin here
    std::uint64_t data_bytes = 0;    ///< below 2^61
};

/// The bytes of the header, by the start of the file (fewer than kStartBytes where it ends there).
[[nodiscard]] Result<std::uint64_t> header_bytes(std::span<const std::byte> start);

/// `file`: at least the header, or all of the file. kUnsupported for what is no block of plain
/// numbers or characters in C order, with the reason; and for big-endian elements, but where the
/// caller takes them as they are (`big_endian`).
[[nodiscard]] Result<Header> read_header(std::span<const std::byte> file, bool big_endian = false);

}  // namespace penstock::format::npy
