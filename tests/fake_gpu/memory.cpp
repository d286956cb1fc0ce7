// SPDX-License-Identifier: Apache-2.0
// Memory of the fake. A device address lies in a range that is reserved and never readable; the
// bytes are in a mapping elsewhere that only the fake knows. So a memcpy() to a device address is a
// SIGSEGV and a read() into it EFAULT, as with a GPU. An address is not used again before the range
// is, so that freed memory stays known as freed.
#include "machine.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace penstock::device::cuda::fake {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uintptr_t kSpace = std::uintptr_t{1} << 38U;
constexpr int kPoison = 0xDB;
/// cuMemAlloc promises 256; torch relies on 512.
constexpr std::size_t kDeviceAlign = 512;
/// Allocations of whole pages of a GPU lie one after another, seen on an H200 with driver 580.
constexpr std::size_t kDevicePage = std::size_t{2} << 20U;

std::size_t pages(std::size_t bytes) {
    return (bytes + kPage - 1) / kPage * kPage;
}

std::byte* map(std::size_t bytes, int protection, int more) {
    void* found = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | more, -1, 0);
    return found == MAP_FAILED ? nullptr : static_cast<std::byte*>(found);
}

}  // namespace

Allocation* Machine::holder(std::uintptr_t address) {
    auto found = memory.upper_bound(address);
    if (found == memory.begin()) {
        return nullptr;
    }
    --found;
    return address - found->second.base < found->second.bytes ? &found->second : nullptr;
}

std::byte* Machine::on_device(std::uintptr_t address, std::size_t bytes) {
    Allocation* found = holder(address);
    if (found == nullptr || bytes > found->bytes - (address - found->base)) {
        return nullptr;
    }
    return found->backing + (address - found->base);
}

Machine::HostMemory Machine::host_memory(std::uintptr_t address, std::size_t bytes) {
    if (Allocation* found = holder(address)) {
        const bool whole = bytes <= found->bytes - (address - found->base);
        return whole && found->kind != Kind::kDevice ? HostMemory::kPinned : HostMemory::kNone;
    }
    const auto next = memory.upper_bound(address);
    const bool reaches = next != memory.end() && next->second.base - address < bytes;
    return reaches ? HostMemory::kNone : HostMemory::kPageable;
}

CUresult Machine::allocate(Kind kind, const std::shared_ptr<Context>& context, std::size_t bytes,
                           unsigned flags, Allocation** made) {
    Device& device = devices[static_cast<std::size_t>(context->device)];
    const bool on_gpu = kind == Kind::kDevice || kind == Kind::kManaged;
    if (on_gpu && bytes > settings.memory_bytes - device.used_bytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    Allocation item;
    item.kind = kind;
    item.device = context->device;
    item.context = context;
    item.number = next_number++;
    item.bytes = bytes;
    item.flags = flags;
    item.backing_bytes = pages(bytes);
    item.backing = map(item.backing_bytes, PROT_READ | PROT_WRITE, 0);
    if (item.backing == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    item.base = reinterpret_cast<std::uintptr_t>(item.backing);
    if (kind == Kind::kDevice) {
        if (device.space == 0) {
            device.space = reinterpret_cast<std::uintptr_t>(map(kSpace, PROT_NONE, MAP_NORESERVE));
            device.next = device.space;
        }
        // After all others a gap of a page and more, and no more alignment than is promised.
        const bool adjoins = bytes % kDevicePage == 0;
        const std::size_t offset =
            adjoins ? 0 : kDeviceAlign * (scramble(item.number) % (kPage / kDeviceAlign));
        const std::size_t room = adjoins ? bytes : pages(bytes) + 2 * kPage;
        if (device.space != 0 && room < kSpace && device.next - device.space > kSpace - room) {
            device.next = device.space;
        }
        for (auto other = memory.lower_bound(device.next);
             device.space != 0 && other != memory.end() && other->first < device.next + room;
             ++other) {
            device.next = other->first / kPage * kPage + pages(other->second.bytes) + 2 * kPage;
        }
        if (device.space == 0 || device.next - device.space > kSpace - room) {
            munmap(item.backing, item.backing_bytes);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        item.base = device.next + offset;
        device.next += room;
    }
    if (settings.poison) {
        std::memset(item.backing, kPoison, bytes);
    }
    if (on_gpu) {
        device.used_bytes += bytes;
        counters.device_bytes_now += bytes;
        counters.device_bytes_max = std::max(counters.device_bytes_max, counters.device_bytes_now);
    } else {
        counters.pinned_bytes_now += bytes;
        counters.pinned_bytes_max = std::max(counters.pinned_bytes_max, counters.pinned_bytes_now);
    }
    *made = &memory.emplace(item.base, item).first->second;
    return CUDA_SUCCESS;
}

void Machine::release(std::uintptr_t base) {
    const auto found = memory.find(base);
    if (found == memory.end()) {
        return;
    }
    const Allocation& item = found->second;
    if (item.kind == Kind::kDevice || item.kind == Kind::kManaged) {
        devices[static_cast<std::size_t>(item.device)].used_bytes -= item.bytes;
        counters.device_bytes_now -= item.bytes;
    } else {
        counters.pinned_bytes_now -= item.bytes;
    }
    if (item.kind != Kind::kRegistered) {
        munmap(item.backing, item.backing_bytes);
    }
    memory.erase(found);
}

}  // namespace penstock::device::cuda::fake
