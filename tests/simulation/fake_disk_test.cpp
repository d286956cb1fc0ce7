// SPDX-License-Identifier: Apache-2.0
// What a crash may and may not do on the fake disk, told by many seeds: what POSIX promises holds
// for all of them, and what it does not promise is lost for some.
#include "simulation/fake_disk.hpp"

#include "base/clock.hpp"
#include "simulation/fake_file_system.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace penstock::simulation {
namespace {

constexpr int kSeeds = 400;

class Disk {
public:
    explicit Disk(const DiskShape& shape = {})
        : Disk(std::make_shared<FakeDisk>(DeviceId{240, 0}, shape, DiskModel{}, 1)) {}
    explicit Disk(std::shared_ptr<FakeDisk> fake)
        : fake_(std::move(fake)), files_({fake_}, clock_) {}

    [[nodiscard]] Disk crashed(std::uint64_t seed) const {
        auto fork = fake_->fork(seed);
        fork->crash();
        return Disk(fork);
    }
    std::shared_ptr<os::File> open(const std::string& path, bool create = true) {
        auto file = files_.open(path, {.access = Access::kReadWrite, .create = create});
        return file ? *file : nullptr;
    }
    static std::int64_t put(os::File& file, std::uint64_t offset, const std::string& text) {
        const iovec piece{const_cast<char*>(text.data()), text.size()};
        return file.write_at(os::IoPath::kBuffered, offset, {&piece, 1});
    }
    void write(const std::string& path, const std::string& text) {
        EXPECT_EQ(put(*open(path), 0, text), static_cast<std::int64_t>(text.size()));
    }
    /// "-" when there is no such file.
    std::string read(const std::string& path) {
        const auto file = open(path, false);
        if (!file) {
            return "-";
        }
        std::string text(*file->size(), '\0');
        const iovec piece{text.data(), text.size()};
        EXPECT_EQ(file->read_at(os::IoPath::kBuffered, 0, {&piece, 1}),
                  static_cast<std::int64_t>(text.size()));
        return text;
    }
    [[nodiscard]] FakeDisk& fake() { return *fake_; }
    [[nodiscard]] FakeFileSystem& files() { return files_; }

private:
    std::shared_ptr<FakeDisk> fake_;
    std::shared_ptr<const base::Clock> clock_ = std::make_shared<base::VirtualClock>();
    FakeFileSystem files_;
};

template <typename See>
std::set<std::string> outcomes(const Disk& disk, See see) {
    std::set<std::string> seen;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        Disk after = disk.crashed(seed);
        seen.insert(see(after));
    }
    return seen;
}

using Seen = std::set<std::string>;

TEST(FakeDiskCrash, SyncedIsThereAndTheRestMayNotBe) {
    Disk disk;
    disk.write("/synced", "data");
    ASSERT_TRUE(disk.open("/synced")->sync());
    disk.write("/loose", "data");
    EXPECT_EQ(outcomes(disk, [](Disk& after) { return after.read("/synced"); }), Seen{"data"});
    const Seen loose = outcomes(disk, [](Disk& after) { return after.read("/loose"); });
    EXPECT_EQ(loose, (Seen{"-", "", "data", std::string(4, '\0')}));
}

TEST(FakeDiskCrash, DataWithoutNameAndNameWithoutData) {
    Disk disk;
    disk.write("/file", "data");
    ASSERT_TRUE(disk.open("/file")->sync_data());
    EXPECT_EQ(outcomes(disk, [](Disk& after) { return after.read("/file"); }), (Seen{"-", "data"}));
    disk.write("/other", "data");
    ASSERT_TRUE(disk.files().sync_folder("/"));
    EXPECT_FALSE(outcomes(disk, [](Disk& after) { return after.read("/other"); }).contains("-"));
}

