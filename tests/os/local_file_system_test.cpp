// SPDX-License-Identifier: Apache-2.0
#include "os/local_file_system.hpp"

#include "os/faults.hpp"
#include "support/seccomp.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace penstock::os {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LocalFileSystemTest : public ::testing::Test {
protected:
    void SetUp() override { testing::reset_faults(); }

    void put(const std::string& name, const std::string& text) {
        std::ofstream(folder_ / name) << text;
    }
    std::string get(const std::string& name) {
        std::ostringstream text;
        text << std::ifstream(folder_ / name).rdbuf();
        return text.str();
    }

    std::shared_ptr<FileSystem> files_ = local_file_system();
    support::TempFolder folder_;
};

TEST_F(LocalFileSystemTest, RenameReplaces) {
    put("a", "new");
    put("b", "old");
    ASSERT_TRUE(files_->rename(folder_ / "a", folder_ / "b"));
    EXPECT_EQ(get("b"), "new");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "a"));
    const auto gone = files_->rename(folder_ / "a", folder_ / "c");
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().system_errno, ENOENT);
    EXPECT_THAT(gone.error().describe(),
                AllOf(HasSubstr("rename"), HasSubstr(folder_ / "a"), HasSubstr(folder_ / "c")));
}

TEST_F(LocalFileSystemTest, ExchangeNeedsBothNames) {
    put("a", "one");
    ASSERT_TRUE(files_->make_folder(folder_ / "d"));
    put("d/inside", "two");
    ASSERT_TRUE(files_->exchange(folder_ / "a", folder_ / "d"));
    EXPECT_EQ(get("d"), "one");
    EXPECT_EQ(get("a/inside"), "two");
    const auto gone = files_->exchange(folder_ / "a", folder_ / "c");
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().system_errno, ENOENT);
    EXPECT_THAT(gone.error().describe(),
                AllOf(HasSubstr("exchange"), HasSubstr(folder_ / "a"), HasSubstr(folder_ / "c")));
    EXPECT_EQ(files_->exchange("", "b").error().code, ErrorCode::kInvalidArgument);
}

TEST_F(LocalFileSystemTest, LinkNeverReplaces) {
    put("a", "one");
    ASSERT_TRUE(files_->link(folder_ / "a", folder_ / "b"));
    EXPECT_EQ(get("b"), "one");
    EXPECT_EQ(files_->link(folder_ / "a", folder_ / "b").error().system_errno, EEXIST);
    EXPECT_EQ(files_->link(folder_ / "none", folder_ / "c").error().system_errno, ENOENT);
}

TEST_F(LocalFileSystemTest, RemoveTakesFilesAndEmptyFolders) {
    put("a", "x");
    ASSERT_TRUE(files_->make_folder(folder_ / "d"));
    put("d/inside", "x");
    ASSERT_TRUE(files_->remove(folder_ / "a"));
    const auto full = files_->remove(folder_ / "d");
    ASSERT_FALSE(full);
    EXPECT_EQ(full.error().system_errno, ENOTEMPTY);
    EXPECT_THAT(full.error().describe(), HasSubstr("remove what is in the folder"));
    ASSERT_TRUE(files_->remove(folder_ / "d/inside"));
    ASSERT_TRUE(files_->remove(folder_ / "d"));
    EXPECT_EQ(files_->remove(folder_ / "d").error().system_errno, ENOENT);
}

TEST_F(LocalFileSystemTest, MakeFolderIsOneLevel) {
    ASSERT_TRUE(files_->make_folder(folder_ / "d"));
    EXPECT_EQ(files_->make_folder(folder_ / "d").error().system_errno, EEXIST);
    const auto deep = files_->make_folder(folder_ / "x/y");
    ASSERT_FALSE(deep);
    EXPECT_THAT(deep.error().describe(), HasSubstr("make the folder above it first"));
}

TEST_F(LocalFileSystemTest, ListIsSorted) {
    for (const char* name : {"b", "a", ".hidden", "c"}) {
        put(name, "");
    }
    const auto names = files_->list(folder_.path());
    ASSERT_TRUE(names);
    EXPECT_THAT(*names, ElementsAre(".hidden", "a", "b", "c"));
    EXPECT_EQ(files_->list(folder_ / "a").error().system_errno, ENOTDIR);
    EXPECT_EQ(files_->list(folder_ / "none").error().system_errno, ENOENT);
}

