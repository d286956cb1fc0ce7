// SPDX-License-Identifier: Apache-2.0
#include "base/align.hpp"
#include "base/host_memory.hpp"
#include "base/raise.hpp"
#include "base/remote_path.hpp"
#include "os/appender.hpp"
#include "os/local_file_system.hpp"

#include <penstock/file.hpp>

#include <sys/uio.h>

#include <cerrno>
#include <string>

namespace penstock {

namespace {

using base::unwrap;

os::File& opened(const std::shared_ptr<os::File>& file) {
    if (!file) {
        base::raise(base::error(ErrorCode::kClosed, "file", "it is not open; open it first"));
    }
    return *file;
}

const FileOptions& checked(const std::string& path, const FileOptions& options) {
    if (options.access > Access::kReadWrite || options.cache > CachePolicy::kRequired) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "open",
                                "there is no such access (kRead, kWrite, kReadWrite) or policy for "
                                "the page cache (kAuto, kCached, kDirect, kRequired)",
                                path));
    }
    if (options.append
            ? options.access != Access::kWrite || options.cache == CachePolicy::kRequired ||
                  options.buffer_bytes > kAppendBufferMax
            : options.buffer_bytes != 0) {
        base::raise(base::error(
            ErrorCode::kInvalidArgument, "open",
            options.append
                ? "a file for appending is open for writing alone, goes through the page "
                  "cache (not CachePolicy::kRequired) and gathers at most 1 GiB"
                : "buffer_bytes is for files that are open for appending; set append too",
            path));
    }
    return options;
}

base::Error not_for_appending(const char* operation, const std::string& path) {
    return base::error(ErrorCode::kInvalidArgument, operation,
                       "the file is not open for appending; open it with FileOptions::append",
                       path);
}

os::Folder& opened(const std::shared_ptr<os::Folder>& folder) {
    if (!folder) {
        base::raise(base::error(ErrorCode::kClosed, "folder", "it is not open; open it first"));
    }
    return *folder;
}

}  // namespace

File::File(const std::string& path, const FileOptions& options)
    : File(FileSystem::any().open(path, options)) {}

FileInfo File::info() const {
    const os::FileInfo& info = opened(file_).info();
    return {.path = info.path,
            .access = info.access,
            .file_system = info.file_system,
            .device = info.device,
            .is_block_device = info.is_block_device,
            .direct = info.geometry.direct,
            .memory_align = info.geometry.memory_align,
            .read_align = info.geometry.read_align,
            .write_align = info.geometry.write_align,
            .block_bytes = info.geometry.block_bytes,
            .reason = info.geometry.reason,
            .append = info.append,
            .buffer_bytes = appender_ ? appender_->buffer_bytes() : 0,
            .cache = info.cache,
            .page_cache = os::page_cache_use(*file_)};
}

const std::string& File::path() const {
    return opened(file_).info().path;
}

std::uint64_t File::size() const {
    return unwrap(opened(file_).size());
}

FileStatus File::status() const {
    return unwrap(opened(file_).status());
}

void File::truncate(std::uint64_t bytes) {
    flush();
    unwrap(opened(file_).truncate(bytes));
}

bool File::preallocate(std::uint64_t offset, std::uint64_t bytes) {
    if (opened(file_).info().append) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "preallocate",
                                "the file is open for appending, and this would move its end; open "
                                "it without append",
                                path()));
    }
    auto made = file_->preallocate(offset, bytes);
    if (!made && made.error().code == ErrorCode::kUnsupported) {
        return false;
    }
    unwrap(std::move(made));
    return true;
}

void File::append(ConstMemory record) {
    const std::string& name = opened(file_).info().path;
    if (!appender_) {
        base::raise(not_for_appending("append", name));
    }
    if (record.kind != MemoryKind::kHost) {
        base::raise(base::not_host_memory("append", "the record", record, name));
    }
    if (record.data == nullptr && record.bytes != 0) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "append",
                                "the record has no memory (null pointer)", name));
    }
    unwrap(appender_->append(record.span()));
}

void File::flush() {
    if (opened(file_).info().append && appender_) {
        unwrap(appender_->flush());
    }
}

std::uint64_t File::buffered_bytes() const {
    static_cast<void>(opened(file_));
    return appender_ ? appender_->gathered_bytes() : 0;
}

void File::sync() {
    flush();
    unwrap(opened(file_).sync());
}

void File::sync_data() {
    flush();
    unwrap(opened(file_).sync_data());
}

void File::close() {
    const auto last = std::move(file_);
    const auto appender = std::move(appender_);
    base::Result<void> flushed;
    if (appender && appender.use_count() == 1) {
        flushed = appender->close();
    }
    // A running transfer keeps its own share: the descriptors are closed with the last one.
    if (last && last.use_count() == (appender ? 2 : 1)) {
        // use_count() orders nothing; taking a share and leaving it comes after what others did.
        static_cast<void>(std::shared_ptr<os::File>(last));
        auto closed = last->close();
        if (flushed) {
            flushed = std::move(closed);
        }
    }
    unwrap(std::move(flushed));
}

const std::string& Folder::path() const {
    return opened(folder_).path();
}

std::vector<std::string> Folder::list() const {
    return unwrap(opened(folder_).list());
}

