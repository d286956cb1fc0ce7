// SPDX-License-Identifier: Apache-2.0
// The file that is measured: a scratch file, made in a folder and removed at the end, or an
// existing file or block device, which is only read.
#pragma once

#include "probe/watch.hpp"

#include <penstock/penstock.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace penstock::probe {

/// The size of a scratch file if none is requested; one on a slow disk has less.
inline constexpr std::uint64_t kScratchBytes = std::uint64_t{1} << 30;

struct Target {
    std::string path;
    bool ours = false;        ///< made here, so it may be written
    std::uint64_t bytes = 0;  ///< the part that the runs use
    File file;
    /// Last member, so that it is destroyed first.
    std::shared_ptr<void> removal;
};

/// The requirements for a target. The words are for messages.
struct TargetRequest {
    std::string command = "bench";  ///< its name goes into the file's name and into messages
    std::string path;
    std::uint64_t size_bytes = 0;      ///< 0: 1 GiB, or as much as is written in five seconds
    std::string size_name = "--size";  ///< of the option
    std::uint64_t block_bytes_max = 1 << 20;
    std::string write_words;  ///< the option that requests writes ("--rw write"), or empty
    CachePolicy cache = CachePolicy::kDirect;
    /// Makes the object that removes a scratch file at its end. Without it the file loses its name
    /// as soon as it is made, so that nothing is left even by a process that is killed.
    std::function<std::shared_ptr<void>(const std::string& path)> removal = {};
};

/// Opens the path, or makes the scratch file in it and fills it. Throws Error, also if there is not
/// enough space or a write test was requested on an existing file.
[[nodiscard]] Target make_target(const TargetRequest& request, Watch& watch);

/// Bytes that no drive and no file system can compress or share.
void fill_random(std::span<std::byte> bytes, std::uint64_t seed);

}  // namespace penstock::probe
