// SPDX-License-Identifier: Apache-2.0
#include "features/files/opened_features.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/numpy/npy.hpp"
#include "format/numpy/numpy_types.hpp"
#include "format/utf8.hpp"
#include "state/writing/replace.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

namespace penstock::features {

namespace {

constexpr std::string_view kOpen = "open features";
constexpr int kTriesMax = 16;  // of a set of files that is replaced meanwhile

[[noreturn]] void refuse_file(ErrorCode code, const std::string& message, const std::string& path) {
    base::raise(base::error(code, kOpen, message, path));
}

std::vector<std::byte> read_bytes(Engine& engine, const File& file, std::uint64_t offset,
                                  std::uint64_t bytes) {
    std::vector<std::byte> out(bytes);
    engine.read(file, std::span(out), offset);
    return out;
}

// Adds the path to an error of a reader of formats.
template <typename T>
T unwrap_at(base::Result<T> result, const std::string& path) {
    if (!result) {
        base::Error error = result.error();
        error.path = error.path.empty() ? path : error.path;
        error.code = error.code == ErrorCode::kInvalidArgument ? ErrorCode::kDamaged : error.code;
        base::raise(error);
    }
    return std::move(*result);
}

std::string stem_of(const std::string& path) {
    std::string name(base::last_name(path));
    if (name.size() > 4 && name.ends_with(".npy")) {
        name.resize(name.size() - 4);
    }
    return format::is_utf8(name) ? name : format::escaped(name);
}

void describe_npy(OpenedFeatures& out, std::uint64_t bytes) {
    const std::string& path = out.described.path;
    const auto start =
        read_bytes(*out.engine, out.main, 0,
                   std::min(bytes, format::npy::kHeaderBytesMax + format::npy::kStartBytes));
    const auto header = unwrap_at(format::npy::read_header(start), path);
    const auto type = format::element_type_of_numpy(header.dtype);
    if (!type || header.shape.empty()) {
        refuse_file(ErrorCode::kUnsupported,
                    fmt::format("its elements are {} of {} dimensions; expected numbers, of 1 "
                                "dimension or more, of which the first numbers the rows",
                                format::shown(header.dtype), header.shape.size()),
                    path);
    }
    if (header.data_bytes > bytes - std::min(bytes, header.header_bytes)) {
        refuse_file(ErrorCode::kDamaged,
                    fmt::format("it has {} bytes, and its header says {}: it is cut short", bytes,
                                header.header_bytes + header.data_bytes),
                    path);
    }
    Table table;
    table.name = stem_of(path);
    table.dtype = std::string(tensor::row_of(*type).name);
    table.row_shape.assign(header.shape.begin() + 1, header.shape.end());
    table.rows = header.shape[0];
    table.row_bytes = row_bytes_of(table.dtype, table.row_shape);
    if (table.row_bytes == 0) {
        refuse_file(ErrorCode::kUnsupported,
                    fmt::format("its rows are {} of shape [{}]; expected 1 to 2^40 - 1 bytes of "
                                "bool, int8 to int64, uint8 to uint64, float16 to float64 or "
                                "complex64 and complex128",
                                format::shown(header.dtype), fmt::join(table.row_shape, ", ")),
                    path);
    }
    table.stride_bytes = table.row_bytes;
    table.stripe_rows = 1;
    table.bases = {header.header_bytes};
    out.directory.parts.push_back({"", bytes, 0});
    out.directory.tables.push_back(std::move(table));
    out.described.is_npy = true;
    out.parts = {out.main};
}

// Files that were moved together are found next to the main file.
File open_part(const FileSystem& files, const std::string& path, const std::string& main_path,
               const FileOptions& options) {
    try {
        return files.open(path, options);
    } catch (const Error& error) {
        const std::string other = base::join(base::folder_of(main_path), base::last_name(path));
        if (error.system_errno() != ENOENT) {
            throw;
        }
        try {
            return files.open(other, options);
        } catch (const Error& second) {
            if (second.system_errno() != ENOENT) {
                throw;
            }
        }
        throw Error(ErrorCode::kSystem, ENOENT, std::string(kOpen), path, kNoOffset,
                    fmt::format("{} '{}': this part of the feature file '{}' is not there; put it "
                                "back, or next to that file",
                                kOpen, format::escaped(path), format::escaped(main_path)));
    }
}

void open_parts(OpenedFeatures& out, const FileSystem& files, const FileOptions& options) {
    const std::uint32_t count = static_cast<std::uint32_t>(out.directory.parts.size());
    for (std::uint32_t i = 0; i < count; ++i) {
        const PartFile& part = out.directory.parts[i];
        if (part.path.empty()) {
            out.parts.push_back(out.main);
            continue;
        }
        File file = open_part(files, part.path, out.described.path, options);
        const std::uint64_t bytes = file.size();
        const auto start = read_bytes(*out.engine, file, 0, std::min(bytes, kPreambleBytes));
        const PartPreamble found = base::unwrap(decode_part(start, bytes, file.path()));
        if (found.id != out.id || found.part != i || found.parts != count) {
            refuse_file(ErrorCode::kDamaged,
                        fmt::format("it is part {} of {} of another feature file; expected part {} "
                                    "of {} of '{}'",
                                    found.part, found.parts, i, count, out.described.path),
                        file.path());
        }
        if (found.file_bytes != part.file_bytes) {
            refuse_file(ErrorCode::kDamaged,
                        fmt::format("it has {} bytes, and '{}' says {}", found.file_bytes,
                                    out.described.path, part.file_bytes),
                        file.path());
        }
        out.parts.push_back(std::move(file));
    }
}

void describe_tables(OpenedFeatures& out) {
    for (const File& file : out.parts) {
        out.described.files.push_back(file.path());
    }
    for (const Table& table : out.directory.tables) {
        const auto touched = [&table](std::uint64_t block) {
            return touched_bytes(table.row_bytes, table.stride_bytes, block, table.bases[0]);
        };
        out.described.tables.push_back({.name = table.name,
                                        .dtype = table.dtype,
                                        .row_shape = table.row_shape,
                                        .rows = table.rows,
                                        .row_bytes = table.row_bytes,
                                        .stride_bytes = table.stride_bytes,
                                        .base = table.bases[0],
                                        .touched_512 = touched(512),
                                        .touched_4096 = touched(kBlockBytes)});
    }
}

// A `.npy` has no id of its own.
std::uint64_t id_of(const FileStatus& status) {
    constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
    return static_cast<std::uint64_t>(status.modified_ns) * kOdd + status.bytes;
}

OpenedFeatures open_once(const std::shared_ptr<Engine>& engine, const std::string& path,
                         const FileSystem& files, CachePolicy cache) {
    const FileOptions options{.cache = cache};
    OpenedFeatures out;
    out.engine = engine;
    out.described.path = path;
    out.main = files.open(path, options);
    const std::uint64_t bytes = out.main.size();
    out.described.bytes = bytes;
    const auto start = read_start(*engine, out.main);
    switch (form_of(start)) {
        case FileForm::kNpy:
            describe_npy(out, bytes);
            break;
        case FileForm::kFeatures:
            out.directory = read_directory(*engine, out.main, path, start, out.id);
            open_parts(out, files, options);
            for (const PartFile& part : out.directory.parts) {
                out.described.bytes += part.file_bytes;
            }
            break;
        case FileForm::kFeaturePart:
            refuse_file(ErrorCode::kInvalidArgument,
                        "it is one part of a striped feature file; give the path that the file was "
                        "written to, which has the directory",
                        path);
        case FileForm::kOther:
            refuse_file(ErrorCode::kInvalidArgument,
                        "expected a feature file or a .npy, got another kind of file; "
                        "FeatureStore.write() (in C++ FeatureWriter) makes a feature file",
                        path);
    }
    describe_tables(out);
    std::vector<File> files_of = out.parts;
    files_of.push_back(out.main);
    out.unchanged = std::make_shared<UnchangedFiles>(std::move(files_of));
    out.described.id = out.described.is_npy ? id_of(out.main.status()) : out.id;
    return out;
}

}  // namespace

std::vector<std::byte> read_start(Engine& engine, const File& file) {
    return read_bytes(engine, file, 0, std::min(file.size(), kPreambleBytes));
}

Directory read_directory(Engine& engine, const File& file, const std::string& path,
                         std::span<const std::byte> start, std::uint64_t& id) {
    const Preamble preamble = base::unwrap(decode_preamble(start, file.size(), path));
    id = preamble.id;
    const auto directory =
        read_bytes(engine, file, preamble.directory_offset, preamble.directory_bytes);
    return base::unwrap(decode_directory(directory, preamble, path));
}

OpenedFeatures open_features(const std::shared_ptr<Engine>& engine, const std::string& path,
                             const FileSystem& files, CachePolicy cache) {
    if (engine == nullptr) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kOpen, "there is no engine", path));
    }
    for (int i = 1;; ++i) {
        try {
            return open_once(engine, path, files, cache);
        } catch (const Error& error) {
            // Another process put a new set in place after this one read the directory of the old.
            if (error.system_errno() != ENOENT || error.path() == path || i == kTriesMax) {
                throw;
            }
        }
    }
}

