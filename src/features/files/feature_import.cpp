// SPDX-License-Identifier: Apache-2.0
// A feature file made of other files.
#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/text/near.hpp"
#include "features/files/opened_features.hpp"
#include "format/fault.hpp"
#include "stream/progress_clock.hpp"
#include "stream/read_ahead.hpp"

#include <penstock/features.hpp>
#include <penstock/tensor.hpp>
#include <penstock/tensor_table.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

namespace features {

namespace {

constexpr std::string_view kImport = "import features";

// A file whose rows become a table.
struct ImportedTable {
    NewFeatureTable table;
    stream::Stretch rows;
};

ImportedTable imported_npy(const std::shared_ptr<Engine>& engine, const FeatureSource& source,
                           const FileSystem& files) {
    const OpenedFeatures opened = open_features(engine, source.path, files, CachePolicy::kDirect);
    const Table& table = opened.directory.tables[0];
    const std::uint64_t rows = std::min(table.rows, source.rows_max);
    return {
        {source.table.name.empty() ? table.name : source.table.name, table.dtype, table.row_shape},
        {opened.main, table.bases[0], rows * table.row_bytes, table.row_bytes}};
}

[[noreturn]] void refuse_tensor(ErrorCode code, const FeatureSource& source,
                                const std::string& why) {
    base::raise(base::error(code, kImport, why, source.path));
}

const TensorEntry& wanted_tensor(const TensorTable& table, const FeatureSource& source) {
    const std::string& name = source.tensor.empty() ? source.table.name : source.tensor;
    std::vector<std::string_view> known;
    for (const TensorEntry& tensor : table.tensors) {
        if (tensor.name == name) {
            return tensor;
        }
        known.emplace_back(tensor.name);
    }
    if (source.tensor.empty() && known.size() == 1) {
        return table.tensors.front();
    }
    if (name.empty() && !known.empty()) {
        constexpr std::size_t kShown = 8;
        std::vector<std::string> shown;
        for (std::size_t i = 0; i < std::min(kShown, known.size()); ++i) {
            shown.push_back(format::shown(known[i]));
        }
        refuse_tensor(
            ErrorCode::kInvalidArgument, source,
            fmt::format("it has {} tensors; say which, as NAME=FILE with the name of one: "
                        "{}{}",
                        known.size(), fmt::join(shown, ", "), known.size() > kShown ? " ..." : ""));
    }
    const std::string_view near = base::nearest(name, known);
    refuse_tensor(ErrorCode::kInvalidArgument, source,
                  fmt::format("it has {} tensors, and none is named {}; {}", known.size(),
                              format::shown(name),
                              near.empty() ? "`penstock checkpoint show` lists them"
                                           : fmt::format("did you mean {}?", format::shown(near))));
}

ImportedTable imported_tensor(const std::shared_ptr<Engine>& engine, const FeatureSource& source,
                              const FileSystem& files) {
    const TensorTable table = inspect(engine, source.path, files);
    const TensorEntry& tensor = wanted_tensor(table, source);
    if (tensor.shape.empty()) {
        refuse_tensor(ErrorCode::kInvalidArgument, source,
                      fmt::format("the tensor {} is a scalar, which has no rows",
                                  format::shown(tensor.name)));
    }
    ImportedTable out;
    out.table = {!source.table.name.empty() ? source.table.name
                 : !tensor.name.empty()     ? tensor.name
                                            : std::string(base::last_name(source.path)),
                 tensor.dtype,
                 {tensor.shape.begin() + 1, tensor.shape.end()}};
    const std::uint64_t row_bytes = row_bytes_of(out.table.dtype, out.table.row_shape);
    // Slices may divide rows.
    if (row_bytes == 0 || !tensor.strides.empty() || tensor.stretches.size() != 1) {
        refuse_tensor(ErrorCode::kUnsupported, source,
                      fmt::format("the rows of the tensor {} are not contiguous in one file, or "
                                  "have no bytes; load it, and save its contiguous() copy",
                                  format::shown(tensor.name)));
    }
    const TensorStretch& stretch = tensor.stretches.front();
    out.rows = {files.open(table.files[stretch.file], {.cache = CachePolicy::kDirect}),
                stretch.offset, std::min(tensor.shape.front(), source.rows_max) * row_bytes,
                row_bytes};
    return out;
}

ImportedTable imported_raw(const FeatureSource& source, const FileSystem& files) {
    const File file = files.open(source.path, {.cache = CachePolicy::kDirect});
    const std::uint64_t row_bytes = row_bytes_of(
        [&source]() -> std::string {
            const auto type = element_type_named(source.table.dtype);
            return std::string(type ? name_of(*type) : std::string_view());
        }(),
        source.table.row_shape);
    if (row_bytes == 0) {
        base::raise(base::error(
            ErrorCode::kInvalidArgument, kImport,
            fmt::format("raw rows of dtype {} and shape [{}]; expected a dtype (F32, float32 ...) "
                        "and dimensions that make 1 to 2^40 - 1 whole bytes",
                        format::shown(source.table.dtype), fmt::join(source.table.row_shape, ", ")),
            source.path));
    }
    const std::uint64_t size = file.size();
    const std::uint64_t bytes = size - std::min(size, source.offset);
    if (source.offset > size) {
        base::raise(base::error(
            ErrorCode::kInvalidArgument, kImport,
            fmt::format("row 0 is to be at byte {}, and the file has {}", source.offset, size),
            source.path));
    }
    if (bytes / row_bytes < source.rows_max && bytes % row_bytes != 0) {
        base::raise(base::error(
            ErrorCode::kDamaged, kImport,
            fmt::format("it ends within a row: {} bytes from byte {} on, and a row has {}; give "
                        "the dtype, the shape and the offset that it was written with",
                        bytes, source.offset, row_bytes),
            source.path));
    }
    const std::uint64_t rows = std::min(bytes / row_bytes, source.rows_max);
    ImportedTable out{source.table, {file, source.offset, rows * row_bytes, row_bytes}};
    if (out.table.name.empty()) {
        out.table.name = base::last_name(source.path);
    }
    return out;
}

// A zip, a safetensors header, the pickle of an old .pt, or an index of shards. Of an index the
// content is too little to tell: one row in 256 begins with the same byte.
bool has_tensors(std::span<const std::byte> start, std::string_view path) {
    const auto at = [&start](std::size_t i) {
        return i < start.size() ? std::to_integer<unsigned>(start[i]) : 0U;
    };
    const bool zip = at(0) == 'P' && at(1) == 'K' && at(2) == 3 && at(3) == 4;
    const bool safetensors = at(4) == 0 && at(5) == 0 && at(6) == 0 && at(7) == 0 && at(8) == '{';
    const bool pickle = at(0) == 0x80 && at(1) == 2 && at(2) == 0x8a && at(3) == 10;
    return zip || safetensors || pickle || path.ends_with(".index.json");
}

ImportedTable imported(const std::shared_ptr<Engine>& engine, const FeatureSource& source,
                       const FileSystem& files) {
    const std::vector<std::byte> start = read_start(*engine, files.open(source.path));
    const FileForm form = form_of(start);
    if (form == FileForm::kNpy) {
        return imported_npy(engine, source, files);
    }
    if (form != FileForm::kOther) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kImport,
                                "expected a .npy, a file of tensors or raw rows, got a feature "
                                "file",
                                source.path));
    }
    if (has_tensors(start, source.path)) {
        return imported_tensor(engine, source, files);
    }
    if (source.table.dtype.empty()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kImport,
                                "this is no .npy and no file of tensors; if its rows are raw, give "
                                "their dtype and shape (--dtype float32 --row 1024), and the "
                                "offset of the first if it is not 0",
                                source.path));
    }
    return imported_raw(source, files);
}

