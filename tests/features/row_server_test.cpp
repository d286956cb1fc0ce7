// SPDX-License-Identifier: Apache-2.0
// Rows by the ring: threads play warps. They get what gather() gives, and those who asked for a row
// that cannot be read get an error; stops, forks, and requests that nobody serves.
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/features.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using device::Array;
using device::kNoLimit;
using device::Loading;
using device::RowStatus;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kRows = 3000;
constexpr std::uint64_t kElements = 128;  // of 4 bytes

class RowServerTest : public testing::Test {
protected:
    void SetUp() override { write(path_, {}); }
    void write(const std::string& path, const std::vector<std::string>& folders) {
        FeatureWriter writer(engine_, path, {.folders = folders});
        writer.begin_table({"other", "U8", {3}});
        writer.append(support::pattern(30, 2));
        writer.begin_table({"rows", "F32", {kElements}});
        writer.append(data_);
        writer.commit();
    }
    [[nodiscard]] std::shared_ptr<FeatureStore> open(const FeatureStoreOptions& options = {}) {
        return std::make_shared<FeatureStore>(FeatureStore::open(engine_, path_, options));
    }
    [[nodiscard]] bool is_row(const std::uint32_t* at, std::uint64_t row) const {
        return std::memcmp(at, &data_[row * kElements * 4], kElements * 4) == 0;
    }
    /// A thread that plays a warp: `held` rows at once, some given up. How many were wrong.
    [[nodiscard]] std::uint64_t play(const Array<std::uint32_t>& rows, std::uint64_t seed,
                                     std::size_t count, std::size_t held) const {
        std::mt19937_64 random(seed);
        std::uint64_t wrong = 0;
        for (std::size_t i = 0; i < count; i += held) {
            std::vector<std::pair<std::uint64_t, Loading>> asked;
            for (std::size_t k = 0; k < held; ++k) {
                const std::uint64_t row = random() % (kRows + 40);  // some are not there
                asked.emplace_back(row, rows.load_async(row, 60 * kSecond));
            }
            for (auto& [row, loading] : asked) {
                if (random() % 16 == 0) {
                    rows.release(loading);  // given up
                    continue;
                }
                const RowStatus status = rows.wait(loading, 60 * kSecond);
                const bool right =
                    row >= kRows ? status == RowStatus::kNoSuchRow
                                 : status == RowStatus::kReady && is_row(rows.row(loading), row);
                wrong += right ? 0 : 1;
                rows.release(loading);
            }
        }
        return wrong;
    }
    void expect_all_right(const std::shared_ptr<FeatureStore>& store,
                          const RowServerOptions& options, std::size_t held, std::size_t count) {
        RowServer server(store, store->table("rows"), options);
        const auto rows = server.array<std::uint32_t>();
        std::atomic<std::uint64_t> wrong{0};
        std::vector<std::thread> warps;
        for (std::uint64_t seed = 0; seed < 6; ++seed) {
            warps.emplace_back([&, seed] { wrong += play(rows, seed, count, held); });
        }
        for (std::thread& warp : warps) {
            warp.join();
        }
        EXPECT_EQ(wrong, 0U);
        server.stop();
        EXPECT_GT(server.stats().rows, 0U);
        EXPECT_EQ(server.stats().refused, 0U);
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    const std::string path_ = folder_ / "x.features";
    const std::vector<std::byte> data_ = support::pattern(kRows * kElements * 4, 1);
};

TEST_F(RowServerTest, WarpsGetTheirRows) {
    for (const std::uint64_t ram : {0U, 200'000U}) {
        const auto store = open({.ram_bytes = ram});
        expect_all_right(store, {}, 8, 160);
        expect_all_right(store, {.slots = 64}, 8, 96);
        expect_all_right(store, {.slots = 1}, 1, 10);
    }
}

TEST_F(RowServerTest, RowsOfStripesComeToo) {
    for (const char* const name : {"a", "b"}) {
        std::filesystem::create_directories(folder_ / name);
    }
    write(path_, {folder_ / "a", folder_ / "b"});
    expect_all_right(open(), {.slots = 32}, 4, 80);
}

TEST_F(RowServerTest, WhatWasGivenUpBeforeAStopIsNotRefused) {
    const auto store = open();
    for (int round = 0; round < 200; ++round) {
        RowServer server(store, 1, {.slots = 8});
        const auto rows = server.array<float>();
        for (std::uint64_t row = 0; row < 8; ++row) {
            Loading loading = rows.load_async(row * 300, kNoLimit);
            rows.release(loading);
        }
        server.stop();
        const RowServerStats stats = server.stats();
        EXPECT_EQ(stats.rows + stats.given_up, 8U);
        EXPECT_EQ(stats.refused, 0U);
    }
}

TEST_F(RowServerTest, OneRowForManyIsReadOnce) {
    const auto store = open();
    RowServer server(store, 1);
    const auto rows = server.array<float>();
    EXPECT_EQ(rows.rows(), kRows);
    EXPECT_EQ(rows.row_elements(), kElements);
    const std::uint64_t before = engine_->stats().bytes_read;
    Loading first = rows.load_async(7, 0);
    ASSERT_EQ(rows.wait(first, 60 * kSecond), RowStatus::kReady);
    std::vector<Loading> same;
    for (int i = 0; i < 200; ++i) {
        same.push_back(rows.load_async(7, 60 * kSecond));
    }
    for (Loading& loading : same) {
        ASSERT_EQ(rows.wait(loading, 60 * kSecond), RowStatus::kReady);
        EXPECT_TRUE(rows.done(loading));
        EXPECT_EQ(std::memcmp(rows.row(loading), rows.row(first), kElements * 4), 0);
        rows.release(loading);
    }
    rows.release(first);
    rows.release(first);
    const RowServerStats stats = server.stats();
    EXPECT_EQ(stats.rows, 201U);
    EXPECT_EQ(store->stats().rows, 201U);
    EXPECT_EQ(store->stats().gathers, stats.batches);
    // Each gather reads the row once.
    EXPECT_LE(engine_->stats().bytes_read - before, stats.batches * 4096);
}

TEST_F(RowServerTest, ARowThatIsNotThereIsRefusedByBothSides) {
    RowServer server(open(), 1, {.slots = 8});
    const auto rows = server.array<float>();
    EXPECT_EQ(rows.load_async(kRows, 0).status, RowStatus::kNoSuchRow);
    EXPECT_EQ(rows.load_async(UINT64_MAX, 0).status, RowStatus::kNoSuchRow);
    EXPECT_EQ(server.stats().refused, 0U);
    // The server trusts no number in the ring.
    const device::Ring<> ring = rows.ring();
    for (const std::uint64_t row : {kRows, UINT64_MAX, kRows + 1}) {
        std::uint64_t ticket = 0;
        ASSERT_TRUE(ring.try_ask(row, ticket));
        while (ring.answered(ticket) == RowStatus::kPending) {
            std::this_thread::yield();
        }
        EXPECT_EQ(ring.answered(ticket), RowStatus::kNoSuchRow);
        ring.give_back(ticket);
    }
    EXPECT_EQ(server.stats().refused, 3U);
}

TEST_F(RowServerTest, AClosedStoreIsSaid) {
    const auto store = open();
    RowServer server(store, 1);
    const auto rows = server.array<float>();
    store->close();
    for (int i = 0; i < 3; ++i) {
        Loading loading = rows.load_async(1, kSecond);
        EXPECT_EQ(rows.wait(loading, 60 * kSecond), RowStatus::kClosed);
        EXPECT_FALSE(loading.holds_slot);
    }
    EXPECT_EQ(server.stats().refused, 3U);
}

TEST_F(RowServerTest, AStopEndsAllThatWait) {
    auto server = std::make_unique<RowServer>(open(), 1, RowServerOptions{.slots = 4});
    const auto rows = server->array<float>();
    Loading held[4];
    for (std::uint64_t i = 0; i < 4; ++i) {
        held[i] = rows.load_async(i, kSecond);
        ASSERT_EQ(rows.wait(held[i], 60 * kSecond), RowStatus::kReady);
    }
    // The ring is full: they wait for a slot, without a limit.
    std::atomic<int> stopped{0};
    std::vector<std::thread> warps;
    for (int i = 0; i < 3; ++i) {
        warps.emplace_back([&] {
            Loading loading = rows.load_async(9, kNoLimit);
            stopped += rows.wait(loading, kNoLimit) == RowStatus::kStopped ? 1 : 0;
        });
    }
    EXPECT_EQ(rows.load_async(9, 1'000'000).status, RowStatus::kTimedOut);
    server->stop();
    server->stop();
    for (std::thread& warp : warps) {
        warp.join();
    }
    EXPECT_EQ(stopped, 3);
    for (Loading& loading : held) {
        rows.release(loading);
    }
    // A row that is asked for later ends, too.
    Loading late = rows.load_async(9, kNoLimit);
    EXPECT_EQ(rows.wait(late, kNoLimit), RowStatus::kStopped);
}

TEST_F(RowServerTest, StopsWhileWarpsAsk) {
    for (std::uint64_t round = 0; round < 20; ++round) {
        RowServer server(open(), 1, {.slots = 16});
        const auto rows = server.array<std::uint32_t>();
        std::atomic<std::uint64_t> wrong{0};
        std::vector<std::thread> warps;
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
            warps.emplace_back([&, seed] {
                for (std::uint64_t row = seed;; row = (row + 7) % kRows) {
                    Loading loading = rows.load_async(row, kNoLimit);
                    const RowStatus status = rows.wait(loading, kNoLimit);
                    if (status != RowStatus::kReady) {
                        wrong += status == RowStatus::kStopped ? 0 : 1;
                        return;
                    }
                    wrong += is_row(rows.row(loading), row) ? 0 : 1;
                    rows.release(loading);
                }
            });
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(round % 5));
        server.stop();
        for (std::thread& warp : warps) {
            warp.join();
        }
        ASSERT_EQ(wrong, 0U);
    }
}

TEST_F(RowServerTest, AChildOfForkIsToldThatThereIsNoServer) {
    auto server = std::make_unique<RowServer>(open(), 1);
    const auto rows = server->array<std::uint32_t>();
    Loading asked = rows.load_async(5, kSecond);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        Loading later = rows.load_async(6, kNoLimit);
        bool right = rows.wait(asked, kNoLimit) == RowStatus::kStopped;
        right = right && rows.wait(later, kNoLimit) == RowStatus::kStopped;
        server->stop();
        server.reset();
        ::_exit(right ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ASSERT_EQ(rows.wait(asked, 60 * kSecond), RowStatus::kReady);
    EXPECT_TRUE(is_row(rows.row(asked), 5));
    rows.release(asked);
    EXPECT_EQ(play(rows, 1, 50, 5), 0U);
}

TEST_F(RowServerTest, WhatNobodyServesEndsInTime) {
    // A ring whose server never looks.
    device::RingHead<device::SystemWords> head;
    std::array<device::RingSlot<device::SystemWords>, 2> slots;
    const float memory[2] = {};
    const device::Ring<> ring{&head, slots.data(), 1};
    const Array<float> rows(ring, memory, 10, 1);
    Loading first = rows.load_async(1, 0);
    EXPECT_EQ(first.status, RowStatus::kPending);
    ring.set_serving(true);
    Loading second = rows.load_async(1, 0);
    EXPECT_FALSE(rows.done(second));
    EXPECT_EQ(rows.wait(second, 2'000'000), RowStatus::kTimedOut);
    // It was given back, and not answered: nobody may have it yet.
    EXPECT_EQ(rows.load_async(2, 2'000'000).status, RowStatus::kTimedOut);
    std::uint64_t row = 0;
    std::uint64_t ticket = 0;
    ASSERT_EQ(ring.look(ring.number(second.ticket), row, ticket), device::Ring<>::Seen::kGivenUp);
    ring.answer(ticket, RowStatus::kStopped);
    Loading third = rows.load_async(2, 0);
    EXPECT_EQ(third.status, RowStatus::kPending);
    EXPECT_EQ(ring.number(third.ticket), ring.number(second.ticket));
    EXPECT_EQ(ring.look(ring.number(third.ticket), row, ticket), device::Ring<>::Seen::kAsked);
    EXPECT_EQ(row, 2U);
    EXPECT_EQ(rows.load_async(3, 0).status, RowStatus::kTimedOut);  // the first is held
}

// A thread that holds a row while the others go on, and then asks for more: all slots but its own
// come and go meanwhile.
TEST_F(RowServerTest, ARowThatIsHeldStopsNobody) {
    RowServer server(open(), 1, {.slots = 16});
    const auto rows = server.array<std::uint32_t>();
    std::vector<Loading> held;
    for (std::uint64_t row = 0; row < 10; ++row) {
        held.push_back(rows.load_async(row, kNoLimit));
        ASSERT_EQ(rows.wait(held.back(), kNoLimit), RowStatus::kReady);
    }
    EXPECT_EQ(play(rows, 1, 200, 6), 0U);
    for (std::uint64_t row = 0; row < 10; ++row) {
        EXPECT_TRUE(is_row(rows.row(held[row]), row));
        rows.release(held[row]);
    }
}

TEST_F(RowServerTest, AServerThatMovesGoesOn) {
    RowServer first(open(), 1);
    const auto rows = first.array<std::uint32_t>();
    RowServer second(std::move(first));
    EXPECT_EQ(play(rows, 1, 20, 4), 0U);
    second = RowServer(open(), 1);
    EXPECT_EQ(play(second.array<std::uint32_t>(), 2, 20, 4), 0U);
    EXPECT_THROW(static_cast<void>(first.stats()), Error);
    first.stop();
}

TEST_F(RowServerTest, WrongArgumentsAreRefused) {
    const auto store = open();
    const auto refused = [](const auto& call) {
        try {
            call();
        } catch (const Error& error) {
            return error.reason() == ErrorCode::kInvalidArgument ? std::string(error.what())
                                                                 : "another code";
        }
        return std::string("nothing");
    };
    using testing::HasSubstr;
    EXPECT_THAT(refused([&] { RowServer(nullptr, 0); }), HasSubstr("FeatureStore"));
    EXPECT_THAT(refused([&] { RowServer(store, 2); }), HasSubstr("table 2"));
    EXPECT_THAT(refused([&] { RowServer(store, 1, {.slots = 3}); }), HasSubstr("power of two"));
    EXPECT_THAT(refused([&] { RowServer(store, 1, {.slots = 0}); }), HasSubstr("power of two"));
    EXPECT_THAT(
        refused([&] { RowServer(store, 1, {.idle_sleep_max = std::chrono::microseconds(0)}); }),
        HasSubstr("idle_sleep_max"));
    const RowServer server(store, 0);
    EXPECT_EQ(server.array<std::uint8_t>().row_elements(), 3U);
    EXPECT_THAT(refused([&] { static_cast<void>(server.array<float>()); }), HasSubstr("3 bytes"));
    EXPECT_THAT(refused([&] { static_cast<void>(server.gpu_array<char>()); }), HasSubstr("gpu"));
}

}  // namespace
}  // namespace penstock
