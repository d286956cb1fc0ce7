// SPDX-License-Identifier: Apache-2.0
// The public calls for one file and for an index of shards.
#include "format/file_layout.hpp"
#include "state/writing/file_image.hpp"
#include "state/writing/file_writer.hpp"
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
#include <atomic>
#include <cerrno>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::state {
namespace {

using support::pattern;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

using Bytes = std::vector<std::byte>;
using Shape = std::vector<std::uint64_t>;

const char* const kNames[] = {"a.pt", "a.safetensors", "a.safetensors.index.json"};

// Tensors and their bytes, which live together.
struct Made {
    std::vector<Bytes> data;
    State state;
};

Made made(const std::vector<std::pair<std::string, Shape>>& shapes, const char* dtype = "F32") {
    Made out;
    for (const auto& [name, shape] : shapes) {
        out.data.push_back(
            pattern(bytes_of(*element_type_named(dtype), shape).value(), out.data.size() + 1));
    }
    for (std::size_t i = 0; i < shapes.size(); ++i) {
        out.state.tensors.push_back({shapes[i].first, dtype, shapes[i].second, out.data[i]});
    }
    return out;
}

// Calls visit(element of the tensor, element of the box) for the elements of a box.
template <typename Visit>
void for_each_element(const Shape& shape, const Shape& begin, const Shape& end, Visit visit) {
    Shape at = begin;
    for (std::uint64_t n = 0;; ++n) {
        std::uint64_t element = 0;
        for (std::size_t d = 0; d < shape.size(); ++d) {
            element = element * shape[d] + at[d];
        }
        visit(element, n, at);
        std::size_t d = shape.size();
        while (d > 0 && ++at[d - 1] == end[d - 1]) {
            at[d - 1] = begin[d - 1];
            --d;
        }
        if (d == 0) {
            return;
        }
    }
}

class StateFileTest : public testing::Test {
protected:
    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>(EngineOptions{.transfers_max = 2});
};

TEST_F(StateFileTest, WhatWasSavedIsRead) {
    const Made saved =
        made({{"empty", {0, 3}}, {"scalar", {}}, {"m", {300, 70}}, {"v", {100'000}}});
    for (const char* name : kNames) {
        const std::string path = folder_ / name;
        save_file(engine_, path, saved.state, {.shard_bytes = 90'000});
        StateFile file(engine_, path);
        std::vector<Bytes> back;
        for (const Bytes& one : saved.data) {
            back.emplace_back(one.size());
        }
        std::vector<TensorRead> reads;
        std::uint64_t wanted = 0;
        for (std::size_t i = 0; i < back.size(); ++i) {
            reads.push_back({.name = saved.state.tensors[i].name, .into = back[i]});
            wanted += back[i].size();
        }
        std::uint64_t reported = 0;
        EXPECT_EQ(file.read(reads, true,
                            [&](std::uint64_t done, std::uint64_t total) {
                                EXPECT_EQ(total, wanted);
                                EXPECT_GE(done, reported);
                                reported = done;
                                return true;
                            }),
                  wanted);
        EXPECT_EQ(reported, wanted);
        EXPECT_TRUE(back == saved.data) << name;
        EXPECT_THAT(file.table().tensors, SizeIs(4));
        EXPECT_THAT(file.verify().problems, SizeIs(0));
        file.close();
        EXPECT_EQ(error_of([&] { file.read(reads); }).reason(), ErrorCode::kClosed);
        EXPECT_EQ(error_of([&] { static_cast<void>(file.verify()); }).reason(), ErrorCode::kClosed);
        EXPECT_THAT(file.table().tensors, SizeIs(4));
    }
}

// Boxes into memory with strides, in any order of dimensions and with room between elements.
TEST_F(StateFileTest, AnyBoxIsWhatSlicingGives) {
    const std::vector<std::pair<std::string, Shape>> shapes{
        {"vector", {70'000}}, {"matrix", {301, 70}}, {"cube", {20, 30, 40}}};
    const Made saved = made(shapes);
    std::mt19937_64 random(3);
    for (const char* name : kNames) {
        save_file(engine_, folder_ / name, saved.state, {.shard_bytes = 90'000});
        StateFile file(engine_, folder_ / name);
        for (int round = 0; round < 40; ++round) {
            const std::size_t which = random() % shapes.size();
            const Shape& shape = shapes[which].second;
            Shape begin, end, order(shape.size()), strides(shape.size());
            for (const std::uint64_t extent : shape) {
                begin.push_back(random() % extent);
                end.push_back(begin.back() + 1 + random() % (extent - begin.back()));
            }
            std::iota(order.begin(), order.end(), std::uint64_t{0});
            if (round % 2 == 0) {
                std::shuffle(order.begin(), order.end(), random);
            } else {
                std::reverse(order.begin(), order.end());
            }
            std::uint64_t reach = 4;
            for (const std::uint64_t d : order) {
                strides[d] = round % 4 == 1 ? reach : reach + 4 * (random() % 3);
                reach = strides[d] * (end[d] - begin[d] - 1) + reach;
            }
            Bytes memory(reach + 128, std::byte{0xa5});
            Bytes expected = memory;
            for_each_element(
                shape, begin, end, [&](std::uint64_t element, std::uint64_t, const Shape& at) {
                    std::uint64_t to = 64;
                    for (std::size_t d = 0; d < shape.size(); ++d) {
                        to += (at[d] - begin[d]) * strides[d];
                    }
                    std::copy_n(saved.data[which].data() + 4 * element, 4, expected.data() + to);
                });
            const TensorRead one{.name = shapes[which].first,
                                 .into = std::span(memory).subspan(64, reach),
                                 .begin = begin,
                                 .end = end,
                                 .strides_bytes = strides};
            file.read({&one, 1}, round % 3 != 0);
            ASSERT_TRUE(memory == expected) << name << " round " << round;
        }
    }
}

// More readers than the engine has transfers for.
TEST_F(StateFileTest, SmallReadsWaitForTheirTurn) {
    const Made saved = made({{"v", {1000}}});
    save_file(engine_, folder_ / "v.safetensors", saved.state);
    std::vector<std::jthread> readers;
    std::atomic<int> right{0};
    for (int i = 0; i < 6; ++i) {
        readers.emplace_back([&] {
            StateFile file(engine_, folder_ / "v.safetensors");
            for (int round = 0; round < 300; ++round) {
                Bytes back(saved.data[0].size());
                const TensorRead one{.name = "v", .into = back};
                file.read({&one, 1});
                right += back == saved.data[0] ? 1 : 0;
            }
        });
    }
    readers.clear();
    EXPECT_EQ(right, 6 * 300);
}

// A tensor that another framework left transposed.
TEST_F(StateFileTest, ATensorWithStridesComesInRows) {
    const Bytes storage = pattern(4 * 6 * 5, 1);
    format::ValueTree tree;
    format::Value tensor;
    tensor.kind = format::ValueKind::kTensor;
    format::Value name;
    name.kind = format::ValueKind::kString;
    name.text = "t";
    format::Value dict;
    dict.kind = format::ValueKind::kDict;
    dict.items = {tree.add(name), tree.add(tensor)};
    tree.storages.push_back({storage.size(), "cpu", "0"});
    format::TensorValue t;
    t.type = ElementType::kF32;
    t.shape = {5, 6};
    t.strides = {1, 5};
    tree.tensors.push_back(t);
    tree.root = tree.add(dict);
    FileImage image = FileImage::torch_zip(tree, "a", {storage});
    save_file(*engine_, FileSystem::local(), folder_ / "a.pt", image);

    StateFile file(engine_, folder_ / "a.pt");
    ASSERT_THAT(file.table().tensors, SizeIs(1));
    EXPECT_THAT(file.table().tensors[0].strides, ElementsAre(1, 5));
    Bytes all(storage.size());
    Bytes part(4 * 2 * 3);
    const std::vector<TensorRead> reads{
        {.name = "t", .into = all}, {.name = "t", .into = part, .begin = {1, 2}, .end = {3, 5}}};
    file.read(reads);
    for (std::uint64_t row = 0; row < 5; ++row) {
        for (std::uint64_t column = 0; column < 6; ++column) {
            const auto element =
                storage.begin() + static_cast<std::ptrdiff_t>(4 * (column * 5 + row));
            EXPECT_TRUE(std::equal(element, element + 4, all.data() + 4 * (row * 6 + column)));
            if (row >= 1 && row < 3 && column >= 2 && column < 5) {
                EXPECT_TRUE(std::equal(element, element + 4,
                                       part.data() + 4 * ((row - 1) * 3 + column - 2)));
            }
        }
    }
}

TEST_F(StateFileTest, DamageIsFoundWhereItIsLookedFor) {
    const Made saved = made({{"a", {200'000}}, {"b", {300'000}}});
    for (const char* name : {"a.pt", "a.safetensors"}) {
        const std::string path = folder_ / name;
        save_file(engine_, path, saved.state);
        StateFile before(engine_, path);
        const auto b = std::find_if(before.table().tensors.begin(), before.table().tensors.end(),
                                    [](const TensorEntry& t) { return t.name == "b"; });
        std::fstream damaged(path, std::ios::in | std::ios::out | std::ios::binary);
        damaged.seekp(static_cast<std::streamoff>(b->stretches[0].offset + 700'000));
        damaged.put(static_cast<char>(~std::to_integer<int>(saved.data[1][700'000])));
        damaged.close();
        Bytes into(1'200'000);
        const TensorRead one{.name = "b", .into = into};
        EXPECT_THAT(error_of([&] { before.read({&one, 1}); }).what(), HasSubstr("written to"));
        StateFile file(engine_, path);
        const Error error = error_of([&] { file.read({&one, 1}); });
        EXPECT_EQ(error.reason(), ErrorCode::kDamaged);
        EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("'b'"), HasSubstr(path)));
        EXPECT_EQ(file.read({&one, 1}, false), into.size());
        Bytes sound(800'000);
        const TensorRead other{.name = "a", .into = sound};
        EXPECT_EQ(file.read({&other, 1}), sound.size());
        const VerifiedFile verified = file.verify();
        ASSERT_THAT(verified.problems, SizeIs(1));
        EXPECT_EQ(verified.problems[0].tensor, "b");
    }
}

TEST_F(StateFileTest, NamesAndPatternsMeanTensors) {
    const Made saved = made({{"layer.0.w", {1}}, {"layer.1.w", {1}}, {"head", {1}}});
    save_file(engine_, folder_ / "a.pt", saved.state);
    StateFile file(engine_, folder_ / "a.pt");
    const std::vector<std::string> wanted{"head", "layer.*"};
    EXPECT_THAT(file.select(wanted), ElementsAre("head", "layer.0.w", "layer.1.w"));
    const std::vector<std::string> none{"haed"};
    const Error error = error_of([&] { static_cast<void>(file.select(none)); });
    EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'head'"));
    const StateFile moved = std::move(file);
    EXPECT_EQ(error_of([&] { static_cast<void>(file.table()); }).reason(),
              ErrorCode::kInvalidArgument);
}

TEST_F(StateFileTest, WhatAFileCannotHoldIsRefused) {
    const Bytes data(16);
    const auto refused = [&](const char* name, const State& state, SaveFileOptions options = {}) {
        const Error error = error_of([&] { save_file(engine_, folder_ / name, state, options); });
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument) << error.what();
        return std::string(error.what());
    };
    const auto with = [&](StateTensor tensor) {
        State state;
        state.tensors = {std::move(tensor)};
        return state;
    };
    EXPECT_THAT(refused("a.pt", with({"w", "F31", {4}, data})), HasSubstr("'F31'"));
    EXPECT_THAT(refused("a.pt", with({"w", "F32", {5}, data})), HasSubstr("16 were given"));
    EXPECT_THAT(refused("a.pt", with({"w", "F32", {4}, data, {8}, {0}})), HasSubstr("a slice"));
    EXPECT_THAT(refused("a.pt", with({"w", "F6_E2M3", {16}, std::span(data).first(12)})),
                HasSubstr("torch has no type"));
    State more = with({"w", "F32", {4}, data});
    more.metadata = {{"key", "value"}};
    EXPECT_THAT(refused("a.pt", more), HasSubstr("no metadata"));
    more.structure = "[]";
    EXPECT_THAT(refused("a.safetensors", more), HasSubstr("no structure"));
    more.metadata.clear();
    EXPECT_THAT(refused("a.pt", more), HasSubstr("structure"));
    EXPECT_THAT(refused("a.json", with({"w", "F32", {4}, data})), HasSubstr(".json"));
    EXPECT_THAT(refused("a", with({"w", "F32", {4}, data}), {.format = StateFormat::kIndex}),
                HasSubstr("ends in"));
    const Error device = error_of([&] {
        save_file(engine_, folder_ / "a.pt",
                  with({"w", "F32", {4}, ConstMemory(data.data(), 16, MemoryKind::kDevice, 1)}));
    });
    EXPECT_EQ(device.reason(), ErrorCode::kUnsupported);
    EXPECT_THAT(FileSystem::local().list(folder_.path()), SizeIs(0));
}

TEST_F(StateFileTest, WrongReadsAreToldApart) {
    const Made saved = made({{"w", {4, 5}}});
    save_file(engine_, folder_ / "a.safetensors", saved.state);
    StateFile file(engine_, folder_ / "a.safetensors");
    Bytes into(80);
    const auto why = [&](TensorRead one) {
        const Error error = error_of([&] { file.read({&one, 1}); });
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
        return std::string(error.what());
    };
    EXPECT_THAT(why({.name = "v", .into = into}), HasSubstr("no tensor 'v'"));
    EXPECT_THAT(why({.name = "w", .into = std::span(into).first(79)}), HasSubstr("79 bytes"));
    EXPECT_THAT(why({.name = "w", .into = into, .begin = {0, 0}, .end = {4, 6}}),
                HasSubstr("[0, 0] to [4, 6]"));
    EXPECT_THAT(why({.name = "w", .into = into, .strides_bytes = {16, 4}}), HasSubstr("overlap"));
    const TensorRead device{.name = "w", .into = {into.data(), 80, MemoryKind::kDevice, 1}};
    EXPECT_EQ(error_of([&] { file.read({&device, 1}); }).reason(), ErrorCode::kUnsupported);
}

// A device on which every sync fails tells whether anybody asked for one.
TEST(SaveFile, SyncsUnlessItIsToldNotTo) {
    const Made old = made({{"a", {100}}, {"b", {100}}});
    const Made next = made({{"a", {90}}, {"b", {110}}});
    for (const char* name : kNames) {
        test::CrashRig rig;
        rig.files().make_folder("/folder");
        const std::string path = std::string("/folder/") + name;
        save_file(rig.engine(), path, old.state, {.shard_bytes = 400}, rig.files());
        rig.disks()[0]->set_operation_faults([](const simulation::DiskOperation& operation) {
            return operation.call == simulation::DiskCall::kSync ||
                           operation.call == simulation::DiskCall::kSyncFolder
                       ? EIO
                       : 0;
        });
        const auto first_of = [&](const Made& wanted) {
            Bytes into(wanted.data[0].size());
            const TensorRead read{.name = "a", .into = into};
            StateFile(rig.engine(), path, rig.files()).read({&read, 1});
            return into == wanted.data[0];
        };
        const Error error = error_of(
            [&] { save_file(rig.engine(), path, next.state, {.shard_bytes = 400}, rig.files()); });
        EXPECT_EQ(error.system_errno(), EIO) << name;
        EXPECT_TRUE(first_of(old)) << name;
        save_file(rig.engine(), path, next.state, {.shard_bytes = 400, .sync = false}, rig.files());
        EXPECT_TRUE(first_of(next)) << name;
    }
}

// A page in the cache proves nothing of the device.
TEST(VerifyOnDisk, ReadsWhatIsCachedFromTheDeviceAllTheSame) {
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    const Made state = made({{"a", {1 << 20}}});
    for (const std::string name : {"/a.pt", "/a.safetensors"}) {
        const std::string path = folder.path() + name;
        save_file(engine, path, state.state);
        if (!File(path).info().direct) {
            GTEST_SKIP() << "no direct I/O here: " << File(path).info().reason;
        }
        const std::string warm = test::read_text(path);
        StateFile file(engine, path);
        const std::uint64_t before = engine->stats().bytes_read;
        EXPECT_TRUE(file.verify().problems.empty());
        EXPECT_GE(engine->stats().bytes_read - before, std::uint64_t{4} << 20) << name;
    }
}

}  // namespace
}  // namespace penstock::state
