// SPDX-License-Identifier: Apache-2.0
// Many .npy files as one array. A file's header and its elements are one request: the header goes
// to memory of ours, and is looked at only where it is not the very bytes of the one before it.
#include "base/raise.hpp"
#include "format/numpy/npy.hpp"
#include "stream/progress_clock.hpp"

#include <penstock/engine.hpp>
#include <penstock/tensor_table.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace penstock {

namespace {

constexpr std::uint64_t kFirstBytes = 4096;
constexpr std::size_t kBatchFiles = 1024;
constexpr std::size_t kBatches = 2;  // one is read while the other is looked at
constexpr std::chrono::milliseconds kSlice{50};

template <typename T>
T of_file(base::Result<T> result, const std::string& path) {
    if (!result) {
        result.error().path = path;
    }
    return base::unwrap(std::move(result));
}

std::uint64_t read_start(Engine& engine, const std::string& path, Memory into) {
    TransferOptions options;
    options.allow_short = true;
    return engine.read(path, into, 0, options);
}

std::string text_of(const NpyHeader& header) {
    const bool one = header.shape.size() == 1;
    return fmt::format("{} of shape ({}{})", header.dtype, fmt::join(header.shape, ", "),
                       one ? "," : "");
}

/// Files that are read by one transfer, and where their headers go.
struct Batch {
    std::size_t first = 0;
    std::size_t files = 0;
    std::vector<std::byte> headers;
};

class Reading {
public:
    Reading(Engine& engine, std::span<const std::string> paths, const NpyHeader& expected,
            Memory into, const NpyOptions& options)
        : engine_(engine),
          paths_(paths),
          expected_(expected),
          into_(into.data),
          cache_(options.cache),
          clock_(options.progress, "read npy") {
        clock_.set_total(into.bytes);
    }

    void run() {
        for (std::size_t i = 0; i < kBatches; ++i) {
            start(batches_[i]);
        }
        for (std::size_t i = 0; batches_[i].files != 0; i = (i + 1) % kBatches) {
            finish(batches_[i]);
            start(batches_[i]);
        }
        clock_.tick(true);
    }

private:
    void start(Batch& batch) {
        batch.first = next_;
        batch.files = std::min(kBatchFiles, paths_.size() - next_);
        next_ += batch.files;
        if (batch.files == 0) {
            return;
        }
        batch.headers.resize(batch.files * expected_.header_bytes);
        TransferRequest request;
        request.options.allow_short = true;
        request.options.cache = cache_;
        request.paths.assign(paths_.begin() + static_cast<std::ptrdiff_t>(batch.first),
                             paths_.begin() + static_cast<std::ptrdiff_t>(next_));
        request.extents.reserve(2 * batch.files);
        for (std::uint32_t i = 0; i < batch.files; ++i) {
            request.extents.push_back({0, {header_of(batch, i), expected_.header_bytes}, i});
            request.extents.push_back(
                {expected_.header_bytes, {data_of(batch.first + i), expected_.data_bytes}, i});
        }
        numbers_[static_cast<std::size_t>(&batch - batches_.data())] = group_.add(begin(request));
    }

    // One batch alone is waited for: then a few small files are read here and now.
    Transfer begin(const TransferRequest& request) {
        const bool alone = paths_.size() <= kBatchFiles;
        while (true) {
            auto begun = alone ? engine_.try_run(request) : engine_.try_submit(request);
            if (begun) {
                return std::move(*begun);
            }
            engine_.wait_for_room(kSlice);  // as many transfers run as may
            clock_.tick();
        }
    }

    void finish(Batch& batch) {
        const auto index = static_cast<std::size_t>(&batch - batches_.data());
        while (!ended_[index]) {
            if (auto ended = group_.wait_any(kSlice)) {
                ended_[ended->number == numbers_[index] ? index : 1 - index] =
                    std::move(ended->transfer);
            }
            clock_.tick();
        }
        Transfer transfer = *std::exchange(ended_[index], std::nullopt);
        transfer.wait();
        for (std::size_t i = 0; i < batch.files; ++i) {
            check(batch, i, transfer);
        }
        clock_.add(batch.files * expected_.data_bytes);
        clock_.tick();
    }

