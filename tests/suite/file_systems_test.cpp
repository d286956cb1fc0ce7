// SPDX-License-Identifier: Apache-2.0
// The same behaviour whatever the files lie on: io_uring over five file systems, and over disks of
// 4096-byte sectors (the other backends run over ext4 in the rest of the suite).
#include "suite/suite.hpp"
#include "support/loop_mount.hpp"
#include "support/same_bytes.hpp"

#include <random>

namespace penstock::suite {
namespace {

struct Kind {
    std::string name;
    support::LoopOptions options;
    bool direct = true;  ///< is direct I/O to be had here?
};

std::string name_of_kind(const ::testing::TestParamInfo<Kind>& info) {
    return info.param.name;
}

class FileSystems : public ::testing::TestWithParam<Kind> {
protected:
    void SetUp() override {
        auto made = support::LoopMount::make(GetParam().options);
        if (!made && made.error().code == ErrorCode::kUnsupported) {
            GTEST_SKIP() << made.error().describe();
        }
        ASSERT_TRUE(made) << made.error().describe();
        mount_.emplace(std::move(*made));
        EngineOptions options;
        options.block_bytes = 128 << 10;
        const auto refused = error_of([&] {
            engine_ = TestEngine::make(EngineKind::kUring, options);
            return 0;
        });
        if (refused) {
            GTEST_SKIP() << refused->what();
        }
        file_ =
            engine_->files().open(*mount_ / "file", {.access = Access::kReadWrite, .create = true});
    }

    std::optional<support::LoopMount> mount_;
    std::unique_ptr<TestEngine> engine_;
    File file_;
};

INSTANTIATE_TEST_SUITE_P(
    Kinds, FileSystems,
    ::testing::Values(Kind{"ext4", {.file_system = "ext4"}}, Kind{"xfs", {.file_system = "xfs"}},
                      Kind{"btrfs", {.file_system = "btrfs"}},
                      Kind{"tmpfs", {.file_system = "tmpfs", .bytes = 64 << 20}, false},
                      Kind{"overlay", {.file_system = "overlay"}},
                      Kind{"ext4_sectors_of_4096", {.file_system = "ext4", .sector_bytes = 4096}},
                      Kind{"xfs_sectors_of_4096", {.file_system = "xfs", .sector_bytes = 4096}}),
    name_of_kind);

TEST_P(FileSystems, IsDirectWhereItCanBe) {
    EXPECT_EQ(file_.info().direct, GetParam().direct) << file_.info().reason;
    EXPECT_FALSE(file_.info().reason.empty());
}

TEST_P(FileSystems, AnyExtentsThereAndBack) {
    std::mt19937_64 random(5);
    std::vector<std::byte> model;
    for (int round = 0; round < 12; ++round) {
        SCOPED_TRACE(round);
        Arena arena(2 << 20, random());
        TransferRequest request;
        request.write = true;
        request.files = {file_};
        std::uint64_t offset = random() % 70'000;
        for (int i = 0; i < 6; ++i) {
            const std::uint64_t bytes = 1 + random() % (i % 2 == 0 ? 5'000 : 150'000);
            const auto piece = arena.take(bytes, i % 3 == 0 ? 4096 : 1);
            request.extents.push_back({offset, {piece.data(), bytes}, 0});
            model.resize(std::max<std::size_t>(model.size(), offset + bytes));
            std::memcpy(model.data() + offset, piece.data(), bytes);
            offset += bytes + (i % 2 == 0 ? 0 : random() % 20'000);
        }
        request.options.sync = round == 0;
        static_cast<void>(engine_->submit(std::move(request))->wait());
        ASSERT_EQ(arena.check(), "");
        ASSERT_EQ(file_.size(), model.size());
        // Through the page cache.
        ASSERT_TRUE(support::same_bytes(get_bytes(file_, 0, model.size() + 1), model));
        const std::uint64_t from = random() % model.size();
        const std::uint64_t bytes = random() % (model.size() - from + 1);
        Arena back(1 << 21, random());
        const auto into = back.take(bytes, 1 + random() % 3);
        ASSERT_EQ(engine_->read(file_, into, from), bytes);
        back.expect(into.data(), std::span(model).subspan(from, bytes));
        ASSERT_EQ(back.check(), "");
    }
}

TEST_P(FileSystems, EndOfFileAndShortReads) {
    const auto data = pattern(100'001, 1);
    engine_->write(file_, data);
    std::vector<std::byte> into(200'000);
    const auto error = error_of([&] { return engine_->read(file_, into, 1); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kEndOfFile);
    EXPECT_THAT(error->what(), ::testing::HasSubstr("100001 bytes"));
    EXPECT_EQ(engine_->read(file_, into, 1, {.allow_short = true}), 100'000U);
    EXPECT_TRUE(std::equal(data.begin() + 1, data.end(), into.begin()));
}

TEST_P(FileSystems, SparseFilePast2TiBAndFullDisk) {
    const auto data = pattern(50'001, 1);
    const std::uint64_t offset = (std::uint64_t{2} << 40) + 1;
    engine_->write(file_, data, offset);
    std::vector<std::byte> into(data.size());
    engine_->read(file_, into, offset);
    EXPECT_TRUE(into == data);
    const std::vector<std::byte> part(64 << 10);
    const File big =
        engine_->files().open(*mount_ / "big", {.access = Access::kReadWrite, .create = true});
    // A length that no disk here has: refused as a whole.
    const auto error = error_of([&] {
        TransferRequest request = request_of(true, big, part.data(), 0, 0);
        request.extents.clear();
        for (std::uint64_t at = 0; at < (std::uint64_t{1} << 30); at += part.size()) {
            request.extents.push_back({at, {const_cast<std::byte*>(part.data()), part.size()}, 0});
        }
        return engine_->submit(std::move(request))->wait();
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->system_errno(), ENOSPC) << error->what();
    EXPECT_EQ(engine_->read(file_, into, offset), data.size());
}

}  // namespace
}  // namespace penstock::suite
