// SPDX-License-Identifier: Apache-2.0
#include "features/files/feature_layout.hpp"

#include "base/align.hpp"
#include "format/utf8.hpp"
#include "stream/checksum.hpp"

#include <penstock/tensor.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace penstock::features {

namespace {

constexpr std::string_view kMagic = "PENSTKFT";
constexpr std::string_view kPartMagic = "PENSTKFP";
constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kSummed = kPreambleBytes - 8;  // the sum of the preamble comes last
constexpr std::uint64_t kRowBytesMax = std::uint64_t{1} << 40;
constexpr std::uint64_t kStripeBytes = std::uint64_t{64} << 10;

bool begins_with(std::span<const std::byte> bytes, std::string_view magic) {
    return bytes.size() >= magic.size() &&
           std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

void put(std::vector<std::byte>& out, std::uint64_t value, std::size_t bytes = 8) {
    for (std::size_t i = 0; i < bytes; ++i) {
        out.push_back(static_cast<std::byte>(value >> (8 * i)));
    }
}

void put(std::vector<std::byte>& out, std::string_view text) {
    put(out, text.size(), 4);
    for (const char c : text) {
        out.push_back(static_cast<std::byte>(c));
    }
}

std::uint64_t number_at(std::span<const std::byte> bytes, std::size_t at, std::size_t length = 8) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < length; ++i) {
        value |= std::to_integer<std::uint64_t>(bytes[at + i]) << (8 * i);
    }
    return value;
}

Block block_of(std::string_view magic, const std::vector<std::byte>& fields) {
    Block out{};
    std::memcpy(out.data(), magic.data(), magic.size());
    std::memcpy(out.data() + magic.size(), fields.data(),
                std::min(fields.size(), kSummed - magic.size()));
    std::vector<std::byte> sum;
    put(sum, stream::content_hash(std::span(out).first(kSummed)));
    std::memcpy(out.data() + kSummed, sum.data(), sum.size());
    return out;
}

}  // namespace

FileForm form_of(std::span<const std::byte> start) {
    if (begins_with(start, kMagic)) {
        return FileForm::kFeatures;
    }
    if (begins_with(start, kPartMagic)) {
        return FileForm::kFeaturePart;
    }
    return begins_with(start, kNpyMagic) ? FileForm::kNpy : FileForm::kOther;
}

std::uint64_t rows_in_part(std::uint64_t rows, std::uint64_t stripe_rows, std::uint64_t parts,
                           std::uint32_t part) {
    const std::uint64_t stripes = rows / stripe_rows;
    const std::uint64_t whole = stripes / parts + (part < stripes % parts ? 1 : 0);
    return whole * stripe_rows + (part == stripes % parts ? rows % stripe_rows : 0);
}

std::uint64_t bytes_in_part(const Table& table, std::uint64_t parts, std::uint32_t part) {
    return rows_in_part(table.rows, table.stripe_rows, parts, part) * table.stride_bytes;
}

double touched_bytes(std::uint64_t row_bytes, std::uint64_t stride_bytes, std::uint64_t block_bytes,
                     std::uint64_t base) {
    // Rows begin in their blocks at base + all multiples of this.
    const std::uint64_t step = std::gcd(stride_bytes, block_bytes);
    const std::uint64_t places = block_bytes / step;
    const std::uint64_t first = base % step;
    std::uint64_t blocks = 0;
    for (std::uint64_t i = 0; i < places; ++i) {
        blocks += (first + i * step + row_bytes + block_bytes - 1) / block_bytes;
    }
    return static_cast<double>(blocks) / static_cast<double>(places) *
           static_cast<double>(block_bytes);
}

std::uint64_t stride_for(std::uint64_t row_bytes) {
    std::uint64_t best = row_bytes;
    const auto cost = [row_bytes](std::uint64_t stride) {
        return touched_bytes(row_bytes, stride, kBlockBytes) * static_cast<double>(stride);
    };
    for (std::uint64_t unit = 64; unit <= kBlockBytes; unit *= 2) {
        const std::uint64_t stride = base::align_up(row_bytes, unit);
        best = cost(stride) < cost(best) ? stride : best;
    }
    return best;
}

std::uint64_t stripe_rows_for(std::uint64_t stride_bytes) {
    std::uint64_t rows = 1;
    while (rows * 2 * stride_bytes <= kStripeBytes) {
        rows *= 2;
    }
    return rows;
}

