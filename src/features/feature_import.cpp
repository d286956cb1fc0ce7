// SPDX-License-Identifier: Apache-2.0
// A feature file made of other files, and its checksums.
#include "base/raise.hpp"
#include "features/opened_features.hpp"
#include "format/fault.hpp"
#include "stream/checksum.hpp"
#include "stream/progress_clock.hpp"
#include "stream/read_ahead.hpp"

#include <penstock/feature_store.hpp>
#include <penstock/tensor.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace penstock {

namespace features {

namespace {

constexpr std::string_view kImport = "import features";

// A commit replaces the file at `path`, so a source, or a .npy, in its place is a slip of the
// caller's, who left the new file's name out.
void refuse_to_replace(const std::string& path, std::span<const FeatureSource> sources,
                       const FileSystem& files) {
    const auto refuse = [&path](std::string_view why) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kImport,
                                fmt::format("the new feature file would replace {}; give it a name "
                                            "of its own, before those of its sources",
                                            why),
                                path));
    };
    if (path.ends_with(".npy")) {
        refuse("a .npy");
    }
    const std::string target = files.resolve(path);
    if (std::ranges::any_of(sources, [&](const FeatureSource& source) {
            return files.resolve(source.path) == target;
        })) {
        refuse("a source");
    }
}

// A file whose rows become a table.
struct ImportedTable {
    NewFeatureTable table;
    stream::Stretch rows;
};

ImportedTable imported_npy(const std::shared_ptr<Engine>& engine, const FeatureSource& source,
                           const FileSystem& files) {
    const OpenedFeatures opened = open_features(engine, source.path, files, CachePolicy::kDirect);
    if (!opened.described.is_npy) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kImport,
                                "expected a .npy, got a feature file", source.path));
    }
    const Table& table = opened.directory.tables[0];
    const std::uint64_t rows = std::min(table.rows, source.rows_max);
    return {
        {source.table.name.empty() ? table.name : source.table.name, table.dtype, table.row_shape},
        {opened.main, table.bases[0], rows * table.row_bytes, table.row_bytes}};
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
    return {source.table, {file, source.offset, rows * row_bytes, row_bytes}};
}

}  // namespace

// Checks what passes, chunk by chunk.
class ChunkCheck {
public:
    ChunkCheck(const OpenedFeatures& opened, std::vector<std::uint64_t> sums)
        : opened_(opened), sums_(std::move(sums)) {
        const std::uint64_t parts = opened.parts.size();
        std::uint64_t first = 0;
        for (std::size_t t = 0; t < opened.directory.tables.size(); ++t) {
            const Table& table = opened.directory.tables[t];
            for (std::uint32_t p = 0; p < parts; ++p) {
                const std::uint64_t bytes = bytes_in_part(table, parts, p);
                stretches_.push_back({opened.parts[p], table.bases[p], bytes, kChunkBytes});
                regions_.push_back({t, p, first});
                first += chunks_of(bytes);
            }
        }
    }

    [[nodiscard]] std::span<const stream::Stretch> stretches() const { return stretches_; }
    [[nodiscard]] std::uint64_t bytes() const {
        std::uint64_t total = 0;
        for (const stream::Stretch& stretch : stretches_) {
            total += stretch.bytes;
        }
        return total;
    }

    void look(std::size_t stretch, std::uint64_t at, std::span<const std::byte> bytes) {
        for (std::uint64_t done = 0; done < bytes.size(); done += kChunkBytes) {
            const std::uint64_t length = std::min<std::uint64_t>(kChunkBytes, bytes.size() - done);
            const std::uint64_t expected =
                sums_[regions_[stretch].first_sum + (at + done) / kChunkBytes];
            if (stream::content_hash(bytes.subspan(done, length)) != expected) {
                add(stretch, at + done, length, "the bytes do not match their checksum");
            }
        }
    }
    // A machine that lacks memory says nothing of the file.
    void not_read(std::size_t stretch, std::uint64_t at, std::uint64_t bytes, const Error& error) {
        if (!error.is_about_the_file()) {
            throw Error(error);
        }
        add(stretch, at, bytes, error.what());
    }

    [[nodiscard]] std::vector<FeatureProblem> problems() { return std::move(problems_); }

private:
    struct SummedRegion {
        std::size_t table = 0;
        std::uint32_t part = 0;
        std::uint64_t first_sum = 0;
    };

    void add(std::size_t stretch, std::uint64_t at, std::uint64_t length,
             const std::string& message) {
        const SummedRegion& region = regions_[stretch];
        const Table& table = opened_.directory.tables[region.table];
        problems_.push_back({.table = table.name,
                             .path = opened_.described.files[region.part],
                             .offset = table.bases[region.part] + at,
                             .bytes = length,
                             .row = row_at({region.part, at / table.stride_bytes},
                                           table.stripe_rows, opened_.parts.size()),
                             .message = message});
    }

    const OpenedFeatures& opened_;
    std::vector<std::uint64_t> sums_;
    std::vector<stream::Stretch> stretches_;
    std::vector<SummedRegion> regions_;
    std::vector<FeatureProblem> problems_;
};

}  // namespace features

void import_features(const std::shared_ptr<Engine>& engine, const std::string& path,
                     std::span<const FeatureSource> sources, const FeatureWriterOptions& options,
                     const Progress& progress, const FileSystem& files) {
    using features::ImportedTable;
    features::refuse_to_replace(path, sources, files);
    std::vector<ImportedTable> tables;
    std::uint64_t total = 0;
    for (const FeatureSource& source : sources) {
        tables.push_back(source.is_npy ? features::imported_npy(engine, source, files)
                                       : features::imported_raw(source, files));
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

std::vector<FeatureProblem> verify_features(const std::shared_ptr<Engine>& engine,
                                            const std::string& path, const Progress& progress,
                                            const FileSystem& files) {
    const features::OpenedFeatures opened =
        features::open_features(engine, path, files, CachePolicy::kDirect);
    if (opened.described.is_npy) {
        base::raise(base::error(ErrorCode::kUnsupported, "verify features",
                                "a .npy has no checksums; make a feature file of it, with "
                                "FeatureStore.write() or import_features()",
                                path));
    }
    std::vector<std::uint64_t> sums(opened.directory.sums);
    engine->read(opened.main, std::as_writable_bytes(std::span(sums)),
                 opened.directory.sums_offset);
    if (stream::content_hash(std::as_bytes(std::span(sums))) != opened.directory.sums_sum) {
        base::raise(base::error(ErrorCode::kDamaged, "verify features",
                                "the checksums of its rows are damaged themselves; import it "
                                "again, or take a copy",
                                path, opened.directory.sums_offset));
    }
    features::ChunkCheck check(opened, std::move(sums));
    stream::ProgressClock clock(progress, "verify features", path);
    clock.set_total(check.bytes());
    stream::read_ahead(
        *engine, check.stretches(),
        [&check](std::size_t stretch, std::uint64_t at, std::span<const std::byte> bytes) {
            check.look(stretch, at, bytes);
        },
        [&check](std::size_t stretch, std::uint64_t at, std::uint64_t bytes, const Error& error) {
            check.not_read(stretch, at, bytes, error);
        },
        clock);
    return check.problems();
}

}  // namespace penstock
