// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "state/tensor_file.hpp"
#include "state/update/find_update.hpp"
#include "state/update/log_writer.hpp"
#include "stream/checksum.hpp"
#include "stream/when_room.hpp"

#include <penstock/memory.hpp>

#include <algorithm>
#include <chrono>
#include <thread>

namespace penstock::state {

namespace {

constexpr std::uint64_t kRedoStepBytes = std::uint64_t{4} << 20;
// The clock of the kernel that files have their times from goes in steps of 1 to 10 ms.
constexpr std::chrono::milliseconds kClockStep{20};

// Waits until a write gives the file another time than it has: by that a reader that began before
// knows that the file changed.
void wait_for_another_time(const File& file) {
    const std::chrono::nanoseconds modified(file.status().modified_ns);
    if (std::chrono::system_clock::now().time_since_epoch() - modified < kClockStep) {
        std::this_thread::sleep_for(kClockStep);
    }
}

void check_piece(const OpenUpdate& update, const UpdateLog::Range& range, std::uint64_t at,
                 std::span<const std::byte> bytes) {
    std::size_t sum = range.first_sum + at / kUpdatePieceBytes;
    for (std::uint64_t p = 0; p < bytes.size(); p += kUpdatePieceBytes, ++sum) {
        const auto piece =
            bytes.subspan(p, std::min<std::uint64_t>(kUpdatePieceBytes, bytes.size() - p));
        if (stream::content_hash(piece) != update.log.sums[sum]) {
            base::raise(base::error(ErrorCode::kDamaged, "update",
                                    "the log of the update was damaged: its new bytes do not have "
                                    "their checksum; restore the file from a copy, and remove it",
                                    update.path, range.at + at + p));
        }
    }
}

// Reads all of the log, in steps.
template <typename Take>
void read_log(Engine& engine, const OpenUpdate& update, const Take& take) {
    MemoryPool pool;
    const Buffer buffer = pool.take(kRedoStepBytes);
    for (const UpdateLog::Range& range : update.log.ranges) {
        for (std::uint64_t at = 0; at < range.bytes; at += kRedoStepBytes) {
            const auto bytes = buffer.bytes().first(std::min(kRedoStepBytes, range.bytes - at));
            stream::read_when_room(engine, update.file, bytes, range.at + at);
            check_piece(update, range, at, bytes);
            take(range.offset + at, bytes);
        }
    }
}

}  // namespace

void check_update(Engine& engine, const OpenUpdate& update) {
    read_log(engine, update, [](std::uint64_t /*offset*/, std::span<const std::byte> /*bytes*/) {});
}

void redo_update(Engine& engine, const OpenUpdate& update, File& file, const FileStatus& before) {
    wait_for_another_time(file);
    if (!is_unwritten(file.status(), before)) {
        base::raise(base::error(ErrorCode::kChanged, "update",
                                "another program wrote to the file meanwhile", file.path()));
    }
    read_log(engine, update, [&](std::uint64_t offset, std::span<const std::byte> bytes) {
        stream::write_when_room(engine, file, bytes, offset);
    });
    for (const UpdateLog::Patch& patch : update.log.patches) {
        stream::write_when_room(engine, file, std::as_bytes(std::span(patch.bytes)), patch.offset);
    }
    file.sync_data();
}

}  // namespace penstock::state
