// SPDX-License-Identifier: Apache-2.0
// What is read of a checkpoint is what slicing the tensor gives; what was changed behind its back,
// wherever, is found.
#include "base/clock.hpp"
#include "store/manifest/stock_index.hpp"
#include "store/support.hpp"
#include "stream/checksum.hpp"
#include "support/crash_harness.hpp"
#include "support/temp_folder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>

namespace penstock::store {
namespace {

using format::test::below;
using format::test::Bytes;
using format::test::Random;
using format::test::random_bytes;
using test::error_of;
using test::TestCheckpoint;
using test::TestTensor;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using Shape = std::vector<std::uint64_t>;

std::uint64_t elements(const Shape& shape) {
    return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

// The elements of a box of a tensor in memory, the plain way: row by row.
Bytes box_of(std::span<const std::byte> data, const Shape& shape, std::uint64_t each,
             const Shape& begin, const Shape& end) {
    if (shape.empty()) {
        return {data.begin(), data.end()};
    }
    Bytes out;
    for (std::size_t d = 0; d < shape.size(); ++d) {
        if (begin[d] == end[d]) {
            return out;
        }
    }
    Shape at = begin;
    const std::uint64_t row = (end.back() - begin.back()) * each;
    while (true) {
        std::uint64_t index = 0;
        for (std::size_t d = 0; d < shape.size(); ++d) {
            index = index * shape[d] + at[d];
        }
        const auto from = data.subspan(index * each, row);
        out.insert(out.end(), from.begin(), from.end());
        std::size_t d = shape.size() - 1;
        while (d > 0 && ++at[d - 1] == end[d - 1]) {
            --d;
            at[d] = begin[d];
        }
        if (d == 0) {
            return out;
        }
    }
}

class CheckpointReader : public testing::Test {
protected:
    CheckpointReader() : engine_(std::make_shared<Engine>()) {}

    [[nodiscard]] Checkpoint open() const { return {engine_, FileSystem::local(), folder_.path()}; }
    std::span<const std::byte> random(std::uint64_t bytes, std::uint64_t seed = 1) {
        Random random(seed + bytes);
        return memory_.emplace_back(random_bytes(random, bytes));
    }
    TestTensor tensor(const std::string& name, Shape shape, std::uint32_t shard = 0) {
        const std::uint64_t bytes = 4 * elements(shape);
        const auto data = random(bytes, memory_.size() + 1);
        return {{name, "F32", std::move(shape), data}, shard};
    }
    /// The whole of a tensor.
    static Bytes whole(Checkpoint& checkpoint, const std::string& name, bool verify = true) {
        for (const CheckpointTensor& t : checkpoint.tensors()) {
            if (t.name == name) {
                Bytes out(t.bytes);
                const TensorRead one{.name = name, .into = out};
                checkpoint.read({&one, 1}, verify);
                return out;
            }
        }
        ADD_FAILURE() << name;
        return {};
    }
    void flip(const std::string& file, std::uint64_t offset, int bits = 255) const {
        std::string text = test::read_text(folder_ / file);
        ASSERT_LT(offset, text.size());
        text[offset] = static_cast<char>(text[offset] ^ bits);
        test::write_text(folder_ / file, text);
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_;
    std::deque<Bytes> memory_;
};

TEST_F(CheckpointReader, TellsWhatIsThere) {
    const std::vector<TestTensor> state{tensor("a", {3, 5}), tensor("b", {}, 1)};
    test::write_checkpoint(folder_.path(), state, {.generation = 4, .step = 100});
    Checkpoint c = open();
    EXPECT_EQ(c.info().generation, 4U);
    EXPECT_EQ(c.info().step, 100U);
    EXPECT_EQ(c.info().tensors, 2U);
    EXPECT_EQ(c.info().tensor_bytes, 64U);
    EXPECT_EQ(c.info().shards, 2U);
    EXPECT_EQ(c.info().path, folder_.path());
    EXPECT_EQ(c.structure(), "null");
    ASSERT_EQ(c.tensors().size(), 2U);
    EXPECT_EQ(c.tensors()[0].shape, (Shape{3, 5}));
    EXPECT_EQ(c.tensors()[0].bytes, 60U);
    EXPECT_EQ(c.tensors()[1].dtype, "F32");
    EXPECT_THAT(whole(c, "a"), testing::ElementsAreArray(state[0].tensor.data.span()));
    EXPECT_THAT(whole(c, "b"), testing::ElementsAreArray(state[1].tensor.data.span()));
    EXPECT_THAT(c.verify(), IsEmpty());
}

// Random boxes of tensors of every rank, cut into slices over several shards.
TEST_F(CheckpointReader, AnyBoxIsWhatSlicingGives) {
    Random random(3);
    std::vector<TestTensor> state;
    std::vector<std::pair<std::string, Shape>> shapes{
        {"scalar", {}},           {"vector", {300'000}},  {"rows", {700, 301}},
        {"columns", {5, 70'001}}, {"cube", {40, 60, 70}}, {"many", {3, 4, 5, 6, 7, 8}}};
    std::map<std::string, Bytes> global;
    for (const auto& [name, shape] : shapes) {
        Bytes& data = global[name] = random_bytes(random, 4 * elements(shape));
        const std::size_t rank = shape.size();
        if (rank == 0) {
            state.push_back({{name, "F32", shape, data}, 0});
            continue;
        }
        // Cut once in each of the first two dimensions, at a random place.
        std::vector<std::pair<Shape, Shape>> boxes{{Shape(rank, 0), shape}};
        for (std::size_t d = 0; d < std::min<std::size_t>(rank, 2); ++d) {
            const std::uint64_t cut = below(random, shape[d] + 1);
            std::vector<std::pair<Shape, Shape>> next;
            for (const auto& [begin, end] : boxes) {
                auto low = std::pair(begin, end);
                auto high = low;
                low.second[d] = cut;
                high.first[d] = cut;
                next.push_back(low);
                next.push_back(high);
            }
            boxes = next;
        }
        std::uint32_t shard = 0;
        for (const auto& [begin, end] : boxes) {
            Shape extent(rank);
            for (std::size_t d = 0; d < rank; ++d) {
                extent[d] = end[d] - begin[d];
            }
            const Bytes& slice = memory_.emplace_back(box_of(data, shape, 4, begin, end));
            state.push_back({{name, "F32", extent, slice, shape, begin}, shard++});
        }
    }
    for (const bool checksums : {true, false}) {
        test::write_checkpoint(folder_.path(), state, {.checksums = checksums});
        Checkpoint c = open();
        for (int round = 0; round < 30; ++round) {
            std::vector<TensorRead> wanted;
            std::vector<Bytes> expected;
            std::deque<Bytes> into;
            for (const auto& [name, shape] : shapes) {
                TensorRead one{.name = name, .into = {}};
                for (const std::uint64_t extent : shape) {
                    const std::uint64_t begin = below(random, extent + 1);
                    const bool all = below(random, 3) == 0;
                    one.begin.push_back(all ? 0 : begin);
                    one.end.push_back(all ? extent : begin + below(random, extent - begin + 1));
                }
                expected.push_back(box_of(global[name], shape, 4,
                                          shape.empty() ? Shape() : one.begin,
                                          shape.empty() ? Shape() : one.end));
                one.into = into.emplace_back(expected.back().size());
                wanted.push_back(std::move(one));
            }
            c.read(wanted, round % 2 == 0);
            for (std::size_t i = 0; i < wanted.size(); ++i) {
                ASSERT_TRUE(into[i] == expected[i])
                    << wanted[i].name << " [" << fmt::format("{}", fmt::join(wanted[i].begin, ","))
                    << "] to [" << fmt::format("{}", fmt::join(wanted[i].end, ",")) << "]";
            }
        }
    }
}

TEST_F(CheckpointReader, RowsCostThemselvesAndTwoChunks) {
    const std::uint64_t row = 4096;
    test::write_checkpoint(folder_.path(), {tensor("other", {1000}), tensor("w", {2000, 1024})});
    Checkpoint c = open();
    Random random(5);
    for (int round = 0; round < 100; ++round) {
        const std::uint64_t begin = below(random, 2001);
        const std::uint64_t end = begin + below(random, 2001 - begin);
        Bytes into((end - begin) * row);
        const TensorRead one{.name = "w", .into = into, .begin = {begin, 0}, .end = {end, 1024}};
        EXPECT_LE(c.read({&one, 1}), into.size() + 2 * kChunkBytes);
        EXPECT_EQ(c.read({&one, 1}, false), into.size());
    }
}

TEST_F(CheckpointReader, ReadsGoToDiskOnceForEachChunk) {
    test::write_checkpoint(folder_.path(), {tensor("w", {512, 512})});
    Checkpoint c = open();
    Bytes into(std::uint64_t{512} * 4);
    const TensorRead column{.name = "w", .into = into, .begin = {0, 7}, .end = {512, 8}};
    EXPECT_EQ(c.read({&column, 1}), 4U * kChunkBytes);  // the tensor: it touches every chunk
}

TEST_F(CheckpointReader, WrongRequestsAreToldApart) {
    test::write_checkpoint(folder_.path(), {tensor("w", {4, 5})});
    Checkpoint c = open();
    Bytes into(80);
    const auto why = [&](TensorRead one) {
        const Error error = error_of([&] { c.read({&one, 1}); });
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
        return std::string(error.what());
    };
    EXPECT_THAT(why({.name = "v", .into = into}), HasSubstr("no tensor 'v'"));
    EXPECT_THAT(why({.name = "w", .into = std::span(into).first(79)}), HasSubstr("79 bytes"));
    EXPECT_THAT(why({.name = "w", .into = into, .begin = {0}, .end = {4}}), HasSubstr("shape"));
    EXPECT_THAT(why({.name = "w", .into = into, .begin = {0, 0}, .end = {4, 6}}),
                HasSubstr("[0, 0] to [4, 6]"));
    EXPECT_THAT(why({.name = "w", .into = into, .begin = {3, 0}, .end = {2, 5}}),
                HasSubstr("[3, 0] to [2, 5]"));
    const TensorRead device{.name = "w", .into = {into.data(), 80, MemoryKind::kDevice, 1}};
    const Error error = error_of([&] { c.read({&device, 1}); });
    // No driver, or one that knows nothing of it.
    EXPECT_TRUE(error.reason() == ErrorCode::kUnsupported ||
                error.reason() == ErrorCode::kInvalidArgument)
        << error.what();
    EXPECT_EQ(into, std::vector<std::byte>(into.size(), into[0]));
}

TEST_F(CheckpointReader, APartOfAGlobalTensorIsWhatItIs) {
    TestTensor part = tensor("g", {2, 6});
    part.tensor.global_shape = {4, 6};
    part.tensor.global_offset = {2, 0};
    test::write_checkpoint(folder_.path(), {part});
    Checkpoint c = open();
    Bytes into(48);
    const TensorRead held{.name = "g", .into = into, .begin = {2, 0}, .end = {4, 6}};
    c.read({&held, 1});
    EXPECT_THAT(into, testing::ElementsAreArray(part.tensor.data.span()));
    const TensorRead absent{.name = "g", .into = into, .begin = {1, 0}, .end = {3, 6}};
    EXPECT_THAT(error_of([&] { c.read({&absent, 1}); }).what(), HasSubstr("6 of the 12 elements"));
}

// Earlier saves named slices in the index, and a tensor may have the name that they gave to one.
TEST_F(CheckpointReader, VerifyKnowsTheIndexOfEarlierSaves) {
    TestTensor low = tensor("w", {2, 6});
    low.tensor.global_shape = {4, 6};
    low.tensor.global_offset = {0, 0};
    TestTensor high = low;
    high.tensor.global_offset = {2, 0};
    high.shard = 1;
    const Manifest manifest =
        test::write_checkpoint(folder_.path(), {low, high, tensor("w@1,0", {3})});
    const std::string index = folder_ / "model.safetensors.index.json";
    EXPECT_THAT(test::read_text(index), AllOf(HasSubstr("w@1,0"), Not(HasSubstr("w@2,0"))));
    EXPECT_THAT(open().verify(), IsEmpty());
    test::write_text(index, *format::render_shard_index(earlier_stock_index(manifest)));
    EXPECT_THAT(test::read_text(index), AllOf(HasSubstr("w@0,0"), HasSubstr("w@2,0")));
    EXPECT_THAT(open().verify(), IsEmpty());
    format::ShardIndex wrong = earlier_stock_index(manifest);
    wrong.weight_map[1].second = wrong.weight_map[0].second;
    test::write_text(index, *format::render_shard_index(wrong));
    EXPECT_THAT(open().verify(), SizeIs(1));
    wrong.weight_map.pop_back();
    test::write_text(index, *format::render_shard_index(wrong));
    EXPECT_THAT(open().verify(), SizeIs(1));
}

TEST_F(CheckpointReader, HalfBytesAreReadWhereTheyAreWhole) {
    const auto data = random(12);
    test::write_checkpoint(folder_.path(), {{{"w", "F4", {4, 6}, data}, 0}});
    Checkpoint c = open();
    Bytes into(6);
    const TensorRead rows{.name = "w", .into = into, .begin = {1, 0}, .end = {3, 6}};
    c.read({&rows, 1});
    EXPECT_THAT(into, testing::ElementsAreArray(data.subspan(3, 6)));
    const TensorRead columns{
        .name = "w", .into = std::span(into).first(2), .begin = {0, 1}, .end = {4, 2}};
    EXPECT_EQ(error_of([&] { c.read({&columns, 1}); }).reason(), ErrorCode::kUnsupported);
}

TEST_F(CheckpointReader, StaysReadableWhenItIsDeleted) {
    const std::vector<TestTensor> state{tensor("a", {100'000}), tensor("b", {7}, 1)};
    test::write_checkpoint(folder_.path(), state);
    Checkpoint c = open();
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
        std::filesystem::remove(entry);
    }
    EXPECT_TRUE(whole(c, "a") ==
                Bytes(state[0].tensor.data.span().begin(), state[0].tensor.data.span().end()));
    EXPECT_TRUE(whole(c, "b") ==
                Bytes(state[1].tensor.data.span().begin(), state[1].tensor.data.span().end()));
}

TEST_F(CheckpointReader, WhatIsWholeCanBeReadBesideWhatIsMissing) {
    const std::vector<TestTensor> state{tensor("a", {1000}), tensor("b", {7}, 1)};
    test::write_checkpoint(folder_.path(), state);
    std::filesystem::remove(folder_ / "shard-00001.safetensors");
    Checkpoint c = open();
    EXPECT_EQ(whole(c, "b").size(), 28U);
    Bytes into(4000);
    const TensorRead one{.name = "a", .into = into};
    const Error error = error_of([&] { c.read({&one, 1}); });
    EXPECT_EQ(error.reason(), ErrorCode::kDamaged);
    EXPECT_EQ(error.path(), folder_ / "shard-00001.safetensors");
    const auto problems = c.verify();
    ASSERT_THAT(problems, SizeIs(1));
    EXPECT_THAT(problems[0].message, HasSubstr("missing"));
}

TEST_F(CheckpointReader, AManifestThatIsDamagedOpensNothing) {
    test::write_checkpoint(folder_.path(), {tensor("a", {1000})});
    flip("manifest.json", 30);
    EXPECT_EQ(error_of([&] { (void)open(); }).reason(), ErrorCode::kDamaged);
    std::filesystem::remove(folder_ / "manifest.json");
    EXPECT_EQ(error_of([&] { (void)open(); }).system_errno(), ENOENT);
}

// Every block of every shard: flipped, zeroed, exchanged with another, of another generation, cut.
// Each is found by verify(), with the file and the tensor, and by the read that meets it.
class Corruption : public CheckpointReader {
protected:
    static constexpr std::uint64_t kBlock = 4096;

    void SetUp() override {
        state_ = {tensor("first.weight", {140, 512}), tensor("first.bias", {511}),
                  tensor("second.weight", {20, 1001}, 1), tensor("second.bias", {3}, 1),
                  tensor("empty", {0}, 1)};
        manifest_ = test::write_checkpoint(folder_.path(), state_, {.generation = 3});
        for (const Shard& shard : manifest_.shards) {
            files_.push_back(test::read_text(folder_ / shard.file));
        }
        // The same state, saved once more.
        test::write_checkpoint(other_.path(), state_, {.generation = 4, .seed = 2});
    }

    // Writes `text` in the place of a shard and expects that verify() and read() see it, in a
    // tensor that has bytes in [begin, end).
    void expect_found(std::size_t shard, const std::string& text, std::uint64_t begin,
                      std::uint64_t end, const std::string& what) {
        const std::string path = folder_ / manifest_.shards[shard].file;
        test::write_text(path, text);
        Checkpoint c = open();
        const auto problems = c.verify();
        ASSERT_THAT(problems, Not(IsEmpty())) << what;
        std::vector<std::string> hit;
        for (const TestTensor& t : state_) {
            for (const Tensor& known : manifest_.tensors) {
                const Slice& slice = known.slices[0];
                if (known.name == t.tensor.name && slice.shard == shard && slice.begin < end &&
                    slice.begin + slice.bytes > begin) {
                    hit.push_back(known.name);
                }
            }
        }
        for (const CheckpointProblem& problem : problems) {
            EXPECT_EQ(problem.path, path) << what;
            if (!problem.tensor.empty()) {
                EXPECT_THAT(hit, Contains(problem.tensor)) << what;
            }
        }
        for (const TestTensor& t : state_) {
            Bytes into(t.tensor.data.span().size());
            const TensorRead one{.name = t.tensor.name, .into = into};
            try {
                c.read({&one, 1});
                EXPECT_TRUE(std::equal(into.begin(), into.end(), t.tensor.data.span().begin()))
                    << what << ": wrong bytes without an error of " << t.tensor.name;
            } catch (const Error& error) {
                EXPECT_EQ(error.reason(), ErrorCode::kDamaged) << what;
                EXPECT_EQ(error.path(), path) << what;
            }
        }
        test::write_text(path, files_[shard]);
        ++found_;
    }

    support::TempFolder other_;
    std::vector<TestTensor> state_;
    Manifest manifest_;
    std::vector<std::string> files_;
    int found_ = 0;
};

TEST_F(Corruption, SoundFilesAreSound) {
    Checkpoint c = open();
    EXPECT_THAT(c.verify(), IsEmpty());
}

TEST_F(Corruption, EveryBlockThatIsFlippedZeroedExchangedOrOlderIsFound) {
    Random random(11);
    for (std::size_t s = 0; s < files_.size(); ++s) {
        const std::string& good = files_[s];
        const std::string other = test::read_text(other_ / manifest_.shards[s].file);
        ASSERT_EQ(other.size(), good.size());
        for (std::uint64_t begin = 0; begin < good.size(); begin += kBlock) {
            const std::uint64_t bytes = std::min<std::uint64_t>(kBlock, good.size() - begin);
            const std::uint64_t end = begin + bytes;
            const std::string name = fmt::format("{} at {}", manifest_.shards[s].file, begin);
            std::string changed = good;
            const std::uint64_t at = begin + below(random, bytes);
            changed[at] = static_cast<char>(changed[at] ^ (1 << below(random, 8)));
            expect_found(s, changed, begin, end, name + " flipped");
            changed = good;
            changed.replace(begin, bytes, bytes, '\0');
            if (changed != good) {
                expect_found(s, changed, begin, end, name + " zeroed");
            }
            const std::uint64_t second =
                (begin + kBlock * (1 + below(random, 5))) % (good.size() / kBlock * kBlock);
            if (second != begin && bytes == kBlock) {
                changed = good;
                changed.replace(begin, kBlock, good, second, kBlock);
                changed.replace(second, kBlock, good, begin, kBlock);
                if (changed != good) {
                    expect_found(s, changed, std::min(begin, second),
                                 std::max(end, second + kBlock), name + " exchanged");
                }
            }
            for (const std::uint64_t cut : {begin, begin + bytes / 2}) {
                expect_found(s, good.substr(0, cut), 0, good.size(), name + " cut");
            }
        }
        expect_found(s, good + '\0', 0, good.size(), "longer");
    }
    EXPECT_GT(found_, 350);
}

// The shard of another generation has the same bytes: only what its checksums are bound to tells
// them apart.
TEST_F(Corruption, ShardsOfAnotherGenerationAreFound) {
    for (const Shard& shard : manifest_.shards) {
        EXPECT_EQ(test::read_text(other_ / shard.file), test::read_text(folder_ / shard.file));
    }
    // Its manifest with our shards: the same contents, and sums that are bound elsewhere.
    Manifest mixed = manifest_;
    const Manifest other = parse_manifest(test::read_text(other_ / "manifest.json"), "other");
    mixed.tensors = other.tensors;
    mixed.generation = 4;
    test::write_text(folder_ / "manifest.json", render(mixed));
    Checkpoint c = open();
    const auto problems = c.verify();
    EXPECT_THAT(problems, SizeIs(4));  // each tensor that has bytes
}

TEST_F(Corruption, VerifyNamesEveryPlace) {
    flip("shard-00001.safetensors", manifest_.tensors[0].slices[0].begin + 280'000);
    flip("shard-00002.safetensors", manifest_.tensors[2].slices[0].begin + 5);
    flip("shard-00002.safetensors", 9);
    test::write_text(folder_ / "model.safetensors.index.json", "{\"weight_map\":{}}");
    Checkpoint c = open();
    const auto problems = c.verify();
    ASSERT_THAT(problems, SizeIs(3 + 1));  // the index names what is whole
    EXPECT_THAT(problems[0].path, HasSubstr("shard-00002"));
    EXPECT_THAT(problems[0].message, HasSubstr("header"));
    EXPECT_EQ(problems[1].tensor, manifest_.tensors[0].name);
    EXPECT_EQ(problems[1].offset, manifest_.tensors[0].slices[0].begin + kChunkBytes);
    EXPECT_EQ(problems[2].tensor, manifest_.tensors[2].name);
    EXPECT_THAT(problems[3].path, HasSubstr("index.json"));
}

TEST_F(CheckpointReader, WithoutChecksumsVerifySaysThatItCannotTell) {
    test::write_checkpoint(folder_.path(), {tensor("a", {1000})}, {.checksums = false});
    Checkpoint c = open();
    const auto problems = c.verify();
    ASSERT_THAT(problems, SizeIs(1));
    EXPECT_THAT(problems[0].message, HasSubstr("4000 bytes were saved without checksums"));
}

// Verifies a sound checkpoint on a disk that refuses, `number` from the opening of a file whose
// name ends so, or, if that is empty, from a read.
class Refusing : public CheckpointReader {
protected:
    Refusing() {
        test::write_checkpoint(folder_.path(), {tensor("a", {1000})});
        rig_.files().make_folder("/saved");
        for (const std::string& name : FileSystem::local().list(folder_.path())) {
            const std::string text = test::read_text(folder_ / name);
            const File file =
                rig_.files().open("/saved/" + name, {.access = Access::kWrite, .create = true});
            rig_.engine()->write(file, std::as_bytes(std::span(text)), 0);
        }
    }
    std::vector<CheckpointProblem> verify(int number, const std::string& ending) {
        Checkpoint c(rig_.engine(), rig_.files(), "/saved");
        rig_.disks().front()->set_operation_faults([=](const simulation::DiskOperation& operation) {
            const bool meant = ending.empty() ? operation.call == simulation::DiskCall::kAccess
                                              : operation.call == simulation::DiskCall::kOpen &&
                                                    operation.path.ends_with(ending);
            return meant ? number : 0;
        });
        return c.verify();
    }
    // A shard that could not be opened early is opened again by verify().
    std::vector<CheckpointProblem> verify_unopened(int number) {
        rig_.disks().front()->set_operation_faults([=](const simulation::DiskOperation& operation) {
            return operation.path.ends_with("safetensors") ? number : 0;
        });
        return Checkpoint(rig_.engine(), rig_.files(), "/saved").verify();
    }

    test::CrashRig rig_;
};

TEST_F(Refusing, WhatTheMachineLacksIsNoDamage) {
    for (const int number : {EMFILE, ENFILE, ENOMEM, EACCES, EPERM, ESTALE}) {
        EXPECT_EQ(error_of([&] { (void)verify_unopened(number); }).system_errno(), number);
        rig_.disks().front()->set_operation_faults({});
        EXPECT_EQ(error_of([&] { (void)verify(number, "index.json"); }).system_errno(), number);
        rig_.disks().front()->set_operation_faults({});
    }
    EXPECT_EQ(error_of([&] { (void)verify(ENOMEM, ""); }).system_errno(), ENOMEM);
    rig_.disks().front()->set_operation_faults({});
    EXPECT_THAT(verify(0, ""), IsEmpty());
}

TEST_F(Refusing, WhatTheDiskCannotGiveBackIsFound) {
    EXPECT_THAT(verify_unopened(EIO), SizeIs(1));
    rig_.disks().front()->set_operation_faults({});
    EXPECT_THAT(verify(EIO, "index.json"), SizeIs(1));
    EXPECT_THAT(verify(ENOENT, "index.json"), SizeIs(1));
    rig_.disks().front()->set_operation_faults({});
    EXPECT_THAT(verify(EIO, ""), SizeIs(2));  // the header, so the shard; the index
}

TEST_F(CheckpointReader, ManySmallTensorsInOneRead) {
    constexpr std::size_t kCount = 20'000;
    std::vector<TestTensor> state;
    const auto data = random(kCount * 64);
    for (std::size_t i = 0; i < kCount; ++i) {
        state.push_back({{fmt::format("t{}", i), "F32", {16}, data.subspan(i * 64, 64)},
                         static_cast<std::uint32_t>(i % 3)});
    }
    test::write_checkpoint(folder_.path(), state);
    Checkpoint c = open();
    Bytes into(kCount * 64);
    std::vector<TensorRead> wanted;
    for (std::size_t i = 0; i < kCount; ++i) {
        wanted.push_back(
            {.name = fmt::format("t{}", i), .into = std::span(into).subspan(i * 64, 64)});
    }
    EXPECT_EQ(c.read(wanted), kCount * 64);
    EXPECT_TRUE(std::memcmp(into.data(), data.data(), into.size()) == 0);
    EXPECT_LT(engine_->stats().requests, 1000U);
}

TEST_F(CheckpointReader, ProgressIsToldAndStopsIt) {
    test::write_checkpoint(folder_.path(), {tensor("a", {20'000'000})});
    Checkpoint c = open();
    Bytes into(80'000'000);
    const TensorRead one{.name = "a", .into = into};
    const Error error = error_of([&] {
        c.read({&one, 1}, true, [](std::uint64_t done, std::uint64_t total) {
            EXPECT_LE(done, total);
            EXPECT_EQ(total, 80'000'000U);
            return false;
        });
    });
    EXPECT_EQ(error.reason(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace penstock::store
