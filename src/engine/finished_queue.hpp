// SPDX-License-Identifier: Apache-2.0
// Requests that are through, between the kernel's completions and reap().
#pragma once

#include "base/intrusive.hpp"
#include "engine/request.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::engine {

class FinishedQueue {
public:
    void push(Request& request, std::int64_t result) {
        request.result = result;
        queue_.push_back(request);
        ++count_;
    }

    /// As many as there are, or as `done` takes.
    [[nodiscard]] std::size_t take(std::span<Request*> done) {
        std::size_t count = 0;
        while (count < done.size()) {
            Request* request = queue_.pop_front();
            if (request == nullptr) {
                break;
            }
            done[count++] = request;
        }
        count_ -= static_cast<std::uint32_t>(count);
        return count;
    }

    [[nodiscard]] std::uint32_t size() const { return count_; }

private:
    base::Fifo<Request> queue_;
    std::uint32_t count_ = 0;
};

}  // namespace penstock::engine
