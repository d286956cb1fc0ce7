// SPDX-License-Identifier: Apache-2.0
// A feature file that is written again and again under one name, and crashes at every operation:
// who opens it finds one version whole, never older than what was acknowledged, and the next write
// takes away what was left.
#include "support/crash_harness.hpp"
#include "support/test_engine.hpp"

#include <penstock/features.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace penstock::features {
namespace {

using support::pattern;
using test::CrashRig;

constexpr std::uint64_t kVersions = 3;
constexpr const char* kPath = "/f/g.features";

std::vector<std::byte> rows_of(std::uint64_t version) {
    return pattern(200 * 512 + version * 5120, version);
}

void write(CrashRig& rig, std::uint64_t version, const std::vector<std::string>& folders) {
    FeatureWriter writer(rig.engine(), kPath, {.folders = folders}, rig.files());
    writer.begin_table({"a", "U8", {512}});
    writer.append(rows_of(version));
    writer.commit();
}

// Its number; nothing where there is no file. Throws for one that is not whole.
std::optional<std::uint64_t> version_in(CrashRig& rig) {
    try {
        static_cast<void>(rig.files().status(kPath));
    } catch (const Error& error) {
        if (error.system_errno() != ENOENT) {
            throw;
        }
        return std::nullopt;
    }
    if (!verify_features(rig.engine(), kPath, {}, rig.files()).empty()) {
        throw std::runtime_error("its rows are damaged");
    }
    const FeatureStore store = FeatureStore::open(rig.engine(), kPath, {}, rig.files());
    const std::uint64_t rows = store.tables().at(0).rows;
    std::vector<std::uint64_t> ids(rows);
    for (std::uint64_t i = 0; i < rows; ++i) {
        ids[i] = i;
    }
    std::vector<std::byte> out(rows * 512);
    store.gather(0, ids, out);
    for (std::uint64_t version = 1; version <= kVersions + 1; ++version) {
        if (out == rows_of(version)) {
            return version;
        }
    }
    throw std::runtime_error("its rows are those of no version");
}

class CrashOfFeatures : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Features, CrashOfFeatures, testing::Bool(),
                         [](const auto& made) { return made.param ? "Striped" : "OneFile"; });

TEST_P(CrashOfFeatures, FindsOneVersionWhole) {
    CrashRig rig;
    for (const char* const folder : {"/f", "/x", "/y"}) {
        rig.files().make_folder(folder);
        rig.files().sync_folder("/");
    }
    rig.use(CrashRig::settled(rig.disks()));
    const std::vector<std::string> folders =
        GetParam() ? std::vector<std::string>{"/x", "/y"} : std::vector<std::string>();
    test::Recording recording(rig);
    recording.save_versions(kVersions,
                            [&](std::uint64_t version) { write(rig, version, folders); });
    const test::CrashReport report = test::explore(
        rig, recording, GetParam() ? "striped_features" : "features", test::states_wanted() / 400,
        [&](const test::CrashState& state) -> std::string {
            const auto found = version_in(rig);
            const std::uint64_t least = state.before.empty() ? 0 : state.before.back();
            const std::uint64_t most = state.after.empty() ? 0 : state.after.back();
            if (found.value_or(0) < least) {
                return fmt::format("P1: version {} where {} was acknowledged", found.value_or(0),
                                   least);
            }
            if (found.value_or(0) > most) {
                return fmt::format("P2: version {}, and {} was the last", *found, most);
            }
            if (state.seed % 8 == 0) {
                write(rig, kVersions + 1, folders);
                if (version_in(rig) != kVersions + 1) {
                    return "P3: the next write is not there";
                }
                for (const char* const folder : {"/f", "/x", "/y"}) {
                    const std::size_t expected = folder[1] == 'f' || GetParam() ? 1 : 0;
                    if (rig.files().list(folder).size() != expected) {
                        return fmt::format("P4: the next write left files in {}", folder);
                    }
                }
            }
            return "";
        });
    EXPECT_EQ(report.violations, 0U) << report.first;
    EXPECT_GT(report.states, 50U);
}

}  // namespace
}  // namespace penstock::features
