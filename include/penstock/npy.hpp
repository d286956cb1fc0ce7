// SPDX-License-Identifier: Apache-2.0
// Files of NumPy with one array each (.npy): many of one dtype and shape are read as one array.
//
//     const auto header = penstock::read_npy_header(paths.front());
//     std::vector<std::byte> rows(paths.size() * header.data_bytes);
//     penstock::read_npy(engine, paths, header, rows);
#pragma once

#include <penstock/engine.hpp>
#include <penstock/error.hpp>
#include <penstock/progress.hpp>
#include <penstock/types.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock {

struct NpyHeader {
    std::string dtype;  ///< as NumPy spells it: "<f4", "|u1"; ">f4" if it is big-endian
    std::vector<std::uint64_t> shape;
    std::uint64_t header_bytes = 0;  ///< the elements begin at this byte of the file
    std::uint64_t data_bytes = 0;    ///< of the elements
};

struct NpyOptions {
    CachePolicy cache = CachePolicy::kAuto;
    Progress progress;  ///< of the elements' bytes
};

/// Reads the header of a .npy file. Throws kInvalidArgument for a file that is not .npy,
/// kUnsupported for Fortran order, structured elements, Python objects, or another
/// dtype than bool, int, uint, float, complex, S and U. Any thread; blocks.
[[nodiscard]] PENSTOCK_API NpyHeader read_npy_header(Engine& engine, const std::string& path);

/// Reads the elements of file i to `into`, from byte i * expected.data_bytes on; `into` has
/// `paths.size()` times as many bytes. Any number of files, with few descriptors. Returns the bytes
/// of all elements. Throws the errors of read_npy_header(), kInvalidArgument for the first file
/// whose dtype or shape is not as expected (and for memory of another size), kEndOfFile for a
/// truncated file, and kCancelled if `progress` returns false; the contents of `into` are then
/// undefined. Any thread; blocks.
PENSTOCK_API std::uint64_t read_npy(Engine& engine, std::span<const std::string> paths,
                                    const NpyHeader& expected, Memory into,
                                    const NpyOptions& options = {});

}  // namespace penstock
