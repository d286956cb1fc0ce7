// SPDX-License-Identifier: Apache-2.0
// A store whose disk refuses: EIO and ENOSPC at every operation of a save, once and from then on.
// A save that fails leaves everything as it was; one that succeeds is there after a power cut.
#include "store/crash_state.hpp"
#include "support/crash_harness.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace penstock::store {
namespace {

using simulation::DiskCall;
using simulation::DiskOperation;

StoreOptions options_keeping(std::uint32_t keep) {
    StoreOptions options;
    options.keep = keep;
    options.shard_bytes = 6000;
    options.lock_wait_ms = 0;
    return options;
}

struct Trouble {
    int system_errno;
    bool stays;  ///< all later operations fail too
};

/// A store with two checkpoints, and a third save into which trouble comes.
class TroubledSave : public ::testing::TestWithParam<Trouble> {
protected:
    CheckpointStore open(test::CrashRig& rig) const {
        return {rig.engine(), rig.files(), {"/ckpt"}, options_keeping(2)};
    }
    static std::string what_is_newest(test::CrashRig& rig, CheckpointStore& store,
                                      std::uint64_t number, std::uint64_t generation) {
        const auto latest = store.latest();
        if (!latest || latest->generation != generation) {
            return fmt::format("the latest is generation {}, not {}",
                               latest ? latest->generation : 0, generation);
        }
        Checkpoint checkpoint(rig.engine(), rig.files(), latest->path);
        return compare(checkpoint, number);
    }
    // False when there is no operation number `at` in the save.
    void save_with_trouble(std::uint64_t at, bool& struck, bool& failed) {
        test::CrashRig rig;
        auto& disk = *rig.disks().front();
        {
            CheckpointStore store = open(rig);
            store.save(NumberedState(1).state());
            store.save(NumberedState(2).state());
        }
        CheckpointStore store = open(rig);
        const std::uint64_t base = disk.operations();
        struck = false;
        disk.set_operation_faults([&](const DiskOperation& operation) {
            const std::uint64_t number = operation.number - base;
            const bool now = GetParam().stays ? number >= at : number == at;
            struck = struck || now;
            return now ? GetParam().system_errno : 0;
        });
        failed = false;
        try {
            store.save(NumberedState(3).state());
        } catch (const Error& error) {
            // A checkpoint that cannot be read back is there.
            failed = error.reason() != ErrorCode::kDamaged;
            EXPECT_FALSE(std::string(error.what()).empty());
        }
        disk.set_operation_faults({});
        look_at_power_cuts(rig, failed);
        const std::string third = what_is_newest(rig, store, 3, 3);
        const std::string second = what_is_newest(rig, store, 2, 2);
        // A disk that refuses everything cannot take the new name back either, when it is there.
        EXPECT_TRUE(!failed ? third.empty() : second.empty() || (GetParam().stays && third.empty()))
            << (failed ? second : third);
        const auto next = store.save(NumberedState(4).state());  // the store goes on
        EXPECT_EQ(what_is_newest(rig, store, 4, next.generation), "");
        for (const std::string& name : rig.files().list("/ckpt")) {
            EXPECT_FALSE(name.starts_with(".unfinished") || name.starts_with(".removed")) << name;
        }
    }
    // A failed save may be there after all, or not; whole in either case.
    void look_at_power_cuts(const test::CrashRig& rig, bool failed) {
        for (std::uint64_t seed = 0; seed < 8; ++seed) {
            after_.use(test::CrashRig::crashed(rig.disks(), seed));
            CheckpointStore store = open(after_);
            const std::string third = what_is_newest(after_, store, 3, 3);
            EXPECT_TRUE(third.empty() || (failed && what_is_newest(after_, store, 2, 2).empty()))
                << "seed " << seed << ": " << third;
            ++states_;
        }
    }
    test::CrashRig after_;  ///< an engine is dearer than what it is asked here
    std::uint64_t states_ = 0;
};

TEST_P(TroubledSave, FailsWithEverythingAsItWasOrHolds) {
    bool struck = true;
    std::uint64_t failures = 0;
    for (std::uint64_t at = 0; struck; ++at) {
        SCOPED_TRACE(fmt::format("operation {} of the save", at));
        bool failed = false;
        save_with_trouble(at, struck, failed);
        EXPECT_TRUE(struck || !failed);
        failures += failed ? 1 : 0;
        ASSERT_LT(at, 500U);
        ASSERT_FALSE(HasFailure());
    }
    EXPECT_GT(failures, 10U);
    RecordProperty("states", std::to_string(states_));
}

INSTANTIATE_TEST_SUITE_P(Errors, TroubledSave,
                         ::testing::Values(Trouble{EIO, false}, Trouble{EIO, true},
                                           Trouble{ENOSPC, false}, Trouble{ENOSPC, true}),
                         [](const auto& trouble) {
                             return std::string(trouble.param.system_errno == EIO ? "eio"
                                                                                  : "enospc") +
                                    (trouble.param.stays ? "_stays" : "_once");
                         });

// The disk has lost what the sync should have made durable: that save is never acknowledged, and a
// sync that is said to be fine afterwards does not fix it.
TEST(FailedSync, FailsTheSaveForGood) {
    test::CrashRig after;
    for (const DiskCall call : {DiskCall::kSync, DiskCall::kSyncFolder}) {
        std::uint64_t syncs = 0;
        for (std::uint64_t at = 0; at <= syncs; ++at) {
            test::CrashRig rig;
            CheckpointStore store(rig.engine(), rig.files(), {"/ckpt"}, options_keeping(2));
            store.save(NumberedState(1).state());
            syncs = 0;
            bool struck = false;
            rig.disks().front()->set_operation_faults([&](const DiskOperation& operation) {
                if (operation.call != call) {
                    return 0;
                }
                struck = struck || syncs == at;
                return syncs++ == at ? EIO : 0;
            });
            bool failed = false;
            try {
                store.save(NumberedState(2).state());
            } catch (const Error&) {
                failed = true;
            }
            if (!struck) {
                break;
            }
            // Folders are synced once more when older checkpoints have gone, which nobody waits
            // for.
            EXPECT_TRUE(failed || call == DiskCall::kSyncFolder) << "sync " << at;
            rig.disks().front()->set_operation_faults({});
            for (std::uint64_t seed = 0; seed < 20; ++seed) {
                after.use(test::CrashRig::crashed(rig.disks(), seed));
                CheckpointStore left(after.engine(), after.files(), {"/ckpt"}, options_keeping(2));
                const auto latest = left.latest();
                ASSERT_TRUE(latest);
                EXPECT_TRUE(failed || latest->generation == 2);
                Checkpoint checkpoint(after.engine(), after.files(), latest->path);
                EXPECT_EQ(compare(checkpoint, latest->generation), "");
            }
        }
        EXPECT_GT(syncs, 0U);
    }
}

TEST(FullDisk, IsToldBeforeTheFirstByteAndNothingIsLost) {
    test::CrashRig rig(1, {.capacity_bytes = 1'000'000});
    CheckpointStore store(rig.engine(), rig.files(), {"/ckpt"}, options_keeping(1));
    bool full = false;
    std::uint64_t saved = 0;
    // Each is larger than the last, until two of them do not fit.
    for (std::uint64_t scale = 1; !full && scale < 60; ++scale) {
        const std::uint64_t before = rig.disks().front()->space().free_bytes;
        try {
            store.save(NumberedState(scale, scale).state());
            saved = scale;
        } catch (const Error& error) {
            full = true;
            EXPECT_EQ(error.system_errno(), ENOSPC) << error.what();
            EXPECT_EQ(rig.disks().front()->space().free_bytes, before);
        }
    }
    EXPECT_TRUE(full);
    ASSERT_GT(saved, 0U);
    Checkpoint checkpoint(rig.engine(), rig.files(), store.latest()->path);
    EXPECT_EQ(compare(checkpoint, saved, saved), "");
}

// An unfinished save of another process is not touched while that process lives.
TEST(UnfinishedOfTheLiving, IsNotCollected) {
    test::CrashRig rig;
    CheckpointStore owner(rig.engine(), rig.files(), {"/ckpt"}, options_keeping(2));
    CheckpointStore other(rig.engine(), rig.files(), {"/ckpt"}, options_keeping(2));
    owner.save(NumberedState(1).state());
    rig.files().make_folder("/ckpt/.unfinished-00000002-0123456789abcdef");
    EXPECT_THROW(other.collect(), Error);
    EXPECT_THROW(other.save(NumberedState(9).state()), Error);
    EXPECT_EQ(other.latest()->generation, 1U);  // readers take no lock
    EXPECT_NO_THROW(
        static_cast<void>(rig.files().status("/ckpt/.unfinished-00000002-0123456789abcdef")));
    // Its owner is killed: the next save removes it.
    rig.use(test::CrashRig::killed(rig.disks()));
    CheckpointStore next(rig.engine(), rig.files(), {"/ckpt"}, options_keeping(2));
    next.save(NumberedState(2).state());
    EXPECT_THROW(
        static_cast<void>(rig.files().status("/ckpt/.unfinished-00000002-0123456789abcdef")),
        Error);
    EXPECT_EQ(next.latest()->generation, 3U);
}

}  // namespace
}  // namespace penstock::store
