// SPDX-License-Identifier: Apache-2.0
#include "stream/host_windows.hpp"

#include <penstock/error.hpp>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

namespace penstock::stream {

HostWindows::Lease::Lease(HostWindows& owner) : owner_(owner) {
    {
        const std::lock_guard guard(owner_.mutex_);
        if (!owner_.free_.empty()) {
            window_ = std::move(owner_.free_.back());
            owner_.free_.pop_back();
        }
    }
    if (!window_) {
        window_ = std::make_unique<Window>();
    }
}

HostWindows::Lease::~Lease() {
    try {
        const std::lock_guard guard(owner_.mutex_);
        owner_.free_.push_back(std::move(window_));
    } catch (const std::bad_alloc&) {
        window_.reset();
    }
}

std::span<const std::byte> HostWindows::Lease::fetch(ConstMemory memory) const {
    Window& window = *window_;
    if (window.buffer.size() < memory.bytes) {
        window.pinned = {};
        window.buffer = owner_.pool_.take(std::max(memory.bytes, kHostWindowBytes));
        try {
            window.pinned = PinnedMemory(window.buffer.bytes(), memory.device);
        } catch (const Error&) {
            window.pinned = {};  // a copy without it is slower, and right
        }
    }
    const std::span<std::byte> here = window.buffer.bytes().first(memory.bytes);
    const std::array copies = {MemoryCopy{Memory(here), memory}};
    copy_memory(copies);
    return here;
}

}  // namespace penstock::stream
