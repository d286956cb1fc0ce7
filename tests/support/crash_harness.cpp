// SPDX-License-Identifier: Apache-2.0
#include "support/crash_harness.hpp"

#include "base/clock.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <utility>

namespace penstock::test {

namespace {

Disks make_disks(std::size_t count, const simulation::DiskShape& shape) {
    Disks disks;
    for (std::uint32_t i = 0; i < count; ++i) {
        disks.push_back(std::make_shared<simulation::FakeDisk>(DeviceId{240, i}, shape,
                                                               simulation::DiskModel{}, i + 1));
    }
    return disks;
}

EngineOptions engine_options(bool inline_writes) {
    EngineOptions options;
    // The kernel's asynchronous backends want descriptors, which fake files do not have: everything
    // inline, or POSIX threads.
    options.backend = inline_writes ? BackendKind::kAuto : BackendKind::kPosix;
    options.block_bytes = inline_writes ? 4 << 20 : 64 << 10;
    options.inline_bytes_max = inline_writes ? 4 << 20 : 0;
    options.in_flight_bytes = 8 << 20;
    return options;
}

const char* name_of(simulation::DiskCall call) {
    using simulation::DiskCall;
    switch (call) {
        case DiskCall::kAccess:
            return "read or write";
        case DiskCall::kOpen:
            return "open";
        case DiskCall::kTruncate:
            return "truncate";
        case DiskCall::kPreallocate:
            return "preallocate";
        case DiskCall::kSync:
            return "sync";
        case DiskCall::kSyncFolder:
            return "sync folder";
        case DiskCall::kRename:
            return "rename";
        case DiskCall::kExchange:
            return "exchange";
        case DiskCall::kLink:
            return "link";
        case DiskCall::kSymbolicLink:
            return "symbolic link";
        case DiskCall::kRemove:
            return "remove";
        case DiskCall::kMakeFolder:
            return "make folder";
        case DiskCall::kLock:
            return "lock";
        case DiskCall::kOpenFolder:
            return "open folder";
    }
    return "?";
}

// PENSTOCK_TEST_STATE is for this state, or for none.
bool is_asked_for(const std::string& name) {
    static const char* const asked = std::getenv("PENSTOCK_TEST_STATE");
    return asked == nullptr || name == asked;
}

}  // namespace

CrashRig::CrashRig(std::size_t disks, const simulation::DiskShape& shape, bool inline_writes)
    : file_system_(std::make_shared<simulation::FakeFileSystem>(
          make_disks(disks, shape), std::make_shared<base::SteadyClock>())),
      files_(file_system_) {
    use(make_disks(disks, shape));
    engine_ = std::make_shared<Engine>(engine_options(inline_writes), files_);
}

void CrashRig::use(Disks disks) {
    file_system_->use(disks);
    disks_ = std::move(disks);
}

Disks CrashRig::killed(const Disks& disks) {
    Disks forks;
    for (const auto& disk : disks) {
        forks.push_back(disk->fork(1));
    }
    return forks;
}

Disks CrashRig::settled(const Disks& disks) {
    Disks forks = killed(disks);
    for (const auto& disk : forks) {
        disk->settle();
    }
    return forks;
}

Disks CrashRig::crashed(const Disks& disks, std::uint64_t seed) {
    Disks forks;
    for (std::size_t i = 0; i < disks.size(); ++i) {
        forks.push_back(disks[i]->fork(seed * disks.size() + i));
        forks.back()->crash();
    }
    return forks;
}

Recording::Recording(CrashRig& rig, Present before) : rig_(rig) {
    present_.push_back(std::move(before));
    for (const auto& disk : rig_.disks()) {
        disk->set_watch([this](const simulation::DiskOperation& operation) { record(operation); });
    }
}

Recording::~Recording() {
    for (const auto& disk : rig_.disks()) {
        disk->set_watch({});
    }
}

void Recording::record(const simulation::DiskOperation& operation) {
    const std::lock_guard lock(mutex_);
    if (looking_) {
        return;
    }
    moments_.push_back({CrashRig::killed(rig_.disks()),
                        fmt::format("{} {}", name_of(operation.call), operation.path),
                        present_.size() - 1});
}

void Recording::step(const std::function<void()>& work, const std::function<Present()>& look) {
    work();
    {
        const std::lock_guard lock(mutex_);
        looking_ = true;
    }
    Present present = look();
    const std::lock_guard lock(mutex_);
    present_.push_back(std::move(present));
    looking_ = false;
}

void Recording::save_versions(std::uint64_t versions,
                              const std::function<void(std::uint64_t)>& save) {
    for (std::uint64_t version = 1; version <= versions; ++version) {
        step([&] { save(version); }, [&] { return Present{version}; });
    }
    finish();
}

void Recording::finish() {
    const std::lock_guard lock(mutex_);
    moments_.push_back({CrashRig::killed(rig_.disks()), "the end", present_.size() - 1});
    present_.push_back(present_.back());
}

CrashReport explore(CrashRig& rig, const Recording& recording, const std::string& work,
                    std::uint64_t states, const CrashCheck& check) {
    CrashReport report;
    const std::vector<Moment>& moments = recording.moments();
    const std::uint64_t seeds = std::max<std::uint64_t>(states / moments.size(), 2);
    for (std::size_t at = 0; at < moments.size(); ++at) {
        const Moment& moment = moments[at];
        for (std::uint64_t seed = 0; seed < seeds; ++seed) {
            const std::string name = fmt::format("{}:{}:{}", work, at, seed);
            if (!is_asked_for(name)) {
                continue;
            }
            rig.use(seed == 0 ? CrashRig::killed(moment.disks)
                              : CrashRig::crashed(moment.disks, seed));
            std::string found;
            try {
                found = check({recording.before(moment), recording.after(moment), seed});
            } catch (const std::exception& error) {
                found = fmt::format("thrown: {}", error.what());
            }
            ++report.states;
            if (found.empty()) {
                continue;
            }
            ++report.of[found.substr(0, found.find(':'))];
            if (report.violations++ == 0) {
                report.first = fmt::format("PENSTOCK_TEST_STATE={} (before operation {}, {}): {}",
                                           name, at, moment.what, found);
            }
        }
    }
    return report;
}

void fail_each_operation(const std::function<void(CrashRig&)>& prepare,
                         const std::function<void(CrashRig&)>& work,
                         const std::function<void(CrashRig&, bool failed)>& look) {
    constexpr std::uint64_t kOperationsMax = 500;
    for (const int system_errno : {EIO, ENOSPC}) {
        bool struck = true;
        for (std::uint64_t at = 0; struck; ++at) {
            SCOPED_TRACE(fmt::format("errno {} at operation {}", system_errno, at));
            CrashRig rig;
            prepare(rig);
            simulation::FakeDisk& disk = *rig.disks().front();
            const std::uint64_t base = disk.operations();
            struck = false;
            disk.set_operation_faults([&](const simulation::DiskOperation& operation) {
                const bool now = operation.number == base + at;
                struck = struck || now;
                return now ? system_errno : 0;
            });
            bool failed = false;
            try {
                work(rig);
            } catch (const Error& error) {
                failed = true;
                EXPECT_EQ(error.system_errno(), system_errno);
            }
            EXPECT_TRUE(struck || !failed);
            disk.set_operation_faults({});
            look(rig, failed);
            ASSERT_LT(at, kOperationsMax);
        }
    }
}

std::uint64_t states_wanted() {
    const char* text = std::getenv("PENSTOCK_TEST_SEEDS");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 100'000;
}

}  // namespace penstock::test
