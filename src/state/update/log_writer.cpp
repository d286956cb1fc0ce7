// SPDX-License-Identifier: Apache-2.0
#include "state/update/log_writer.hpp"

#include "base/align.hpp"
#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/zip/crc32.hpp"
#include "state/state_views.hpp"
#include "state/update/find_update.hpp"
#include "state/writing/file_writer.hpp"
#include "stream/checksum.hpp"
#include "stream/file_bytes.hpp"
#include "stream/host_windows.hpp"
#include "stream/when_room.hpp"

#include <penstock/memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock::state {

namespace {

constexpr std::string_view kWriteLog = "update";
constexpr std::uint64_t kLogStepBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kSmallRangeAlignment = 64;
constexpr std::uint64_t kLargeRangeAlignment = 4096;
// Counts: for what changes, and for what does not.
constexpr std::uint64_t kWitnesses = kUpdateWitnessesMax / 2;
constexpr std::size_t kDigitsPerSum = 16;
constexpr std::size_t kBytesOfCrc = 4;

using Places = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // offset, bytes

std::string crc_bytes(std::uint32_t crc) {
    std::string out;
    for (std::size_t i = 0; i < kBytesOfCrc; ++i, crc >>= 8U) {
        out += static_cast<char>(crc);
    }
    return out;
}

// Up to kWitnesses pieces, evenly over the stretches, each in one sector and one stretch.
void add_witnesses(const Places& stretches, std::vector<UpdateLog::Witness>& out) {
    const std::uint64_t count = std::min<std::uint64_t>(stretches.size(), kWitnesses);
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto& [offset, bytes] = stretches[stretches.size() * i / count];
        const std::uint64_t each = std::max<std::uint64_t>(kWitnesses / count, 1);
        std::uint64_t end = offset;  // of the witness before
        for (std::uint64_t k = 0; k < each; ++k) {
            const std::uint64_t at = offset + bytes / each * k;
            const std::uint64_t sector = base::align_down(at, kUpdateSectorBytes);
            const std::uint64_t from = std::max(offset, sector);
            const std::uint64_t to = std::min(offset + bytes, sector + kUpdateSectorBytes);
            if (from >= end && from < to) {
                out.push_back({.offset = from, .bytes = to - from});
                end = to;
            }
        }
    }
}

// Renders a head that readers take: one that they do not would be a damaged log to them.
std::string checked_head(const UpdateLog& log, const std::string& path) {
    std::string head = render_update_log(log);
    if (!parse_update_log(std::as_bytes(std::span(head)), log.log_bytes)) {
        base::raise(base::error(ErrorCode::kUnsupported, kWriteLog,
                                "the log of this update would not be read; nothing was written. "
                                "Save the state instead",
                                path));
    }
    return head;
}

class LogWriter {
public:
    LogWriter(Engine& engine, const FileSystem& files, const std::string& path, const File& file,
              const PlannedFile& plan, stream::ProgressClock& progress)
        : engine_(engine),
          files_(files),
          path_(path),
          source_(engine, file),
          plan_(plan),
          progress_(progress) {}

    std::unique_ptr<Replacement> run(const UpdateGroup& group) {
        lay_out(group);
        auto out = std::make_unique<Replacement>(files_, path_ + std::string(kUpdateSuffix));
        files_.take_attributes(path_, out->file());
        make_room(files_, out->file(), log_.log_bytes);
        for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
            write(out->file(), plan_.tensors[i], log_.ranges[i]);
        }
        const File written = files_.open(out->temporary(), {.follow = false});
        for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
            look_back(written, plan_.tensors[i], log_.ranges[i]);
        }
        testify(written);
        PatchedBytes patched(source_, log_.patches);
        log_.structure_sum = structure_sum(patched, log_.head_end, log_.tail_begin);
        const std::string head = checked_head(log_, path_);
        stream::write_when_room(engine_, out->file(), std::as_bytes(std::span(head)), 0);
        return out;
    }