TEST(FakeDiskCrash, SectorsOfAWriteSurviveOneByOneInAnyOrder) {
    Disk disk;
    const auto file = disk.open("/file");
    Disk::put(*file, 0, std::string(512 * 4, 'a'));
    ASSERT_TRUE(file->sync());
    Disk::put(*file, 0, std::string(512 * 4, 'b'));
    Disk::put(*file, 512, std::string(512, 'c'));  // an earlier version may survive a later one
    Seen seen = outcomes(disk, [](Disk& after) {
        const std::string text = after.read("/file");
        std::string sectors;
        for (std::size_t at = 0; at < text.size(); at += 512) {
            EXPECT_EQ(text.substr(at, 512), std::string(512, text[at]));  // sectors are whole
            sectors += text[at];
        }
        return sectors;
    });
    for (const char* possible : {"aaaa", "bcbb", "abaa", "acaa", "aaab", "baaa", "bbbb"}) {
        EXPECT_TRUE(seen.contains(possible)) << possible;
    }
    EXPECT_FALSE(seen.contains("caaa"));
}

TEST(FakeDiskCrash, CutOffBytesComeBackOldOrNotAtAll) {
    Disk disk;
    disk.write("/file", std::string(2048, 'a'));
    const auto file = disk.open("/file");
    ASSERT_TRUE(file->sync());
    ASSERT_TRUE(file->truncate(512));
    ASSERT_TRUE(file->truncate(1024));
    const std::string cut = std::string(512, 'a') + std::string(512, '\0');
    EXPECT_EQ(outcomes(disk, [](Disk& after) { return after.read("/file"); }),
              (Seen{cut, std::string(2048, 'a')}));
    ASSERT_TRUE(file->sync());
    EXPECT_EQ(outcomes(disk, [](Disk& after) { return after.read("/file"); }), Seen{cut});
}

TEST(FakeDiskCrash, RenameIsAtomicAndVolatile) {
    Disk disk;
    disk.write("/old", "1");
    ASSERT_TRUE(disk.open("/old")->sync());
    disk.write("/new", "2");
    ASSERT_TRUE(disk.open("/new")->sync());
    ASSERT_TRUE(disk.files().rename("/new", "/old"));
    const auto both = [](Disk& after) { return after.read("/old") + after.read("/new"); };
    EXPECT_EQ(outcomes(disk, both), (Seen{"12", "2-"}));
    ASSERT_TRUE(disk.files().sync_folder("/"));
    EXPECT_EQ(outcomes(disk, both), Seen{"2-"});
}

TEST(FakeDiskCrash, RenameBetweenFoldersIsAtomic) {
    Disk disk;
    for (const char* folder : {"/a", "/b"}) {
        ASSERT_TRUE(disk.files().make_folder(folder));
    }
    ASSERT_TRUE(disk.files().sync_folder("/"));
    disk.write("/a/file", "1");
    ASSERT_TRUE(disk.open("/a/file")->sync());
    ASSERT_TRUE(disk.files().rename("/a/file", "/b/file"));
    const auto both = [](Disk& after) { return after.read("/a/file") + after.read("/b/file"); };
    EXPECT_EQ(outcomes(disk, both), (Seen{"1-", "-1"}));
    ASSERT_TRUE(disk.files().sync_folder("/b"));
    EXPECT_EQ(outcomes(disk, both), Seen{"-1"});
}

TEST(FakeDiskCrash, ExchangeIsAtomic) {
    Disk disk;
    for (const char* folder : {"/a", "/b"}) {
        ASSERT_TRUE(disk.files().make_folder(folder));
    }
    ASSERT_TRUE(disk.files().sync_folder("/"));
    disk.write("/a/file", "1");
    disk.write("/b/other", "2");
    ASSERT_TRUE(disk.open("/a/file")->sync());
    ASSERT_TRUE(disk.open("/b/other")->sync());
    EXPECT_EQ(disk.files().exchange("/a/file", "/b/none").error().system_errno, ENOENT);
    EXPECT_EQ(disk.files().exchange("/a", "/a/file").error().system_errno, EINVAL);
    ASSERT_TRUE(disk.files().exchange("/a/file", "/b/other"));
    const auto both = [](Disk& after) { return after.read("/a/file") + after.read("/b/other"); };
    EXPECT_EQ(outcomes(disk, both), (Seen{"12", "21"}));
    ASSERT_TRUE(disk.files().sync_folder("/b"));
    EXPECT_EQ(outcomes(disk, both), Seen{"21"});
}

TEST(FakeDiskCrash, LaterNameOperationMaySurviveWithoutAnEarlierOne) {
    Disk disk;
    for (const char* name : {"/1", "/2"}) {
        disk.write(name, "x");
        ASSERT_TRUE(disk.open(name)->sync());
    }
    ASSERT_TRUE(disk.files().remove("/1"));
    ASSERT_TRUE(disk.files().remove("/2"));
    EXPECT_EQ(outcomes(disk, [](Disk& after) { return after.read("/1") + after.read("/2"); }),
              (Seen{"xx", "x-", "-x", "--"}));
}

