// SPDX-License-Identifier: Apache-2.0
// The protocol of a ring, in a memory whose loads may give any value that its orders allow, and
// whose plain reads and writes must be ordered. Each order of the protocol is weakened in turn:
// then a race is found.
#include <penstock/device_array.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::device {
namespace {

constexpr std::size_t kAskers = 3;
constexpr std::size_t kActors = kAskers + 1;  // the last is the server
using Clock = std::array<std::uint64_t, kActors>;

/// Vector clocks: what each actor knows of what the others did.
struct Model {
    std::mt19937_64 random;
    std::array<Clock, kActors> clocks{};
    std::size_t actor = 0;  ///< whose turn it is
    std::string race;       ///< the first

    void step() { ++clocks[actor][actor]; }
    [[nodiscard]] bool knows(std::size_t whose, std::uint64_t at) const {
        return clocks[actor][whose] >= at;
    }
    void learn(const Clock& other) {
        for (std::size_t i = 0; i < kActors; ++i) {
            clocks[actor][i] = std::max(clocks[actor][i], other[i]);
        }
    }
};

// One thread runs a model at a time.
thread_local Model* model = nullptr;

/// A word with all that was stored to it. A load gives the last store that its actor knows of, or
/// any later one.
class ModelWord {
public:
    std::uint64_t load(Order order) {
        model->step();
        std::size_t oldest = seen_[model->actor];
        for (std::size_t i = stores_.size() - 1; i > oldest; --i) {
            if (model->knows(stores_[i].actor, stores_[i].at)) {
                oldest = i;
            }
        }
        const std::size_t chosen = oldest + model->random() % (stores_.size() - oldest);
        seen_[model->actor] = chosen;
        if (order == Order::kAcquire) {
            model->learn(stores_[chosen].released);
        }
        return stores_[chosen].value;
    }
    void store(std::uint64_t value, Order order) {
        model->step();
        const Clock& mine = model->clocks[model->actor];
        stores_.push_back(
            {value, model->actor, mine[model->actor], order == Order::kRelease ? mine : Clock{}});
        seen_[model->actor] = stores_.size() - 1;
    }
    bool exchange(std::uint64_t from, std::uint64_t to) {
        if (stores_.back().value != from) {
            return false;
        }
        const Clock passed = stores_.back().released;
        store(to, Order::kRelaxed);
        stores_.back().released = passed;
        return true;
    }

private:
    struct Store {
        std::uint64_t value = 0;
        std::size_t actor = 0;
        std::uint64_t at = 0;
        Clock released{};
    };
    std::vector<Store> stores_{Store{}};
    std::array<std::size_t, kActors> seen_{};
};

/// Memory without orders: who writes must know of all that read and wrote, who reads of the writer.
template <typename T>
class ModelPlain {
public:
    ModelPlain& operator=(T value) {
        model->step();
        for (std::size_t i = 0; i < kActors; ++i) {
            check(i, read_[i], "written while it is read");
        }
        check(writer_, written_, "written by two");
        writer_ = model->actor;
        written_ = model->clocks[model->actor][model->actor];
        value_ = value;
        return *this;
    }
    operator T() const {  // NOLINT(google-explicit-constructor): reads as the plain type does
        model->step();
        check(writer_, written_, "read while it is written");
        read_[model->actor] = model->clocks[model->actor][model->actor];
        return value_;
    }

private:
    void check(std::size_t whose, std::uint64_t at, const char* words) const {
        if (model->race.empty() && !model->knows(whose, at)) {
            model->race = fmt::format("{} bytes: {}", sizeof(T), words);
        }
    }

    T value_{};
    std::size_t writer_ = 0;
    std::uint64_t written_ = 0;
    mutable std::array<std::uint64_t, kActors> read_{};
};

struct ModelWords {
    using Word = ModelWord;
    template <typename T>
    using Plain = ModelPlain<T>;
    template <Order order>
    static std::uint64_t load(Word& word) {
        return word.load(order);
    }
    template <Order order>
    static void store(Word& word, std::uint64_t value) {
        word.store(value, order);
    }
    static bool exchange(Word& word, std::uint64_t from, std::uint64_t to) {
        return word.exchange(from, to);
    }
};

constexpr std::uint64_t kBad = 5;  // every fifth row is an error

/// Askers and a server in turns of a seed: each turn is one call of the protocol.
template <typename Orders>
class Run {
public:
    explicit Run(std::uint64_t seed) { model_.random.seed(seed); }

