// SPDX-License-Identifier: Apache-2.0
// Memory runs out at each allocation of a rank that saves, loads or stops with another one.
#include "allocations/scene.hpp"

#include <penstock/penstock.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using allocator::Attempt;
using allocator::each;
using allocator::holds;
using allocator::Saved;
using allocator::Scene;

class RanksOutOfMemory : public allocator::OutOfMemory {};

// Throws the failure of a rank that ran out of memory, before that of one that waited for it.
void throw_memory_first(std::span<const std::exception_ptr> failures) {
    std::exception_ptr other;
    for (const std::exception_ptr& failure : failures) {
        try {
            failure ? std::rethrow_exception(failure) : void();
        } catch (const Error& error) {
            if (error.reason() == ErrorCode::kOutOfMemory || error.system_errno() == ENOMEM) {
                throw;
            }
            other = failure;
        }
    }
    other ? std::rethrow_exception(other) : void();
}

// Both ranks end, whichever runs out of memory, and what the store has is whole. `less`: tensors
// that the second one does not have.
std::string ranks_save(Scene& scene, std::size_t less) {
    scene.files.make_folder(scene.folder + "/store");
    const Saved saved(3, 300'000, 2);
    const auto save = [&](const Ranks& ranks, std::exception_ptr& failure) {
        try {
            State state = saved.state();
            state.tensors.resize(state.tensors.size() - (ranks.number() == 0 ? 0 : less));
            scene.store({.keep = 2, .ranks = ranks, .rank_wait_ms = 100}).save(state);
        } catch (const std::exception&) {
            failure = std::current_exception();
        }
    };
    return each(
        scene,
        [&](Attempt& attempt) -> std::string {
            const bool through = attempt([&] {
                const std::vector<Ranks> ranks = Ranks::of_threads(2);
                const Ranks other(1, 2, "other", ranks[0].mailbox());
                std::exception_ptr failures[2];
                std::thread thread([&] { save(other, failures[1]); });
                save(ranks[0], failures[0]);
                thread.join();
                throw_memory_first(failures);
            });
            const CheckpointStore store = scene.store();
            const auto latest = store.latest();
            if (!latest) {
                return through ? "it is not there" : "";
            }
            Checkpoint there = store.open(latest->generation);
            return holds(there, saved);
        },
        40);
}

TEST_F(RanksOutOfMemory, RanksSave) {
    in_child([](Scene& scene) { return ranks_save(scene, 0); });
}

TEST_F(RanksOutOfMemory, RanksSaveWhatIsNotTheSame) {
    in_child([](Scene& scene) { return ranks_save(scene, 1); });
}

// Both ranks end, and who was told that all have loaded it has it.
TEST_F(RanksOutOfMemory, RanksLoad) {
    in_child([](Scene& scene) {
        scene.files.make_folder(scene.folder + "/store");
        const Saved saved(3, 300'000, 2);
        scene.store().save(saved.state());
        struct Loaded {
            std::optional<CheckpointInfo> info;
            std::exception_ptr failure;
        };
        const auto load = [&](const Ranks& ranks, Loaded& out) {
            try {
                out.info = scene.store({.ranks = ranks, .rank_wait_ms = 100})
                               .load([](const Loading& loading) { loading.ready(); });
            } catch (const std::exception&) {
                out.failure = std::current_exception();
            }
        };
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                Loaded loaded[2];
                const bool through = attempt([&] {
                    const std::vector<Ranks> ranks = Ranks::of_threads(2);
                    const Ranks other(1, 2, "other", ranks[0].mailbox());
                    std::thread thread([&] { load(other, loaded[1]); });
                    load(ranks[0], loaded[0]);
                    thread.join();
                    const std::exception_ptr failures[] = {loaded[0].failure, loaded[1].failure};
                    throw_memory_first(failures);
                });
                if (through && !(loaded[0].info && loaded[1].info)) {
                    return "a rank has not loaded it";
                }
                CheckpointStore store = scene.store();
                Checkpoint there = store.open(1);
                return holds(there, saved);
            },
            40);
    });
}

TEST_F(RanksOutOfMemory, RanksStop) {
    in_child([](Scene& scene) {
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                bool stopped = false;
                const bool through = attempt([&] {
                    const std::vector<Ranks> ranks = Ranks::of_threads(2);
                    StopTogether first(ranks[0], {.stride = 1});
                    StopTogether second(ranks[1]);
                    static_cast<void>(first.step_end(false));
                    static_cast<void>(second.step_end(true));
                    static_cast<void>(first.step_end(false));
                    stopped =
                        first.step_end(false) && !second.step_end(false) && second.step_end(false);
                });
                return through && !stopped ? "they did not stop" : "";
            },
            10);
    });
}

// A save that a rank refuses is never made, with or without memory to say so.
TEST_F(RanksOutOfMemory, ARankRefusesASave) {
    in_child([](Scene& scene) {
        scene.files.make_folder(scene.folder + "/store");
        const auto refuse = [&](const Ranks& ranks) {
            const Error why(ErrorCode::kInvalidArgument, 0, "save", "", kNoOffset, "nothing there");
            scene.store({.ranks = ranks, .rank_wait_ms = 100}).refuse_save(why);
        };
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                static_cast<void>(attempt([&] { refuse(Ranks::of_threads(2)[0]); }));
                return scene.store().latest() ? "it saved" : "";
            },
            5);
    });
}

}  // namespace
}  // namespace penstock
