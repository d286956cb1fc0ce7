// SPDX-License-Identifier: Apache-2.0
// Loads by ranks that are threads, on a real folder: all load one checkpoint, or none does.
#include "store/rank_state.hpp"
#include "store/support.hpp"
#include "support/error_of.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/ranks.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace penstock::store {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RankLoads : public ::testing::Test {
protected:
    using Work = std::function<std::uint64_t(const Ranks&, CheckpointStore&)>;

    struct Ended {
        std::vector<std::uint64_t> loaded;  ///< by rank: the generation, or 0
        std::vector<std::string> errors;
    };

    // Each rank on a thread of its own, with a store of its own.
    Ended run(std::uint32_t count, const Work& work) {
        Ended out{std::vector<std::uint64_t>(count), std::vector<std::string>(count)};
        std::vector<std::thread> threads;
        for (const Ranks& ranks : Ranks::of_threads(count)) {
            threads.emplace_back([this, ranks, &work, &out] {
                try {
                    CheckpointStore store(
                        engine_, FileSystem::local(), folders_of(ranks),
                        {.lock_wait_ms = 0, .ranks = ranks, .rank_wait_ms = 2000});
                    out.loaded[ranks.number()] = work(ranks, store);
                } catch (const std::exception& error) {
                    out.errors[ranks.number()] = error.what();
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        return out;
    }
    void save_all(std::uint32_t count, std::uint64_t number) {
        EXPECT_THAT(run(count,
                        [&](const Ranks& ranks, CheckpointStore& store) {
                            const RankState state(ranks.number(), ranks.count(), number);
                            return store.save(state.state(), {.step = number}).generation;
                        })
                        .errors,
                    Each(""));
    }
    static std::uint64_t generation_of(const std::optional<CheckpointInfo>& info) {
        return info ? info->generation : 0;
    }
    // Compares all of it: each rank reads what it wants.
    static void read(Loading loading) {
        loading.ready();
        const std::uint64_t step = loading.checkpoint.info().step;
        const std::string wrong = RankState::compare(loading.checkpoint, step);
        if (!wrong.empty()) {
            throw std::runtime_error(wrong);
        }
    }
    static Error damage() {
        return {ErrorCode::kDamaged, 0, "read", "shard", kNoOffset, "a checksum differs"};
    }
    [[nodiscard]] virtual std::vector<std::string> folders_of(const Ranks& /*ranks*/) const {
        return {folder_ / "ckpt"};
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
};

TEST_F(RankLoads, AllLoadTheNewestOrTheOneThatIsAskedFor) {
    save_all(2, 1);
    save_all(3, 2);
    for (const std::uint32_t count : {2U, 3U, 7U}) {
        const Ended newest = run(count, [](const Ranks&, CheckpointStore& store) {
            return generation_of(store.load(read));
        });
        EXPECT_THAT(newest.errors, Each(""));
        EXPECT_THAT(newest.loaded, Each(2U));
    }
    const Ended asked = run(3, [](const Ranks&, CheckpointStore& store) {
        const std::uint64_t step = generation_of(store.load(read, {.step = 1}));
        const std::uint64_t generation = generation_of(store.load(read, {.generation = 2}));
        return 10 * step + generation;
    });
    EXPECT_THAT(asked.errors, Each(""));
    EXPECT_THAT(asked.loaded, Each(12U));
}

TEST_F(RankLoads, NoCheckpointIsOneAnswerOnAll) {
    const auto load = [](const Ranks&, CheckpointStore& store) {
        EXPECT_FALSE(store.load(read));
        EXPECT_THAT(test::error_of([&] { store.load(read, {.generation = 7}); }).what(),
                    HasSubstr("no checkpoint of generation 7"));
        return generation_of(store.load(read, {.step = 9}));
    };
    EXPECT_THAT(run(3, load).errors, Each(""));
    save_all(2, 1);
    const Ended asked = run(3, [](const Ranks&, CheckpointStore& store) {
        return generation_of(store.load(read, {.generation = 7}));
    });
    EXPECT_THAT(asked.errors,
                Each(HasSubstr("there is no checkpoint of generation 7; there are 1")));
}

TEST_F(RankLoads, WhatOneFindsDamagedNobodyTakes) {
    for (const std::uint64_t number : {1U, 2U, 3U}) {
        save_all(2, number);
    }
    // Rank `first` finds the newest damaged, and rank `second` the one before.
    for (std::uint32_t first = 0; first < 3; ++first) {
        for (std::uint32_t second = 0; second < 3; ++second) {
            for (const bool late : {false, true}) {
                std::atomic<int> read_early = 0;
                const Ended ended = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
                    const auto use = [&](Loading loading) {
                        const std::uint64_t generation = loading.checkpoint.info().generation;
                        const bool finds = ranks.number() == (generation == 3 ? first : second);
                        if (generation > 1 && finds && !late) {
                            throw damage();
                        }
                        loading.ready();
                        read_early += generation > 1 && !late ? 1 : 0;
                        if (generation > 1 && finds) {
                            throw damage();
                        }
                        read(std::move(loading));
                    };
                    std::vector<CheckpointInfo> skipped;
                    const std::uint64_t loaded = generation_of(store.load(use, {}, &skipped));
                    EXPECT_EQ(skipped.size(), 2U);
                    EXPECT_THAT(skipped.front().path, HasSubstr("00000003-step-3"));
                    EXPECT_THAT(skipped.front().problem, HasSubstr("a checksum differs"));
                    if (first != 0) {
                        EXPECT_THAT(skipped.front().problem,
                                    HasSubstr("rank " + std::to_string(first) + " of 3"));
                    }
                    EXPECT_EQ(generation_of(store.load(read)), 3U);  // the calls are in step
                    return loaded;
                });
                EXPECT_THAT(ended.errors, Each(""));
                EXPECT_THAT(ended.loaded, Each(1U));
                EXPECT_EQ(read_early, 0) << "one read what another one could not load";
            }
        }
    }
}

TEST_F(RankLoads, OfOneThatIsAskedForDamageIsAnErrorOnAll) {
    save_all(2, 1);
    save_all(2, 2);
    const Ended ended = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
        const auto use = [&](Loading loading) {
            if (ranks.number() == 2) {
                throw damage();
            }
            read(std::move(loading));
        };
        return generation_of(store.load(use, {.generation = 2}));
    });
    EXPECT_THAT(ended.errors,
                Each(AllOf(HasSubstr("a checksum differs"), HasSubstr("rank 2 of 3"))));
}

