// SPDX-License-Identifier: Apache-2.0
#include "weights/read/copies.hpp"

#include "base/align.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace penstock::weights {

namespace {

constexpr std::uint64_t kCutBytes = 64 << 10;

using Folders = std::vector<std::uint32_t>;

// The time at which all of `folders` have done what they have to do already and `bytes` more.
double common_end(const Folders& folders, std::uint64_t bytes, std::span<const double> speeds,
                  std::span<const double> busy) {
    Folders order = folders;
    std::sort(order.begin(), order.end(), [busy](auto a, auto b) { return busy[a] < busy[b]; });
    double speed = 0;
    double work = static_cast<double>(bytes);  // with what those that take part did before
    double end = 0;
    for (const std::uint32_t folder : order) {
        if (speed > 0 && end <= busy[folder]) {
            break;  // the others are done before this one is free
        }
        speed += speeds[folder];
        work += busy[folder] * speeds[folder];
        end = work / speed;
    }
    return end;
}

// Gives `wanted[i]` of each of `group` to the folders, in their order.
void share_group(std::span<const WantedBytes> wanted, std::span<const std::size_t> group,
                 const Folders& folders, std::span<const double> speeds, std::vector<double>& busy,
                 std::vector<std::vector<CopyRead>>& out) {
    std::uint64_t bytes = 0;
    for (const std::size_t i : group) {
        bytes += wanted[i].bytes;
    }
    const double end = common_end(folders, bytes, speeds, busy);
    std::size_t at = 0;
    for (const std::size_t i : group) {
        for (WantedBytes rest = wanted[i]; rest.bytes != 0 || out[i].empty();) {
            const std::uint32_t folder = folders[at];
            std::uint64_t part = rest.bytes;
            if (at + 1 < folders.size()) {
                const double room = std::max(0.0, (end - busy[folder]) * speeds[folder]);
                // The last cut before the folder has its share.
                const auto last = static_cast<std::uint64_t>(room) + rest.offset + kCutBytes / 2;
                const std::uint64_t cut = base::align_down(last, kCutBytes);
                part = cut <= rest.offset ? 0 : std::min(part, cut - rest.offset);
                at += part < rest.bytes ? 1 : 0;
            }
            if (part != 0 || rest.bytes == 0) {
                out[i].push_back({{rest.file, rest.offset, part, rest.into}, folder});
                busy[folder] += static_cast<double>(part) / speeds[folder];
            }
            rest.offset += part;
            rest.into += part;
            rest.bytes -= part;
        }
    }
}

}  // namespace

std::vector<CopyRead> share_reads(std::span<const WantedBytes> wanted,
                                  std::span<const Folders> having, std::span<const double> speeds) {
    std::map<std::pair<std::size_t, Folders>, std::vector<std::size_t>> groups;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        const Folders& folders = having[wanted[i].file];
        groups[{folders.size(), folders}].push_back(i);
    }
    std::vector<double> busy(speeds.size(), 0.0);
    std::vector<std::vector<CopyRead>> parts(wanted.size());
    for (const auto& [key, group] : groups) {  // those with the least choice first
        share_group(wanted, group, key.second, speeds, busy, parts);
    }
    std::vector<CopyRead> out;
    for (const std::vector<CopyRead>& some : parts) {
        out.insert(out.end(), some.begin(), some.end());
    }
    return out;
}

}  // namespace penstock::weights
