// SPDX-License-Identifier: Apache-2.0
#include "weights/read/sources.hpp"

#include "base/raise.hpp"
#include "weights/read/read_speed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string_view>
#include <utility>

namespace penstock::weights {

namespace {

constexpr std::string_view kOperation = "stream";
constexpr std::chrono::milliseconds kMeasured{600};

[[noreturn]] void refuse(ErrorCode code, const std::string& message, std::string_view path = {}) {
    base::raise(base::error(code, kOperation, message, path));
}

}  // namespace

Sources::Sources(Engine& engine, FileSystem files, const TensorTable& table,
                 const std::vector<std::vector<std::string>>& copies)
    : files_(std::move(files)) {
    if (!copies.empty() && copies.size() != table.files.size()) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("copies: got those of {} files, and the table has {}; give what "
                           "inspect_folders() returned",
                           copies.size(), table.files.size()));
    }
    for (std::size_t i = 0; i < table.files.size(); ++i) {
        open(copies.empty() ? std::vector{table.files[i]} : copies[i]);
    }
    speeds_ = std::make_shared<FolderSpeeds>(folders_.size());
    if (std::any_of(having_.begin(), having_.end(), [](const auto& f) { return f.size() > 1; })) {
        measure(engine);
    }
}

void Sources::open(const std::vector<std::string>& paths) {
    std::vector<Copy>& copies = sources_.emplace_back();
    std::vector<std::uint32_t>& folders = having_.emplace_back();
    folders_.resize(std::max(folders_.size(), paths.size()));
    for (std::uint32_t folder = 0; folder < paths.size(); ++folder) {
        const std::string& path = paths[folder];
        if (path.empty()) {
            continue;
        }
        copies.push_back({path, files_.open(path), files_.status(files_.resolve(path)),
                          static_cast<std::uint32_t>(folder_of_.size())});
        folders.push_back(folder);
        folder_of_.push_back(folder);
        const FileInfo info = copies.back().file.info();
        direct_.push_back(info.direct);
        if (!info.direct) {
            folders_[folder].buffered_because = info.reason;
        }
        if (copies.back().status.bytes != copies[0].status.bytes) {
            refuse(ErrorCode::kDamaged,
                   fmt::format("it has {} bytes, and its copy '{}' has {}; copy the file again",
                               copies.back().status.bytes, copies[0].path, copies[0].status.bytes),
                   path);
        }
    }
    if (copies.empty()) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("copies: file {} of the table is in no folder; give what "
                           "inspect_folders() returned",
                           sources_.size() - 1));
    }
}

void Sources::measure(Engine& engine) {
    std::vector<std::vector<File>> lists(folders_.size());
    for (const std::vector<Copy>& copies : sources_) {
        for (const Copy& copy : copies) {
            lists[folder_of_[copy.number]].push_back(copy.file);
        }
    }
    std::vector<std::size_t> folders;  // those that have a file
    for (std::size_t folder = 0; folder < lists.size(); ++folder) {
        if (!lists[folder].empty()) {
            folders.push_back(folder);
        }
    }
    std::erase_if(lists, [](const auto& list) { return list.empty(); });
    const std::vector<double> speeds = measure_speeds(engine, lists, kMeasured);
    for (std::size_t i = 0; i < folders.size(); ++i) {
        folders_[folders[i]].bytes_per_second = speeds[i];
        speeds_->set(folders[i], speeds[i]);
    }
}

Error Sources::located(const Error& error, const std::string& what,
                       std::span<const NamedTensor> were_read, std::string_view advice) const {
    std::string found = what;
    std::uint64_t nearest = kNoOffset;
    for (const NamedTensor& one : were_read) {
        for (const TensorStretch& stretch : one.tensor->stretches) {
            const std::vector<Copy>& copies = sources_[stretch.file];
            const bool is_here = std::any_of(copies.begin(), copies.end(), [&](const Copy& copy) {
                return copy.path == error.path();
            });
            if (is_here && stretch.offset + stretch.bytes > error.offset() &&
                stretch.offset < nearest) {
                nearest = stretch.offset;
                found = fmt::format("{}, {}", what, one.name);
            }
        }
    }
    return {error.reason(),          error.system_errno(),
            std::string(kOperation), error.path(),
            error.offset(),          fmt::format("{}: {}{}", found, error.what(), advice)};
}