TEST_F(LocalFileSystemTest, SpaceIsThatOfTheFileSystem) {
    struct statvfs status {};
    ASSERT_EQ(::statvfs("/dev/shm", &status), 0);
    const auto space = files_->space("/dev/shm");
    ASSERT_TRUE(space);
    EXPECT_EQ(space->total_bytes, std::uint64_t{status.f_blocks} * status.f_frsize);
    EXPECT_LE(space->free_bytes, space->total_bytes);
    EXPECT_EQ(files_->space(folder_ / "none").error().system_errno, ENOENT);
}

TEST_F(LocalFileSystemTest, LockIsHeldUntilDropped) {
    auto first = files_->lock(folder_ / "lock", true);
    ASSERT_TRUE(first);
    const auto second = files_->lock(folder_ / "lock", true);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().system_errno, EWOULDBLOCK);
    EXPECT_THAT(second.error().describe(),
                AllOf(HasSubstr("lock '" + folder_ / "lock'"), HasSubstr("another process holds")));
    // Opening and closing the same file elsewhere in the process does not release it.
    std::ifstream(folder_ / "lock").close();
    EXPECT_FALSE(files_->lock(folder_ / "lock", true));
    first->reset();
    EXPECT_TRUE(files_->lock(folder_ / "lock", true));
    EXPECT_EQ(files_->lock(folder_.path(), true).error().system_errno, EISDIR);
}

TEST_F(LocalFileSystemTest, ALockOfAFileThatIsNotThereMakesNone) {
    EXPECT_EQ(files_->lock(folder_ / "lock", false).error().system_errno, ENOENT);
    EXPECT_EQ(files_->status(folder_ / "lock").error().system_errno, ENOENT);
    EXPECT_TRUE(files_->lock(folder_ / "lock", true));
    EXPECT_TRUE(files_->lock(folder_ / "lock", false));
}

// Whose file it is cannot be known: that is an error, and not a reason to look forever.
TEST_F(LocalFileSystemTest, ALockOnAFileThatCannotBeLookedAtIsAnError) {
    const std::string got = penstock::test::in_child([this]() -> std::string {
        if (!penstock::test::refuse_system_call(SYS_newfstatat, EIO)) {
            return "no seccomp";
        }
        ::alarm(30);
        const auto lock = files_->lock(folder_ / "lock", true);
        return lock ? "locked" : lock.error().system_errno == EIO ? "told" : "another error";
    });
    EXPECT_EQ(got, "told");
}

TEST_F(LocalFileSystemTest, LockOfAnotherProcess) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        auto held = files_->lock(folder_ / "lock", true);
        const char said = held ? 'y' : 'n';
        if (::write(ready[1], &said, 1) == 1) {
            ::pause();
        }
        ::_exit(0);
    }
    char said = 0;
    ASSERT_EQ(::read(ready[0], &said, 1), 1);
    EXPECT_EQ(said, 'y');
    EXPECT_EQ(files_->lock(folder_ / "lock", true).error().system_errno, EWOULDBLOCK);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_TRUE(files_->lock(folder_ / "lock", true));  // a dead process holds nothing
    ::close(ready[0]);
    ::close(ready[1]);
}

TEST_F(LocalFileSystemTest, SyncFolder) {
    ASSERT_TRUE(files_->sync_folder(folder_.path()));
    ASSERT_EQ(testing::sync_calls.size(), 1U);
    EXPECT_EQ(testing::sync_calls[0].call, "fsync");
    put("a", "");
    EXPECT_EQ(files_->sync_folder(folder_ / "a").error().system_errno, ENOTDIR);
    EXPECT_EQ(files_->sync_folder(folder_ / "none").error().system_errno, ENOENT);
}

