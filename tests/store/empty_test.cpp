// SPDX-License-Identifier: Apache-2.0
// Stores and checkpoints that were moved from, or made of nothing: errors, and no crash.
#include "store/store_support.hpp"
#include "support.hpp"
#include "support/temp_folder.hpp"

#include <penstock/checkpoint.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <memory>
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

}  // namespace
}  // namespace penstock::store
