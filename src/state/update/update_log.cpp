// SPDX-License-Identifier: Apache-2.0
#include "state/update/update_log.hpp"

#include "base/path.hpp"
#include "stream/checksum.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

namespace penstock::state {

namespace {

constexpr std::uint64_t kNumberBytes = 8;

std::uint64_t pieces_of(std::uint64_t bytes) {
    return bytes / kUpdatePieceBytes + (bytes % kUpdatePieceBytes != 0 ? 1 : 0);
}

void put(std::string& out, std::uint64_t value) {
    for (std::uint64_t i = 0; i < kNumberBytes; ++i, value >>= 8U) {
        out += static_cast<char>(value);
    }
}

void put(std::string& out, std::string_view text) {
    put(out, text.size());
    out += text;
}

// Reads a head from its beginning. What lies past the end is 0 or empty, and leaves it not whole.
class Fields {
public:
    explicit Fields(std::span<const std::byte> bytes) : rest_(bytes) {}

    std::uint64_t number() {
        std::uint64_t out = 0;
        for (std::uint64_t i = 0; i < kNumberBytes && take(1); ++i) {
            out |= static_cast<std::uint64_t>(taken_[0]) << (8 * i);
        }
        return out;
    }
    std::string text() {
        const std::uint64_t bytes = number();
        if (!take(bytes)) {
            return {};
        }
        return {reinterpret_cast<const char*>(taken_.data()), taken_.size()};
    }
    // A number of elements, each of which has `bytes_min` bytes or more here.
    std::size_t count(std::uint64_t bytes_min, std::uint64_t most = UINT64_MAX) {
        const std::uint64_t out = number();
        whole_ = whole_ && out <= rest_.size() / bytes_min && out <= most;
        return whole_ ? out : 0;
    }
    [[nodiscard]] bool is_whole() const { return whole_ && rest_.empty(); }

private:
    bool take(std::uint64_t bytes) {
        whole_ = whole_ && bytes <= rest_.size();
        if (whole_) {
            taken_ = rest_.first(bytes);
            rest_ = rest_.subspan(bytes);
        }
        return whole_;
    }