void Sources::check_ends(const StoredTensor& tensor, const std::string& name) const {
    for (const TensorStretch& stretch : tensor.stretches) {
        const std::uint64_t size = bytes(stretch.file);
        if (stretch.bytes > size || stretch.offset > size - stretch.bytes) {
            refuse(ErrorCode::kDamaged,
                   fmt::format("tensor '{}' ends at byte {}, and the file has {}; it was cut, or "
                               "the table is of another one",
                               name, stretch.offset + stretch.bytes, size),
                   path(stretch.file));
        }
    }
}

// Looks at what its path names now. A file that was replaced or removed is still open here.
std::optional<FileStatus> Sources::status_now(const Copy& copy) const {
    try {
        return files_.status(files_.resolve(copy.path));
    } catch (const Error& error) {
        if (error.system_errno() == ENOENT || error.system_errno() == ENOTDIR) {
            return std::nullopt;
        }
        throw;
    }
}

void Sources::check_unchanged() const {
    for (const std::vector<Copy>& copies : sources_) {
        for (const Copy& copy : copies) {
            const FileStatus now = status_now(copy).value_or(copy.status);
            if (now.device == copy.status.device && now.inode == copy.status.inode &&
                (now.bytes != copy.status.bytes || now.modified_ns != copy.status.modified_ns)) {
                refuse(ErrorCode::kDamaged,
                       "the file was changed while its weights were streamed, so what is in memory "
                       "may be of two versions; stream the model again",
                       copy.path);
            }
        }
    }
}

// One for each folder; those without extents are for folders that have nothing to do.
std::vector<TransferRequest> Sources::requests_of(const std::vector<WantedBytes>& wanted,
                                                  Priority priority, const ReadPlace& where) const {
    TransferRequest empty;
    empty.options.priority = priority;
    empty.options.streams = where.streams;
    for (const std::vector<Copy>& copies : sources_) {
        for (const Copy& copy : copies) {
            empty.files.push_back(copy.file);
        }
    }
    std::vector<TransferRequest> out(folders_.size(), empty);
    for (const CopyRead& read : share_reads(wanted, having_, speeds_->all())) {
        const std::vector<Copy>& copies = sources_[read.part.file];
        const auto copy = std::find_if(copies.begin(), copies.end(), [&](const Copy& one) {
            return folder_of_[one.number] == read.folder;
        });
        out[read.folder].extents.push_back(
            {read.part.offset, Memory(read.part.into, read.part.bytes, where.kind, where.device),
             copy->number});
    }
    return out;
}

// False where the engine has no room for all of them.
bool Sources::submit(Engine& engine, const std::vector<TransferRequest>& requests,
                     Priority priority, CopiedRead& out) {
    for (std::uint32_t folder = 0; folder < requests.size(); ++folder) {
        if (requests[folder].extents.empty()) {
            continue;
        }
        std::optional<Transfer> transfer = engine.try_submit(requests[folder]);
        while (!transfer && priority == Priority::kUrgent) {
            engine.wait_for_room();
            transfer = engine.try_submit(requests[folder]);
        }
        if (!transfer) {
            return false;
        }
        out.add(std::move(*transfer), folder);
    }
    return true;
}

std::optional<CopiedRead> Sources::read(Engine& engine, std::span<const PlacedTensor> placed,
                                        Priority priority, const ReadPlace& where) {
    std::vector<WantedBytes> wanted;
    for (const PlacedTensor& one : placed) {
        std::byte* at = one.at;
        for (const TensorStretch& stretch : one.tensor->stretches) {
            wanted.push_back({stretch.file, stretch.offset, stretch.bytes, at});
            at += stretch.bytes;
        }
    }
    std::sort(wanted.begin(), wanted.end(), [](const auto& a, const auto& b) {
        return std::pair(a.file, a.offset) < std::pair(b.file, b.offset);
    });
    CopiedRead out(speeds_, folders_.size());
    const std::vector<TransferRequest> requests = requests_of(wanted, priority, where);
    if (!submit(engine, requests, priority, out)) {
        out.stop();
        return std::nullopt;
    }
    for (std::uint32_t folder = 0; folder < requests.size(); ++folder) {
        for (const Extent& extent : requests[folder].extents) {
            if (!where.is_counted) {
                break;
            }
            folders_[folder].bytes_read += extent.memory.bytes;
            folders_[folder].buffered_bytes += direct_[extent.file] ? 0 : extent.memory.bytes;
        }
    }
    return out;
}

}  // namespace penstock::weights
