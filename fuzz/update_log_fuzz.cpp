// SPDX-License-Identifier: Apache-2.0
// Any bytes as the log of an update, as they are and with the head that they should have: none, or
// one that is written as it was read, whose ranges lie in it, and in the file between what is
// around the tensors, apart from its patches; which takes no more memory than a few times its head.
#include "state/update/update_log.hpp"
#include "stream/checksum.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace {

using namespace penstock::state;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kNumberBytes = 8;
constexpr std::size_t kLogBytesAt = kUpdatePrefixBytes + kNumberBytes;  // after the id

void require(bool holds) {
    if (!holds) {
        std::abort();
    }
}

std::string number(std::uint64_t value) {
    std::string out;
    for (std::size_t i = 0; i < kNumberBytes; ++i, value >>= 8U) {
        out += static_cast<char>(value);
    }
    return out;
}

void check_places(const UpdateLog& log, std::size_t head_bytes) {
    std::uint64_t at = head_bytes;
    std::uint64_t end = log.head_end;
    std::size_t pieces = 0;
    for (const UpdateLog::Range& range : log.ranges) {
        require(range.bytes != 0 && range.at >= at && range.offset >= end);
        require(range.bytes <= log.log_bytes - range.at);
        require(range.offset <= log.tail_begin && range.bytes <= log.tail_begin - range.offset);
        require(range.first_sum == pieces);
        at = range.at + range.bytes;
        end = range.offset + range.bytes;
        pieces += (range.bytes + kUpdatePieceBytes - 1) / kUpdatePieceBytes;
        for (const UpdateLog::Patch& patch : log.patches) {
            require(patch.offset + patch.bytes.size() <= range.offset || patch.offset >= end);
        }
    }
    require(pieces == log.sums.size() && log.tail_begin <= log.file_bytes);
    for (const UpdateLog::Patch& patch : log.patches) {
        require(!patch.bytes.empty() && patch.offset + patch.bytes.size() <= log.file_bytes);
    }
    require(log.witnesses.size() <= kUpdateWitnessesMax);
    for (const UpdateLog::Witness& witness : log.witnesses) {
        const std::uint64_t last = witness.offset + witness.bytes - 1;
        require(witness.offset / kUpdateSectorBytes == last / kUpdateSectorBytes);
        require(witness.bytes != 0 && last < log.file_bytes);
    }
}

void check_names(const UpdateLog& log) {
    std::set<std::string_view> names;
    for (const std::string& name : log.followers) {
        require(names.insert(name).second && name.find('/') == std::string::npos);
        require(name.ends_with(kUpdateSuffix) && name != log.leader);
    }
    require(log.leader.empty() || !log.followers.empty());
    require(!is_leader(log) || log.ranges.empty());
}

void check(std::string_view head, std::uint64_t log_bytes) {
    const auto bytes = std::as_bytes(std::span(head));
    const auto log = parse_update_log(bytes, log_bytes);
    if (!log) {
        return;
    }
    require(update_head_bytes(bytes.first(kUpdatePrefixBytes)) == head.size());
    require(render_update_log(*log) == head && log->log_bytes == log_bytes);
    const std::size_t memory = log->ranges.capacity() * sizeof(UpdateLog::Range) +
                               log->patches.capacity() * sizeof(UpdateLog::Patch) +
                               log->witnesses.capacity() * sizeof(UpdateLog::Witness) +
                               log->followers.capacity() * sizeof(std::string) +
                               log->sums.capacity() * sizeof(std::uint64_t);
    require(memory <= 3 * head.size());
    check_places(*log, head.size());
    check_names(*log);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    std::string head(reinterpret_cast<const char*>(data), bytes);
    check(head, bytes);
    if (bytes < kLogBytesAt + kNumberBytes) {
        return 0;
    }
    std::uint64_t log_bytes = 0;
    for (std::size_t i = 0; i < kNumberBytes; ++i) {
        log_bytes |= std::uint64_t{data[kLogBytesAt + i]} << (8 * i);
    }
    head.replace(kUpdateMagic.size() + kNumberBytes, kNumberBytes, number(bytes));
    const auto counted = std::as_bytes(std::span(head)).subspan(kUpdateMagic.size() + kNumberBytes);
    const std::uint64_t sum = penstock::stream::content_hash(counted);
    head.replace(0, kUpdateMagic.size() + kNumberBytes, std::string(kUpdateMagic) + number(sum));
    check(head, log_bytes);
    return 0;
}
