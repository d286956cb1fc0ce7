// SPDX-License-Identifier: Apache-2.0
#include "engine/fake/fake_file_system.hpp"

#include <cerrno>
#include <cstdlib>

namespace penstock::engine {

namespace {

base::Result<void> outcome(int system_errno, const char* operation, const std::string& path) {
    if (system_errno != 0) {
        return base::fail(base::system_error(system_errno, operation, path));
    }
    return {};
}

class FakeLock final : public os::FileLock {
public:
    FakeLock(std::shared_ptr<FakeDisk> disk, std::string path)
        : disk_(std::move(disk)), path_(std::move(path)) {}
    FakeLock(const FakeLock&) = delete;
    FakeLock& operator=(const FakeLock&) = delete;
    ~FakeLock() override { disk_->unlock(path_); }

private:
    std::shared_ptr<FakeDisk> disk_;
    std::string path_;
};

}  // namespace

FakeFile::FakeFile(os::FileInfo info, std::shared_ptr<FakeDisk> disk, std::uint64_t inode,
                   std::string path_on_disk, std::shared_ptr<const base::Clock> clock)
    : os::File(std::move(info)),
      disk_(std::move(disk)),
      inode_(inode),
      path_on_disk_(std::move(path_on_disk)),
      clock_(std::move(clock)) {
    note_size(disk_->size(inode_));
}

std::int64_t FakeFile::access(Op op, os::Lane lane, std::uint64_t offset,
                              std::span<const iovec> pieces) {
    const Access refused = op == Op::kRead ? Access::kWrite : Access::kRead;
    if (info_.access == refused) {
        return -EBADF;
    }
    return disk_->access(op, lane, inode_, offset, pieces, clock_->now());
}

std::int64_t FakeFile::read_at(os::Lane lane, std::uint64_t offset, std::span<const iovec> pieces) {
    return access(Op::kRead, lane, offset, pieces);
}

std::int64_t FakeFile::write_at(os::Lane lane, std::uint64_t offset,
                                std::span<const iovec> pieces) {
    return access(Op::kWrite, lane, offset, pieces);
}

base::Result<std::uint64_t> FakeFile::size() const {
    return disk_->size(inode_);
}

base::Result<void> FakeFile::truncate(std::uint64_t bytes) {
    note_size(bytes);
    return outcome(disk_->truncate(inode_, bytes), "truncate", info_.path);
}

base::Result<void> FakeFile::preallocate(std::uint64_t offset, std::uint64_t bytes) {
    const int refused = disk_->preallocate(inode_, offset, bytes);
    if (refused == EOPNOTSUPP) {
        return base::fail(base::error(ErrorCode::kUnsupported, "preallocate",
                                      "this disk does not preallocate", info_.path, offset));
    }
    return outcome(refused, "preallocate", info_.path);
}

base::Result<void> FakeFile::sync() {
    return outcome(disk_->sync(inode_, path_on_disk_), "sync", info_.path);
}

FakeFileSystem::Place FakeFileSystem::place(const std::string& path) const {
    if (disks_.size() == 1) {
        return {disks_.front(), path};
    }
    const std::size_t slash = path.find('/', 1);
    const auto index = std::strtoul(path.c_str() + 1, nullptr, 10);
    return {disks_.at(index), slash == std::string::npos ? "/" : path.substr(slash)};
}

base::Result<std::shared_ptr<os::File>> FakeFileSystem::open(const std::string& path,
                                                             const os::OpenOptions& options) {
    const Place where = place(path);
    const DiskShape& shape = where.disk->shape();
    if (options.direct == DirectIo::kRequired && !shape.direct) {
        return base::fail(base::error(ErrorCode::kUnsupported, "open",
                                      "this disk has no direct I/O, and it is required", path));
    }
    const FakeDisk::Opened opened = where.disk->open(where.path, options);
    PENSTOCK_CHECK(outcome(opened.system_errno, "open", path));
    os::FileInfo info;
    info.path = path;
    info.access = options.access;
    info.device = where.disk->device();
    info.file_system = "fake";
    info.geometry.direct = shape.direct && options.direct != DirectIo::kOff;
    if (info.geometry.direct) {
        info.geometry.memory_align = shape.memory_align;
        info.geometry.read_align = shape.read_align;
        info.geometry.write_align = shape.write_align;
    }
    info.geometry.block_bytes = shape.block_bytes;
    info.geometry.reason = "a disk in memory";
    return std::make_shared<FakeFile>(std::move(info), where.disk, opened.inode, where.path,
                                      clock_);
}

base::Result<void> FakeFileSystem::rename(const std::string& from, const std::string& to) {
    if (place(from).disk != place(to).disk) {
        return outcome(EXDEV, "rename", from);
    }
    return outcome(place(from).disk->rename(place(from).path, place(to).path), "rename", from);
}

base::Result<void> FakeFileSystem::link(const std::string& from, const std::string& to) {
    if (place(from).disk != place(to).disk) {
        return outcome(EXDEV, "link", from);
    }
    return outcome(place(from).disk->link(place(from).path, place(to).path), "link", to);
}

base::Result<void> FakeFileSystem::remove(const std::string& path) {
    return outcome(place(path).disk->remove(place(path).path), "remove", path);
}

base::Result<void> FakeFileSystem::make_folder(const std::string& path) {
    return outcome(place(path).disk->make_folder(place(path).path), "make folder", path);
}

base::Result<std::vector<std::string>> FakeFileSystem::list(const std::string& path) {
    std::vector<std::string> names;
    PENSTOCK_CHECK(outcome(place(path).disk->list(place(path).path, names), "list", path));
    return names;
}

base::Result<os::Space> FakeFileSystem::space(const std::string& path) {
    return place(path).disk->space();
}

base::Result<std::unique_ptr<os::FileLock>> FakeFileSystem::lock(const std::string& path) {
    const Place where = place(path);
    PENSTOCK_CHECK(outcome(where.disk->lock(where.path), "lock", path));
    return std::make_unique<FakeLock>(where.disk, where.path);
}

base::Result<void> FakeFileSystem::sync_folder(const std::string& path) {
    return outcome(place(path).disk->sync_folder(place(path).path), "sync folder", path);
}

}  // namespace penstock::engine
