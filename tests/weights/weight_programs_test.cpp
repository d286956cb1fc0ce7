// SPDX-License-Identifier: Apache-2.0
// Random programs of streams of weights over each memory: tensors of odd lengths and places, units
// that share them, budgets that jump, limits of time, refusals of the driver and a late GPU. What a
// user sees while a unit is held is the bytes of the files, and nothing is left behind.
#include "support/seeds.hpp"
#include "support/text_files.hpp"
#include "weights/in_each_memory.hpp"
#include "weights/program_model.hpp"

#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::weights {
namespace {

using namespace std::chrono_literals;
using namespace device::cuda;
using test::error_of;

using Bytes = std::vector<std::byte>;

class WeightPrograms : public InEachMemory, protected ProgramModel {
protected:
    // A stream, and what is known of it.
    struct Streamed {
        std::optional<WeightStream> stream;
        std::map<std::size_t, std::uint32_t> held;
        std::map<std::size_t, const WeightView*> views;
        std::optional<std::uint64_t> next;  // the budget from the next change on
        bool follows = false;
        bool is_closed = false;
        bool may_echo = false;  // what was read ahead during a fault, and is one error later
    };
    // Bytes that the stream of the caller copied, or will.
    struct Seen {
        std::uint64_t at;
        std::size_t tensor;
        std::uint64_t step;
    };

    WeightPrograms() {
        if (gpu_) {
            seen_memory_ = Region::pinned(24 * kMiB, 0);
        }
    }

    [[nodiscard]] WeightStreamOptions with(std::uint64_t memory_bytes) {
        return {.memory_bytes = memory_bytes,
                .gpu = gpu(),
                .host_memory_bytes = GetParam() == Where::kPinned ? 1 + total_ / 2 : 0,
                .slots = slots_,
                .copies = copies_,
                .spare_interval = 0ns};
    }
    [[nodiscard]] std::uint64_t any_budget() {
        switch (below(5)) {
            case 0:
                return least_;
            case 1:
                return most_;
            case 2:
                return one_in(3) ? UINT64_MAX : most_ + below(kMiB);
            default:
                return least_ + (most_ > least_ ? below(most_ - least_) : 0);
        }
    }
    [[nodiscard]] SpareMemory any_spare() {
        if (!one_in(3)) {
            return {};
        }
        return [random = std::mt19937_64(random_())]() mutable -> std::int64_t {
            switch (random() % 9) {
                case 0:
                    return INT64_MIN;
                case 1:
                    return INT64_MAX;
                case 2:
                    return -1;
                case 3:
                    return 0;
                case 4:
                    throw Error(ErrorCode::kSystem, 0, "test", "", kNoOffset, "of spare");
                case 5:
                    throw std::runtime_error("of spare");
                default:
                    return static_cast<std::int64_t>(random() % (8 * kMiB)) -
                           static_cast<std::int64_t>(4 * kMiB);
            }
        };
    }
    // Nothing: it was refused, which a fault may be the reason of, or `spare`.
    template <typename Call>
    bool tried(bool may_fail, const Call& call) {
        try {
            call();
            return true;
        } catch (const Error& error) {
            EXPECT_TRUE(may_fail) << where() << error.what();
        } catch (const std::runtime_error& error) {
            EXPECT_TRUE(may_fail) << where() << error.what();
        }
        return false;
    }
    [[nodiscard]] std::string where() const {
        return fmt::format("seed {}, step {}: ", seed_, step_);
    }

    void make() {
        make_model();
        least_ = least_weight_memory(table_, units_, with(0));
        most_ = most_weight_memory(table_, units_, with(0));
    }
    void open(Streamed& one) {
        WeightStreamOptions options = with(any_budget());
        options.spare = any_spare();
        one = {};
        one.follows = static_cast<bool>(options.spare);
        if (tried(is_faulty_, [&] { one.stream.emplace(engine_, table_, units_, options); })) {
            EXPECT_LE(one.stream->plan().used_bytes(), options.memory_bytes) << where();
        }
    }

