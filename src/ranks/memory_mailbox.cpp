// SPDX-License-Identifier: Apache-2.0
#include "ranks/memory_mailbox.hpp"

namespace penstock::ranks {

void MemoryMailbox::put(const std::string& key, std::string_view value) {
    const std::lock_guard guard(mutex_);
    values_.insert_or_assign(key, std::string(value));
    changed_.notify_all();
}

std::optional<std::string> MemoryMailbox::get(const std::string& key,
                                              std::chrono::nanoseconds timeout) {
    std::unique_lock guard(mutex_);
    const auto is_there = [&] { return values_.contains(key); };
    const bool found = timeout > std::chrono::nanoseconds::zero()
                           ? changed_.wait_for(guard, timeout, is_there)
                           : is_there();
    return found ? std::optional(values_.at(key)) : std::nullopt;
}

void MemoryMailbox::erase(const std::string& key) {
    const std::lock_guard guard(mutex_);
    values_.erase(key);
}

std::size_t MemoryMailbox::keys() const {
    const std::lock_guard guard(mutex_);
    return values_.size();
}

}  // namespace penstock::ranks
