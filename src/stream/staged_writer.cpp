// SPDX-License-Identifier: Apache-2.0
#include "stream/staged_writer.hpp"

#include "base/align.hpp"

#include <penstock/gpu.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>

namespace penstock::stream {

namespace {

constexpr std::chrono::milliseconds kSlice{50};
constexpr std::size_t kPatchesOfATransfer = 4096;

void copy(std::byte* to, ConstMemory from) {
    if (from.kind == MemoryKind::kHost) {
        std::memcpy(to, from.data, from.bytes);
        return;
    }
    const MemoryCopy one{Memory(std::span(to, from.bytes)), from};
    copy_memory({&one, 1});
}

}  // namespace

StagedWriter::StagedWriter(Engine& engine, File file, ProgressClock& progress, MemoryPool& pool)
    : engine_(engine), file_(std::move(file)), progress_(progress), pool_(pool) {}

StagedWriter::~StagedWriter() {
    for (Flying& one : flying_) {
        one.transfer.cancel();
    }
    for (Flying& one : flying_) {
        try {
            one.transfer.wait();
        } catch (const std::exception&) {  // the caller gets the earlier error
        }
    }
}

std::vector<std::uint64_t> StagedWriter::write(std::uint64_t offset, ConstMemory bytes,
                                               const PieceSums& sums) {
    std::vector<std::uint64_t> out;
    for (std::uint64_t at = 0; at < bytes.bytes;) {
        const std::uint64_t count = std::min(sums.piece_bytes, bytes.bytes - at);
        std::byte* const to = place(offset + at, count);
        copy(to, {bytes.data + at, count, bytes.kind, bytes.device});
        if (sums.hash) {
            out.push_back(sums.hash({to, count}));
        }
        at += count;
    }
    return out;
}

void StagedWriter::write(std::uint64_t offset, std::string_view text) {
    write(offset, ConstMemory(std::as_bytes(std::span(text.data(), text.size()))));
}

void StagedWriter::patch(std::uint64_t offset, std::string_view text) {
    if (filled_ != 0 && offset >= begin_ && offset + text.size() <= begin_ + filled_) {
        std::memcpy(window_->data() + head_ + (offset - begin_), text.data(), text.size());
        return;
    }
    if (filled_ != 0 && offset < begin_ && offset + text.size() > begin_) {
        send(false);  // it is in two windows
    }
    patches_.emplace_back(offset, text);
}

void StagedWriter::finish() {
    if (filled_ != 0) {
        send(false);
    }
    while (!flying_.empty()) {
        await_oldest();
    }
    write_patches();
    window_.reset();
}

std::byte* StagedWriter::place(std::uint64_t offset, std::uint64_t bytes) {
    const bool goes_on = filled_ != 0 && offset == begin_ + filled_;
    if (filled_ != 0 && (!goes_on || head_ + filled_ + bytes > window_->size())) {
        send(goes_on);
    }
    if (filled_ == 0 || head_ + filled_ + bytes > window_->size()) {
        open(offset, bytes);
    }
    std::byte* const to = window_->data() + head_ + filled_;
    filled_ += bytes;
    return to;
}

// Makes a window for bytes at this offset; what is in the present one, a tail, goes with it.
void StagedWriter::open(std::uint64_t offset, std::uint64_t bytes) {
    while (flying_.size() + 1 >= kStagedWindows) {
        await_oldest();
    }
    const std::shared_ptr<Buffer> before = std::move(window_);
    const std::uint64_t least = base::kPageBytes + filled_ + bytes;
    window_ = std::make_shared<Buffer>(
        pool_.take(std::max(kStagedWindowBytes + base::kPageBytes, least)));
    if (filled_ != 0) {
        std::memcpy(window_->data(), before->data() + head_, filled_);
        head_ = 0;
        return;
    }
    begin_ = offset;
    head_ = offset % base::kPageBytes;
}

// Begins to write the window. `goes_on`: without its tail, which stays.
void StagedWriter::send(bool goes_on) {
    std::uint64_t tail = goes_on ? (begin_ + filled_) % base::kPageBytes : 0;
    tail = tail < filled_ ? tail : 0;
    const std::uint64_t bytes = filled_ - tail;
    TransferRequest request;
    request.write = true;
    request.files = {file_};
    request.extents = {{begin_, Memory(window_->bytes().subspan(head_, bytes)), 0}};
    request.options.group = this;
    request.keep = window_;
    flying_.push_back({begin(request), window_, bytes});
    begin_ += bytes;
    head_ += bytes;  // the tail is read from here, and copied, before the window goes back
    filled_ = tail;
    while (!flying_.empty() && flying_.front().transfer.done()) {
        await_oldest();  // its error comes early
    }
    progress_.tick();
}

Transfer StagedWriter::begin(const TransferRequest& request) {
    while (true) {
        if (std::optional<Transfer> begun = engine_.try_submit(request)) {
            return std::move(*begun);
        }
        engine_.wait_for_room(kSlice);  // as many transfers run as may
        progress_.tick();
    }
}

void StagedWriter::await_oldest() {
    Flying& oldest = flying_.front();
    while (!oldest.transfer.wait_for(kSlice)) {
        progress_.tick();
    }
    progress_.add(oldest.bytes);
    flying_.pop_front();
}

void StagedWriter::write_patches() {
    for (std::size_t at = 0; at < patches_.size(); at += kPatchesOfATransfer) {
        TransferRequest request;
        request.write = true;
        request.files = {file_};
        for (std::size_t i = at; i < std::min(patches_.size(), at + kPatchesOfATransfer); ++i) {
            const auto& [offset, text] = patches_[i];
            const ConstMemory bytes(std::as_bytes(std::span(text.data(), text.size())));
            request.extents.push_back({offset, to_write(bytes), 0});
        }
        Transfer transfer = begin(request);
        transfer.wait();
    }
    patches_.clear();
}

}  // namespace penstock::stream
