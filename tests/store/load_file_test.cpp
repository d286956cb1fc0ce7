// SPDX-License-Identifier: Apache-2.0
// load_file(): whatever was saved comes back in one block of memory, from every form.
#include "format/value.hpp"
#include "format/zip/zip.hpp"
#include "state/writing/file_image.hpp"
#include "state/writing/file_writer.hpp"
#include "store/store_support.hpp"
#include "support.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "tensor/element_type.hpp"

#include <penstock/state_file.hpp>
#include <penstock/tensor.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace penstock::store {
namespace {

using support::pattern;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

using Bytes = std::vector<std::byte>;

struct Made {
    std::vector<Bytes> data;
    State state;
};

// Tensors of any type and size, empty ones and odd ones among them.
Made random_state(std::mt19937& random) {
    const char* const types[] = {"F32", "BF16", "U8", "I64", "BOOL", "F64", "C64"};
    Made out;
    const std::size_t count = random() % 12;
    std::vector<const char*> dtypes;
    std::vector<std::vector<std::uint64_t>> shapes;
    for (std::size_t i = 0; i < count; ++i) {
        dtypes.push_back(types[random() % std::size(types)]);
        shapes.push_back({random() % 3 == 0 ? random() % 40'000 : random() % 7, 1 + random() % 3});
        out.data.push_back(
            pattern(bytes_of(*element_type_named(dtypes[i]), shapes[i]).value(), random()));
    }
    for (std::size_t i = 0; i < count; ++i) {
        out.state.tensors.push_back({(i % 2 == 0 ? "layer." : "head.") + std::to_string(i),
                                     dtypes[i], shapes[i], out.data[i]});
    }
    return out;
}

class LoadFileTest : public testing::Test {
protected:
    // Saves tensors in a form; where they are.
    std::string saved(int form, State state) {
        state.structure = "null";
        if (form == 3) {
            CheckpointStore store(engine_, FileSystem::local(), {folder_ / "store"}, {.keep = 1});
            return store.save(state).path;
        }
        const char* const names[] = {"a.pt", "a.safetensors", "a.safetensors.index.json"};
        const std::string path = folder_ / names[form];
        save_file(engine_, path, state, {.shard_bytes = 30'000, .sync = false});
        return path;
    }
    void expect_same(const LoadedState& loaded, const State& wanted) {
        std::map<std::string, const StateTensor*> by_name;
        for (const StateTensor& t : wanted.tensors) {
            by_name.emplace(t.name, &t);
        }
        ASSERT_THAT(loaded.state.tensors, SizeIs(by_name.size()));
        std::vector<std::pair<const std::byte*, const std::byte*>> places;
        for (std::size_t i = 0; i < loaded.state.tensors.size(); ++i) {
            const StateTensor& t = loaded.state.tensors[i];
            ASSERT_TRUE(by_name.contains(t.name)) << t.name;
            EXPECT_EQ(t.dtype, by_name[t.name]->dtype);
            EXPECT_EQ(t.shape, by_name[t.name]->shape);
            EXPECT_TRUE(std::ranges::equal(t.data.span(), by_name[t.name]->data.span())) << t.name;
            const auto begin = reinterpret_cast<std::uintptr_t>(t.data.data);
            EXPECT_EQ(begin % (bits_of(*element_type_named(t.dtype)) / 8), 0U) << t.name;
            EXPECT_EQ(loaded.tensor(i).data, t.data.data);
            places.emplace_back(t.data.data, t.data.data + t.data.bytes);
        }
        std::sort(places.begin(), places.end());
        const std::byte* reach = loaded.memory.data();
        for (const auto& [begin, end] : places) {
            EXPECT_GE(begin, reach);
            reach = end;
        }
        EXPECT_LE(reach, loaded.memory.data() + loaded.memory.size());
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
};

TEST_F(LoadFileTest, WhatWasSavedComesBackAndCanBeSavedAgain) {
    std::mt19937 random(1);
    for (int round = 0; round < 8; ++round) {
        const Made made = random_state(random);
        const int form = round % 4;
        const std::string path = saved(form, made.state);
        std::uint64_t done = 0;
        std::uint64_t total = 0;
        const LoadedState loaded = load_file(
            engine_, path,
            {.verify = round % 3 != 0, .progress = [&](std::uint64_t now, std::uint64_t all) {
                 EXPECT_GE(now, done);
                 EXPECT_LE(now, all);
                 done = now;
                 total = all;
                 return true;
             }});
        SCOPED_TRACE(path);
        expect_same(loaded, made.state);
        EXPECT_EQ(done, total);
        EXPECT_EQ(loaded.state.structure == "null", form == 1 || form == 2 || form == 3);
        State again = loaded.state;
        again.metadata.clear();
        const int other = form == 0 ? 0 : 1 + form % 3;
        expect_same(load_file(engine_, saved(other, again)), made.state);
    }
}

TEST_F(LoadFileTest, NamesAndPatternsAreWhatIsLoaded) {
    std::mt19937 random(2);
    for (int round = 0; round < 8; ++round) {
        Made made = random_state(random);
        const std::string path = saved(round % 4, made.state);
        const auto is_other = [](const StateTensor& t) { return t.name.starts_with("head."); };
        std::erase_if(made.state.tensors, is_other);
        if (made.state.tensors.empty()) {
            EXPECT_EQ(error_of([&] {
                          static_cast<void>(load_file(engine_, path, {.names = {"layer.*"}}));
                      }).reason(),
                      ErrorCode::kInvalidArgument);
            continue;
        }
        const LoadedState loaded = load_file(engine_, path, {.names = {"layer.*", "layer.0"}});
        expect_same(loaded, made.state);
        EXPECT_EQ(loaded.state.structure, "null");
    }
    const std::string empty = saved(0, {});
    const Error error =
        error_of([&] { static_cast<void>(load_file(engine_, empty, {.names = {"layer"}})); });
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("'layer'"), HasSubstr("a.pt")));
}

TEST_F(LoadFileTest, APtHasAllTypesOfTorch) {
    std::size_t types = 0;
    for (const tensor::ElementTypeRow& row : tensor::kElementTypes) {
        const std::string name(row.name);
        Made saved;
        for (const std::vector<std::uint64_t>& shape :
             {std::vector<std::uint64_t>{3, 4}, {0, 2}, {2}}) {
            const std::uint64_t bits =
                row.bits *
                std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies{});
            saved.data.push_back(pattern(bits / 8, saved.data.size() + 1));
            saved.state.tensors.push_back(
                {std::string(1, static_cast<char>('a' + saved.data.size() - 1)), name, shape, {}});
        }
        for (std::size_t i = 0; i < 3; ++i) {
            saved.state.tensors[i].data = saved.data[i];
        }
        if (row.torch[0] == 0) {
            EXPECT_EQ(error_of([&] { save_file(engine_, folder_ / "a.pt", saved.state); }).reason(),
                      ErrorCode::kInvalidArgument)
                << name;
            continue;
        }
        ++types;
        save_file(engine_, folder_ / "a.pt", saved.state, {.sync = false});
        const LoadedState named = load_file(engine_, folder_ / "a.pt", {.names = {"a", "b", "c"}});
        const LoadedState whole = load_file(engine_, folder_ / "a.pt");
        save_file(engine_, folder_ / "b.pt", whole.state, {.sync = false});
        StateFile again(engine_, folder_ / "b.pt");
        for (std::size_t i = 0; i < 3; ++i) {
            const StateTensor& t = named.state.tensors[i];
            EXPECT_EQ(t.dtype, name);
            EXPECT_EQ(t.shape, saved.state.tensors[i].shape);
            EXPECT_TRUE(std::ranges::equal(t.data.span(), saved.data[i])) << name;
            EXPECT_EQ(again.table().tensors[i].dtype, name);
            Bytes back(saved.data[i].size());
            const TensorRead one{.name = t.name, .into = back};
            again.read({&one, 1});
            EXPECT_EQ(back, saved.data[i]) << name;
        }
    }
    EXPECT_EQ(types, 22U);
}

// Two tensors in one storage, one of them transposed: alone each is row-major, together they are
// views of the storage.
TEST_F(LoadFileTest, ViewsOfOneMemoryStayOneAndComeAlone) {
    const Bytes storage = pattern(4 * 6 * 5, 1);
    format::ValueTree tree;
    format::Value dict;
    dict.kind = format::ValueKind::kDict;
    for (const char* key : {"rows", "columns"}) {
        format::Value name;
        name.kind = format::ValueKind::kString;
        name.text = key;
        format::Value tensor;
        tensor.kind = format::ValueKind::kTensor;
        tensor.integer = static_cast<std::int64_t>(tree.tensors.size());
        dict.items.push_back(tree.add(name));
        dict.items.push_back(tree.add(tensor));
        format::TensorValue& t = tree.tensors.emplace_back();
        t.type = ElementType::kF32;
        t.shape = {6, 5};
        t.strides = {5, 1};
    }
    tree.tensors[1].shape = {5, 6};
    tree.tensors[1].strides = {1, 5};
    tree.storages.push_back({storage.size(), "cpu", "0"});
    tree.root = tree.add(dict);
    state::FileImage image = state::FileImage::torch_zip(tree, "a", {storage});
    const std::string path = folder_ / "a.pt";
    state::save_file(*engine_, FileSystem::local(), path, image);

    const LoadedState all = load_file(engine_, path);
    ASSERT_THAT(all.state.tensors, SizeIs(1));
    EXPECT_TRUE(std::ranges::equal(all.tensor(0).span(), storage));
    save_file(engine_, folder_ / "b.pt", all.state);
    const LoadedState alone = load_file(engine_, folder_ / "b.pt", {.names = {"columns", "rows"}});
    ASSERT_THAT(alone.state.tensors, SizeIs(2));
    EXPECT_THAT(alone.state.tensors[0].shape, ElementsAre(5, 6));
    EXPECT_TRUE(std::ranges::equal(alone.tensor(1).span(), storage));
    for (std::size_t row = 0; row < 5; ++row) {
        for (std::size_t column = 0; column < 6; ++column) {
            EXPECT_TRUE(std::equal(alone.tensor(0).data + 4 * (row * 6 + column),
                                   alone.tensor(0).data + 4 * (row * 6 + column) + 4,
                                   storage.data() + 4 * (column * 5 + row)));
        }
    }
}

TEST_F(LoadFileTest, DamageIsNamedAndProgressEndsIt) {
    const test::Tensors tensors({300'000, 300'000}, 1);
    for (int form = 0; form < 4; ++form) {
        const std::string path = saved(form, tensors.state());
        const Error ended = error_of([&] {
            static_cast<void>(load_file(
                engine_, path, {.progress = [](std::uint64_t, std::uint64_t) { return false; }}));
        });
        EXPECT_EQ(ended.reason(), ErrorCode::kCancelled) << path;
        const TensorTable table = inspect(engine_, path);
        const auto t1 = std::find_if(table.tensors.begin(), table.tensors.end(),
                                     [](const TensorEntry& t) { return t.name == "t001"; });
        const TensorStretch& place = t1->stretches[0];
        std::fstream file(table.files[place.file], std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(place.offset + 7));
        file.put(static_cast<char>(~std::to_integer<int>(tensors.data(1)[7])));
        file.close();
        const Error error = error_of([&] { static_cast<void>(load_file(engine_, path)); });
        EXPECT_EQ(error.reason(), ErrorCode::kDamaged) << path;
        EXPECT_THAT(error.what(), HasSubstr("t001"));
        const LoadedState unchecked = load_file(engine_, path, {.verify = false});
        EXPECT_THAT(unchecked.state.tensors, SizeIs(2));
    }
}

TEST_F(LoadFileTest, AnObjectThatIsNotReadCostsOnlyItself) {
    using namespace std::string_literals;  // NOLINT(google-build-using-namespace)
    const std::string tensor =
        "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"s
        "0X\3\0\0\0cpuK\1tQK\0K\1\x85K\1\x85\x89"
        "ccollections\nOrderedDict\n)RtR"s;
    const std::string pickle = "\x80\2}(X\1\0\0\0a"s + tensor + "X\1\0\0\0xcmy\nThing\n)Ru."s;
    const auto zip = format::zip::Layout::make(
        {{"a/data.pkl", pickle.size(), pickle}, {"a/data/0", 4, std::string(4, '\7')}});
    Bytes bytes(zip->file().total_bytes());
    zip->file().copy({0, bytes.size()}, {}, bytes);
    const std::string path = folder_ / "x.pt";
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    const Error error = error_of([&] { static_cast<void>(load_file(engine_, path)); });
    EXPECT_EQ(error.reason(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("state['x']: it is made by 'my.Thing'"));
    const LoadedState tensors = load_file(engine_, path, {.names = {"*"}});
    ASSERT_THAT(tensors.state.tensors, SizeIs(1));
    EXPECT_EQ(tensors.tensor(0).data[0], std::byte{7});
}

TEST_F(LoadFileTest, AFolderOfAStoreIsNoCheckpoint) {
    static_cast<void>(saved(3, test::Tensors({10}, 1).state()));
    const Error store = error_of([&] { static_cast<void>(load_file(engine_, folder_ / "store")); });
    EXPECT_EQ(store.reason(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(store.what(), HasSubstr("latest()"));
    EXPECT_EQ(
        error_of([&] { static_cast<void>(load_file(engine_, folder_ / "none")); }).system_errno(),
        ENOENT);
}

}  // namespace
}  // namespace penstock::store
