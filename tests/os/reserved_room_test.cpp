// SPDX-License-Identifier: Apache-2.0
// Room that a file gets before its bytes, and what is left of it where the disk is full.
#include "base/unique_fd.hpp"
#include "os/local_file_system.hpp"
#include "support/loop_mount.hpp"
#include "support/seccomp.hpp"
#include "support/temp_folder.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <string>

namespace penstock::os {
namespace {

constexpr FileOptions kForBoth{.access = Access::kReadWrite, .create = true};

class ReservedRoom : public ::testing::Test {
protected:
    std::shared_ptr<File> open(const std::string& path, const FileOptions& options) {
        auto file = files_->open(path, options);
        EXPECT_TRUE(file) << file.error().describe();
        return file ? *file : nullptr;
    }

    std::shared_ptr<FileSystem> files_ = local_file_system();
    support::TempFolder folder_;
};

struct Used {
    std::uint64_t size;
    std::int64_t blocks;  ///< of 512 bytes
    bool operator==(const Used&) const = default;
};

Used used_by(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return {static_cast<std::uint64_t>(status.st_size), status.st_blocks};
}

// ext4 keeps what it got, and moves the size with it.
TEST_F(ReservedRoom, RefusedPreallocationLeavesTheFileAsItWas) {
    for (const char* kind : {"ext4", "xfs", "btrfs", "tmpfs"}) {
        PENSTOCK_LOOP_MOUNT(mount, support::LoopOptions{.file_system = kind});
        const std::string path = mount / "f";
        std::ofstream(path) << std::string(100'000, 'x') << std::flush;
        ASSERT_TRUE(open(path, kForBoth)->sync());
        const Used before = used_by(path);
        auto file = open(path, kForBoth);
        const auto refused = file->preallocate(before.size, 4ULL << 30);
        ASSERT_FALSE(refused) << kind;
        EXPECT_EQ(refused.error().system_errno, ENOSPC) << kind;
        EXPECT_EQ(used_by(path).size, before.size) << kind;
        const base::UniqueFd other(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        ASSERT_TRUE(file->close());  // somebody else might be writing behind the end
        EXPECT_EQ(used_by(path).size, before.size) << kind;
    }
}

TEST_F(ReservedRoom, RoomBehindTheEndIsGivenBackAtTheClose) {
    PENSTOCK_LOOP_MOUNT(mount, support::LoopOptions{});
    const std::string path = mount / "f";
    std::ofstream(path) << std::string(100'000, 'x') << std::flush;
    ASSERT_TRUE(open(path, kForBoth)->sync());
    const Used before = used_by(path);
    for (const bool closes : {true, false}) {
        auto file = open(path, kForBoth);
        ASSERT_FALSE(file->preallocate(before.size, 4ULL << 30));
        EXPECT_GT(used_by(path).blocks, before.blocks);
        if (closes) {
            ASSERT_TRUE(file->close());
        }
        file.reset();
        EXPECT_LE(used_by(path).blocks, before.blocks + 8) << closes;  // and a part of a block
    }
    {
        auto file = open(path, kForBoth);  // a child of a fork may be writing with it
        ASSERT_FALSE(file->preallocate(before.size, 4ULL << 30));
        EXPECT_EQ(test::in_child([] { return std::string("done"); }), "done");
        const Used held = used_by(path);
        ASSERT_TRUE(file->close());
        EXPECT_EQ(used_by(path), held);
    }
    {
        auto file = open(path, kForBoth);  // what is written stays
        ASSERT_TRUE(file->preallocate(before.size, 1 << 20));
        const Used held = used_by(path);
        ASSERT_TRUE(file->close());
        EXPECT_EQ(used_by(path).size, held.size);
    }
    const base::UniqueFd lease(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    EXPECT_TRUE(lease) << "a lease was left";
}

// The kernel does not look at the limit where the size stays.
TEST_F(ReservedRoom, PreallocationPastTheLimitOnFilesIsRefused) {
    auto file = open(folder_ / "f", kForBoth);
    ASSERT_TRUE(file->truncate(1000));
    EXPECT_EQ(test::in_child([&]() -> std::string {
                  const rlimit limit{1 << 20, 1 << 20};
                  if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
                      return "setrlimit";
                  }
                  const auto refused = file->preallocate(0, 2 << 20);
                  return refused ? "it went through" : std::to_string(refused.error().system_errno);
              }),
              std::to_string(EFBIG));
    EXPECT_EQ(used_by(folder_ / "f").size, 1000U);
}

}  // namespace
}  // namespace penstock::os
