// SPDX-License-Identifier: Apache-2.0
// A checkpoint that is stuck (damaged, unreadable, unremovable) costs only itself. A table of ways
// to be stuck, each as an older checkpoint and as the newest one: every call goes on for the
// others, names the stuck one once, and saves never stop.
#include "store/crash_state.hpp"
#include "store/keep/store_folder.hpp"
#include "store/stuck/stuck_removals.hpp"
#include "store/stuck_files.hpp"
#include "support/temp_folder.hpp"
#include "support/text_files.hpp"

#include <penstock/checkpoint.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace penstock::store {
namespace {

namespace fs = std::filesystem;
using test::StuckCall;
using ::testing::HasSubstr;

constexpr std::string_view kManifest = "manifest.json";
constexpr std::string_view kFirstShard = "shard-00001.safetensors";

/// Makes the checkpoint in a folder stuck: on disk, or by refusals.
using Stick = std::function<void(const std::string& path, test::Refuse& refuse)>;

struct Kind {
    std::string name;
    Stick stick;
    bool is_readable = false;   ///< it is only not removed
    bool is_damaged = true;     ///< else the system refuses it, and latest() throws for the newest
    bool is_removable = false;  ///< retention takes it away as any other
};

bool is_in(const std::string& path, const std::string& folder) {
    return path == folder || path.starts_with(folder + "/");
}

void make_loop(const std::string& path) {
    fs::create_symlink(fs::path(path).filename(), path);
}

Stick replaced(std::string_view name, const std::function<void(const std::string&)>& make) {
    return [name = std::string(name), make](const std::string& path, test::Refuse&) {
        const std::string file = name.empty() ? path : path + "/" + name;
        fs::remove_all(file);
        make(file);
    };
}

/// All calls on the checkpoint, or on what is in it, or on one file of it.
Stick refused(int number, const std::string& inside) {
    return [=](const std::string& path, test::Refuse& refuse) {
        refuse = [=](StuckCall, const std::string& at) {
            const bool is_meant = inside == "."   ? is_in(at, path)
                                  : inside == "*" ? at != path && is_in(at, path)
                                                  : at == path + "/" + inside;
            return is_meant ? number : 0;
        };
    };
}

/// The removal alone: of the folder's name (call kRename), or of a file in it.
Stick kept(int number, StuckCall call, const std::string& file) {
    return [=](const std::string& path, test::Refuse& refuse) {
        const std::string name(fs::path(path).filename());
        refuse = [=](StuckCall asked, const std::string& at) {
            const bool is_meant = call == StuckCall::kRename ? at == path
                                                             : at.find(name) != std::string::npos &&
                                                                   at.ends_with("/" + file);
            return asked == call && is_meant ? number : 0;
        };
    };
}

void put_text(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
}

std::vector<Kind> kinds() {
    std::vector<Kind> out;
    const auto add = [&out](std::string name, Stick stick) -> Kind& {
        out.push_back({std::move(name), std::move(stick)});
        return out.back();
    };
    const auto make_fifo = [](const std::string& path) { ::mkfifo(path.c_str(), 0600); };
    const auto make_dangling = [](const std::string& p) { fs::create_symlink("/no/such", p); };
    const auto make_folder = [](const std::string& path) { fs::create_directory(path); };
    const auto make_nothing = [](const std::string&) {};
    for (const std::string_view file : {kManifest, kFirstShard}) {
        const std::string of = file == kManifest ? "Manifest" : "Shard";
        const bool goes = file == kFirstShard;  // what is damaged goes with the older ones
        add(of + "Fifo", replaced(file, make_fifo)).is_removable = goes;
        add(of + "Dangling", replaced(file, make_dangling)).is_removable = goes;
        add(of + "Loop", replaced(file, make_loop)).is_removable = goes;
        add(of + "Folder", replaced(file, make_folder)).is_removable = goes;
        add(of + "Missing", replaced(file, make_nothing)).is_removable = goes;
        add(of + "Empty", replaced(file, [](auto& path) { put_text(path, ""); })).is_removable =
            goes;
        add(of + "Garbage", replaced(file, [](auto& path) { put_text(path, "{]"); })).is_removable =
            goes;
    }
    add("ManifestHuge", replaced(kManifest, [](const std::string& path) {
            put_text(path, "{");
            fs::resize_file(path, std::uintmax_t{3} << 30);  // sparse
        }));
    add("ManifestNewer", [](const std::string& path, test::Refuse&) {
        put_text(path + "/manifest.json", R"({"penstock_manifest":999})");
    });
    add("PathFifo", replaced("", make_fifo));
    add("PathFile", replaced("", [](auto& path) { put_text(path, "x"); }));
    add("PathDangling", replaced("", make_dangling));
    add("PathLoop", replaced("", make_loop));
    add("PathEmptyFolder", replaced("", make_folder));
    add("PinLoop", replaced("pinned", make_loop)).is_readable = true;
    for (const int number : {EIO, EACCES, ESTALE, ELOOP}) {
        const bool damaged = number == EIO || number == ELOOP;
        for (const auto& [of, inside] : {std::pair("All", "."), std::pair("Inside", "*"),
                                         std::pair("Manifest", "manifest.json"),
                                         std::pair("Shard", "shard-00001.safetensors")}) {
            Kind& kind = add(fmt::format("Errno{}{}", number, of), refused(number, inside));
            kind.is_damaged = damaged;
        }
        Kind& pin = add(fmt::format("Errno{}Pin", number), refused(number, "pinned"));
        pin.is_readable = true;
    }
    for (const int number : {EACCES, EBUSY, EPERM, EIO}) {
        const std::string shard(kFirstShard);
        add(fmt::format("Rename{}", number), kept(number, StuckCall::kRename, ""));
        out.back().is_readable = true;
        add(fmt::format("Remove{}", number), kept(number, StuckCall::kRemove, shard));
        out.back().is_readable = true;
    }
    return out;
}

/// A store with five checkpoints, of which one is stuck.
class StuckCheckpoint : public ::testing::TestWithParam<Kind> {
protected:
    static constexpr std::uint64_t kCount = 5;

