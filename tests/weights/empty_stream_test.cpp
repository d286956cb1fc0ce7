// SPDX-License-Identifier: Apache-2.0
// A stream that was moved from, or has no engine: errors, and no crash.
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/engine.hpp>
#include <penstock/state_file.hpp>
#include <penstock/weights.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::weights {
namespace {

TEST(EmptyWeightStreams, EachCallIsRefusedAndCloseDoesNothing) {
    const support::TempFolder folder;
    const auto engine = std::make_shared<Engine>();
    const std::vector<std::byte> bytes(400);
    State state;
    state.tensors = {{"w", "F32", {100}, bytes}};
    save_file(engine, folder / "a.safetensors", state);
    const TensorTable table = inspect(engine, folder / "a.safetensors");
    WeightStream from(engine, table, {{"u", {"w"}}}, {.memory_bytes = 1 << 20});
    WeightStream stream = std::move(from);
    from.close();
    const std::vector<std::function<void()>> calls = {
        [&] {
            const WeightStream none(nullptr, table, {{"u", {"w"}}}, {});
        },
        [&] { (void)from.plan(); },
        [&] { (void)from.acquire(0); },
        [&] { (void)from.acquire_for(0, std::chrono::seconds(1)); },
        [&] { from.release(0); },
        [&] { from.set_memory(1 << 20); },
        [&] { (void)from.stats(); },
    };
    for (std::size_t i = 0; i < calls.size(); ++i) {
        EXPECT_EQ(test::error_of(calls[i]).reason(), ErrorCode::kInvalidArgument) << i;
    }
    EXPECT_EQ(stream.acquire(0).tensors.size(), 1U);
    stream.release(0);
}

}  // namespace
}  // namespace penstock::weights
