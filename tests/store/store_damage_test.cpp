// SPDX-License-Identifier: Apache-2.0
// Damage of every kind in every file of a checkpoint: flipped bits, zeroed and swapped blocks,
// truncation, files of another generation, writes that landed elsewhere. All of it is found,
// nothing else than what was saved is ever read, and latest() falls back where it can tell.
#include "store/crash_state.hpp"
#include "store/manifest/stock_index.hpp"
#include "support/crash_harness.hpp"
#include "support/text_files.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::store {
namespace {

using Bytes = std::vector<std::byte>;
using Damage = std::function<void(Bytes&)>;

StoreOptions options_of(bool incremental) {
    StoreOptions options;
    options.shard_bytes = 12'000;
    options.incremental = incremental;
    return options;
}

/// A store with two checkpoints, of which each damage is done to a fork.
class DamagedStore : public ::testing::Test {
protected:
    DamagedStore() {
        CheckpointStore store(rig_.engine(), rig_.files(), {"/ckpt"}, options_of(false));
        old_ = store.save(NumberedState(1).state()).path;
        path_ = store.save(NumberedState(2).state()).path;
        whole_ = test::CrashRig::settled(rig_.disks());
    }
    // The manifest and the shards: the index for stock readers repeats them.
    [[nodiscard]] std::vector<std::string> files_of(const std::string& folder) {
        rig_.use(whole_);
        std::vector<std::string> paths;
        for (const std::string& name : rig_.files().list(folder)) {
            if (name.ends_with(".safetensors") || name == "manifest.json") {
                paths.push_back(fmt::format("{}/{}", folder, name));
            }
        }
        return paths;
    }
    Bytes read(const std::string& path) {
        rig_.use(whole_);
        const File file = rig_.files().open(path);
        Bytes bytes(file.size());
        rig_.engine()->read(file, bytes);
        return bytes;
    }
    // The first step that notices it: latest(), open, read or verify; "" when none does.
    std::string noticed_by() {
        CheckpointStore store(rig_.engine(), rig_.files(), {"/ckpt"}, options_of(false));
        std::vector<CheckpointInfo> skipped;
        const auto latest = store.latest(&skipped);
        if (!skipped.empty()) {
            EXPECT_FALSE(skipped[0].problem.empty());
            EXPECT_TRUE(latest && latest->path == old_);
            return "latest";
        }
        try {
            Checkpoint checkpoint(rig_.engine(), rig_.files(), path_);
            const std::string wrong = compare(checkpoint, 2);
            EXPECT_EQ(wrong, "") << "wrong data was read without an error";
            return checkpoint.verify().empty() ? "" : "verify";
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kDamaged) << error.what();
            return "read";
        }
    }
    void expect_found(const std::string& path, const std::string& what, const Damage& damage) {
        rig_.use(test::CrashRig::killed(whole_));
        Bytes before;
        Bytes after;
        ASSERT_TRUE(rig_.disks().front()->damage(path, [&](Bytes& bytes) {
            before = bytes;
            damage(bytes);
            after = bytes;
        }));
        if (before == after) {
            return;
        }
        ++done_;
        EXPECT_NE(noticed_by(), "") << what << " of " << path;
    }

    test::CrashRig rig_;
    test::Disks whole_;
    std::string old_;
    std::string path_;
    std::uint64_t done_ = 0;
};

TEST_F(DamagedStore, FlippedBitsAreFound) {
    for (const std::string& path : files_of(path_)) {
        const std::size_t size = read(path).size();
        // Every byte of the first and the last 200, where the structures are; of the rest some.
        for (std::size_t at = 0; at < size; at += at < 200 || at + 200 > size ? 1 : 61) {
            expect_found(path, fmt::format("bit {} of byte {}", at % 8, at), [&](Bytes& bytes) {
                bytes[at] ^= std::byte{static_cast<unsigned char>(1U << at % 8)};
            });
        }
    }
    EXPECT_GT(done_, 1500U);
}

