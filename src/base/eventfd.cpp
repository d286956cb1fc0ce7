// SPDX-License-Identifier: Apache-2.0
#include "base/eventfd.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <string>

namespace penstock::base {

namespace {

// Linux 6.10; older headers lack it.
constexpr int kSameFile = 1024 + 3;  // F_DUPFD_QUERY

}  // namespace

// They count from 0.
std::uint64_t eventfd_number(int eventfd) {
    std::ifstream about(fmt::format("/proc/self/fdinfo/{}", eventfd));
    for (std::string word; about >> word;) {
        std::uint64_t number = 0;
        if (word == "eventfd-id:" && about >> number) {
            return number + 1;
        }
    }
    return 0;
}

bool are_of_one_eventfd(int a, int b) {
    if (const int same = ::fcntl(a, kSameFile, b); same >= 0) {
        return same == 1;
    }
    const std::uint64_t number = eventfd_number(a);
    return number != 0 && number == eventfd_number(b);
}

Result<SharedEventfd> EventfdCopies::copy_of(int eventfd) {
    const std::lock_guard lock(mutex_);
    if (const auto known = copies_.find(eventfd); known != copies_.end()) {
        if (SharedEventfd copy = known->second.lock();
            copy && are_of_one_eventfd(copy->get(), eventfd)) {
            return copy;
        }
    }
    UniqueFd own(::fcntl(eventfd, F_DUPFD_CLOEXEC, 0));
    if (!own) {
        return fail(system_error(errno, "notify", ""));
    }
    std::erase_if(copies_, [](const auto& each) { return each.second.expired(); });
    auto copy = std::make_shared<const UniqueFd>(std::move(own));
    copies_[eventfd] = copy;
    return copy;
}

}  // namespace penstock::base