TEST(FakeDiskCrash, WhatIsInAFolderNeedsTheFoldersOwnName) {
    Disk disk;
    ASSERT_TRUE(disk.files().make_folder("/folder"));
    disk.write("/folder/file", "data");
    ASSERT_TRUE(disk.open("/folder/file")->sync());
    EXPECT_EQ(outcomes(disk, [](Disk& after) { return after.read("/folder/file"); }),
              (Seen{"-", "data"}));
    ASSERT_TRUE(disk.files().rename("/folder", "/other"));
    ASSERT_TRUE(disk.files().sync_folder("/"));
    EXPECT_EQ(outcomes(disk, [](Disk& after) { return after.read("/other/file"); }), Seen{"data"});
}

TEST(FakeDiskCrash, LinksAndSymbolicLinks) {
    Disk disk;
    disk.write("/file", "data");
    ASSERT_TRUE(disk.open("/file")->sync());
    ASSERT_TRUE(disk.files().link("/file", "/second"));
    ASSERT_TRUE(disk.files().symbolic_link("second", "/soft"));
    EXPECT_EQ(disk.read("/soft"), "data");
    EXPECT_EQ(disk.files().status("/file")->links, 2U);
    EXPECT_EQ(disk.files().status("/soft")->kind, FileKind::kSymbolicLink);
    EXPECT_EQ(*disk.files().resolve("/soft"), "/second");
    EXPECT_EQ(outcomes(disk, [](Disk& after) { return after.read("/soft"); }), (Seen{"-", "data"}));
    ASSERT_TRUE(disk.files().sync_folder("/"));
    ASSERT_TRUE(disk.files().remove("/file"));
    EXPECT_EQ(outcomes(disk, [](Disk& after) { return after.read("/soft"); }), Seen{"data"});
}

TEST(FakeDiskFaults, FailedSyncLosesDataAndTheNextSucceeds) {
    Disk disk;
    disk.write("/file", "data");
    ASSERT_TRUE(disk.files().sync_folder("/"));
    disk.fake().set_operation_faults(
        [](const DiskOperation& operation) { return operation.call == DiskCall::kSync ? EIO : 0; });
    Seen seen;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        Disk fork(disk.fake().fork(seed));
        fork.fake().set_operation_faults([](const DiskOperation& operation) {
            return operation.call == DiskCall::kSync ? EIO : 0;
        });
        ASSERT_EQ(fork.open("/file")->sync().error().system_errno, EIO);
        EXPECT_EQ(fork.read("/file"), "data");  // still seen, until the crash
        fork.fake().set_operation_faults({});
        ASSERT_TRUE(fork.open("/file")->sync());
        fork.fake().crash();
        seen.insert(fork.read("/file"));
    }
    EXPECT_EQ(seen, (Seen{"data", std::string(4, '\0')}));
}

TEST(FakeDiskFaults, EveryOperationCanFail) {
    const auto all = [](Disk& disk, int expected) {
        std::vector<int> failures;
        const auto see = [&](const auto& result) {
            failures.push_back(result ? 0 : result.error().system_errno);
        };
        see(disk.files().make_folder("/folder"));
        see(disk.files().open("/file", {.access = Access::kReadWrite, .create = true}));
        see(disk.files().link("/there", "/link"));
        see(disk.files().symbolic_link("/there", "/soft"));
        see(disk.files().rename("/there", "/here"));
        see(disk.files().sync_folder("/"));
        see(disk.files().remove("/here"));
        EXPECT_EQ(failures, std::vector<int>(7, expected));
    };
    Disk disk;
    disk.write("/there", "");
    const auto file = disk.open("/there");
    disk.fake().set_operation_faults([](const DiskOperation&) { return ENOSPC; });
    all(disk, ENOSPC);
    EXPECT_EQ(file->truncate(5).error().system_errno, ENOSPC);
    EXPECT_EQ(file->preallocate(0, 5).error().system_errno, ENOSPC);
    EXPECT_EQ(Disk::put(*file, 0, "x"), -ENOSPC);
    disk.fake().set_operation_faults({});
    all(disk, 0);
}