TEST_F(LocalFileSystemTest, StatusDoesNotFollowLinks) {
    put("a", "four");
    ASSERT_EQ(::chmod((folder_ / "a").c_str(), 0640), 0);
    ASSERT_TRUE(files_->link(folder_ / "a", folder_ / "b"));
    ASSERT_TRUE(files_->symbolic_link("a", folder_ / "l"));
    EXPECT_EQ(files_->symbolic_link("b", folder_ / "l").error().system_errno, EEXIST);
    const auto file = files_->status(folder_ / "a");
    ASSERT_TRUE(file);
    EXPECT_EQ(file->kind, FileKind::kFile);
    EXPECT_EQ(file->bytes, 4U);
    EXPECT_EQ(file->links, 2U);
    EXPECT_EQ(file->mode, 0640U);
    EXPECT_EQ(files_->status(folder_.path())->kind, FileKind::kFolder);
    EXPECT_EQ(files_->status(folder_.path())->device, file->device);
    EXPECT_EQ(files_->status(folder_ / "l")->kind, FileKind::kSymbolicLink);
    EXPECT_EQ(files_->status("/dev/null")->kind, FileKind::kOther);
    EXPECT_EQ(files_->status(folder_ / "none").error().system_errno, ENOENT);
    // The link is removed, not its target.
    ASSERT_TRUE(files_->remove(folder_ / "l"));
    EXPECT_EQ(get("a"), "four");
}

TEST_F(LocalFileSystemTest, ResolveKnowsWhatIsNotThereYet) {
    const std::string real = std::filesystem::canonical(folder_.path());
    put("a", "x");
    ASSERT_TRUE(files_->make_folder(folder_ / "d"));
    ASSERT_TRUE(files_->symbolic_link("d", folder_ / "to_d"));
    ASSERT_TRUE(files_->symbolic_link("d/new", folder_ / "to_new"));
    ASSERT_TRUE(files_->symbolic_link("loop", folder_ / "loop"));
    EXPECT_EQ(*files_->resolve(folder_ / "a"), real + "/a");
    EXPECT_EQ(*files_->resolve(folder_ / "to_d"), real + "/d");
    EXPECT_EQ(*files_->resolve(folder_ / "to_d/x/y"), real + "/d/x/y");
    EXPECT_EQ(*files_->resolve(folder_ / "to_d/../x/"), real + "/x");
    EXPECT_EQ(*files_->resolve(folder_ / "to_new"), real + "/d/new");
    EXPECT_EQ(*files_->resolve(folder_ / "x/./y"), real + "/x/y");
    EXPECT_EQ(*files_->resolve("/none_of_this_name"), "/none_of_this_name");
    EXPECT_EQ(*files_->resolve("none_of_this_name"),
              std::filesystem::current_path() / "none_of_this_name");
    EXPECT_EQ(files_->resolve(folder_ / "x/../y").error().system_errno, ENOENT);
    EXPECT_EQ(files_->resolve(folder_ / "loop").error().system_errno, ELOOP);
    EXPECT_EQ(files_->resolve(folder_ / "a/x").error().system_errno, ENOTDIR);
}