    /// Empty, or what was wrong.
    std::string operator()() {
        model = &model_;
        std::size_t left = kAskers;
        for (int turns = 0; left != 0; ++turns) {
            if (turns == 20'000) {
                return "nobody goes on";
            }
            model_.actor = model_.random() % kActors;
            if (model_.actor == kAskers) {
                serve();
            } else if (askers_[model_.actor].left != 0) {
                ask(askers_[model_.actor]);
                left -= askers_[model_.actor].left == 0 ? 1 : 0;
            }
            if (!model_.race.empty() || !wrong_.empty()) {
                return !model_.race.empty() ? model_.race : wrong_;
            }
        }
        return {};
    }

private:
    static constexpr std::uint32_t kBits = 1;
    using Seen = typename Ring<ModelWords, Orders>::Seen;
    struct Asker {
        int left = 6;
        std::optional<std::uint64_t> ticket;
        std::uint64_t row = 0;
    };

    void ask(Asker& asker) {
        if (!asker.ticket) {
            asker.row = model_.random() % 1000;
            std::uint64_t ticket = 0;
            if (ring_.try_ask(asker.row, ticket)) {
                asker.ticket = ticket;
            }
            return;
        }
        const RowStatus status = ring_.answered(*asker.ticket);
        if (status == RowStatus::kPending && model_.random() % 8 != 0) {
            return;
        }
        if (status == RowStatus::kReady && rows_[ring_.number(*asker.ticket)] != asker.row) {
            wrong_ = "the row of another";
        }
        if (status != RowStatus::kPending &&
            (status == RowStatus::kReadError) != (asker.row % kBad == 0)) {
            wrong_ = "the status of another";
        }
        ring_.give_back(*asker.ticket);
        asker.ticket.reset();
        --asker.left;
    }
    void serve() {
        const std::uint64_t number = model_.random() % ring_.size();
        std::uint64_t row = 0;
        std::uint64_t ticket = 0;
        const bool taken = std::any_of(reading_.begin(), reading_.end(), [&](const auto& one) {
            return ring_.number(one.first) == number;
        });
        const Seen seen = taken ? Seen::kNothing : ring_.look(number, row, ticket);
        if (seen == Seen::kGivenUp) {
            ring_.answer(ticket, RowStatus::kStopped);
        } else if (seen == Seen::kAsked) {
            reading_.emplace_back(ticket, row);
        }
        if (!reading_.empty() && model_.random() % 2 == 0) {
            const std::size_t which = model_.random() % reading_.size();
            const auto [taken_ticket, its] = reading_[which];
            reading_.erase(reading_.begin() + static_cast<std::ptrdiff_t>(which));
            rows_[ring_.number(taken_ticket)] = its;
            ring_.answer(taken_ticket, its % kBad == 0 ? RowStatus::kReadError : RowStatus::kReady);
        }
    }

    Model model_;
    RingHead<ModelWords> head_;
    std::array<RingSlot<ModelWords>, 1U << kBits> slots_;
    std::array<ModelPlain<std::uint64_t>, 1U << kBits> rows_;
    Ring<ModelWords, Orders> ring_{&head_, slots_.data(), kBits};
    std::array<Asker, kAskers> askers_;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> reading_;
    std::string wrong_;
};

/// The first thing that is wrong in runs of so many seeds.
template <typename Orders>
std::string found(std::uint64_t seeds) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const auto run = std::make_unique<Run<Orders>>(seed);
        if (std::string wrong = (*run)(); !wrong.empty()) {
            return wrong;
        }
    }
    return {};
}

struct RelaxedAsk : RingOrders {
    static constexpr Order kAsk = Order::kRelaxed;
};
struct RelaxedAsked : RingOrders {
    static constexpr Order kAsked = Order::kRelaxed;
};
struct RelaxedAnswer : RingOrders {
    static constexpr Order kAnswer = Order::kRelaxed;
};
struct RelaxedAnswered : RingOrders {
    static constexpr Order kAnswered = Order::kRelaxed;
};
struct RelaxedGiveBack : RingOrders {
    static constexpr Order kGiveBack = Order::kRelaxed;
};
struct RelaxedLeft : RingOrders {
    static constexpr Order kLeft = Order::kRelaxed;
};
struct RelaxedServed : RingOrders {
    static constexpr Order kServed = Order::kRelaxed;
};