TEST_F(RankLoads, IfAllAreDamagedNoneIsLoaded) {
    save_all(2, 1);
    save_all(2, 2);
    const Ended ended = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
        const auto use = [&](Loading loading) {
            loading.ready();
            if (ranks.number() == 1) {
                throw damage();
            }
        };
        std::vector<CheckpointInfo> skipped;
        EXPECT_FALSE(store.load(use, {}, &skipped));
        return skipped.size();
    });
    EXPECT_THAT(ended.errors, Each(""));
    EXPECT_THAT(ended.loaded, Each(2U));
}

TEST_F(RankLoads, AnyOtherErrorOfOneIsOneOnAllAndTheNextLoadWorks) {
    save_all(2, 1);
    for (std::uint32_t victim = 0; victim < 3; ++victim) {
        for (const bool late : {false, true}) {
            std::atomic<int> filled = 0;
            const Ended ended = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
                const auto use = [&](Loading loading) {
                    if (late) {
                        loading.ready();
                    }
                    if (ranks.number() == victim) {
                        throw std::runtime_error("the tensor does not fit");
                    }
                    loading.ready();
                    ++filled;
                };
                std::string what;
                try {
                    static_cast<void>(store.load(use));
                } catch (const Error& error) {
                    EXPECT_NE(ranks.number(), victim);
                    what = error.what();
                } catch (const std::runtime_error& own) {
                    EXPECT_EQ(ranks.number(), victim);
                    what = own.what();
                }
                EXPECT_THAT(what, HasSubstr("the tensor does not fit"));
                if (victim != 0 && ranks.number() != victim) {
                    EXPECT_THAT(what, HasSubstr("rank " + std::to_string(victim) + " of 3"));
                }
                return generation_of(store.load(read));
            });
            EXPECT_THAT(ended.errors, Each(""));
            EXPECT_THAT(ended.loaded, Each(1U));
            EXPECT_TRUE(late || filled == 0) << "one was filled, and another one had refused";
        }
    }
}

