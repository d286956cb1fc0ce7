// SPDX-License-Identifier: Apache-2.0
#include "features/files/block_writer.hpp"

#include "base/align.hpp"
#include "stream/checksum.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace penstock::features {

BlockWriter::BlockWriter(std::shared_ptr<Engine> engine, File file, std::uint64_t offset)
    : engine_(std::move(engine)), file_(std::move(file)), at_(offset) {}

// Makes the block at its first use: a short file needs no second one.
std::byte* BlockWriter::room() {
    Buffer& block = blocks_[current_];
    if (block.bytes().empty()) {
        block = pool_.take(kBytes);
    }
    return block.data() + filled_;
}

BlockWriter::~BlockWriter() {
    for (Transfer& transfer : transfers_) {
        if (transfer.valid()) {
            try {
                transfer.wait();
            } catch (const std::exception&) {  // the caller has an earlier error, or gave up
            }
        }
    }
}

void BlockWriter::put(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const std::uint64_t now = std::min<std::uint64_t>(bytes.size(), kBytes - filled_);
        std::memcpy(room(), bytes.data(), now);
        filled_ += now;
        bytes = bytes.subspan(now);
        if (filled_ == kBytes) {
            flush(0);
        }
    }
}

void BlockWriter::put_zeros(std::uint64_t bytes) {
    while (bytes != 0) {
        const std::uint64_t now = std::min(bytes, kBytes - filled_);
        std::memset(room(), 0, now);
        filled_ += now;
        bytes -= now;
        if (filled_ == kBytes) {
            flush(0);
        }
    }
}

std::vector<std::uint64_t> BlockWriter::end_sums() {
    flush(base::align_up(filled_, kBlockBytes) - filled_);
    return std::exchange(sums_, {});
}

void BlockWriter::flush(std::uint64_t padding) {
    if (filled_ == 0) {
        return;
    }
    const Buffer& block = blocks_[current_];
    for (std::uint64_t at = 0; at < filled_; at += kChunkBytes) {
        sums_.push_back(
            stream::content_hash(block.bytes().subspan(at, std::min(kChunkBytes, filled_ - at))));
    }
    std::memset(block.data() + filled_, 0, padding);
    const std::uint64_t bytes = filled_ + padding;
    transfers_[current_] = engine_->write_async(file_, block.bytes().first(bytes), at_);
    at_ += bytes;
    filled_ = 0;
    current_ = 1 - current_;
    if (transfers_[current_].valid()) {
        transfers_[current_].wait();
    }
}

void BlockWriter::finish() {
    for (Transfer& transfer : transfers_) {
        if (transfer.valid()) {
            transfer.wait();
        }
    }
}

}  // namespace penstock::features