std::uint64_t row_bytes_of(std::string_view dtype, std::span<const std::uint64_t> row_shape) {
    const auto type = element_type_named(dtype);
    const auto bytes = type ? bytes_of(*type, row_shape) : std::nullopt;
    return bytes && *bytes < kRowBytesMax ? *bytes : 0;
}

Block encode(const Preamble& preamble) {
    std::vector<std::byte> fields;
    put(fields, kVersion, 4);
    put(fields, 0, 4);
    put(fields, preamble.file_bytes);
    put(fields, preamble.directory_offset);
    put(fields, preamble.directory_bytes);
    put(fields, preamble.directory_sum);
    put(fields, preamble.id);
    return block_of(kMagic, fields);
}

Block encode(const PartPreamble& preamble) {
    std::vector<std::byte> fields;
    put(fields, kVersion, 4);
    put(fields, 0, 4);
    put(fields, preamble.file_bytes);
    put(fields, preamble.id);
    put(fields, preamble.part, 4);
    put(fields, preamble.parts, 4);
    return block_of(kPartMagic, fields);
}

std::vector<std::byte> encode(const Directory& directory) {
    std::vector<std::byte> out;
    put(out, directory.parts.size(), 4);
    put(out, directory.tables.size(), 4);
    put(out, directory.sums_offset);
    put(out, directory.sums);
    put(out, directory.sums_sum);
    for (const PartFile& part : directory.parts) {
        put(out, part.path);
        put(out, part.data_end);
        put(out, part.file_bytes);
    }
    for (const Table& table : directory.tables) {
        put(out, table.name);
        put(out, table.dtype);
        put(out, table.row_shape.size(), 4);
        for (const std::uint64_t length : table.row_shape) {
            put(out, length);
        }
        put(out, table.rows);
        put(out, table.row_bytes);
        put(out, table.stride_bytes);
        put(out, table.stripe_rows);
        for (const std::uint64_t base : table.bases) {
            put(out, base);
        }
    }
    return out;
}

namespace {

base::Failure damaged(std::string_view message, std::string_view path) {
    return base::fail(base::error(ErrorCode::kDamaged, "open features", message, path));
}

base::Result<void> check_block(std::span<const std::byte> start, std::string_view path) {
    if (start.size() < kPreambleBytes) {
        return damaged("it is cut short: a feature file has 4096 bytes or more", path);
    }
    if (number_at(start, kSummed) != stream::content_hash(start.first(kSummed))) {
        return damaged(
            "its header is damaged: the checksum does not match. Import it again, or take a copy",
            path);
    }
    if (number_at(start, 8, 4) != kVersion) {
        return base::fail(base::error(ErrorCode::kUnsupported, "open features",
                                      "it was written by a newer version of Penstock; update this "
                                      "one",
                                      path));
    }
    return {};
}

base::Result<void> check_length(std::uint64_t expected, std::uint64_t found,
                                std::string_view path) {
    if (expected == found) {
        return {};
    }
    return damaged("it has " + std::to_string(found) + " bytes, and its header says " +
                       std::to_string(expected) +
                       (found < expected ? ": it is cut short. Copy or import it again"
                                         : ": something was appended. Copy or import it again"),
                   path);
}

// The fields of a directory, one after the other.
class Fields {
public:
    explicit Fields(std::span<const std::byte> bytes) : bytes_(bytes) {}

    std::uint64_t number(std::size_t length = 8) {
        if (bytes_.size() - at_ < length) {
            over_ = true;
            return 0;
        }
        at_ += length;
        return number_at(bytes_, at_ - length, length);
    }
    std::string text(std::uint64_t bytes_max) {
        const std::uint64_t length = number(4);
        if (length > bytes_max || length > bytes_.size() - at_) {
            over_ = true;
            return {};
        }
        at_ += length;
        return {reinterpret_cast<const char*>(bytes_.data() + at_ - length), length};
    }
    [[nodiscard]] bool over() const { return over_; }
    [[nodiscard]] bool at_end() const { return !over_ && at_ == bytes_.size(); }
    [[nodiscard]] std::uint64_t left() const { return bytes_.size() - at_; }

private:
    std::span<const std::byte> bytes_;
    std::size_t at_ = 0;
    bool over_ = false;
};

struct Region {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::size_t table = 0;
};

class DirectoryReader {
public:
    DirectoryReader(std::span<const std::byte> bytes, const Preamble& preamble,
                    std::string_view path)
        : fields_(bytes), preamble_(preamble), path_(path) {}

