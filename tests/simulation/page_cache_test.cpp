// SPDX-License-Identifier: Apache-2.0
// Lists and rows of a file that is half in the page cache, by the seed: evicted between the
// question and the read, written through the cache by somebody else, cut while it is read. Each
// byte that came is one that the file had at its place.
#include "simulation/simulation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <random>
#include <vector>

namespace penstock::simulation {
namespace {

constexpr std::uint64_t kFileBytes = 1 << 20;
constexpr std::byte kUntouched{0xEE};
constexpr std::uint64_t kGuardBytes = 16;  // between the places of two extents
constexpr std::uint64_t kLives = 60;

std::uint64_t lives_wanted() {
    const char* text = std::getenv("PENSTOCK_TEST_SEEDS");
    return text != nullptr ? std::min<std::uint64_t>(std::strtoull(text, nullptr, 10), kLives)
                           : kLives;
}

std::byte byte_at(std::uint64_t offset, bool changed) {
    const auto mixed = static_cast<std::uint8_t>((offset * 0x9E3779B97F4A7C15U) >> 40);
    return static_cast<std::byte>(changed ? mixed ^ 0xA5U : mixed);
}

class CacheLife {
public:
    explicit CacheLife(std::uint64_t seed) : random_(seed), simulation_(options(seed)) {
        auto file =
            simulation_.file_system().open("/file", {.access = Access::kReadWrite, .create = true});
        EXPECT_TRUE(file);
        file_ = *file;
        write(0, kFileBytes, false);
        const std::uint64_t rate = 3 + below(40);
        const std::uint64_t salt = random_();
        simulation_.disk().set_faults([rate, salt](const DiskAccess& access) -> Fault {
            const std::uint64_t dice = ((access.index + salt) * 0x9E3779B97F4A7C15U) >> 33;
            if (access.op == engine::Op::kWrite || dice % rate > 1) {
                return {};
            }
            return dice % rate == 0 ? Fault{.system_errno = dice % 3 == 0 ? EAGAIN : EINTR}
                                    : Fault{.bytes_max = 512 + dice % 20'000};
        });
    }

    void live() {
        for (int round = 0; round < 3 && !cut_ && !::testing::Test::HasFailure(); ++round) {
            make_extents();
            read();
        }
    }

private:
    SimulationOptions options(std::uint64_t seed) {
        SimulationOptions options;
        options.seed = seed;
        options.shape.page_cache = true;
        options.shape.cachestat = below(4) != 0;
        options.shape.read_align = below(2) == 0 ? 512 : 4096;
        options.model = {
            .request_ns = 100'000, .lanes = 32, .bytes_per_second = 7e9, .jitter_ns = 300'000};
        engine::ChannelOptions& channel = options.core.domain.channel;
        channel.depth = 1 + static_cast<std::uint32_t>(below(16));
        channel.block_bytes = 65536U << below(3);
        channel.gap_bytes = below(8) == 0 ? 0 : std::uint64_t{1} << below(15);
        channel.slots.large_bytes = channel.block_bytes;
        options.core.domain.channels = 1 + static_cast<std::uint32_t>(below(2));
        return options;
    }

    std::uint64_t below(std::uint64_t n) { return random_() % n; }

    void write(std::uint64_t begin, std::uint64_t end, bool changed) {
        std::vector<std::byte> bytes(end - begin);
        for (std::uint64_t i = 0; i < bytes.size(); ++i) {
            bytes[i] = byte_at(begin + i, changed);
        }
        const iovec piece{bytes.data(), bytes.size()};
        EXPECT_EQ(file_->write_at(os::IoPath::kBuffered, begin, {&piece, 1}),
                  static_cast<std::int64_t>(bytes.size()));
    }

    // As Rows, or as a list in any order; small ones near one another, adjoining, over one another.
    void make_extents() {
        rows_ = below(2) == 0;
        const std::uint64_t count = 1 + below(400);
        const std::uint64_t row_bytes = 1 + below(3000);
        const std::uint64_t stride = row_bytes + (below(3) == 0 ? 0 : below(4000));
        const std::uint64_t table_rows = (kFileBytes - row_bytes) / stride + 1;
        places_.clear();
        ids_.clear();
        std::uint64_t place = 0;
        for (std::uint64_t i = 0; i < count; ++i) {
            ids_.push_back(below(4) == 0 && i != 0 ? (ids_.back() + 1) % table_rows
                                                   : below(table_rows));
            const std::uint64_t bytes = rows_           ? row_bytes
                                        : below(8) == 0 ? 0
                                                        : 1 + below(row_bytes);
            places_.push_back({ids_.back() * stride, {nullptr, bytes}, 0});
            place += row_bytes + kGuardBytes;
        }
        memory_.assign(place, kUntouched);
        for (std::uint64_t i = 0; i < count; ++i) {
            places_[i].memory.data = memory_.data() + i * (row_bytes + kGuardBytes);
        }
        table_ = {.row_bytes = row_bytes, .stride_bytes = stride};
    }

    engine::Extents extents() {
        if (!rows_) {
            return engine::Extents(places_);
        }
        auto made = engine::extents_of({.tables = {table_},
                                        .ids = ids_,
                                        .memory = {memory_.data(), memory_.size()},
                                        .memory_stride_bytes = table_.row_bytes + kGuardBytes},
                                       "read");
        EXPECT_TRUE(made);
        return std::move(*made);
    }

    void read() {
        engine::TransferSpec spec;
        spec.op = engine::Op::kRead;
        spec.files = {file_};
        spec.extents = extents();
        spec.options.allow_short = below(2) == 0;
        const bool may_be_short = spec.options.allow_short;
        auto started = simulation_.core().start(std::move(spec));
        ASSERT_TRUE(started);
        engine::Transfer* const transfer = *started;
        std::uint64_t steps = below(30);
        EXPECT_TRUE(simulation_.run_until([&] {
            if (steps-- == 0) {
                disturb();
                steps = below(30);
            }
            return transfer->finished();
        }));
        check(*transfer, may_be_short);
        transfer->mark_observed();
        transfer->abandon();
        transfer->release();
    }

    // Somebody else writes through the cache, or cuts the file.
    void disturb() {
        if (below(6) == 0) {
            cut_ = true;
            end_ = below(end_ + 1);
            ASSERT_TRUE(file_->truncate(end_));
        } else {
            const std::uint64_t begin = below(end_ + 1);
            write(begin, std::min(end_, begin + below(100'000)), true);
        }
    }

    void check(const engine::Transfer& transfer, bool may_be_short) {
        if (transfer.status() != TransferStatus::kDone) {
            ASSERT_TRUE(cut_ && !may_be_short) << transfer.error()->describe();
            ASSERT_EQ(transfer.error()->code, ErrorCode::kEndOfFile);
            return;
        }
        for (std::size_t i = 0; i < places_.size(); ++i) {
            const Extent& extent = places_[i];
            const std::uint64_t bytes = transfer.extent_bytes(i);
            const std::uint64_t sure =
                std::min(extent.memory.bytes, end_ - std::min(end_, extent.offset));
            ASSERT_LE(bytes, extent.memory.bytes);
            ASSERT_GE(bytes, may_be_short ? sure : extent.memory.bytes);
            for (std::uint64_t b = 0; b < bytes; ++b) {
                const std::byte got = extent.memory.data[b];
                ASSERT_TRUE(got == byte_at(extent.offset + b, false) ||
                            got == byte_at(extent.offset + b, true))
                    << "extent " << i << " of " << places_.size() << ", byte " << b;
            }
            for (std::uint64_t b = 0; b < kGuardBytes; ++b) {
                ASSERT_EQ(extent.memory.data[table_.row_bytes + b], kUntouched) << "extent " << i;
            }
        }
    }

    std::mt19937_64 random_;
    Simulation simulation_;
    std::shared_ptr<os::File> file_;
    bool rows_ = false;
    RowTable table_;
    std::vector<std::uint64_t> ids_;
    std::vector<Extent> places_;
    std::vector<std::byte> memory_;
    std::uint64_t end_ = kFileBytes;
    bool cut_ = false;
};

TEST(SimulationPageCache, ListsAndRowsHaveRightBytesWhateverTheCacheDoes) {
    for (std::uint64_t seed = 1; seed <= lives_wanted(); ++seed) {
        SCOPED_TRACE(seed);
        CacheLife life(seed);
        life.live();
        if (HasFailure()) {
            FAIL() << "seed " << seed << " fails, and replays by itself";
        }
    }
}

}  // namespace
}  // namespace penstock::simulation
