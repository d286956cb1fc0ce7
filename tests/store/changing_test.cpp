// SPDX-License-Identifier: Apache-2.0
// Tensors that change while they are saved: the save fails and leaves nothing, or what is there is
// sound. The look of a save is called between the reads and writes of each window, so a test can
// change memory at each of these places; a thread changes it at all others.
#include "store_support.hpp"
#include "support/error_of.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/penstock.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

struct Memories {
    explicit Memories(const std::vector<std::uint64_t>& sizes) {
        for (const std::uint64_t size : sizes) {
            data.push_back(support::pattern(size, data.size()));
        }
    }
    [[nodiscard]] State state() const {
        State out;
        for (std::size_t i = 0; i < data.size(); ++i) {
            out.tensors.push_back({"t" + std::to_string(i), "U8", {data[i].size()}, data[i]});
        }
        return out;
    }
    std::vector<std::vector<std::byte>> data;
};

// Changes a byte at chosen calls of the look. No change is undone: one that is made and undone
// between the two sums of a window is the one that is not seen.
class Changer {
public:
    Changer(Memories& memories, std::uint64_t seed) : memories_(memories), random_(seed) {}

    [[nodiscard]] MemoryLook look() {
        return [this](std::span<const std::size_t>) -> std::optional<std::size_t> {
            const std::lock_guard guard(mutex_);
            if (random_() % 4 == 0) {
                std::vector<std::byte>& one = memories_.data[random_() % memories_.data.size()];
                if (!one.empty()) {
                    one[random_() % one.size()] ^= std::byte{0x40};
                    changed_ = true;
                }
            }
            return std::nullopt;
        };
    }
    [[nodiscard]] bool changed() const { return changed_; }

private:
    Memories& memories_;
    std::mutex mutex_;
    std::mt19937_64 random_;
    bool changed_ = false;
};

std::vector<std::uint64_t> random_sizes(std::mt19937_64& random) {
    std::vector<std::uint64_t> sizes(1 + random() % 6);
    for (std::uint64_t& size : sizes) {
        const std::uint64_t kind = random() % 4;
        size = kind == 0   ? random() % 100
               : kind == 1 ? random() % 300'000
               : kind == 2 ? random() % (3 * kMiB)
                           : random() % (20 * kMiB);
    }
    return sizes;
}

class ChangingState : public ::testing::Test {
protected:
    // Only sound data may be there.
    void expect_sound(const std::string& path) const {
        StateFile file(engine_, path);
        const VerifiedFile found = file.verify();
        EXPECT_THAT(found.problems, ::testing::IsEmpty())
            << path << ": " << found.problems.front().message;
    }
    void expect_sound(const CheckpointStore& store, const CheckpointInfo& info) const {
        const auto found = store.open(info.generation).verify();
        EXPECT_THAT(found, ::testing::IsEmpty()) << found.front().message;
    }
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> out;
        for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
            out.push_back(entry.path().filename());
        }
        std::ranges::sort(out);
        return out;
    }

    support::TempFolder folder_{"/dev/shm"};
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
};

TEST_F(ChangingState, AFileIsSoundOrTheOldOne) {
    int failures = 0;
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        Memories memories(random_sizes(random));
        Changer changer(memories, seed);
        const char* const name = seed % 2 == 0 ? "f.pt" : "f.safetensors";
        SaveFileOptions options;
        options.sync = false;
        save_file(engine_, folder_ / name, memories.state(), options);
        const std::vector<std::string> before = names();
        options.changing = seed % 3 == 0 ? Changing::kTorn : Changing::kFails;
        options.look = changer.look();
        const auto error = support::error_of(
            [&] { return save_file(engine_, folder_ / name, memories.state(), options), 0; });
        if (error) {
            EXPECT_EQ(error->reason(), ErrorCode::kChanged) << error->what();
            EXPECT_EQ(options.changing, Changing::kFails);
            EXPECT_TRUE(changer.changed());
            ++failures;
        }
        EXPECT_EQ(names(), before);
        expect_sound(folder_ / name);
    }
    EXPECT_GE(failures, 3);
}