TEST_F(RankLoads, ARankThatDoesNotCallOrCallsAnotherThingIsNamed) {
    save_all(2, 1);
    const Ended silent = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
        return ranks.number() == 1 ? 0 : generation_of(store.load(read));
    });
    EXPECT_THAT(silent.errors, ElementsAre(HasSubstr("rank 1 of 3"), "", HasSubstr("rank 1 of 3")));
    for (std::uint32_t other = 0; other < 3; ++other) {
        const Ended mixed = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
            if (ranks.number() == other) {
                store.save(RankState(ranks.number(), 3, 2).state(), {.step = 2});
                return std::uint64_t{0};
            }
            return generation_of(store.load(read));
        });
        EXPECT_THAT(mixed.errors, Each(AllOf(HasSubstr("save checkpoint of all ranks"),
                                             HasSubstr("load checkpoint on all ranks"),
                                             HasSubstr("the same calls in the same order"))));
    }
    EXPECT_EQ(
        run(2, [](const Ranks&, CheckpointStore& store) { return generation_of(store.load(read)); })
            .loaded,
        (std::vector<std::uint64_t>{1, 1}));
}

TEST_F(RankLoads, WhatIsAskedForIsTheSameOnAll) {
    save_all(2, 1);
    const Ended ended = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
        return generation_of(ranks.number() == 0 ? store.load(read)
                                                 : store.load(read, {.step = 1}));
    });
    EXPECT_THAT(ended.errors, Each(HasSubstr("asks for step 1, and rank 0 for the newest")));
}

TEST_F(RankLoads, ALoadComesAfterTheSavesThatWereCalledBefore) {
    save_all(2, 1);
    const Ended ended = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
        const RankState two(ranks.number(), 2, 2);
        const RankState three(ranks.number(), 2, 3);
        static_cast<void>(store.save_async(two.state(), {.step = 2}));
        const std::uint64_t loaded = generation_of(store.load(read));
        const PendingSave later = store.save_async(three.state(), {.step = 3});
        EXPECT_EQ(later.result().generation, 3U);
        return loaded;
    });
    EXPECT_THAT(ended.errors, Each(""));
    EXPECT_THAT(ended.loaded, Each(2U));
}

TEST_F(RankLoads, WhoIsInALoadIsRefusedAnother) {
    save_all(2, 1);
    const Ended ended = run(2, [&](const Ranks&, CheckpointStore& store) {
        return generation_of(store.load([&](Loading loading) {
            EXPECT_EQ(test::error_of([&] { store.load(read); }).reason(),
                      ErrorCode::kInvalidArgument);
            read(std::move(loading));
        }));
    });
    EXPECT_THAT(ended.errors, Each(""));
    EXPECT_THAT(ended.loaded, Each(1U));
}

TEST_F(RankLoads, ASlowReaderIsWaitedForAndOneThatStandsStillIsNot) {
    save_all(2, 1);
    for (const bool moves : {true, false}) {
        const Ended ended = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
            return generation_of(store.load([&](const Loading& loading) {
                loading.ready();
                for (std::uint64_t i = 1; ranks.number() == 1 && i <= 30; ++i) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(100));
                    static_cast<void>(!moves || loading.progress(i, 30));
                }
            }));
        });
        if (moves) {
            EXPECT_THAT(ended.errors, Each(""));
        } else {
            EXPECT_THAT(ended.errors[0], HasSubstr("rank 1 of 2 (this process) has stood still"));
            EXPECT_NE(ended.errors[1], "");
        }
    }
}

TEST_F(RankLoads, AFailureEndsTheReadsOfTheOthers) {
    save_all(2, 1);
    const Ended ended = run(3, [&](const Ranks& ranks, CheckpointStore& store) {
        return generation_of(store.load([&](const Loading& loading) {
            loading.ready();
            if (ranks.number() == 1) {
                throw std::runtime_error("no memory for it");
            }
            for (std::uint64_t i = 1; ranks.number() == 2; ++i) {  // until it is stopped
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
                static_cast<void>(loading.progress(i, 0));
            }
        }));
    });
    EXPECT_THAT(ended.errors, Each(HasSubstr("no memory for it")));
}