TEST_F(DamagedStore, FlippedBitsOfTheIndexForStockReadersAreFound) {
    const std::string path = path_ + "/" + std::string(format::kShardIndexName);
    const std::size_t size = read(path).size();
    for (std::size_t at = 0; at < size; ++at) {
        expect_found(path, fmt::format("bit {} of byte {}", at % 8, at), [&](Bytes& bytes) {
            bytes[at] ^= std::byte{static_cast<unsigned char>(1U << at % 8)};
        });
    }
    EXPECT_EQ(done_, size);
}

TEST_F(DamagedStore, ZeroedAndSwappedBlocksAreFound) {
    constexpr std::size_t kBlock = 512;
    for (const std::string& path : files_of(path_)) {
        const std::size_t blocks = read(path).size() / kBlock;
        for (std::size_t i = 0; i < blocks; ++i) {
            const auto begin = [&](Bytes& bytes) {
                return bytes.begin() + static_cast<std::ptrdiff_t>(i * kBlock);
            };
            expect_found(path, fmt::format("zeroed block {}", i),
                         [&](Bytes& bytes) { std::fill_n(begin(bytes), kBlock, std::byte{0}); });
            const std::size_t other = (i + 1 + i * 7) % blocks;
            expect_found(path, fmt::format("blocks {} and {}", i, other), [&](Bytes& bytes) {
                std::swap_ranges(begin(bytes), begin(bytes) + kBlock,
                                 bytes.begin() + static_cast<std::ptrdiff_t>(other * kBlock));
            });
        }
    }
    EXPECT_GT(done_, 80U);
}

TEST_F(DamagedStore, TruncationAndExtensionAreFound) {
    for (const std::string& path : files_of(path_)) {
        const std::size_t size = read(path).size();
        for (const std::size_t bytes :
             {std::size_t{0}, std::size_t{1}, size / 2, size - 1, size + 1, size + 4096}) {
            expect_found(path, fmt::format("{} instead of {} bytes", bytes, size),
                         [&](Bytes& file) { file.resize(bytes); });
        }
    }
}

TEST_F(DamagedStore, AMissingFileIsFound) {
    for (const std::string& path : files_of(path_)) {
        rig_.use(test::CrashRig::killed(whole_));
        rig_.files().remove(path);
        EXPECT_EQ(noticed_by(), "latest") << path;
    }
}

// Each whole and sound by itself, of the same sizes, and yet not of one checkpoint.
TEST_F(DamagedStore, MixedGenerationsAreFound) {
    for (const std::string& path : files_of(path_)) {
        const std::string name = path.substr(path.rfind('/'));
        const Bytes other = read(old_ + name);
        expect_found(path, "the same file of the checkpoint before",
                     [&](Bytes& bytes) { bytes = other; });
    }
    const std::vector<std::string> files = files_of(path_);
    for (const std::string& path : files) {
        for (const std::string& other_path : files) {
            const Bytes other = read(other_path);
            expect_found(path, other_path + " in the place", [&](Bytes& bytes) { bytes = other; });
        }
    }
    // A tensor that never changes has the same bytes in both: it is its place that tells.
    for (const std::string& path : files) {
        const Bytes other = read(old_ + path.substr(path.rfind('/')));
        expect_found(path, "one block of the checkpoint before", [&](Bytes& bytes) {
            const std::size_t size = std::min<std::size_t>(bytes.size(), other.size());
            std::copy_n(other.begin(), size / 2, bytes.begin());
        });
    }
}

