// SPDX-License-Identifier: Apache-2.0
// Saves by ranks that are threads, on a real folder: what they write, and what is refused on all.
#include "store/keep/store_folder.hpp"
#include "store/rank_saves.hpp"
#include "store/rank_state.hpp"
#include "store/stock_view.hpp"
#include "support/error_of.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/ranks.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace penstock::store {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(RankSaves, IsOneCheckpointOfAll) {
    for (const std::uint32_t count : {2U, 3U, 5U, 8U}) {
        save_all(count, count, kLarge);
        const auto latest = reader().latest();
        ASSERT_TRUE(latest);
        EXPECT_EQ(latest->step, count);
        Checkpoint checkpoint(engine_, FileSystem::local(), latest->path);
        EXPECT_EQ(RankState::compare(checkpoint, count, kLarge), "");
        EXPECT_EQ(as_stock(count, kLarge), "");
        EXPECT_THAT(checkpoint.verify(), IsEmpty());
        EXPECT_THAT(leftovers(), IsEmpty());
    }
}

TEST_F(RankSaves, LargeWholeTensorsAreSharedOut) {
    save_all(3, 1, kLarge);
    std::map<std::string, int> writers;  // the first digits of shards' numbers are the ranks
    for (const auto& entry : std::filesystem::directory_iterator(reader().latest()->path)) {
        const std::string name = entry.path().filename();
        EXPECT_FALSE(is_share_name(name)) << name;
        if (name.starts_with("shard-") && entry.file_size() > 4 * kLarge) {
            ++writers[name.find('.') > std::string("shard-00001").size() ? name.substr(6, 1) : "0"];
        }
    }
    EXPECT_EQ(writers.size(), 2U);
}

TEST_F(RankSaves, WhatDidNotChangeIsLinkedByWhomItWasWritten) {
    save_all(3, 1, kLarge);
    EXPECT_THAT(run(3,
                    [&](const Ranks& ranks, CheckpointStore& store) {
                        const RankState state(ranks.number(), ranks.count(), 1, kLarge);
                        const CheckpointInfo info = store.save(state.state(), {.step = 1});
                        EXPECT_EQ(info.written_bytes, 0U);
                        EXPECT_EQ(info.linked_shards, info.shards);
                    }),
                Each(""));
    save_all(3, 2, kLarge);  // parts what changes from what rests
    save_all(3, 3, kLarge);
    Checkpoint checkpoint(engine_, FileSystem::local(), reader().latest()->path);
    EXPECT_EQ(RankState::compare(checkpoint, 3, kLarge), "");
    EXPECT_EQ(as_stock(3, kLarge), "");
    EXPECT_LT(checkpoint.info().written_bytes, checkpoint.info().tensor_bytes);
}

TEST_F(RankSaves, ManyInARowAndInTheBackground) {
    EXPECT_THAT(run(3,
                    [&](const Ranks& ranks, CheckpointStore& store) {
                        std::vector<PendingSave> saves;
                        for (std::uint64_t number = 1; number <= 5; ++number) {
                            const RankState state(ranks.number(), ranks.count(), number);
                            saves.push_back(store.save_async(state.state(), {.step = number}));
                        }
                        for (const PendingSave& save : saves) {
                            EXPECT_GT(save.result().generation, 0U);
                        }
                    }),
                Each(""));
    Checkpoint checkpoint(engine_, FileSystem::local(), reader().latest()->path);
    EXPECT_EQ(RankState::compare(checkpoint, 5), "");
}

TEST_F(RankSaves, OtherStepIsAnErrorOnAll) {
    const auto errors = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState state(ranks.number(), ranks.count(), 1);
        store.save(state.state(), {.step = ranks.number() == 2 ? 8U : 7U});
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 2 of 3 (this process) saves step 8"),
                                   HasSubstr("rank 0 step 7"))));
    EXPECT_FALSE(reader().latest());
    EXPECT_THAT(leftovers(), IsEmpty());
}

TEST_F(RankSaves, AHoleIsAnErrorOnAll) {
    const auto errors = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState state(ranks.number(), ranks.count(), 1);
        State own = state.state();
        for (StateTensor& tensor : own.tensors) {
            tensor.copy = ranks.number() == 1 && tensor.name == "weight" ? 1 : 0;
        }
        store.save(own, {.step = 1});
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("weight"), HasSubstr("320 of the 480 elements"))));
    EXPECT_FALSE(reader().latest());
}

TEST_F(RankSaves, AnOverlapIsAnErrorOnAll) {
    const auto errors = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState state(0, ranks.count(), 1);  // both have the slices of rank 0
        store.save(state.state(), {.step = 1});
    });
    EXPECT_THAT(errors, Each(HasSubstr("overlap")));
    EXPECT_FALSE(reader().latest());
}

