// SPDX-License-Identifier: Apache-2.0
// An open file for the rooms above: its geometry and the blocking calls on it. `local_file_system`
// has the kernel's files, `simulation/` the simulated ones; asynchronous backends of the kernel use
// the descriptors.
#pragma once

#include "base/align.hpp"
#include "base/result.hpp"
#include "os/page_cache.hpp"

#include <penstock/types.hpp>

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

namespace penstock::os {

/// Direct I/O, or through the page cache.
enum class IoPath : std::uint8_t { kDirect, kBuffered };

/// Requirements for an aligned request. All are powers of two; 1 means no requirement.
struct Geometry {
    bool direct = false;               ///< a direct descriptor is open and is to be used
    std::uint32_t memory_align = 1;    ///< of each address, and of each piece's length
    std::uint32_t read_align = 1;      ///< of offset and length of direct reads
    std::uint32_t write_align = 1;     ///< of offset and length of direct writes
    std::uint32_t block_bytes = 4096;  ///< block of the file system
    std::string reason;                ///< the source of this, or why it is not direct; for people

    /// Written runs are cut here into a direct middle and buffered ends, so that buffered and
    /// direct I/O never meet in one page, file-system block or device block.
    [[nodiscard]] std::uint64_t edge_align() const {
        return std::max({base::kPageBytes, std::uint64_t{block_bytes}, std::uint64_t{write_align}});
    }
};

struct FileInfo {
    std::string path;
    Access access = Access::kRead;
    DeviceId device;
    std::string file_system;  ///< "ext4", "xfs", "tmpfs", ..., "block device", "fake"
    bool is_block_device = false;
    bool created = false;                    ///< by this opening
    CachePolicy cache = CachePolicy::kAuto;  ///< as it was opened
    bool keeps_cache = false;                ///< its page cache is one that the kernel tells of
    bool in_memory = false;                  ///< there is no device below its page cache
    bool in_user_space = false;              ///< a program serves it (FUSE)
    /// kAuto, on a file system with a page cache: reads take what is in it from there, and small
    /// writes go through it.
    bool asks_cache = false;
    bool small = false;   ///< opened to be read once, and all of it goes through the page cache
    bool append = false;  ///< append_some() alone writes
    Geometry geometry;
};

/// The error for CachePolicy::kRequired where there is no direct I/O.
[[nodiscard]] base::Error not_direct(const char* operation, const FileInfo& info);

/// What a room above has made for an open file, a handle for its descriptors for instance.
class FileCompanion {
public:
    virtual ~FileCompanion() = default;
};

class File {
public:
    virtual ~File() { drop_companion(); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    [[nodiscard]] const FileInfo& info() const { return info_; }
    [[nodiscard]] const Geometry& geometry() const { return info_.geometry; }

    /// The kernel's descriptor for a path, or -1 if the file is not the kernel's. A file without
    /// direct I/O has only a buffered one.
    [[nodiscard]] virtual int descriptor(IoPath io) const = 0;

    // Blocking; any thread. The kernel's convention: bytes moved (0 = end of file), or -errno.
    // Retries nothing: the caller handles EINTR, EAGAIN and short counts.
    [[nodiscard]] virtual std::int64_t read_at(IoPath io, std::uint64_t offset,
                                               std::span<const iovec> pieces) = 0;
    [[nodiscard]] virtual std::int64_t write_at(IoPath io, std::uint64_t offset,
                                                std::span<const iovec> pieces) = 0;

    /// Writes at the end of the file, as it is by then, one caller after the other. Fails with
    /// EBADF for a file that is not open for that.
    [[nodiscard]] virtual std::int64_t append_some(std::span<const std::byte> /*bytes*/) {
        return -EBADF;
    }
    /// The place in the file at which the bytes of the last append_some() end.
    [[nodiscard]] virtual std::uint64_t appended_to() const { return 0; }
    /// Removes the last `bytes` bytes of a file that ends at `end`, where nobody else can have it
    /// open and write; otherwise false.
    [[nodiscard]] virtual bool cut_back(std::uint64_t /*end*/, std::uint64_t /*bytes*/) {
        return false;
    }

    /// What of [offset, offset + bytes), bytes > 0, is in the page cache: 0, or an errno where that
    /// cannot be told. Touches no page and waits for no device.
    [[nodiscard]] virtual int cached_pages(std::uint64_t /*offset*/, std::uint64_t /*bytes*/,
                                           CachedPages& /*found*/) const {
        return ENOSYS;
    }
    /// Reads what is in the page cache, up to the first byte that is not; -EAGAIN where that is the
    /// very first. A page that is not there is brought in behind the caller's back.
    [[nodiscard]] virtual std::int64_t read_cached(std::uint64_t /*offset*/,
                                                   std::span<const iovec> /*pieces*/) {
        return -EAGAIN;
    }
    [[nodiscard]] CacheHistory& cache_history() { return cache_history_; }

    // Blocking; any thread.
    [[nodiscard]] virtual base::Result<std::uint64_t> size() const = 0;
    /// Of the open file, whatever has its name by now.
    [[nodiscard]] virtual base::Result<FileStatus> status() const {
        return base::fail(base::system_error(ENOTSUP, "status", info_.path));
    }
    [[nodiscard]] virtual base::Result<void> truncate(std::uint64_t bytes) = 0;
    /// Allocates [offset, offset + bytes) on the device and leaves the size as it is. What is
    /// behind the size when the file is closed is given back, if the file is not open elsewhere.
    [[nodiscard]] virtual base::Result<void> reserve(std::uint64_t /*offset*/,
                                                     std::uint64_t /*bytes*/) {
        return {};
    }
    /// The same, and extends the size to its end. kUnsupported if the file system cannot (which is
    /// normal), ENOSPC early, and then the size is as it was.
    [[nodiscard]] virtual base::Result<void> preallocate(std::uint64_t offset,
                                                         std::uint64_t bytes) = 0;
    /// Makes data, size, and the name in its folder survive a power cut.
    [[nodiscard]] virtual base::Result<void> sync() = 0;
    /// The same without the folder, if that is possible for the file.
    [[nodiscard]] virtual base::Result<void> sync_data() { return sync(); }
    /// The sync() of one file makes the names of all files durable that have its key and were made
    /// before. Empty: only its own.
    [[nodiscard]] virtual std::string folder_key() const { return {}; }
    /// The size, if it is known without a request to a server; 0 otherwise.
    [[nodiscard]] virtual std::uint64_t size_at_hand() const {
        const auto bytes = size();
        return bytes ? *bytes : 0;
    }
    /// Removes the name of a file that this opening created, if it still names this file, and the
    /// file is empty and not open elsewhere; otherwise, or if that cannot be found out, does
    /// nothing. Call close() afterwards.
    virtual void take_back() {}
    /// Closes the descriptors; returns the error of close(). Later calls give EBADF.
    [[nodiscard]] virtual base::Result<void> close() = 0;

    /// The largest size that was seen: a hint that a write does not extend the file, never a truth.
    [[nodiscard]] std::uint64_t size_seen() const {
        return size_seen_.load(std::memory_order_relaxed);
    }
    void note_size(std::uint64_t bytes) { size_seen_.store(bytes, std::memory_order_relaxed); }

    /// Held while the buffered ends of a run are written, so that those of one file are written one
    /// by one.
    [[nodiscard]] std::mutex& edge_gate() { return edge_gate_; }

    /// Or nullptr. Any thread.
    [[nodiscard]] FileCompanion* companion() const {
        return companion_.load(std::memory_order_acquire);
    }
    /// Gives the file its companion, which goes before the descriptors are closed; another one that
    /// came first stays. Returns the one that the file has. Any thread.
    FileCompanion& adopt(std::unique_ptr<FileCompanion> companion) {
        FileCompanion* first = nullptr;
        return companion_.compare_exchange_strong(first, companion.get(), std::memory_order_acq_rel)
                   ? *companion.release()
                   : *first;
    }

protected:
    /// Before descriptors are closed; nobody uses the file any more.
    void drop_companion() {
        const std::unique_ptr<FileCompanion> last(companion_.exchange(nullptr));
    }

    explicit File(FileInfo info) : info_(std::move(info)) {}

    FileInfo info_;

private:
    std::atomic<std::uint64_t> size_seen_{0};
    std::mutex edge_gate_;
    CacheHistory cache_history_;
    std::atomic<FileCompanion*> companion_{nullptr};
};

}  // namespace penstock::os
