// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "ranks/message.hpp"

#include <penstock/ranks.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <utility>

namespace penstock {

namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr const char* kOperation = "agree on the last step";
constexpr std::uint64_t kStrideMax = 16;
// Messages may cost one part in so many of the steps.
constexpr std::int64_t kCostShare = 200;
constexpr nanoseconds kPauseMin = std::chrono::milliseconds(1);
constexpr nanoseconds kPauseMax = std::chrono::milliseconds(50);

}  // namespace

StopTogether::StopTogether(Ranks ranks, StopOptions options)
    : ranks_(std::move(ranks)),
      options_(std::move(options)),
      name_(ranks_.count() > 1 ? fmt::format("stop{}", ranks_.next_user()) : ""),
      said_(steady_clock::now()) {}

// Leaves what rank 0 said to those that come later, unless all have left.
StopTogether::~StopTogether() {
    if (ranks_.count() == 1 || ranks_.number() != 0 || word_ == Word::kGo) {
        return;
    }
    try {
        Mailbox& mailbox = *ranks_.mailbox();
        const auto left = [&](std::uint32_t rank) { return key(fmt::format("left/{}", rank)); };
        for (std::uint32_t rank = 1; rank < ranks_.count(); ++rank) {
            if (!mailbox.get(left(rank), nanoseconds::zero())) {
                return;
            }
        }
        for (std::uint32_t rank = 1; rank < ranks_.count(); ++rank) {
            mailbox.erase(left(rank));
        }
        mailbox.erase(key("asked"));
        mailbox.erase(key("until"));
    } catch (...) {  // the mailbox is gone, and its keys with it
        return;
    }
}

std::string StopTogether::key(std::string_view what) const {
    return fmt::format("{}/{}", name_, what);
}

void StopTogether::say(Word word, std::uint64_t until) {
    ranks_.mailbox()->put(
        key("until"),
        ranks::MessageWriter().number(static_cast<std::uint64_t>(word)).number(until).take());
    word_ = word;
    until_ = until;
}

// Takes what rank 0 said last, if it has said something.
bool StopTogether::hear() {
    const auto message = ranks_.mailbox()->get(key("until"), nanoseconds::zero());
    if (!message) {
        return false;
    }
    ranks::MessageReader in(*message);
    word_ = static_cast<Word>(std::min(in.number(), static_cast<std::uint64_t>(Word::kOver)));
    until_ = in.number();
    in.end();
    return true;
}

// Steps of some 40 ms and more have messages at each of them.
std::uint64_t StopTogether::stride() {
    const auto now = steady_clock::now();
    const std::uint64_t steps = step_ - said_at_;
    const nanoseconds taken = now - std::exchange(said_, now);
    said_at_ = step_;
    if (options_.stride != 0) {
        return options_.stride;
    }
    if (steps == 0) {
        return 1;
    }
    const std::int64_t step =
        std::max<std::int64_t>(taken.count() / static_cast<std::int64_t>(steps), 1);
    return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(cost_.count() * kCostShare / step),
                                     1, kStrideMax);
}

void StopTogether::ask(bool is_asked) {
    if (is_asked && !has_asked_) {
        ranks_.mailbox()->put(key("asked"), {});
        has_asked_ = true;
    }
}

bool StopTogether::lead(bool is_asked, bool is_end) {
    if (word_ == Word::kGo && (is_asked || is_end || until_ <= step_ + 1)) {
        const std::uint64_t stride_now = stride();
        const auto began = steady_clock::now();
        const bool stops =
            is_asked || ranks_.mailbox()->get(key("asked"), nanoseconds::zero()).has_value();
        if (stops) {  // nobody has passed that step: who comes to it asks
            say(Word::kStop, std::max(until_, step_));
        } else if (is_end) {
            say(Word::kOver, step_);
        } else {
            say(Word::kGo, step_ + 1 + stride_now);
        }
        cost_ = steady_clock::now() - began;
    }
    return word_ == Word::kStop && (is_end || step_ >= until_);
}

void StopTogether::wait_for_word() {
    nanoseconds waited{0};
    nanoseconds pause = kPauseMin;
    while (waited < options_.limit) {
        // Nobody puts that: it is a pause in the time of the mailbox.
        static_cast<void>(
            ranks_.mailbox()->get(key(fmt::format("pause/{}", ranks_.number())), pause));
        waited += pause;
        pause = std::min(2 * pause, kPauseMax);
        const std::uint64_t before = until_;
        if (hear() && (word_ != Word::kGo || until_ != before)) {
            return;
        }
        options_.look ? options_.look() : void();
    }
    throw Error(
        ErrorCode::kSystem, ETIMEDOUT, kOperation, {}, kNoOffset,
        fmt::format("rank 0 of {} has not ended a step within {:g} s, and rank {} is ahead of "
                    "it; look whether it runs",
                    ranks_.count(), std::chrono::duration<double>(options_.limit).count(),
                    ranks_.number()));
}

bool StopTogether::follow(bool is_asked, bool is_end) {
    ask(is_asked);
    if (word_ == Word::kGo && (is_end || step_ >= until_)) {
        static_cast<void>(hear());
        while (word_ == Word::kGo && (is_end || step_ >= until_)) {
            wait_for_word();
        }
    }
    const bool stops = word_ == Word::kStop && (is_end || step_ >= until_);
    if (is_end || stops) {
        ranks_.mailbox()->put(key(fmt::format("left/{}", ranks_.number())), {});
    }
    return stops;
}

// After an error there is no agreement any more, and no wait.
template <typename Call>
bool StopTogether::guarded(const Call& call) {
    if (ranks_.count() > 1 && word_ == Word::kOver) {
        return false;
    }
    try {
        return call();
    } catch (const std::bad_alloc&) {
        word_ = Word::kOver;
        throw;
    } catch (const Error&) {
        word_ = Word::kOver;
        throw;
    } catch (const std::exception& error) {
        word_ = Word::kOver;
        throw Error(ErrorCode::kSystem, ECONNRESET, kOperation, {}, kNoOffset,
                    fmt::format("the mailbox of the ranks is gone ({}): rank 0, which holds it, "
                                "may have ended",
                                error.what()));
    }
}

bool StopTogether::step_end(bool is_asked) {
    ++step_;
    return guarded([&] {
        return ranks_.count() == 1    ? is_asked
               : ranks_.number() == 0 ? lead(is_asked, false)
                                      : follow(is_asked, false);
    });
}

bool StopTogether::end(bool is_asked) {
    return guarded([&] {
        return ranks_.count() == 1    ? is_asked
               : ranks_.number() == 0 ? lead(is_asked, true)
                                      : follow(is_asked, true);
    });
}

bool StopTogether::leave() noexcept {
    if (ranks_.count() == 1 || word_ == Word::kOver) {
        return false;
    }
    try {
        if (ranks_.number() == 0) {
            word_ == Word::kGo ? say(Word::kOver, step_) : void();
        } else {
            static_cast<void>(hear());
            ranks_.mailbox()->put(key(fmt::format("left/{}", ranks_.number())), {});
        }
    } catch (...) {  // the mailbox is gone
        word_ = Word::kOver;
    }
    return std::exchange(word_, Word::kOver) == Word::kStop;
}

}  // namespace penstock