TEST_F(ChangingState, AnIndexIsSoundOrTheOldOne) {
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
        SCOPED_TRACE(seed);
        Memories memories({3 * kMiB, 100, 5 * kMiB, 2 * kMiB});
        Changer changer(memories, seed);
        const std::string path = folder_ / "m.safetensors.index.json";
        SaveFileOptions options;
        options.sync = false;
        options.shard_bytes = 4 * kMiB;
        save_file(engine_, path, memories.state(), options);
        options.changing = seed % 3 == 0 ? Changing::kTorn : Changing::kFails;
        options.look = changer.look();
        const auto error = support::error_of(
            [&] { return save_file(engine_, path, memories.state(), options), 0; });
        EXPECT_TRUE(!error || error->reason() == ErrorCode::kChanged) << error->what();
        expect_sound(path);
        EXPECT_EQ(names().size(), 4U);  // three shards and the index
    }
}

TEST_F(ChangingState, ACheckpointIsSoundOrIsNotThere) {
    int failures = 0;
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        Memories memories(random_sizes(random));
        Changer changer(memories, seed);
        StoreOptions store_options;
        store_options.keep = 1;
        store_options.read_back = false;
        store_options.shard_bytes = 8 * kMiB;
        store_options.incremental = seed % 4 != 0;
        CheckpointStore store(engine_, FileSystem::local(), {folder_ / std::to_string(seed)},
                              store_options);
        const CheckpointInfo first = store.save(memories.state());
        for (std::size_t i = 0; i < memories.data.size(); ++i) {
            if (i % 2 == seed % 2 && !memories.data[i].empty()) {
                memories.data[i].back() ^= std::byte{1};  // or all shards would be linked
            }
        }
        SaveOptions options;
        options.changing = seed % 3 == 0 ? Changing::kTorn : Changing::kFails;
        options.look = changer.look();
        const auto error = support::error_of([&] { return store.save(memories.state(), options); });
        const auto latest = store.latest();
        ASSERT_TRUE(latest);
        EXPECT_EQ(latest->generation == first.generation, error.has_value());
        EXPECT_EQ(store.list().size(), 1U);
        if (error) {
            EXPECT_EQ(error->reason(), ErrorCode::kChanged) << error->what();
            EXPECT_EQ(options.changing, Changing::kFails);
            ++failures;
        }
        expect_sound(store, *latest);
        std::filesystem::remove_all(folder_ / std::to_string(seed));
    }
    EXPECT_GE(failures, 3);
}

// Saves until the thread was caught: a busy machine may not let it run meanwhile.
template <typename Save>
std::optional<Error> first_error(const Save& save) {
    std::optional<Error> error;
    for (int i = 0; i < 100 && !error; ++i) {
        error = support::error_of([&] { return save(), 0; });
    }
    return error;
}