TEST(FakeDiskFaults, WritesLandElsewhereOrNowhere) {
    Disk disk;
    const auto file = disk.open("/file");
    Disk::put(*file, 0, std::string(2048, 'a'));
    disk.fake().set_faults(
        [](const DiskAccess& access) -> Fault { return {.lands_at = access.offset + 1024}; });
    EXPECT_EQ(Disk::put(*file, 0, std::string(512, 'b')), 512);
    EXPECT_EQ(Disk::put(*file, 1024, std::string(512, 'c')), 512);
    disk.fake().set_faults({});
    EXPECT_EQ(disk.read("/file"),
              std::string(1024, 'a') + std::string(512, 'b') + std::string(512, 'a'));
}

TEST(FakeDiskFaults, DamageIsOnTheMedium) {
    Disk disk;
    disk.write("/file", "data");
    ASSERT_TRUE(disk.open("/file")->sync());
    ASSERT_TRUE(disk.fake().damage(
        "/file", [](std::vector<std::byte>& bytes) { bytes[1] ^= std::byte{1}; }));
    EXPECT_FALSE(disk.fake().damage("/none", [](std::vector<std::byte>&) {}));
    EXPECT_EQ(outcomes(disk, [](Disk& after) { return after.read("/file"); }), Seen{"d`ta"});
}

TEST(FakeDiskFaults, DisksThatLieAboutSync) {
    Disk no_data({.syncs_data = false});
    no_data.write("/file", "data");
    ASSERT_TRUE(no_data.open("/file")->sync());
    EXPECT_TRUE(outcomes(no_data, [](Disk& after) { return after.read("/file"); }).contains(""));
    Disk no_names({.syncs_names = false});
    no_names.write("/file", "data");
    ASSERT_TRUE(no_names.open("/file")->sync());
    ASSERT_TRUE(no_names.files().sync_folder("/"));
    EXPECT_EQ(outcomes(no_names, [](Disk& after) { return after.read("/file"); }),
              (Seen{"-", "data"}));
}

TEST(FakeDiskFork, ForksShareUntilOneWrites) {
    Disk disk;
    disk.write("/file", "old");
    EXPECT_EQ(disk.files().lock("/lock", false).error().system_errno, ENOENT);
    ASSERT_TRUE(disk.files().lock("/lock", true));
    const auto held = disk.files().lock("/lock", true);
    ASSERT_TRUE(held);
    EXPECT_EQ(disk.files().lock("/lock", true).error().system_errno, EWOULDBLOCK);
    Disk fork(disk.fake().fork(1));
    EXPECT_TRUE(fork.files().lock("/lock", true));  // its owner is dead there
    disk.write("/file", "new");
    disk.write("/later", "x");
    EXPECT_EQ(fork.read("/file"), "old");
    EXPECT_EQ(fork.read("/later"), "-");
    fork.write("/file", "own");
    EXPECT_EQ(disk.read("/file"), "new");
}

TEST(FakeDiskFork, TheWatchSeesEachOperationBeforeItHappens) {
    Disk disk;
    std::vector<std::string> seen;
    disk.fake().set_watch([&](const DiskOperation& operation) {
        EXPECT_EQ(operation.number, seen.size());
        seen.push_back(Disk(disk.fake().fork(1)).read("/file"));
    });
    disk.write("/file", "data");
    ASSERT_TRUE(disk.files().rename("/file", "/other"));
    EXPECT_EQ(seen, (std::vector<std::string>{"-", "", "data"}));
}

TEST(FakeDiskSpace, RemovedFilesGiveTheirRoomBackWhenTheyAreClosed) {
    Disk disk({.capacity_bytes = 1000});
    disk.write("/file", std::string(900, 'a'));
    EXPECT_EQ(Disk::put(*disk.open("/other"), 0, std::string(200, 'b')), -ENOSPC);
    {
        const auto open = disk.open("/file");
        ASSERT_TRUE(disk.files().remove("/file"));
        EXPECT_EQ(disk.files().space("/")->free_bytes, 100U);
    }
    EXPECT_EQ(disk.files().space("/")->free_bytes, 1000U);
    disk.write("/other", std::string(200, 'b'));
}

}  // namespace
}  // namespace penstock::simulation
