// SPDX-License-Identifier: Apache-2.0
// Tensors that come one after another: what was given is in the file, whatever becomes of its
// memory; where they lie; and what leaves the old file. Crashes: crash_index_test.cpp.
#include "format/byte_source.hpp"
#include "format/safetensors.hpp"
#include "format/torch_file.hpp"
#include "state/streamed/arrivals.hpp"
#include "state/streamed/streamed_file.hpp"
#include "stream/checksum.hpp"
#include "support/crash_harness.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/state_file.hpp>
#include <penstock/tensor.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace penstock::state {
namespace {

using support::pattern;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;
constexpr std::uint64_t kMega = std::uint64_t{1} << 20;
const char* const kFormats[] = {"a.pt", "a.safetensors", "a.safetensors.index.json"};

struct Given {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;
    [[nodiscard]] Bytes content() const {
        return pattern(*bytes_of(*element_type_named(dtype), shape), name.size() * 31 + shape[0]);
    }
};
using Plan = std::vector<Given>;

// All from one block of memory, which holds the next tensor as soon as it is asked for.
TensorStream stream_of(const Plan& plan, bool announced = false) {
    TensorStream stream;
    stream.next = [plan, at = std::size_t{0},
                   memory = Bytes()]() mutable -> std::optional<StateTensor> {
        std::fill(memory.begin(), memory.end(), std::byte{0xee});
        if (at == plan.size()) {
            return std::nullopt;
        }
        const Given& given = plan[at++];
        const Bytes content = given.content();
        memory.resize(std::max(memory.size(), content.size()));
        std::copy(content.begin(), content.end(), memory.begin());
        return StateTensor{given.name, given.dtype, given.shape,
                           ConstMemory(memory.data(), content.size())};
    };
    if (announced) {
        stream.like.emplace();
        for (const Given& given : plan) {
            stream.like->push_back({given.name, given.dtype, given.shape, {}});
        }
    }
    return stream;
}

// Tensors of all sizes, even and odd, some of them larger than a window and than the hold.
Plan mixed() {
    Plan plan{{"scalars", "F32", {1}},
              {"odd", "U8", {3}},
              {"flags", "BOOL", {70'001}},
              {"none", "F64", {0, 4}},
              {"wide", "F64", {300, 4000}},
              {"half", "BF16", {1001}},
              {"large odd", "U8", {9 * kMega + 5}},
              {"after", "I64", {77}}};
    for (std::uint64_t i = 0; i < 60; ++i) {
        plan.push_back(
            {fmt::format("layer.{}.weight", i), i % 3 == 0 ? "F16" : "F32", {i + 1, 999}});
    }
    plan.push_back({"last", "F32", {kMega}});
    plan.push_back({"tail", "I16", {333}});
    return plan;
}

class Streamed : public testing::Test {
protected:
    void expect(const std::string& path, const Plan& plan) {
        StateFile file(engine_, path);
        ASSERT_EQ(file.table().tensors.size(), plan.size()) << path;
        std::vector<Bytes> found;
        for (const Given& given : plan) {
            found.emplace_back(*bytes_of(*element_type_named(given.dtype), given.shape));
        }
        std::vector<TensorRead> reads;
        for (std::size_t i = 0; i < plan.size(); ++i) {
            reads.push_back({.name = plan[i].name, .into = found[i]});
        }
        file.read(reads);
        for (std::size_t i = 0; i < plan.size(); ++i) {
            EXPECT_TRUE(found[i] == plan[i].content()) << path << " " << plan[i].name;
        }
        for (const TensorEntry& tensor : file.table().tensors) {
            const std::uint64_t element = bits_of(*element_type_named(tensor.dtype)) / 8;
            EXPECT_EQ(tensor.stretches[0].offset % element, 0U) << path << " " << tensor.name;
        }
        const VerifiedFile verified = file.verify();
        EXPECT_THAT(verified.problems, testing::IsEmpty()) << path;
        EXPECT_EQ(verified.note, "") << path;
    }
    [[nodiscard]] std::vector<std::string> names() const {
        return FileSystem::local().list(folder_.path());
    }
    [[nodiscard]] Bytes bytes_in(const std::string& name) const {
        const File file = FileSystem::local().open(folder_ / name);
        Bytes out(file.size());
        engine_->read(file, out);
        return out;
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>(EngineOptions{.transfers_max = 2});
};

TEST_F(Streamed, WhatWasGivenIsThereThoughItsMemoryIsUsedAgain) {
    const Plan plan = mixed();
    for (const char* name : kFormats) {
        save_file(engine_, folder_ / name, stream_of(plan, true));
        expect(folder_ / name, plan);
    }
    for (const std::uint64_t shard_bytes : {std::uint64_t{1}, 5 * kMega, UINT64_MAX}) {
        save_file(engine_, folder_ / kFormats[2], stream_of(plan),
                  {.shard_bytes = shard_bytes, .sync = false});
        expect(folder_ / kFormats[2], plan);
        StateFile file(engine_, folder_ / kFormats[2]);
        std::vector<std::uint64_t> bytes(file.table().files.size());
        std::vector<std::uint64_t> tensors(bytes.size());
        for (const TensorEntry& tensor : file.table().tensors) {
            bytes[tensor.stretches[0].file] += tensor.bytes;
            tensors[tensor.stretches[0].file] += tensor.bytes != 0 ? 1 : 0;
        }
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            EXPECT_TRUE(bytes[i] <= shard_bytes || tensors[i] == 1) << shard_bytes;
        }
    }
    EXPECT_EQ(names().size(), 3 + StateFile(engine_, folder_ / kFormats[2]).table().files.size());
}

TEST_F(Streamed, WithoutChecksumsToo) {
    const Plan plan = mixed();
    for (const char* name : {kFormats[1], kFormats[2]}) {
        save_file(engine_, folder_ / name, stream_of(plan, true), {.checksums = false});
        StateFile file(engine_, folder_ / name);
        Bytes found(plan[4].content().size());
        const TensorRead read{.name = plan[4].name, .into = found};
        file.read({&read, 1});
        EXPECT_TRUE(found == plan[4].content());
        EXPECT_EQ(file.table().tensors[0].checksum, ChecksumKind::kNone);
    }
}

// The pickle is behind the storages, and a reader that trusts nothing takes the file.
TEST_F(Streamed, ATorchFileHasItsPickleLast) {
    const Plan plan = mixed();
    save_file(engine_, folder_ / "a.pt", stream_of(plan));
    const Bytes bytes = bytes_in("a.pt");
    format::MemorySource source(bytes);
    const auto file = format::torch_file::read(source, true);
    ASSERT_TRUE(file) << file.error().describe();
    ASSERT_EQ(file->storages.size(), plan.size());
    const auto records = format::zip::read_directory(source);
    ASSERT_TRUE(records);
    EXPECT_EQ(records->front().name, "a/data/0");
    EXPECT_EQ(records->at(plan.size()).name, "a/data.pkl");
    for (const auto& storage : file->storages) {
        EXPECT_EQ(storage.offset % 64, 0U);
    }
}

TEST_F(Streamed, KnownTensorsGiveTheFileOfAnOrdinarySave) {
    const Plan plan = mixed();
    std::vector<Bytes> data;
    State state;
    for (const Given& given : plan) {
        data.push_back(given.content());
    }
    for (std::size_t i = 0; i < plan.size(); ++i) {
        state.tensors.push_back({plan[i].name, plan[i].dtype, plan[i].shape, data[i]});
    }
    save_file(engine_, folder_ / "whole.safetensors", state);
    Plan shuffled = plan;
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(5));
    TensorStream stream = stream_of(shuffled);
    stream.like = stream_of(plan, true).like;
    std::uint64_t last = 0;
    save_file(engine_, folder_ / "stream.safetensors", stream,
              {.progress = [&](std::uint64_t done, std::uint64_t total) {
                  EXPECT_GE(done, last);
                  EXPECT_LE(done, total);
                  last = done;
                  return true;
              }});
    EXPECT_TRUE(bytes_in("stream.safetensors") == bytes_in("whole.safetensors"));
    EXPECT_EQ(last, bytes_in("whole.safetensors").size());
}

TEST_F(Streamed, ManyTensorsAndManyShards) {
    Plan plan;
    for (std::uint64_t i = 0; i < 1200; ++i) {
        plan.push_back({fmt::format("a.long.name.of.a.small.tensor.{}", i), "U8", {i % 5}});
    }
    for (const char* name : kFormats) {
        save_file(engine_, folder_ / name, stream_of(plan, true),
                  {.shard_bytes = 600, .sync = false});
        expect(folder_ / name, plan);
    }
    // The room for names ends a shard, too.
    save_file(engine_, folder_ / kFormats[2], stream_of(plan), {.shard_bytes = 1'000'000});
    EXPECT_GT(StateFile(engine_, folder_ / kFormats[2]).table().files.size(), 3U);
    expect(folder_ / kFormats[2], plan);
    save_file(engine_, folder_ / kFormats[0], stream_of({}));
    save_file(engine_, folder_ / kFormats[2], stream_of({}));
    EXPECT_TRUE(StateFile(engine_, folder_ / kFormats[2]).table().tensors.empty());
    EXPECT_TRUE(StateFile(engine_, folder_ / kFormats[0]).table().tensors.empty());
}

TEST_F(Streamed, WhatGoesWrongLeavesTheOldFile) {
    const Plan plan{{"a", "F32", {1000}}, {"b", "U8", {7}}, {"c", "F32", {10}}};
    using Change = std::function<void(TensorStream&)>;
    const auto with = [](const Plan& other) {
        return [other](TensorStream& stream) { stream.next = stream_of(other).next; };
    };
    const std::vector<std::pair<Change, std::string>> mistakes{
        {with({plan[0], plan[1], plan[0], plan[2]}), "tensor 'a': it comes twice"},
        {with({plan[0], plan[1]}), "tensor 'c': it was announced"},
        {with({plan[0], {"x", "U8", {7}}}), "tensor 'x': it is not among"},
        {with({plan[0], {"b", "I8", {7}}}), "tensor 'b': it is [7] of I8, and [7] of U8"},
        {with({plan[0], {"b", "U8", {1, 7}}}), "and [7] of U8 was announced"},
        {[](TensorStream& s) { s.like->push_back(s.like->at(1)); },
         "'b': it comes twice in the list"},
        {[](TensorStream& s) { s.like->at(1).dtype = "U9"; }, "type"},
        {[](TensorStream& s) { s.next = {}; }, "no function"},
        {[](TensorStream& s) { s.structure = "{}"; }, ""},
    };
    for (const char* name : kFormats) {
        save_file(engine_, folder_ / name, stream_of(plan, true));
        const std::size_t files = names().size();
        for (const auto& [change, text] : mistakes) {
            TensorStream stream = stream_of(plan, true);
            change(stream);
            const Error error = error_of([&] { save_file(engine_, folder_ / name, stream); });
            EXPECT_THAT(error.what(), HasSubstr(text)) << name;
            EXPECT_EQ(names().size(), files) << name << " " << text;
        }
        expect(folder_ / name, plan);
        TensorStream stream = stream_of(mixed(), true);
        stream.next = [give = stream.next, left = 7]() mutable {
            return left-- > 0 ? give() : throw std::runtime_error("the source");
        };
        EXPECT_THROW(save_file(engine_, folder_ / name, stream), std::runtime_error);
        EXPECT_EQ(names().size(), files);
        expect(folder_ / name, plan);
    }
}

TEST_F(Streamed, OneFileWithItsHeaderFirstNeedsToKnow) {
    TensorStream stream;
    bool asked = false;
    stream.next = [&]() -> std::optional<StateTensor> {
        asked = true;
        return std::nullopt;
    };
    const Error error = error_of([&] { save_file(engine_, folder_ / "a.safetensors", stream); });
    EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("announced (like)"));
    stream.structure = R"([{"kind": "none"}])";
    EXPECT_THAT(error_of([&] { save_file(engine_, folder_ / "a.pt", stream); }).what(),
                HasSubstr("announced (like)"));
    EXPECT_FALSE(asked);
    EXPECT_THAT(names(), testing::IsEmpty());
}

// It never ends: the device is full at some time.
TEST(StreamedToAFullDisk, TheOldFileStays) {
    for (const char* name : kFormats) {
        test::CrashRig rig(1, {.capacity_bytes = 40 << 20}, false);
        rig.files().make_folder("/folder");
        const std::string path = std::string("/folder/") + name;
        const Plan plan{{"a", "F32", {1000}}};
        save_file(rig.engine(), path, stream_of(plan, true), {}, rig.files());
        const auto before = rig.files().list("/folder");
        const Bytes content(3 << 20, std::byte{7});
        std::uint64_t count = 0;
        TensorStream endless;
        endless.next = [&]() -> std::optional<StateTensor> {
            return StateTensor{fmt::format("t{}", count++), "U8", {content.size()}, content};
        };
        if (path.ends_with("rs")) {
            endless.like.emplace();
            for (std::uint64_t i = 0; i < 20; ++i) {
                endless.like->push_back({fmt::format("t{}", i), "U8", {content.size()}, {}});
            }
        }
        const Error error = error_of(
            [&] { save_file(rig.engine(), path, endless, {.shard_bytes = 9 << 20}, rig.files()); });
        EXPECT_EQ(error.system_errno(), ENOSPC) << name << error.what();
        EXPECT_EQ(count == 0, path.ends_with("rs"));
        EXPECT_EQ(rig.files().list("/folder"), before);
        StateFile file(rig.engine(), path, rig.files());
        EXPECT_EQ(file.table().tensors.at(0).name, "a");
    }
}

// While it is copied: the sums of the copy are not those of the memory any more.
TEST_F(Streamed, ATensorThatChangesMeanwhileIsAnError) {
    Bytes memory = pattern(3 * kMega, 1);
    const StateTensor tensor{"w", "U8", {memory.size()}, memory};
    TensorStream stream = stream_of({});
    for (const Changing changing : {Changing::kFails, Changing::kTorn}) {
        SaveFileOptions options{.changing = changing};
        Arrivals arrivals(stream, options, false, "path");
        File file =
            FileSystem::local().open(folder_ / "x", {.access = Access::kWrite, .create = true});
        stream::ProgressClock clock({}, "save");
        MemoryPool pool = window_pool();
        stream::StagedWriter writer(*engine_, file, clock, pool);
        bool changed = false;
        const stream::PieceSums sums{kMega, [&](std::span<const std::byte> piece) {
                                         if (!std::exchange(changed, true)) {
                                             memory[0] ^= std::byte{1};
                                         }
                                         return stream::content_hash(piece);
                                     }};
        const auto write = [&] { arrivals.write(writer, 0, tensor, sums); };
        if (changing == Changing::kFails) {
            const Error error = error_of(write);
            EXPECT_EQ(error.reason(), ErrorCode::kChanged);
            EXPECT_THAT(error.what(), HasSubstr("tensor 'w'"));
        } else {
            write();
        }
    }
}

TEST_F(Streamed, PatchesComeAfterWhatTheyReplace) {
    Bytes wanted = pattern(30 * kMega, 3);
    File file = FileSystem::local().open(folder_ / "x", {.access = Access::kWrite, .create = true});
    stream::ProgressClock clock({}, "save");
    MemoryPool pool = window_pool();
    stream::StagedWriter writer(*engine_, file, clock, pool);
    std::mt19937_64 random(4);
    for (std::uint64_t at = 0; at < wanted.size();) {
        const std::uint64_t count =
            std::min<std::uint64_t>(1 + random() % (3 * kMega), wanted.size() - at);
        writer.write(at, ConstMemory(wanted.data() + at, count));
        at += count;
        for (const std::uint64_t back : {std::uint64_t{5}, std::uint64_t{4097}, 9 * kMega}) {
            if (back <= at) {
                std::copy_n(reinterpret_cast<const std::byte*>("1234"), 4,
                            wanted.data() + (at - back));
                writer.patch(at - back, "1234");
            }
        }
    }
    writer.finish();
    EXPECT_TRUE(bytes_in("x") == wanted);
}

}  // namespace
}  // namespace penstock::state
