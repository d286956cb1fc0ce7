// SPDX-License-Identifier: Apache-2.0
// Files and names on fake disks. With several disks, the first component of a path names the disk:
// "/0/file", "/1/file"; with one, paths are its own.
#pragma once

#include "base/clock.hpp"
#include "os/file_system.hpp"
#include "simulation/fake_disk.hpp"

#include <memory>
#include <string>
#include <vector>

namespace penstock::simulation {

class FakeFile final : public os::File {
public:
    FakeFile(os::FileInfo info, std::shared_ptr<FakeDisk> disk, std::uint64_t inode,
             std::string path_on_disk, std::shared_ptr<const base::Clock> clock);
    FakeFile(const FakeFile&) = delete;
    FakeFile& operator=(const FakeFile&) = delete;
    ~FakeFile() override { disk_->close(inode_); }

    [[nodiscard]] FakeDisk& disk() { return *disk_; }
    [[nodiscard]] std::int64_t access(engine::Op op, os::IoPath io, std::uint64_t offset,
                                      std::span<const iovec> pieces);

    [[nodiscard]] int descriptor(os::IoPath /*io*/) const override { return -1; }
    [[nodiscard]] std::int64_t read_at(os::IoPath io, std::uint64_t offset,
                                       std::span<const iovec> pieces) override;
    [[nodiscard]] std::int64_t write_at(os::IoPath io, std::uint64_t offset,
                                        std::span<const iovec> pieces) override;
    [[nodiscard]] int cached_pages(std::uint64_t offset, std::uint64_t bytes,
                                   os::CachedPages& found) const override;
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
    [[nodiscard]] std::int64_t append_some(std::span<const std::byte> bytes) override;
    [[nodiscard]] std::uint64_t appended_to() const override { return appended_to_; }
    [[nodiscard]] bool cut_back(std::uint64_t end, std::uint64_t bytes) override;
    [[nodiscard]] base::Result<void> close() override { return {}; }
    void set_mode(std::uint32_t mode) { disk_->set_mode(inode_, mode); }

private:
    std::shared_ptr<FakeDisk> disk_;
    std::uint64_t inode_;
    std::string path_on_disk_;
    std::shared_ptr<const base::Clock> clock_;
    std::uint64_t appended_to_ = 0;
};

class FakeFolder final : public os::Folder {
public:
    FakeFolder(std::string path, std::shared_ptr<FakeDisk> disk, std::uint64_t inode,
               std::string path_on_disk)
        : os::Folder(std::move(path)),
          disk_(std::move(disk)),
          inode_(inode),
          path_on_disk_(std::move(path_on_disk)) {}

    [[nodiscard]] base::Result<std::vector<std::string>> list() override;
    [[nodiscard]] base::Result<FileStatus> status(const std::string& name) override;
    [[nodiscard]] base::Result<std::shared_ptr<os::Folder>> open_folder(
        const std::string& name) override;
    [[nodiscard]] base::Result<void> remove(const std::string& name) override;
    [[nodiscard]] base::Result<void> remove_folder(const std::string& name) override;
    [[nodiscard]] base::Result<void> rename(const std::string& from,
                                            const std::string& to) override;
    [[nodiscard]] base::Result<void> sync() override;
    [[nodiscard]] base::Result<std::unique_ptr<os::FileLock>> lock() override;

private:
    std::shared_ptr<FakeDisk> disk_;
    std::uint64_t inode_;
    std::string path_on_disk_;
};

class FakeFileSystem final : public os::FileSystem {
public:
    FakeFileSystem(std::vector<std::shared_ptr<FakeDisk>> disks,
                   std::shared_ptr<const base::Clock> clock)
        : disks_(std::move(disks)), clock_(std::move(clock)) {}

    /// Replaces the disks by as many others: an engine and its file system outlive many crashes.
    /// Open files stay on the old ones.
    void use(std::vector<std::shared_ptr<FakeDisk>> disks) { disks_ = std::move(disks); }

    [[nodiscard]] base::Result<std::shared_ptr<os::File>> open(const std::string& path,
                                                               const FileOptions& options) override;
    [[nodiscard]] base::Result<std::shared_ptr<os::File>> open_once(
        const std::string& path, const FileOptions& options, std::uint64_t small_bytes) override;
    [[nodiscard]] base::Result<void> rename(const std::string& from,
                                            const std::string& to) override;
    [[nodiscard]] base::Result<void> exchange(const std::string& one,
                                              const std::string& other) override;
    [[nodiscard]] base::Result<void> link(const std::string& from, const std::string& to) override;
    [[nodiscard]] base::Result<void> symbolic_link(const std::string& target,
                                                   const std::string& path) override;
    [[nodiscard]] base::Result<void> remove(const std::string& path) override;
    [[nodiscard]] base::Result<void> make_folder(const std::string& path) override;
    [[nodiscard]] base::Result<std::vector<std::string>> list(const std::string& path) override;
    [[nodiscard]] base::Result<Space> space(const std::string& path) override;
    [[nodiscard]] base::Result<FileStatus> status(const std::string& path) override;
    [[nodiscard]] base::Result<std::string> resolve(const std::string& path) override;
    [[nodiscard]] base::Result<void> take_attributes(const std::string& from,
                                                     os::File& to) override;
    [[nodiscard]] base::Result<void> set_modified(const std::string& path,
                                                  std::int64_t since_1970_ns) override;
    [[nodiscard]] base::Result<std::shared_ptr<os::Folder>> open_folder(
        const std::string& path) override;
    [[nodiscard]] base::Result<std::unique_ptr<os::FileLock>> lock(const std::string& path,
                                                                   bool make) override;
    [[nodiscard]] base::Result<void> sync_folder(const std::string& path) override;

private:
    [[nodiscard]] base::Result<std::shared_ptr<os::File>> open_file(const std::string& path,
                                                                    const FileOptions& options,
                                                                    std::uint64_t small_bytes);
    struct DiskPath {
        std::shared_ptr<FakeDisk> disk;
        std::string path;
        std::string mount;  ///< the prefix of the path: "/1", or nothing
    };
    [[nodiscard]] DiskPath on_disk(const std::string& path) const;
    [[nodiscard]] DiskPath place(const std::string& path, bool follow_last) const;
    [[nodiscard]] std::string through_links(std::string path, bool follow_last) const;

    std::vector<std::shared_ptr<FakeDisk>> disks_;
    std::shared_ptr<const base::Clock> clock_;
};

}  // namespace penstock::simulation
