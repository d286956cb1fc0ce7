// SPDX-License-Identifier: Apache-2.0
// The mailbox of ranks that are threads of one process.
#pragma once

#include <penstock/ranks.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::ranks {

class MemoryMailbox final : public Mailbox {
public:
    void put(const std::string& key, std::string_view value) override;
    std::optional<std::string> get(const std::string& key,
                                   std::chrono::nanoseconds timeout) override;
    void erase(const std::string& key) override;
    /// The number of keys that are there.
    [[nodiscard]] std::size_t keys() const;

private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, std::string> values_;
};

}  // namespace penstock::ranks
