// SPDX-License-Identifier: Apache-2.0
#include "features/files/unchanged_files.hpp"

#include "base/raise.hpp"

#include <utility>

namespace penstock::features {

namespace {

std::int64_t now_ns() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

UnchangedFiles::UnchangedFiles(std::vector<File> files) : files_(std::move(files)) {
    for (const File& file : files_) {
        opened_.push_back(file.status());
    }
}

void UnchangedFiles::check() {
    const std::int64_t now = now_ns();
    if (now < next_look_.load(std::memory_order_relaxed)) {
        return;
    }
    for (std::size_t i = 0; i < files_.size(); ++i) {
        const FileStatus status = files_[i].status();
        if (status.modified_ns != opened_[i].modified_ns && status.bytes >= opened_[i].bytes) {
            base::raise(base::error(
                ErrorCode::kDamaged, "gather",
                "another program wrote to the file while it was open, so its rows may be of two "
                "versions; open it again, and replace such files instead of writing to them",
                files_[i].path()));
        }
    }
    // After the files: a changed one is reported by each call.
    next_look_.store(now + std::chrono::nanoseconds(kInterval).count(), std::memory_order_relaxed);
}

}  // namespace penstock::features
