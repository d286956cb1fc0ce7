// SPDX-License-Identifier: Apache-2.0
#include "base/align.hpp"
#include "os/faults.hpp"
#include "os/local_file_system.hpp"
#include "os/machine/limits.hpp"
#include "support/loop_mount.hpp"
#include "support/temp_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

namespace penstock::os {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr FileOptions kNew{.access = Access::kReadWrite, .create = true};

std::size_t open_descriptors() {
    const std::filesystem::directory_iterator folder("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(folder), end(folder)));
}

struct AlignedMemory {
    explicit AlignedMemory(std::size_t size) : bytes(size) {
        data = static_cast<char*>(std::aligned_alloc(4096, size));
    }
    ~AlignedMemory() { std::free(data); }
    AlignedMemory(const AlignedMemory&) = delete;
    AlignedMemory& operator=(const AlignedMemory&) = delete;
    [[nodiscard]] iovec all() const { return {data, bytes}; }
    char* data;
    std::size_t bytes;
};

class LocalFileTest : public ::testing::Test {
protected:
    void SetUp() override { testing::reset_faults(); }
    void TearDown() override { testing::reset_faults(); }

    std::shared_ptr<File> open(const std::string& path, const FileOptions& options) {
        auto file = files_->open(path, options);
        EXPECT_TRUE(file) << file.error().describe();
        return file ? *file : nullptr;
    }
    base::Error open_error(const std::string& path, const FileOptions& options) {
        const std::size_t before = open_descriptors();
        auto file = files_->open(path, options);
        EXPECT_FALSE(file);
        if (file) {
            return {};
        }
        EXPECT_EQ(open_descriptors(), before) << "a descriptor leaked";
        EXPECT_EQ(file.error().operation, "open");
        return file.error();
    }

    /// Why $TMPDIR is of no use to a test that wants direct I/O there, or empty.
    std::string no_direct_here() {
        auto file = files_->open(folder_ / "probe", kNew);
        return file && (*file)->geometry().direct ? ""
                                                  : "$TMPDIR lies where there is no direct I/O";
    }

    std::shared_ptr<FileSystem> files_ = local_file_system();
    support::TempFolder folder_;
};

TEST_F(LocalFileTest, BothLanesAreOneInodeAndCloseOnExec) {
    if (const std::string why = no_direct_here(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    auto file = open(folder_ / "f", kNew);
    ASSERT_TRUE(file->geometry().direct) << file->geometry().reason;
    struct stat direct {};
    struct stat buffered {};
    ASSERT_EQ(::fstat(file->descriptor(IoPath::kDirect), &direct), 0);
    ASSERT_EQ(::fstat(file->descriptor(IoPath::kBuffered), &buffered), 0);
    EXPECT_EQ(direct.st_ino, buffered.st_ino);
    EXPECT_NE(::fcntl(file->descriptor(IoPath::kDirect), F_GETFL) & O_DIRECT, 0);
    EXPECT_EQ(::fcntl(file->descriptor(IoPath::kBuffered), F_GETFL) & O_DIRECT, 0);
    for (const IoPath io : {IoPath::kDirect, IoPath::kBuffered}) {
        EXPECT_EQ(::fcntl(file->descriptor(io), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    }
}

TEST_F(LocalFileTest, WhatOneLaneWritesTheOtherReads) {
    if (const std::string why = no_direct_here(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    auto file = open(folder_ / "f", kNew);
    const AlignedMemory out(8192);
    const AlignedMemory in(8192);
    std::memset(out.data, 'a', 8192);
    const iovec all = out.all();
    ASSERT_EQ(file->write_at(IoPath::kDirect, 4096, {&all, 1}), 8192);
    iovec pieces[] = {{in.data, 3}, {in.data + 3, 5000}};
    ASSERT_EQ(file->read_at(IoPath::kBuffered, 4097, pieces), 5003);
    EXPECT_EQ(std::memcmp(in.data, out.data, 5003), 0);
    ASSERT_TRUE(file->size());
    EXPECT_EQ(*file->size(), 12288U);
    const iovec whole = in.all();
    EXPECT_EQ(file->read_at(IoPath::kDirect, 8192, {&whole, 1}), 4096);  // short at the end
    EXPECT_EQ(file->read_at(IoPath::kDirect, 16384, {&whole, 1}), 0);    // past the end
    const iovec nowhere{nullptr, 4096};
    EXPECT_EQ(file->read_at(IoPath::kBuffered, 0, {&nowhere, 1}),
              -EFAULT);  // the kernel's own words
}

TEST_F(LocalFileTest, MorePiecesThanTheKernelTakesComeShort) {
    auto file = open(folder_ / "f", kNew);
    std::string letters(3000, 'x');
    std::vector<iovec> pieces;
    for (char& letter : letters) {
        pieces.push_back({&letter, 1});
    }
    EXPECT_EQ(file->write_at(IoPath::kBuffered, 0, pieces), 1024);
}

TEST_F(LocalFileTest, WritingAndReadingPast2TiB) {
    auto file = open(folder_ / "f", kNew);
    char byte = 'z';
    const iovec piece{&byte, 1};
    constexpr std::uint64_t kFar = 3ULL << 40;
    ASSERT_EQ(file->write_at(IoPath::kBuffered, kFar, {&piece, 1}), 1);
    EXPECT_EQ(*file->size(), kFar + 1);
    byte = 0;
    EXPECT_EQ(file->read_at(IoPath::kBuffered, kFar, {&piece, 1}), 1);
    EXPECT_EQ(byte, 'z');
    EXPECT_EQ(file->read_at(IoPath::kBuffered, ~0ULL - 5, {&piece, 1}), -EINVAL);
}

TEST_F(LocalFileTest, TmpfsIsBufferedAndSaysWhy) {
    const support::TempFolder shm("/dev/shm");
    auto file = open(shm / "f", kNew);
    EXPECT_FALSE(file->geometry().direct);
    EXPECT_EQ(file->descriptor(IoPath::kDirect), -1);
    EXPECT_EQ(file->info().file_system, "tmpfs");
    EXPECT_THAT(file->geometry().reason, HasSubstr("tmpfs"));
}

TEST_F(LocalFileTest, RequiredWhereThereIsNoneTouchesNothing) {
    const support::TempFolder shm("/dev/shm");
    FileOptions options = kNew;
    options.cache = CachePolicy::kRequired;
    options.truncate = true;
    const base::Error error = open_error(shm / "new", options);
    EXPECT_EQ(error.code, ErrorCode::kUnsupported);
    EXPECT_THAT(error.describe(), AllOf(HasSubstr(shm / "new"), HasSubstr("tmpfs"),
                                        HasSubstr("CachePolicy::kDirect")));
    EXPECT_FALSE(std::filesystem::exists(shm / "new"));
    std::ofstream(shm / "old") << "precious";
    EXPECT_EQ(open_error(shm / "old", options).code, ErrorCode::kUnsupported);
    EXPECT_EQ(std::filesystem::file_size(shm / "old"), 8U);
}

TEST_F(LocalFileTest, RequiredWorksWhereThereIsDirectIo) {
    if (const std::string why = no_direct_here(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    FileOptions options = kNew;
    options.cache = CachePolicy::kRequired;
    EXPECT_TRUE(open(folder_ / "f", options)->geometry().direct);
}

TEST_F(LocalFileTest, CachedIsNotDirect) {
    FileOptions options = kNew;
    options.cache = CachePolicy::kCached;
    auto file = open(folder_ / "f", options);
    EXPECT_FALSE(file->geometry().direct);
    EXPECT_EQ(file->descriptor(IoPath::kDirect), -1);
    EXPECT_EQ(file->geometry().memory_align, 1U);
    EXPECT_THAT(file->geometry().reason, HasSubstr("by request"));
}

TEST_F(LocalFileTest, CreatesByUmaskAndTruncatesOnlyWhenAsked) {
    const mode_t old = ::umask(027);
    open(folder_ / "f", kNew);
    ::umask(old);
    struct stat status {};
    ASSERT_EQ(::stat((folder_ / "f").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0640U);
    std::ofstream(folder_ / "f") << "12345";
    EXPECT_EQ(*open(folder_ / "f", kNew)->size(), 5U);
    FileOptions options = kNew;
    options.truncate = true;
    EXPECT_EQ(*open(folder_ / "f", options)->size(), 0U);
    options.exclusive = true;
    EXPECT_EQ(open_error(folder_ / "f", options).system_errno, EEXIST);
}

// The mode of a new file may forbid to its owner what the descriptor that made it can do.
TEST_F(LocalFileTest, NewFileThatCannotBeOpenedAgainIsBuffered) {
    if (const std::string why = no_direct_here(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    if (::geteuid() != 0) {
        GTEST_SKIP() << "needs root";
    }
    ::chmod(folder_.path().c_str(), 0777);
    ::setfsuid(65534);
    const mode_t old = ::umask(0777);
    auto file = files_->open(folder_ / "f", kNew);
    ::umask(old);
    ::setfsuid(0);
    ASSERT_TRUE(file) << file.error().describe();
    EXPECT_FALSE((*file)->geometry().direct);
    EXPECT_THAT((*file)->geometry().reason, HasSubstr("Permission denied"));
}

TEST_F(LocalFileTest, FollowsALinkToAFileThatIsNotThere) {
    std::filesystem::create_symlink(folder_ / "target", folder_ / "link");
    open(folder_ / "link", kNew);
    EXPECT_TRUE(std::filesystem::exists(folder_ / "target"));
}

// A process without standard input and output must not print into a file.
TEST_F(LocalFileTest, IsNeverADescriptorOfStandardInputOrOutput) {
    const base::UniqueFd kept(::dup(STDIN_FILENO));
    ::close(STDIN_FILENO);
    const auto file = open(folder_ / "f", kNew);
    const int is_free = ::fcntl(STDIN_FILENO, F_GETFD);
    ASSERT_EQ(::dup2(kept.get(), STDIN_FILENO), STDIN_FILENO);
    EXPECT_EQ(is_free, -1);
    EXPECT_GT(file->descriptor(IoPath::kBuffered), STDERR_FILENO);
    EXPECT_NE(::fcntl(file->descriptor(IoPath::kBuffered), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(LocalFileTest, ErrorsNameOperationPathAndCure) {
    EXPECT_THAT(open_error(folder_ / "none", {}).describe(),
                AllOf(HasSubstr("open '" + folder_ / "none'"), HasSubstr("No such file"),
                      HasSubstr("check the path")));
    for (const Access access : {Access::kRead, Access::kWrite, Access::kReadWrite}) {
        const base::Error error = open_error(folder_.path(), {.access = access});
        EXPECT_EQ(error.system_errno, EISDIR);
        EXPECT_THAT(error.describe(), HasSubstr("not of a folder"));
    }
    std::ofstream(folder_ / "file") << "x";
    EXPECT_EQ(open_error(folder_ / "file/below", {}).system_errno, ENOTDIR);
    EXPECT_EQ(open_error(folder_ / std::string(300, 'n'), {}).system_errno, ENAMETOOLONG);
    std::filesystem::create_symlink("loop", folder_ / "loop");
    EXPECT_EQ(open_error(folder_ / "loop", {}).system_errno, ELOOP);
    EXPECT_EQ(open_error("", {}).code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(open_error(std::string("a\0b", 3), {}).code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(open_error(folder_ / "file", {.truncate = true}).code, ErrorCode::kInvalidArgument);
}

TEST_F(LocalFileTest, PermissionIsToldWithItsCure) {
    std::ofstream(folder_ / "f") << "x";
    ::chmod((folder_ / "f").c_str(), 0);
    const bool root = ::geteuid() == 0;
    if (root) {
        ::chmod(folder_.path().c_str(), 0777);
        ::setfsuid(65534);
    }
    auto file = files_->open(folder_ / "f", {});
    if (root) {
        ::setfsuid(0);
    }
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().system_errno, EACCES);
    EXPECT_THAT(file.error().describe(), HasSubstr("check the permissions"));
}

TEST_F(LocalFileTest, PipeIsRefusedWithoutWaitingForItsOtherEnd) {
    ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0666), 0);
    const base::Error error = open_error(folder_ / "pipe", {});
    EXPECT_EQ(error.code, ErrorCode::kUnsupported);
    EXPECT_THAT(error.describe(), HasSubstr("neither a file nor a block device"));
    EXPECT_EQ(open_error("/dev/null", {}).code, ErrorCode::kUnsupported);
}

TEST_F(LocalFileTest, NoDescriptorLeft) {
    if (const std::string why = no_direct_here(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    rlimit old{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
    const int probe = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(probe);
    // None is left, then one: the second descriptor of the file is the one that fails. A direct
    // file that quietly became a buffered one would be worse than this error.
    for (int left = 0; left <= 1; ++left) {
        rlimit tight = old;
        tight.rlim_cur = static_cast<rlim_t>(probe + left);
        ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
        auto file = files_->open(folder_ / "f", kNew);
        ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
        ASSERT_FALSE(file);
        EXPECT_EQ(file.error().system_errno, EMFILE);
        EXPECT_THAT(file.error().describe(), HasSubstr("ulimit -n"));
        EXPECT_FALSE(std::filesystem::exists(folder_ / "f"));
    }
}

TEST_F(LocalFileTest, ReadOnlyFileRefusesToChange) {
    std::ofstream(folder_ / "f") << "x";
    auto file = open(folder_ / "f", {});
    char byte = 'y';
    const iovec piece{&byte, 1};
    EXPECT_EQ(file->write_at(IoPath::kBuffered, 0, {&piece, 1}), -EBADF);
    EXPECT_EQ(file->truncate(0).error().system_errno, EBADF);
    const auto refused = file->preallocate(0, 1);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().describe(), HasSubstr("open it for writing"));
}

TEST_F(LocalFileTest, WriteOnlyFileRefusesToRead) {
    auto file = open(folder_ / "f", {.access = Access::kWrite, .create = true});
    char byte = 0;
    const iovec piece{&byte, 1};
    EXPECT_EQ(file->read_at(IoPath::kBuffered, 0, {&piece, 1}), -EBADF);
}

TEST_F(LocalFileTest, TruncateAndPreallocate) {
    auto file = open(folder_ / "f", kNew);
    ASSERT_TRUE(file->truncate(10000));
    EXPECT_EQ(*file->size(), 10000U);
    ASSERT_TRUE(file->preallocate(4096, 1 << 20));
    EXPECT_EQ(*file->size(), 4096U + (1 << 20));
    struct stat status {};
    ::fstat(file->descriptor(IoPath::kBuffered), &status);
    EXPECT_GE(status.st_blocks * 512, 1 << 20);
    ASSERT_TRUE(file->preallocate(0, 0));
    ASSERT_TRUE(file->preallocate(0, 4096));
    EXPECT_EQ(*file->size(), 4096U + (1 << 20));  // it never shrinks
    ASSERT_TRUE(file->truncate(1));
    EXPECT_EQ(*file->size(), 1U);
    EXPECT_EQ(file->truncate(~0ULL).error().system_errno, EFBIG);
    EXPECT_EQ(file->preallocate(~0ULL, 2).error().system_errno, EFBIG);
    EXPECT_EQ(file->preallocate(1ULL << 63, 1).error().system_errno, EFBIG);
}

TEST_F(LocalFileTest, PreallocateThatTheFileSystemCannot) {
    auto file = open(folder_ / "f", kNew);
    for (const int error : {EOPNOTSUPP, ENOSYS, EPERM, EACCES}) {  // the last two by a sandbox
        testing::faults.fallocate_errno = error;
        const auto refused = file->preallocate(0, 4096);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
        EXPECT_THAT(refused.error().describe(), HasSubstr("cannot preallocate"));
    }
    testing::faults.fallocate_errno = ENOSPC;
    EXPECT_EQ(file->preallocate(8192, 4096).error().offset, 8192U);
    EXPECT_THAT(file->preallocate(0, 4096).error().describe(), HasSubstr("free some space"));
    testing::faults = {};
    testing::faults.eintr_first = 3;
    EXPECT_TRUE(file->preallocate(0, 4096));
}

TEST_F(LocalFileTest, SyncCoversTheFileThenItsFolder) {
    auto file = open(folder_ / "f", kNew);
    struct stat inode {};
    struct stat parent {};
    ASSERT_EQ(::stat((folder_ / "f").c_str(), &inode), 0);
    ASSERT_EQ(::stat(folder_.path().c_str(), &parent), 0);
    testing::faults.eintr_first = 2;
    ASSERT_TRUE(file->sync());
    ASSERT_EQ(testing::sync_calls.size(), 2U);
    EXPECT_EQ(testing::sync_calls[0].call, "fdatasync");
    EXPECT_EQ(testing::sync_calls[0].inode, inode.st_ino);
    EXPECT_EQ(testing::sync_calls[1].call, "fsync");
    EXPECT_EQ(testing::sync_calls[1].inode, parent.st_ino);
}

TEST_F(LocalFileTest, SyncFindsTheFolderWhereTheNameIsNow) {
    std::filesystem::create_directory(folder_ / "there");
    struct stat there {};
    ASSERT_EQ(::stat((folder_ / "there").c_str(), &there), 0);
    // Through a link, opened by a relative path, renamed: the folder of the name that it has now.
    std::filesystem::create_symlink("real", folder_ / "link");
    auto file = open(folder_ / "link", kNew);
    ASSERT_TRUE(files_->rename(folder_ / "real", folder_ / "there/moved"));
    ASSERT_TRUE(file->sync());
    ASSERT_EQ(testing::sync_calls.size(), 2U);
    EXPECT_EQ(testing::sync_calls[1].inode, there.st_ino);
    // Without a name there is no folder to sync.
    testing::sync_calls.clear();
    ASSERT_TRUE(files_->remove(folder_ / "there/moved"));
    ASSERT_TRUE(file->sync());
    EXPECT_EQ(testing::sync_calls.size(), 1U);
}

TEST_F(LocalFileTest, SyncThatFailedStaysFailed) {
    auto file = open(folder_ / "f", kNew);
    testing::faults.fdatasync_errno = EIO;
    const auto failed = file->sync();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().system_errno, EIO);
    EXPECT_THAT(failed.error().describe(),
                AllOf(HasSubstr("sync '" + folder_ / "f'"), HasSubstr("may be lost")));
    testing::reset_faults();
    // The kernel dropped the pages and would now say that all is well.
    const auto again = file->sync();
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().system_errno, EIO);
    EXPECT_THAT(again.error().describe(), HasSubstr("earlier sync"));
}

// Nothing was lost, and nothing is known to be safe: the caller may do without.
TEST_F(LocalFileTest, SyncThatAFileSystemLacksSaysWhatToDo) {
    for (const int number : {EINVAL, EOPNOTSUPP, ENOSYS}) {
        auto file = open(folder_ / fmt::format("f{}", number), kNew);
        testing::faults.fdatasync_errno = number;
        for (const auto& failed : {file->sync(), file->sync_data()}) {
            ASSERT_FALSE(failed);
            EXPECT_EQ(failed.error().system_errno, number);
            EXPECT_THAT(failed.error().describe(),
                        AllOf(HasSubstr("has no sync of files"), HasSubstr("sync=False")));
        }
        testing::reset_faults();
        EXPECT_TRUE(file->sync());
    }
}

TEST_F(LocalFileTest, SyncThatLostNothingMayBeTriedAgain) {
    auto file = open(folder_ / "f", kNew);
    rlimit old{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
    rlimit none_left = old;
    none_left.rlim_cur = 0;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none_left), 0);
    const auto refused = file->sync();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().system_errno, EMFILE);
    const auto done = file->sync();
    EXPECT_TRUE(done) << done.error().describe();
}

TEST_F(LocalFileTest, FolderThatKnowsNoFsyncIsFineAnyOtherErrorIsNot) {
    auto file = open(folder_ / "f", kNew);
    for (const int unknown : {EINVAL, EOPNOTSUPP, ENOSYS, EBADF}) {
        testing::faults.fsync_errno = unknown;
        EXPECT_TRUE(file->sync()) << unknown;
        EXPECT_TRUE(files_->sync_folder(folder_.path())) << unknown;
        const auto opened = files_->open_folder(folder_.path());
        ASSERT_TRUE(opened);
        EXPECT_TRUE((*opened)->sync()) << unknown;
    }
    testing::faults.fsync_errno = EIO;
    EXPECT_EQ(files_->sync_folder(folder_.path()).error().system_errno, EIO);
    EXPECT_EQ(file->sync().error().system_errno, EIO);
}

TEST_F(LocalFileTest, SyncWhereTheFolderMayNotBeListed) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "needs root";
    }
    auto file = open(folder_ / "f", kNew);
    ::chmod(folder_.path().c_str(), 0311);
    ::setfsuid(65534);
    const auto done = file->sync();
    ::setfsuid(0);
    ::chmod(folder_.path().c_str(), 0700);
    EXPECT_TRUE(done) << done.error().describe();
    ASSERT_EQ(testing::sync_calls.size(), 2U);
    EXPECT_EQ(testing::sync_calls[1].call, "syncfs");  // the names with everything else
}

TEST_F(LocalFileTest, CloseTellsItsErrorAndLaterCallsAreBadDescriptors) {
    const std::size_t before = open_descriptors();
    auto file = open(folder_ / "f", kNew);
    testing::faults.close_errno = EIO;
    const auto closed = file->close();
    testing::reset_faults();
    ASSERT_FALSE(closed);
    EXPECT_EQ(closed.error().system_errno, EIO);
    EXPECT_EQ(open_descriptors(), before);
    char byte = 0;
    const iovec piece{&byte, 1};
    for (const IoPath io : {IoPath::kDirect, IoPath::kBuffered}) {
        EXPECT_EQ(file->descriptor(io), -1);
        EXPECT_EQ(file->read_at(io, 0, {&piece, 1}), -EBADF);
        EXPECT_EQ(file->write_at(io, 0, {&piece, 1}), -EBADF);
    }
    for (const base::Result<void>& result :
         {file->sync(), file->truncate(0), file->preallocate(0, 1), file->close()}) {
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code, ErrorCode::kClosed);
        EXPECT_EQ(result.error().system_errno, EBADF);
        EXPECT_THAT(result.error().describe(), HasSubstr(folder_ / "f"));
    }
    EXPECT_FALSE(file->size());
}

TEST_F(LocalFileTest, DroppedFileClosesItsDescriptors) {
    const std::size_t before = open_descriptors();
    open(folder_ / "f", kNew);
    EXPECT_EQ(open_descriptors(), before);
}

TEST_F(LocalFileTest, FullDiskIsFoundEarly) {
    PENSTOCK_LOOP_MOUNT(mount, (support::LoopOptions{.file_system = "tmpfs", .bytes = 1 << 20}));
    auto file = open(mount / "f", kNew);
    const auto full = file->preallocate(0, 4 << 20);
    ASSERT_FALSE(full);
    EXPECT_EQ(full.error().system_errno, ENOSPC);
    std::string data(4 << 20, 'x');
    const iovec piece{data.data(), data.size()};
    EXPECT_EQ(file->write_at(IoPath::kBuffered, 0, {&piece, 1}), 1 << 20);
    EXPECT_EQ(file->write_at(IoPath::kBuffered, 1 << 20, {&piece, 1}), -ENOSPC);
}

TEST_F(LocalFileTest, ReadOnlyFileSystem) {
    PENSTOCK_LOOP_MOUNT(mount, support::LoopOptions{});
    ASSERT_EQ(::mount("none", mount.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
    const base::Error error = open_error(mount / "f", kNew);
    EXPECT_EQ(error.system_errno, EROFS);
    EXPECT_THAT(error.describe(), HasSubstr("mounted read-only"));
}

TEST_F(LocalFileTest, BlockDeviceIsReadAndWrittenButKeepsItsSize) {
    PENSTOCK_LOOP_MOUNT(mount, (support::LoopOptions{.file_system = "none", .bytes = 3ULL << 40}));
    auto file =
        open(mount.device(), {.access = Access::kReadWrite, .create = true, .truncate = true});
    EXPECT_TRUE(file->info().is_block_device);
    EXPECT_EQ(file->info().file_system, "block device");
    EXPECT_EQ(file->info().device.major, 7U);
    EXPECT_TRUE(file->geometry().direct) << file->geometry().reason;
    EXPECT_EQ(*file->size(), 3ULL << 40);
    const AlignedMemory memory(4096);
    std::memset(memory.data, 'b', 4096);
    const iovec piece = memory.all();
    constexpr std::uint64_t kFar = (3ULL << 40) - 4096;
    ASSERT_EQ(file->write_at(IoPath::kDirect, kFar, {&piece, 1}), 4096);
    std::memset(memory.data, 0, 4096);
    ASSERT_EQ(file->read_at(IoPath::kDirect, kFar, {&piece, 1}), 4096);
    EXPECT_EQ(memory.data[4095], 'b');
    EXPECT_EQ(file->truncate(0).error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(file->preallocate(0, 4096).error().code, ErrorCode::kUnsupported);
    EXPECT_TRUE(file->sync());
    EXPECT_EQ(testing::sync_calls.size(), 1U);  // its folder is /dev: nothing to keep there
}

class EveryFileSystem : public ::testing::TestWithParam<const char*> {};

// Bytes, size and durability calls on each kind, straight and unaligned.
TEST_P(EveryFileSystem, RoundTrip) {
    testing::reset_faults();
    PENSTOCK_LOOP_MOUNT(mount, support::LoopOptions{.file_system = GetParam()});
    auto files = local_file_system();
    auto file = files->open(mount / "f", kNew);
    ASSERT_TRUE(file) << file.error().describe();
    EXPECT_EQ((*file)->info().file_system, GetParam());
    const Geometry& geometry = (*file)->geometry();
    const IoPath io = geometry.direct ? IoPath::kDirect : IoPath::kBuffered;
    EXPECT_EQ(geometry.direct, std::string(GetParam()) != "tmpfs") << geometry.reason;
    const AlignedMemory out(1 << 20);
    const AlignedMemory in(1 << 20);
    for (std::size_t i = 0; i < out.bytes; ++i) {
        out.data[i] = static_cast<char>(i * 7 >> 3);
    }
    const iovec whole = out.all();
    const auto allocated = (*file)->preallocate(0, 2 << 20);
    EXPECT_TRUE(allocated) << allocated.error().describe();
    ASSERT_EQ((*file)->write_at(io, 1 << 20, {&whole, 1}), 1 << 20);
    ASSERT_EQ((*file)->write_at(IoPath::kBuffered, (2 << 20) - 1, {&whole, 1}), 1 << 20);
    ASSERT_TRUE((*file)->sync());
    EXPECT_EQ(*(*file)->size(), (3U << 20) - 1);
    const iovec back = in.all();
    ASSERT_EQ((*file)->read_at(io, 1 << 20, {&back, 1}), 1 << 20);
    EXPECT_EQ(std::memcmp(in.data, out.data, (1 << 20) - 1), 0);
    // The smallest request that the geometry allows, at its smallest memory alignment.
    const std::uint64_t step = geometry.read_align;
    const iovec small{in.data + geometry.memory_align, step};
    EXPECT_EQ((*file)->read_at(io, (1 << 20) + step, {&small, 1}), static_cast<std::int64_t>(step));
    EXPECT_EQ(std::memcmp(in.data + geometry.memory_align, out.data + step, step), 0);
    EXPECT_TRUE((*file)->close());
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryFileSystem,
                         ::testing::Values("ext4", "xfs", "btrfs", "overlay", "tmpfs"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace penstock::os