    [[nodiscard]] CheckpointStore store(std::uint32_t keep) const {
        StoreOptions options;
        options.keep = keep;
        options.shard_bytes = 6000;
        options.lock_wait_ms = 0;
        return {engine_, files_, {folder_.path() + "/store"}, options};
    }
    CheckpointInfo save(CheckpointStore& store, std::uint64_t number) const {
        SaveOptions options;
        options.step = number;
        options.metadata = {{"loss", static_cast<double>(number)}};
        return store.save(NumberedState(number).state(), options);
    }
    void make_stuck(std::uint64_t generation) {
        {
            CheckpointStore all = store(0);
            for (std::uint64_t number = 1; number <= kCount; ++number) {
                save(all, number);
            }
        }
        path_ = store(0).list().at(generation - 1).path;
        test::Refuse refuse;
        GetParam().stick(path_, refuse);
        *refuse_ = refuse;
    }
    void look_at_others(const CheckpointStore& store, std::uint64_t stuck) const {
        for (const CheckpointInfo& info : store.list()) {
            if (info.generation == stuck) {
                EXPECT_TRUE(GetParam().is_readable || !info.problem.empty());
                continue;
            }
            EXPECT_EQ(info.problem + info.note, "") << info.path;
            Checkpoint opened = store.open(info.generation);
            EXPECT_EQ(compare(opened, info.generation), "");
        }
    }
    /// How many of so many saves, each of which has to succeed, have a text in their notes.
    std::size_t notes_of_saves(CheckpointStore& store, std::size_t saves, std::string_view text) {
        std::size_t count = 0;
        for (std::size_t i = 0; i < saves; ++i) {
            const CheckpointInfo info = save(store, ++number_);
            EXPECT_EQ(store.latest()->generation, info.generation);
            count += info.note.find(text) == std::string::npos ? 0 : 1;
        }
        return count;
    }

