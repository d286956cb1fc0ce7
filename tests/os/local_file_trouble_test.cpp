// SPDX-License-Identifier: Apache-2.0
// A local file where the system is in trouble, or says odd things; and a file that is taken back.
#include "os/faults.hpp"
#include "os/local_file.hpp"
#include "support/temp_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

namespace penstock::os {
namespace {

using ::testing::HasSubstr;

constexpr FileOptions kCreated{.access = Access::kReadWrite, .create = true};

class LocalFileTrouble : public ::testing::Test {
protected:
    void SetUp() override { testing::reset_faults(); }
    void TearDown() override { testing::reset_faults(); }

    static std::shared_ptr<File> open(const std::string& path, const FileOptions& options) {
        auto file = open_local_file(path, options);
        EXPECT_TRUE(file) << file.error().describe();
        return file ? *file : nullptr;
    }

    support::TempFolder folder_;
};

// A kernel that undoes it at each tick of a fast timer must not keep us forever.
TEST_F(LocalFileTrouble, PreallocationThatIsInterruptedAgainAndAgain) {
    auto file = open(folder_ / "f", kCreated);
    testing::faults.eintr_first = 1'000'000;
    const auto interrupted = file->preallocate(0, 4096);
    ASSERT_FALSE(interrupted);
    EXPECT_EQ(interrupted.error().code, ErrorCode::kUnsupported);
    EXPECT_GT(testing::faults.eintr_first, 900'000);
}

TEST_F(LocalFileTrouble, OpeningOfAFolderIsTriedAgainAfterASignal) {
    testing::faults.folder_eintr = 3;
    EXPECT_TRUE(sync_local_folder(folder_.path()));
    EXPECT_EQ(testing::faults.folder_eintr, 0);
}

// Trouble with the second opening is no reason to go through the page cache unasked.
TEST_F(LocalFileTrouble, OnlyWhatHasNoDirectIoIsBuffered) {
    ASSERT_TRUE(open(folder_ / "f", kCreated));
    for (const int error : {EINVAL, EOPNOTSUPP, EACCES, EPERM}) {
        testing::faults.direct_errno = error;
        const auto file = open_local_file(folder_ / "f", {});
        ASSERT_TRUE(file);
        EXPECT_FALSE((*file)->geometry().direct);
    }
    testing::faults.direct_errno = 0;
    const bool has_direct = (*open_local_file(folder_ / "f", {}))->geometry().direct;
    if (!has_direct) {
        GTEST_SKIP() << "needs a file system with direct I/O";
    }
    for (const int error : {ENOMEM, EIO, ENOSPC, ETIMEDOUT}) {
        testing::faults.direct_errno = error;
        const auto file = open_local_file(folder_ / "f", {});
        ASSERT_FALSE(file) << error;
        EXPECT_EQ(file.error().system_errno, error);
        EXPECT_EQ(file.error().path, folder_ / "f");
        EXPECT_THAT(file.error().describe(), HasSubstr("O_DIRECT"));
    }
    testing::faults.direct_errno = ENOMEM;
    EXPECT_FALSE(open_local_file(folder_ / "g", {.access = Access::kWrite, .create = true}));
    EXPECT_NE(::access((folder_ / "g").c_str(), F_OK), 0) << "it was left behind";
}

// NFS and Lustre tell the length of request that suits them.
TEST_F(LocalFileTrouble, LengthOfRequestOfANetworkIsNoBlock) {
    for (const long bytes : {1L << 20, 4L << 20}) {
        testing::faults.f_bsize = bytes;
        const auto file = open(folder_ / "f", kCreated);
        EXPECT_LE(file->geometry().edge_align(), 64U << 10);
    }
    testing::faults.f_bsize = 16384;
    EXPECT_EQ(open(folder_ / "f", kCreated)->geometry().block_bytes, 16384U);
}

// ---- a file that an opening made, taken back

TEST_F(LocalFileTrouble, EmptyFileThatWeMadeIsTakenBack) {
    auto file = open(folder_ / "f", kCreated);
    EXPECT_TRUE(file->info().created);
    file->take_back();
    ASSERT_TRUE(file->close());
    EXPECT_NE(::access((folder_ / "f").c_str(), F_OK), 0);
}

TEST_F(LocalFileTrouble, NothingElseIsTakenBack) {
    const std::string path = folder_ / "f";
    const auto stays = [&](const std::shared_ptr<File>& file, const char* what) {
        file->take_back();
        static_cast<void>(file->close());
        EXPECT_EQ(::access(path.c_str(), F_OK), 0) << what;
        ::unlink(path.c_str());
    };
    {  // bytes in it
        auto file = open(path, kCreated);
        ASSERT_EQ(::pwrite(file->descriptor(IoPath::kBuffered), "x", 1, 0), 1);
        stays(file, "it has bytes");
    }
    {  // not ours
        ASSERT_TRUE(open(path, kCreated)->close());
        auto file = open(path, kCreated);
        EXPECT_FALSE(file->info().created);
        stays(file, "somebody else made it");
    }
    {  // another process is about to write to it
        auto file = open(path, kCreated);
        const base::UniqueFd other(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
        ASSERT_TRUE(other);
        stays(file, "somebody else has it open");
    }
    {  // another file has its name now
        auto file = open(path, kCreated);
        ASSERT_TRUE(open(folder_ / "other", kCreated)->close());
        ASSERT_EQ(::rename((folder_ / "other").c_str(), path.c_str()), 0);
        stays(file, "it is another file");
    }
    {  // it has another name now
        auto file = open(path, kCreated);
        ASSERT_EQ(::rename(path.c_str(), (folder_ / "moved").c_str()), 0);
        file->take_back();
        ASSERT_TRUE(file->close());
        EXPECT_EQ(::access((folder_ / "moved").c_str(), F_OK), 0);
    }
    {  // the name is a link to it
        ASSERT_EQ(::symlink((folder_ / "target").c_str(), path.c_str()), 0);
        auto file = open(path, kCreated);
        file->take_back();
        ASSERT_TRUE(file->close());
        struct stat status {};
        EXPECT_EQ(::lstat(path.c_str(), &status), 0);
        EXPECT_EQ(::access((folder_ / "target").c_str(), F_OK), 0);
    }
}

}  // namespace
}  // namespace penstock::os