// The disk said yes to each write and put one of them elsewhere, or nowhere.
TEST_F(DamagedStore, MisdirectedWritesAreFound) {
    std::uint64_t landed = 0;
    for (std::uint64_t at = 0;; ++at) {
        rig_.use(test::CrashRig::killed(whole_));
        std::uint64_t writes = 0;
        rig_.disks().front()->set_faults(
            [&](const simulation::DiskAccess& access) -> simulation::Fault {
                if (access.op != engine::Op::kWrite || writes++ != at) {
                    return {};
                }
                ++landed;
                return {.lands_at = at % 2 == 0 ? access.offset + 512 : UINT64_MAX / 2};
            });
        CheckpointStore store(rig_.engine(), rig_.files(), {"/ckpt"}, options_of(false));
        std::string path;
        try {
            path = store.save(NumberedState(3).state()).path;
        } catch (const Error&) {  // it may notice already
            continue;
        }
        rig_.disks().front()->set_faults({});
        if (writes <= at) {
            break;
        }
        ASSERT_LT(at, 50U);
        try {
            Checkpoint checkpoint(rig_.engine(), rig_.files(), path);
            EXPECT_EQ(compare(checkpoint, 3), "") << "write " << at;
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kDamaged) << error.what();
        }
    }
    EXPECT_GT(landed, 3U);
}

// One process that goes on saving: what is to remain is looked at on disk, whatever it knew of it.
// The newest one cannot be looked at just now: that is an error, and an older one is no answer to
// what is newest, nor does it make the newest one a thing that may go.
TEST(DamagedRetention, WhatTheMachineLacksMakesNoOlderOneTheNewest) {
    for (const int number : {EMFILE, ENOMEM, EACCES}) {
        test::CrashRig rig;
        CheckpointStore store(rig.engine(), rig.files(), {"/ckpt"}, options_of(false));
        store.save(NumberedState(1).state());
        const std::string newest = store.save(NumberedState(2).state()).path;
        rig.disks().front()->set_operation_faults([&](const simulation::DiskOperation& operation) {
            const bool meant = operation.call == simulation::DiskCall::kOpen &&
                               operation.path == newest + "/manifest.json";
            return meant ? number : 0;
        });
        const auto errno_of = [](const auto& call) {
            try {
                call();
            } catch (const Error& error) {
                return error.system_errno();
            }
            return 0;
        };
        EXPECT_EQ(errno_of([&] { (void)store.latest(); }), number);
        EXPECT_EQ(errno_of([&] { store.remove(2); }), number);
        EXPECT_EQ(store.list().size(), 2U);
        rig.disks().front()->set_operation_faults({});
        EXPECT_EQ(store.latest()->generation, 2U);
    }
}

// "No checkpoint" would be a reason to begin from nothing.
TEST(NewestSound, WhereTheDiskGivesNoneBackItsErrorIsThrown) {
    test::CrashRig rig;
    CheckpointStore store(rig.engine(), rig.files(), {"/ckpt"}, options_of(false));
    store.save(NumberedState(1).state());
    store.save(NumberedState(2).state());
    rig.disks().front()->set_operation_faults([&](const simulation::DiskOperation& operation) {
        return operation.path.ends_with("manifest.json") ? EIO : 0;
    });
    std::vector<CheckpointInfo> skipped;
    const Error error = test::error_of([&] { (void)store.latest(&skipped); });
    EXPECT_EQ(error.system_errno(), EIO);
    EXPECT_EQ(skipped.size(), 2U);
}

// Damage that is noticed only by reading.
TEST(NewestSound, OneThatItsUserFindsDamagedIsSkipped) {
    test::CrashRig rig;
    CheckpointStore store(rig.engine(), rig.files(), {"/ckpt"}, options_of(false));
    store.save(NumberedState(1).state(), {.step = 7});
    store.save(NumberedState(2).state(), {.step = 8});
    store.save(NumberedState(3).state(), {.step = 7});
    std::vector<std::uint64_t> opened;
    const auto damaged_from = [&](std::uint64_t generation, ErrorCode code) {
        opened.clear();
        return [&opened, generation, code](const Checkpoint& checkpoint) {
            opened.push_back(checkpoint.info().generation);
            if (opened.back() >= generation) {
                throw Error(code, 0, "read checkpoint", "shard", kNoOffset, "no");
            }
        };
    };
    std::vector<CheckpointInfo> skipped;
    const auto found =
        store.open_newest(damaged_from(3, ErrorCode::kDamaged), std::nullopt, &skipped);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->generation, 2U);
    ASSERT_EQ(skipped.size(), 1U);
    EXPECT_EQ(skipped[0].generation, 3U);
    EXPECT_EQ(skipped[0].problem, "no");
    EXPECT_EQ(store.open_newest(damaged_from(3, ErrorCode::kDamaged), 7)->generation, 1U);
    EXPECT_EQ(opened, (std::vector<std::uint64_t>{3, 1}));
    EXPECT_FALSE(store.open_newest(damaged_from(1, ErrorCode::kDamaged)));
    EXPECT_FALSE(store.open_newest(damaged_from(9, ErrorCode::kDamaged), 9));
    EXPECT_EQ(
        test::error_of([&] { store.open_newest(damaged_from(3, ErrorCode::kCancelled)); }).reason(),
        ErrorCode::kCancelled);
    EXPECT_EQ(opened, std::vector<std::uint64_t>{3});
}

