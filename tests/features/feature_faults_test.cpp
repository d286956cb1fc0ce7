// SPDX-License-Identifier: Apache-2.0
// Feature files on fake disks: operations that fail one after the other, a disk of a stripe that
// fails or does not answer, and gathers that are dropped while it does not.
#include "support/crash_harness.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/features.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace penstock::features {
namespace {

using support::pattern;
using test::CrashRig;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Bytes = std::vector<std::byte>;
using Ids = std::vector<std::uint64_t>;

constexpr std::uint64_t kRow = 512;
constexpr std::uint64_t kRows = 1000;  // 7 stripes and a part of one

Bytes table_of(std::uint64_t version) {
    return pattern(kRows * kRow, version);
}

void write(CrashRig& rig, const std::string& path, std::uint64_t version,
           const std::vector<std::string>& folders = {}) {
    FeatureWriter writer(rig.engine(), path, {.folders = folders}, rig.files());
    writer.begin_table({"a", "U8", {kRow}});
    writer.append(table_of(version));
    writer.begin_table({"b", "U8", {40}});
    writer.append(pattern(4000, version + 100));
    writer.commit();
}

Ids all_ids() {
    Ids ids(kRows);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}

Bytes all_rows(const FeatureStore& store) {
    Bytes out(kRows * kRow);
    store.gather(0, all_ids(), out);
    return out;
}

class EachOperationFails : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(FeatureFaults, EachOperationFails, testing::Bool(),
                         [](const auto& made) { return made.param ? "Striped" : "OneFile"; });

TEST_P(EachOperationFails, TheFileIsTheOldOneOrTheNewOne) {
    const std::vector<std::string> folders =
        GetParam() ? std::vector<std::string>{"/x", "/y"} : std::vector<std::string>();
    const std::string path = "/f/g.features";
    test::fail_each_operation(
        [&](CrashRig& rig) {
            for (const char* const folder : {"/f", "/x", "/y"}) {
                rig.files().make_folder(folder);
            }
            write(rig, path, 1, folders);
        },
        [&](CrashRig& rig) { write(rig, path, 2, folders); },
        [&](CrashRig& rig, bool failed) {
            EXPECT_TRUE(verify_features(rig.engine(), path, {}, rig.files()).empty());
            const Bytes found = all_rows(FeatureStore::open(rig.engine(), path, {}, rig.files()));
            EXPECT_TRUE(found == table_of(2) || (failed && found == table_of(1)));
            write(rig, path, 3, folders);  // and takes away what was left
            EXPECT_TRUE(all_rows(FeatureStore::open(rig.engine(), path, {}, rig.files())) ==
                        table_of(3));
            EXPECT_EQ(rig.files().list("/f").size(), 1U);
            for (const std::string& folder : folders) {
                EXPECT_EQ(rig.files().list(folder).size(), 1U);
            }
        });
}

TEST_P(EachOperationFails, AReadThatFailsIsAnErrorAndNoOtherGatherIsWrong) {
    const std::vector<std::string> folders =
        GetParam() ? std::vector<std::string>{"/x", "/y"} : std::vector<std::string>();
    const std::string path = "/g.features";
    test::fail_each_operation(
        [&](CrashRig& rig) {
            rig.files().make_folder("/x");
            rig.files().make_folder("/y");
            write(rig, path, 1, folders);
        },
        [&](CrashRig& rig) {
            const FeatureStore store = FeatureStore::open(
                rig.engine(), path, {.ram_bytes = 200'000, .hot = {{"a", {1, 900}}, {"b", {7}}}},
                rig.files());
            for (int i = 0; i < 2; ++i) {
                EXPECT_TRUE(all_rows(store) == table_of(1));
            }
        },
        [](CrashRig&, bool) {});
}

TEST(FeatureFaults, AReaderGetsASetThatIsReplacedAgainAndAgain) {
    const std::string path = "/g.features";
    const std::vector<std::string> folders{"/x", "/y"};
    CrashRig rig;
    std::uint64_t version = 1;
    std::uint64_t last = 1;
    bool writing = false;
    rig.disks()[0]->set_watch([&](const simulation::DiskOperation& operation) {
        if (operation.call == simulation::DiskCall::kOpen && !writing && version < last &&
            operation.path.ends_with(".part0")) {
            writing = true;
            write(rig, path, ++version, folders);
            writing = false;
        }
    });
    rig.files().make_folder("/x");
    rig.files().make_folder("/y");
    writing = true;
    write(rig, path, version, folders);
    writing = false;
    last = 9;
    const FeatureStore store = FeatureStore::open(rig.engine(), path, {}, rig.files());
    EXPECT_EQ(version, last);
    EXPECT_TRUE(all_rows(store) == table_of(last));
}

// Two disks, of which the second may fail, or not answer until it is let go.
class StripeFaults : public testing::Test {
protected:
    StripeFaults() {
        rig_.disks()[1]->set_watch([this](const simulation::DiskOperation& operation) {
            if (operation.call == simulation::DiskCall::kAccess) {
                held_.wait(true);
            }
        });
        rig_.files().make_folder("/0/x");
        rig_.files().make_folder("/1/y");
        write(rig_, path_, 1, {"/0/x", "/1/y"});
    }
    ~StripeFaults() override { hold(false); }

    void hold(bool now) {
        held_ = now;
        held_.notify_all();
    }
    // Reads of the second disk from this offset on.
    void fail_second(std::uint64_t from = 4096) {
        rig_.disks()[1]->set_faults([from](const simulation::DiskAccess& access) {
            return simulation::Fault{.system_errno = access.offset >= from ? EIO : 0};
        });
    }
    [[nodiscard]] FeatureStore open(std::uint64_t ram_bytes) const {
        return FeatureStore::open(rig_.engine(), path_, {.ram_bytes = ram_bytes}, rig_.files());
    }
    static void expect_row(const Bytes& out, std::size_t at, std::uint64_t id) {
        const Bytes rows = table_of(1);
        EXPECT_EQ(std::memcmp(&out[at * kRow], &rows[id * kRow], kRow), 0) << "row " << id;
    }

    std::atomic<bool> held_ = false;
    CrashRig rig_{2, {}, false};
    const std::string path_ = "/0/g.features";
};

constexpr std::uint64_t kOnFirst = 5;     // of the first stripe
constexpr std::uint64_t kOnSecond = 130;  // of the second one

TEST_F(StripeFaults, ADiskThatFailsIsNamedWithTheRowAndTheOthersAreRead) {
    for (const std::uint64_t ram_bytes : {0ULL, 1'000'000ULL}) {
        const FeatureStore store = open(ram_bytes);
        fail_second();
        Bytes out(3 * kRow);
        for (int i = 0; i < 3; ++i) {
            const Error error = error_of([&] {
                store.gather(0, Ids{kOnFirst, kOnSecond, kOnFirst + 1}, out);
            });
            EXPECT_EQ(error.system_errno(), EIO);
            EXPECT_THAT(error.path(), HasSubstr("/1/y/g.features"));
            EXPECT_THAT(error.what(),
                        AllOf(HasSubstr("row 130 of table 'a'"), Not(HasSubstr("of table 1"))));
        }
        store.gather(0, Ids{0, kOnFirst, 1}, out);
        expect_row(out, 1, kOnFirst);
        const auto problems = verify_features(rig_.engine(), path_, {}, rig_.files());
        ASSERT_EQ(problems.size(), 1U);  // the other table lies on the first disk
        EXPECT_EQ(problems[0].row, 128U);
        EXPECT_THAT(problems[0].path, HasSubstr("/1/y/g.features"));
        fail_second(0);
        EXPECT_EQ(error_of([&] { static_cast<void>(open(ram_bytes)); }).system_errno(), EIO);
        rig_.disks()[1]->set_faults({});
        EXPECT_TRUE(all_rows(store) == table_of(1));
        EXPECT_TRUE(all_rows(store) == table_of(1));
    }
}

TEST_F(StripeFaults, AHotRowThatCannotBeReadIsNamed) {
    fail_second();
    const FeatureStoreOptions options{.ram_bytes = 1'000'000,
                                      .hot = {{"a", {kOnFirst, kOnSecond}}}};
    const Error error = error_of([&] {
        static_cast<void>(FeatureStore::open(rig_.engine(), path_, options, rig_.files()));
    });
    EXPECT_EQ(error.system_errno(), EIO);
    EXPECT_THAT(error.path(), HasSubstr("/1/y/g.features"));
    EXPECT_THAT(error.what(), HasSubstr("row 130 of table 'a'"));
}

// A disk reads whole blocks of it, which begin with rows that nobody asked for.
TEST(FeatureFaults, TheRowThatIsNamedIsOneThatWasAskedFor) {
    CrashRig rig(2, {.memory_align = 4096, .read_align = 4096, .write_align = 4096}, false);
    rig.files().make_folder("/0/x");
    rig.files().make_folder("/1/y");
    write(rig, "/0/g.features", 1, {"/0/x", "/1/y"});
    const FeatureStore store = FeatureStore::open(rig.engine(), "/0/g.features", {}, rig.files());
    rig.disks()[1]->set_faults([](const simulation::DiskAccess& access) {
        return simulation::Fault{.system_errno = access.offset >= 4096 ? EIO : 0};
    });
    Bytes out(2 * kRow);
    const Error error = error_of([&] { store.gather(0, Ids{kOnFirst, kOnSecond}, out); });
    EXPECT_EQ(error.offset(), 4096U + 2 * kRow);  // its third row
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("this is row 130 of table 'a'"), Not(HasSubstr("row 2"))));
}

