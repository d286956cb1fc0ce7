// SPDX-License-Identifier: Apache-2.0
// An open file as everything above sees it: what can be done with it (its geometry) and the
// blocking calls on it. `local_file_system` has the kernel's files, `simulation/` the simulated
// ones; asynchronous backends of the kernel take the descriptors.
#pragma once

#include "base/align.hpp"
#include "base/result.hpp"

#include <penstock/types.hpp>

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

namespace penstock::os {

/// Past the page cache, or through it.
enum class Lane : std::uint8_t { kDirect, kBuffered };

/// What an aligned request is. All are powers of two; 1 means no demand.
struct Geometry {
    bool direct = false;               ///< a direct descriptor is open and is to be used
    std::uint32_t memory_align = 1;    ///< of each address, and of each piece's length
    std::uint32_t read_align = 1;      ///< of offset and length of direct reads
    std::uint32_t write_align = 1;     ///< of offset and length of direct writes
    std::uint32_t block_bytes = 4096;  ///< block of the file system
    std::string reason;                ///< how this was learnt, or why it is not direct; for people

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
    bool created = false;  ///< by this opening
    Geometry geometry;
};

class File {
public:
    virtual ~File() = default;
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    [[nodiscard]] const FileInfo& info() const { return info_; }
    [[nodiscard]] const Geometry& geometry() const { return info_.geometry; }

    /// The kernel's descriptor for a lane, or -1 where the file is not the kernel's. A file without
    /// direct I/O has only a buffered one.
    [[nodiscard]] virtual int descriptor(Lane lane) const = 0;

    // Blocking; any thread. The kernel's convention: bytes moved (0 = end of file), or -errno.
    // Retries nothing: EINTR, EAGAIN and short counts are the caller's to handle.
    [[nodiscard]] virtual std::int64_t read_at(Lane lane, std::uint64_t offset,
                                               std::span<const iovec> pieces) = 0;
    [[nodiscard]] virtual std::int64_t write_at(Lane lane, std::uint64_t offset,
                                                std::span<const iovec> pieces) = 0;

    // Blocking; any thread.
    [[nodiscard]] virtual base::Result<std::uint64_t> size() const = 0;
    [[nodiscard]] virtual base::Result<void> truncate(std::uint64_t bytes) = 0;
    /// Gives [offset, offset + bytes) room on the device and extends the size to its end.
    /// kUnsupported where the file system cannot (which is normal), ENOSPC early.
    [[nodiscard]] virtual base::Result<void> preallocate(std::uint64_t offset,
                                                         std::uint64_t bytes) = 0;
    /// Data, size, and the folder that holds the name: what survives a power cut afterwards.
    [[nodiscard]] virtual base::Result<void> sync() = 0;
    /// The same without the folder, where a file can have one without the other.
    [[nodiscard]] virtual base::Result<void> sync_data() { return sync(); }
    /// The size, as far as it is known without asking a server; 0 when it is not.
    [[nodiscard]] virtual std::uint64_t size_at_hand() const {
        const auto bytes = size();
        return bytes ? *bytes : 0;
    }
    /// Removes the name of a file that this opening created, where that is still this file, it is
    /// empty, and nobody else has it open; else, and where that cannot be told, does nothing. To be
    /// closed afterwards.
    virtual void take_back() {}
    /// Closes the descriptors; says what close() said. Later calls give EBADF.
    [[nodiscard]] virtual base::Result<void> close() = 0;

    /// The largest size that was seen: a hint that a write does not extend the file, never a truth.
    [[nodiscard]] std::uint64_t size_seen() const {
        return size_seen_.load(std::memory_order_relaxed);
    }
    void note_size(std::uint64_t bytes) { size_seen_.store(bytes, std::memory_order_relaxed); }

    /// Held by whoever writes the buffered ends of a run, so that those of one file come one by
    /// one.
    [[nodiscard]] std::mutex& edge_gate() { return edge_gate_; }

protected:
    explicit File(FileInfo info) : info_(std::move(info)) {}

    FileInfo info_;

private:
    std::atomic<std::uint64_t> size_seen_{0};
    std::mutex edge_gate_;
};

}  // namespace penstock::os