TEST_F(RankLoads, AStopOfOneWaitingRankIsOneOfAll) {
    save_all(2, 1);
    for (std::uint32_t victim = 0; victim < 2; ++victim) {
        const Ended ended = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
            LoadOptions options;
            if (ranks.number() == victim) {
                options.look = [] {
                    throw Error(ErrorCode::kCancelled, 0, "load", "", kNoOffset, "Ctrl-C");
                };
            } else {
                std::this_thread::sleep_for(std::chrono::milliseconds(500));
            }
            return generation_of(store.load(read, options));
        });
        EXPECT_THAT(ended.errors, Each(HasSubstr("Ctrl-C")));
    }
}

TEST_F(RankLoads, AClosedStoreAndARefusedCallEndTheLoadOfAll) {
    save_all(2, 1);
    for (const bool closed : {true, false}) {
        const Ended ended = run(2, [&](const Ranks& ranks, CheckpointStore& store) {
            if (ranks.number() == 1 && closed) {
                store.close();
            } else if (ranks.number() == 1) {
                store.refuse_save(Error(ErrorCode::kInvalidArgument, 0, "load", "", kNoOffset,
                                        "the device is closed"));
                return generation_of(store.load(read));
            }
            try {
                return generation_of(store.load(read));
            } catch (const Error& error) {
                EXPECT_THAT(error.what(), HasSubstr("is closed"));
                if (closed) {
                    throw;
                }
            }
            return generation_of(store.load(read));
        });
        EXPECT_THAT(ended.errors, Each(closed ? HasSubstr("is closed") : HasSubstr("")));
        EXPECT_THAT(ended.loaded, Each(closed ? 0U : 1U));
    }
}

// Each rank has a folder of its own.
class RankLoadsApart : public RankLoads {
protected:
    [[nodiscard]] std::vector<std::string> folders_of(const Ranks& ranks) const override {
        return {folder_ / ("ckpt" + std::to_string(ranks.number()))};
    }
    void save_one(std::uint32_t number) {
        CheckpointStore store(engine_, FileSystem::local(),
                              {folder_ / ("ckpt" + std::to_string(number))});
        store.save(RankState(0, 1, number + 1).state(), {.step = 1});
    }
};

TEST_F(RankLoadsApart, AFolderThatIsNotTheSameIsRefused) {
    save_one(0);
    const auto load = [](const Ranks&, CheckpointStore& store) {
        return generation_of(store.load(read));
    };
    EXPECT_THAT(run(2, load).errors,
                Each(AllOf(HasSubstr("ckpt1"), HasSubstr("is not there on rank 1 of 2"))));
    save_one(1);
    EXPECT_THAT(run(2, load).errors, Each(HasSubstr("is another checkpoint than that of rank 0")));
}

// A copy of the same one, of which one rank's is damaged: as a disk that only that rank sees so.
TEST_F(RankLoadsApart, AShardThatIsMissingOnOneIsMissingOnAll) {
    save_one(0);
    {
        CheckpointStore store(engine_, FileSystem::local(), {folder_ / "ckpt0"});
        store.save(RankState(0, 1, 2).state(), {.step = 2});
    }
    std::filesystem::copy(folder_ / "ckpt0", folder_ / "ckpt1",
                          std::filesystem::copy_options::recursive);
    for (const auto& entry :
         std::filesystem::directory_iterator(folder_ / "ckpt1/00000002-step-2")) {
        if (entry.path().filename().string().starts_with("shard-")) {
            std::filesystem::remove(entry.path());
        }
    }
    const Ended ended = run(2, [](const Ranks&, CheckpointStore& store) {
        std::vector<CheckpointInfo> skipped;
        const std::uint64_t loaded = generation_of(store.load(read, {}, &skipped));
        EXPECT_THAT(skipped.at(0).problem,
                    AllOf(HasSubstr("is missing"), HasSubstr("rank 1 of 2")));
        return loaded;
    });
    EXPECT_THAT(ended.errors, Each(""));
    EXPECT_THAT(ended.loaded, Each(1U));
}

}  // namespace
}  // namespace penstock::store
