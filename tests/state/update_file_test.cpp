// SPDX-License-Identifier: Apache-2.0
// Updates in place: their logs as bytes that nobody trusts, readers that open the shards of an
// index while an update of it becomes valid, and what is refused. Files of other writers, other
// programs that read them, and processes that are killed are in python/tests.
#include "state/update/find_update.hpp"
#include "support/error_of.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/state_file.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

namespace penstock::state {
namespace {

using support::pattern;
using testing::HasSubstr;

std::span<const std::byte> bytes_in(const std::string& text) {
    return std::as_bytes(std::span(text));
}

UpdateLog example() {
    UpdateLog log{.id = 7, .file_bytes = 900'000, .head_end = 100, .tail_begin = 900'000};
    log.leader = "m.json.penstock-update";
    log.followers = {"a.penstock-update", "b.penstock-update"};
    log.ranges = {{.offset = 100, .bytes = 300'000, .at = 4096},
                  {.offset = 700'000, .bytes = 50, .at = 304'128}};
    log.patches = {{10, "abcd"}, {20, "0123456789abcdef"}};
    log.witnesses = {{512, 512, 1, 2}, {700'000, 50, 3, 4}};
    log.sums = {11, 12, 13};
    log.log_bytes = 304'178;
    return log;
}

TEST(UpdateFile, ALogIsReadAsItWasWritten) {
    const UpdateLog log = example();
    const std::string head = render_update_log(log);
    EXPECT_EQ(update_head_bytes(bytes_in(head)), head.size());
    const auto parsed = parse_update_log(bytes_in(head), log.log_bytes);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(render_update_log(*parsed), head);
    EXPECT_EQ(parsed->ranges[1].first_sum, 2U);
    EXPECT_FALSE(parse_update_log(bytes_in(head), log.log_bytes + 1));
}

TEST(UpdateFile, AChangedLogIsNone) {
    const std::string head = render_update_log(example());
    for (std::size_t i = 0; i < head.size(); ++i) {
        for (const int flip : {1, 0x80}) {
            std::string bad = head;
            bad[i] = static_cast<char>(bad[i] ^ flip);
            EXPECT_FALSE(parse_update_log(bytes_in(bad), example().log_bytes)) << i;
        }
        EXPECT_FALSE(parse_update_log(bytes_in(head).first(i), example().log_bytes)) << i;
    }
}

// With a right checksum: what it refers to is not in the file, or not in the log.
TEST(UpdateFile, ALogWithoutSenseIsNone) {
    const auto is_none = [](auto change) {
        UpdateLog log = example();
        change(log);
        return !parse_update_log(bytes_in(render_update_log(log)), log.log_bytes);
    };
    EXPECT_FALSE(is_none([](UpdateLog& /*log*/) {}));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.ranges[0].offset = UINT64_MAX; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.ranges[0].bytes = UINT64_MAX - 10; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.ranges[0].bytes = 0; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.ranges[0].at = 8; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.ranges[1].at = log.log_bytes; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { std::swap(log.ranges[0], log.ranges[1]); }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.patches[1].offset = 11; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.patches[1].offset = UINT64_MAX - 3; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.witnesses[0].bytes = 1 << 30; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.witnesses[1].offset = 900'000; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.sums.pop_back(); }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.head_end = log.tail_begin + 1; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.leader = "../m.penstock-update"; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.followers[0] = "/etc/passwd"; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.followers[0] = log.followers[1]; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.followers[0] = log.leader; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.followers.clear(); }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.leader.clear(); }));  // with ranges
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.head_end = 101; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.tail_begin = 700'049; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.patches[1].offset = 300'099; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.patches[0].bytes.clear(); }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.witnesses[0].offset = 513; }));
    EXPECT_TRUE(is_none([](UpdateLog& log) { log.witnesses[0].bytes = 0; }));
}

// The fuzzer begins with these: `ok_*` is read, anything else is refused.
TEST(UpdateFile, TheCorpusOfTheFuzzerIsReadOrRefused) {
    std::size_t count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(PENSTOCK_SOURCE_DIR "/fuzz/corpus/update_log")) {
        const std::string file = entry.path().filename().string();
        std::ifstream in(entry.path(), std::ios::binary);
        const std::string head((std::istreambuf_iterator<char>(in)), {});
        constexpr std::size_t kLogBytesAt = 40;
        std::uint64_t log_bytes = 0;
        if (head.size() >= kLogBytesAt + sizeof(log_bytes)) {
            std::memcpy(&log_bytes, head.data() + kLogBytesAt, sizeof(log_bytes));
        }
        const bool is_read = parse_update_log(bytes_in(head), log_bytes).has_value();
        EXPECT_EQ(file.starts_with("ok_"), is_read) << file;
        ++count;
    }
    EXPECT_GE(count, 40U);
}