// As a worker of Hogwild does: at any place, all the time.
TEST_F(ChangingState, AThreadThatWritesIsAnErrorOrATornState) {
    Memories memories({20 * kMiB, 1000});
    std::atomic<bool> stop{false};
    std::jthread writer([&] {
        for (std::uint8_t turn = 1; !stop; ++turn) {
            std::fill(memories.data[0].begin(), memories.data[0].end(), std::byte{turn});
        }
    });
    CheckpointStore store(engine_, FileSystem::local(), {folder_ / "c"});
    const auto error = first_error([&] { store.save(memories.state()); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kChanged);
    EXPECT_THAT(error->what(), HasSubstr("'t0'"));
    for (int i = 0; i < 3; ++i) {
        expect_sound(store, store.save(memories.state(), {.changing = Changing::kTorn}));
    }
    for (const char* const name : {"f.pt", "f.safetensors"}) {
        SaveFileOptions options;
        options.sync = false;
        EXPECT_TRUE(
            first_error([&] { save_file(engine_, folder_ / name, memories.state(), options); }));
        options.changing = Changing::kTorn;
        for (int i = 0; i < 3; ++i) {
            save_file(engine_, folder_ / name, memories.state(), options);
            expect_sound(folder_ / name);
        }
    }
    stop = true;
}

TEST_F(ChangingState, MemoryThatIsGoneIsNamed) {
    Memories memories({3 * kMiB, 1000});
    const MemoryLook look = [](std::span<const std::size_t> tensors) {
        return std::ranges::find(tensors, 1U) == tensors.end() ? std::nullopt
                                                               : std::optional<std::size_t>(1);
    };
    CheckpointStore store(engine_, FileSystem::local(), {folder_ / "c"});
    auto error = support::error_of([&] { return store.save(memories.state(), {.look = look}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("tensor 't1': its memory was freed, resized or changed"));
    for (const char* const name : {"f.pt", "f.safetensors", "m.safetensors.index.json"}) {
        SaveFileOptions options;
        options.look = look;
        options.shard_bytes = kMiB;
        error = support::error_of(
            [&] { return save_file(engine_, folder_ / name, memories.state(), options), 0; });
        ASSERT_TRUE(error) << name;
        EXPECT_EQ(error->reason(), ErrorCode::kChanged);
        EXPECT_THAT(error->what(), HasSubstr("'t1'"));
    }
    EXPECT_THAT(names(), ::testing::ElementsAre("c"));
}

// A save that stays in its progress until `go` is set, and one behind it.
TEST_F(ChangingState, ATensorThatChangesBeforeASaveInTheBackgroundReadsItIsNamed) {
    for (const Changing changing : {Changing::kFails, Changing::kTorn}) {
        for (const std::uint64_t bytes :
             {std::uint64_t{5}, std::uint64_t{64}, std::uint64_t{65}, kMiB, 9 * kMiB}) {
            for (const int changes : {0, 1, 2}) {  // the second one undoes the first
                Memories before({10});
                Memories memories({100, bytes});
                CheckpointStore store(engine_, FileSystem::local(), {folder_ / "c"}, {.keep = 0});
                std::atomic<bool> go = false;
                SaveOptions options;
                options.progress = [&](std::uint64_t, std::uint64_t) {
                    go.wait(false);
                    return true;
                };
                PendingSave first = store.save_async(before.state(), options);
                PendingSave second = store.save_async(
                    memories.state(), {.step = 2, .changing = changing}, {.copy = false});
                for (int i = 0; i < changes; ++i) {
                    for (std::byte& byte : memories.data[1]) {
                        byte ^= std::byte{0x21};
                    }
                }
                go = true;
                go.notify_all();
                static_cast<void>(first.result());
                const auto error = support::error_of([&] { return second.result(); });
                if (changes == 1 && changing == Changing::kFails) {
                    ASSERT_TRUE(error) << bytes;
                    EXPECT_EQ(error->reason(), ErrorCode::kChanged);
                    EXPECT_THAT(error->what(), HasSubstr("tensor 't1'"));
                    EXPECT_EQ(store.latest()->step, 0U);
                } else {
                    ASSERT_FALSE(error) << bytes << ": " << error->what();
                    expect_sound(store, *store.latest());
                }
                std::filesystem::remove_all(folder_ / "c");
            }
        }
    }
}

// A save that has a copy of everything keeps nothing of the caller's: what a look reads may be
// gone.
TEST_F(ChangingState, AnEmptyTensorIsNotLookedAtOnceASaveInTheBackgroundHasBegun) {
    for (const bool copy : {true, false}) {
        Memories memories({0, 1000});
        State state = memories.state();
        if (!copy) {
            state.tensors.pop_back();
        }
        std::atomic<bool> returned = false;
        std::atomic<int> looks = 0;
        SaveOptions options;
        options.look = [&](std::span<const std::size_t>) -> std::optional<std::size_t> {
            looks += returned ? 1 : 0;
            return std::nullopt;
        };
        std::atomic<bool> go = false;
        SaveOptions slow;
        slow.progress = [&](std::uint64_t, std::uint64_t) {
            go.wait(false);
            return true;
        };
        CheckpointStore store(engine_, FileSystem::local(), {folder_ / "c"});
        PendingSave before = store.save_async(Memories({10}).state(), slow);
        PendingSave pending = store.save_async(std::move(state), options, {.copy = copy});
        returned = true;
        go = true;
        go.notify_all();
        static_cast<void>(before.result());
        static_cast<void>(pending.result());
        EXPECT_EQ(looks, 0);
    }
}

TEST_F(ChangingState, ACopyThatTheCallerPromisesIsNotLookedAt) {
    Memories memories({3 * kMiB});
    State state = memories.state();
    state.tensors[0].is_copy = true;
    SaveOptions options;
    options.look = [](std::span<const std::size_t> tensors) {
        return std::optional(tensors.front());
    };
    CheckpointStore store(engine_, FileSystem::local(), {folder_ / "c"});
    expect_sound(store, store.save(state, options));
}

}  // namespace
}  // namespace penstock
