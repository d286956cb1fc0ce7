// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "memory/pool.hpp"

#include <penstock/memory.hpp>

namespace penstock {

struct MemoryPool::Impl {
    explicit Impl(const memory::Pool::Options& options) : pool(options) {}
    memory::Pool pool;
};

namespace {

template <typename T>
memory::Pool& pool_of(const std::shared_ptr<T>& impl) {
    if (!impl) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "memory pool",
                                "it was moved from; use the one that it was moved to"));
    }
    return impl->pool;
}

}  // namespace

MemoryPool::MemoryPool(const MemoryOptions& options)
    : impl_(std::make_shared<Impl>(
          memory::Pool::Options{.kept_bytes_max = options.kept_bytes_max,
                                .block = {.huge_pages = options.huge_pages,
                                          .touch = options.touch,
                                          .lock = options.lock,
                                          .keep_on_fork = options.keep_on_fork,
                                          .lasting = true}})) {}

Buffer MemoryPool::take(std::uint64_t bytes) {
    auto block = std::make_shared<memory::PooledBlock>(base::unwrap(pool_of(impl_).take(bytes)));
    Buffer buffer;
    buffer.data_ = block->data();
    buffer.bytes_ = bytes;
    buffer.owner_ = std::move(block);
    return buffer;
}

std::uint64_t MemoryPool::kept_bytes() const {
    return pool_of(impl_).kept_bytes();
}

void MemoryPool::trim() {
    pool_of(impl_).trim();
}

bool Buffer::locked() const {
    return owner_ && static_cast<memory::PooledBlock*>(owner_.get())->block().locked();
}

std::string Buffer::shortfall() const {
    return owner_ ? static_cast<memory::PooledBlock*>(owner_.get())->block().shortfall()
                  : std::string();
}

}  // namespace penstock