    base::Result<Directory> read() {
        const std::uint64_t parts = fields_.number(4);
        const std::uint64_t tables = fields_.number(4);
        out_.sums_offset = fields_.number();
        out_.sums = fields_.number();
        out_.sums_sum = fields_.number();
        if (fields_.over() || parts == 0 || parts > kPartsMax || tables > kTablesMax) {
            return wrong("the numbers of parts or tables are impossible");
        }
        for (std::uint64_t i = 0; i < parts; ++i) {
            PENSTOCK_CHECK(read_part(i));
        }
        for (std::uint64_t i = 0; i < tables; ++i) {
            PENSTOCK_CHECK(read_table());
        }
        if (!fields_.at_end()) {
            return wrong("the directory has more bytes than its tables");
        }
        PENSTOCK_CHECK(check_names());
        PENSTOCK_CHECK(check_overlaps());
        PENSTOCK_CHECK(check_sums());
        return std::move(out_);
    }

private:
    base::Failure wrong(const std::string& message) const {
        return damaged("its directory is invalid: " + message, path_);
    }

    base::Result<void> read_part(std::uint64_t index) {
        PartFile part;
        part.path = fields_.text(kBlockBytes);
        part.data_end = fields_.number();
        part.file_bytes = fields_.number();
        if (fields_.over() || (part.path.empty() && index != 0) ||
            part.path.find('\0') != std::string::npos) {
            return wrong("the path of part " + std::to_string(index) + " is impossible");
        }
        const std::uint64_t end = part.path.empty() ? preamble_.directory_offset : part.file_bytes;
        if (part.data_end < kBlockBytes || part.data_end > end || end > kFileBytesMax) {
            return wrong("the length of part " + std::to_string(index) + " is impossible");
        }
        out_.parts.push_back(std::move(part));
        return {};
    }

    base::Result<void> read_table() {
        Table table;
        table.name = fields_.text(kNameBytesMax);
        table.dtype = fields_.text(64);
        const std::uint64_t dimensions = fields_.number(4);
        if (fields_.over() || table.name.empty() || !format::is_utf8(table.name) ||
            table.name.find('\0') != std::string::npos || dimensions > kDimensionsMax) {
            return wrong("a table has no name, one that is not UTF-8, or too many dimensions");
        }
        for (std::uint64_t i = 0; i < dimensions; ++i) {
            table.row_shape.push_back(fields_.number());
        }
        table.rows = fields_.number();
        table.row_bytes = fields_.number();
        table.stride_bytes = fields_.number();
        table.stripe_rows = fields_.number();
        for (std::size_t i = 0; i < out_.parts.size() && !fields_.over(); ++i) {
            table.bases.push_back(fields_.number());
        }
        if (fields_.over()) {
            return wrong("it ends inside table " + std::to_string(out_.tables.size()));
        }
        PENSTOCK_CHECK(check_table(table));
        out_.tables.push_back(std::move(table));
        return {};
    }

    base::Result<void> check_table(const Table& table) const {
        const std::string which = "table " + std::to_string(out_.tables.size());
        if (table.row_bytes == 0 || table.row_bytes != row_bytes_of(table.dtype, table.row_shape)) {
            return wrong(which + ": the bytes of a row are not those of its dtype and shape");
        }
        if (table.stride_bytes < table.row_bytes || table.stride_bytes > kRowBytesMax * 2) {
            return wrong(which + ": its stride is shorter than a row, or impossible");
        }
        if (!base::is_power_of_two(table.stripe_rows) || table.stripe_rows > kStripeBytes) {
            return wrong(which + ": its stripes are impossible");
        }
        const auto all = base::checked_multiply(table.rows, table.stride_bytes);
        if (!all || *all > kFileBytesMax) {
            return wrong(which + ": the number of its rows is impossible");
        }
        for (std::size_t p = 0; p < table.bases.size(); ++p) {
            const std::uint64_t bytes =
                bytes_in_part(table, out_.parts.size(), static_cast<std::uint32_t>(p));
            const auto end = base::checked_add(table.bases[p], bytes);
            if (table.bases[p] < kBlockBytes || !base::is_aligned(table.bases[p], kBlockBytes) ||
                !end || *end > out_.parts[p].data_end) {
                return wrong(which + ": its rows do not lie in part " + std::to_string(p));
            }
        }
        return {};
    }