    void look(const WeightView& view, std::size_t unit) {
        ASSERT_EQ(view.tensors.size(), numbers_[unit].size()) << where();
        for (std::size_t i = 0; i < view.tensors.size(); ++i) {
            const ConstMemory& memory = view.tensors[i];
            const std::size_t tensor = numbers_[unit][i];
            const Bytes& expected = data_[tensor];
            ASSERT_EQ(memory.bytes, expected.size()) << where() << unit;
            if (memory.bytes == 0) {
                continue;
            }
            if (!gpu_) {
                ASSERT_EQ(std::memcmp(memory.data, expected.data(), memory.bytes), 0)
                    << where() << "unit " << unit << " tensor " << tensor;
                continue;
            }
            if (seen_bytes_ + memory.bytes > seen_memory_.size()) {
                compare();
            }
            gpu_->copy_out(memory, seen_memory_.data() + seen_bytes_);
            seen_.push_back({seen_bytes_, tensor, step_});
            seen_bytes_ += memory.bytes;
        }
    }
    void compare() {
        if (!gpu_) {
            return;
        }
        let_go();
        gpu_->synchronize();
        for (const Seen& one : seen_) {
            ASSERT_EQ(std::memcmp(seen_memory_.data() + one.at, data_[one.tensor].data(),
                                  data_[one.tensor].size()),
                      0)
                << where() << "tensor " << one.tensor << " of step " << one.step;
        }
        seen_.clear();
        seen_bytes_ = 0;
    }

    void acquire(Streamed& one) {
        const std::size_t unit = one_in(3) ? below(units_.size()) : next_++ % units_.size();
        const bool was_idle = one.held.empty();
        constexpr std::array kLimits{0ns,
                                     1ns,
                                     -1ns,
                                     1'000ns,
                                     1'000'000ns,
                                     std::chrono::nanoseconds::max() - 1ns,
                                     std::chrono::nanoseconds::min()};
        const WeightView* view = nullptr;
        const bool is_full = std::count_if(one.held.begin(), one.held.end(), [&](const auto& held) {
                                 return moves(*one.stream, held.first);
                             }) == static_cast<std::ptrdiff_t>(one.stream->plan().slots);
        one.may_echo = one.may_echo || is_faulty_;
        const bool may_fail = one.may_echo || (was_idle && (one.follows || one.next)) || is_full;
        const bool has_limit = one_in(3);
        if (!tried(may_fail, [&] {
                if (has_limit) {
                    view = one.stream->acquire_for(unit, kLimits[below(kLimits.size())], handle());
                } else {
                    view = &one.stream->acquire(unit, handle());
                }
            })) {
            ++refused_;
            one.may_echo = is_faulty_ || is_full || was_idle;  // perhaps it was another error
            return;
        }
        if (was_idle && one.next && !one.follows) {
            EXPECT_EQ(one.stream->plan().memory_bytes, *one.next) << where();
            one.next.reset();
        }
        EXPECT_LE(one.stream->plan().used_bytes(), one.stream->plan().memory_bytes) << where();
        if (view == nullptr) {
            return;
        }
        ++acquired_;
        ++one.held[unit];
        one.views[unit] = view;
        look(*view, unit);
        if (one_in(12)) {
            kept_.push_back(*view);
        }
    }
    [[nodiscard]] bool moves(const WeightStream& stream, std::size_t unit) const {
        const WeightPlan::Unit& plan = stream.plan().units[unit];
        return plan.read_bytes + plan.copied_bytes != 0;
    }
    void release(Streamed& one) {
        one.may_echo = one.may_echo || is_faulty_;  // it reads ahead
        if (one.held.empty()) {
            const std::size_t unit = below(units_.size());
            EXPECT_EQ(error_of([&] { one.stream->release(unit, handle()); }).reason(),
                      ErrorCode::kInvalidArgument)
                << where();
            return;
        }
        auto held = one.held.begin();
        std::advance(held, static_cast<std::ptrdiff_t>(below(one.held.size())));
        const std::size_t unit = held->first;
        look(*one.views[unit], unit);
        if (tried(is_faulty_, [&] { one.stream->release(unit, handle()); }) &&
            --held->second == 0) {
            one.held.erase(held);
            one.views.erase(unit);
        }
    }
    void set_memory(Streamed& one) {
        if (least_ != 0 && one_in(5)) {
            EXPECT_EQ(error_of([&] { one.stream->set_memory(below(least_)); }).reason(),
                      ErrorCode::kOutOfMemory)
                << where();
            return;
        }
        const std::uint64_t budget = any_budget();
        SpareMemory spare = any_spare();
        one.follows = static_cast<bool>(spare);
        one.next = budget;
        one.stream->set_memory(budget, std::move(spare));
    }
    void fault() {
        if (!gpu_) {
            return;
        }
        if (is_faulty_) {
            heal();
            return;
        }
        constexpr std::array kCalls{
            "cuMemAlloc",          "cuMemFree",      "cuMemHostRegister",
            "cuMemHostUnregister", "cuStreamCreate", "cuStreamWaitEvent",
            "cuEventCreate",       "cuEventRecord",  "cuMemcpyHtoDAsync",
        };
        constexpr std::array kErrors{CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_LAUNCH_FAILED};
        const char* const call = kCalls[below(kCalls.size())];
        gpu_->fake().fail(call, 1 + below(9), kErrors[below(2)], 1 + below(3));
        fault_ = call;
        is_faulty_ = true;
    }
    void heal() {
        if (is_faulty_) {
            gpu_->fake().fail(fault_, 0, 0);
            is_faulty_ = false;
        }
    }
    void delay() {
        if (!gpu_) {
            return;
        }
        if (one_in(3)) {
            let_go();
            gpu_->fake().hold(true);
            later_ = std::thread([this] {
                std::this_thread::sleep_for(3ms);
                gpu_->fake().hold(false);
            });
        } else {
            gpu_->fake().set_delays(random_(), static_cast<std::uint32_t>(below(400)));
        }
    }
    void let_go() {
        if (later_.joinable()) {
            later_.join();
        }
    }
    void expect_memory(const std::vector<Streamed>& streams) {
        if (!gpu_ || !kept_.empty()) {
            return;
        }
        std::uint64_t budgets = 0;
        for (const Streamed& one : streams) {
            if (one.stream && !one.is_closed) {
                if (one.next || one.follows) {
                    return;
                }
                budgets += one.stream->plan().used_bytes();
            }
        }
        EXPECT_LE(gpu_->fake().counters().device_bytes_now - before_[0], budgets) << where();
    }
    [[nodiscard]] std::array<std::uint64_t, 4> alive() {
        const FakeGpuCounters now = gpu_->fake().counters();
        return {now.device_bytes_now, now.streams_now, now.events_now, now.pinned_bytes_now};
    }

