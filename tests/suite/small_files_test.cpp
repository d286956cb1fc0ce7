// SPDX-License-Identifier: Apache-2.0
// Small files by their paths: each is read through the page cache and closed by the
// thread that opened it. The bytes are right, or the error is, whatever is refused.
#include "suite/suite.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>

namespace penstock::suite {
namespace {

using simulation::DiskAccess;
using simulation::DiskCall;
using simulation::DiskOperation;
using simulation::Fault;

constexpr std::size_t kSmallFileBytes = 5000;

FakeSetup cached_disk(std::uint64_t seed) {
    FakeSetup setup;
    setup.shape.page_cache = true;
    setup.shape.cachestat = seed % 2 == 0;
    setup.seed = seed;
    setup.inline_too = true;
    return setup;
}

/// A list of small files, one of them larger, read in one piece each or in two.
class SmallFiles : public EveryBackend {
protected:
    void lay_out(std::uint32_t files) {
        std::vector<std::byte> all = pattern(files * kSmallFileBytes, 5);
        data_ = all;
        for (std::uint32_t i = 0; i < files; ++i) {
            static_cast<void>(with_bytes(
                "small" + std::to_string(i),
                std::span(data_).subspan(std::size_t{i} * kSmallFileBytes, kSmallFileBytes)));
            paths_.push_back(path("small" + std::to_string(i)));
        }
        back_.resize(data_.size());
    }
    [[nodiscard]] TransferRequest request(std::size_t head, std::size_t beyond = 0) {
        std::fill(back_.begin(), back_.end(), std::byte{0});
        TransferRequest request;
        request.paths = paths_;
        request.options.allow_short = beyond != 0;
        for (std::uint32_t i = 0; i < paths_.size(); ++i) {
            std::byte* const at = back_.data() + i * kSmallFileBytes;
            request.extents.push_back({0, {at, head}, i});
            if (head != kSmallFileBytes) {
                request.extents.push_back({head, {at + head, kSmallFileBytes - head}, i});
            }
        }
        if (beyond != 0) {
            past_.resize(beyond);
            request.extents.push_back({kSmallFileBytes - 1, {past_.data(), beyond}, 0});
        }
        return request;
    }

