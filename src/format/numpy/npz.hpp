// SPDX-License-Identifier: Apache-2.0
// A `.npz`: the zip of numpy.savez(), each record of which is a .npy. It is read as a `.pt` is: the
// state is a dict of tensors, and the storage of each is the elements in its record.
#pragma once

#include "format/byte_source.hpp"
#include "format/torch_file.hpp"
#include "format/zip/zip.hpp"

#include <vector>

namespace penstock::format::npz {

/// Whether the records are those of a `.npz`: arrays, and no state of torch.
[[nodiscard]] bool is_npz(const std::vector<zip::Record>& records);

/// Reads the header of each array. The CRC of a storage is that of its elements alone. Errors: what
/// npy::read_header() refuses, with the name of the array; kUnsupported for text, and for a record
/// that is no array.
[[nodiscard]] Result<torch_file::File> read(ByteSource& source, std::vector<zip::Record> records);

}  // namespace penstock::format::npz
