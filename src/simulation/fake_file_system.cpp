// SPDX-License-Identifier: Apache-2.0
#include "simulation/fake_file_system.hpp"

#include "base/align.hpp"
#include "base/path.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace penstock::simulation {

namespace {

base::Result<void> outcome(int system_errno, const char* operation, const std::string& path) {
    if (system_errno != 0) {
        return base::fail(base::system_error(system_errno, operation, path));
    }
    return {};
}

class FakeLock final : public os::FileLock {
public:
    FakeLock(std::shared_ptr<FakeDisk> disk, std::uint64_t inode, std::string path)
        : disk_(std::move(disk)), inode_(inode), path_(std::move(path)) {}
    FakeLock(const FakeLock&) = delete;
    FakeLock& operator=(const FakeLock&) = delete;
    ~FakeLock() override { disk_->unlock(inode_); }
    [[nodiscard]] bool is_named() const noexcept override { return disk_->is_named(inode_, path_); }

private:
    std::shared_ptr<FakeDisk> disk_;
    std::uint64_t inode_;
    std::string path_;  // on the disk
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

std::int64_t FakeFile::access(engine::Op op, os::IoPath io, std::uint64_t offset,
                              std::span<const iovec> pieces) {
    const Access refused = op == engine::Op::kRead ? Access::kWrite : Access::kRead;
    if (info_.access == refused) {
        return -EBADF;
    }
    return disk_->access(op, io, inode_, offset, pieces, clock_->now());
}

std::int64_t FakeFile::read_at(os::IoPath io, std::uint64_t offset, std::span<const iovec> pieces) {
    return access(engine::Op::kRead, io, offset, pieces);
}

std::int64_t FakeFile::write_at(os::IoPath io, std::uint64_t offset,
                                std::span<const iovec> pieces) {
    return access(engine::Op::kWrite, io, offset, pieces);
}

std::int64_t FakeFile::append_some(std::span<const std::byte> bytes) {
    const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    if (!info_.append) {
        return -EBADF;
    }
    const std::int64_t put =
        access(engine::Op::kWrite, os::IoPath::kBuffered, FakeDisk::kAtEnd, {&piece, 1});
    appended_to_ = put < 0 ? appended_to_ : disk_->size(inode_);
    return put;
}

bool FakeFile::cut_back(std::uint64_t end, std::uint64_t bytes) {
    return disk_->openings(inode_) == 1 && disk_->size(inode_) == end &&
           disk_->truncate(inode_, end - bytes) == 0;
}

// As the seed says: pages come and go, also between a question and the read after it.
int FakeFile::cached_pages(std::uint64_t offset, std::uint64_t bytes,
                           os::CachedPages& found) const {
    if (!disk_->shape().cachestat) {
        return ENOSYS;
    }
    const std::uint64_t all = (base::align_up(offset + bytes, base::kPageBytes) -
                               base::align_down(offset, base::kPageBytes)) /
                              base::kPageBytes;
    switch (disk_->draw() % 4) {
        case 0:
            found = {};
            break;
        case 1:
            found = {all, 0};
            break;
        case 2:
            found = {all / 2, 0};
            break;
        default:
            found = {all / 2, all / 3};
    }
    return 0;
}

std::int64_t FakeFile::read_cached(std::uint64_t offset, std::span<const iovec> pieces) {
    switch (disk_->draw() % 4) {
        case 0:
            return -EAGAIN;
        case 1: {
            const iovec some{pieces[0].iov_base, (pieces[0].iov_len + 1) / 2};
            return read_at(os::IoPath::kBuffered, offset, {&some, 1});
        }
        default:
            return read_at(os::IoPath::kBuffered, offset, pieces);
    }
}

base::Result<std::uint64_t> FakeFile::size() const {
    return disk_->size(inode_);
}

base::Result<FileStatus> FakeFile::status() const {
    FileStatus status;
    PENSTOCK_CHECK(outcome(disk_->status_of_open(inode_, status), "status", info_.path));
    return status;
}

base::Result<void> FakeFile::truncate(std::uint64_t bytes) {
    note_size(bytes);
    return outcome(disk_->truncate(inode_, bytes), "truncate", info_.path);
}

base::Result<void> FakeFile::reserve(std::uint64_t offset, std::uint64_t bytes) {
    return outcome(disk_->reserve(inode_, offset, bytes), "preallocate", info_.path);
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
    return outcome(disk_->sync(inode_, path_on_disk_, true), "sync", info_.path);
}

base::Result<void> FakeFile::sync_data() {
    return outcome(disk_->sync(inode_, path_on_disk_, false), "sync", info_.path);
}

std::string FakeFile::folder_key() const {
    return disk_->is_named(inode_, path_on_disk_)
               ? std::to_string(disk_->device().minor) + base::folder_of(path_on_disk_)
               : std::string();
}

base::Result<std::vector<std::string>> FakeFolder::list() {
    std::vector<std::string> names;
    PENSTOCK_CHECK(outcome(disk_->list_in(inode_, names), "list", path()));
    return names;
}

base::Result<FileStatus> FakeFolder::status(const std::string& name) {
    PENSTOCK_CHECK(os::check_name("status", path(), name));
    FileStatus status;
    PENSTOCK_CHECK(
        outcome(disk_->status_in(inode_, name, status), "status", os::path_in(path(), name)));
    return status;
}

base::Result<std::shared_ptr<os::Folder>> FakeFolder::open_folder(const std::string& name) {
    PENSTOCK_CHECK(os::check_name("open folder", path(), name));
    const std::string inside = os::path_in(path(), name);
    const std::string on_disk = os::path_in(path_on_disk_, name);
    const FakeDisk::Opened opened = disk_->open_folder_in(inode_, name, on_disk);
    PENSTOCK_CHECK(outcome(opened.system_errno, "open folder", inside));
    return std::make_shared<FakeFolder>(inside, disk_, opened.inode, on_disk);
}

base::Result<void> FakeFolder::remove(const std::string& name) {
    PENSTOCK_CHECK(os::check_name("remove", path(), name));
    return outcome(disk_->remove_in(inode_, name, false, os::path_in(path_on_disk_, name)),
                   "remove", os::path_in(path(), name));
}

base::Result<void> FakeFolder::remove_folder(const std::string& name) {
    PENSTOCK_CHECK(os::check_name("remove folder", path(), name));
    return outcome(disk_->remove_in(inode_, name, true, os::path_in(path_on_disk_, name)),
                   "remove folder", os::path_in(path(), name));
}

base::Result<void> FakeFolder::rename(const std::string& from, const std::string& to) {
    PENSTOCK_CHECK(os::check_name("rename", path(), from));
    PENSTOCK_CHECK(os::check_name("rename", path(), to));
    return outcome(disk_->rename_in(inode_, from, to, os::path_in(path_on_disk_, from)), "rename",
                   os::path_in(path(), from));
}

base::Result<void> FakeFolder::sync() {
    return outcome(disk_->sync_folder_in(inode_, path_on_disk_), "sync folder", path());
}

base::Result<std::unique_ptr<os::FileLock>> FakeFolder::lock() {
    PENSTOCK_CHECK(outcome(disk_->lock_folder(inode_, path_on_disk_), "lock folder", path()));
    return std::make_unique<FakeLock>(disk_, inode_, path_on_disk_);
}

FakeFileSystem::DiskPath FakeFileSystem::on_disk(const std::string& path) const {
    if (disks_.size() == 1) {
        return {disks_.front(), path, ""};
    }
    const std::size_t slash = std::min(path.find('/', 1), path.size());
    const auto index = std::strtoul(path.c_str() + 1, nullptr, 10);
    return {disks_.at(index), slash == path.size() ? "/" : path.substr(slash),
            path.substr(0, slash)};
}

// Links may lead from disk to disk, so they are followed here. After 40 links the path stays as it
// is, and leads nowhere.
std::string FakeFileSystem::through_links(std::string path, bool follow_last) const {
    for (int i = 0; i < 40; ++i) {
        const DiskPath where = on_disk(path);
        auto next = where.disk->step_through_link(where.path, follow_last, where.mount);
        if (!next) {
            break;
        }
        path = std::move(*next);
    }
    return path;
}

FakeFileSystem::DiskPath FakeFileSystem::place(const std::string& path, bool follow_last) const {
    return on_disk(through_links(path, follow_last));
}

base::Result<std::shared_ptr<os::File>> FakeFileSystem::open(const std::string& path,
                                                             const FileOptions& options) {
    return open_file(path, options, 0);
}

base::Result<std::shared_ptr<os::File>> FakeFileSystem::open_once(const std::string& path,
                                                                  const FileOptions& options,
                                                                  std::uint64_t small_bytes) {
    return open_file(path, options, small_bytes);
}

base::Result<std::shared_ptr<os::File>> FakeFileSystem::open_file(const std::string& path,
                                                                  const FileOptions& options,
                                                                  std::uint64_t small_bytes) {
    const DiskPath where = place(path, options.follow);
    const DiskShape& shape = where.disk->shape();
    os::FileInfo info;
    info.path = path;
    info.access = options.access;
    info.cache = options.cache;
    info.geometry.reason = "a disk in memory";
    if (options.cache == CachePolicy::kRequired && !shape.direct) {
        return base::fail(os::not_direct("open", info));
    }
    const FakeDisk::Opened opened = where.disk->open(where.path, options);
    PENSTOCK_CHECK(outcome(opened.system_errno, "open", path));
    info.device = where.disk->device();
    info.file_system = "fake";
    info.append = options.append;
    // The seed says which of the larger ones are all in the page cache.
    info.small = small_bytes != 0 && options.access == Access::kRead && shape.page_cache &&
                 (where.disk->size(opened.inode) <= small_bytes || where.disk->draw() % 4 == 0);
    info.geometry.direct =
        shape.direct && options.cache != CachePolicy::kCached && !info.small && !info.append;
    if (info.geometry.direct) {
        info.geometry.memory_align = shape.memory_align;
        info.geometry.read_align = shape.read_align;
        info.geometry.write_align = shape.write_align;
    }
    info.geometry.block_bytes = shape.block_bytes;
    info.keeps_cache = shape.page_cache;
    info.asks_cache = info.keeps_cache && (info.geometry.direct || info.small) &&
                      options.cache == CachePolicy::kAuto;
    return std::make_shared<FakeFile>(std::move(info), where.disk, opened.inode, where.path,
                                      clock_);
}

base::Result<void> FakeFileSystem::rename(const std::string& from, const std::string& to) {
    const DiskPath source = place(from, false);
    const DiskPath target = place(to, false);
    return outcome(
        source.disk == target.disk ? source.disk->rename(source.path, target.path) : EXDEV,
        "rename", from);
}

base::Result<void> FakeFileSystem::exchange(const std::string& one, const std::string& other) {
    const DiskPath first = place(one, false);
    const DiskPath second = place(other, false);
    return outcome(
        first.disk == second.disk ? first.disk->exchange(first.path, second.path) : EXDEV,
        "exchange", one);
}

base::Result<void> FakeFileSystem::link(const std::string& from, const std::string& to) {
    const DiskPath source = place(from, false);
    const DiskPath target = place(to, false);
    return outcome(source.disk == target.disk ? source.disk->link(source.path, target.path) : EXDEV,
                   "link", to);
}

base::Result<void> FakeFileSystem::symbolic_link(const std::string& target,
                                                 const std::string& path) {
    const DiskPath where = place(path, false);
    return outcome(where.disk->symbolic_link(target, where.path), "make link", path);
}

base::Result<void> FakeFileSystem::remove(const std::string& path) {
    const DiskPath where = place(path, false);
    return outcome(where.disk->remove(where.path), "remove", path);
}

base::Result<void> FakeFileSystem::make_folder(const std::string& path) {
    const DiskPath where = place(path, false);
    return outcome(where.disk->make_folder(where.path), "make folder", path);
}

base::Result<std::vector<std::string>> FakeFileSystem::list(const std::string& path) {
    const DiskPath where = place(path, true);
    std::vector<std::string> names;
    PENSTOCK_CHECK(outcome(where.disk->list(where.path, names), "list", path));
    return names;
}

base::Result<Space> FakeFileSystem::space(const std::string& path) {
    return place(path, true).disk->space();
}

base::Result<FileStatus> FakeFileSystem::status(const std::string& path) {
    const DiskPath where = place(path, false);
    FileStatus status;
    PENSTOCK_CHECK(outcome(where.disk->status(where.path, status), "status", path));
    return status;
}

base::Result<std::string> FakeFileSystem::resolve(const std::string& path) {
    return through_links(path, true);
}

base::Result<void> FakeFileSystem::take_attributes(const std::string& from, os::File& to) {
    const DiskPath where = place(from, true);
    FileStatus status;
    PENSTOCK_CHECK(outcome(where.disk->status(where.path, status), "take attributes", from));
    static_cast<FakeFile&>(to).set_mode(status.mode);
    return {};
}

base::Result<void> FakeFileSystem::set_modified(const std::string& path,
                                                std::int64_t since_1970_ns) {
    const DiskPath where = place(path, false);
    return outcome(where.disk->set_modified(where.path, since_1970_ns), "set time", path);
}

base::Result<std::shared_ptr<os::Folder>> FakeFileSystem::open_folder(const std::string& path) {
    const DiskPath where = place(path, true);
    const FakeDisk::Opened opened = where.disk->open_folder(where.path);
    PENSTOCK_CHECK(outcome(opened.system_errno, "open folder", path));
    return std::make_shared<FakeFolder>(path, where.disk, opened.inode, where.path);
}

base::Result<std::unique_ptr<os::FileLock>> FakeFileSystem::lock(const std::string& path,
                                                                 bool make) {
    const DiskPath where = place(path, false);
    const FakeDisk::Opened locked = where.disk->lock(where.path, make);
    PENSTOCK_CHECK(outcome(locked.system_errno, "lock", path));
    return std::make_unique<FakeLock>(where.disk, locked.inode, where.path);
}

base::Result<void> FakeFileSystem::sync_folder(const std::string& path) {
    const DiskPath where = place(path, true);
    return outcome(where.disk->sync_folder(where.path), "sync folder", path);
}

}  // namespace penstock::simulation