    std::vector<std::string> paths_;
    std::vector<std::byte> data_;
    std::vector<std::byte> back_;
    std::vector<std::byte> past_;
};
INSTANTIATE_TEST_SUITE_P(Backends, SmallFiles, every_kind(), kind_name);

TEST_P(SmallFiles, AreReadWhereTheyAreOpened) {
    use({}, cached_disk(2));
    lay_out(300);
    const EngineStats before = engine().stats();
    for (const std::size_t head : {kSmallFileBytes, std::size_t{1234}}) {
        for (const bool blocking : {true, false}) {
            const TransferRequest all = request(head);
            ASSERT_EQ((blocking ? engine().run(all) : engine().submit(all))->wait(), data_.size());
            ASSERT_EQ(back_, data_);
        }
    }
    const EngineStats after = engine().stats();
    EXPECT_EQ(after.bytes_cached + after.bytes_read - before.bytes_cached - before.bytes_read,
              4 * data_.size());
    if (!fake() && GetParam() != EngineKind::kAuto) {
        return;  // nothing of theirs is on the caller's thread
    }
    EXPECT_EQ(after.inline_requests - before.inline_requests, after.requests - before.requests);
    EXPECT_EQ(after.cache_questions, before.cache_questions);
}

TEST_P(SmallFiles, MayEndEarlyAndBeMixedWithLargeOnes) {
    use({}, cached_disk(3));
    lay_out(10);
    const TransferPtr shorter = engine().run(request(kSmallFileBytes, 100));
    EXPECT_EQ(shorter->wait(), data_.size() + 1);
    EXPECT_EQ(shorter->extent_bytes(10), 1U);
    EXPECT_EQ(past_.front(), data_[kSmallFileBytes - 1]);

    const std::vector<std::byte> large = pattern(300'000, 8);
    static_cast<void>(with_bytes("large", large));
    paths_.push_back(path("large"));
    std::vector<std::byte> into(large.size());
    TransferRequest mixed = request(kSmallFileBytes);
    mixed.extents.back() = {0, {into.data(), into.size()}, 10};
    EXPECT_EQ(engine().run(mixed)->wait(), data_.size() + into.size());
    EXPECT_EQ(into, large);
    EXPECT_EQ(back_, data_);
}

TEST_P(SmallFiles, AFileThatIsTooShortIsNamed) {
    use({}, cached_disk(4));
    lay_out(200);
    static_cast<void>(with_bytes("small77", std::span(data_).first(100)));
    for (const bool blocking : {true, false}) {
        const TransferRequest all = request(kSmallFileBytes);
        const auto error =
            error_of([&] { return (blocking ? engine().run(all) : engine().submit(all))->wait(); });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->reason(), ErrorCode::kEndOfFile);
        EXPECT_EQ(error->path(), path("small77"));
    }
}

// Bytes that others write through the cache are there at once, also before it is on the device.
TEST_P(SmallFiles, WhatWasJustWrittenIsRead) {
    if (fake()) {
        GTEST_SKIP() << "the files are the kernel's";
    }
    std::vector<std::byte> back(100);
    for (int i = 0; i < 50; ++i) {
        const std::vector<std::byte> data = pattern(100, i);
        std::ofstream(path("changing"), std::ios::binary | std::ios::trunc)
            .write(reinterpret_cast<const char*>(data.data()), 100);
        engine().run(request_of(false, path("changing"), back.data(), 100, 0))->wait();
        ASSERT_EQ(back, data);
    }
}

TEST_P(SmallFiles, APipeIsRefusedAtOnce) {
    if (fake()) {
        GTEST_SKIP() << "the fake disk has none";
    }
    const std::string pipe = path("pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    std::byte byte{};
    const auto error =
        error_of([&] { return engine().run(request_of(false, pipe, &byte, 1, 0))->wait(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kUnsupported);
    std::filesystem::remove(pipe);
}

// Each opening and each read is refused once, at any index: the bytes are right or the error is,
// and the next transfer is right.
TEST(SmallFilesInTrouble, EveryOpeningAndReadIsRefusedOnce) {
    constexpr std::uint32_t kFiles = 12;
    const int troubles[] = {EIO, EACCES, EAGAIN, EINTR};
    for (const int trouble : troubles) {
        bool struck = true;
        for (std::uint64_t at = 0; struck; ++at) {
            const auto engine = TestEngine::make(EngineKind::kFake, {}, cached_disk(at + 2));
            const std::vector<std::byte> data = pattern(kFiles * kSmallFileBytes, 5);
            TransferRequest request;
            std::vector<std::byte> back(data.size());
            for (std::uint32_t i = 0; i < kFiles; ++i) {
                request.paths.push_back("/" + std::to_string(i));
                File file = engine->files().open(request.paths.back(),
                                                 {.access = Access::kReadWrite, .create = true});
                put_bytes(file, 0, std::span(data).subspan(i * kSmallFileBytes, kSmallFileBytes));
                request.extents.push_back(
                    {0, {back.data() + i * kSmallFileBytes, kSmallFileBytes}, i});
            }
            std::atomic<std::uint64_t> seen{0};
            bool struck_open = false;
            struck = false;
            engine->disk().set_operation_faults([&](const DiskOperation& operation) {
                if (operation.call != DiskCall::kOpen || trouble == EAGAIN || trouble == EINTR ||
                    seen++ != at) {
                    return 0;
                }
                struck = true;
                struck_open = true;
                return trouble;
            });
            engine->disk().set_faults([&](const DiskAccess&) -> Fault {
                if (seen++ != at) {
                    return {};
                }
                struck = true;
                return {trouble, UINT64_MAX};
            });
            const bool blocking = at % 2 == 0;
            const auto error = error_of([&] {
                return (blocking ? engine->run(request) : engine->submit(request))->wait();
            });
            // A read that may not wait is a question: where it is refused, the next one is asked.
            const bool lasts = trouble != EAGAIN && trouble != EINTR;
            EXPECT_TRUE(!error || (struck && lasts)) << at;
            EXPECT_TRUE(error || !struck_open || !lasts) << at;
            if (error) {
                EXPECT_EQ(error->system_errno(), trouble);
                EXPECT_FALSE(error->path().empty());
            } else {
                EXPECT_EQ(back, data) << at;
            }
            engine->disk().set_operation_faults({});
            engine->disk().set_faults({});
            std::fill(back.begin(), back.end(), std::byte{0});
            EXPECT_EQ(engine->run(request)->wait(), data.size());
            EXPECT_EQ(back, data);
        }
    }
}

}  // namespace
}  // namespace penstock::suite