    void step(std::vector<Streamed>& streams) {
        Streamed& one = streams[below(streams.size())];
        if (!one.stream || one.is_closed) {
            open(one);
            return;
        }
        switch (below(24)) {
            case 0:
                set_memory(one);
                break;
            case 1:
                fault();
                break;
            case 2:
                delay();
                break;
            case 3: {
                std::optional<WeightStream> other(std::move(*one.stream));
                one.stream = std::move(other);
                break;
            }
            case 4:
                if (!kept_.empty()) {
                    kept_.pop_front();
                }
                break;
            case 5:
                if (one_in(4)) {
                    compare();
                    one.stream->close();
                    one.held.clear();
                    one.is_closed = true;
                    EXPECT_EQ(error_of([&] { one.stream->acquire(0); }).reason(),
                              ErrorCode::kClosed)
                        << where();
                }
                break;
            case 6:
                if (one_in(4)) {
                    compare();
                    one = {};
                }
                break;
            case 7:
                expect_memory(streams);
                break;
            default:
                one_in(2) ? acquire(one) : release(one);
        }
    }
    void run(std::uint64_t seed) {
        seed_ = seed;
        step_ = 0;
        random_.seed(seed);
        make();
        if (gpu_) {
            before_ = alive();
        }
        {
            std::vector<Streamed> streams(1 + below(2));
            for (std::uint64_t steps = 20 + below(120); step_ < steps; ++step_) {
                step(streams);
                if (HasFatalFailure()) {
                    return;
                }
            }
            compare();
            heal();
            for (Streamed& one : streams) {  // all is right again after whatever came
                while (one.stream && !one.is_closed && !one.held.empty()) {
                    release(one);
                }
                for (std::size_t unit = 0; one.stream && !one.is_closed && unit < units_.size();
                     ++unit) {
                    const bool may_echo = std::exchange(one.may_echo, false);
                    if (tried(one.follows || one.next || may_echo, [&] {
                            look(one.stream->acquire(unit, handle()), unit);
                            one.stream->release(unit, handle());
                        })) {
                        one.next.reset();
                    }
                }
            }
            compare();
        }
        for (const WeightView& view : kept_) {  // the addresses are valid
            for (const ConstMemory& memory : view.tensors) {
                static_cast<void>(read(memory));
            }
        }
        kept_.clear();
        if (gpu_) {
            EXPECT_EQ(alive()[0], before_[0]) << where() << "memory of the GPU is left";
            EXPECT_TRUE(seed == 0 || alive()[1] == before_[1]) << where() << "streams are left";
        }
    }

