// SPDX-License-Identifier: Apache-2.0
#include "ranks/conversation.hpp"

#include "base/assert.hpp"
#include "base/raise.hpp"
#include "ranks/message.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <utility>

namespace penstock::ranks {

namespace {

using std::chrono::nanoseconds;

constexpr std::string_view kRecord = "record";
constexpr std::string_view kVerdict = "verdict";
constexpr std::string_view kHeard = "heard";
constexpr nanoseconds kReportEvery = std::chrono::seconds(10);
constexpr nanoseconds kRecordEvery = std::chrono::milliseconds(500);
// One wait for a message. Between two of them all other ranks are looked at, which costs rank 0 one
// message a rank.
constexpr nanoseconds kSliceMin = std::chrono::milliseconds(50);
constexpr nanoseconds kSliceMax = std::chrono::seconds(1);
// Verdicts that are kept for a rank that is late. One that is later by more has to wait in each.
constexpr std::size_t kLeftMax = 64;

enum : std::uint64_t { kMoves = 0, kFailed = 1 };

void write_error(MessageWriter& out, const Error& error) {
    out.number(static_cast<std::uint64_t>(error.reason()))
        .number(static_cast<std::uint64_t>(error.system_errno()))
        .text(error.operation())
        .text(error.path())
        .text(error.what());
}

Error read_error(MessageReader& in) {
    const std::uint64_t code = in.number();
    const std::uint64_t number = in.number();
    const std::string operation = in.text();
    const std::string path = in.text();
    const std::string what = in.text();
    const bool known = code >= static_cast<std::uint64_t>(ErrorCode::kInvalidArgument) &&
                       code <= static_cast<std::uint64_t>(ErrorCode::kChanged);
    return {known ? static_cast<ErrorCode>(code) : ErrorCode::kSystem,
            number <= INT32_MAX ? static_cast<int>(number) : 0,
            operation,
            path,
            kNoOffset,
            what};
}

nanoseconds slice_of(const Ranks& ranks, nanoseconds limit) {
    const nanoseconds fair =
        std::clamp(nanoseconds(std::chrono::milliseconds(1)) * ranks.count(), kSliceMin, kSliceMax);
    return std::max(std::min(fair, limit / 4), nanoseconds(1));
}

}  // namespace

Group::Group(const Ranks& ranks, std::string name, std::vector<std::string> stages)
    : ranks_(ranks), name_(std::move(name)), stages_(std::move(stages)), hosts_(ranks.count()) {
    PENSTOCK_ASSERT(ranks.count() > 1 && ranks.mailbox());
    hosts_[ranks.number()] = ranks.host();
}

Group::~Group() {
    try {
        for (const auto& [exchange, keys] : left_keys_) {
            for (const std::string& left : keys) {
                ranks_.mailbox()->erase(left);
            }
        }
    } catch (...) {  // the mailbox is gone, and its keys with it
        return;
    }
}

std::string Group::name_of(std::uint32_t rank) const {
    const std::string name = fmt::format("rank {} of {}", rank, ranks_.count());
    return hosts_[rank].empty() ? name : fmt::format("{} ({})", name, hosts_[rank]);
}

std::string Group::key(std::uint64_t exchange, std::uint32_t rank, std::string_view stage) const {
    return fmt::format("{}/{}/{}/{}", name_, exchange, rank, stage);
}

std::vector<std::string> Group::keys_of(std::uint64_t exchange, std::uint32_t rank) const {
    std::vector<std::string> keys;
    for (const std::string& stage : stages_) {
        keys.push_back(key(exchange, rank, stage));
    }
    for (const std::string_view stage : {kRecord, kHeard}) {
        keys.push_back(key(exchange, rank, stage));
    }
    return keys;
}

// Rank 0 makes it the verdict. Another rank leaves it for rank 0, and does not have to hear more.
void Group::refuse(std::uint64_t exchange, const std::string& operation,
                   const Error& error) noexcept {
    const std::uint32_t rank = ranks_.number();
    MessageWriter out;
    try {
        if (rank == 0) {
            out.number(kFailed);
            write_error(out,
                        Error(error.reason(), error.system_errno(), error.operation(), error.path(),
                              kNoOffset, fmt::format("{}: {}", name_of(0), error.what())));
            const std::lock_guard lock(left_mutex_);
            std::vector<std::string>& left = left_keys_[exchange];
            for (std::uint32_t each = 0; each < ranks_.count(); ++each) {
                const std::vector<std::string> keys = keys_of(exchange, each);
                left.insert(left.end(), keys.begin(), keys.end());
            }
            left.push_back(key(exchange, 0, kVerdict));
            ranks_.mailbox()->put(left.back(), out.take());
            return;
        }
        out.text(ranks_.host()).number(1).text(operation).number(kFailed);
        write_error(out, error);
        ranks_.mailbox()->put(key(exchange, rank, kRecord), out.take());
        ranks_.mailbox()->put(key(exchange, rank, kHeard), {});
    } catch (...) {  // then the others wait for this rank, and name it
        return;
    }
}

Turn::Turn(Group& group, std::string operation)
    : group_(group),
      operation_(std::move(operation)),
      number_(++group.exchanges_),
      process_(::getpid()) {}

Turn::~Turn() {
    if (is_over_ || process_ != ::getpid()) {
        return;
    }
    try {
        refuse(Error(ErrorCode::kCancelled, 0, operation_, {}, kNoOffset,
                     "it was cancelled before it began"));
    } catch (const std::exception&) {  // then the others wait for this rank, and name it
        return;
    }
}

void Turn::refuse(const Error& error) noexcept {
    if (!is_over_.exchange(true)) {
        group_.refuse(number_, operation_, error);
    }
}

Conversation::Conversation(Turn& turn, Waiting waiting)
    : group_(turn.group_),
      operation_(turn.operation_),
      waiting_(std::move(waiting)),
      number_(turn.number_),
      slice_(slice_of(group_.ranks_, waiting_.limit)),
      watches_(group_.ranks_.count()) {
    if (turn.is_over_.exchange(true)) {
        base::raise(base::error(ErrorCode::kCancelled, operation_, "it was ended before it began"));
    }
    try {
        leave_record();
    } catch (const std::exception&) {  // the first wait finds out, and can report it
        return;
    }
}

std::string Conversation::key(std::uint32_t rank, std::string_view stage) const {
    return group_.key(number_, rank, stage);
}

// Every call of the mailbox goes through here or through leave(): what it throws is a silence.
std::optional<std::string> Conversation::look(std::uint32_t rank, std::string_view stage,
                                              nanoseconds timeout) {
    try {
        return group_.ranks_.mailbox()->get(key(rank, stage), timeout);
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        throw gone(error.what());
    } catch (...) {
        throw gone("an unknown error");
    }
}

void Conversation::leave(std::string_view stage, std::string_view message) {
    try {
        group_.ranks_.mailbox()->put(key(group_.ranks_.number(), stage), message);
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        throw gone(error.what());
    } catch (...) {
        throw gone("an unknown error");
    }
}

Silence Conversation::gone(std::string_view why) const {
    return Silence(Error(ErrorCode::kSystem, ECONNRESET, operation_, {}, kNoOffset,
                         fmt::format("the mailbox of the ranks is gone ({}): rank 0, which holds "
                                     "it, may have ended",
                                     why)));
}

void Conversation::leave_record() {
    leave(kRecord, record(operation_));
}

std::string Conversation::record(const std::string& operation) {
    MessageWriter out;
    out.text(group_.ranks_.host()).number(++steps_).text(operation);
    out.number(has_failed_ ? kFailed : kMoves);
    if (has_failed_) {
        write_error(out, failure_ ? *failure_
                                  : Error(ErrorCode::kOutOfMemory, ENOMEM, operation_, {},
                                          kNoOffset, "memory ran out"));
    }
    return out.take();
}

std::optional<Conversation::Record> Conversation::record_of(std::uint32_t rank) {
    const auto message = look(rank, kRecord, nanoseconds::zero());
    if (!message) {
        return std::nullopt;
    }
    MessageReader in(*message);
    Record record;
    record.host = in.text();
    record.steps = in.number();
    record.operation = in.text();
    if (in.number() == kFailed) {
        record.failure = read_error(in);
    }
    in.end();
    group_.hosts_[rank] = record.host;
    return record;
}

void Conversation::moved(std::uint64_t steps) {
    const auto now = std::chrono::steady_clock::now();
    if (steps != told_ && now >= next_record_) {
        told_ = steps;
        next_record_ = now + kRecordEvery;
        leave_record();
    }
}

Error Conversation::silence_of(std::uint32_t rank) const {
    const auto seconds = std::chrono::duration<double>(waiting_.limit).count();
    return {ErrorCode::kSystem,
            ETIMEDOUT,
            operation_,
            {},
            kNoOffset,
            watches_[rank].seen
                ? fmt::format("{} has stood still for {:g} s; look whether it runs, and whether "
                              "its storage answers",
                              group_.name_of(rank), seconds)
                : fmt::format("{} has not called it within {:g} s; each rank has to make each call",
                              group_.name_of(rank), seconds)};
}

// Adds a wait to the time that a rank has stood still. Returns its failure. Throws Silence.
std::optional<Error> Conversation::watch(std::uint32_t rank, nanoseconds waited) {
    Watch& watch = watches_[rank];
    auto record = record_of(rank);
    const bool has_moved = record && (!watch.seen || record->steps != watch.steps);
    watch.seen = watch.seen || record;
    watch.steps = record ? record->steps : watch.steps;
    watch.still = has_moved ? nanoseconds::zero() : watch.still + waited;
    if (watch.still >= waiting_.limit) {
        throw Silence(silence_of(rank));
    }
    if (record && !record->failure && !record->operation.empty() &&
        record->operation != operation_) {
        return Error(ErrorCode::kInvalidArgument, 0, operation_, {}, kNoOffset,
                     fmt::format("its call is '{}', and that of rank {} is '{}'; each rank makes "
                                 "the same calls in the same order",
                                 record->operation, group_.ranks_.number(), operation_));
    }
    return record ? std::move(record->failure) : std::nullopt;
}

bool Conversation::is_silent(std::uint32_t rank) {
    try {
        static_cast<void>(watch(rank, slice_));  // who failed still listens
        return false;
    } catch (const Silence&) {
        return true;
    }
}

std::vector<std::uint32_t> Conversation::others() const {
    std::vector<std::uint32_t> others;
    for (std::uint32_t rank = group_.ranks_.count() - 1; rank > 0; --rank) {
        others.push_back(rank);
    }
    return others;
}

// Takes those out of `missing` whose message of this stage is there, or comes within a slice.
template <typename Come>
void Conversation::wait_once(std::vector<std::uint32_t>& missing, std::string_view stage,
                             const Come& come) {
    nanoseconds timeout = slice_;
    while (!missing.empty()) {
        auto message = look(missing.back(), stage, timeout);
        if (!message) {
            break;
        }
        come(missing.back(), std::move(*message));
        missing.pop_back();
    }
    std::erase_if(missing, [&](std::uint32_t rank) {
        auto message = look(rank, stage, nanoseconds::zero());
        if (message) {
            come(rank, std::move(*message));
        }
        return message.has_value();
    });
    leave_record();
}

void Conversation::waited_for(std::uint32_t rank, nanoseconds waited) {
    const nanoseconds before = std::exchange(reported_, reported_ + waited);
    if (waiting_.report && before / kReportEvery != reported_ / kReportEvery) {
        waiting_.report(fmt::format("{}: waits for {}", operation_, group_.name_of(rank)));
    }
    since_stopped_ += is_stopped_ ? waited : nanoseconds::zero();
    if (waiting_.look && !is_stopped_ && !has_failed_) {
        try {
            waiting_.look();
        } catch (...) {
            is_stopped_ = true;
            throw;
        }
    }
}

bool Conversation::has_given_up() const {
    return since_stopped_ >= waiting_.patience;
}

void Conversation::announce(const std::string& stage, std::string_view message) {
    PENSTOCK_ASSERT(leads());
    leave(stage, message);
}

std::vector<std::string> Conversation::gather(const std::string& stage) {
    PENSTOCK_ASSERT(leads());
    std::vector<std::string> messages(group_.ranks_.count());
    std::vector<std::uint32_t> missing = others();
    while (!missing.empty()) {
        wait_once(missing, stage, [&](std::uint32_t rank, std::string&& message) {
            MessageReader in(message);
            group_.hosts_[rank] = in.text();
            messages[rank] = in.rest();
        });
        for (const std::uint32_t rank : missing) {
            if (const auto failure = watch(rank, slice_)) {
                throw Error(failure->reason(), failure->system_errno(), failure->operation(),
                            failure->path(), kNoOffset,
                            fmt::format("{}: {}", group_.name_of(rank), failure->what()));
            }
        }
        if (!missing.empty()) {
            waited_for(missing.back(), slice_);
        }
    }
    return messages;
}

void Conversation::agree(std::string_view message) {
    PENSTOCK_ASSERT(leads());
    leave_verdict(MessageWriter().number(kMoves).text(message).take());
}

void Conversation::fail(const Error& error) noexcept {
    PENSTOCK_ASSERT(leads());
    has_failed_ = true;
    is_stopped_ = is_stopped_ || error.reason() == ErrorCode::kCancelled;
    try {
        MessageWriter out;
        out.number(kFailed);
        write_error(out, error);
        leave_verdict(out.take());
    } catch (...) {  // then they hear nothing, and find out themselves
        return;
    }
}

// All others wait for it, so one call that fails is not the end.
void Conversation::leave_verdict(const std::string& verdict) {
    try {
        leave(kVerdict, verdict);
    } catch (const std::exception&) {
        leave(kVerdict, verdict);
    }
    is_left_ = true;
}

std::vector<std::uint32_t> Conversation::end() noexcept {
    PENSTOCK_ASSERT(leads());
    std::vector<std::uint32_t> deaf;
    if (!is_left_) {  // nobody can hear it: this rank falls silent, and each finds that out
        return deaf;
    }
    try {
        std::vector<std::uint32_t> missing = others();
        while (!missing.empty()) {
            wait_once(missing, kHeard, [](std::uint32_t, const std::string&) {});
            std::erase_if(missing, [&](std::uint32_t rank) {
                const bool silent = is_silent(rank);
                silent ? deaf.push_back(rank) : void();
                return silent;
            });
            if (!missing.empty()) {
                waited_for(missing.back(), slice_);
                move_in_next();
            }
            if (has_given_up()) {
                deaf.insert(deaf.end(), missing.begin(), missing.end());
                missing.clear();
            }
        }
        forget(deaf);
    } catch (...) {  // the mailbox is gone, and its keys with it
        return deaf;
    }
    return deaf;
}

// Those that have heard may have begun the next exchange, and wait for this rank there. What that
// is for, it does not know yet.
void Conversation::move_in_next() {
    const std::string next = group_.key(number_ + 1, 0, kRecord);
    group_.ranks_.mailbox()->put(next, record({}));
    const std::lock_guard lock(group_.left_mutex_);
    group_.left_keys_.try_emplace(number_ + 1, std::vector{next});
}

// The verdict stays for ranks that come late: without it each of their exchanges would end only by
// a silence, as the next one of rank 0 does, and they would never meet again.
void Conversation::forget(const std::vector<std::uint32_t>& deaf) {
    std::vector<std::string> over;
    const std::lock_guard lock(group_.left_mutex_);
    for (std::uint32_t rank = 0; rank < group_.ranks_.count(); ++rank) {
        const std::vector<std::string> keys = group_.keys_of(number_, rank);
        over.insert(over.end(), keys.begin(), keys.end());
    }
    const auto forget_first = [&] {
        const auto& keys = group_.left_keys_.begin()->second;
        over.insert(over.end(), keys.begin(), keys.end());
        group_.left_keys_.erase(group_.left_keys_.begin());
    };
    if (deaf.empty()) {  // each rank is done with those before
        over.push_back(key(0, kVerdict));
        while (!group_.left_keys_.empty() && group_.left_keys_.begin()->first < number_) {
            forget_first();
        }
    } else {
        std::vector<std::string>& left = group_.left_keys_[number_];
        for (const std::uint32_t rank : deaf) {
            const std::vector<std::string> keys = group_.keys_of(number_, rank);
            left.insert(left.end(), keys.begin(), keys.end());
        }
        left.push_back(key(0, kVerdict));
        if (group_.left_keys_.size() > kLeftMax) {
            forget_first();
        }
    }
    for (const std::string& gone : over) {
        group_.ranks_.mailbox()->erase(gone);
    }
}

void Conversation::leave_silently() noexcept {
    try {
        if (is_stopped_) {
            leave(kHeard, {});
            return;
        }
        for (const std::string& gone : group_.keys_of(number_, group_.ranks_.number())) {
            group_.ranks_.mailbox()->erase(gone);
        }
    } catch (...) {  // the mailbox is gone, and its keys with it
        return;
    }
}

std::string Conversation::hear(const std::string& stage) {
    PENSTOCK_ASSERT(!leads());
    if (heard_) {
        return accept_verdict(*heard_);
    }
    for (;;) {
        if (auto message = look(0, stage, slice_)) {
            return stage == kVerdict ? accept_verdict(std::move(*message)) : std::move(*message);
        }
        if (auto verdict = look(0, kVerdict, nanoseconds::zero())) {
            return accept_verdict(std::move(*verdict));
        }
        static_cast<void>(watch(0, slice_));
        leave_record();
        waited_for(0, slice_);
        if (has_given_up()) {
            throw Silence(Error(ErrorCode::kCancelled, 0, operation_, {}, kNoOffset,
                                "this rank was stopped, and rank 0 did not answer"));
        }
    }
}

void Conversation::tell(const std::string& stage, std::string_view message) {
    PENSTOCK_ASSERT(!leads());
    leave(stage, MessageWriter().text(group_.ranks_.host()).take().append(message));
}

void Conversation::pause(nanoseconds time) {
    PENSTOCK_ASSERT(!leads());
    if (auto verdict = look(0, kVerdict, time)) {
        static_cast<void>(accept_verdict(std::move(*verdict)));
    }
    leave_record();
}

void Conversation::tell_failure(const Error& error) noexcept {
    PENSTOCK_ASSERT(!leads());
    has_failed_ = true;
    is_stopped_ = is_stopped_ || error.reason() == ErrorCode::kCancelled;
    try {
        failure_ = error;
        leave_record();
    } catch (...) {  // then rank 0 sees that this rank stands still
        return;
    }
}

std::string Conversation::verdict() {
    return hear(std::string(kVerdict));
}

std::string Conversation::accept_verdict(std::string message) {
    MessageReader in(message);
    const bool failed = in.number() == kFailed;
    std::optional<Error> failure;
    std::string text;
    if (failed) {
        failure = read_error(in);
    } else {
        text = in.text();
    }
    in.end();
    if (!heard_) {
        heard_ = message;
        try {
            leave(kHeard, {});
        } catch (const Silence&) {  // rank 0 is gone; its verdict stands
            static_cast<void>(0);
        }
    }
    if (failure) {
        throw Error(*failure);
    }
    return text;
}

void Conversation::stop_if_failed() {
    const auto now = std::chrono::steady_clock::now();
    if (leads() || now < next_look_) {
        return;
    }
    next_look_ = now + kRecordEvery;
    if (auto verdict = look(0, kVerdict, nanoseconds::zero())) {
        static_cast<void>(accept_verdict(std::move(*verdict)));
    }
}

}  // namespace penstock::ranks
