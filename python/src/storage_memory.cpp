// SPDX-License-Identifier: Apache-2.0
#include "storage_memory.hpp"

#include "borrowed_memory.hpp"

#include <algorithm>
#include <string_view>

namespace penstock::python {

bool place_on_gpu(StorageMemory& memory, std::uintptr_t address) {
    if (torch_has_rocm()) {
        return false;
    }
    try {
        const Memory there = device_memory(reinterpret_cast<void*>(address), memory.bytes);
        memory.where = there.kind;
        memory.device = there.device;
        return true;
    } catch (const Error& error) {
        // torch copies for a driver that is too old for us. In the child of a fork nothing does.
        if (error.reason() != ErrorCode::kUnsupported ||
            std::string_view(error.what()).find("forked") != std::string_view::npos) {
            throw;
        }
        return false;
    }
}

std::vector<StreamHandle> streams_of(const std::vector<StorageMemory>& storages) {
    std::vector<Memory> memory;
    for (const StorageMemory& storage : storages) {
        memory.push_back(to_write(storage.memory()));
    }
    return streams_of(memory);
}

std::vector<StreamHandle> streams_of(std::span<const Memory> memory) {
    std::vector<StreamHandle> out;
    for (const Memory& one : memory) {
        if (one.kind == MemoryKind::kDevice && one.bytes != 0 &&
            std::none_of(out.begin(), out.end(),
                         [&](const StreamHandle& stream) { return stream.device == one.device; })) {
            out.push_back(torch_stream(one.device));
        }
    }
    return out;
}

}  // namespace penstock::python