// A tensor of four columns, of which a rank has `rows` from `begin` on.
StateTensor rows_of(const std::string& name, std::uint64_t begin, std::uint64_t rows,
                    std::uint64_t all, std::uint32_t copy = 0) {
    static const std::vector<std::byte> kBytes = support::pattern(1000, 1);
    StateTensor tensor;
    tensor.name = name;
    tensor.dtype = "F32";
    tensor.shape = {rows, 4};
    tensor.data = std::span<const std::byte>(kBytes).subspan(16 * begin, 16 * rows);
    tensor.global_shape = {all, 4};
    tensor.global_offset = {begin, 0};
    tensor.copy = copy;
    return tensor;
}

TEST_F(RankSaves, ARankMayHaveAllOfATensor) {
    EXPECT_THAT(run(3,
                    [&](const Ranks& ranks, CheckpointStore& store) {
                        State state;
                        const bool has_it = ranks.number() == 1;  // fewer rows than ranks
                        state.tensors.push_back(rows_of("row", has_it ? 0 : 1, has_it ? 1 : 0, 1));
                        if (has_it) {
                            state.tensors.push_back(rows_of("own", 0, 5, 5));
                        }
                        state.tensors.push_back(rows_of("all", 0, 3, 3, 2 - ranks.number()));
                        EXPECT_EQ(store.save(state, {.step = 1}).tensors, 3U);
                    }),
                Each(""));
    Checkpoint checkpoint(engine_, FileSystem::local(), reader().latest()->path);
    EXPECT_THAT(checkpoint.verify(), IsEmpty());
    for (const char* name : {"row", "own", "all"}) {
        std::vector<std::byte> found(16);
        const TensorRead read{.name = name, .into = found, .begin = {0, 0}, .end = {1, 4}};
        checkpoint.read({&read, 1});
        EXPECT_EQ(found, support::pattern(16, 1)) << name;
    }
}

// Its slices have no elements either, and one of them is all that a reader of shards finds.
TEST_F(RankSaves, ATensorWithoutElementsHasItsShapeInItsShard) {
    EXPECT_THAT(run(2,
                    [&](const Ranks& ranks, CheckpointStore& store) {
                        StateTensor none = rows_of("none", 0, 0, 0);
                        none.shape = {0, 1};
                        none.global_offset = {0, 2UL * ranks.number()};
                        StateTensor more = none;
                        ++more.global_offset[1];
                        store.save({.tensors = {none, more}}, {.step = 1});
                    }),
                Each(""));
    const std::string path = reader().latest()->path;
    const auto found = test::read_as_stock(*engine_, FileSystem::local(), path);
    ASSERT_TRUE(found.contains("none"));
    EXPECT_EQ(found.at("none").shape, (std::vector<std::uint64_t>{0, 4}));
    EXPECT_THAT(Checkpoint(engine_, FileSystem::local(), path).verify(), IsEmpty());
}

TEST_F(RankSaves, TheIndexNamesWholeTensorsOnly) {
    save_all(2, 1);
    const std::string path = reader().latest()->path + "/model.safetensors.index.json";
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(text, AllOf(HasSubstr("\"bias\""), HasSubstr("\"table\"")));
    EXPECT_THAT(text, Not(AnyOf(HasSubstr("weight\""), HasSubstr("@"), HasSubstr("strided"))));
    EXPECT_THAT(text, HasSubstr(fmt::format("\"total_size\": {}", 4 * (77 + 300 + 300))));
}

TEST_F(RankSaves, ATensorThatNoRankWritesIsAnErrorOnAll) {
    const auto save = [&](const std::function<StateTensor(std::uint32_t)>& lost) {
        return run(2, [&](const Ranks& ranks, CheckpointStore& store) {
            State state;
            state.tensors.push_back(rows_of("there", ranks.number(), 1, 2));
            state.tensors.push_back(lost(ranks.number()));
            store.save(state, {.step = 1});
        });
    };
    EXPECT_THAT(save([](std::uint32_t rank) { return rows_of("lost", rank, 1, 2, 1); }),
                Each(AllOf(HasSubstr("no rank writes tensor 'lost'"), HasSubstr("rank 0 of 2"))));
    EXPECT_THAT(save([](std::uint32_t) { return rows_of("lost", 0, 0, 2); }),
                Each(HasSubstr("no rank writes tensor 'lost'")));
    EXPECT_THAT(
        save([](std::uint32_t rank) { return rows_of(rank == 0 ? "there2" : "lost", 0, 0, 0); }),
        Each(AllOf(HasSubstr("no rank writes tensor 'lost'"), HasSubstr("rank 1 of 2"))));
    EXPECT_FALSE(reader().latest());
}