std::string row_name(const OpenedFeatures& opened, const std::string& path, std::uint64_t offset) {
    const std::uint64_t parts = opened.parts.size();
    for (std::uint32_t p = 0; p < parts; ++p) {
        if (opened.described.files[p] != path) {
            continue;
        }
        for (const Table& table : opened.directory.tables) {
            if (offset >= table.bases[p] &&
                offset - table.bases[p] < bytes_in_part(table, parts, p)) {
                const std::uint64_t row = (offset - table.bases[p]) / table.stride_bytes;
                return fmt::format("row {} of table {}", row_at({p, row}, table.stripe_rows, parts),
                                   format::shown(table.name));
            }
        }
    }
    return {};
}

void raise_with_row(const Error& failed, const OpenedFeatures& opened) {
    const std::string row = failed.offset() == kNoOffset
                                ? std::string()
                                : row_name(opened, failed.path(), failed.offset());
    if (row.empty()) {
        throw Error(failed);
    }
    // The engine's message has the row's number within its part, or none.
    if (failed.reason() == ErrorCode::kSystem) {
        base::raise(base::system_error(failed.system_errno(), failed.operation(), failed.path(),
                                       failed.offset(), "this is " + row));
    }
    if (failed.reason() == ErrorCode::kEndOfFile) {
        base::raise(base::error(ErrorCode::kEndOfFile, failed.operation(),
                                fmt::format("the file ends within {} or before it, so it was cut "
                                            "while it was open; write it again, or take a copy",
                                            row),
                                failed.path(), failed.offset()));
    }
    throw Error(failed.reason(), failed.system_errno(), failed.operation(), failed.path(),
                failed.offset(), fmt::format("{} ({})", failed.what(), row));
}

