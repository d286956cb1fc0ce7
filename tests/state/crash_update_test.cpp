// SPDX-License-Identifier: Apache-2.0
// Updates in place that crash at every operation: what is read is all old or all new, never older
// than what was acknowledged; readers write nothing; the next update finishes. The same for
// protocols that leave something out, which must be caught.
#include "state/update/find_update.hpp"
#include "support/crash_harness.hpp"
#include "support/test_engine.hpp"

#include <penstock/state_file.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::state {
namespace {

using support::pattern;

constexpr std::uint64_t kVersions = 4;
constexpr std::uint64_t kTensorBytes = 6000;  // no whole sectors
const std::vector<std::string> kNames{"a", "b", "c"};

using Tensors = std::map<std::string, std::vector<std::byte>>;

// "a" and "b" change with each version, "c" does not.
Tensors tensors_of(std::uint64_t version) {
    Tensors out;
    for (std::size_t i = 0; i < kNames.size(); ++i) {
        const std::uint64_t bytes = i == 1 ? 52 : kTensorBytes;
        out[kNames[i]] = pattern(bytes, kNames[i] == "c" ? 99 : 10 * version + i);
    }
    return out;
}

std::vector<StateTensor> given(const Tensors& tensors, bool all) {
    std::vector<StateTensor> out;
    for (const auto& [name, bytes] : tensors) {
        if (all || name != "c") {
            out.push_back(
                {.name = name, .dtype = "U8", .shape = {bytes.size()}, .data = std::span(bytes)});
        }
    }
    return out;
}

struct Form {
    const char* name;
    const char* path;
    std::uint64_t shard_bytes = UINT64_MAX;
    std::size_t files = 1;
};

std::ostream& operator<<(std::ostream& out, const Form& form) {
    return out << form.name;
}

const Form kForms[] = {{"safetensors", "/folder/m.safetensors"},
                       {"pt", "/folder/m.pt"},
                       {"index", "/folder/m.safetensors.index.json", 4000, 4}};

void save(test::CrashRig& rig, const Form& form, std::uint64_t version) {
    const Tensors tensors = tensors_of(version);
    save_file(rig.engine(), form.path, {.tensors = given(tensors, true)},
              {.shard_bytes = form.shard_bytes}, rig.files());
}

void update(test::CrashRig& rig, const Form& form, std::uint64_t version) {
    const Tensors tensors = tensors_of(version);
    update_file(rig.engine(), form.path, given(tensors, false), {}, rig.files());
}

Tensors found_in(test::CrashRig& rig, const Form& form) {
    StateFile file(rig.engine(), form.path, rig.files());
    Tensors out;
    std::vector<TensorRead> reads;
    for (const TensorEntry& entry : file.table().tensors) {
        std::vector<std::byte>& bytes = out[entry.name];
        bytes.resize(entry.bytes);
        reads.push_back({.name = entry.name, .into = std::span(bytes)});
    }
    file.read(reads);
    return out;
}

std::string problems_in(test::CrashRig& rig, const Form& form) {
    StateFile file(rig.engine(), form.path, rig.files());
    const VerifiedFile verified = file.verify();
    return verified.problems.empty() ? "" : verified.problems[0].message;
}

using Change = std::function<void(test::CrashRig&, const Form&, std::uint64_t)>;

std::string check(test::CrashRig& rig, const Form& form, const test::CrashState& state) {
    const auto names = rig.files().list("/folder");
    const Tensors found = found_in(rig, form);
    if (found != tensors_of(state.before.back()) && found != tensors_of(state.after.back())) {
        return "P1: what is there is neither all old nor all new";
    }
    if (const std::string problem = problems_in(rig, form); !problem.empty()) {
        return "P2: " + problem;
    }
    if (rig.files().list("/folder") != names) {
        return "P3: a reader changed the folder";
    }
    if (state.seed % 4 != 1) {
        return {};
    }
    update(rig, form, kVersions + 1);
    if (rig.files().list("/folder").size() != form.files) {
        return "P4: the next update left something";
    }
    rig.use(test::CrashRig::crashed(rig.disks(), state.seed));
    if (found_in(rig, form) != tensors_of(kVersions + 1) || !problems_in(rig, form).empty()) {
        return "P4: the next update did not hold";
    }
    return {};
}

test::CrashReport crash(const Form& form, const Change& change, std::uint64_t states) {
    test::CrashRig rig;
    rig.files().make_folder("/folder");
    save(rig, form, 0);
    rig.use(test::CrashRig::settled(rig.disks()));
    test::Recording recording(rig, {0});
    recording.save_versions(kVersions, [&](std::uint64_t version) { change(rig, form, version); });
    return test::explore(rig, recording, form.name, states,
                         [&](const test::CrashState& state) { return check(rig, form, state); });
}

class CrashOfUpdate : public testing::TestWithParam<Form> {};

TEST_P(CrashOfUpdate, IsAllOrNothingAtEveryOperation) {
    const test::CrashReport report = crash(GetParam(), update, test::states_wanted() / 100);
    EXPECT_EQ(report.violations, 0U) << report.first;
    EXPECT_GT(report.states, 0U);
    RecordProperty("states", std::to_string(report.states));
}

// Bytes straight into the file, and a sync.
TEST_P(CrashOfUpdate, WithoutALogIsCaught) {
    const auto in_place = [](test::CrashRig& rig, const Form& form, std::uint64_t version) {
        const Tensors tensors = tensors_of(version);
        const TensorTable table = inspect(rig.engine(), form.path, rig.files());
        for (const TensorEntry& entry : table.tensors) {
            const TensorStretch& place = entry.stretches.at(0);
            File file = rig.files().open(table.files[place.file], {.access = Access::kReadWrite});
            rig.engine()->write(file, tensors.at(entry.name), place.offset);
            file.sync();
        }
    };
    const test::CrashReport report = crash(GetParam(), in_place, 500);
    EXPECT_GT(report.violations, report.states / 10);
}

// EIO and ENOSPC at each operation: all old, or all new, also after a power cut; then an update
// works.
TEST_P(CrashOfUpdate, AnErrorAtEachOperationLeavesOldOrNew) {
    const Form form = GetParam();
    const auto prepare = [&](test::CrashRig& rig) {
        rig.files().make_folder("/folder");
        rig.files().sync_folder("/");
        save(rig, form, 0);
    };
    const auto look = [&](test::CrashRig& rig, bool failed) {
        const auto is_sound = [&](test::CrashRig& there) {
            const Tensors found = found_in(there, form);
            return problems_in(there, form).empty() &&
                   (found == tensors_of(1) || (failed && found == tensors_of(0)));
        };
        EXPECT_TRUE(is_sound(rig));
        for (std::uint64_t seed = 0; seed < 2; ++seed) {
            test::CrashRig after;
            after.use(test::CrashRig::crashed(rig.disks(), seed));
            EXPECT_TRUE(is_sound(after)) << seed;
        }
        update(rig, form, 2);
        EXPECT_EQ(found_in(rig, form), tensors_of(2));
        EXPECT_EQ(rig.files().list("/folder").size(), form.files);
    };
    test::fail_each_operation(
        prepare, [&](test::CrashRig& rig) { update(rig, form, 1); }, look);
}

// An update whose log is complete, and whose disk fails then.
void interrupt(test::CrashRig& rig, const Form& form, std::uint64_t version) {
    for (std::uint64_t at = 0; found_in(rig, form) != tensors_of(version); ++at) {
        simulation::FakeDisk& disk = *rig.disks().front();
        const std::uint64_t first = disk.operations() + at;
        disk.set_operation_faults([&](const simulation::DiskOperation& operation) {
            return operation.number >= first ? EIO : 0;
        });
        ASSERT_THROW(update(rig, form, version), Error);
        disk.set_operation_faults({});
    }
    rig.use(test::CrashRig::settled(rig.disks()));
}

// A save over a file that has such a log, at every operation: all of the update, or all of the
// save, also where that is the state of before the update.
TEST_P(CrashOfUpdate, ASaveOverALogIsAllOrNothing) {
    const Form form = GetParam();
    for (const std::uint64_t saved : {0, 2}) {
        test::CrashRig rig;
        rig.files().make_folder("/folder");
        save(rig, form, 0);
        interrupt(rig, form, 1);
        test::Recording recording(rig, {1});
        recording.step([&] { save(rig, form, saved); }, [&] { return test::Present{saved}; });
        recording.finish();
        const test::CrashReport report = test::explore(
            rig, recording, form.name, 400, [&](const test::CrashState& state) -> std::string {
                const Tensors found = found_in(rig, form);
                const bool is_old = found == tensors_of(state.before.back());
                const bool is_new = found == tensors_of(state.after.back());
                return is_old || is_new ? "" : "P1: neither the update nor the save";
            });
        EXPECT_EQ(report.violations, 0U) << saved << ": " << report.first;
        rig.use(test::CrashRig::settled(recording.moments().back().disks));
        EXPECT_EQ(found_in(rig, form), tensors_of(saved));
        EXPECT_EQ(rig.files().list("/folder").size(), form.files);
    }
}

// The disk moves a sector at a time.
TEST_P(CrashOfUpdate, ShortReadsAndWritesAreContinued) {
    const Form form = GetParam();
    test::CrashRig rig;
    rig.files().make_folder("/folder");
    save(rig, form, 0);
    rig.disks().front()->set_faults(
        [](const simulation::DiskAccess&) { return simulation::Fault{.bytes_max = 512}; });
    update(rig, form, 1);
    EXPECT_EQ(found_in(rig, form), tensors_of(1));
    EXPECT_EQ(problems_in(rig, form), "");
}

// Shards of which one has the log of an update and another does not, as a reader finds them that
// opened the first before the update became valid: no mix of the two.
TEST(CrashOfUpdateOfIndex, ShardsAreReadWithOneUpdate) {
    const Form form = kForms[2];
    test::CrashRig rig;
    rig.files().make_folder("/folder");
    save(rig, form, 0);
    interrupt(rig, form, 1);
    rig.files().remove("/folder/m-00001-of-00003.safetensors.penstock-update");
    EXPECT_THROW(static_cast<void>(found_in(rig, form)), Error);
}

// A file system that takes no name as long as a temporary one says which, and by how much.
TEST(CrashOfUpdateNames, ATemporaryNameThatIsTooLongIsSaid) {
    test::CrashRig rig;
    rig.files().make_folder("/folder");
    rig.disks().front()->set_operation_faults([](const simulation::DiskOperation& operation) {
        return operation.path.ends_with(".tmp") ? ENAMETOOLONG : 0;
    });
    try {
        save(rig, kForms[0], 0);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.system_errno(), ENAMETOOLONG);
        EXPECT_NE(std::string(error.what()).find("give it a name that is 22 bytes shorter"),
                  std::string::npos)
            << error.what();
    }
    EXPECT_TRUE(rig.files().list("/folder").empty());
}

INSTANTIATE_TEST_SUITE_P(Forms, CrashOfUpdate, testing::ValuesIn(kForms),
                         [](const auto& form) { return std::string(form.param.name); });

}  // namespace
}  // namespace penstock::state
