// SPDX-License-Identifier: Apache-2.0
// Crashes of whatever writes to fake disks. Its work runs once, with a fork of the disks kept from
// before each operation; then each fork loses its power as often as there are seeds, and a check
// looks at what is left.
//
// A state has a name, "<work>:<operation>:<seed>", which a violation prints. One alone:
//
//     PENSTOCK_TEST_STATE=store:118:3 store_test --gtest_filter='*CrashOfStore.*'
#pragma once

#include "base/random.hpp"
#include "simulation/fake_disk.hpp"
#include "simulation/fake_file_system.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace penstock::test {

using Disks = std::vector<std::shared_ptr<simulation::FakeDisk>>;

/// Fake disks with an engine on them that outlives any number of crashes.
class CrashRig {
public:
    /// With several disks, paths begin with the disk's number: "/1/folder". `inline_writes`: all on
    /// the caller's thread; else the engine's threads do it.
    explicit CrashRig(std::size_t disks = 1, const simulation::DiskShape& shape = {},
                      bool inline_writes = true);

    [[nodiscard]] const std::shared_ptr<Engine>& engine() const { return engine_; }
    [[nodiscard]] const FileSystem& files() const { return files_; }
    [[nodiscard]] const Disks& disks() const { return disks_; }
    /// From here on everything happens on these.
    void use(Disks disks);
    /// Forks of the disks; crashed by `seed`, or as a killed process leaves them.
    [[nodiscard]] static Disks crashed(const Disks& disks, std::uint64_t seed);
    [[nodiscard]] static Disks killed(const Disks& disks);
    /// Forks on which all that is there now is durable, also where a disk lies about its syncs.
    [[nodiscard]] static Disks settled(const Disks& disks);

private:
    base::SeededRandom random_{1};  // names and ids are the same in each run
    std::shared_ptr<simulation::FakeFileSystem> file_system_;
    FileSystem files_;
    Disks disks_;
    std::shared_ptr<Engine> engine_;
};

/// The saves that exist, by their numbers; rising.
using Present = std::vector<std::uint64_t>;

/// Before an operation: the disks, and the step of the work that was under way.
struct Moment {
    Disks disks;
    std::string what;  ///< the operation, for people
    std::size_t step = 0;
};

/// The work, step by step, and all the moments in it. Any thread of the engine may come to one.
class Recording {
public:
    /// `before`: what is there already.
    explicit Recording(CrashRig& rig, Present before = {});
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    ~Recording();

    /// Does something; then `look`, of which no moments are kept, says what is there.
    void step(const std::function<void()>& work, const std::function<Present()>& look);
    /// A step a version, 1 to `versions`, each of which replaces the one before.
    void save_versions(std::uint64_t versions, const std::function<void(std::uint64_t)>& save);
    /// The last moment: after all.
    void finish();
    [[nodiscard]] const std::vector<Moment>& moments() const { return moments_; }
    /// The saves that were acknowledged, or found, before the step of a moment; and after it.
    [[nodiscard]] const Present& before(const Moment& moment) const {
        return present_[moment.step];
    }
    [[nodiscard]] const Present& after(const Moment& moment) const {
        return present_[moment.step + 1];
    }

private:
    void record(const simulation::DiskOperation& operation);

    CrashRig& rig_;
    std::mutex mutex_;
    bool looking_ = false;
    std::vector<Moment> moments_;
    std::vector<Present> present_;
};

/// One state as a check sees it; the rig is on its disks.
struct CrashState {
    const Present& before;
    const Present& after;
    std::uint64_t seed = 0;
};

struct CrashReport {
    std::uint64_t states = 0;
    std::uint64_t violations = 0;
    std::string first;                        ///< the first of them: its state, and what was found
    std::map<std::string, std::uint64_t> of;  ///< each promise, "P1"

    [[nodiscard]] std::uint64_t count(const std::string& promise) const {
        const auto found = of.find(promise);
        return found == of.end() ? 0 : found->second;
    }
};

/// Empty, or the promise that is broken ("P2: ...").
using CrashCheck = std::function<std::string(const CrashState&)>;

/// Each moment with seeds enough to make about `states` of them. Seed 0 is no power cut, but a
/// killed process. What the check throws is a violation too.
[[nodiscard]] CrashReport explore(CrashRig& rig, const Recording& recording,
                                  const std::string& work, std::uint64_t states,
                                  const CrashCheck& check);

/// EIO and ENOSPC at each operation of `work` in turn, on a rig as `prepare` leaves it, until there
/// is no such operation; `look` sees what is left, and whether the work failed. What is thrown has
/// to be the error.
void fail_each_operation(const std::function<void(CrashRig&)>& prepare,
                         const std::function<void(CrashRig&)>& work,
                         const std::function<void(CrashRig&, bool failed)>& look);

/// The states that a test program looks at in all: PENSTOCK_TEST_SEEDS, 100,000 when that is not
/// set.
[[nodiscard]] std::uint64_t states_wanted();

}  // namespace penstock::test
