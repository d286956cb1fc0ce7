// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads and save to a real folder.
#pragma once

#include "store/rank_state.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/ranks.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace penstock::store {

/// Elements: more than a tensor that rank 0 writes alone.
inline constexpr std::uint64_t kLarge = 400'000;

class RankSaves : public ::testing::Test {
protected:
    using Work = std::function<void(const Ranks&, CheckpointStore&)>;

    [[nodiscard]] static StoreOptions options_of(const Ranks& ranks) {
        return {.keep = 2, .lock_wait_ms = 0, .ranks = ranks, .rank_wait_ms = 2000};
    }
    /// Each rank on a thread of its own, with a store of its own; the errors, by rank.
    std::vector<std::string> run(std::uint32_t count, const Work& work) {
        std::vector<std::string> errors(count);
        std::vector<std::thread> threads;
        for (const Ranks& ranks : Ranks::of_threads(count)) {
            threads.emplace_back([this, ranks, &work, &errors] {
                try {
                    CheckpointStore store(engine_, FileSystem::local(), folders_of(ranks),
                                          options_of(ranks));
                    work(ranks, store);
                } catch (const std::exception& error) {
                    errors[ranks.number()] = error.what();
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        return errors;
    }
    void save_all(std::uint32_t count, std::uint64_t number, std::uint64_t whole = 300) {
        EXPECT_THAT(run(count,
                        [&](const Ranks& ranks, CheckpointStore& store) {
                            const RankState state(ranks.number(), ranks.count(), number, whole);
                            const CheckpointInfo info = store.save(state.state(), {.step = number});
                            EXPECT_EQ(info.step, number);
                            EXPECT_EQ(info.path, store.latest()->path);
                            EXPECT_EQ(info.tensors, 7U);
                            EXPECT_THAT(info.note, ::testing::Not(::testing::HasSubstr("rank")));
                        }),
                    ::testing::Each(""));
    }
    [[nodiscard]] CheckpointStore reader() {
        return {engine_, FileSystem::local(), {folder_ / "ckpt"}};
    }
    [[nodiscard]] std::string as_stock(std::uint64_t number, std::uint64_t whole = 300) {
        return RankState::compare_as_stock(*engine_, FileSystem::local(), reader().latest()->path,
                                           number, whole);
    }
    [[nodiscard]] std::vector<std::string> leftovers() const {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(folder_ / "ckpt")) {
            const std::string name = entry.path().filename();
            if (name.starts_with(".unfinished") || name.starts_with(".removed")) {
                names.push_back(name);
            }
        }
        return names;
    }
    [[nodiscard]] virtual std::vector<std::string> folders_of(const Ranks& /*ranks*/) const {
        return {folder_ / "ckpt"};
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
};

}  // namespace penstock::store
