// SPDX-License-Identifier: Apache-2.0
// How a transfer is divided among channels, and where it extends its files. No I/O.
#pragma once

#include "engine/domain.hpp"
#include "engine/transfer.hpp"

#include <cstdint>
#include <vector>

namespace penstock::engine {

struct ExtentRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

/// The extents of one file, where the extents are in the order of their files.
[[nodiscard]] ExtentRange extents_of_file(const Transfer& transfer, std::uint32_t file);

/// Makes the parts of a window: one a channel of each of its domains (`transfer.groups` has the
/// domain of each file). A domain with several channels has its bytes cut into as many stretches of
/// about one length, at places where written runs may be cut. No parts when there are no bytes.
void lay_out(Window& window);

/// A stretch of a file.
struct FileRange {
    std::uint32_t file = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

/// Could this write extend a file? By the sizes that were seen; wrong answers cost time, not bytes.
[[nodiscard]] bool may_extend(const Transfer& transfer, std::uint64_t bytes_min);

/// The runs of a write to a window's files, of at least `bytes_min`, that may end behind their
/// file's size.
[[nodiscard]] std::vector<FileRange> extending_runs(const Window& window, std::uint64_t bytes_min);

}  // namespace penstock::engine
