// SPDX-License-Identifier: Apache-2.0
#include "format/numpy/npy.hpp"

#include "format/numpy/numpy_types.hpp"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <string_view>

namespace penstock::format::npy {

namespace {

constexpr std::string_view kReading = "read npy";
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kRankMax = 64;  // NumPy's
constexpr std::uint64_t kBytesLimit = std::uint64_t{1} << 61;

Failure unsupported(const std::string& message) {
    return base::fail(base::error(ErrorCode::kUnsupported, kReading, message));
}

/// The dictionary, read from left to right; what is not as NumPy writes it is a fault.
class Reader {
public:
    explicit Reader(std::string_view text) : text_(text) {}

    Result<void> dictionary() {
        PENSTOCK_CHECK(expect('{'));
        while (!skip('}')) {
            PENSTOCK_TRY(key, quoted());
            PENSTOCK_CHECK(expect(':'));
            if (key == "descr" && !dtype_) {
                PENSTOCK_CHECK(descr());
            } else if (key == "fortran_order" && !fortran_) {
                PENSTOCK_TRY(value, truth());
                fortran_ = value;
            } else if (key == "shape" && !has_shape_) {
                PENSTOCK_CHECK(tuple());
            } else {
                return wrong(
                    fmt::format("the key {} comes twice, or is not one of descr, "
                                "fortran_order and shape",
                                shown(key)));
            }
            if (!skip(',')) {
                PENSTOCK_CHECK(expect('}'));
                break;
            }
        }
        blanks();
        if (at_ != text_.size()) {
            return wrong("something follows the dictionary");
        }
        if (!dtype_ || !fortran_ || !has_shape_) {
            return wrong("descr, fortran_order or shape is missing");
        }
        return {};
    }

    [[nodiscard]] const std::string& dtype() const { return *dtype_; }
    [[nodiscard]] bool fortran() const { return *fortran_; }
    [[nodiscard]] std::vector<std::uint64_t>& shape() { return shape_; }

private:
    Failure wrong(std::string_view what) const {
        return fault(kReading,
                     fmt::format("its header is not a dictionary of NumPy's: {} (character "
                                 "{} of {})",
                                 what, at_, shown(text_)));
    }
    void blanks() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) {
            ++at_;
        }
    }
    bool skip(char c) {
        blanks();
        const bool there = at_ < text_.size() && text_[at_] == c;
        at_ += there ? 1 : 0;
        return there;
    }
    Result<void> expect(char c) {
        if (!skip(c)) {
            return wrong(fmt::format("a '{}' was expected", c));
        }
        return {};
    }
    Result<std::string> quoted() {
        blanks();
        const char quote = at_ < text_.size() ? text_[at_] : '\0';
        const std::size_t end =
            quote == '\'' || quote == '"' ? text_.find(quote, at_ + 1) : std::string_view::npos;
        if (end == std::string_view::npos ||
            text_.substr(at_, end - at_).find('\\') != std::string_view::npos) {
            return wrong("a plain text in quotes was expected");
        }
        std::string inside(text_.substr(at_ + 1, end - at_ - 1));
        at_ = end + 1;
        return inside;
    }
    Result<void> descr() {
        blanks();
        if (at_ < text_.size() && text_[at_] == '[') {
            return unsupported(
                "its dtype is structured (it has fields); read it with numpy.load(), and save the "
                "fields that you need as arrays of their own");
        }
        PENSTOCK_TRY(name, quoted());
        dtype_ = std::move(name);
        return {};
    }
    Result<bool> truth() {
        blanks();
        for (const auto& [word, value] : {std::pair{std::string_view("True"), true},
                                          std::pair{std::string_view("False"), false}}) {
            if (text_.substr(at_, word.size()) == word) {
                at_ += word.size();
                return value;
            }
        }
        return wrong("True or False was expected");
    }
    Result<std::uint64_t> number() {
        blanks();
        std::uint64_t value = 0;
        const std::size_t begin = at_;
        for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
            value = value * 10 + static_cast<std::uint64_t>(text_[at_] - '0');
            if (value >= kBytesLimit) {
                return wrong("a dimension is too large");
            }
        }
        if (at_ == begin) {
            return wrong("a dimension was expected");
        }
        at_ += at_ < text_.size() && text_[at_] == 'L' ? 1 : 0;  // NumPy of Python 2
        return value;
    }
    Result<void> tuple() {
        PENSTOCK_CHECK(expect('('));
        while (!skip(')')) {
            if (shape_.size() == kRankMax) {
                return wrong("it has more than 64 dimensions");
            }
            PENSTOCK_TRY(dimension, number());
            shape_.push_back(dimension);
            if (!skip(',')) {
                if (shape_.size() == 1) {
                    return wrong("a ',' was expected: a tuple of one has it");
                }
                PENSTOCK_CHECK(expect(')'));
                break;
            }
        }
        has_shape_ = true;
        return {};
    }

    std::string_view text_;
    std::size_t at_ = 0;
    std::optional<std::string> dtype_;
    std::optional<bool> fortran_;
    std::vector<std::uint64_t> shape_;
    bool has_shape_ = false;
};

