// SPDX-License-Identifier: Apache-2.0
#include "memory/block.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/text/units.hpp"
#include "memory/lasting_memory.hpp"
#include "os/machine/limits.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace penstock::memory {

using base::fail;
using base::Result;

namespace {

constexpr std::uint64_t kHugePageBytes = 2 * base::kMiB;

base::Error out_of_memory(std::uint64_t bytes, std::string_view what, int system_errno) {
    base::Error e =
        base::error(ErrorCode::kOutOfMemory, "allocate",
                    fmt::format("{} ({} bytes) could not be {}: {}; ask for less, or free memory",
                                base::format_bytes(bytes), bytes, what,
                                std::generic_category().message(system_errno)));
    e.system_errno = system_errno;
    return e;
}

base::Error not_mapped(std::uint64_t bytes, bool reserve, int system_errno) {
    base::Error e = out_of_memory(bytes, "mapped", system_errno);
    if (!reserve) {
        e.message = fmt::format(
            "{} ({} bytes) of addresses could not be mapped: {}; raise `ulimit -v`, or set "
            "vm.overcommit_memory to 0 or 1",
            base::format_bytes(bytes), bytes, std::generic_category().message(system_errno));
    }
    return e;
}

// Maps `mapped` bytes at a multiple of `alignment`: maps more, then unmaps both ends.
void* map_aligned(std::uint64_t mapped, std::uint64_t alignment, bool reserve) {
    const auto wide = base::checked_add(mapped, alignment - base::kPageBytes);
    if (!wide) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (reserve ? 0 : MAP_NORESERVE);
    void* start = ::mmap(nullptr, *wide, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (start == MAP_FAILED) {
        return MAP_FAILED;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(start);
    const std::uintptr_t wanted = base::align_up(address, alignment);
    const std::uint64_t head = wanted - address;
    const std::uint64_t tail = *wide - head - mapped;
    if (head != 0) {
        ::munmap(start, head);
    }
    if (tail != 0) {
        ::munmap(reinterpret_cast<void*>(wanted + mapped), tail);
    }
    PENSTOCK_ASSERT(base::is_aligned(wanted, alignment));
    return reinterpret_cast<void*>(wanted);
}

// Returns 0 or an errno.
int touch_pages(std::byte* data, std::uint64_t mapped) {
    while (::madvise(data, mapped, MADV_POPULATE_WRITE) != 0) {
        if (errno == EINVAL || errno == EPERM || errno == ENOSYS) {  // before 5.14; a sandbox
            for (std::uint64_t at = 0; at < mapped; at += base::kPageBytes) {
                const_cast<volatile std::byte&>(data[at]) = std::byte{0};
            }
            return 0;
        }
        if (errno != EAGAIN && errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

std::string why_not_locked(std::uint64_t mapped, int system_errno) {
    const std::uint64_t limit = os::memlock_limit();
    if (limit != os::kUnlimited && (system_errno == ENOMEM || system_errno == EPERM)) {
        return fmt::format(
            "not locked: the limit on locked memory (RLIMIT_MEMLOCK) is {} and {} were "
            "asked for; raise it with {}",
            base::format_bytes(limit), base::format_bytes(mapped), os::kRaiseMemlock);
    }
    return fmt::format("{} were not locked: {}; free memory, or go without",
                       base::format_bytes(mapped), std::generic_category().message(system_errno));
}

void add(std::string& text, const std::string& more) {
    text += text.empty() ? more : "; " + more;
}

std::string ask_for_huge_pages(std::byte* data, std::uint64_t mapped) {
    const bool refused = ::madvise(data, mapped, MADV_HUGEPAGE) != 0;
    const std::string mode = refused ? "absent" : os::huge_page_mode();
    if (mode == "absent") {
        return "no huge pages: this kernel has no transparent ones";
    }
    if (mode == "never") {
        return "no huge pages: /sys/kernel/mm/transparent_hugepage/enabled says never; fix it "
               "with 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled'";
    }
    return {};
}

}  // namespace

Result<Block> Block::make(std::uint64_t bytes, BlockOptions options) {
    Block block;
    if (bytes == 0) {
        return block;
    }
    const auto padded = base::checked_add(bytes, base::kPageBytes - 1);
    if (!padded) {
        return fail(not_mapped(bytes, options.reserve, ENOMEM));
    }
    const std::uint64_t mapped = base::align_down(*padded, base::kPageBytes);
    const bool huge = options.huge_pages && bytes >= kHugePageBytes;
    void* start = map_aligned(mapped, huge ? kHugePageBytes : base::kPageBytes, options.reserve);
    if (start == MAP_FAILED) {
        return fail(not_mapped(bytes, options.reserve, errno));
    }
    block.data_ = static_cast<std::byte*>(start);
    block.bytes_ = bytes;
    block.mapped_bytes_ = mapped;
    if (huge) {
        block.shortfall_ = ask_for_huge_pages(block.data_, mapped);
    }
    if (!options.keep_on_fork && ::madvise(start, mapped, MADV_DONTFORK) != 0) {
        return fail(out_of_memory(bytes, "kept from child processes", errno));
    }
    block.process_ = options.keep_on_fork ? 0 : ::getpid();
    if (options.touch) {
        if (const int error = touch_pages(block.data_, mapped); error != 0) {
            return fail(out_of_memory(bytes, "filled with pages", error));
        }
    }
    if (options.lock) {
        block.locked_ = ::mlock(start, mapped) == 0;
        if (!block.locked_) {
            add(block.shortfall_, why_not_locked(mapped, errno));
        }
    }
    block.lasting_ = options.lasting && LastingMemory::add(block.data_, mapped);
    return block;
}

void Block::leave() noexcept {
    PENSTOCK_ASSERT(!lasting_);
    data_ = nullptr;
    bytes_ = 0;
    mapped_bytes_ = 0;
}

void Block::allow_huge_pages(bool allow) const noexcept {
    if (mapped_bytes_ >= kHugePageBytes) {
        static_cast<void>(::madvise(data_, mapped_bytes_, allow ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
    }
}

Block::Block(Block&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      process_(other.process_),
      locked_(std::exchange(other.locked_, false)),
      lasting_(std::exchange(other.lasting_, false)),
      shortfall_(std::exchange(other.shortfall_, {})) {}

Block& Block::operator=(Block&& other) noexcept {
    if (this != &other) {
        Block old(std::move(*this));
        data_ = std::exchange(other.data_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
        mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
        process_ = other.process_;
        locked_ = std::exchange(other.locked_, false);
        lasting_ = std::exchange(other.lasting_, false);
        shortfall_ = std::exchange(other.shortfall_, {});
    }
    return *this;
}

// Unmaps only in the process that mapped: elsewhere the addresses may hold other memory by now.
Block::~Block() {
    if (data_ != nullptr && (process_ == 0 || process_ == ::getpid())) {
        if (lasting_) {
            LastingMemory::remove(data_);
        }
        ::munmap(data_, mapped_bytes_);
    }
}

}  // namespace penstock::memory