std::string part_path(const std::string& folder, std::string_view name, std::uint64_t id,
                      std::uint32_t part) {
    return base::join(folder, fmt::format("{}.{:016x}.part{}", name, id, part));
}

bool is_part_name(std::string_view file, std::string_view name, std::uint64_t& id) {
    constexpr std::string_view kPart = ".part";
    if (!file.starts_with(name)) {
        return false;
    }
    const std::string_view rest = file.substr(name.size());
    if (rest.size() < 17 + kPart.size() + 1 || rest[0] != '.' ||
        rest.substr(17, kPart.size()) != kPart) {
        return false;
    }
    const std::string_view hex = rest.substr(1, 16);
    const std::string_view number = rest.substr(17 + kPart.size());
    const bool fits = hex.find_first_not_of("0123456789abcdef") == std::string_view::npos &&
                      number.find_first_not_of("0123456789") == std::string_view::npos;
    if (fits) {
        std::from_chars(hex.data(), hex.data() + hex.size(), id, 16);
    }
    return fits;
}

bool is_temporary_part_name(std::string_view file, std::string_view name) {
    const std::string_view kept = state::named_by_temporary(file);
    const std::string sample = fmt::format("{}.{:016x}.part0", name, 0);
    std::string whole(kept);
    if (!kept.empty() && state::kept_in_temporary(sample).size() == kept.size()) {
        whole += sample.substr(kept.size());  // what was cut off
    }
    std::uint64_t id = 0;
    return is_part_name(whole, name, id);
}

}  // namespace penstock::features