TEST_F(RankSaves, OtherTypesOfOneTensorNameBothRanks) {
    const auto errors = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState state(ranks.number(), ranks.count(), 1);
        State own = state.state();
        for (StateTensor& tensor : own.tensors) {
            tensor.dtype = ranks.number() == 1 && tensor.name == "weight" ? "I32" : "F32";
        }
        store.save(own, {.step = 1});
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("F32 [12, 40] on rank 0"),
                                   HasSubstr("I32 [12, 40] on rank 1"))));
}

TEST_F(RankSaves, WhatOneRankCannotSaveIsAnErrorOnAll) {
    const auto errors = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState state(ranks.number(), ranks.count(), 1);
        State own = state.state();
        if (ranks.number() == 2) {
            own.tensors.front().dtype = "F33";
        }
        store.save(own, {.step = 1});
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 2 of 3"), HasSubstr("F33"))));
    save_all(3, 2);  // the next one is not disturbed
}

TEST_F(RankSaves, AProgressThatStopsOneStopsAll) {
    const auto errors = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState state(ranks.number(), ranks.count(), 1, kLarge);
        SaveOptions options{.step = 1};
        if (ranks.number() == 1) {
            options.progress = [](std::uint64_t, std::uint64_t) { return false; };
        }
        store.save(state.state(), options);
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 1 of 2"),
                                   AnyOf(HasSubstr("stopped it"), HasSubstr("was cancelled")))));
    EXPECT_FALSE(reader().latest());
    EXPECT_THAT(leftovers(), IsEmpty());
}

// The others do not wait for a rank that is gone.
TEST_F(RankSaves, WhatAFunctionOfTheCallerThrowsEndsItOnAll) {
    for (const std::uint32_t thrower : {0U, 1U}) {
        const auto errors = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
            const RankState state(ranks.number(), ranks.count(), 1, kLarge);
            SaveOptions options{.step = 1};
            if (ranks.number() == thrower) {
                options.progress = [](std::uint64_t, std::uint64_t) -> bool {
                    throw std::runtime_error("the user pressed a key");
                };
            }
            store.save(state.state(), options);
        });
        EXPECT_EQ(errors[thrower], "the user pressed a key");
        EXPECT_THAT(errors, Each(HasSubstr("the user pressed a key")));
        EXPECT_THAT(leftovers(), IsEmpty());
    }
    save_all(3, 2);  // the next one is not disturbed
}

TEST_F(RankSaves, AStoreThatIsClosedOnOneRankIsAnErrorOnAll) {
    for (const std::uint32_t closed : {0U, 1U}) {
        std::atomic<int> ended = 0;
        const auto errors = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
            if (ranks.number() == closed) {
                store.close();
            }
            const RankState state(ranks.number(), ranks.count(), 1);
            std::string error;
            try {
                store.save(state.state(), {.step = 1});
            } catch (const Error& failed) {
                error = failed.what();
            }
            for (++ended; ended < 2;) {  // with the store of rank 0 goes what it said
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            throw std::runtime_error(error);
        });
        EXPECT_THAT(errors, Each(HasSubstr("the store is closed")));
    }
}

TEST_F(RankSaves, ACheckpointThatIsReadBackDamagedIsAnErrorOnAll) {
    const auto rot = [&] {
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "ckpt")) {
            const std::string path = entry.path();
            if (path.find("/.unfinished") != std::string::npos && entry.is_regular_file() &&
                is_shard_name(std::string(entry.path().filename()))) {
                std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
                file.seekp(-9, std::ios::end);
                file.write("rot", 3);
            }
        }
    };
    save_all(2, 1);
    save_all(2, 2);
    const auto errors = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState state(ranks.number(), ranks.count(), 3);
        SaveOptions options{.step = 3};
        if (ranks.number() == 0) {
            options.progress = [&](std::uint64_t done, std::uint64_t total) {
                done == total ? rot() : void();
                return true;
            };
        }
        store.save(state.state(), options);
    });
    EXPECT_THAT(errors, Each(HasSubstr("was read back and is damaged")));
}

// A save that one rank alone does not begin is that one of all: the next ones fit again.
TEST_F(RankSaves, ASaveThatOneRankRefusesDisturbsNoLaterOne) {
    using Refused = std::function<void(CheckpointStore&, const State&, bool refuses)>;
    const Refused ways[] = {[](CheckpointStore& store, const State& state, bool refuses) {
                                State own = state;
                                own.tensors.front().dtype = refuses ? "F33" : "F32";
                                store.save_async(own, {.step = 2}).result();
                            },
                            [](CheckpointStore& store, const State& state, bool refuses) {
                                const PendingSave first = store.save_async(state, {.step = 2});
                                PendingSave second = store.save_async(state, {.step = 2});
                                refuses ? second.cancel() : void();
                                first.result();
                                second.result();
                            }};
    for (const std::uint32_t refuses : {0U, 1U}) {
        for (const Refused& way : ways) {
            EXPECT_THAT(
                run(2,
                    [&](const Ranks& ranks, CheckpointStore& store) {
                        const RankState state(ranks.number(), ranks.count(), 1);
                        EXPECT_THROW(way(store, state.state(), ranks.number() == refuses), Error);
                        for (std::uint64_t number = 3; number <= 5; ++number) {
                            const RankState next(ranks.number(), ranks.count(), number);
                            EXPECT_EQ(store.save(next.state(), {.step = number}).step, number);
                        }
                    }),
                Each(""));
        }
    }
    Checkpoint checkpoint(engine_, FileSystem::local(), reader().latest()->path);
    EXPECT_EQ(RankState::compare(checkpoint, 5), "");
}

