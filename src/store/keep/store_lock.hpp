// SPDX-License-Identifier: Apache-2.0
// One store of one process writes to a folder: it holds the lock on ".lock" until it is destroyed,
// or its process dies. The text in that file names the process, for the message of the next one
// that asks. A second store of the same process would wait for itself, so it is refused at once: a
// process knows the locks that it holds.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace penstock::store {

/// Held until it is destroyed. Movable.
class StoreLock {
public:
    StoreLock() = default;
    StoreLock(FileLock lock, std::shared_ptr<void> known)
        : known_(std::move(known)), lock_(std::move(lock)) {}
    [[nodiscard]] bool held() const noexcept { return lock_.held(); }

private:
    std::shared_ptr<void> known_;  // the process's own record; forgotten after the lock is released
    FileLock lock_;
};

/// Waits for another process as long as `wait_ms`; throws an Error with EWOULDBLOCK that names the
/// owner's process and host, or says that it is this one.
[[nodiscard]] StoreLock lock_store(Engine& engine, const FileSystem& files,
                                   const std::string& folder, std::uint32_t wait_ms);

}  // namespace penstock::store
