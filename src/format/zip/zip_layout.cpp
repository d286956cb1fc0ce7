// SPDX-License-Identifier: Apache-2.0
#include "base/align.hpp"
#include "base/assert.hpp"
#include "format/zip/crc32.hpp"
#include "format/zip/zip.hpp"
#include "format/zip/zip_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory_resource>
#include <numeric>
#include <unordered_set>

namespace penstock::format::zip {

namespace {

constexpr std::string_view kWriting = "write zip";
constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 62;
constexpr std::size_t kDirectoryBytesGuess = 72;
constexpr std::size_t kPaddingHead = 4;  // id and length of the padding extra

std::uint64_t alignment_of(std::uint64_t bytes) {
    return bytes >= kLargeBytes ? kLargeAlignment : kSmallAlignment;
}

void put(std::string& out, std::uint64_t value, int bytes) {
    for (; bytes > 0; --bytes, value >>= 8U) {
        out += static_cast<char>(value);
    }
}

// `value`, or the mark that refers to the zip64 extra.
std::uint64_t short_form(std::uint64_t value) {
    return std::min<std::uint64_t>(value, kMark32);
}

std::uint64_t local_header_bytes(const NewRecord& record) {
    return kLocalBytes + record.name.size() + (record.bytes >= kMark32 ? 20 : 0) + kPaddingHead;
}

void put_local_header(std::string& out, const NewRecord& record, std::uint64_t padding) {
    const bool large = record.bytes >= kMark32;
    put(out, kLocalSignature, 4);
    put(out, large ? kVersionZip64 : kVersionPlain, 2);
    put(out, kFlagUtf8, 2);
    put(out, 0, 2 + 2 + 2);  // stored; no time, no date
    put(out, 0, 4);          // CRC, later
    put(out, short_form(record.bytes), 4);
    put(out, short_form(record.bytes), 4);
    put(out, record.name.size(), 2);
    put(out, (large ? 20 : 0) + kPaddingHead + padding, 2);
    out += record.name;
    if (large) {
        put(out, kExtraZip64, 2);
        put(out, 16, 2);
        put(out, record.bytes, 8);
        put(out, record.bytes, 8);
    }
    put(out, kExtraPadding, 2);
    put(out, padding, 2);
}

}  // namespace

void Layout::append(const NewRecord& record) {
    RecordPlace place;
    place.header_offset = file_.total_bytes();
    const std::uint64_t begin = place.header_offset + local_header_bytes(record);
    const std::uint64_t padding = base::align_up(begin, alignment_of(record.bytes)) - begin;
    place.local_crc = file_.literal_bytes() + kLocalCrcAt;
    std::string head;
    head.reserve(begin - place.header_offset + kSmallAlignment);
    put_local_header(head, record, padding);
    if (padding < kSmallAlignment) {
        head.append(padding, '\0');
    }
    file_.literal(head);
    if (padding >= kSmallAlignment) {
        file_.zeros(padding);
    }
    place.payload_offset = file_.total_bytes();
    place.literal = record.literal.has_value();
    if (place.literal) {
        file_.literal(*record.literal);
    } else {
        file_.payload(payloads_++, record.bytes);
    }
    places_.push_back(place);
}

void Layout::add_directory(const std::vector<NewRecord>& records) {
    std::string out;
    out.reserve(records.size() * kDirectoryBytesGuess);
    for (std::size_t i = 0; i < records.size(); ++i) {
        const NewRecord& record = records[i];
        RecordPlace& place = places_[i];
        const bool large = record.bytes >= kMark32;
        const bool far = place.header_offset >= kMark32;
        const std::uint64_t extra = (large ? 16 : 0) + (far ? 8 : 0);
        place.directory_crc = file_.literal_bytes() + out.size() + kDirectoryCrcAt;
        put(out, kDirectorySignature, 4);
        put(out, large || far ? kVersionZip64 : kVersionPlain, 2);  // made by
        put(out, large || far ? kVersionZip64 : kVersionPlain, 2);  // needed
        put(out, kFlagUtf8, 2);
        put(out, 0, 2 + 2 + 2);
        put(out, place.crc, 4);  // or later
        put(out, short_form(record.bytes), 4);
        put(out, short_form(record.bytes), 4);
        put(out, record.name.size(), 2);
        put(out, extra > 0 ? 4 + extra : 0, 2);
        put(out, 0, 2 + 2 + 2 + 4);  // comment, disk, attributes
        put(out, short_form(place.header_offset), 4);
        out += record.name;
        if (extra > 0) {
            put(out, kExtraZip64, 2);
            put(out, extra, 2);
            if (large) {
                put(out, record.bytes, 8);
                put(out, record.bytes, 8);
            }
            if (far) {
                put(out, place.header_offset, 8);
            }
        }
    }
    directory_offset_ = file_.total_bytes();
    const std::uint64_t end = directory_offset_ + out.size();
    const std::uint64_t directory_bytes = out.size();
    put(out, kZip64EndSignature, 4);
    put(out, kZip64EndBytes - 12, 8);
    put(out, kVersionZip64, 2);
    put(out, kVersionZip64, 2);
    put(out, 0, 4 + 4);  // disks
    put(out, records.size(), 8);
    put(out, records.size(), 8);
    put(out, directory_bytes, 8);
    put(out, directory_offset_, 8);
    put(out, kLocatorSignature, 4);
    put(out, 0, 4);
    put(out, end, 8);
    put(out, 1, 4);
    put(out, kEndSignature, 4);
    put(out, 0, 2 + 2);
    const std::uint64_t count = std::min<std::uint64_t>(records.size(), kMark16);
    put(out, count, 2);
    put(out, count, 2);
    put(out, short_form(directory_bytes), 4);
    put(out, short_form(directory_offset_), 4);
    put(out, 0, 2);  // comment
    file_.literal(out);
}

Result<Layout> Layout::make(std::vector<NewRecord> records) {
    std::pmr::monotonic_buffer_resource nodes;
    std::pmr::unordered_set<std::string_view> names(&nodes);
    names.reserve(records.size());
    std::uint64_t total = 0;
    for (NewRecord& record : records) {
        if (record.literal) {
            record.bytes = record.literal->size();
        }
        const auto sum = base::checked_add(total, record.bytes);
        if (!is_plain_path(record.name) || !sum || *sum > kBytesMax) {
            return fault(kWriting, fmt::format("record {} of {} bytes: its name or size is not "
                                               "possible in a zip",
                                               shown(record.name), record.bytes));
        }
        if (!names.insert(record.name).second) {
            return fault(kWriting, fmt::format("record {} comes twice", shown(record.name)));
        }
        total = *sum;
    }
    Layout layout;
    layout.places_.reserve(records.size());
    for (const NewRecord& record : records) {
        layout.append(record);
    }
    layout.finish(records);
    return layout;
}

void Layout::finish(const std::vector<NewRecord>& records) {
    const std::uint64_t bytes =
        std::accumulate(records.begin(), records.end(), std::uint64_t{0},
                        [](std::uint64_t sum, const auto& record) { return sum + record.bytes; });
    if (bytes >= kLargeBytes) {
        // The directory needs every CRC; earlier ranges should not wait for that.
        file_.zeros(base::align_up(file_.total_bytes(), kLargeAlignment) - file_.total_bytes());
    }
    add_directory(records);
    for (std::size_t i = 0; i < records.size(); ++i) {
        if (records[i].literal) {
            set_crc(i, crc32(std::as_bytes(std::span(*records[i].literal))));
        }
    }
}

std::uint64_t Layout::crc_offset(std::size_t record) const {
    return places_[record].header_offset + kLocalCrcAt;
}

void Layout::set_crc(std::size_t record, std::uint32_t crc) {
    std::string bytes;
    put(bytes, crc, 4);
    RecordPlace& place = places_[record];
    place.crc = crc;
    file_.patch(place.local_crc, bytes);
    if (place.directory_crc != 0) {
        file_.patch(place.directory_crc, bytes);
    }
}

std::vector<std::size_t> Layout::crcs_in(FileRange range) const {
    std::vector<std::size_t> out;
    const bool all = range.end > directory_offset_;
    const auto behind = [](std::uint64_t offset, const RecordPlace& p) {
        return offset < p.header_offset + kLocalCrcAt + 4;
    };
    auto place = all ? places_.begin()
                     : std::upper_bound(places_.begin(), places_.end(), range.begin, behind);
    for (; place != places_.end() && (all || place->header_offset + kLocalCrcAt < range.end);
         ++place) {
        if (!place->literal) {
            out.push_back(static_cast<std::size_t>(place - places_.begin()));
        }
    }
    return out;
}

}  // namespace penstock::format::zip