    support::TempFolder folder_{fs::exists("/dev/shm") ? "/dev/shm" : ""};
    std::shared_ptr<test::Refuse> refuse_ = std::make_shared<test::Refuse>();
    FileSystem files_{test::make_stuck_files(refuse_)};
    std::shared_ptr<Engine> engine_ =
        std::make_shared<Engine>(EngineOptions{.backend = BackendKind::kPosix, .queue_depth = 8});
    std::string path_;
    std::uint64_t number_ = kCount;
};

TEST_P(StuckCheckpoint, AnOlderOneCostsOnlyItself) {
    make_stuck(2);
    {
        CheckpointStore store = this->store(0);
        EXPECT_EQ(store.list().size(), kCount);
        look_at_others(store, 2);
        EXPECT_EQ(store.latest()->generation, kCount);
        EXPECT_EQ(store.best({.name = "loss"}).front().generation, 1U);
        EXPECT_EQ(store.best({.name = "loss", .greater_is_better = true}).front().generation, 5U);
        store.pin(1);
        store.pin(1, false);
        store.remove(3);
        EXPECT_EQ(store.list().size(), kCount - 1);
        EXPECT_NO_THROW(store.collect());
    }
    CheckpointStore store = this->store(2);
    EXPECT_LE(notes_of_saves(store, 12, "00000002-step-2'"), 2U);
    look_at_others(store, 2);
    // Two are kept, and one may stay for it was read back; the stuck one is there, or has gone.
    EXPECT_LE(store.list().size(), 4U);
    EXPECT_GE(store.list().size(), 2U);
    if (GetParam().is_removable) {
        EXPECT_FALSE(fs::exists(fs::symlink_status(path_)));
    }
}

TEST_P(StuckCheckpoint, TheNewestOneCostsOnlyItself) {
    make_stuck(kCount);
    {
        CheckpointStore store = this->store(0);
        EXPECT_EQ(store.list().size(), kCount);
        look_at_others(store, kCount);
        if (GetParam().is_readable) {
            EXPECT_EQ(store.latest()->generation, kCount);
        } else if (GetParam().is_damaged) {
            EXPECT_EQ(store.latest()->generation, kCount - 1);
        } else {
            // It may be whole: an older one is no answer to what is newest.
            EXPECT_NE(test::error_of([&] { (void)store.latest(); }).system_errno(), 0);
        }
        std::vector<CheckpointInfo> skipped;
        EXPECT_EQ(store.best({.name = "loss"}, 1, &skipped).front().generation, 1U);
        EXPECT_LE(skipped.size(), GetParam().is_readable ? 0U : 1U);
        store.pin(1);
        store.pin(1, false);
        store.remove(2);
        EXPECT_EQ(store.list().size(), kCount - 1);
        EXPECT_NO_THROW(store.collect());
    }
    CheckpointStore store = this->store(2);
    EXPECT_LE(notes_of_saves(store, 12, "00000005-step-5'"), 2U);
    look_at_others(store, kCount);
    EXPECT_LE(store.list().size(), 4U);
    EXPECT_GE(store.list().size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StuckCheckpoint, ::testing::ValuesIn(kinds()),
                         [](const auto& kind) {
                             std::string name = kind.param.name;
                             std::erase_if(name, [](char c) { return !std::isalnum(c); });
                             return name;
                         });

// ---- removals ----

class StuckRemoval : public StuckCheckpoint {};

TEST_P(StuckRemoval, IsReportedOnceWithItsBytesAndTriedAgainLater) {
    make_stuck(2);
    std::uint64_t tries = 0;
    const test::Refuse refuse = *refuse_;
    *refuse_ = [&](StuckCall call, const std::string& path) {
        const int number = refuse(call, path);
        tries += number == 0 ? 0 : 1;
        return number;
    };
    CheckpointStore store = this->store(1);
    EXPECT_EQ(notes_of_saves(store, 1, "could not be removed and still takes"), 1U);
    EXPECT_EQ(notes_of_saves(store, 70, "could not be removed"), 0U);
    EXPECT_GE(tries, 6U);
    EXPECT_LE(tries, 20U);  // of 71 saves
    *refuse_ = {};
    notes_of_saves(store, kPauseMaxSaves, "");
    const std::vector<std::string> names = files_.list(folder_.path() + "/store");
    EXPECT_TRUE(std::none_of(names.begin(), names.end(), [](const std::string& name) {
        return name.find("00000002-step-2") != std::string::npos;
    }));
}

class StuckParts : public ::testing::Test {
protected:
    support::TempFolder folder_{fs::exists("/dev/shm") ? "/dev/shm" : ""};
    std::shared_ptr<test::Refuse> refuse_ = std::make_shared<test::Refuse>();
    FileSystem files_{test::make_stuck_files(refuse_)};
    std::shared_ptr<Engine> engine_ =
        std::make_shared<Engine>(EngineOptions{.backend = BackendKind::kPosix, .queue_depth = 8});
};

INSTANTIATE_TEST_SUITE_P(Kinds, StuckRemoval,
                         ::testing::Values(Kind{"Rename", kept(EBUSY, StuckCall::kRename, "")},
                                           Kind{"Remove", kept(EPERM, StuckCall::kRemove,
                                                               std::string(kFirstShard))}),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(StuckRemoval, AFileThatStaysKeepsNoOtherFileOnDisk) {
    if (GetParam().name != "Remove") {
        return;
    }
    make_stuck(2);
    CheckpointStore store = this->store(1);
    notes_of_saves(store, 2, "");
    const std::vector<std::string> left =
        files_.list(folder_.path() + "/store/.removed-00000002-step-2");
    EXPECT_THAT(left, ::testing::UnorderedElementsAre(kManifest, kFirstShard));
}

// The shards of one checkpoint in another folder of the store: their disk takes no removal, or does
// not answer for them.
TEST_F(StuckParts, CostOnlyTheirCheckpoint) {
    for (const StuckCall call : {StuckCall::kRemove, StuckCall::kOpenFolder, StuckCall::kStatus}) {
        const std::string first = folder_ / fmt::format("first{}", static_cast<int>(call));
        const std::string other = folder_ / fmt::format("other{}", static_cast<int>(call));
        CheckpointStore store(
            engine_, files_, {first, other},
            {.keep = 1, .shard_bytes = 6000, .read_back = false, .lock_wait_ms = 0});
        for (std::uint64_t number = 1; number <= 2; ++number) {
            store.save(NumberedState(number).state());
        }
        const std::vector<std::string> names = files_.list(other);
        const auto parts = std::find_if(names.begin(), names.end(), [](const std::string& name) {
            return name.starts_with("00000002");
        });
        ASSERT_NE(parts, names.end());
        const std::string stuck = *parts;
        *refuse_ = [call, stuck](StuckCall asked, const std::string& path) {
            return asked == call && path.find(stuck) != std::string::npos ? EIO : 0;
        };
        std::size_t notes = 0;
        for (std::uint64_t number = 3; number <= 10; ++number) {
            notes += store.save(NumberedState(number).state()).note.find("could not be removed") ==
                             std::string::npos
                         ? 0
                         : 1;
        }
        EXPECT_EQ(notes, 1U) << static_cast<int>(call);
        EXPECT_EQ(store.list().size(), 1U);
        EXPECT_THAT(files_.list(other), ::testing::Contains(stuck));
        *refuse_ = {};
        for (std::uint64_t number = 11; number <= 11 + kPauseMaxSaves; ++number) {
            store.save(NumberedState(number).state());
        }
        EXPECT_THAT(files_.list(other), ::testing::Not(::testing::Contains(stuck)));
    }
}

TEST(StuckRemovals, ThePauseGrowsAndEnds) {
    StuckRemovals stuck;
    const Error error(ErrorCode::kSystem, EBUSY, "rename", "/a", kNoOffset, "busy");
    std::vector<std::uint64_t> tried;
    for (std::uint64_t save = 1; save <= 100; ++save) {
        stuck.next_save();
        if (stuck.is_due("/a")) {
            tried.push_back(save);
            EXPECT_EQ(stuck.failed("/a", error, 3 << 20).empty(), tried.size() != 1);
        }
        EXPECT_TRUE(stuck.is_due("/b"));
    }
    EXPECT_EQ(tried, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 22, 38, 70}));
    const Error other(ErrorCode::kSystem, EACCES, "rename", "/a", kNoOffset, "no");
    EXPECT_THAT(stuck.failed("/a", other, 3 << 20), HasSubstr("3 MiB"));
    stuck.went("/a");
    EXPECT_TRUE(stuck.is_due("/a"));
}

TEST(StuckRemovals, ManyReportsAreCounted) {
    ReportedOnce reported;
    std::string note;
    std::vector<std::string> reports;
    for (int i = 0; i < 100; ++i) {
        reports.push_back(fmt::format("report {}", i));
    }
    reported.append(note, reports);
    EXPECT_THAT(note, HasSubstr("report 7"));
    EXPECT_THAT(note, ::testing::Not(HasSubstr("report 8")));
    EXPECT_THAT(note, HasSubstr("92 more"));
    std::string second;
    reported.append(second, reports);
    EXPECT_EQ(second, "");
}

}  // namespace
}  // namespace penstock::store
