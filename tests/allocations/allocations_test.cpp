// SPDX-License-Identifier: Apache-2.0
// Nothing on the path of a request allocates: a transfer of twenty times the requests allocates no
// more than a short one.
#include "allocations/allocator.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock {
namespace {

using support::EngineKind;
using support::TestEngine;

constexpr std::uint64_t kBlock = 64 << 10;
constexpr std::uint64_t kFew = 8;
constexpr std::uint64_t kMany = 160;

class Allocations : public ::testing::TestWithParam<EngineKind> {
protected:
    void SetUp() override {
        EngineOptions options;
        options.block_bytes = kBlock;
        options.queue_depth = 8;
        try {
            engine_ = TestEngine::make(GetParam(), options);
        } catch (const Error& refused) {
            GTEST_SKIP() << refused.what();
        }
        if (GetParam() != EngineKind::kFake) {
            folder_.emplace();
        }
        const std::string path = folder_ ? *folder_ / "file" : std::string("/file");
        file_ = engine_->files().open(path, {.access = Access::kReadWrite, .create = true});
        memory_.resize(kMany * kBlock + 4096);
        support::put_bytes(file_, 0, memory_);
    }

    // Allocations from submit() to the end of a transfer of so many blocks.
    std::uint64_t count(bool write, std::uint64_t blocks, std::uint64_t offset) {
        TransferRequest request =
            support::request_of(write, file_, memory_.data(), blocks * kBlock, offset);
        const std::uint64_t before = allocator::count();
        const support::TransferPtr transfer = engine_->submit(std::move(request));
        static_cast<void>(transfer->wait());
        return allocator::count() - before;
    }

    std::optional<support::TempFolder> folder_;
    std::unique_ptr<TestEngine> engine_;
    File file_;
    std::vector<std::byte> memory_;
};

INSTANTIATE_TEST_SUITE_P(Backends, Allocations,
                         ::testing::Values(EngineKind::kUring, EngineKind::kAio, EngineKind::kPosix,
                                           EngineKind::kFake),
                         [](const auto& one) { return support::name_of(one.param); });

TEST_P(Allocations, OfATransferDoNotGrowWithItsRequests) {
    // The fake disk remembers what was written since the last sync, in a set: reads alone.
    for (const bool write : {false, true}) {
        if (write && GetParam() == EngineKind::kFake) {
            continue;
        }
        for (const std::uint64_t offset : {0, 1}) {  // straight; through slots, with edges
            // Threads, rings and slots come with the first.
            for (int i = 0; i < 3; ++i) {
                static_cast<void>(count(write, kMany, offset));
            }
            const std::uint64_t requests = engine_->stats().requests;
            const std::uint64_t few = count(write, kFew, offset);
            const std::uint64_t many = count(write, kMany, offset);
            EXPECT_GE(engine_->stats().requests - requests, kFew + kMany);
            EXPECT_GT(few, 0U);  // else nothing is counted
            EXPECT_LE(many, few) << (write ? "write" : "read") << " at " << offset;
        }
    }
}

// Most are one call of the kernel's. Others make a transfer, whose lists of one file and one extent
// are part of it.
TEST(AllocationsOfABlockingRead, AreNoneOrItsTransfer) {
    const support::TempFolder folder;
    File file(folder / "file", {.access = Access::kReadWrite, .create = true});
    std::vector<std::byte> memory(8192);
    support::put_bytes(file, 0, memory);
    Engine engine;
    const std::span<std::byte> into(memory);
    const auto count = [&](const auto& move) {
        EXPECT_EQ(move(), memory.size());  // its lane comes with the first
        const std::uint64_t before = allocator::count();
        EXPECT_EQ(move(), memory.size());
        return allocator::count() - before;
    };
    EXPECT_EQ(count([&] { return engine.read(file, into, 0); }), 0U);
    EXPECT_EQ(count([&] { return engine.write(file, into, 0); }), 0U);
    EXPECT_EQ(count([&] { return engine.run_read(file, into, 0).wait(); }), 1U);
    EXPECT_EQ(count([&] { return engine.run_write(file, into, 0).wait(); }), 1U);
}

TEST_P(Allocations, OfRowsAreOneListOfNumbers) {
    const auto rows = [&](std::uint64_t number) {
        TransferRequest request;
        request.files = {file_};
        std::vector<std::uint64_t> ids(number);
        for (std::uint64_t i = 0; i < number; ++i) {
            ids[i] = i * 7919 % 2000;
        }
        request.rows = Rows{.tables = {{.base = 1, .row_bytes = 100, .stride_bytes = 4096}},
                            .ids = ids,
                            .memory = memory_};
        const std::uint64_t before = allocator::count();
        const support::TransferPtr transfer = engine_->submit(std::move(request));
        EXPECT_EQ(transfer->wait(), number * 100);
        return allocator::count() - before;
    };
    static_cast<void>(rows(2000));
    static_cast<void>(rows(2000));
    const std::uint64_t few = rows(20);
    EXPECT_LE(rows(2000), few);
}

}  // namespace
}  // namespace penstock
