// SPDX-License-Identifier: Apache-2.0
// Open folders, on this machine's file system and on the fake disk, which have to be alike: the
// crash tests of what removes run on the second, users on the first.
#include "simulation/fake_file_system.hpp"
#include "support/temp_folder.hpp"

#include <penstock/file.hpp>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock {
namespace {

using Names = std::vector<std::string>;

class FolderTest : public ::testing::TestWithParam<bool> {
protected:
    FolderTest() {
        if (GetParam()) {
            disk_ = std::make_shared<simulation::FakeDisk>(DeviceId{}, simulation::DiskShape{},
                                                           simulation::DiskModel{}, 1);
            files_ = FileSystem(std::make_shared<simulation::FakeFileSystem>(
                std::vector{disk_}, std::make_shared<base::SteadyClock>()));
        } else {
            temporary_.emplace();
            root_ = temporary_->path();
        }
        for (const char* folder : {"store", "store/inner", "decoy"}) {
            files_.make_folder(at(folder));
        }
        for (const char* file : {"store/file", "store/inner/file", "decoy/file"}) {
            static_cast<void>(files_.open(at(file), {.access = Access::kWrite, .create = true}));
        }
        files_.symbolic_link(at("decoy"), at("store/to_folder"));
        files_.symbolic_link(at("decoy/file"), at("store/to_file"));
        files_.symbolic_link(at("decoy/made"), at("store/to_nothing"));
        folder_ = files_.open_folder(at("store"));
    }
    ~FolderTest() override { EXPECT_EQ(files_.list(at("decoy")), (Names{"file"})); }
    [[nodiscard]] std::string at(const std::string& path) const { return root_ + "/" + path; }
    static int error_of(const std::function<void()>& call) {
        try {
            call();
        } catch (const Error& error) {
            EXPECT_NE(error.path(), "");
            return error.system_errno() != 0 ? error.system_errno() : -1;
        }
        return 0;
    }

