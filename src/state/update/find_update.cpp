// SPDX-License-Identifier: Apache-2.0
#include "state/update/find_update.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "stream/checksum.hpp"
#include "stream/file_bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

namespace penstock::state {

namespace {

constexpr std::uint64_t kStructureStepBytes = std::uint64_t{1} << 20;

FoundUpdate foreign_log(const std::string& path, std::string why) {
    return {UpdateFound::kForeign, nullptr, path, std::move(why)};
}

FoundUpdate damaged_log(const std::string& path) {
    return {UpdateFound::kDamaged, nullptr, path, "it was damaged or cut short"};
}

// Bytes of an update, or of before it, that the witnesses see in its file. A witness that is as
// before with it, too, says nothing.
struct Reached {
    bool old_bytes = false;
    bool new_bytes = false;
};

// Nothing if a witness is neither as before nor as after.
std::optional<Reached> reached(format::ByteSource& file, const UpdateLog& log) {
    std::uint64_t total = 0;
    for (const UpdateLog::Witness& witness : log.witnesses) {
        total += witness.bytes;
    }
    if (total > kUpdateHeadBytesMax) {
        return std::nullopt;
    }
    std::vector<std::byte> memory(total);
    std::vector<format::ByteRead> reads;
    std::span<std::byte> rest = memory;
    for (const UpdateLog::Witness& witness : log.witnesses) {
        reads.push_back({witness.offset, rest.first(witness.bytes)});
        rest = rest.subspan(witness.bytes);
    }
    base::unwrap(file.read_many(reads));
    Reached out;
    for (std::size_t i = 0; i < reads.size(); ++i) {
        const std::uint64_t sum = stream::content_hash(reads[i].into);
        const UpdateLog::Witness& witness = log.witnesses[i];
        if (sum != witness.before && sum != witness.after) {
            return std::nullopt;
        }
        out.old_bytes = out.old_bytes || sum != witness.after;
        out.new_bytes = out.new_bytes || sum != witness.before;
    }
    return out;
}

bool log_fits(Engine& engine, const File& file, const UpdateLog& log) {
    stream::FileBytes bytes(engine, file);
    if (bytes.size() != log.file_bytes || !reached(bytes, log)) {
        return false;
    }
    PatchedBytes patched(bytes, log.patches);
    return structure_sum(patched, log.head_end, log.tail_begin) == log.structure_sum;
}

// Whether the files of one update have old bytes and new ones. Without the log that makes the
// update valid, all of them are as before, or all as after.
bool is_in_part(Engine& engine, const FileSystem& files, const OpenUpdate& one) {
    const std::string folder = base::folder_of(one.path);
    Reached all;
    for (const std::string& name : one.log.followers) {
        const std::string path = base::join(folder, name);
        const FoundUpdate other = open_update(engine, files, path);
        if (!other.update || other.update->log.id != one.log.id) {
            continue;
        }
        try {
            const File file =
                files.open(path.substr(0, path.size() - kUpdateSuffix.size()), {.follow = false});
            stream::FileBytes bytes(engine, file);
            const UpdateLog& log = other.update->log;
            const auto its = bytes.size() == log.file_bytes ? reached(bytes, log) : std::nullopt;
            all.old_bytes = all.old_bytes || (its && its->old_bytes);
            all.new_bytes = all.new_bytes || (its && its->new_bytes);
        } catch (const Error& error) {
            if (error.system_errno() != ENOENT) {
                throw;
            }
        }
    }
    return all.old_bytes && all.new_bytes;
}

// Looks for the log that makes this one valid. It may get its name, or lose it, meanwhile: files
// are written only while it has it.
FoundUpdate with_leader(Engine& engine, const FileSystem& files, FoundUpdate found) {
    constexpr int kLooks = 3;
    const OpenUpdate& update = *found.update;
    const std::string path = base::join(base::folder_of(update.path), update.log.leader);
    for (int i = 0; i < kLooks; ++i) {
        FoundUpdate leader = open_update(engine, files, path);
        if (leader.found == UpdateFound::kDamaged) {
            return leader;
        }
        if (leader.update && leader.update->log.id == update.log.id) {
            return found;
        }
        if (!is_in_part(engine, files, update)) {
            found.found = UpdateFound::kBegun;
            return found;
        }
    }
    return {UpdateFound::kDamaged, nullptr, found.path,
            fmt::format("the log that makes it valid, '{}', is gone", path)};
}

}  // namespace

const UpdateLog::Range* OpenUpdate::range(std::uint64_t offset, std::uint64_t bytes) const {
    const auto found = std::lower_bound(
        log.ranges.begin(), log.ranges.end(), offset,
        [](const UpdateLog::Range& one, std::uint64_t wanted) { return one.offset < wanted; });
    const bool is_it =
        found != log.ranges.end() && found->offset == offset && found->bytes == bytes;
    return is_it ? &*found : nullptr;
}

const UpdateLog::Range* OpenUpdate::range_at(std::uint64_t at) const {
    return &*std::lower_bound(
        log.ranges.begin(), log.ranges.end(), at,
        [](const UpdateLog::Range& one, std::uint64_t wanted) { return one.at < wanted; });
}

std::span<const std::uint64_t> OpenUpdate::sums(const UpdateLog::Range& range) const {
    const std::uint64_t count = (range.bytes + kUpdatePieceBytes - 1) / kUpdatePieceBytes;
    return std::span(log.sums).subspan(range.first_sum, count);
}

void PatchedBytes::put_over(std::uint64_t offset, std::span<std::byte> into) const {
    const std::uint64_t end = offset + into.size();
    auto patch = std::partition_point(patches_.begin(), patches_.end(), [offset](const auto& one) {
        return one.offset + one.bytes.size() <= offset;
    });
    for (; patch != patches_.end() && patch->offset < end; ++patch) {
        const std::uint64_t from = std::max(offset, patch->offset);
        const std::uint64_t to = std::min(end, patch->offset + patch->bytes.size());
        std::ranges::copy(
            std::as_bytes(std::span(patch->bytes)).subspan(from - patch->offset, to - from),
            into.subspan(from - offset).begin());
    }
}

format::Result<void> PatchedBytes::read(std::uint64_t offset, std::span<std::byte> into) {
    PENSTOCK_CHECK(source_.read(offset, into));
    put_over(offset, into);
    return {};
}

format::Result<void> PatchedBytes::read_many(std::span<const format::ByteRead> reads) {
    PENSTOCK_CHECK(source_.read_many(reads));
    for (const format::ByteRead& one : reads) {
        put_over(one.offset, one.into);
    }
    return {};
}

std::uint64_t structure_sum(format::ByteSource& file, std::uint64_t head_end,
                            std::uint64_t tail_begin) {
    std::vector<std::uint64_t> sums;
    std::vector<std::byte> piece;
    const auto add = [&](std::uint64_t begin, std::uint64_t end) {
        for (std::uint64_t at = begin; at < end; at += piece.size()) {
            piece.resize(std::min(end - at, kStructureStepBytes));
            base::unwrap(file.read(at, piece));
            sums.push_back(stream::content_hash(piece));
        }
        sums.push_back(end - begin);
    };
    add(0, head_end);
    add(tail_begin, file.size());
    return stream::content_hash(std::as_bytes(std::span(sums)));
}

FoundUpdate open_update(Engine& engine, const FileSystem& files, const std::string& path) {
    const auto status = files.find(path);
    if (!status) {
        return {};
    }
    if (status->kind != FileKind::kFile) {
        return foreign_log(path, "it is no regular file");
    }
    auto out = std::make_shared<OpenUpdate>();
    out->path = path;
    try {
        out->file = files.open(path, {.follow = false});
    } catch (const Error& error) {
        if (error.system_errno() == ENOENT) {  // its update came to the end
            return {};
        }
        throw;
    }
    stream::FileBytes bytes(engine, out->file);
    std::vector<std::byte> head(std::min(bytes.size(), kUpdatePrefixBytes));
    base::unwrap(bytes.read(0, head));
    const auto head_bytes = update_head_bytes(head);
    if (!head_bytes) {
        return foreign_log(path, "it is no log of an update");
    }
    if (*head_bytes < kUpdatePrefixBytes || *head_bytes > kUpdateHeadBytesMax ||
        *head_bytes > bytes.size()) {
        return damaged_log(path);
    }
    head.resize(*head_bytes);
    base::unwrap(bytes.read(0, head));
    auto log = parse_update_log(head, bytes.size());
    if (!log) {
        return damaged_log(path);
    }
    out->log = std::move(*log);
    return {UpdateFound::kPending, std::move(out), path, {}};
}

FoundUpdate find_update(Engine& engine, const FileSystem& files, const std::string& path,
                        const File& file) {
    FoundUpdate found = open_update(engine, files, path + std::string(kUpdateSuffix));
    if (!found.update) {
        return found;
    }
    const UpdateLog& log = found.update->log;
    if (is_leader(log)) {  // next to an index, whose own bytes do not change
        return {};
    }
    if (!log_fits(engine, file, log)) {
        return foreign_log(found.path, "it is the log of another file, or of another content");
    }
    return log.leader.empty() ? found : with_leader(engine, files, std::move(found));
}

void refuse_damaged(const FoundUpdate& found, const std::string& path) {
    if (found.found == UpdateFound::kDamaged) {
        base::raise(base::error(
            ErrorCode::kDamaged, "open",
            fmt::format(
                "this is the log of an update of '{}' that did not come to its end, and {}. "
                "The file may have old tensors and new ones: restore it from a copy, and "
                "remove this log",
                base::last_name(path), found.why),
            found.path));
    }
}

std::string note_of(const FoundUpdate& found) {
    if (found.found != UpdateFound::kForeign) {
        return {};
    }
    return fmt::format(
        "'{}' has the name of the log of an interrupted update, and {}: it is left "
        "alone. Remove it if the file is as you want it",
        found.path, found.why);
}

}  // namespace penstock::state
