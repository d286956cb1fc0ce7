// SPDX-License-Identifier: Apache-2.0
// A file that is opened for one transfer: a small one that is read, and one that gets a few bytes,
// has one descriptor, and knows where it lies.
#include "os/local_file_system.hpp"
#include "support/temp_folder.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

namespace penstock::os {
namespace {

constexpr std::uint64_t kSmall = 64 << 10;

class OpenOnce : public ::testing::Test {
protected:
    std::string file_of(std::uint64_t bytes, const support::TempFolder& folder) {
        const std::string path = folder / std::to_string(bytes);
        std::ofstream(path, std::ios::binary) << std::string(bytes, 'x');
        return path;
    }
    std::shared_ptr<FileSystem> files_ = local_file_system();
    const support::TempFolder disk_;
    const support::TempFolder memory_{"/dev/shm"};
};

TEST_F(OpenOnce, ASmallFileIsReadThroughItsOneDescriptor) {
    for (const support::TempFolder* folder : {&disk_, &memory_, &disk_}) {
        for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{5000}, kSmall}) {
            const std::string path = file_of(bytes, *folder);
            const auto file = files_->open_once(path, {}, kSmall);
            ASSERT_TRUE(file) << file.error().describe();
            const auto usual = files_->open(path, {});
            ASSERT_TRUE(usual);
            const FileInfo& info = (*file)->info();
            if (info.small) {  // not on whatever file system the temporary folder may be
                EXPECT_FALSE(info.geometry.direct);
                EXPECT_EQ((*file)->descriptor(IoPath::kDirect), -1);
            }
            EXPECT_TRUE(info.small || folder != &memory_);
            EXPECT_EQ(info.device, (*usual)->info().device);
            EXPECT_EQ(info.file_system, (*usual)->info().file_system);
            EXPECT_EQ(info.path, path);
            EXPECT_EQ(info.small && info.asks_cache, info.small && (*usual)->info().asks_cache);
            std::string back(bytes + 1, '-');
            const iovec piece{back.data(), back.size()};
            EXPECT_EQ((*file)->read_at(IoPath::kBuffered, 0, {&piece, 1}),
                      static_cast<std::int64_t>(bytes));
            EXPECT_EQ(back, std::string(bytes, 'x') + "-");
            EXPECT_TRUE((*file)->close());
        }
    }
}

// Some MiB that are all in the page cache need no direct I/O; one page that is not there does.
TEST_F(OpenOnce, ALargerOneThatIsNotAllCachedIsOpenedAsAlways) {
    for (const std::uint64_t bytes : {kSmall + 1, std::uint64_t{4} << 20, std::uint64_t{8} << 20}) {
        const std::string path = file_of(bytes, disk_);
        const auto usual = files_->open(path, {.access = Access::kReadWrite});
        ASSERT_TRUE(usual);
        CachedPages pages;
        const bool asks = (*usual)->info().asks_cache && (*usual)->cached_pages(0, 1, pages) == 0;
        const auto cached = files_->open_once(path, {}, kSmall);
        ASSERT_TRUE(cached);
        EXPECT_EQ((*cached)->info().small, asks && bytes <= 4 << 20);
        EXPECT_EQ((*cached)->info().asks_cache, (*usual)->info().asks_cache);
        const int fd = (*usual)->descriptor(IoPath::kBuffered);
        ASSERT_EQ(::fdatasync(fd), 0);
        ASSERT_EQ(::posix_fadvise(fd, 0, 4096, POSIX_FADV_DONTNEED), 0);
        if (asks && ((*usual)->cached_pages(0, bytes, pages) != 0 || pages.pages * 4096 >= bytes)) {
            continue;  // the kernel kept it
        }
        const auto once = files_->open_once(path, {}, kSmall);
        ASSERT_TRUE(once);
        EXPECT_FALSE((*once)->info().small);
        EXPECT_EQ((*once)->geometry().direct, (*usual)->geometry().direct);
        EXPECT_EQ((*once)->geometry().reason, (*usual)->geometry().reason);
    }
    EXPECT_FALSE((*files_->open_once(file_of(5, disk_), {}, 0))->info().small);
}

TEST_F(OpenOnce, AFewBytesAreWrittenThroughItsOneDescriptor) {
    const FileOptions how{.access = Access::kWrite, .create = true, .cache = CachePolicy::kCached};
    for (const support::TempFolder* folder : {&disk_, &memory_}) {
        const std::string path = *folder / "new";
        for (const bool is_new : {true, false}) {
            const auto file = files_->open_once(path, how, kSmall);
            ASSERT_TRUE(file) << file.error().describe();
            const auto usual = files_->open(path, how);
            ASSERT_TRUE(usual);
            const FileInfo& info = (*file)->info();
            EXPECT_EQ(info.geometry.reason, "a few bytes, written once");
            EXPECT_FALSE(info.small || info.geometry.direct);
            EXPECT_EQ(info.created, is_new);
            EXPECT_EQ(info.access, Access::kWrite);
            EXPECT_EQ(info.cache, (*usual)->info().cache);
            EXPECT_EQ(info.device, (*usual)->info().device);
            EXPECT_EQ(info.file_system, (*usual)->info().file_system);
            EXPECT_EQ((*file)->size_seen(), is_new ? 0U : 3U);
            std::string text = "abc";
            const iovec piece{text.data(), text.size()};
            EXPECT_EQ((*file)->write_at(IoPath::kBuffered, 0, {&piece, 1}), 3);
            EXPECT_TRUE((*file)->close());
        }
    }
    const FileOptions direct{.access = Access::kWrite, .create = true};
    const auto usual = files_->open_once(disk_ / "direct", direct, kSmall);
    ASSERT_TRUE(usual);
    EXPECT_NE((*usual)->geometry().reason, "a few bytes, written once");
}

// Nobody's data is cut, and a link that leads nowhere makes its target.
TEST_F(OpenOnce, WhatIsThereIsKept) {
    const FileOptions how{.access = Access::kWrite, .create = true, .cache = CachePolicy::kCached};
    const std::string path = file_of(5000, disk_);
    ASSERT_TRUE(files_->open_once(path, how, kSmall));
    EXPECT_EQ(std::filesystem::file_size(path), 5000U);
    std::filesystem::create_symlink(disk_ / "target", disk_ / "link");
    ASSERT_TRUE(files_->open_once(disk_ / "link", how, kSmall));
    EXPECT_TRUE(std::filesystem::is_symlink(disk_ / "link"));
    EXPECT_TRUE(std::filesystem::exists(disk_ / "target"));
    EXPECT_EQ(files_->open_once(disk_ / "none/file", how, kSmall).error().system_errno, ENOENT);
}

TEST_F(OpenOnce, WhatIsNoFileIsRefused) {
    const std::string pipe = disk_ / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(files_->open_once(pipe, {}, kSmall).error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(files_->open_once(disk_ / "none", {}, kSmall).error().system_errno, ENOENT);
    EXPECT_EQ(files_->open_once(disk_.path(), {}, kSmall).error().system_errno, EISDIR);
    EXPECT_EQ(files_->open_once("", {}, kSmall).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace penstock::os
