// SPDX-License-Identifier: Apache-2.0
#include "allocations/allocator.hpp"

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PENSTOCK_HAS_MALLOC 0
#else
#define PENSTOCK_HAS_MALLOC 1
#endif

namespace penstock::allocator {

namespace {

std::atomic<std::uint64_t> allocations{0};
std::atomic<std::int64_t> alive{0};
std::atomic<std::uint64_t> fails_at{0};  // 0: never
std::atomic<Fails> fails_how{Fails::kOnce};
std::atomic<std::uint64_t> since{0};

bool fails() {
    allocations.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t at = fails_at.load(std::memory_order_relaxed);
    if (at == 0) {
        return false;
    }
    const std::uint64_t number = since.fetch_add(1, std::memory_order_relaxed) + 1;
    return number == at || (number > at && fails_how.load() == Fails::kFromThenOn);
}

}  // namespace

std::uint64_t count() {
    return allocations.load();
}

std::int64_t live() {
    return alive.load();
}

void fail(std::uint64_t n, Fails how) {
    since.store(0);
    fails_how.store(how);
    fails_at.store(n);
}

std::uint64_t stop_failing() {
    fails_at.store(0);
    return since.load();
}

}  // namespace penstock::allocator

using penstock::allocator::alive;
using penstock::allocator::fails;

#if PENSTOCK_HAS_MALLOC

extern "C" {

void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t align, std::size_t bytes);

static void* refused() {
    errno = ENOMEM;
    return nullptr;
}

void* malloc(std::size_t bytes) {
    return fails() ? refused() : __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
    return fails() ? refused() : __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
    return fails() ? refused() : __libc_realloc(memory, bytes);
}
void* aligned_alloc(std::size_t align, std::size_t bytes) {
    return fails() ? refused() : __libc_memalign(align, bytes);
}
int posix_memalign(void** out, std::size_t align, std::size_t bytes) {
    *out = fails() ? nullptr : __libc_memalign(align, bytes);
    return *out == nullptr ? ENOMEM : 0;
}

}  // extern "C"

static void* allocate(std::size_t bytes) {
    return fails() ? nullptr : __libc_malloc(bytes);
}
static void* allocate(std::size_t bytes, std::align_val_t align) {
    return fails() ? nullptr : __libc_memalign(static_cast<std::size_t>(align), bytes);
}

#else

static void* allocate(std::size_t bytes) {
    return fails() ? nullptr : std::malloc(bytes);
}
static void* allocate(std::size_t bytes, std::align_val_t align) {
    void* memory = nullptr;
    return fails() || ::posix_memalign(&memory, static_cast<std::size_t>(align), bytes) != 0
               ? nullptr
               : memory;
}

#endif

template <typename... Align>
static void* allocate_or_throw(std::size_t bytes, Align... align) {
    void* memory = allocate(bytes, align...);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    alive.fetch_add(1, std::memory_order_relaxed);
    return memory;
}

static void give_back(void* memory) {
    if (memory != nullptr) {
        alive.fetch_sub(1, std::memory_order_relaxed);
        std::free(memory);
    }
}

void* operator new(std::size_t bytes) {
    return allocate_or_throw(bytes);
}
void* operator new[](std::size_t bytes) {
    return allocate_or_throw(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t align) {
    return allocate_or_throw(bytes, align);
}
void* operator new[](std::size_t bytes, std::align_val_t align) {
    return allocate_or_throw(bytes, align);
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*none*/) noexcept {
    void* memory = allocate(bytes);
    alive.fetch_add(memory != nullptr ? 1 : 0, std::memory_order_relaxed);
    return memory;
}
void* operator new[](std::size_t bytes, const std::nothrow_t& none) noexcept {
    return operator new(bytes, none);
}
void operator delete(void* memory) noexcept {
    give_back(memory);
}
void operator delete[](void* memory) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
    give_back(memory);
}
void operator delete[](void* memory, std::size_t /*bytes*/) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::align_val_t /*align*/) noexcept {
    give_back(memory);
}
void operator delete[](void* memory, std::align_val_t /*align*/) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*align*/) noexcept {
    give_back(memory);
}
void operator delete[](void* memory, std::size_t /*bytes*/, std::align_val_t /*align*/) noexcept {
    give_back(memory);
}
