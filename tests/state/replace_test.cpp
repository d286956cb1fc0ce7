// SPDX-License-Identifier: Apache-2.0
// Many that save under one name at once: each save goes well, nobody's unfinished file is taken for
// an abandoned one, and nothing is left. One alone: what fails leaves nothing, or says what is
// there.
#include "state/writing/replace.hpp"

#include "support/crash_harness.hpp"
#include "support/temp_folder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace penstock::state {
namespace {

constexpr std::uint64_t kSmallest = 1000;  // a save's writes are recognised by their size
constexpr std::uint64_t kSizes = 100;
constexpr int kProcesses = 3;
constexpr int kThreads = 3;
constexpr int kSaves = 800;  // of each thread

struct Hammered {
    std::atomic<int> failed{0};
    std::mutex mutex;
    std::string first;
};

void hammer(const std::string& path, int who, Hammered& failures) {
    for (int i = 0; i < kSaves; ++i) {
        try {
            Replacement replacement(FileSystem::local(), path);
            replacement.file().truncate(kSmallest + static_cast<std::uint64_t>(who));
            if (i % 8 != 7) {  // else it is given up
                replacement.commit();
            }
        } catch (const std::exception& error) {
            const std::lock_guard lock(failures.mutex);
            failures.first = failures.failed++ == 0 ? error.what() : failures.first;
        }
    }
}

void hammer_by_threads(const std::string& path, int first, Hammered& failures) {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&path, &failures, who = first + i] { hammer(path, who, failures); });
    }
}

TEST(ReplacementAtOnce, ThreadsAndProcessesSaveUnderOneName) {
    const support::TempFolder folder("/dev/shm");
    const std::string path = folder / "same.pt";
    std::array<pid_t, kProcesses> children{};
    for (int i = 0; i < kProcesses; ++i) {
        children.at(i) = ::fork();
        if (children.at(i) == 0) {
            Hammered failures;
            hammer_by_threads(path, (i + 1) * kThreads, failures);
            if (failures.failed > 0) {
                fmt::print(stderr, "{} saves failed: {}\n", failures.failed, failures.first);
            }
            ::_exit(failures.failed == 0 ? 0 : 1);
        }
    }
    Hammered failures;
    hammer_by_threads(path, 0, failures);
    EXPECT_EQ(failures.failed, 0) << failures.first;
    for (const pid_t child : children) {
        int status = -1;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    }
    EXPECT_EQ(FileSystem::local().list(folder.path()), (std::vector<std::string>{"same.pt"}));
    const std::uint64_t bytes = FileSystem::local().status(path).bytes;
    EXPECT_GE(bytes, kSmallest);
    EXPECT_LT(bytes, kSmallest + kSizes);
}

// Somebody who collects holds the lock of the file between its making and its locking.
TEST(ReplacementAtOnce, WhoIsForestalledTakesAnotherName) {
    test::CrashRig rig;
    rig.files().make_folder("/folder");
    std::vector<std::string> taken;
    std::vector<FileLock> collecting;
    bool inside = false;
    rig.disks().front()->set_watch([&](const simulation::DiskOperation& operation) {
        if (operation.call == simulation::DiskCall::kLock && !inside && taken.size() < 3) {
            inside = true;
            collecting.push_back(rig.files().lock(operation.path));
            taken.push_back(operation.path);
            inside = false;
        }
    });
    Replacement replacement(rig.files(), "/folder/state.bin");
    rig.disks().front()->set_watch({});
    EXPECT_EQ(taken.size(), 3U);
    for (const std::string& path : taken) {
        EXPECT_NE(path, replacement.temporary());
        rig.files().remove(path);
    }
    replacement.commit();
    EXPECT_EQ(rig.files().list("/folder"), (std::vector<std::string>{"state.bin"}));
}

// A file system on which everything is always locked by others is reported, and not tried forever.
TEST(ReplacementAtOnce, AnEndlessStruggleIsToldAsAnError) {
    test::CrashRig rig;
    rig.files().make_folder("/folder");
    std::vector<FileLock> held;
    bool inside = false;
    rig.disks().front()->set_watch([&](const simulation::DiskOperation& operation) {
        if (operation.call == simulation::DiskCall::kLock && !inside) {
            inside = true;
            held.push_back(rig.files().lock(operation.path));
            inside = false;
        }
    });
    try {
        Replacement replacement(rig.files(), "/folder/state.bin");
        ADD_FAILURE() << "it was accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.system_errno(), EWOULDBLOCK);
        EXPECT_NE(std::string(error.what()).find("could not lock any"), std::string::npos)
            << error.what();
    }
    rig.disks().front()->set_watch({});
    EXPECT_GT(held.size(), 10U);
}

// Locking makes the file first; what it then fails with is not one of those that are gone without.
TEST(ReplacementAlone, NothingIsLeftOfAFileThatCannotBeLocked) {
    for (const int number : {EIO, ESTALE, ENOMEM, EACCES}) {
        test::CrashRig rig;
        rig.files().make_folder("/folder");
        bool inside = false;
        rig.disks().front()->set_watch([&](const simulation::DiskOperation& operation) {
            if (operation.call == simulation::DiskCall::kLock && !inside) {
                inside = true;
                static_cast<void>(
                    rig.files().open(operation.path, {.access = Access::kWrite, .create = true}));
                inside = false;
            }
        });
        rig.disks().front()->set_operation_faults([&](const simulation::DiskOperation& operation) {
            return operation.call == simulation::DiskCall::kLock ? number : 0;
        });
        try {
            Replacement replacement(rig.files(), "/folder/state.bin");
            ADD_FAILURE() << "it was accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.system_errno(), number);
        }
        EXPECT_TRUE(rig.files().list("/folder").empty()) << number;
    }
}