private:
    // Everything but sums: the lengths are known.
    void lay_out(const UpdateGroup& group) {
        log_.id = group.id;
        log_.leader = group.leader;
        log_.followers = group.followers;
        log_.file_bytes = source_.size();
        log_.head_end = plan_.head_end;
        log_.tail_begin = plan_.tail_begin;
        Places changed;
        for (const PlannedTensor& t : plan_.tensors) {
            log_.ranges.push_back({.offset = t.offset, .bytes = t.bytes});
            changed.emplace_back(t.offset, t.bytes);
            for (const std::uint64_t place : t.crc_places) {
                log_.patches.push_back({place, std::string(kBytesOfCrc, '\0')});
            }
            if (t.digits_at != 0) {
                const std::uint64_t pieces = (t.bytes + t.piece_bytes - 1) / t.piece_bytes;
                log_.patches.push_back({t.digits_at, std::string(pieces * kDigitsPerSum, '0')});
            }
        }
        std::sort(log_.patches.begin(), log_.patches.end(),
                  [](const auto& a, const auto& b) { return a.offset < b.offset; });
        log_.sums.resize(log_.pieces());
        add_witnesses(changed, log_.witnesses);
        changed_ = log_.witnesses.size();
        add_witnesses(plan_.others, log_.witnesses);
        const std::uint64_t head_bytes = render_update_log(log_).size();
        if (head_bytes > kUpdateHeadBytesMax) {
            base::raise(base::error(ErrorCode::kUnsupported, kWriteLog,
                                    "this is too much for one update: its checksums alone would "
                                    "take more than 64 MiB; save the state instead",
                                    path_));
        }
        place(head_bytes);
    }

    void place(std::uint64_t head_bytes) {
        std::uint64_t end = head_bytes;
        std::size_t sum = 0;
        for (UpdateLog::Range& range : log_.ranges) {
            const bool is_large = range.bytes >= kUpdatePieceBytes;
            range.at = base::align_up(end, is_large ? kLargeRangeAlignment : kSmallRangeAlignment);
            range.first_sum = sum;
            sum += (range.bytes + kUpdatePieceBytes - 1) / kUpdatePieceBytes;
            end = range.at + range.bytes;
        }
        log_.log_bytes = end;
    }

    void write(const File& file, const PlannedTensor& t, const UpdateLog::Range& range) {
        ConstMemory data = t.given->data;
        Buffer made;  // in the order of the file
        if (t.strided != nullptr) {
            made = pool_.take(t.bytes);
            windows_.with(data, [&](std::span<const std::byte> bytes) {
                scatter(*t.strided, bytes, made.bytes().first(t.bytes));
            });
            data = made.bytes().first(t.bytes);
        }
        for (std::uint64_t at = 0; at < t.bytes; at += kLogStepBytes) {
            const ConstMemory step(data.data + at, std::min(kLogStepBytes, t.bytes - at), data.kind,
                                   data.device);
            windows_.with(step, [&](std::span<const std::byte> bytes) {
                std::size_t sum = range.first_sum + at / kUpdatePieceBytes;
                for (std::uint64_t p = 0; p < bytes.size(); p += kUpdatePieceBytes, ++sum) {
                    log_.sums[sum] = stream::content_hash(
                        bytes.subspan(p, std::min(kUpdatePieceBytes, bytes.size() - p)));
                }
            });
            stream::write_when_room(engine_, file, step, range.at + at);
            progress_.add(step.bytes);
            progress_.tick();
        }
    }

    void look_back(const File& file, const PlannedTensor& t, const UpdateLog::Range& range) {
        const std::uint64_t step = std::max(kLogStepBytes, t.piece_bytes);
        const Buffer buffer = pool_.take(std::min(step, t.bytes));
        std::uint32_t crc = 0;
        std::string digits;
        for (std::uint64_t at = 0; at < t.bytes; at += step) {
            const auto bytes = buffer.bytes().first(std::min(step, t.bytes - at));
            stream::read_when_room(engine_, file, bytes, range.at + at);
            std::size_t sum = range.first_sum + at / kUpdatePieceBytes;
            for (std::uint64_t p = 0; p < bytes.size(); p += kUpdatePieceBytes, ++sum) {
                const auto piece =
                    bytes.subspan(p, std::min<std::uint64_t>(kUpdatePieceBytes, bytes.size() - p));
                if (stream::content_hash(piece) != log_.sums[sum]) {
                    refuse_changed(t);
                }
            }
            if (!t.crc_places.empty()) {
                crc = format::crc32(bytes, crc);
            }
            for (std::uint64_t p = 0; t.digits_at != 0 && p < bytes.size(); p += t.piece_bytes) {
                const auto piece =
                    bytes.subspan(p, std::min<std::uint64_t>(t.piece_bytes, bytes.size() - p));
                digits += fmt::format("{:016x}", stream::content_hash(piece));
            }
        }
        for (const std::uint64_t place : t.crc_places) {
            patch(place, crc_bytes(crc));
        }
        if (t.digits_at != 0) {
            patch(t.digits_at, std::move(digits));
        }
    }

    [[noreturn]] void refuse_changed(const PlannedTensor& t) const {
        base::raise(base::error(
            ErrorCode::kChanged, kWriteLog,
            fmt::format("tensor {} changed while it was written; the file is unchanged. Update it "
                        "when nothing writes to the tensor",
                        format::shown(t.given->name)),
            path_));
    }

    void patch(std::uint64_t offset, std::string bytes) {
        const auto found = std::lower_bound(
            log_.patches.begin(), log_.patches.end(), offset,
            [](const UpdateLog::Patch& one, std::uint64_t wanted) { return one.offset < wanted; });
        found->bytes = std::move(bytes);
    }

    void testify(const File& written) {
        stream::FileBytes log(engine_, written);
        const std::vector<std::uint64_t> before = sums_of(source_, log_.witnesses);
        std::vector<UpdateLog::Witness> there(
            log_.witnesses.begin(), log_.witnesses.begin() + static_cast<std::ptrdiff_t>(changed_));
        for (UpdateLog::Witness& witness : there) {
            const auto range = std::prev(std::upper_bound(
                log_.ranges.begin(), log_.ranges.end(), witness.offset,
                [](std::uint64_t offset, const auto& one) { return offset < one.offset; }));
            witness.offset = range->at + (witness.offset - range->offset);
        }
        const std::vector<std::uint64_t> after = sums_of(log, there);
        for (std::size_t i = 0; i < log_.witnesses.size(); ++i) {
            log_.witnesses[i].before = before[i];
            log_.witnesses[i].after = i < changed_ ? after[i] : before[i];
        }
    }

    static std::vector<std::uint64_t> sums_of(format::ByteSource& source,
                                              const std::vector<UpdateLog::Witness>& witnesses) {
        std::vector<std::byte> memory(witnesses.size() * kUpdateSectorBytes);
        std::vector<format::ByteRead> reads;
        for (const UpdateLog::Witness& witness : witnesses) {
            const auto place = std::span(memory).subspan(reads.size() * kUpdateSectorBytes);
            reads.push_back({witness.offset, place.first(witness.bytes)});
        }
        base::unwrap(source.read_many(reads));
        std::vector<std::uint64_t> out;
        for (const format::ByteRead& one : reads) {
            out.push_back(stream::content_hash(one.into));
        }
        return out;
    }

    Engine& engine_;
    const FileSystem& files_;
    const std::string& path_;
    stream::FileBytes source_;
    const PlannedFile& plan_;
    stream::ProgressClock& progress_;
    UpdateLog log_;
    std::size_t changed_ = 0;  // witnesses of what changes, which come first
    MemoryPool pool_;
    stream::HostWindows windows_;
};

}  // namespace

std::unique_ptr<Replacement> write_update_log(Engine& engine, const FileSystem& files,
                                              const std::string& path, const File& file,
                                              const PlannedFile& plan, const UpdateGroup& group,
                                              stream::ProgressClock& progress) {
    return LogWriter(engine, files, path, file, plan, progress).run(group);
}

std::unique_ptr<Replacement> write_leader(Engine& engine, const FileSystem& files,
                                          const std::string& path, const std::string& like,
                                          const UpdateGroup& group) {
    UpdateLog log;
    log.id = group.id;
    log.followers = group.followers;
    log.log_bytes = render_update_log(log).size();
    const std::string head = checked_head(log, path);
    auto out = std::make_unique<Replacement>(files, path);
    files.take_attributes(like, out->file());
    stream::write_when_room(engine, out->file(), std::as_bytes(std::span(head)), 0);
    return out;
}

}  // namespace penstock::state