TEST(RowRing, HasNoRaceInAnyOrderThatIsAllowed) {
    EXPECT_EQ(found<RingOrders>(1500), "");
}

TEST(RowRing, NeedsEachOfItsOrders) {
    EXPECT_NE(found<RelaxedAsk>(3000), "");
    EXPECT_NE(found<RelaxedAsked>(3000), "");
    EXPECT_NE(found<RelaxedAnswer>(3000), "");
    EXPECT_NE(found<RelaxedAnswered>(3000), "");
    EXPECT_NE(found<RelaxedGiveBack>(3000), "");
    EXPECT_NE(found<RelaxedLeft>(3000), "");
    EXPECT_NE(found<RelaxedServed>(3000), "");
}

/// Threads at a ring in ordinary memory, with a server that makes rows up. How many rows were
/// wrong.
template <typename Orders>
std::uint64_t played_by_threads() {
    constexpr std::uint32_t kBits = 2;
    constexpr std::size_t kThreads = 4;
    RingHead<SystemWords> head;
    std::array<RingSlot<SystemWords>, 1U << kBits> slots;
    std::array<std::uint64_t, 1U << kBits> rows{};
    const Ring<SystemWords, Orders> ring{&head, slots.data(), kBits};
    std::atomic<bool> over{false};
    std::atomic<std::uint64_t> wrong{0};
    std::thread server([&] {
        std::uint64_t row = 0;
        std::uint64_t ticket = 0;
        for (std::uint64_t next = 0; !over.load(std::memory_order_relaxed); ++next) {
            if (ring.look(next % ring.size(), row, ticket) ==
                Ring<SystemWords, Orders>::Seen::kNothing) {
                std::this_thread::yield();
                continue;
            }
            rows[ring.number(ticket)] = row * 7;
            ring.answer(ticket, RowStatus::kReady);
        }
    });
    std::vector<std::thread> askers;
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
        askers.emplace_back([&, thread] {
            for (std::uint64_t i = 0; i < 100; ++i) {
                const std::uint64_t row = thread * 1000 + i;
                std::uint64_t ticket = 0;
                while (!ring.try_ask(row, ticket)) {
                    std::this_thread::yield();
                }
                while (i % 16 != 15 && ring.answered(ticket) == RowStatus::kPending) {
                    std::this_thread::yield();
                }
                if (i % 16 != 15 && rows[ring.number(ticket)] != row * 7) {
                    ++wrong;
                }
                ring.give_back(ticket);
            }
        });
    }
    for (std::thread& thread : askers) {
        thread.join();
    }
    over.store(true, std::memory_order_relaxed);
    server.join();
    return wrong;
}

TEST(RowRing, ThreadsGetTheirRows) {
    EXPECT_EQ(played_by_threads<RingOrders>(), 0U);
}

// Run by the next test in a process of its own.
TEST(RowRing, DISABLED_ThreadsWithARelaxedAnswer) {
    played_by_threads<RelaxedAnswer>();
}

TEST(RowRing, ThreadSanitizerSeesARelaxedAnswer) {
#if defined(PENSTOCK_TSAN)
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    const std::string command = "env -u GTEST_FILTER TSAN_OPTIONS=halt_on_error=1 '" + self +
                                "' --gtest_also_run_disabled_tests "
                                "--gtest_filter='*DISABLED_ThreadsWithARelaxedAnswer' 2>&1";
    std::FILE* const pipe = ::popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string said;
    std::array<char, 4096> some{};
    while (const std::size_t bytes = std::fread(some.data(), 1, some.size(), pipe)) {
        said.append(some.data(), bytes);
    }
    EXPECT_NE(::pclose(pipe), 0);
    EXPECT_THAT(said, testing::HasSubstr("data race"));
#else
    GTEST_SKIP() << "not built with ThreadSanitizer";
#endif
}

}  // namespace
}  // namespace penstock::device
