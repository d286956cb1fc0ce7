// SPDX-License-Identifier: Apache-2.0
#define FUSE_USE_VERSION 31
#include "logged_disk.hpp"

#include "support/loop_mount.hpp"

#include <fcntl.h>
#include <fuse.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace penstock::power_cut {

using base::fail;
using base::Result;
using base::system_error;
using base::UniqueFd;

namespace {

constexpr const char* kName = "/disk";

struct Header {
    std::uint64_t flush;
    std::uint64_t offset;
    std::uint64_t bytes;
};

}  // namespace

// Between the daemon, which alone writes it, and this process.
struct LoggedDisk::Shared {
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint64_t> log_bytes{0};
};

namespace {

// State of the daemon; libfuse's operations are plain functions.
struct Daemon {
    std::uint64_t bytes;
    int image;
    int log;
    std::atomic<std::uint64_t>* count;
    std::atomic<std::uint64_t>* log_bytes;
};

Daemon& self() {
    return *static_cast<Daemon*>(fuse_get_context()->private_data);
}

bool put(int fd, const void* data, std::uint64_t bytes, std::uint64_t offset) {
    return ::pwrite(fd, data, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

bool append(const Header& header, const char* data) {
    Daemon& daemon = self();
    const std::uint64_t at = daemon.log_bytes->load();
    if (!put(daemon.log, &header, sizeof(header), at) ||
        (header.bytes != 0 && !put(daemon.log, data, header.bytes, at + sizeof(header)))) {
        return false;
    }
    daemon.log_bytes->store(at + sizeof(header) + header.bytes);
    daemon.count->fetch_add(1);
    return true;
}

void* initialize(fuse_conn_info* /*connection*/, fuse_config* config) {
    config->direct_io = 1;
    return fuse_get_context()->private_data;
}

int attributes(const char* path, struct stat* status, fuse_file_info* /*info*/) {
    *status = {};
    if (std::strcmp(path, "/") == 0) {
        status->st_mode = S_IFDIR | 0755;
        status->st_nlink = 2;
        return 0;
    }
    if (std::strcmp(path, kName) != 0) {
        return -ENOENT;
    }
    status->st_mode = S_IFREG | 0600;
    status->st_nlink = 1;
    status->st_size = static_cast<off_t>(self().bytes);
    return 0;
}

int open_disk(const char* path, fuse_file_info* /*info*/) {
    return std::strcmp(path, kName) == 0 ? 0 : -ENOENT;
}

int read_disk(const char* /*path*/, char* into, std::size_t bytes, off_t offset,
              fuse_file_info* /*info*/) {
    const ssize_t got = ::pread(self().image, into, bytes, offset);
    return got < 0 ? -errno : static_cast<int>(got);
}

int write_disk(const char* /*path*/, const char* data, std::size_t bytes, off_t offset,
               fuse_file_info* /*info*/) {
    const auto at = static_cast<std::uint64_t>(offset);
    if (at + bytes > self().bytes || !append({0, at, bytes}, data) ||
        !put(self().image, data, bytes, at)) {
        return -EIO;
    }
    return static_cast<int>(bytes);
}

int flush_disk(const char* /*path*/, int /*data_only*/, fuse_file_info* /*info*/) {
    return append({1, 0, 0}, nullptr) ? 0 : -EIO;
}

fuse_operations operations() {
    fuse_operations all{};
    all.init = initialize;
    all.getattr = attributes;
    all.open = open_disk;
    all.read = read_disk;
    all.write = write_disk;
    all.fsync = flush_disk;
    // Without fallocate discards are refused, as by a disk that has none.
    return all;
}

// Runs in the child; never returns.
[[noreturn]] void serve(Daemon daemon, const std::string& folder) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    char name[] = "penstock-power-cut";
    char* words[] = {name, nullptr};
    fuse_args arguments = FUSE_ARGS_INIT(1, words);
    const fuse_operations all = operations();
    struct fuse* const made = fuse_new(&arguments, &all, sizeof(all), &daemon);
    if (made == nullptr || fuse_mount(made, folder.c_str()) != 0) {
        ::_exit(1);
    }
    ::_exit(fuse_loop(made) == 0 ? 0 : 1);
}

}  // namespace

Result<std::unique_ptr<LoggedDisk>> LoggedDisk::make(std::uint64_t bytes) {
    std::unique_ptr<LoggedDisk> disk(new LoggedDisk(bytes));
    if (auto started = disk->start(); !started) {
        return fail(std::move(started.error()));
    }
    return disk;
}

Result<void> LoggedDisk::start() {
    if (::access("/dev/fuse", R_OK | W_OK) != 0) {
        return fail(base::error(ErrorCode::kUnsupported, "power cut",
                                "it needs /dev/fuse, which is not here"));
    }
    PENSTOCK_TRY(folder, support::private_folder());
    folder_ = folder;
    void* const shared =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const UniqueFd image(::memfd_create("power-cut-image", MFD_CLOEXEC));
    log_fd_ = UniqueFd(::memfd_create("power-cut-log", MFD_CLOEXEC));
    if (shared == MAP_FAILED || !image || !log_fd_ ||
        ::ftruncate(image.get(), static_cast<off_t>(bytes_)) != 0) {
        return fail(system_error(errno, "make disk", folder_));
    }
    shared_ = new (shared) Shared;
    daemon_ = ::fork();
    if (daemon_ == 0) {
        serve({bytes_, image.get(), log_fd_.get(), &shared_->count, &shared_->log_bytes}, folder_);
    }
    for (int i = 0; daemon_ > 0 && i < 500; ++i) {
        file_ = UniqueFd(::open((folder_ + kName).c_str(), O_RDWR | O_CLOEXEC));
        if (file_) {
            // The daemon does not inherit later mounts.
            if (::unshare(CLONE_NEWNS) != 0) {
                return fail(system_error(errno, "unshare", folder_));
            }
            return {};
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return fail(base::error(ErrorCode::kUnsupported, "power cut",
                            "the FUSE daemon did not come up; is mounting permitted here?"));
}

std::uint64_t LoggedDisk::count() const {
    return shared_->count.load();
}

void LoggedDisk::stop() {
    file_ = UniqueFd();
    if (!folder_.empty()) {
        ::umount2(folder_.c_str(), MNT_DETACH);
    }
    if (daemon_ > 0) {
        ::kill(daemon_, SIGKILL);
        while (::waitpid(daemon_, nullptr, 0) < 0 && errno == EINTR) {
        }
        daemon_ = -1;
    }
}

LoggedDisk::~LoggedDisk() {
    stop();
    if (!log_.empty()) {
        ::munmap(const_cast<std::byte*>(log_.data()), log_.size());
    }
    if (shared_ != nullptr) {
        ::munmap(shared_, sizeof(Shared));
    }
}

std::vector<Record> LoggedDisk::log() const {
    const std::uint64_t size = shared_->log_bytes.load();
    std::vector<Record> records;
    if (log_.empty() && size != 0) {
        void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, log_fd_.get(), 0);
        if (memory == MAP_FAILED) {
            return records;
        }
        const_cast<LoggedDisk*>(this)->log_ = {static_cast<const std::byte*>(memory), size};
    }
    for (std::uint64_t at = 0; at < size;) {
        Header header{};
        std::memcpy(&header, log_.data() + at, sizeof(header));
        at += sizeof(header);
        records.push_back({header.flush != 0, header.offset, log_.subspan(at, header.bytes)});
        at += header.bytes;
    }
    return records;
}

}  // namespace penstock::power_cut