TEST(DamagedRetention, NothingSoundGoesForWhatWasDamagedSince) {
    const std::vector<std::pair<std::string, Damage>> damages = {
        {"manifest.json", [](Bytes& bytes) { bytes[bytes.size() / 2] ^= std::byte{1}; }},
        {"manifest.json", [](Bytes& bytes) { bytes.back() ^= std::byte{1}; }},
        {"manifest.json", [](Bytes& bytes) { bytes.resize(bytes.size() - 1); }},
        {"manifest.json", [](Bytes& bytes) { bytes.clear(); }},
        {"shard-00001.safetensors", [](Bytes& bytes) { bytes.pop_back(); }}};
    for (const auto& [file, damage] : damages) {
        for (std::uint32_t keep = 1; keep <= 3; ++keep) {
            SCOPED_TRACE(fmt::format("{}, keep {}", file, keep));
            test::CrashRig rig;
            StoreOptions options = options_of(false);
            options.keep = keep;
            options.read_back = false;  // or one more may stay
            CheckpointStore store(rig.engine(), rig.files(), {"/ckpt"}, options);
            std::uint64_t number = 0;
            for (std::uint32_t i = 0; i < keep; ++i) {
                store.save(NumberedState(++number).state());
            }
            // The newest is damaged; the next save is one sound one, and keep - 1 older ones stay.
            const std::string path = store.latest()->path + "/" + file;
            ASSERT_TRUE(rig.disks().front()->damage(path, damage));
            std::string note = store.save(NumberedState(++number).state()).note;
            std::uint32_t whole = 0;
            for (const CheckpointInfo& info : store.list()) {
                whole += info.problem.empty() ? 1 : 0;
            }
            EXPECT_EQ(whole, keep);
            // A damaged checkpoint is removed when enough sound ones are newer, unless its manifest
            // does not say any more which store saved it.
            for (std::uint32_t i = 0; i < keep; ++i) {
                note += store.save(NumberedState(++number).state()).note;
            }
            const bool is_left = file == "manifest.json";
            EXPECT_EQ(store.list().size(), keep + (is_left ? 1 : 0));
            EXPECT_EQ(store.list().front().problem.empty(), !is_left);
            EXPECT_EQ(note.find("its manifest cannot be read") != std::string::npos, is_left);
        }
    }
}