Result<std::uint64_t> item_bytes_of(const std::string& dtype, bool big_endian) {
    const bool is_big = dtype.starts_with('>');
    const auto bytes = numpy_item_bytes(is_big ? "<" + dtype.substr(1) : dtype);
    if (bytes && *bytes != 0 && (big_endian || !is_big)) {
        return *bytes;
    }
    if (bytes && *bytes != 0) {
        return unsupported(
            fmt::format("its dtype {} is big-endian; convert it once: "
                        "numpy.save(path, array.astype(array.dtype.newbyteorder("
                        "'<')))",
                        shown(dtype)));
    }
    if (dtype.find('O') != std::string::npos) {
        return unsupported(
            fmt::format("its dtype {} is of Python objects, which are a pickle; read it with "
                        "numpy.load(allow_pickle=True) if you trust the file",
                        shown(dtype)));
    }
    return unsupported(
        fmt::format("its dtype {} is neither plain numbers nor characters (bool, "
                    "int, uint, float, complex, S, U); read it with numpy.load()",
                    shown(dtype)));
}

std::uint64_t little_endian(std::span<const std::byte> bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = bytes.size(); i-- > 0;) {
        value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
    }
    return value;
}

}  // namespace

Result<std::uint64_t> header_bytes(std::span<const std::byte> start) {
    constexpr std::size_t kVersionAt = 6;
    constexpr std::size_t kLengthAt = 8;
    if (start.size() < kLengthAt + 2 ||
        std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) {
        return fault(kReading,
                     "this is not a .npy file: it does not begin with \\x93NUMPY; give files of "
                     "numpy.save()");
    }
    const auto version = std::to_integer<unsigned>(start[kVersionAt]);
    if (version < 1 || version > 3) {
        return fault(kReading, fmt::format("its version {} of the format is not known (1 to 3 are)",
                                           version));
    }
    const std::size_t length_bytes = version == 1 ? 2 : 4;
    if (start.size() < kLengthAt + length_bytes) {
        return fault(kReading, "it ends within its header");
    }
    const std::uint64_t bytes =
        kLengthAt + length_bytes + little_endian(start.subspan(kLengthAt, length_bytes));
    if (bytes > kHeaderBytesMax) {
        return fault(kReading, fmt::format("its header has {} bytes, and at most {} are read",
                                           bytes, kHeaderBytesMax));
    }
    return bytes;
}

Result<Header> read_header(std::span<const std::byte> file, bool big_endian) {
    PENSTOCK_TRY(bytes, header_bytes(file));
    if (file.size() < bytes) {
        return fault(kReading, fmt::format("it ends within its header: {} of {} bytes are there",
                                           file.size(), bytes));
    }
    const std::size_t text_at = std::to_integer<unsigned>(file[6]) == 1 ? 10 : 12;
    Reader reader({reinterpret_cast<const char*>(file.data()) + text_at, bytes - text_at});
    PENSTOCK_CHECK(reader.dictionary());
    PENSTOCK_TRY(item_bytes, item_bytes_of(reader.dtype(), big_endian));
    if (reader.fortran() && reader.shape().size() > 1) {
        return unsupported(
            "its elements are in Fortran's order; convert it once: numpy.save(path, "
            "numpy.ascontiguousarray(array))");
    }
    Header header{reader.dtype(), std::move(reader.shape()), bytes, item_bytes};
    bool empty = false;
    for (const std::uint64_t dimension : header.shape) {
        if (dimension != 0 && header.data_bytes >= kBytesLimit / dimension) {
            return fault(kReading, "its shape has 2^61 bytes or more");
        }
        header.data_bytes *= dimension == 0 ? 1 : dimension;
        empty = empty || dimension == 0;
    }
    header.data_bytes = empty ? 0 : header.data_bytes;
    return header;
}

}  // namespace penstock::format::npy
