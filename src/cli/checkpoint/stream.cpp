// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/stream.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock::cli {

namespace {

template <typename Run>
format::Result<void> result_of(Run run) {
    try {
        run();
        return {};
    } catch (const Error& error) {
        return base::fail({error.reason(), error.system_errno(), error.operation(), error.path(),
                           error.offset(), error.what()});
    }
}

}  // namespace

format::Result<void> FileSource::read(std::uint64_t offset, std::span<std::byte> into) {
    return result_of([&] { engine_.read(file_, into, offset); });
}

format::Result<void> FileSource::read_many(std::span<const format::ByteRead> reads) {
    TransferRequest request;
    request.files.push_back(file_);
    request.extents.reserve(reads.size());
    for (const format::ByteRead& one : reads) {
        request.extents.push_back({one.offset, one.into.size(), one.into.data(), 0});
    }
    return result_of([&] { engine_.submit(std::move(request)).wait(); });
}

Stream::~Stream() {
    if (next_.valid()) {
        next_.cancel();
        try {
            next_.wait();
        } catch (const Error&) {  // of which the first is on its way already
        }
    }
}

void Stream::run(const File& file, std::uint64_t offset, std::uint64_t bytes,
                 std::uint64_t piece_bytes,
                 const std::function<void(std::span<const std::byte>)>& look) {
    for (Buffer& buffer : buffers_) {
        if (buffer.size() < piece_bytes) {
            buffer = pool_.take(piece_bytes);
        }
    }
    const auto begin = [&](std::uint64_t at, std::size_t which) {
        const std::uint64_t count = std::min(piece_bytes, bytes - at);
        next_ = engine_.read_async(file, buffers_[which].bytes().first(count), offset + at);
    };
    if (bytes > 0) {
        begin(0, 0);
    }
    std::size_t which = 0;
    for (std::uint64_t at = 0; at < bytes; at += piece_bytes, which ^= 1U) {
        next_.wait();
        next_ = {};
        if (at + piece_bytes < bytes) {
            begin(at + piece_bytes, which ^ 1U);
        }
        look(buffers_[which].bytes().first(std::min(piece_bytes, bytes - at)));
    }
}

void fetch(Engine& engine, TransferRequest request, const penstock::Progress& progress) {
    // In pieces, so that it can be told how far it is.
    constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 20;
    std::uint64_t total = 0;
    for (const Extent& extent : request.extents) {
        total += extent.bytes;
    }
    std::vector<Extent> all = std::move(request.extents);
    std::uint64_t done = 0;
    auto told = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < all.size();) {
        TransferRequest piece;
        piece.files = request.files;
        std::uint64_t bytes = 0;
        while (i < all.size() && bytes < kPieceBytes) {
            Extent& rest = all[i];
            const std::uint64_t take = std::min(rest.bytes, kPieceBytes - bytes);
            piece.extents.push_back({rest.offset, take, rest.memory, rest.file});
            rest.offset += take;
            rest.bytes -= take;
            rest.memory = static_cast<std::byte*>(rest.memory) + take;
            bytes += take;
            i += rest.bytes == 0 ? 1 : 0;
        }
        engine.submit(std::move(piece)).wait();
        done += bytes;
        const auto now = std::chrono::steady_clock::now();
        if (progress && now - told > std::chrono::milliseconds(100)) {
            told = now;
            progress(done, total);
        }
    }
}

}  // namespace penstock::cli