TEST(UpdateFile, ALogOfAnythingIsNone) {
    std::mt19937_64 random(5);
    for (int i = 0; i < 2000; ++i) {
        std::string head = render_update_log(example());
        const std::size_t count = 1 + random() % 8;
        for (std::size_t k = 0; k < count; ++k) {
            head[random() % head.size()] = static_cast<char>(random());
        }
        head.resize(random() % (head.size() + 1));
        EXPECT_FALSE(parse_update_log(bytes_in(head), random() % 400'000));
    }
}

TEST(UpdateFile, PatchesAreOverTheBytesThatTheyAreOf) {
    const std::vector<std::byte> file(100);
    const std::vector<UpdateLog::Patch> patches{{3, "abc"}, {6, "d"}, {98, "yz"}};
    for (std::uint64_t begin = 0; begin < 100; ++begin) {
        for (std::uint64_t end = begin; end <= 100; ++end) {
            format::MemorySource source(file);
            PatchedBytes patched(source, patches);
            std::string found(end - begin, '?');
            ASSERT_TRUE(patched.read(begin, std::as_writable_bytes(std::span(found))));
            std::string whole(100, '\0');
            whole.replace(3, 4, "abcd").replace(98, 2, "yz");
            ASSERT_EQ(found, whole.substr(begin, end - begin));
        }
    }
}

class UpdateOfIndex : public testing::Test {
protected:
    static constexpr std::size_t kBytes = 3000;

    UpdateOfIndex() {
        std::vector<StateTensor> tensors = given(1);
        save_file(engine_, index_, {.tensors = tensors}, {.shard_bytes = kBytes});
    }

    std::vector<StateTensor> given(std::uint64_t seed) {
        data_.push_back(pattern(kBytes, seed));
        std::vector<StateTensor> out;
        for (const char* name : {"a", "b", "c"}) {
            out.push_back({.name = name,
                           .dtype = "U8",
                           .shape = {kBytes},
                           .data = std::span(std::as_const(data_.back()))});
        }
        return out;
    }

    support::TempFolder folder_;
    std::string index_ = folder_ / "m.safetensors.index.json";
    std::deque<std::vector<std::byte>> data_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
};

// A reader that opened its file before an update gets an error afterwards, and no mix.
TEST_F(UpdateOfIndex, AReaderFromBeforeIsNotGivenAMix) {
    StateFile file(engine_, index_);
    std::vector<std::byte> a(kBytes);
    std::vector<std::byte> b(kBytes);
    const TensorRead first{.name = "a", .into = std::span(a)};
    file.read({&first, 1});
    for (std::uint64_t seed = 5; seed < 12; ++seed) {
        update_file(engine_, index_, given(seed));
        const TensorRead second{.name = "b", .into = std::span(b)};
        const auto error = support::error_of([&] { file.read({&second, 1}, false); });
        ASSERT_TRUE(error) << seed;
        EXPECT_EQ(error->reason(), ErrorCode::kDamaged);
        file = StateFile(engine_, index_);
        file.read({&first, 1});
        EXPECT_EQ(a, data_.back());
    }
}

TEST_F(UpdateOfIndex, RefusesShardsInOtherFolders) {
    std::filesystem::create_directory(folder_ / "other");
    const StateFile file(engine_, index_);
    const std::string shard = file.table().files[1];
    const std::string there = folder_ / "other/shard";
    std::filesystem::rename(shard, there);
    std::filesystem::create_symlink(there, shard);
    const auto error = support::error_of([&] { update_file(engine_, index_, given(9)); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kUnsupported);
    EXPECT_THAT(error->what(), HasSubstr("folder"));
    EXPECT_EQ(StateFile(engine_, index_).verify().problems.size(), 0U);
    const std::vector<StateTensor> one = given(9);
    update_file(engine_, index_, {&one[1], 1});
    std::vector<std::byte> b(kBytes);
    const TensorRead second{.name = "b", .into = std::span(b)};
    StateFile(engine_, index_).read({&second, 1});
    EXPECT_EQ(b, data_.back());
}

}  // namespace
}  // namespace penstock::state
