// SPDX-License-Identifier: Apache-2.0
// A checkpoint's folder as torch.distributed.checkpoint's HuggingFaceStorageReader takes it: from
// the safetensors files alone. python/tests reads such folders with that reader itself.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace penstock::test {

struct StockTensor {
    std::vector<std::uint64_t> shape;  ///< as far as its slices reach
    std::vector<std::byte> data;       ///< 0xEE where no slice is
};

/// The files' tensors, joined by name. Throws std::runtime_error where that reader would raise, and
/// where two slices have one place, of which it would take either.
[[nodiscard]] std::map<std::string, StockTensor> read_as_stock(Engine& engine,
                                                               const FileSystem& files,
                                                               const std::string& folder);

}  // namespace penstock::test
