// SPDX-License-Identifier: Apache-2.0
#include "features/files/chunk_check.hpp"

#include "base/raise.hpp"
#include "format/fault.hpp"
#include "stream/checksum.hpp"
#include "stream/progress_clock.hpp"
#include "stream/read_ahead.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

namespace features {

namespace {

constexpr std::string_view kVerify = "verify features";

std::vector<std::uint64_t> sums_of(const OpenedFeatures& opened) {
    const std::string& path = opened.described.path;
    if (opened.described.is_npy) {
        base::raise(base::error(ErrorCode::kUnsupported, kVerify,
                                "a .npy has no checksums; make a feature file of it, with "
                                "FeatureStore.write() or import_features()",
                                path));
    }
    std::vector<std::uint64_t> sums(opened.directory.sums);
    opened.engine->read(opened.main, std::as_writable_bytes(std::span(sums)),
                        opened.directory.sums_offset, {.cache = CachePolicy::kDirect});
    if (stream::content_hash(std::as_bytes(std::span(sums))) != opened.directory.sums_sum) {
        base::raise(base::error(ErrorCode::kDamaged, kVerify,
                                "the checksums of its rows are damaged themselves; import it "
                                "again, or take a copy",
                                path, opened.directory.sums_offset));
    }
    return sums;
}

// Checks what passes, chunk by chunk.
class ChunkCheck {
public:
    ChunkCheck(const OpenedFeatures& opened, const ChunkProblem& report)
        : opened_(opened), report_(report), sums_(sums_of(opened)) {
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

    void look(std::size_t stretch, std::uint64_t at, std::span<const std::byte> bytes) const {
        for (std::uint64_t done = 0; done < bytes.size(); done += kChunkBytes) {
            const std::uint64_t length = std::min<std::uint64_t>(kChunkBytes, bytes.size() - done);
            const std::uint64_t expected =
                sums_[regions_[stretch].first_sum + (at + done) / kChunkBytes];
            if (stream::content_hash(bytes.subspan(done, length)) != expected) {
                report_(
                    problem(stretch, at + done, length, "the bytes do not match their checksum"),
                    nullptr);
            }
        }
    }
    // A machine that lacks memory says nothing of the file.
    void not_read(std::size_t stretch, std::uint64_t at, std::uint64_t bytes,
                  const Error& error) const {
        if (!error.is_about_the_file()) {
            throw Error(error);
        }
        report_(problem(stretch, at, bytes, error.what()), &error);
    }

private:
    struct SummedRegion {
        std::size_t table = 0;
        std::uint32_t part = 0;
        std::uint64_t first_sum = 0;
    };

    [[nodiscard]] FeatureProblem problem(std::size_t stretch, std::uint64_t at,
                                         std::uint64_t length, const std::string& message) const {
        const SummedRegion& region = regions_[stretch];
        const Table& table = opened_.directory.tables[region.table];
        return {.table = table.name,
                .path = opened_.described.files[region.part],
                .offset = table.bases[region.part] + at,
                .bytes = length,
                .row = row_at({region.part, at / table.stride_bytes}, table.stripe_rows,
                              opened_.parts.size()),
                .message = message};
    }

    const OpenedFeatures& opened_;
    const ChunkProblem& report_;
    std::vector<std::uint64_t> sums_;
    std::vector<stream::Stretch> stretches_;
    std::vector<SummedRegion> regions_;
};

}  // namespace

void check_chunks(const OpenedFeatures& opened, const ChunkProblem& report,
                  const Progress& progress) {
    const ChunkCheck check(opened, report);
    stream::ProgressClock clock(progress, std::string(kVerify), opened.described.path);
    clock.set_total(check.bytes());
    stream::read_ahead(
        *opened.engine, check.stretches(),
        [&check](std::size_t stretch, std::uint64_t at, std::span<const std::byte> bytes) {
            check.look(stretch, at, bytes);
        },
        [&check](std::size_t stretch, std::uint64_t at, std::uint64_t bytes, const Error& error) {
            check.not_read(stretch, at, bytes, error);
        },
        clock);
}

void require_sound_chunks(const OpenedFeatures& opened, const Progress& progress) {
    check_chunks(
        opened,
        [&opened](const FeatureProblem& problem, const Error* unread) {
            if (unread != nullptr) {
                raise_with_row(*unread, opened);
            }
            base::raise(base::error(
                ErrorCode::kDamaged, kVerify,
                fmt::format("{} bytes of table {}, from row {} on, do not match their checksum; "
                            "write or import the file again, or take a copy (penstock features "
                            "verify lists all damage)",
                            problem.bytes, format::shown(problem.table), problem.row),
                problem.path, problem.offset));
        },
        progress);
}

}  // namespace features

std::vector<FeatureProblem> verify_features(const std::shared_ptr<Engine>& engine,
                                            const std::string& path, const Progress& progress,
                                            const FileSystem& files) {
    const features::OpenedFeatures opened =
        features::open_features(engine, path, files, CachePolicy::kDirect);
    std::vector<FeatureProblem> problems;
    features::check_chunks(
        opened,
        [&problems](const FeatureProblem& problem, const Error* /*unread*/) {
            problems.push_back(problem);
        },
        progress);
    return problems;
}

}  // namespace penstock