    base::Result<void> check_names() const {
        std::vector<std::string_view> names;
        for (const Table& table : out_.tables) {
            names.push_back(table.name);
        }
        std::sort(names.begin(), names.end());
        if (std::adjacent_find(names.begin(), names.end()) != names.end()) {
            return wrong("two tables have one name");
        }
        std::vector<std::string_view> paths;
        for (const PartFile& part : out_.parts) {
            paths.push_back(part.path);
        }
        std::sort(paths.begin(), paths.end());
        if (std::adjacent_find(paths.begin(), paths.end()) != paths.end()) {
            return wrong("two parts are one file");
        }
        return {};
    }

    base::Result<void> check_overlaps() const {
        for (std::size_t p = 0; p < out_.parts.size(); ++p) {
            std::vector<Region> regions;
            for (std::size_t t = 0; t < out_.tables.size(); ++t) {
                const Table& table = out_.tables[t];
                const std::uint64_t bytes =
                    bytes_in_part(table, out_.parts.size(), static_cast<std::uint32_t>(p));
                if (bytes != 0) {
                    regions.push_back({table.bases[p], table.bases[p] + bytes, t});
                }
            }
            std::sort(regions.begin(), regions.end(),
                      [](const Region& a, const Region& b) { return a.begin < b.begin; });
            for (std::size_t i = 1; i < regions.size(); ++i) {
                if (regions[i].begin < regions[i - 1].end) {
                    return wrong("tables " + std::to_string(regions[i - 1].table) + " and " +
                                 std::to_string(regions[i].table) + " overlap");
                }
            }
        }
        return {};
    }

    base::Result<void> check_sums() const {
        std::uint64_t chunks = 0;
        for (const Table& table : out_.tables) {
            for (std::size_t p = 0; p < out_.parts.size(); ++p) {
                chunks += chunks_of(
                    bytes_in_part(table, out_.parts.size(), static_cast<std::uint32_t>(p)));
            }
        }
        const std::uint64_t before = out_.parts[0].path.empty() ? out_.parts[0].data_end : 0;
        if (out_.sums != chunks || out_.sums_offset < std::max(before, kBlockBytes) ||
            out_.sums_offset > preamble_.directory_offset ||
            (preamble_.directory_offset - out_.sums_offset) / 8 < chunks) {
            return wrong("the place of the checksums is impossible");
        }
        return {};
    }

    Fields fields_;
    const Preamble& preamble_;
    std::string_view path_;
    Directory out_;
};

}  // namespace

base::Result<Preamble> decode_preamble(std::span<const std::byte> start, std::uint64_t file_bytes,
                                       std::string_view path) {
    PENSTOCK_CHECK(check_block(start, path));
    if (form_of(start) != FileForm::kFeatures) {
        return damaged("it is no feature file", path);
    }
    const Preamble out{.file_bytes = number_at(start, 16),
                       .directory_offset = number_at(start, 24),
                       .directory_bytes = number_at(start, 32),
                       .directory_sum = number_at(start, 40),
                       .id = number_at(start, 48)};
    PENSTOCK_CHECK(check_length(out.file_bytes, file_bytes, path));
    const auto end = base::checked_add(out.directory_offset, out.directory_bytes);
    if (out.directory_offset < kBlockBytes || !end || *end > out.file_bytes ||
        out.directory_bytes > kDirectoryBytesMax) {
        return damaged("its header is invalid: the directory does not lie in the file", path);
    }
    return out;
}

base::Result<PartPreamble> decode_part(std::span<const std::byte> start, std::uint64_t file_bytes,
                                       std::string_view path) {
    if (form_of(start) != FileForm::kFeaturePart) {
        return damaged("it is no part of a feature file", path);
    }
    PENSTOCK_CHECK(check_block(start, path));
    const PartPreamble out{.file_bytes = number_at(start, 16),
                           .id = number_at(start, 24),
                           .part = static_cast<std::uint32_t>(number_at(start, 32, 4)),
                           .parts = static_cast<std::uint32_t>(number_at(start, 36, 4))};
    PENSTOCK_CHECK(check_length(out.file_bytes, file_bytes, path));
    return out;
}

base::Result<Directory> decode_directory(std::span<const std::byte> bytes, const Preamble& preamble,
                                         std::string_view path) {
    if (stream::content_hash(bytes) != preamble.directory_sum) {
        return damaged(
            "its directory is damaged: the checksum does not match. Import it again, or take a "
            "copy",
            path);
    }
    return DirectoryReader(bytes, preamble, path).read();
}

}  // namespace penstock::features
