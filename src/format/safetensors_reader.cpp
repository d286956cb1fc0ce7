// SPDX-License-Identifier: Apache-2.0
// Parses the header's JSON into tensors, with one handler that knows what is allowed at each depth:
//   { name: { "dtype": .., "shape": [..], "data_offsets": [b, e], unknown: anything }, .. }
// then the checks that need all of them: sizes, holes, overlaps, the end of the file.
#include "base/align.hpp"
#include "format/json.hpp"
#include "format/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace penstock::format::safetensors {

namespace {

constexpr std::string_view kReading = "read safetensors";
constexpr std::string_view kBlanks = " \t\r\n";

class Handler final : public JsonHandler {
public:
    Header header;

    std::string key(std::string& name) override {
        if (skipping_ > 0) {
            return {};
        }
        if (depth_ == 1) {
            in_metadata_ = name == "__metadata__";
            header.has_metadata = header.has_metadata || in_metadata_;
            name_ = std::move(name);
        } else if (in_metadata_) {
            header.metadata.emplace_back(std::move(name), "");
        } else {
            field_ = name == "dtype"          ? Field::kType
                     : name == "shape"        ? Field::kShape
                     : name == "data_offsets" ? Field::kOffsets
                                              : Field::kUnknown;
        }
        return {};
    }

    std::string open(bool array) override {
        ++depth_;
        if (skipping_ > 0) {
            ++skipping_;
            return {};
        }
        if (depth_ == 1) {
            return array ? "the header is a list, not an object of tensors" : "";
        }
        if (depth_ == 2) {
            return array ? wrong("it is a list, not an object") : begin_tensor();
        }
        if (in_metadata_) {
            return "metadata " + shown(header.metadata.back().first) + " is not a string";
        }
        const bool expects = field_ == Field::kShape || field_ == Field::kOffsets;
        if (array && expects && depth_ == 3) {
            has_shape_ = has_shape_ || field_ == Field::kShape;
            return {};
        }
        if (field_ != Field::kUnknown) {
            return wrong("a field of it has the wrong form");
        }
        skipping_ = 1;
        return {};
    }

    std::string close(bool /*array*/) override {
        --depth_;
        if (skipping_ > 0) {
            --skipping_;
            return {};
        }
        if (depth_ == 1 && !in_metadata_) {
            return end_tensor();
        }
        return {};
    }

    std::string scalar(const JsonScalar& value) override {
        if (skipping_ > 0) {
            return {};
        }
        if (depth_ == 0) {
            return "the header is not an object of tensors";
        }
        if (depth_ == 1) {
            const bool absent = in_metadata_ && value.kind == JsonScalar::Kind::kNull;
            return absent ? "" : wrong("it is not an object");
        }
        if (in_metadata_) {
            return metadata_value(value);
        }
        return field_value(value);
    }

private:
    enum class Field : std::uint8_t { kUnknown, kType, kShape, kOffsets };

    [[nodiscard]] std::string wrong(std::string_view what) const {
        return fmt::format("tensor {}: {}", shown(name_), what);
    }

    std::string begin_tensor() {
        if (in_metadata_) {
            return {};
        }
        header.tensors.emplace_back();
        header.tensors.back().name = name_;
        offsets_ = 0;
        has_type_ = false;
        has_shape_ = false;
        field_ = Field::kUnknown;
        return {};
    }

    std::string end_tensor() {
        if (!has_type_ || offsets_ != 2 || !has_shape_) {
            return wrong("it lacks one of dtype, shape and data_offsets (two numbers)");
        }
        const Tensor& t = header.tensors.back();
        const auto bytes = bytes_of(t.type, t.shape);
        if (!bytes) {
            return wrong(fmt::format("shape [{}] of {} is not a whole number of bytes below 2^61",
                                     fmt::join(t.shape, ", "), safetensors::name_of(t.type)));
        }
        if (t.begin > t.end || t.end - t.begin != *bytes) {
            return wrong(fmt::format(
                "shape [{}] of {} needs {} bytes, but its data_offsets are "
                "[{}, {}]",
                fmt::join(t.shape, ", "), safetensors::name_of(t.type), *bytes, t.begin, t.end));
        }
        return {};
    }

    std::string metadata_value(const JsonScalar& value) {
        if (value.kind != JsonScalar::Kind::kString) {
            return "metadata " + shown(header.metadata.back().first) + " is not a string";
        }
        header.metadata.back().second = std::move(*value.text);
        return {};
    }