// The rest of a part is checked, however many of its pieces cannot be read.
TEST(FeatureFaults, EveryPieceThatCannotBeReadIsReported) {
    constexpr std::uint64_t kPiece = std::uint64_t{8} << 20;  // as much as is read at once
    CrashRig rig;
    FeatureWriter writer(rig.engine(), "/g.features", {}, rig.files());
    writer.begin_table({"a", "U8", {4096}});
    const Bytes piece = pattern(kPiece, 1);
    for (int i = 0; i < 5; ++i) {
        writer.append(piece);
    }
    writer.commit();
    const FeatureFile written = inspect_features(rig.engine(), "/g.features", rig.files());
    const std::uint64_t base = written.tables[0].base;
    const std::uint64_t damaged = base + 4 * kPiece + (std::uint64_t{3} << 20);
    {
        const File file = rig.files().open("/g.features", {.access = Access::kReadWrite});
        rig.engine()->write(file, std::span(piece).first(4096), damaged);
    }
    rig.disks()[0]->set_faults([base](const simulation::DiskAccess& access) {
        const bool bad = access.offset >= base + kPiece && access.offset < base + 3 * kPiece;
        return simulation::Fault{.system_errno = bad ? EIO : 0};
    });
    const auto problems = verify_features(rig.engine(), "/g.features", {}, rig.files());
    ASSERT_EQ(problems.size(), 2U);
    EXPECT_THAT(problems[0].message, HasSubstr("Input/output error"));
    EXPECT_EQ(problems[0].offset, base + kPiece);
    EXPECT_EQ(problems[0].bytes, 2 * kPiece);
    EXPECT_EQ(problems[1].offset, damaged);
    EXPECT_EQ(problems[1].bytes, 1U << 20);
    const auto open = [&rig] {
        static_cast<void>(
            FeatureStore::open(rig.engine(), "/g.features", {.verify = true}, rig.files()));
    };
    const Error unread = error_of(open);
    EXPECT_EQ(unread.system_errno(), EIO);
    // The first error of a transfer is kept: which of its requests fails first is not said.
    ASSERT_GE(unread.offset(), base + kPiece);
    ASSERT_LT(unread.offset(), base + 2 * kPiece);
    const auto row = fmt::format("row {} of table 'a'", (unread.offset() - base) / 4096);
    EXPECT_THAT(unread.what(), HasSubstr(row));
    rig.disks()[0]->set_faults({});
    const Error other = error_of(open);
    EXPECT_EQ(other.reason(), ErrorCode::kDamaged);
    EXPECT_EQ(other.offset(), damaged);
}