FileStatus Folder::status(const std::string& name) const {
    return unwrap(opened(folder_).status(name));
}

Folder Folder::open_folder(const std::string& name) const {
    return Folder(unwrap(opened(folder_).open_folder(name)));
}

void Folder::remove(const std::string& name) const {
    unwrap(opened(folder_).remove(name));
}

void Folder::remove_folder(const std::string& name) const {
    unwrap(opened(folder_).remove_folder(name));
}

void Folder::rename(const std::string& from, const std::string& to) const {
    unwrap(opened(folder_).rename(from, to));
}

void Folder::take_attributes(const std::string& from) const {
    unwrap(opened(folder_).take_attributes(from));
}

void Folder::sync() const {
    unwrap(opened(folder_).sync());
}

FileLock Folder::lock() const {
    return FileLock(std::shared_ptr<os::FileLock>(unwrap(opened(folder_).lock())));
}

FileSystem FileSystem::any() {
    FileSystem out = local();
    out.by_path_ = true;
    return out;
}

FileSystem FileSystem::local() {
    return FileSystem(os::local_file_system());
}

// A file system of another kind, such as S3, is chosen here.
os::FileSystem& FileSystem::of(const char* operation, const std::string& path) const {
    if (!impl_) {
        base::raise(
            base::error(ErrorCode::kInvalidArgument, "file system",
                        "it is empty, or was moved from; FileSystem::any() is the default"));
    }
    if (by_path_ && base::is_remote(path)) {
        base::raise(base::system_error(ENOENT, operation, path));
    }
    return *impl_;
}

File FileSystem::open(const std::string& path, const FileOptions& options) const {
    File file(unwrap(of("open", path).open(path, checked(path, options))));
    if (options.append) {
        file.appender_ = std::make_shared<os::Appender>(file.file_, options.buffer_bytes);
    }
    return file;
}

void FileSystem::rename(const std::string& from, const std::string& to) const {
    unwrap(of("rename", to).rename(from, to));
}

void FileSystem::exchange(const std::string& one, const std::string& other) const {
    unwrap(of("exchange", one).exchange(one, other));
}

void FileSystem::link(const std::string& from, const std::string& to) const {
    unwrap(of("link", to).link(from, to));
}

void FileSystem::symbolic_link(const std::string& target, const std::string& path) const {
    unwrap(of("link", path).symbolic_link(target, path));
}

void FileSystem::remove(const std::string& path) const {
    unwrap(of("remove", path).remove(path));
}

void FileSystem::make_folder(const std::string& path) const {
    unwrap(of("make_folder", path).make_folder(path));
}

std::vector<std::string> FileSystem::list(const std::string& path) const {
    return unwrap(of("list", path).list(path));
}

Space FileSystem::space(const std::string& path) const {
    return unwrap(of("space", path).space(path));
}

FileStatus FileSystem::status(const std::string& path) const {
    return unwrap(of("status", path).status(path));
}

bool FileSystem::begins_with(const std::string& path, std::string_view bytes) const {
    if (bytes.size() > base::kPageBytes) {
        base::raise(
            base::error(ErrorCode::kInvalidArgument, "begins_with", "more than 4 KiB", path));
    }
    const File file = open(path, {.follow = false, .cache = CachePolicy::kCached});
    std::string found(bytes.size(), '\0');
    std::size_t at = 0;
    while (at < found.size()) {
        const iovec rest{found.data() + at, found.size() - at};
        const auto moved = file.handle()->read_at(os::IoPath::kBuffered, at, {&rest, 1});
        if (moved < 0 && moved != -EINTR) {
            base::raise(base::system_error(static_cast<int>(-moved), "begins_with", path));
        }
        if (moved == 0) {
            return false;
        }
        at += moved > 0 ? static_cast<std::size_t>(moved) : 0;
    }
    return found == bytes;
}

std::optional<FileStatus> FileSystem::find(const std::string& path) const {
    os::FileSystem& files = of("status", path);
    if (impl_ == os::local_file_system() && os::is_missing(path)) {
        return std::nullopt;
    }
    auto found = files.status(path);
    if (!found) {
        const int number = found.error().system_errno;
        if (number == ENOENT || number == ENOTDIR || number == ENAMETOOLONG) {
            return std::nullopt;
        }
    }
    return unwrap(std::move(found));
}

std::string FileSystem::resolve(const std::string& path) const {
    return unwrap(of("resolve", path).resolve(path));
}

void FileSystem::take_attributes(const std::string& from, const File& to) const {
    unwrap(of("take_attributes", from).take_attributes(from, opened(to.handle())));
}

void FileSystem::set_modified(const std::string& path, std::int64_t since_1970_ns) const {
    unwrap(of("set_modified", path).set_modified(path, since_1970_ns));
}

Folder FileSystem::open_folder(const std::string& path) const {
    return Folder(unwrap(of("open_folder", path).open_folder(path)));
}

bool FileLock::held() const noexcept {
    return lock_ != nullptr && lock_->is_named();
}

FileLock FileSystem::lock(const std::string& path, bool make) const {
    return FileLock(std::shared_ptr<os::FileLock>(unwrap(of("lock", path).lock(path, make))));
}

void FileSystem::sync_folder(const std::string& path) const {
    unwrap(of("sync_folder", path).sync_folder(path));
}

}  // namespace penstock
