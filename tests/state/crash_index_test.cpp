// SPDX-License-Identifier: Apache-2.0
// An index of shards that is saved again and again under one name, and crashes at every operation:
// who reads it finds one state whole, never older than what was acknowledged; what is not its own
// stays; and the next save takes away what was left.
#include "format/safetensors.hpp"
#include "format/shard_index.hpp"
#include "state/index/index_writer.hpp"
#include "state/writing/replace.hpp"
#include "support/crash_harness.hpp"
#include "support/test_engine.hpp"

#include <penstock/state_file.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::state {
namespace {

using support::pattern;

constexpr std::uint64_t kVersions = 4;
constexpr const char* kFolder = "/folder";
constexpr const char* kIndex = "/folder/model.safetensors.index.json";
constexpr std::uint64_t kShardRoom = 9000;
// Not its own: called like a shard of it, a shard that another index names, and neither.
const std::set<std::string> kOthers{
    "best.safetensors.index.json", "model-00001-of-00001.safetensors",
    "model-00007-of-00009.safetensors", "model.0123abcd-00001-of-00002.safetensors",
    "notes.safetensors"};

using State = std::map<std::string, std::vector<std::byte>>;

// As many shards as the number of the version, and one more.
State state_of(std::uint64_t version) {
    State state;
    for (std::uint64_t i = 0; i <= version; ++i) {
        state[fmt::format("tensor.{}", i)] = pattern(5000 + 100 * version, version * 100 + i);
    }
    return state;
}

NamedTensors tensors_of(const State& state) {
    NamedTensors out;
    for (const auto& [name, bytes] : state) {
        out.tensors.push_back({name, tensor::ElementType::kU8, {bytes.size()}, 0, 0});
        out.payloads.emplace_back(bytes);
    }
    return out;
}

using Save = std::function<void(test::CrashRig&, std::uint64_t version)>;

void save(test::CrashRig& rig, std::uint64_t version) {
    const State state = state_of(version);
    save_index(*rig.engine(), rig.files(), kIndex, tensors_of(state), {.shard_bytes = kShardRoom});
}

// Tensors that come one after another, so that shards are cut as they come.
void save_stream(test::CrashRig& rig, std::uint64_t version) {
    const State state = state_of(version);
    TensorStream stream;
    stream.next = [&state, at = state.begin()]() mutable -> std::optional<StateTensor> {
        if (at == state.end()) {
            return std::nullopt;
        }
        const auto& [name, bytes] = *at++;
        return StateTensor{name, "U8", {bytes.size()}, bytes};
    };
    save_file(rig.engine(), kIndex, stream, {.shard_bytes = kShardRoom}, rig.files());
}

std::vector<std::byte> read_file(test::CrashRig& rig, const std::string& name) {
    const File file = rig.files().open(fmt::format("{}/{}", kFolder, name));
    std::vector<std::byte> bytes(file.size());
    rig.engine()->read(file, bytes);
    return bytes;
}

void put_file(test::CrashRig& rig, const std::string& name, const std::string& text) {
    Replacement file(rig.files(), fmt::format("{}/{}", kFolder, name));
    rig.engine()->write(file.file(), std::as_bytes(std::span(text)));
    file.commit();
}

void put_others(test::CrashRig& rig) {
    for (const std::string& name : kOthers) {
        put_file(rig, name,
                 name.ends_with(".json")
                     ? R"({"weight_map": {"x": "model-00001-of-00001.safetensors"}})"
                     : name);
    }
}

std::optional<format::ShardIndex> index_in(test::CrashRig& rig) {
    try {
        const auto text = read_file(rig, "model.safetensors.index.json");
        auto index =
            format::parse_shard_index({reinterpret_cast<const char*>(text.data()), text.size()});
        if (!index) {
            throw std::runtime_error(index.error().message);
        }
        return *index;
    } catch (const Error& error) {
        if (error.system_errno() != ENOENT) {
            throw;
        }
        return std::nullopt;
    }
}

// Nothing where there is no index. Throws for one that is not whole.
std::optional<State> found_in(test::CrashRig& rig) {
    const auto index = index_in(rig);
    if (!index) {
        return std::nullopt;
    }
    State found;
    for (const auto& [tensor, name] : index->weight_map) {
        const std::vector<std::byte> shard = read_file(rig, name);
        const auto header = format::safetensors::read_header(shard, shard.size());
        if (!header) {
            throw std::runtime_error(fmt::format("{}: {}", name, header.error().message));
        }
        for (const auto& t : header->tensors) {
            if (t.name == tensor) {
                const auto data = std::span(shard).subspan(header->data_begin);
                found[tensor].assign(data.begin() + static_cast<std::ptrdiff_t>(t.begin),
                                     data.begin() + static_cast<std::ptrdiff_t>(t.end));
            }
        }
    }
    return found;
}

bool is(const std::optional<State>& found, std::uint64_t version) {
    return version == 0 ? !found : found && *found == state_of(version);
}

std::string changed_others(test::CrashRig& rig) {
    for (const std::string& name : kOthers) {
        const auto bytes = read_file(rig, name);
        const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        if (!name.ends_with(".json") && text != name) {
            return "P3: it changed " + name;
        }
    }
    return {};
}

// The index, its shards, and what was there before.
std::string left_over(test::CrashRig& rig) {
    std::set<std::string> expected = kOthers;
    expected.insert("model.safetensors.index.json");
    const auto index = index_in(rig);
    for (const auto& [tensor, name] : index.value().weight_map) {
        expected.insert(name);
    }
    for (const std::string& name : rig.files().list(kFolder)) {
        if (!expected.contains(name)) {
            return "P7: the next save left " + name;
        }
    }
    return {};
}

std::string check(test::CrashRig& rig, const Save& save_next, const test::CrashState& state) {
    const auto found = found_in(rig);
    if (!is(found, state.before.back()) && !is(found, state.after.back())) {
        return "P1: neither the state before nor the one after is there";
    }
    if (std::string changed = changed_others(rig); !changed.empty()) {
        return changed;
    }
    if (state.seed % 8 != 1) {
        return {};
    }
    save_next(rig, kVersions + 1);
    if (std::string left = left_over(rig); !left.empty()) {
        return left;
    }
    rig.use(test::CrashRig::crashed(rig.disks(), state.seed));
    if (!is(found_in(rig), kVersions + 1)) {
        return "P7: the next save did not hold";
    }
    return changed_others(rig);
}

void prepare(test::CrashRig& rig) {
    rig.files().make_folder(kFolder);
    put_others(rig);
    rig.use(test::CrashRig::settled(rig.disks()));
}

test::CrashReport crash_index(const std::string& work, std::uint64_t states,
                              const simulation::DiskShape& shape = {},
                              const Save& save_version = save) {
    test::CrashRig rig(1, shape);
    prepare(rig);
    test::Recording recording(rig, {0});
    recording.save_versions(kVersions, [&](std::uint64_t version) { save_version(rig, version); });
    return test::explore(rig, recording, work, states, [&](const test::CrashState& state) {
        return check(rig, save_version, state);
    });
}

TEST(CrashOfIndex, IsWholeAndDurableAndLeavesOthersAtEveryOperation) {
    const test::CrashReport report = crash_index("index", test::states_wanted() / 10);
    EXPECT_EQ(report.violations, 0U) << report.first;
    RecordProperty("states", std::to_string(report.states));
}

TEST(CrashOfIndex, OfAStreamIsWholeAndDurableAndLeavesOthersAtEveryOperation) {
    const test::CrashReport report =
        crash_index("index_stream", test::states_wanted() / 40, {}, save_stream);
    EXPECT_EQ(report.violations, 0U) << report.first;
    RecordProperty("states", std::to_string(report.states));
}

TEST(CrashOfIndex, DisksThatLieAreCaught) {
    EXPECT_GT(crash_index("index_lies_data", 1000, {.syncs_data = false}).violations, 0U);
    EXPECT_GT(crash_index("index_lies_names", 1000, {.syncs_names = false}).violations, 0U);
}

// EIO and ENOSPC at each operation: the save fails, or holds; the one before is there until then.
void expect_old_after_each_error(const Save& save_version) {
    const auto prepare_saved = [&](test::CrashRig& rig) {
        prepare(rig);
        save_version(rig, 1);
    };
    const auto look = [&](test::CrashRig& rig, bool failed) {
        const auto found = found_in(rig);
        EXPECT_TRUE(is(found, 2) || (failed && is(found, 1)));
        EXPECT_EQ(changed_others(rig), "");
        for (std::uint64_t seed = 0; seed < 5; ++seed) {
            test::CrashRig after;
            after.use(test::CrashRig::crashed(rig.disks(), seed));
            const auto left = found_in(after);
            EXPECT_TRUE(is(left, 2) || (failed && is(left, 1))) << seed;
        }
        save_version(rig, 3);
        EXPECT_TRUE(is(found_in(rig), 3));
        EXPECT_EQ(left_over(rig), "");
    };
    test::fail_each_operation(
        prepare_saved, [&](test::CrashRig& rig) { save_version(rig, 2); }, look);
}

TEST(CrashOfIndex, AnErrorAtEachOperationLeavesTheOldState) {
    expect_old_after_each_error(save);
}

TEST(CrashOfIndex, OfAStreamAnErrorAtEachOperationLeavesTheOldState) {
    expect_old_after_each_error(save_stream);
}

}  // namespace
}  // namespace penstock::state
