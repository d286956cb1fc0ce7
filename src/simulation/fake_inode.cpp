// SPDX-License-Identifier: Apache-2.0
#include "simulation/fake_inode.hpp"

#include "base/align.hpp"

#include <algorithm>
#include <cstring>

namespace penstock::simulation {

namespace {

// A kernel does not keep dirty data forever; beyond this the oldest is written to the medium.
constexpr std::uint64_t kCacheBytesMax = 4 << 20;

}  // namespace

void FakeInode::read(std::uint64_t offset, std::span<std::byte> into) const {
    if (!hollow_ && !into.empty()) {
        std::memcpy(into.data(), data_.data() + offset, into.size());
    }
}

void FakeInode::write(std::uint64_t offset, std::span<const std::byte> from) {
    if (hollow_ || from.empty()) {
        return;
    }
    std::memcpy(data_.data() + offset, from.data(), from.size());
    cache_.push_back({offset, {from.begin(), from.end()}});
    cache_bytes_ += from.size();
    if (cache_bytes_ > kCacheBytesMax + 2 * bytes_) {
        write_back_oldest();
    }
}

void FakeInode::resize(std::uint64_t bytes) {
    if (bytes < bytes_) {
        cut_to_ = std::min(cut_to_, bytes);
        cache_bytes_ = 0;
        for (Write& write : cache_) {
            if (write.offset + write.bytes.size() > bytes) {
                write.bytes.resize(bytes - std::min(bytes, write.offset));
            }
            cache_bytes_ += write.bytes.size();
        }
        std::erase_if(cache_, [](const Write& write) { return write.bytes.empty(); });
    }
    bytes_ = bytes;
    if (!hollow_) {
        data_.resize(bytes);
    }
}

// Writes back bytes [begin, end) of a write, as far as the file on the medium has them.
void FakeInode::write_back(const Write& write, std::uint64_t begin, std::uint64_t end) {
    end = std::min<std::uint64_t>(end, durable_.size());
    if (begin < end) {
        std::memcpy(durable_.data() + begin, write.bytes.data() + (begin - write.offset),
                    end - begin);
    }
}

void FakeInode::cut_durable() {
    durable_bytes_ = std::min(durable_bytes_, cut_to_);
    durable_.resize(durable_bytes_);
    cut_to_ = kNotCut;
}

void FakeInode::write_back_oldest() {
    cut_durable();
    const std::size_t count = (cache_.size() + 1) / 2;
    for (std::size_t i = 0; i < count; ++i) {
        const Write& write = cache_[i];
        durable_.resize(std::max<std::size_t>(durable_.size(), write.offset + write.bytes.size()));
        write_back(write, write.offset, write.offset + write.bytes.size());
        cache_bytes_ -= write.bytes.size();
    }
    durable_bytes_ = std::max<std::uint64_t>(durable_bytes_, durable_.size());
    cache_.erase(cache_.begin(), cache_.begin() + static_cast<std::ptrdiff_t>(count));
}

void FakeInode::sync() {
    lose_cache([](std::size_t, std::size_t) { return true; }, 1);
}

void FakeInode::lose_cache(const Survival& keep, std::uint64_t size_choice) {
    if (hollow_) {
        durable_bytes_ = bytes_;
        return;
    }
    if (size_choice == 1) {
        cut_durable();
        durable_bytes_ = bytes_;
    } else if (size_choice != 0 && bytes_ > durable_bytes_) {
        const std::uint64_t sectors = (bytes_ - durable_bytes_) / kSectorBytes + 1;
        durable_bytes_ += size_choice % sectors * kSectorBytes;
    }
    durable_.resize(durable_bytes_);
    std::size_t count = 0;
    for (const Write& write : cache_) {
        count += (write.offset + write.bytes.size() - 1) / kSectorBytes -
                 write.offset / kSectorBytes + 1;
    }
    std::size_t index = 0;
    for (const Write& write : cache_) {
        const std::uint64_t end = write.offset + write.bytes.size();
        for (std::uint64_t begin = write.offset; begin < end;) {
            const std::uint64_t next =
                std::min(end, base::align_down(begin, kSectorBytes) + kSectorBytes);
            if (keep(index++, count)) {
                write_back(write, begin, next);
            }
            begin = next;
        }
    }
    cache_.clear();
    cache_bytes_ = 0;
    cut_to_ = kNotCut;
}

void FakeInode::restart() {
    data_ = durable_;
    bytes_ = durable_bytes_;
    cut_to_ = kNotCut;
}

void FakeInode::damage(const std::function<void(std::vector<std::byte>&)>& change) {
    cache_.clear();
    cache_bytes_ = 0;
    change(data_);
    durable_ = data_;
    bytes_ = durable_bytes_ = data_.size();
    cut_to_ = kNotCut;
}

}  // namespace penstock::simulation