    std::string field_value(const JsonScalar& value) {
        Tensor& t = header.tensors.back();
        const bool in_list = depth_ == 3;
        if (field_ == Field::kUnknown) {
            return {};
        }
        if (field_ == Field::kType && value.kind == JsonScalar::Kind::kString) {
            const auto type = type_named(*value.text);
            if (!type) {
                return not_read(wrong("its type " + shown(*value.text) + " is unknown"));
            }
            t.type = *type;
            has_type_ = true;
            return {};
        }
        if (!in_list || value.kind != JsonScalar::Kind::kUnsigned) {
            return wrong("a field of it has the wrong form");
        }
        if (field_ == Field::kShape) {
            if (t.shape.size() == kRankMax) {
                return not_read(wrong(fmt::format("it has more than {} dimensions", kRankMax)));
            }
            t.shape.push_back(value.number);
            return {};
        }
        (offsets_ == 0 ? t.begin : t.end) = value.number;
        return ++offsets_ > 2 ? wrong("its data_offsets are more than two numbers") : "";
    }

    int depth_ = 0;
    int skipping_ = 0;  // levels of a value that is skipped
    bool in_metadata_ = false;
    std::string name_;
    Field field_ = Field::kUnknown;
    bool has_type_ = false;
    bool has_shape_ = false;
    int offsets_ = 0;
};

Result<void> check_tiling(const Header& header, std::uint64_t file_bytes) {
    std::uint64_t at = 0;
    for (const Tensor& t : header.tensors) {
        if (t.begin != at) {
            return fault(kReading, fmt::format("tensor {}: it begins at byte {} of the data, and "
                                               "the one before it ends at {}: {}",
                                               shown(t.name), t.begin, at,
                                               t.begin < at ? "an overlap" : "a hole"));
        }
        at = t.end;
    }
    const std::uint64_t has = file_bytes - header.data_begin;
    if (at != has) {
        return fault(
            kReading,
            fmt::format("the tensors need {} bytes of data and the file has {}: {}", at, has,
                        has < at ? "it was cut short; copy or download it again"
                                 : "something stands behind them that belongs to no tensor"));
    }
    return {};
}

bool is_of_layout(const Header& header, std::string_view text) {
    const std::size_t end = text.find_last_not_of(' ') + 1;
    if (header.metadata.empty() || text.size() - end < kPaddingMin) {
        return false;
    }
    std::vector<std::size_t> order(header.tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    return text.substr(0, end) == header_text(header.tensors, order, header.metadata);
}

}  // namespace

Result<std::uint64_t> header_bytes(std::span<const std::byte> head, std::uint64_t file_bytes) {
    if (head.size() < 8 || file_bytes < 8) {
        return fault(
            kReading,
            fmt::format("the file has {} bytes; a safetensors file has at least 10", file_bytes));
    }
    std::uint64_t n = 0;
    std::memcpy(&n, head.data(), 8);
    if (n > kHeaderBytesMax) {
        return fault(kReading, fmt::format("its header would have {} bytes, and the format allows "
                                           "{}: this is not a safetensors file",
                                           n, kHeaderBytesMax));
    }
    if (n > file_bytes - 8 || n < 2) {
        return fault(kReading, fmt::format("its header would have {} bytes, and the file has {} "
                                           "in all: cut short, or not a safetensors file",
                                           n, file_bytes));
    }
    return n;
}

Result<Header> parse_header(std::span<const std::byte> json, std::uint64_t file_bytes) {
    if (json.size() > kHeaderBytesMax || json.size() + 8 > file_bytes) {
        return fault(kReading, "the header does not fit into the file");
    }
    const std::string_view text(reinterpret_cast<const char*>(json.data()), json.size());
    const std::size_t first = text.find_first_not_of(kBlanks);  // others read it with some in front
    if (first == std::string_view::npos || text[first] != '{') {
        return fault(kReading, "the header does not begin with '{': not a safetensors file", 8);
    }
    Handler handler;
    PENSTOCK_CHECK(read_json(text, handler, kReading));
    Header header = std::move(handler.header);
    header.data_begin = 8 + json.size();
    std::stable_sort(header.tensors.begin(), header.tensors.end(),
                     [](const Tensor& a, const Tensor& b) {
                         return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                     });
    PENSTOCK_CHECK(check_tiling(header, file_bytes));
    header.is_of_layout = is_of_layout(header, text);
    return header;
}

Result<Header> read_header(std::span<const std::byte> file, std::uint64_t file_bytes) {
    PENSTOCK_TRY(n, header_bytes(file, file_bytes));
    if (file.size() < 8 + n) {
        return fault(kReading, "the header was not given whole");
    }
    return parse_header(file.subspan(8, n), file_bytes);
}

}  // namespace penstock::format::safetensors
