// SPDX-License-Identifier: Apache-2.0
// A file of the kernel: one descriptor for direct I/O if the file system has it, and one through
// the page cache, both of the same inode.
#pragma once

#include "base/unique_fd.hpp"
#include "os/file.hpp"
#include "os/file_system.hpp"

#include <atomic>
#include <memory>
#include <string>

namespace penstock::os {

class LocalFile final : public File {
public:
    /// `direct` may be empty.
    LocalFile(FileInfo info, base::UniqueFd buffered, base::UniqueFd direct);
    ~LocalFile() override;

    [[nodiscard]] int descriptor(IoPath io) const override;
    [[nodiscard]] std::int64_t read_at(IoPath io, std::uint64_t offset,
                                       std::span<const iovec> pieces) override;
    [[nodiscard]] std::int64_t write_at(IoPath io, std::uint64_t offset,
                                        std::span<const iovec> pieces) override;
    [[nodiscard]] std::int64_t append_some(std::span<const std::byte> bytes) override;
    [[nodiscard]] std::uint64_t appended_to() const override;
    [[nodiscard]] bool cut_back(std::uint64_t end, std::uint64_t bytes) override;
    [[nodiscard]] int cached_pages(std::uint64_t offset, std::uint64_t bytes,
                                   CachedPages& found) const override;
    [[nodiscard]] std::int64_t read_cached(std::uint64_t offset,
                                           std::span<const iovec> pieces) override;
    [[nodiscard]] base::Result<std::uint64_t> size() const override;
    [[nodiscard]] base::Result<FileStatus> status() const override;
    [[nodiscard]] base::Result<void> truncate(std::uint64_t bytes) override;
    [[nodiscard]] base::Result<void> reserve(std::uint64_t offset, std::uint64_t bytes) override;
    [[nodiscard]] base::Result<void> preallocate(std::uint64_t offset,
                                                 std::uint64_t bytes) override;
    [[nodiscard]] base::Result<void> sync() override;
    [[nodiscard]] base::Result<void> sync_data() override;
    [[nodiscard]] std::string folder_key() const override;
    [[nodiscard]] std::uint64_t size_at_hand() const override;
    void take_back() override;
    [[nodiscard]] base::Result<void> close() override;

private:
    /// The buffered descriptor, or the error of a closed file; `writes` also requires write access.
    [[nodiscard]] base::Result<int> usable(const char* operation, bool writes) const;
    [[nodiscard]] base::Result<void> allocate(int mode, std::uint64_t offset, std::uint64_t bytes);
    void give_back_room();
    [[nodiscard]] base::Result<void> sync_bytes(int fd);
    [[nodiscard]] base::Result<void> sync_parent(int fd) const;

    std::atomic<int> buffered_;
    std::atomic<int> direct_;
    std::atomic<std::uint64_t> room_end_{0};  ///< of what reserve() asked for
    const std::uint32_t forks_;               ///< of this process before the opening
    /// The errno of a sync that failed. The kernel reports such a loss once and drops the pages, so
    /// that a second sync would succeed; here it stays failed.
    std::atomic<int> lost_errno_{0};
};

/// Opens by the options; the geometry records the result. A file of at most `small_bytes` that is
/// only read may come as FileInfo::small.
[[nodiscard]] base::Result<std::shared_ptr<File>> open_local_file(const std::string& path,
                                                                  const FileOptions& options,
                                                                  std::uint64_t small_bytes = 0);

/// Makes the names in a folder survive a power cut.
[[nodiscard]] base::Result<void> sync_local_folder(const std::string& path);

/// kInvalidArgument for a path that is empty or holds a zero byte (the system would cut it there).
[[nodiscard]] base::Result<void> check_path(const char* operation, const std::string& path);

}  // namespace penstock::os
