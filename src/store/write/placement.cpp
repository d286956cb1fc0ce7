// SPDX-License-Identifier: Apache-2.0
#include "store/write/placement.hpp"

#include "base/assert.hpp"
#include "base/raise.hpp"
#include "base/text/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <map>
#include <numeric>

namespace penstock::store {

namespace {

constexpr std::uint32_t kNowhere = UINT32_MAX;

// Gives a folder that was never measured the average speed.
std::vector<double> speeds_of(std::span<const FolderRoom> folders) {
    double sum = 0;
    int known = 0;
    for (const FolderRoom& folder : folders) {
        sum += folder.bytes_per_second;
        known += folder.bytes_per_second > 0 ? 1 : 0;
    }
    std::vector<double> speeds;
    for (const FolderRoom& folder : folders) {
        const double average = known == 0 ? 1 : sum / known;
        speeds.push_back(folder.bytes_per_second > 0 ? folder.bytes_per_second : average);
    }
    return speeds;
}

[[noreturn]] void no_room(std::uint64_t needed, std::span<const FolderRoom> folders) {
    std::map<std::uint64_t, std::uint64_t> free;
    for (const FolderRoom& folder : folders) {
        free[folder.device] = folder.free_bytes;
    }
    const std::uint64_t total = std::accumulate(
        free.begin(), free.end(), std::uint64_t{0}, [](std::uint64_t sum, const auto& entry) {
            return sum + std::min(entry.second, UINT64_MAX - sum);
        });
    const std::string missing =
        needed > total ? fmt::format("{} bytes are missing", needed - total)
                       : "it is cut into pieces that no single one of the folders has room for";
    base::raise(base::system_error(
        ENOSPC, "save checkpoint", folders.front().path, kNoOffset,
        fmt::format("{} bytes are to be written, {} are free, {}; nothing was written. Older "
                    "checkpoints are deleted only when the new one is durable, so there must be "
                    "room for one more than are kept: free some, or keep fewer",
                    needed, total, missing)));
}

}  // namespace

std::vector<std::uint32_t> place_files(std::span<const std::uint64_t> file_bytes,
                                       std::span<const FolderRoom> folders,
                                       std::uint64_t first_bytes) {
    const std::uint64_t needed = std::accumulate(file_bytes.begin(), file_bytes.end(), first_bytes);
    PENSTOCK_ASSERT(!folders.empty());
    const std::vector<double> speeds = speeds_of(folders);
    std::map<std::uint64_t, std::uint64_t> free;
    for (const FolderRoom& folder : folders) {
        free[folder.device] = folder.free_bytes;
    }
    if (free[folders.front().device] < first_bytes) {
        no_room(needed, folders);
    }
    free[folders.front().device] -= first_bytes;
    std::vector<std::size_t> order(file_bytes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return file_bytes[a] > file_bytes[b];  // large ones first: the small ones even the folders
                                               // out
    });
    std::vector<double> busy_until(folders.size(), 0);
    std::vector<std::uint32_t> places(file_bytes.size(), kNowhere);
    for (const std::size_t i : order) {
        const auto bytes = static_cast<double>(file_bytes[i]);
        double first = 0;
        for (std::uint32_t f = 0; f < folders.size(); ++f) {
            const double done = busy_until[f] + bytes / speeds[f];
            if (free[folders[f].device] >= file_bytes[i] &&
                (places[i] == kNowhere || done < first)) {
                places[i] = f;
                first = done;
            }
        }
        if (places[i] == kNowhere) {
            no_room(needed, folders);
        }
        PENSTOCK_ASSERT(free[folders[places[i]].device] >= file_bytes[i]);
        busy_until[places[i]] = first;
        free[folders[places[i]].device] -= file_bytes[i];
    }
    return places;
}

}  // namespace penstock::store