    std::optional<support::TempFolder> temporary_;
    std::string root_;
    std::shared_ptr<simulation::FakeDisk> disk_;
    FileSystem files_ = FileSystem::local();
    Folder folder_;
};

TEST_P(FolderTest, StatusAndListFollowNothing) {
    EXPECT_EQ(folder_.list(), (Names{"file", "inner", "to_file", "to_folder", "to_nothing"}));
    EXPECT_EQ(folder_.list().size(), 5U);  // also a second time
    EXPECT_EQ(folder_.status("file").kind, FileKind::kFile);
    EXPECT_EQ(folder_.status("inner").kind, FileKind::kFolder);
    for (const char* link : {"to_file", "to_folder", "to_nothing"}) {
        EXPECT_EQ(folder_.status(link).kind, FileKind::kSymbolicLink) << link;
    }
    EXPECT_EQ(error_of([&] { static_cast<void>(folder_.status("none")); }), ENOENT);
    EXPECT_EQ(folder_.path(), at("store"));
}

TEST_P(FolderTest, OnlyFoldersAreOpened) {
    EXPECT_EQ(folder_.open_folder("inner").list(), (Names{"file"}));
    for (const char* name : {"file", "to_file", "to_folder", "to_nothing"}) {
        const int number = error_of([&] { static_cast<void>(folder_.open_folder(name)); });
        EXPECT_TRUE(number == ENOTDIR || number == ELOOP) << name << " " << number;
    }
    EXPECT_EQ(error_of([&] { static_cast<void>(folder_.open_folder("none")); }), ENOENT);
    // By a path, links on the way and at its end are the caller's.
    EXPECT_EQ(files_.open_folder(at("store/to_folder")).list(), (Names{"file"}));
}

TEST_P(FolderTest, ALinkIsUnlinkedAndWhatItLeadsToStays) {
    for (const char* link : {"to_file", "to_folder", "to_nothing"}) {
        EXPECT_EQ(error_of([&] { folder_.remove_folder(link); }), ENOTDIR);
        folder_.remove(link);
    }
    folder_.remove("file");
    EXPECT_EQ(folder_.list(), (Names{"inner"}));
    EXPECT_EQ(error_of([&] { folder_.remove("inner"); }), EISDIR);
    EXPECT_EQ(error_of([&] { folder_.remove_folder("inner"); }), ENOTEMPTY);
    folder_.open_folder("inner").remove("file");
    folder_.remove_folder("inner");
    EXPECT_EQ(folder_.list(), Names{});
    EXPECT_EQ(error_of([&] { folder_.remove("file"); }), ENOENT);
}

TEST_P(FolderTest, ItIsThisFolderWhateverItsPathNames) {
    files_.rename(at("store"), at("moved"));
    files_.symbolic_link(at("decoy"), at("store"));
    folder_.remove("file");
    folder_.rename("to_file", "renamed");
    folder_.sync();
    EXPECT_EQ(files_.list(at("moved")), (Names{"inner", "renamed", "to_folder", "to_nothing"}));
}

TEST_P(FolderTest, RenameReplacesWithinTheFolder) {
    static_cast<void>(files_.open(at("store/new"), {.access = Access::kWrite, .create = true}));
    folder_.rename("new", "to_file");  // the link goes, not its target
    EXPECT_EQ(folder_.status("to_file").kind, FileKind::kFile);
    EXPECT_EQ(error_of([&] { folder_.rename("none", "other"); }), ENOENT);
    EXPECT_EQ(error_of([&] { folder_.rename("inner", "file"); }), ENOTDIR);
    EXPECT_EQ(error_of([&] { folder_.rename("file", "inner"); }), EISDIR);
}

TEST_P(FolderTest, ANameIsOneComponent) {
    for (const std::string& name :
         {std::string(), std::string("."), std::string(".."), std::string("inner/file"),
          std::string("/"), std::string("a\0b", 3)}) {
        EXPECT_EQ(error_of([&] { folder_.remove(name); }), -1);
        EXPECT_EQ(error_of([&] { folder_.remove_folder(name); }), -1);
        EXPECT_EQ(error_of([&] { static_cast<void>(folder_.open_folder(name)); }), -1);
        EXPECT_EQ(error_of([&] { static_cast<void>(folder_.status(name)); }), -1);
        EXPECT_EQ(error_of([&] { folder_.rename(name, "x"); }), -1);
        EXPECT_EQ(error_of([&] { folder_.rename("file", name); }), -1);
    }
    EXPECT_THROW(static_cast<void>(Folder().list()), Error);
}

TEST_P(FolderTest, OpeningAndLockingWithoutFollowing) {
    const FileOptions write{
        .access = Access::kWrite, .create = true, .truncate = true, .follow = false};
    for (const char* link : {"store/to_file", "store/to_nothing"}) {
        EXPECT_EQ(error_of([&] { static_cast<void>(files_.open(at(link), write)); }), ELOOP);
        EXPECT_EQ(error_of([&] { static_cast<void>(files_.lock(at(link))); }), ELOOP);
    }
    static_cast<void>(files_.open(at("store/file"), write));
    static_cast<void>(files_.open(at("store/fresh"), write));
    EXPECT_TRUE(files_.lock(at("store/file")).held());
    EXPECT_EQ(error_of([&] { static_cast<void>(files_.lock(at("store/inner"))); }), EISDIR);
}

TEST_P(FolderTest, ALockOfAFolderIsHeldOnce) {
    {
        const FileLock lock = folder_.lock();
        EXPECT_TRUE(lock.held());
        EXPECT_EQ(error_of([&] { static_cast<void>(folder_.lock()); }), EWOULDBLOCK);
        const Folder again = files_.open_folder(at("store"));
        EXPECT_EQ(error_of([&] { static_cast<void>(again.lock()); }), EWOULDBLOCK);
        EXPECT_TRUE(folder_.open_folder("inner").lock().held());
    }
    EXPECT_TRUE(folder_.lock().held());
    EXPECT_EQ(folder_.list(), (Names{"file", "inner", "to_file", "to_folder", "to_nothing"}));
}

INSTANTIATE_TEST_SUITE_P(On, FolderTest, ::testing::Bool(),
                         [](const auto& fake) { return fake.param ? "FakeDisk" : "ThisMachine"; });

// In a child with mounts of its own: what is mounted in a folder is not entered.
TEST(FolderMounts, AnotherMountIsNotEntered) {
    const support::TempFolder root;
    const FileSystem files = FileSystem::local();
    for (const char* folder : {"store", "store/tmpfs", "store/bind", "store/plain", "decoy"}) {
        files.make_folder(root / folder);
    }
    const pid_t child = ::fork();
    if (child == 0) {
        const bool own = ::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
        if (!own || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("none", (root / "store/tmpfs").c_str(), "tmpfs", 0, nullptr) != 0 ||
            ::mount((root / "decoy").c_str(), (root / "store/bind").c_str(), nullptr, MS_BIND,
                    nullptr) != 0) {
            ::_exit(77);
        }
        const auto refused = [&](const char* name) {
            try {
                static_cast<void>(files.open_folder(root / "store").open_folder(name));
            } catch (const Error& error) {
                return error.system_errno();
            }
            return 0;
        };
        ::_exit(refused("tmpfs") == EXDEV && refused("bind") == EXDEV && refused("plain") == 0 ? 0
                                                                                               : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        GTEST_SKIP() << "needs root, or user namespaces, to mount";
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace penstock