// The folder of the last checkpoint has another one in it now: a backup that was copied back.
TEST(DamagedRetention, WhatStandsInThePlaceOfTheLastCheckpointIsReadAnew) {
    test::CrashRig rig;
    const FileSystem& files = rig.files();
    StoreOptions options = options_of(true);
    options.keep = 1;
    for (const std::uint64_t other : {1, 2, 7}) {
        const std::string folder = fmt::format("/ckpt{}", other);
        const std::string backup = fmt::format("/bak{}", other);
        CheckpointStore store(rig.engine(), files, {folder}, options);
        const std::string to = store.save(NumberedState(1).state()).path;
        files.make_folder(backup);
        files.link(folder + "/.store", backup + "/.store");
        const std::string from = CheckpointStore(rig.engine(), files, {backup}, options)
                                     .save(NumberedState(other).state())
                                     .path;
        for (const std::string& name : files.list(to)) {
            files.remove(to + "/" + name);
        }
        for (const std::string& name : files.list(from)) {
            Bytes bytes(files.open(from + "/" + name).size());
            rig.engine()->read(files.open(from + "/" + name), bytes);
            rig.engine()->write(
                files.open(to + "/" + name, {.access = Access::kWrite, .create = true}), bytes);
            files.set_modified(to + "/" + name, files.status(from + "/" + name).modified_ns);
        }
        const CheckpointInfo info = store.save(NumberedState(1).state());
        EXPECT_EQ(store.list().size(), 1U);
        Checkpoint checkpoint(rig.engine(), files, info.path);
        EXPECT_TRUE(checkpoint.verify().empty());
        EXPECT_EQ(compare(checkpoint, 1), "");
        // Shards of the same state from there are as good as the store's own.
        EXPECT_EQ(info.linked_shards == info.shards, other == 1);
    }
}

// Another program wrote to a shard, which kept its size.
TEST(DamagedLink, WhatWasEditedSinceIsWrittenAgain) {
    for (const bool same_process : {true, false}) {
        for (std::uint64_t at : {std::uint64_t{0}, std::uint64_t{9000}, UINT64_MAX}) {
            SCOPED_TRACE(fmt::format("{}, at {}", same_process, at));
            test::CrashRig rig;
            const FileSystem& files = rig.files();
            std::optional<CheckpointStore> store;
            const auto open = [&] {
                store.reset();
                store.emplace(rig.engine(), files, std::vector<std::string>{"/ckpt"},
                              options_of(true));
            };
            open();
            store->save(NumberedState(1).state());
            const CheckpointInfo before = store->save(NumberedState(1).state());
            ASSERT_EQ(before.linked_shards, before.shards);
            const std::string path = before.path + "/shard-00001.safetensors";
            Bytes bytes(8, std::byte{0x5a});
            const std::uint64_t end = files.status(path).bytes - bytes.size();
            rig.engine()->write(files.open(path, {.access = Access::kWrite}), bytes,
                                std::min(at, end));
            if (!same_process) {
                open();
            }
            const CheckpointInfo info = store->save(NumberedState(1).state());
            EXPECT_EQ(info.linked_shards, info.shards - 1);
            EXPECT_NE(info.note.find(path), std::string::npos) << info.note;
            Checkpoint checkpoint(rig.engine(), files, info.path);
            EXPECT_TRUE(checkpoint.verify().empty());
            EXPECT_EQ(compare(checkpoint, 1), "");
            // From there on it is linked again.
            const CheckpointInfo next = store->save(NumberedState(1).state());
            EXPECT_EQ(next.linked_shards, next.shards);
            EXPECT_EQ(next.note, "");
        }
    }
}

// Rot in a shard that later checkpoints link is found in each of them.
TEST(DamagedLink, IsFoundInEveryCheckpointThatHasIt) {
    test::CrashRig rig;
    CheckpointStore store(rig.engine(), rig.files(), {"/ckpt"}, options_of(true));
    std::vector<CheckpointInfo> saved;
    for (std::uint64_t number = 1; number <= 3; ++number) {
        saved.push_back(store.save(NumberedState(number).state()));
    }
    ASSERT_GT(saved.back().linked_shards, 0U);
    std::uint64_t found = 0;
    for (const std::string& name : rig.files().list(saved.back().path)) {
        const std::string path = saved.back().path + "/" + name;
        if (!name.ends_with(".safetensors") || rig.files().status(path).links < 2) {
            continue;
        }
        ASSERT_TRUE(rig.disks().front()->damage(
            path, [](Bytes& bytes) { bytes[bytes.size() - 1] ^= std::byte{4}; }));
        Checkpoint checkpoint(rig.engine(), rig.files(), saved.back().path);
        EXPECT_FALSE(checkpoint.verify().empty());
        ++found;
    }
    EXPECT_GT(found, 0U);
}

}  // namespace
}  // namespace penstock::store
