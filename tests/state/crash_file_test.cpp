// SPDX-License-Identifier: Apache-2.0
// One file that is saved again and again under the same name, and crashes at every operation of it:
// what is found is whole, and never older than what was acknowledged. The same for protocols that
// leave something out, which must be caught.
#include "state/writing/replace.hpp"
#include "support/crash_harness.hpp"
#include "support/test_engine.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace penstock::state {
namespace {

using support::pattern;

constexpr std::uint64_t kVersions = 6;
constexpr const char* kPath = "/folder/state.bin";
constexpr const char* kTemporary = "/folder/state.bin.tmp";

std::uint64_t bytes_of(std::uint64_t version) {
    return 3000 + version * 2500;  // longer each time, and no whole blocks
}

std::vector<std::byte> content_of(std::uint64_t version) {
    return pattern(bytes_of(version), version);
}

using Save = std::function<void(test::CrashRig&, std::uint64_t version)>;

void save_by_replacement(test::CrashRig& rig, std::uint64_t version) {
    Replacement replacement(rig.files(), kPath);
    rig.engine()->write(replacement.file(), content_of(version));
    replacement.commit();
}

// As `torch.save` and many others do it: the final name, no sync.
void save_in_place(test::CrashRig& rig, std::uint64_t version) {
    File file =
        rig.files().open(kPath, {.access = Access::kWrite, .create = true, .truncate = true});
    rig.engine()->write(file, content_of(version));
}

void save_without_folder_sync(test::CrashRig& rig, std::uint64_t version) {
    File file =
        rig.files().open(kTemporary, {.access = Access::kWrite, .create = true, .truncate = true});
    rig.engine()->write(file, content_of(version));
    file.sync();
    rig.files().rename(kTemporary, kPath);
}

void save_without_file_sync(test::CrashRig& rig, std::uint64_t version) {
    File file =
        rig.files().open(kTemporary, {.access = Access::kWrite, .create = true, .truncate = true});
    rig.engine()->write(file, content_of(version));
    rig.files().rename(kTemporary, kPath);
    rig.files().sync_folder("/folder");
}

// The content of the file, or nothing when it is not there.
std::optional<std::vector<std::byte>> found_in(test::CrashRig& rig) {
    try {
        const File file = rig.files().open(kPath);
        std::vector<std::byte> bytes(file.size());
        rig.engine()->read(file, bytes);
        return bytes;
    } catch (const Error& error) {
        if (error.system_errno() != ENOENT) {
            throw;
        }
        return std::nullopt;
    }
}

std::string check_file(test::CrashRig& rig, const Save& save, const test::CrashState& state) {
    const auto found = found_in(rig);
    const auto is = [&](std::uint64_t version) {
        return version == 0 ? !found : found && *found == content_of(version);
    };
    if (!is(state.before.back()) && !is(state.after.back())) {
        for (std::uint64_t version = 0; version <= kVersions; ++version) {
            if (is(version)) {
                return fmt::format("P2: version {} is there, {} was acknowledged", version,
                                   state.before.back());
            }
        }
        return "P1: what is there is not one of the versions";
    }
    if (state.seed % 16 == 1) {
        save(rig, kVersions + 1);
        if (rig.files().list("/folder").size() != 1) {
            return "P7: the next save did not take away what was left";
        }
        rig.use(test::CrashRig::crashed(rig.disks(), state.seed));
        if (found_in(rig) != content_of(kVersions + 1)) {
            return "P7: the next save did not hold";
        }
    }
    return {};
}

test::CrashReport crash_file(const std::string& work, const Save& save, std::uint64_t states,
                             const simulation::DiskShape& shape = {}) {
    test::CrashRig rig(1, shape);
    // Also on a disk that lies, the folder is there for good.
    rig.files().make_folder("/folder");
    rig.use(test::CrashRig::settled(rig.disks()));
    test::Recording recording(rig, {0});
    recording.save_versions(kVersions, [&](std::uint64_t version) { save(rig, version); });
    return test::explore(rig, recording, work, states, [&](const test::CrashState& state) {
        return check_file(rig, save, state);
    });
}

TEST(CrashOfFile, ReplacementIsWholeAndDurableAtEveryOperation) {
    const test::CrashReport report =
        crash_file("replace", save_by_replacement, test::states_wanted() / 10);
    EXPECT_EQ(report.violations, 0U) << report.first;
    RecordProperty("states", std::to_string(report.states));
}

TEST(CrashOfFile, InPlaceIsCaught) {
    const test::CrashReport report = crash_file("in_place", save_in_place, 1000);
    EXPECT_GT(report.violations, report.states / 10) << report.states;
    EXPECT_GT(report.count("P1"), 0U) << report.first;
}

TEST(CrashOfFile, MissingFolderSyncIsCaught) {
    const test::CrashReport report = crash_file("no_folder_sync", save_without_folder_sync, 1000);
    EXPECT_GT(report.violations, report.states / 50) << report.states;
    EXPECT_GT(report.count("P2"), 0U) << report.first;
}

TEST(CrashOfFile, MissingFileSyncIsCaught) {
    const test::CrashReport report = crash_file("no_file_sync", save_without_file_sync, 1000);
    EXPECT_GT(report.violations, report.states / 50) << report.states;
    EXPECT_GT(report.count("P1"), 0U) << report.first;
}

TEST(CrashOfFile, DisksThatLieAreCaught) {
    const test::CrashReport data =
        crash_file("lies_data", save_by_replacement, 1000, {.syncs_data = false});
    EXPECT_GT(data.violations, 0U);
    const test::CrashReport names =
        crash_file("lies_names", save_by_replacement, 1000, {.syncs_names = false});
    EXPECT_GT(names.violations, 0U);
}

// EIO and ENOSPC at each operation: the save fails, or holds; the old file is there until then.
TEST(CrashOfFile, AnErrorAtEachOperationLeavesTheOldFile) {
    const auto prepare = [](test::CrashRig& rig) {
        rig.files().make_folder("/folder");
        rig.files().sync_folder("/");
        save_by_replacement(rig, 1);
    };
    const auto look = [](test::CrashRig& rig, bool failed) {
        const auto found = found_in(rig);
        EXPECT_TRUE(found == content_of(2) || (failed && found == content_of(1)));
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
            test::CrashRig after;
            after.use(test::CrashRig::crashed(rig.disks(), seed));
            const auto left = found_in(after);
            EXPECT_TRUE(left == content_of(2) || (failed && left == content_of(1))) << seed;
        }
    };
    test::fail_each_operation(
        prepare, [](test::CrashRig& rig) { save_by_replacement(rig, 2); }, look);
}

}  // namespace
}  // namespace penstock::state
