// SPDX-License-Identifier: Apache-2.0
// Stores and checkpoints that were moved from, or made of nothing: errors, and no crash.
#include "store/store_support.hpp"
#include "support.hpp"
#include "support/temp_folder.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/state_file.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::store {
namespace {

void expect_refused(const std::vector<std::function<void()>>& calls) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
        EXPECT_EQ(test::error_of(calls[i]).reason(), ErrorCode::kInvalidArgument) << i;
    }
}

TEST(EmptyCheckpoints, EachCallIsRefused) {
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    const test::Tensors tensors({5}, 1);
    CheckpointStore source(engine, FileSystem::local(), {folder / "store"});
    CheckpointStore store = std::move(source);
    const CheckpointInfo saved = store.save(tensors.state());
    Checkpoint from = store.open(saved.generation);
    Checkpoint checkpoint = std::move(from);
    EXPECT_EQ(checkpoint.tensors().size(), 1U);
    expect_refused({
        [&] { (void)source.save(tensors.state()); },
        [&] { (void)source.save_async(tensors.state()); },
        [&] { (void)source.latest(); },
        [&] { (void)source.open_newest([](const Checkpoint&) {}); },
        [&] { (void)source.list(); },
        [&] { (void)source.open(1); },
        [&] { source.pin(1); },
        [&] { source.remove(1); },
        [&] { (void)source.collect(); },
        [&] { (void)source.folders(); },
        [&] { (void)from.info(); },
        [&] { (void)from.tensors(); },
        [&] { (void)from.structure(); },
        [&] { (void)from.metadata(); },
        [&] { (void)from.read({}); },
        [&] { (void)from.verify(); },
        [&] { const Checkpoint none(nullptr, FileSystem::local(), saved.path); },
        [&] { const Checkpoint none(engine, FileSystem(nullptr), saved.path); },
        [&] { const CheckpointStore none(nullptr, FileSystem::local(), {folder / "store"}); },
        [&] { const CheckpointStore none(engine, FileSystem(nullptr), {folder / "store"}); },
        [&] { const CheckpointStore none(engine, FileSystem::local(), {}); },
    });
}

TEST(EmptyCheckpoints, MemoryAndEnginesThatAreNullAreRefused) {
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    const std::shared_ptr<Engine> null;
    const std::vector<std::byte> bytes(400);
    State whole;
    whole.tensors = {{"w", "F32", {100}, bytes}};
    State none;
    none.tensors = {{"w", "F32", {100}, ConstMemory(nullptr, 400)}};
    const std::string path = folder / "a.safetensors";
    save_file(engine, path, whole);
    CheckpointStore store(engine, FileSystem::local(), {folder / "store"});
    Checkpoint checkpoint = store.open(store.save(whole).generation);
    const TensorRead nowhere{.name = "w", .into = Memory(nullptr, 400)};
    expect_refused({
        [&] { (void)store.save(none); },
        [&] { (void)store.save_async(none).result(); },
        [&] { save_file(engine, folder / "b.pt", none); },
        [&] { save_file(engine, path, none); },
        [&] { save_file(engine, folder / "b.safetensors.index.json", none); },
        [&] {
            (void)checkpoint.read({&nowhere, 1});
        },
        [&] { save_file(null, path, whole); },
        [&] { (void)penstock::inspect(null, path); },
        [&] { (void)load_file(null, path); },
        [&] { const StateFile file(null, path); },
    });
    EXPECT_EQ(load_file(engine, path).state.tensors.size(), 1U);  // it is as it was
}

}  // namespace
}  // namespace penstock::store