// A commit replaces the file at `path`: a source there is an oversight of a caller who omitted the
// name of the new file. An index of shards and the shard with the rows are both sources.
void refuse_to_replace(const std::string& path, const FeatureSource& source, const File& rows,
                       const FileSystem& files) {
    const std::string target = files.resolve(path);
    if (files.resolve(source.path) == target || files.resolve(rows.path()) == target) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kImport,
                                "the new feature file would replace a source; give it a name of "
                                "its own, before those of its sources",
                                path));
    }
}

}  // namespace

}  // namespace features

void import_features(const std::shared_ptr<Engine>& engine, const std::string& path,
                     std::span<const FeatureSource> sources, const FeatureWriterOptions& options,
                     const Progress& progress, const FileSystem& files) {
    using features::ImportedTable;
    std::vector<ImportedTable> tables;
    std::uint64_t total = 0;
    for (const FeatureSource& source : sources) {
        tables.push_back(features::imported(engine, source, files));
        features::refuse_to_replace(path, source, tables.back().rows.file, files);
        total += tables.back().rows.bytes;
    }
    stream::ProgressClock clock(progress, std::string(features::kImport), path);
    clock.set_total(total);
    FeatureWriter writer(engine, path, options, files);
    for (const ImportedTable& table : tables) {
        writer.begin_table(table.table);
        stream::read_ahead(
            *engine, std::span(&table.rows, 1),
            [&writer](std::size_t /*stretch*/, std::uint64_t /*at*/,
                      std::span<const std::byte> bytes) { writer.append(bytes); },
            [](std::size_t /*stretch*/, std::uint64_t /*at*/, std::uint64_t /*bytes*/,
               const Error& error) { throw Error(error); },
            clock);
    }
    clock.tick(true);
    writer.commit();
}

FeatureFile inspect_features(const std::shared_ptr<Engine>& engine, const std::string& path,
                             const FileSystem& files) {
    return features::open_features(engine, path, files).described;
}

}  // namespace penstock