// Reported on one rank, and not yet on the other: both save.
TEST_F(RankSaves, AFailureInTheBackgroundIsNoneOfTheNextSave) {
    for (const bool background : {false, true}) {
        for (const std::uint32_t refuses : {0U, 1U}) {
            EXPECT_THAT(
                run(2,
                    [&](const Ranks& ranks, CheckpointStore& store) {
                        const RankState state(ranks.number(), ranks.count(), 1);
                        const bool is_bad = ranks.number() == refuses;
                        State bad = state.state();
                        bad.structure = is_bad ? "null" : bad.structure;
                        const PendingSave failed = store.save_async(bad, {.step = 2});
                        failed.wait();
                        static_cast<void>(is_bad ? failed.failure() : nullptr);
                        const auto error = support::error_of([&] {
                            background
                                ? static_cast<void>(store.save_async(state.state(), {.step = 3}))
                                : static_cast<void>(store.save(state.state(), {.step = 3}));
                            return store.wait();
                        });
                        ASSERT_EQ(error.has_value(), !is_bad);
                        EXPECT_TRUE(!background || is_bad ||
                                    std::string(error->what()).find("was begun all the same") !=
                                        std::string::npos);
                        EXPECT_TRUE(store.wait());
                    }),
                Each(""));
            EXPECT_EQ(reader().latest()->step, 3U);
        }
    }
}

TEST_F(RankSaves, ARankThatDoesNotCallIsNamed) {
    const auto errors = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
        if (ranks.number() == 1) {
            throw std::runtime_error("training failed here");
        }
        const RankState state(ranks.number(), ranks.count(), 1);
        store.save(state.state(), {.step = 1});
    });
    EXPECT_THAT(errors[0], HasSubstr("rank 1 of 3 has not called it within 2 s"));
    EXPECT_EQ(errors[2], errors[0]);
    EXPECT_THAT(leftovers(), IsEmpty());
}

TEST_F(RankSaves, OnlyRank0Removes) {
    save_all(2, 1);
    const auto errors = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
        if (ranks.number() == 1) {
            static_cast<void>(store.collect());
        }
    });
    EXPECT_EQ(errors[0], "");
    EXPECT_THAT(errors[1], HasSubstr("rank 0 removes for all ranks"));
}

class RankSavesApart : public RankSaves {
protected:
    [[nodiscard]] std::vector<std::string> folders_of(const Ranks& ranks) const override {
        return {folder_ / (ranks.number() == 2 ? "other" : "ckpt")};
    }
};

TEST_F(RankSavesApart, AFolderThatIsNotSharedIsAnErrorOnAll) {
    std::filesystem::create_directory(folder_ / "other");
    const auto errors = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState state(ranks.number(), ranks.count(), 1);
        store.save(state.state(), {.step = 1});
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 2 of 3"), HasSubstr("other"),
                                   HasSubstr("is not the one of rank 0"))));
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "other"));
    EXPECT_THAT(leftovers(), IsEmpty());
}

class RankSavesInFolders : public RankSaves {
protected:
    [[nodiscard]] std::vector<std::string> folders_of(const Ranks& /*ranks*/) const override {
        return {folder_ / "ckpt", folder_ / "second", folder_ / "third"};
    }
};

TEST_F(RankSavesInFolders, ShardsLieInAllOfThem) {
    for (std::uint64_t number = 1; number <= 3; ++number) {
        save_all(3, number, kLarge);
    }
    Checkpoint checkpoint(engine_, FileSystem::local(), reader().latest()->path);
    EXPECT_EQ(RankState::compare(checkpoint, 3, kLarge), "");
    EXPECT_EQ(as_stock(3, kLarge), "");
    EXPECT_THAT(checkpoint.verify(), IsEmpty());
    for (const char* name : {"second", "third"}) {
        for (const auto& entry : std::filesystem::directory_iterator(folder_ / name)) {
            EXPECT_FALSE(std::string(entry.path().filename()).starts_with(".unfinished"));
        }
    }
}

}  // namespace
}  // namespace penstock::store
