// SPDX-License-Identifier: Apache-2.0
#include "format/file_kind.hpp"

#include "format/utf8.hpp"
#include "format/zip/zip.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <vector>

namespace penstock::format {

namespace {

using namespace std::string_view_literals;

constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // limit for a .safetensors
constexpr std::size_t kShownBytes = 8;

struct Kind {
    std::string_view begins;
    std::string_view what;
};

constexpr std::array kFileKinds{
    Kind{"\x93NUMPY"sv, "a NumPy array (.npy), which numpy.load() reads"},
    Kind{"GGUF"sv, "a GGUF model, which llama.cpp and the package gguf read"},
    Kind{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file (.h5), which h5py reads"},
    Kind{"\x1f\x8b"sv, "compressed with gzip; unpack it first"},
    Kind{"\x28\xb5\x2f\xfd"sv, "compressed with zstd; unpack it first"},
    Kind{"\xfd"
         "7zXZ\0"sv,
         "compressed with xz; unpack it first"},
    Kind{"BZh"sv, "compressed with bzip2; unpack it first"},
    Kind{"PAR1"sv, "a Parquet file, which pyarrow reads"},
    Kind{"ARROW1"sv, "an Arrow file, which pyarrow reads"},
    Kind{"\x7f"
         "ELF"sv,
         "a program or a library (ELF)"},
    Kind{"%PDF-"sv, "a PDF document"},
    Kind{"MZ"sv, "a program (or a llamafile)"},
    Kind{"SQLite format 3\0"sv, "an SQLite database"},
    Kind{"MATLAB 5.0"sv, "a MAT file, which scipy.io.loadmat() reads"},
    Kind{"7z\xbc\xaf\x27\x1c"sv, "compressed with 7-Zip; unpack it first"},
    Kind{"Rar!\x1a\x07"sv, "compressed with RAR; unpack it first"},
    Kind{"\x04\x22\x4d\x18"sv, "compressed with LZ4; unpack it first"},
    Kind{"lmgg"sv, "a GGML model, which older versions of llama.cpp read"},
    Kind{"tjgg"sv, "a GGML model, which older versions of llama.cpp read"},
    Kind{"version https://git-lfs"sv,
         "a pointer of Git LFS and not the file itself; fetch that with 'git lfs pull'"},
    Kind{"<!DOCTYPE"sv, "a web page; what was downloaded is the server's message, not the file"},
    Kind{"<!doctype"sv, "a web page; what was downloaded is the server's message, not the file"},
    Kind{"<html"sv, "a web page; what was downloaded is the server's message, not the file"},
};

bool is_text(std::string_view head) {
    return !head.empty() &&
           is_utf8(head.substr(0, head.size() - std::min<std::size_t>(head.size() - 1, 3))) &&
           std::all_of(head.begin(), head.end(), [](char c) {
               const auto byte = static_cast<unsigned char>(c);
               return byte >= 0x80 || std::isprint(byte) != 0 || std::isspace(byte) != 0;
           });
}

// Tells a .safetensors from a pickle: both may begin with 0x80, but no pickle of torch, and no zip,
// begins with a length that the format allows.
bool may_be_header_length(std::string_view head) {
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < 8 && i < head.size(); ++i) {
        length |= std::uint64_t{static_cast<unsigned char>(head[i])} << (8 * i);
    }
    return length <= kHeaderBytesMax;
}

// Whether the name says that it is one of these forms. The first bytes of a file contradict it
// then.
bool has_name_of_form(std::string_view name) {
    constexpr std::array kEnds{".pt"sv, ".pth"sv, ".safetensors"sv};  // .ckpt is of others, too
    return std::any_of(kEnds.begin(), kEnds.end(),
                       [name](std::string_view end) { return name.ends_with(end); });
}

bool is_json(std::string_view head) {
    const std::size_t first = head.find_first_not_of(" \r\n\t");
    return first != std::string_view::npos && head[first] == '{' && is_text(head);
}

std::string looks(std::string_view head) {
    if (head.empty()) {
        return "it is empty (0 bytes)";
    }
    if (!is_text(head)) {
        std::string bytes;
        for (const char c : head.substr(0, kShownBytes)) {
            bytes += fmt::format(" {:02x}", static_cast<unsigned char>(c));
        }
        return "it begins with the bytes" + bytes;
    }
    return head.find_first_of("{[") == head.find_first_not_of(" \r\n\t")
               ? "it is text, JSON as it seems"
               : "it is text";
}

}  // namespace

std::string known_kind(std::span<const std::byte> head) {
    const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
    constexpr std::size_t kTarAt = 257;
    if (text.size() > kTarAt && text.substr(kTarAt).starts_with("ustar")) {
        return "it is a tar archive; if torch 0.1 wrote it, torch.load(weights_only=False) reads "
               "it";
    }
    for (const Kind& kind : kFileKinds) {
        if (text.starts_with(kind.begins)) {
            return fmt::format("it is {}", kind.what);
        }
    }
    return {};
}

Result<FileForm> form_of(ByteSource& source, std::string_view name) {
    const bool named = name.ends_with(".safetensors");
    std::vector<std::byte> head(std::min(source.size(), kKindBytes));
    PENSTOCK_CHECK(source.read(0, head));
    const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
    if (may_be_header_length(text) && (named || (text.size() > 8 && text[8] == '{'))) {
        return FileForm::kSafetensors;
    }
    if (text.starts_with("PK\x03\x04") || text.starts_with("PK\x05\x06") ||
        text.starts_with('\x80') || text.starts_with(kLegacyText)) {
        return FileForm::kTorch;
    }
    if (is_json(text)) {
        return FileForm::kIndex;
    }
    std::string what = known_kind(head);
    if (what.empty() && named && !is_text(text)) {
        return FileForm::kSafetensors;
    }
    PENSTOCK_TRY(begin, what.empty() ? zip::begin_of_last(source) : Result<std::uint64_t>(0));
    if (begin != 0) {
        return unsupported(
            "load",
            fmt::format("a zip begins at byte {0}, behind other bytes; if it is a .pt, load "
                        "it from a file object there: f.seek({0})",
                        begin));
    }
    const bool is_known = !what.empty() || is_text(text) || !has_name_of_form(name);
    const std::string message = fmt::format("it is neither a .pt nor a .safetensors: {}",
                                            what.empty() ? looks(text) : what);
    return is_known && !text.empty() ? unsupported("load", message) : fault("load", message);
}

}  // namespace penstock::format