    std::shared_ptr<Engine> engine_;
    std::uint64_t step_ = 0;
    std::uint64_t acquired_ = 0;
    std::uint64_t refused_ = 0;
    std::size_t next_ = 0;
    std::uint64_t least_ = 0;
    std::uint64_t most_ = 0;
    Region seen_memory_;
    std::uint64_t seen_bytes_ = 0;
    std::vector<Seen> seen_;
    std::list<WeightView> kept_;
    std::array<std::uint64_t, 4> before_{};
    bool is_faulty_ = false;
    std::thread later_;
    const char* fault_ = nullptr;
};

TEST_P(WeightPrograms, SeeTheBytesOfTheFilesAndLeaveNothing) {
    const std::uint64_t seeds = support::engine_seeds(25);
    const std::array<std::uint64_t, 4> before = gpu_ ? alive() : std::array<std::uint64_t, 4>{};
    engine_ = std::make_shared<Engine>();
    run(0);  // what the engine makes once
    for (std::uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed) {
        run(seed);
    }
    engine_.reset();
    EXPECT_EQ(gpu_ ? alive() : before, before);
    EXPECT_GT(acquired_, 8 * seeds);
    RecordProperty("acquired", static_cast<int>(acquired_));
    RecordProperty("refused", static_cast<int>(refused_));
}

// Each call of the driver in turn, in the whole life of a stream whose budget changes twice. An
// error or none; then all is right again, and nothing is left at the end.
TEST_P(WeightPrograms, AreWholeWhicheverCallIsRefused) {
    if (!gpu_) {
        GTEST_SKIP() << "the host has no driver";
    }
    const std::array<std::uint64_t, 4> before_all = alive();
    engine_ = std::make_shared<Engine>();
    run(0);
    random_.seed(7);
    seed_ = 7;
    do {
        make();
    } while (units_.size() < 4 || !copies_.empty() || least_ == most_);
    std::uint64_t errors = 0;
    std::uint64_t refusals = 0;
    for (const char* const name :
         {"cuMemAlloc", "cuMemHostRegister", "cuMemHostGetDevicePointer", "cuMemHostUnregister",
          "cuMemFree", "cuStreamCreate", "cuStreamDestroy", "cuStreamQuery", "cuStreamWaitEvent",
          "cuEventCreate", "cuEventDestroy", "cuEventRecord", "cuMemcpyHtoDAsync",
          "cuCtxPushCurrent", "cuDevicePrimaryCtxRetain"}) {
        bool is_met = true;
        for (std::uint64_t nth = 1; is_met && nth < 60; nth += nth < 8 ? 1 : 5) {
            const std::uint64_t times = nth % 2 == 0 ? 1 : 3;
            step_ = nth;
            const std::array<std::uint64_t, 4> before = alive();
            const std::uint64_t failed = gpu_->fake().counters().failed_by_order;
            const auto call = [&](const auto& it) { errors += tried(true, it) ? 0 : 1; };
            gpu_->fake().fail(name, nth,
                              nth % 2 == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_LAUNCH_FAILED,
                              times);
            std::optional<WeightStream> stream;
            call([&] { stream.emplace(engine_, table_, units_, with(least_)); });
            for (const std::uint64_t budget : {most_ - 1, least_, least_}) {
                for (std::size_t unit = 0; stream && unit < units_.size(); ++unit) {
                    bool is_held = false;
                    call([&] {
                        static_cast<void>(stream->acquire(unit, handle()));
                        is_held = true;
                    });
                    for (int tries = 0; is_held && tries < 9; ++tries) {
                        call([&] {
                            stream->release(unit, handle());
                            is_held = false;
                        });
                    }
                    ASSERT_FALSE(is_held) << where();
                }
                if (stream) {
                    call([&] { stream->set_memory(budget); });
                }
            }
            is_met = gpu_->fake().counters().failed_by_order != failed;
            gpu_->fake().fail(name, 0, 0);
            refusals += is_met ? 1 : 0;
            for (std::size_t unit = 0; stream && unit < units_.size(); ++unit) {
                call([&] {  // what was read ahead may have met it
                    static_cast<void>(stream->acquire(unit, handle()));
                    stream->release(unit, handle());
                });
            }
            for (std::size_t unit = 0; stream && unit < units_.size(); ++unit) {
                look(stream->acquire(unit, handle()), unit);
                EXPECT_LE(alive()[0] - before[0], stream->plan().used_bytes()) << where();
                stream->release(unit, handle());
            }
            compare();
            stream.reset();
            ASSERT_EQ(alive()[0], before[0]) << where() << name;
            ASSERT_LE(alive()[1], before[1] + (nth == 1 ? 2 : 0)) << where() << name;
        }
    }
    engine_.reset();
    EXPECT_EQ(alive(), before_all);
    EXPECT_GT(errors, 50U);
    EXPECT_GT(refusals, 100U);
}

INSTANTIATE_TEST_SUITE_P(, WeightPrograms, each_memory(), name_of);

}  // namespace
}  // namespace penstock::weights
