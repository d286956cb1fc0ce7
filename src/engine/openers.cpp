// SPDX-License-Identifier: Apache-2.0
#include "engine/openers.hpp"

#include "base/path.hpp"
#include "os/machine/sysfs.hpp"

#include <filesystem>
#include <system_error>

namespace penstock::engine {

namespace {

constexpr std::uint32_t kThreadsPerDevice = 4;
constexpr std::size_t kLearntMax = 1024;
constexpr base::Nanos kMountsAge = 2'000'000'000;

}  // namespace

DeviceId Openers::device_of(const std::string& folder) {
    if (const auto known = learnt_.find(folder); known != learnt_.end()) {
        return known->second;
    }
    const base::Nanos now = clock_.now();
    if (mounts_.empty() || now - mounts_read_ > kMountsAge) {
        mounts_ = os::mounts();
        mounts_read_ = now;
    }
    std::error_code ignored;
    const std::filesystem::path given(folder);
    const std::filesystem::path absolute =
        given.is_absolute() ? given : std::filesystem::current_path(ignored) / given;
    return os::whole_disk(os::device_of_path(mounts_, absolute.lexically_normal().native()));
}

Executor& Openers::of(const std::string& path) {
    if (!threads_) {
        return inline_executor_;
    }
    const std::lock_guard lock(mutex_);
    const DeviceId device = device_of(base::folder_of(path));
    auto found = pools_.find(device);
    if (found == pools_.end()) {
        found =
            pools_.emplace(device, std::make_unique<Workers>("penstock-open", kThreadsPerDevice))
                .first;
    }
    return *found->second;
}

void Openers::learn(const std::string& path, DeviceId device) {
    if (!threads_) {
        return;
    }
    const std::lock_guard lock(mutex_);
    if (learnt_.size() >= kLearntMax) {
        learnt_.clear();
    }
    learnt_.insert_or_assign(base::folder_of(path), device);
}

}  // namespace penstock::engine