    std::span<const std::byte> rest_;
    std::span<const std::byte> taken_;
    bool whole_ = true;
};

bool lies_in(std::uint64_t offset, std::uint64_t bytes, std::uint64_t end) {
    return offset <= end && bytes <= end - offset;
}

bool is_plain_name(std::string_view name) {
    return name.size() > kUpdateSuffix.size() && name.size() <= base::kNameBytesMax &&
           name.ends_with(kUpdateSuffix) &&
           name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

// A log is of one file, or of one of several and then has a leader, or is a leader.
bool names_make_sense(const UpdateLog& log) {
    const auto is_name = [](const std::string& name) { return is_plain_name(name); };
    if (!std::all_of(log.followers.begin(), log.followers.end(), is_name)) {
        return false;
    }
    const std::set<std::string_view> names(log.followers.begin(), log.followers.end());
    if (log.leader.empty()) {
        const bool is_bare = log.ranges.empty() && log.patches.empty() && log.witnesses.empty();
        return log.followers.empty() || (is_bare && names.size() == log.followers.size());
    }
    return is_name(log.leader) && !names.empty() && names.size() == log.followers.size() &&
           !names.contains(log.leader);
}

// Patches are of checksums, which no range has.
bool are_apart(const UpdateLog& log) {
    auto range = log.ranges.begin();
    for (const UpdateLog::Patch& patch : log.patches) {
        while (range != log.ranges.end() && range->offset + range->bytes <= patch.offset) {
            ++range;
        }
        if (range != log.ranges.end() && range->offset < patch.offset + patch.bytes.size()) {
            return false;
        }
    }
    return true;
}

bool is_in_one_sector(const UpdateLog::Witness& witness) {
    return witness.bytes != 0 &&
           witness.bytes <= kUpdateSectorBytes - witness.offset % kUpdateSectorBytes;
}

// Whether all that it refers to is in the log and in the file.
bool makes_sense(const UpdateLog& log, std::uint64_t head_bytes) {
    if (log.head_end > log.tail_begin || log.tail_begin > log.file_bytes ||
        !names_make_sense(log)) {
        return false;
    }
    std::uint64_t end = 0;          // of the range before, in the file
    std::uint64_t at = head_bytes;  // and in the log
    for (const UpdateLog::Range& range : log.ranges) {
        if (range.bytes == 0 || range.offset < std::max(end, log.head_end) || range.at < at ||
            !lies_in(range.offset, range.bytes, log.tail_begin) ||
            !lies_in(range.at, range.bytes, log.log_bytes)) {
            return false;
        }
        end = range.offset + range.bytes;
        at = range.at + range.bytes;
    }
    end = 0;
    for (const UpdateLog::Patch& patch : log.patches) {
        if (patch.bytes.empty() || patch.offset < end ||
            !lies_in(patch.offset, patch.bytes.size(), log.file_bytes)) {
            return false;
        }
        end = patch.offset + patch.bytes.size();
    }
    return are_apart(log) &&
           std::all_of(log.witnesses.begin(), log.witnesses.end(), [&](const auto& witness) {
               return is_in_one_sector(witness) &&
                      lies_in(witness.offset, witness.bytes, log.file_bytes);
           });
}

std::string render_body(const UpdateLog& log) {
    std::string out;
    for (const std::uint64_t value :
         {log.id, log.log_bytes, log.file_bytes, log.head_end, log.tail_begin, log.structure_sum}) {
        put(out, value);
    }
    put(out, log.leader);
    put(out, log.followers.size());
    for (const std::string& name : log.followers) {
        put(out, name);
    }
    put(out, log.ranges.size());
    for (const UpdateLog::Range& range : log.ranges) {
        put(out, range.offset);
        put(out, range.bytes);
        put(out, range.at);
    }
    put(out, log.patches.size());
    for (const UpdateLog::Patch& patch : log.patches) {
        put(out, patch.offset);
        put(out, patch.bytes);
    }
    put(out, log.witnesses.size());
    for (const UpdateLog::Witness& witness : log.witnesses) {
        put(out, witness.offset);
        put(out, witness.bytes);
        put(out, witness.before);
        put(out, witness.after);
    }
    put(out, log.sums.size());
    for (const std::uint64_t sum : log.sums) {
        put(out, sum);
    }
    return out;
}

UpdateLog read_body(Fields& fields) {
    UpdateLog log;
    for (std::uint64_t* const value : {&log.id, &log.log_bytes, &log.file_bytes, &log.head_end,
                                       &log.tail_begin, &log.structure_sum}) {
        *value = fields.number();
    }
    log.leader = fields.text();
    log.followers.resize(fields.count(kNumberBytes + kUpdateSuffix.size(), kUpdateFollowersMax));
    for (std::string& name : log.followers) {
        name = fields.text();
    }
    log.ranges.resize(fields.count(3 * kNumberBytes));
    for (UpdateLog::Range& range : log.ranges) {
        range.offset = fields.number();
        range.bytes = fields.number();
        range.at = fields.number();
    }
    log.patches.resize(fields.count(2 * kNumberBytes + 1));
    for (UpdateLog::Patch& patch : log.patches) {
        patch.offset = fields.number();
        patch.bytes = fields.text();
    }
    log.witnesses.resize(fields.count(4 * kNumberBytes, kUpdateWitnessesMax));
    for (UpdateLog::Witness& witness : log.witnesses) {
        witness.offset = fields.number();
        witness.bytes = fields.number();
        witness.before = fields.number();
        witness.after = fields.number();
    }
    log.sums.resize(fields.count(kNumberBytes));
    for (std::uint64_t& sum : log.sums) {
        sum = fields.number();
    }
    return log;
}

}  // namespace

std::uint64_t UpdateLog::pieces() const {
    return std::accumulate(
        ranges.begin(), ranges.end(), std::uint64_t{0},
        [](std::uint64_t sum, const Range& range) { return sum + pieces_of(range.bytes); });
}

std::string render_update_log(const UpdateLog& log) {
    const std::string body = render_body(log);
    std::string counted;
    put(counted, kUpdatePrefixBytes + body.size());
    counted += body;
    std::string out(kUpdateMagic);
    put(out, stream::content_hash(std::as_bytes(std::span(counted))));
    return out += counted;
}

std::optional<std::uint64_t> update_head_bytes(std::span<const std::byte> prefix) {
    if (prefix.size() < kUpdatePrefixBytes ||
        std::memcmp(prefix.data(), kUpdateMagic.data(), kUpdateMagic.size()) != 0) {
        return std::nullopt;
    }
    return Fields(prefix.subspan(kUpdateMagic.size() + kNumberBytes, kNumberBytes)).number();
}

std::optional<UpdateLog> parse_update_log(std::span<const std::byte> head,
                                          std::uint64_t log_bytes) {
    const auto bytes = update_head_bytes(head);
    if (!bytes || *bytes != head.size()) {
        return std::nullopt;
    }
    Fields sum(head.subspan(kUpdateMagic.size(), kNumberBytes));
    if (sum.number() != stream::content_hash(head.subspan(kUpdateMagic.size() + kNumberBytes))) {
        return std::nullopt;
    }
    Fields fields(head.subspan(kUpdatePrefixBytes));
    UpdateLog log = read_body(fields);
    if (!fields.is_whole() || log.log_bytes != log_bytes || !makes_sense(log, head.size()) ||
        log.sums.size() != log.pieces()) {
        return std::nullopt;
    }
    std::size_t first = 0;
    for (UpdateLog::Range& range : log.ranges) {
        range.first_sum = first;
        first += pieces_of(range.bytes);
    }
    return log;
}

}  // namespace penstock::state
