// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "ranks/memory_mailbox.hpp"

#include <penstock/ranks.hpp>

#include <fmt/format.h>

#include <utility>

namespace penstock {

Ranks::Ranks(std::uint32_t number, std::uint32_t count, std::string host,
             std::shared_ptr<Mailbox> mailbox)
    : number_(number), count_(count), host_(std::move(host)), mailbox_(std::move(mailbox)) {
    if (number >= count) {
        base::raise(
            base::error(ErrorCode::kInvalidArgument, "make ranks",
                        fmt::format("number {} of {} ranks; numbers go from 0 to the count - 1",
                                    number, count)));
    }
    if (count > 1 && !mailbox_) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "make ranks",
                                "several ranks need a mailbox that all of them reach"));
    }
}

std::uint64_t Ranks::next_user() const {
    return users_->fetch_add(1);
}

std::vector<Ranks> Ranks::of_threads(std::uint32_t count) {
    const auto mailbox = std::make_shared<ranks::MemoryMailbox>();
    std::vector<Ranks> out;
    out.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
        out.emplace_back(i, count, "this process", mailbox);
    }
    return out;
}

}  // namespace penstock