TEST_F(LocalFileSystemTest, TakeAttributes) {
    put("old", "x");
    ASSERT_EQ(::chmod((folder_ / "old").c_str(), 0604), 0);
    const bool root = ::geteuid() == 0;
    if (root) {
        ASSERT_EQ(::chown((folder_ / "old").c_str(), 12345, 54321), 0);
    }
    auto to = files_->open(folder_ / "new", {.access = Access::kReadWrite, .create = true});
    ASSERT_TRUE(to);
    ASSERT_TRUE(files_->take_attributes(folder_ / "old", **to));
    struct stat status {};
    ASSERT_EQ(::stat((folder_ / "new").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0604U);
    if (root) {
        EXPECT_EQ(status.st_uid, 12345U);
        EXPECT_EQ(status.st_gid, 54321U);
    }
    EXPECT_EQ(files_->take_attributes(folder_ / "none", **to).error().system_errno, ENOENT);
    ASSERT_TRUE((*to)->close());
    EXPECT_EQ(files_->take_attributes(folder_ / "old", **to).error().system_errno, EBADF);
}

// An ACL as the kernel has it: a version, then entries of a kind, permissions and an id.
std::string acl_of(std::uint16_t user_permissions) {
    const auto entry = [](std::uint16_t tag, std::uint16_t permissions, std::uint32_t id) {
        std::string bytes(8, '\0');
        std::memcpy(bytes.data(), &tag, 2);
        std::memcpy(bytes.data() + 2, &permissions, 2);
        std::memcpy(bytes.data() + 4, &id, 4);
        return bytes;
    };
    constexpr std::uint32_t kNobody = UINT32_MAX;
    return std::string("\2\0\0\0", 4) + entry(1, 6, kNobody) + entry(2, user_permissions, 65534) +
           entry(4, 4, kNobody) + entry(16, 6, kNobody) + entry(32, 0, kNobody);
}

std::string attribute(const std::string& path, const char* name) {
    std::string value(1024, '\0');
    const ssize_t size = ::getxattr(path.c_str(), name, value.data(), value.size());
    value.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return size < 0 ? "none" : value;
}

TEST_F(LocalFileSystemTest, TakeAttributesTakesExtendedOnesAndTheAcl) {
    constexpr const char* kAcl = "system.posix_acl_access";
    put("old", "x");
    put("plain", "x");
    const std::string old = folder_ / "old";
    if (::setxattr(old.c_str(), "user.origin", "run 7", 5, 0) != 0) {
        GTEST_SKIP() << "the temporary folder's file system has no user attributes";
    }
    const std::string big(2000, 'b');
    ASSERT_TRUE(::setxattr(old.c_str(), "user.big", big.data(), big.size(), 0) == 0 ||
                errno == ENOSPC);
    const std::string acl = acl_of(6);
    const bool has_acls = ::setxattr(old.c_str(), kAcl, acl.data(), acl.size(), 0) == 0;
    auto to = files_->open(folder_ / "new", {.access = Access::kReadWrite, .create = true});
    ASSERT_TRUE(files_->take_attributes(old, **to));
    EXPECT_EQ(attribute(folder_ / "new", "user.origin"), "run 7");
    EXPECT_EQ(attribute(folder_ / "new", "user.big"), attribute(old, "user.big"));
    if (!has_acls) {
        GTEST_SKIP() << "the temporary folder's file system has no ACLs";
    }
    EXPECT_EQ(attribute(folder_ / "new", kAcl), acl);
    // A default ACL of the folder gives a new file rights that the old one did not have.
    const std::string by_default = acl_of(7);
    ASSERT_EQ(::setxattr(folder_.path().c_str(), "system.posix_acl_default", by_default.data(),
                         by_default.size(), 0),
              0);
    auto other = files_->open(folder_ / "other", {.access = Access::kReadWrite, .create = true});
    ASSERT_NE(attribute(folder_ / "other", kAcl), "none");
    ASSERT_TRUE(files_->take_attributes(folder_ / "plain", **other));
    EXPECT_EQ(attribute(folder_ / "other", kAcl), "none");
    struct stat before {};
    struct stat after {};
    ASSERT_EQ(::stat((folder_ / "plain").c_str(), &before), 0);
    ASSERT_EQ(::stat((folder_ / "other").c_str(), &after), 0);
    EXPECT_EQ(after.st_mode, before.st_mode);
}

TEST_F(LocalFileSystemTest, SyncDataLeavesTheFolder) {
    auto file = files_->open(folder_ / "a", {.access = Access::kReadWrite, .create = true});
    ASSERT_TRUE(file);
    ASSERT_TRUE((*file)->sync_data());
    ASSERT_EQ(testing::sync_calls.size(), 1U);
    EXPECT_EQ(testing::sync_calls[0].call, "fdatasync");
    // A loss is reported from then on, by every call.
    testing::faults.fdatasync_errno = EIO;
    EXPECT_EQ((*file)->sync_data().error().system_errno, EIO);
    testing::faults.fdatasync_errno = 0;
    EXPECT_EQ((*file)->sync_data().error().system_errno, EIO);
    EXPECT_EQ((*file)->sync().error().system_errno, EIO);
}

TEST_F(LocalFileSystemTest, PathsThatCannotMeanAnything) {
    const std::string zero("a\0b", 3);
    EXPECT_EQ(files_->rename("", "b").error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->rename("a", zero).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->link(zero, "b").error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->remove(zero).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->make_folder("").error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->list("").error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->space("").error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->lock("", true).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->sync_folder("").error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->status("").error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->resolve(zero).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->symbolic_link("", "b").error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_->symbolic_link("a", zero).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace penstock::os
