// SPDX-License-Identifier: Apache-2.0
#include "base/align.hpp"
#include "format/utf8.hpp"
#include "format/zip/crc32.hpp"
#include "format/zip/zip.hpp"
#include "format/zip/zip_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

namespace penstock::format::zip {

namespace {

constexpr std::string_view kReading = "read zip";
constexpr std::uint64_t kCommentBytesMax = 0xFFFF;
constexpr int kLooksMax = 4096;  // at what may be an end record
constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

using Bytes = std::vector<std::byte>;

std::uint64_t get(std::span<const std::byte> bytes, std::size_t at, int count) {
    std::uint64_t value = 0;
    for (int i = 0; i < count; ++i) {
        value |= static_cast<std::uint64_t>(bytes[at + static_cast<std::size_t>(i)]) << (8 * i);
    }
    return value;
}

Result<Bytes> fetch(ByteSource& source, std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t size = source.size();
    if (offset > size || bytes > size - offset) {
        return fault(kReading,
                     fmt::format("it points to {} bytes past the end of the file ({} "
                                 "bytes): it was cut short, or is not a zip",
                                 bytes, size),
                     offset);
    }
    Bytes out(bytes);
    PENSTOCK_CHECK(source.read(offset, out));
    return out;
}

struct End {
    std::uint64_t directory_offset = 0;
    std::uint64_t directory_bytes = 0;
    std::uint64_t records = 0;
    std::uint64_t limit = 0;  // offset of the end records: everything else lies before
    std::uint64_t end = 0;    // of the archive
};

// Reads the zip64 end record, at the offset in the locator before the plain one. That of an archive
// behind others counts from its own beginning: there the record is right before the locator.
Result<End> read_zip64_end(ByteSource& source, std::uint64_t end_offset, bool needed, End plain) {
    if (end_offset < kLocatorBytes) {
        return plain;
    }
    PENSTOCK_TRY(locator, fetch(source, end_offset - kLocatorBytes, kLocatorBytes));
    if (get(locator, 0, 4) != kLocatorSignature) {
        if (needed) {
            return fault(kReading, "its end needs a zip64 record, which is missing", end_offset);
        }
        return plain;
    }
    const std::uint64_t before = end_offset - kLocatorBytes;
    std::uint64_t at = get(locator, 8, 8);
    if (at > before || before - at < kZip64EndBytes) {
        return fault(kReading, "its zip64 end record is out of place", before);
    }
    const std::uint64_t adjoining = before - kZip64EndBytes;
    PENSTOCK_TRY(record, fetch(source, adjoining, kZip64EndBytes));
    // The size of all before it, where it counts from its own beginning.
    const auto own = base::checked_add(get(record, 40, 8), get(record, 48, 8));
    if (get(record, 0, 4) == kZip64EndSignature && (at == adjoining || own == at)) {
        at = adjoining;
    } else {
        PENSTOCK_TRY(other, fetch(source, at, kZip64EndBytes));
        record = std::move(other);
    }
    if (get(record, 0, 4) != kZip64EndSignature || get(record, 16, 4) != 0 ||
        get(record, 20, 4) != 0 || get(record, 24, 8) != get(record, 32, 8)) {
        return fault(kReading, "its zip64 end record is damaged, or of several disks", at);
    }
    return End{get(record, 48, 8), get(record, 40, 8), get(record, 32, 8), at, plain.end};
}

Result<bool> has_signature(ByteSource& source, std::uint64_t offset, std::uint64_t signature) {
    if (offset > source.size() || source.size() - offset < 4) {
        return false;
    }
    PENSTOCK_TRY(bytes, fetch(source, offset, 4));
    return get(bytes, 0, 4) == signature;
}

// Finds where the archive of this end begins; 0 if it cannot begin later: the first bytes then are
// its own, or nothing of a zip.
Result<std::uint64_t> begin_of(ByteSource& source, const End& end) {
    const auto size = base::checked_add(end.directory_offset, end.directory_bytes);
    if (!size || *size >= end.limit || end.records == 0) {
        return std::uint64_t{0};
    }
    const std::uint64_t begin = end.limit - *size;
    PENSTOCK_TRY(local, has_signature(source, begin, kLocalSignature));
    PENSTOCK_TRY(directory,
                 has_signature(source, begin + end.directory_offset, kDirectorySignature));
    return local && directory ? begin : std::uint64_t{0};
}

// The end record whose archive ends at `size`; with `slack`, before it: of the last one whose
// directory is right before it.
// `looks`: how many may be looked at, for each is read for.
Result<std::optional<End>> find_end_at(ByteSource& source, std::uint64_t size, bool slack,
                                       int& looks) {
    const std::uint64_t tail_bytes = std::min(size, kEndBytes + kCommentBytesMax);
    if (tail_bytes < kEndBytes) {
        return std::optional<End>();
    }
    PENSTOCK_TRY(tail, fetch(source, size - tail_bytes, tail_bytes));
    for (std::uint64_t at = tail_bytes - kEndBytes + 1; at-- > 0;) {
        // The comment must end with the file; otherwise the signature is a part of it.
        const std::uint64_t behind = tail_bytes - at - kEndBytes;
        if (looks == 0 || get(tail, at, 4) != kEndSignature ||
            (slack ? get(tail, at + 20, 2) > behind : get(tail, at + 20, 2) != behind)) {
            continue;
        }
        const std::uint64_t offset = size - tail_bytes + at;
        if (get(tail, at + 4, 2) != 0 || get(tail, at + 6, 2) != 0) {
            if (slack) {
                continue;
            }
            return unsupported(kReading, "it spans several disks", offset);
        }
        --looks;
        const End plain{get(tail, at + 16, 4), get(tail, at + 12, 4), get(tail, at + 10, 2), offset,
                        offset + kEndBytes + get(tail, at + 20, 2)};
        const bool needed = plain.directory_offset == kMark32 || plain.directory_bytes == kMark32 ||
                            plain.records == kMark16;
        auto found = read_zip64_end(source, offset, needed, plain);
        if (!slack) {
            PENSTOCK_TRY(end, std::move(found));
            return std::optional<End>(end);
        }
        if (found) {
            PENSTOCK_TRY(begin, begin_of(source, *found));
            const bool first = found->directory_offset + found->directory_bytes == found->limit;
            if (begin != 0 || first) {
                return std::optional<End>(*found);
            }
        }
    }
    return std::optional<End>();
}

// The last end of an archive that others, or other bytes, may follow.
Result<std::optional<End>> find_last_end(ByteSource& source, std::uint64_t size, int& looks) {
    PENSTOCK_TRY(exact, find_end_at(source, size, false, looks));
    if (exact) {
        return exact;
    }
    for (std::uint64_t behind = 0; behind < std::min(size, kBehindBytesMax);
         behind += kCommentBytesMax) {
        PENSTOCK_TRY(before, find_end_at(source, size - behind, true, looks));
        if (before) {
            return before;
        }
    }
    return std::optional<End>();
}

// The end of the archive that begins at 0. Others may follow it, and other bytes, as in what was
// saved to one open file.
Result<End> find_end(ByteSource& source) {
    std::uint64_t size = source.size();
    if (size < kEndBytes) {
        return fault(kReading,
                     fmt::format("the file has {} bytes; a zip has at least {}", size, kEndBytes));
    }
    while (true) {
        int looks = kLooksMax;
        PENSTOCK_TRY(exact, find_last_end(source, size, looks));
        if (!exact && size == source.size()) {
            return fault(kReading,
                         "it has no end record: it was cut short, or is not a zip (.pt files of "
                         "torch before 1.6 are not); copy or download it again");
        }
        if (!exact) {
            return fault(kReading,
                         fmt::format("a zip begins at byte {}, and what lies before it is not a "
                                     "whole zip: it was cut short",
                                     size),
                         size);
        }
        PENSTOCK_TRY(begin, begin_of(source, *exact));
        if (begin == 0) {
            return *exact;
        }
        size = begin;
    }
}

struct Entry {
    Record record;
    std::uint64_t header_offset = 0;
};

// Takes the values from the zip64 extra that the entry marks as being there.
Result<void> read_zip64_extra(std::span<const std::byte> extra, Entry& entry,
                              std::uint64_t& packed) {
    const bool none =
        entry.record.bytes != kMark32 && packed != kMark32 && entry.header_offset != kMark32;
    while (!none && extra.size() >= 4) {
        const std::uint64_t bytes = get(extra, 2, 2);
        if (bytes > extra.size() - 4) {
            break;
        }
        if (get(extra, 0, 2) != kExtraZip64) {
            extra = extra.subspan(4 + bytes);
            continue;
        }
        auto field = extra.subspan(4, bytes);
        for (std::uint64_t* value : {&entry.record.bytes, &packed, &entry.header_offset}) {
            if (*value != kMark32) {
                continue;
            }
            if (field.size() < 8) {
                return fault(kReading, fmt::format("record {}: its zip64 field is too short",
                                                   shown(entry.record.name)));
            }
            *value = get(field, 0, 8);
            field = field.subspan(8);
        }
        return {};
    }
    return {};  // without the field the marks are the values: 4 GiB - 1
}

// The name of an array in a .npz is a key, which may be any text.
bool is_key(std::string_view name) {
    return name.ends_with(".npy") && name.size() <= kNameBytesMax && is_utf8(name) &&
           name.find('\0') == std::string_view::npos;
}

// Reads one entry at the beginning of `bytes`, and removes it there.
Result<Entry> read_entry(std::span<const std::byte>& bytes, std::uint64_t number) {
    const auto damaged = [number](std::string_view what) {
        return fault(kReading, fmt::format("entry {} of its directory {}", number, what));
    };
    const auto not_read = [number](std::string_view what) {
        return unsupported(kReading, fmt::format("entry {} of its directory {}", number, what));
    };
    if (bytes.size() < kDirectoryBytes || get(bytes, 0, 4) != kDirectorySignature) {
        return damaged("is missing: the directory is damaged");
    }
    const std::uint64_t name_bytes = get(bytes, 28, 2);
    const std::uint64_t extra_bytes = get(bytes, 30, 2);
    const std::uint64_t total = kDirectoryBytes + name_bytes + extra_bytes + get(bytes, 32, 2);
    if (total > bytes.size()) {
        return damaged("runs past the end of the directory");
    }
    Entry entry;
    entry.record.name.assign(reinterpret_cast<const char*>(bytes.data()) + kDirectoryBytes,
                             name_bytes);
    entry.record.bytes = get(bytes, 24, 4);
    entry.record.crc = static_cast<std::uint32_t>(get(bytes, kDirectoryCrcAt, 4));
    entry.header_offset = get(bytes, 42, 4);
    std::uint64_t packed = get(bytes, 20, 4);
    const std::string name = shown(entry.record.name);
    if (!is_plain_path(entry.record.name) && !is_key(entry.record.name)) {
        return not_read("has a name that leads out of the archive or is too long: " + name);
    }
    if ((get(bytes, 8, 2) & kFlagEncrypted) != 0 || get(bytes, 34, 2) != 0) {
        return not_read("is encrypted or on another disk: " + name);
    }
    PENSTOCK_CHECK(
        read_zip64_extra(bytes.subspan(kDirectoryBytes + name_bytes, extra_bytes), entry, packed));
    if (get(bytes, 10, 2) != 0) {
        const bool script = entry.record.name.find("/code/") != std::string::npos;
        return not_read(script ? "is the code of a TorchScript archive, which is a program; save "
                                 "its state_dict() instead: " +
                                     name
                        : entry.record.name.ends_with(".npy")
                            ? "is a compressed NumPy array (.npz), which numpy.load() reads: " +
                                  name
                            : "is compressed, which torch.save never does: " + name +
                                  "; unpack all, and pack them again without compression");
    }
    if (packed != entry.record.bytes) {
        return damaged("has two sizes, and is not compressed: " + name);
    }
    bytes = bytes.subspan(total);
    return entry;
}

std::size_t header_bytes(const Entry& entry) {
    return kLocalBytes + entry.record.name.size();
}

// Reads the local headers, with the names after them, one after the other. They lie next to their
// payloads, far apart, and there is one per tensor: all are read concurrently.
Result<Bytes> fetch_headers(ByteSource& source, std::span<const Entry> entries,
                            std::uint64_t limit) {
    std::size_t total = 0;
    for (const Entry& entry : entries) {
        if (entry.header_offset > limit || limit - entry.header_offset < header_bytes(entry)) {
            return fault(kReading,
                         fmt::format("record {}: its header lies past the end of the data",
                                     shown(entry.record.name)),
                         entry.header_offset);
        }
        total += header_bytes(entry);  // less than the directory has
    }
    Bytes heads(total);
    std::vector<ByteRead> reads;
    reads.reserve(entries.size());
    std::span<std::byte> rest = heads;
    for (const Entry& entry : entries) {
        reads.push_back({entry.header_offset, rest.first(header_bytes(entry))});
        rest = rest.subspan(header_bytes(entry));
    }
    PENSTOCK_CHECK(source.read_many(reads));
    return heads;
}

// Finds the payload: it follows the local header, whose extra the directory does not have.
Result<void> locate(std::span<const std::byte> head, Entry& entry, std::uint64_t limit) {
    const auto wrong = [&entry](std::string_view what) {
        return fault(kReading, fmt::format("record {}: {}", shown(entry.record.name), what),
                     entry.header_offset);
    };
    if (get(head, 0, 4) != kLocalSignature || get(head, 8, 2) != 0 ||
        get(head, 26, 2) != entry.record.name.size()) {
        return wrong("its header is damaged, or is another record's");
    }
    const auto name = std::as_bytes(std::span(entry.record.name));
    if (!std::equal(name.begin(), name.end(), head.begin() + kLocalBytes)) {
        return wrong("its header names another record");
    }
    entry.record.offset = entry.header_offset + head.size() + get(head, 28, 2);
    if (entry.record.offset > limit || entry.record.bytes > limit - entry.record.offset) {
        return wrong("it runs past the end of the data");
    }
    return {};
}

Result<void> check_overlaps(const std::vector<Entry>& entries) {
    std::vector<const Entry*> order;
    order.reserve(entries.size());
    for (const Entry& entry : entries) {
        order.push_back(&entry);
    }
    std::sort(order.begin(), order.end(),
              [](const Entry* a, const Entry* b) { return a->header_offset < b->header_offset; });
    for (std::size_t i = 1; i < order.size(); ++i) {
        const Record& before = order[i - 1]->record;
        if (before.offset + before.bytes > order[i]->header_offset) {
            return fault(kReading, fmt::format("records {} and {} overlap", shown(before.name),
                                               shown(order[i]->record.name)));
        }
    }
    return {};
}

Result<std::uint32_t> crc_of(ByteSource& source, const Record& record) {
    std::vector<std::byte> piece(std::min(record.bytes, kPieceBytes));
    std::uint32_t crc = 0;
    for (std::uint64_t done = 0; done < record.bytes;) {
        const std::uint64_t bytes = std::min(record.bytes - done, kPieceBytes);
        PENSTOCK_CHECK(source.read(record.offset + done, std::span(piece).first(bytes)));
        crc = crc32(std::span(piece).first(bytes), crc);
        done += bytes;
    }
    return crc;
}

}  // namespace

bool is_plain_path(std::string_view path) {
    if (path.empty() || path.size() > kNameBytesMax || path.starts_with('/') || !is_utf8(path) ||
        path.find_first_of(std::string_view("\\\0", 2)) != std::string_view::npos) {
        return false;
    }
    while (!path.empty()) {
        const std::size_t slash = path.find('/');
        const std::string_view part = path.substr(0, slash);
        if (part == ".." || part == ".") {
            return false;
        }
        path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
    }
    return true;
}

Result<std::uint64_t> begin_of_last(ByteSource& source) {
    int looks = 1;
    const auto end = find_end_at(source, source.size(), false, looks);
    return end && *end ? begin_of(source, **end) : Result<std::uint64_t>(0);
}

Result<std::vector<Record>> read_directory(ByteSource& source, std::uint64_t* bytes) {
    PENSTOCK_TRY(end, find_end(source));
    if (bytes != nullptr) {
        *bytes = end.end;
    }
    if (end.directory_bytes > kDirectoryBytesMax) {
        return unsupported(
            kReading, fmt::format("its directory would have {} bytes; no more than {} are read",
                                  end.directory_bytes, kDirectoryBytesMax));
    }
    if (end.directory_offset > end.limit ||
        end.directory_bytes > end.limit - end.directory_offset ||
        end.records > end.directory_bytes / kDirectoryBytes) {
        return fault(kReading, "its end record does not fit the file: it is damaged", end.limit);
    }
    PENSTOCK_TRY(directory, fetch(source, end.directory_offset, end.directory_bytes));
    std::span<const std::byte> rest = directory;
    std::vector<Entry> entries;
    entries.reserve(end.records);
    for (std::uint64_t i = 0; i < end.records; ++i) {
        const std::uint64_t at = end.directory_offset + (directory.size() - rest.size());
        PENSTOCK_TRY(entry, read_entry(rest, i));
        entry.record.header_offset = entry.header_offset;
        entry.record.crc_offset = at + kDirectoryCrcAt;
        entries.push_back(std::move(entry));
    }
    if (!rest.empty()) {
        return fault(kReading, "its directory has more than its end record says");
    }
    PENSTOCK_TRY(heads, fetch_headers(source, entries, end.directory_offset));
    std::unordered_set<std::string_view> names;
    std::span<const std::byte> head = heads;
    for (Entry& entry : entries) {
        if (!names.insert(entry.record.name).second) {
            return unsupported(kReading,
                               fmt::format("record {} comes twice", shown(entry.record.name)));
        }
        PENSTOCK_CHECK(locate(head.first(header_bytes(entry)), entry, end.directory_offset));
        head = head.subspan(header_bytes(entry));
    }
    PENSTOCK_CHECK(check_overlaps(entries));
    std::vector<Record> out;
    out.reserve(entries.size());
    for (Entry& entry : entries) {
        out.push_back(std::move(entry.record));
    }
    return out;
}

Result<std::vector<std::uint64_t>> crc_places(ByteSource& source, const Record& record) {
    std::vector<std::uint64_t> out;
    if (record.crc == 0) {
        PENSTOCK_TRY(crc, crc_of(source, record));
        if (crc != 0) {
            return out;
        }
    }
    const auto wrong = [&record](std::string_view what) {
        return fault(kReading, fmt::format("record {}: {}", shown(record.name), what),
                     record.header_offset);
    };
    out.push_back(record.crc_offset);
    PENSTOCK_TRY(head, fetch(source, record.header_offset, kLocalBytes));
    const bool described = (get(head, 6, 2) & kFlagDescriptor) != 0;
    const std::uint64_t local = get(head, kLocalCrcAt, 4);
    if (local == record.crc && (local != 0 || !described)) {
        out.push_back(record.header_offset + kLocalCrcAt);
    } else if (!described || local != 0) {
        return wrong("its header has another CRC than the directory");
    }
    if (described) {
        const std::uint64_t at = record.offset + record.bytes;
        PENSTOCK_TRY(tail, fetch(source, at, 8));
        const bool is_signed =
            get(tail, 0, 4) == kDescriptorSignature && get(tail, 4, 4) == record.crc;
        if (!is_signed && get(tail, 0, 4) != record.crc) {
            return wrong("its header announces a data descriptor, and none follows the payload");
        }
        out.push_back(at + (is_signed ? 4 : 0));
    }
    return out;
}

Result<void> check_crc(ByteSource& source, const Record& record) {
    if (record.crc == 0) {
        return {};
    }
    PENSTOCK_TRY(crc, crc_of(source, record));
    if (crc != record.crc) {
        return fault(kReading,
                     fmt::format("record {}: its bytes have the CRC {:08x}, and the file "
                                 "says {:08x}: they were damaged",
                                 shown(record.name), crc, record.crc),
                     record.offset);
    }
    return {};
}

}  // namespace penstock::format::zip