    void check(Batch& batch, std::size_t i, const Transfer& transfer) {
        const std::string& path = paths_[batch.first + i];
        const std::span<const std::byte> header(header_of(batch, i), expected_.header_bytes);
        std::uint64_t got = transfer.extent_bytes(2 * i + 1);
        const bool known = transfer.extent_bytes(2 * i) == header.size() &&
                           std::equal(header.begin(), header.end(), known_.begin(), known_.end());
        if (!known && !is_expected(header.first(transfer.extent_bytes(2 * i)))) {
            const NpyHeader now = read_npy_header(engine_, path);
            if (now.dtype != expected_.dtype || now.shape != expected_.shape) {
                base::raise(base::error(
                    ErrorCode::kInvalidArgument, "read npy",
                    fmt::format("it holds {}, and {} was expected, as of the first file; read "
                                "files of one dtype and shape together",
                                text_of(now), text_of(expected_)),
                    path));
            }
            if (now.header_bytes != expected_.header_bytes) {
                TransferOptions options;
                options.allow_short = true;
                options.cache = cache_;
                got = engine_.read(path, {data_of(batch.first + i), expected_.data_bytes},
                                   now.header_bytes, options);
            }
        }
        if (got != expected_.data_bytes) {
            base::raise(base::error(
                ErrorCode::kEndOfFile, "read npy",
                fmt::format(
                    "it is cut: {} of the {} bytes of its elements are there; make it again", got,
                    expected_.data_bytes),
                path, expected_.header_bytes + got));
        }
    }

    // The next ones are likely the same bytes.
    bool is_expected(std::span<const std::byte> header) {
        const auto now = format::npy::read_header(header, true);
        if (!now || now->header_bytes != expected_.header_bytes || now->dtype != expected_.dtype ||
            now->shape != expected_.shape) {
            return false;
        }
        known_.assign(header.begin(), header.end());
        return true;
    }

    std::byte* header_of(Batch& batch, std::size_t i) const {
        return batch.headers.data() + i * expected_.header_bytes;
    }
    [[nodiscard]] std::byte* data_of(std::size_t file) const {
        return into_ + file * expected_.data_bytes;
    }

    Engine& engine_;
    const std::span<const std::string> paths_;
    const NpyHeader& expected_;
    std::byte* const into_;
    const CachePolicy cache_;
    stream::ProgressClock clock_;
    std::size_t next_ = 0;
    std::vector<std::byte> known_;
    std::array<Batch, kBatches> batches_;
    std::array<std::uint64_t, kBatches> numbers_{};
    std::array<std::optional<Transfer>, kBatches> ended_;
    TransferGroup group_;  ///< last: it waits for what uses the headers
};

}  // namespace

NpyHeader read_npy_header(Engine& engine, const std::string& path) {
    std::vector<std::byte> start(kFirstBytes);
    std::uint64_t got = read_start(engine, path, {start.data(), start.size()});
    const std::span<const std::byte> there(start.data(), got);
    const std::uint64_t bytes = of_file(format::npy::header_bytes(there), path);
    if (bytes > start.size()) {
        start.resize(bytes);
        got = read_start(engine, path, {start.data(), start.size()});
    }
    format::npy::Header header =
        of_file(format::npy::read_header(std::span(start).first(got), true), path);
    return {std::move(header.dtype), std::move(header.shape), header.header_bytes,
            header.data_bytes};
}

std::uint64_t read_npy(Engine& engine, std::span<const std::string> paths,
                       const NpyHeader& expected, Memory into, const NpyOptions& options) {
    const bool fits = expected.data_bytes == 0
                          ? into.bytes == 0
                          : into.bytes % expected.data_bytes == 0 &&
                                into.bytes / expected.data_bytes == paths.size();
    if (!fits || expected.header_bytes > format::npy::kHeaderBytesMax) {
        base::raise(base::error(
            ErrorCode::kInvalidArgument, "read npy",
            fmt::format("{} files of {} bytes each were asked for, and the memory has {} bytes; "
                        "give as many as the files have, and the header of one of them",
                        paths.size(), expected.data_bytes, into.bytes)));
    }
    Reading(engine, paths, expected, into, options).run();
    return into.bytes;
}

}  // namespace penstock
