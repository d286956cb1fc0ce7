// SPDX-License-Identifier: Apache-2.0
#include "store/keep/store_lock.hpp"

#include "base/of_process.hpp"
#include "base/raise.hpp"
#include "store/keep/store_folder.hpp"
#include "stream/when_room.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::store {

namespace {

constexpr std::size_t kOwnerBytesMax = 512;
constexpr auto kTryAgain = std::chrono::milliseconds(20);

std::string owner_of_this_process() {
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) {
        host = {"an unknown host"};
    }
    return fmt::format("process {} on {}", ::getpid(), host.data());
}

// Writes the owner for people to read; errors are ignored, since only the lock counts.
void note_owner(Engine& engine, const FileSystem& files, const std::string& path) {
    try {
        const std::string text = owner_of_this_process() + "\n";
        const File file = files.open(path, {.access = Access::kWrite,
                                            .truncate = true,
                                            .follow = false,
                                            .cache = CachePolicy::kCached});
        stream::write_when_room(engine, file, std::as_bytes(std::span(text)), 0);
    } catch (const Error&) {
        return;
    }
}

std::string noted_owner(Engine& engine, const FileSystem& files, const std::string& path) {
    try {
        const File file = files.open(path, {.cache = CachePolicy::kCached});
        std::string text(std::min<std::uint64_t>(file.size(), kOwnerBytesMax), '\0');
        stream::read_when_room(engine, file, std::as_writable_bytes(std::span(text)), 0);
        text.resize(std::min(text.find('\n'), text.size()));
        return text.empty() ? "another process" : text;
    } catch (const Error&) {
        return "another process";
    }
}

std::optional<FileLock> try_lock(const FileSystem& files, const std::string& path) {
    try {
        return files.lock(path);
    } catch (const Error& error) {
        if (error.system_errno() == EWOULDBLOCK) {
            return std::nullopt;
        }
        throw;
    }
}

// The locks that this process holds. A child of fork() begins with none: inherited ones belong to
// its parent.
class OwnLocks {
public:
    [[nodiscard]] std::shared_ptr<void> add(const FileSystem& files, const std::string& path) {
        auto key = std::make_shared<Key>(files.handle().get(), path);
        const std::lock_guard guard(mutex_);
        std::erase_if(keys_, [](const auto& known) { return known.expired(); });
        keys_.push_back(key);
        return key;
    }
    [[nodiscard]] bool has(const FileSystem& files, const std::string& path) {
        const std::lock_guard guard(mutex_);
        return std::any_of(keys_.begin(), keys_.end(), [&](const auto& known) {
            const auto key = known.lock();
            return key && *key == Key(files.handle().get(), path);
        });
    }

private:
    using Key = std::pair<const void*, std::string>;
    std::mutex mutex_;
    std::vector<std::weak_ptr<Key>> keys_;
};

// Never destroyed: a save may go on while statics are torn down.
OwnLocks& own_locks() {
    static auto* const own =
        new base::OfProcess<OwnLocks>([] { return std::make_shared<OwnLocks>(); });
    return **own;
}

}  // namespace

StoreLock lock_store(Engine& engine, const FileSystem& files, const std::string& folder,
                     std::uint32_t wait_ms) {
    const std::string path = join(folder, kLockName);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
    while (true) {
        if (auto lock = try_lock(files, path)) {
            note_owner(engine, files, path);
            return {std::move(*lock), own_locks().add(files, path)};
        }
        if (own_locks().has(files, path)) {
            base::raise(base::system_error(
                EWOULDBLOCK, "lock checkpoint store", folder, kNoOffset,
                "this process has it open for saving in another CheckpointStore: close() that one, "
                "or save with it"));
        }
        if (std::chrono::steady_clock::now() >= until) {
            break;
        }
        std::this_thread::sleep_for(kTryAgain);
    }
    base::raise(base::system_error(
        EWOULDBLOCK, "lock checkpoint store", folder, kNoOffset,
        fmt::format(
            "{} holds the write lock on this store; gave up after {} ms. One process writes to "
            "a store at a time, any number may read: wait for it and its forked children "
            "to exit, or save to another folder",
            noted_owner(engine, files, path), wait_ms)));
}

}  // namespace penstock::store
