// SPDX-License-Identifier: Apache-2.0
// Structures that cannot be read: not saved, not counted, not in the way of what can.
#include "store/keep/store_folder.hpp"
#include "store/store_support.hpp"
#include "support.hpp"
#include "support/temp_folder.hpp"

#include <penstock/checkpoint.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace penstock::store {
namespace {

using test::error_of;
using test::Tensors;
using test::write_text;
using ::testing::HasSubstr;

TEST(StoreStructure, AStructureThatCannotBeReadIsNotSaved) {
    const support::TempFolder folder;
    CheckpointStore store(std::make_shared<Engine>(), FileSystem::local(), {folder.path()},
                          {.keep = 1});
    const Tensors tensors({1000}, 1);
    const CheckpointInfo good = store.save(tensors.state());
    for (const char* const structure :
         {"{}", "{\"number\": 3}", "",
          R"({"penstock_structure":1,"values":[["tensor",0]],"tensors":[[0]],"storages":["t"]})"}) {
        State state = tensors.state();
        state.structure = structure;
        const Error error = error_of([&] { store.save(state); });
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument) << structure;
        EXPECT_EQ(store.list().size(), 1U);
    }
    EXPECT_EQ(store.latest()->generation, good.generation);
}

// Its manifest is sound and its shards are there: what another version might have written.
TEST(StoreStructure, WhatCannotBeReadKeepsNothingFromBeingKept) {
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    const FileSystem files = FileSystem::local();
    const Tensors tensors({1000}, 1);
    CheckpointInfo good;
    CheckpointInfo bad;
    {
        CheckpointStore store(engine, files, {folder.path()}, {.keep = 2});
        good = store.save(tensors.state());
        bad = store.save(tensors.state());
    }
    Manifest manifest = read_manifest(*engine, files, bad.path);
    manifest.structure =
        R"({"penstock_structure":1,"values":[["eval"]],"tensors":[],"storages":[]})";
    write_text(bad.path + "/manifest.json", render(manifest));
    EXPECT_FALSE(Checkpoint(engine, files, bad.path).verify().empty());
    CheckpointStore store(engine, files, {folder.path()}, {.keep = 2});
    std::vector<CheckpointInfo> skipped;
    EXPECT_EQ(store.latest(&skipped)->generation, good.generation);
    ASSERT_EQ(skipped.size(), 1U);
    EXPECT_THAT(skipped[0].problem, HasSubstr("structure"));
    store.save(tensors.state());
    EXPECT_EQ(store.list().size(), 3U);
    EXPECT_EQ(store.list().front().generation, good.generation);
    store.save(tensors.state());
    EXPECT_EQ(store.list().size(), 2U);
}

}  // namespace
}  // namespace penstock::store