TEST_F(StripeFaults, ADiskThatDoesNotAnswerStopsNoGatherOfTheOther) {
    const FeatureStore store = open(100'000);
    Bytes slow(kRow);
    Bytes out(kRow);
    hold(true);
    const Ids id{kOnSecond};
    const FeatureRequest request{0, id, slow};
    FeatureGather waits = store.gather_async(std::span(&request, 1));
    EXPECT_FALSE(waits.wait_for(std::chrono::milliseconds(20)).has_value());
    store.gather(0, Ids{kOnFirst}, out);
    expect_row(out, 0, kOnFirst);
    EXPECT_FALSE(waits.done());
    hold(false);
    waits.wait();
    expect_row(slow, 0, kOnSecond);
}

// The memory of a dropped gather is still written to: a gather that is given the same memory has
// undefined rows, and keeps none of them for others.
// They take all memory for rows, and close() does not wait for them.
TEST_F(StripeFaults, RowsThatDoNotComeStopNoOthersWhateverMemoryTheyPin) {
    FeatureStore store = open(5'000);
    ASSERT_LT(store.stats().slots, 20U);
    Ids slow(100);
    std::iota(slow.begin(), slow.end(), kOnSecond - 2);
    Bytes late(slow.size() * kRow);
    const FeatureRequest request{0, slow, late};
    store.hint(0, slow);
    hold(true);
    FeatureGather waits = store.gather_async(std::span(&request, 1));
    for (std::uint64_t first = 0; first < 100; first += 10) {
        Ids ids(20);
        std::iota(ids.begin(), ids.end(), first);
        store.hint(0, ids);
        Bytes out(ids.size() * kRow);
        store.gather(0, ids, out);
        expect_row(out, 0, first);
        expect_row(out, 19, first + 19);
    }
    store.close();
    EXPECT_FALSE(waits.done());
    hold(false);
    waits.wait();
    for (std::size_t i = 0; i < slow.size(); ++i) {
        expect_row(late, i, slow[i]);
    }
}

TEST_F(StripeFaults, MemoryOfADroppedGatherThatIsUsedAgainSpoilsNoOtherGather) {
    const FeatureStore store = open(1'000'000);
    Bytes out(2 * kRow);
    hold(true);
    {
        const Ids ids{kOnSecond, kOnSecond + 1};
        const FeatureRequest request{0, ids, out};
        const FeatureGather dropped = store.gather_async(std::span(&request, 1));
    }
    const Ids ids{kOnFirst, kOnFirst + 1};
    const FeatureRequest request{0, ids, out};
    FeatureGather second = store.gather_async(std::span(&request, 1));
    Transfer reads = second.take_transfer();
    reads.wait();
    hold(false);
    rig_.engine()->drain();
    second.finish();
    EXPECT_TRUE(all_rows(store) == table_of(1));
    // It is over: rows that are gathered into that memory are kept again.
    store.gather(0, ids, out);
    const std::uint64_t read = store.stats().rows_read;
    store.gather(0, ids, out);
    EXPECT_EQ(store.stats().rows_read, read);
}

TEST_F(StripeFaults, RowsThatTheirOwnerChangesOnceTheyAreDoneSpoilNoOtherGather) {
    const FeatureStore store = open(1'000'000);
    Bytes out(2 * kRow);
    const Ids ids{kOnSecond, kOnFirst};
    const FeatureRequest request{0, ids, out};
    FeatureGather gather = store.gather_async(std::span(&request, 1));
    while (!gather.done()) {
    }
    expect_row(out, 1, kOnFirst);
    std::fill(out.begin(), out.end(), std::byte{0});
    gather.wait();
    EXPECT_TRUE(all_rows(store) == table_of(1));
    EXPECT_GE(store.stats().rows_hit, 2U);
}

TEST_F(StripeFaults, AnErrorNamesItsRowHoweverOftenItIsAskedFor) {
    const FeatureStore store = open(1'000'000);
    fail_second();
    Bytes out(kRow);
    const Ids ids{kOnSecond};
    const FeatureRequest request{0, ids, out};
    FeatureGather gather = store.gather_async(std::span(&request, 1));
    for (int i = 0; i < 3; ++i) {
        EXPECT_THAT(error_of([&] { gather.wait(); }).what(), HasSubstr("row 130 of table 'a'"));
    }
}

// Rows that threads ask for one at a time.
TEST_F(StripeFaults, AReadErrorReachesThoseWhoAskedForTheRow) {
    using device::RowStatus;
    for (const std::uint64_t ram_bytes : {0ULL, 1'000'000ULL}) {
        RowServer server(std::make_shared<FeatureStore>(open(ram_bytes)), 0);
        const auto rows = server.array<std::byte>();
        fail_second();
        std::vector<device::Loading> asked;
        for (std::uint64_t row = kOnSecond - 20; row < kOnSecond + 20; ++row) {
            asked.push_back(rows.load_async(row, device::kNoLimit));
        }
        const Bytes right = table_of(1);
        for (std::uint64_t row = kOnSecond - 20; device::Loading & loading : asked) {
            const bool on_first = row < 128;
            ASSERT_EQ(rows.wait(loading, device::kNoLimit),
                      on_first ? RowStatus::kReady : RowStatus::kReadError)
                << "row " << row;
            EXPECT_TRUE(!on_first || std::memcmp(rows.row(loading), &right[row * kRow], kRow) == 0);
            rows.release(loading);
            ++row;
        }
        rig_.disks()[1]->set_faults({});
        device::Loading again = rows.load_async(kOnSecond, device::kNoLimit);
        ASSERT_EQ(rows.wait(again, device::kNoLimit), RowStatus::kReady);
        EXPECT_EQ(std::memcmp(rows.row(again), &right[kOnSecond * kRow], kRow), 0);
    }
}

TEST_F(StripeFaults, ARowThatDoesNotComeEndsInTimeAndItsSlotIsNobodys) {
    using device::RowStatus;
    constexpr std::uint64_t kSoon = 20'000'000;
    const Bytes right = table_of(1);
    RowServer server(std::make_shared<FeatureStore>(open(0)), 0, {.slots = 2});
    const auto rows = server.array<std::byte>();
    hold(true);
    device::Loading waits = rows.load_async(kOnSecond, device::kNoLimit);
    EXPECT_EQ(rows.wait(waits, kSoon), RowStatus::kTimedOut);
    // Rows of the other disk go past it.
    device::Loading other = rows.load_async(kOnFirst, device::kNoLimit);
    ASSERT_EQ(rows.wait(other, device::kNoLimit), RowStatus::kReady);
    EXPECT_EQ(std::memcmp(rows.row(other), &right[kOnFirst * kRow], kRow), 0);
    // The read still has the memory of its slot, and this row that of the other one.
    EXPECT_EQ(rows.load_async(kOnFirst + 1, kSoon).status, RowStatus::kTimedOut);
    rows.release(other);
    hold(false);
    for (std::uint64_t row = 0; row < 10; ++row) {
        device::Loading loading = rows.load_async(row, device::kNoLimit);
        ASSERT_EQ(rows.wait(loading, device::kNoLimit), RowStatus::kReady);
        EXPECT_EQ(std::memcmp(rows.row(loading), &right[row * kRow], kRow), 0);
        rows.release(loading);
    }
    // A stop with a read out: it is told, the read is waited for.
    hold(true);
    device::Loading last = rows.load_async(kOnSecond, device::kNoLimit);
    std::thread stops([&] { server.stop(); });
    const RowStatus told = rows.wait(last, device::kNoLimit);
    EXPECT_TRUE(told == RowStatus::kStopped) << static_cast<int>(told);
    hold(false);
    stops.join();
}

}  // namespace
}  // namespace penstock::features