TEST(ReplacementAlone, AnErrorAfterTheRenameSaysThatTheNewFileIsThere) {
    test::CrashRig rig;
    rig.files().make_folder("/folder");
    { Replacement(rig.files(), "/folder/state.bin").commit(); }
    rig.disks().front()->set_operation_faults([](const simulation::DiskOperation& operation) {
        return operation.call == simulation::DiskCall::kSyncFolder ? EMFILE : 0;
    });
    Replacement replacement(rig.files(), "/folder/state.bin");
    replacement.file().truncate(kSmallest);
    try {
        replacement.commit();
        ADD_FAILURE() << "it was accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.system_errno(), EMFILE);
        const std::string what = error.what();
        EXPECT_NE(what.find("ulimit -n"), std::string::npos) << what;
        EXPECT_NE(what.find("'/folder/state.bin' is the new file already"), std::string::npos)
            << what;
    }
    EXPECT_EQ(rig.files().list("/folder"), (std::vector<std::string>{"state.bin"}));
    EXPECT_EQ(rig.files().status("/folder/state.bin").bytes, kSmallest);
}

// A save that is short of descriptors fails before its file has its name, or not at all.
TEST(ReplacementAlone, TheFolderIsOpenedBeforeTheRename) {
    test::CrashRig rig;
    rig.files().make_folder("/folder");
    bool renamed = false;
    std::uint64_t opened = 0;
    rig.disks().front()->set_operation_faults([&](const simulation::DiskOperation& operation) {
        renamed = renamed || operation.call == simulation::DiskCall::kRename;
        opened += operation.call == simulation::DiskCall::kOpenFolder ? 1 : 0;
        const bool opens = operation.call == simulation::DiskCall::kOpenFolder ||
                           operation.call == simulation::DiskCall::kOpen;
        return renamed && opens ? EMFILE : 0;
    });
    { Replacement(rig.files(), "/folder/state.bin").commit(); }
    EXPECT_TRUE(renamed);
    EXPECT_EQ(opened, 1U);
    rig.disks().front()->set_operation_faults([](const simulation::DiskOperation& operation) {
        return operation.call == simulation::DiskCall::kOpenFolder ? EMFILE : 0;
    });
    EXPECT_THROW(Replacement(rig.files(), "/folder/state.bin"), Error);
    EXPECT_EQ(rig.files().list("/folder"), (std::vector<std::string>{"state.bin"}));
}

// A folder in which files may be made and replaced, and that may not be listed (mode -wx): it
// cannot be opened for its sync.
// As of open(2): the name before the slash would be a surprise.
TEST(ReplacementAlone, ThePathOfAFolderIsRefused) {
    const support::TempFolder folder("/dev/shm");
    const std::string path = folder / "model.pt/";
    try {
        const Replacement replacement(FileSystem::local(), path);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument) << error.what();
        EXPECT_EQ(error.path(), path);
    }
    EXPECT_TRUE(FileSystem::local().open_folder(folder.path()).list().empty());
}

TEST(ReplacementAlone, AFolderThatMayNotBeListed) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "only root may become somebody else";
    }
    const support::TempFolder folder("/dev/shm");
    const std::string path = folder / "state.bin";
    ASSERT_EQ(::chmod(folder.path().c_str(), 0333), 0);
    for (const std::uint64_t bytes : {kSmallest, kSmallest + 1}) {
        ::setfsuid(65534);
        std::string said;
        try {
            Replacement replacement(FileSystem::local(), path);
            replacement.file().truncate(bytes);
            replacement.commit();
        } catch (const Error& error) {
            said = error.what();
        }
        ::setfsuid(0);
        EXPECT_EQ(said, "");
        EXPECT_EQ(FileSystem::local().status(path).bytes, bytes);
    }
    EXPECT_EQ(FileSystem::local().list(folder.path()), (std::vector<std::string>{"state.bin"}));
}

// A mount may have no rename. What to do is said, the old file is as it was, and nothing is left.
TEST(ReplacementAlone, WhereThereIsNoRename) {
    for (const int number : {ENOSYS, EOPNOTSUPP, EXDEV, EPERM, EINVAL, EIO, ENOSPC}) {
        test::CrashRig rig;
        rig.files().make_folder("/f");
        Replacement old(rig.files(), "/f/state.pt");
        old.file().truncate(kSmallest);
        old.commit();
        rig.disks().front()->set_operation_faults([=](const simulation::DiskOperation& operation) {
            return operation.call == simulation::DiskCall::kRename ? number : 0;
        });
        std::string said;
        try {
            Replacement next(rig.files(), "/f/state.pt");
            next.file().truncate(kSmallest + 1);
            next.commit();
        } catch (const Error& error) {
            said = error.what();
            EXPECT_EQ(error.system_errno(), number);
        }
        const bool is_explained = said.find("cannot replace a file as a whole") != said.npos &&
                                  said.find("with open(path, \"wb\")") != said.npos;
        EXPECT_EQ(is_explained, number != EIO && number != ENOSPC) << said;
        EXPECT_EQ(rig.files().status("/f/state.pt").bytes, kSmallest);
        EXPECT_EQ(rig.files().list("/f"), (std::vector<std::string>{"state.pt"}));
    }
}

}  // namespace
}  // namespace penstock::state
