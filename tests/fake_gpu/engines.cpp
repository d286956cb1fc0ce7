// SPDX-License-Identifier: Apache-2.0
// Streams and engines. A stream is a queue; what is at its head may begin when the order of streams
// allows it. Each device has three engines, which all streams share: one copies in, one out, one
// does the rest (fills, copies within the device, host functions). An engine takes any stream whose
// head it can do, in an order made of the seed. Rates are kept on a clock of their own: what a
// sleep overshoots is caught up by the next copy, so that a backlog moves at the rate that was set.
#include "machine.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>

namespace penstock::device::cuda::fake {
namespace {

constexpr Nanos kSecond = 1'000'000'000;
constexpr Nanos kNever = INT64_MAX;
/// An engine that the machine kept from its work for longer than this does not catch up.
constexpr Nanos kCatchUp = 20'000'000;
/// Pieces in which a copy with a rate is done.
constexpr std::size_t kStep = 512 << 10U;

Nanos cpu_ns() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * kSecond + time.tv_nsec;
}

void sleep_until(Nanos when) {
    timespec time{};
    time.tv_sec = when / kSecond;
    time.tv_nsec = when % kSecond;
    while (when > now_ns() &&
           clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) != 0) {
    }
}

/// Copies so that byte b is there at begin + b / rate.
void copy_at_rate(const Work& work, Nanos begin, double rate) {
    std::uint64_t done = 0;
    for (const Piece& piece : work.pieces) {
        for (std::size_t at = 0; at < piece.bytes; at += kStep) {
            const std::size_t bytes = std::min(kStep, piece.bytes - at);
            if (rate > 0) {
                sleep_until(begin + static_cast<Nanos>(static_cast<double>(done) / rate * 1e9));
            }
            std::memmove(piece.to + at, piece.from + at, bytes);
            done += bytes;
        }
    }
}

}  // namespace

Nanos now_ns() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * kSecond + time.tv_nsec;
}

std::uint64_t scramble(std::uint64_t value) {
    value += 0x9E37'79B9'7F4A'7C15U;
    value = (value ^ (value >> 30U)) * 0xBF58'476D'1CE4'E5B9U;
    value = (value ^ (value >> 27U)) * 0x94D0'49BB'1331'11EBU;
    return value ^ (value >> 31U);
}

bool Machine::idle(const Stream& stream) const {
    return stream.queue.empty();
}

std::uint64_t Machine::give(Stream& stream, Work work) {
    work.number = next_number++;
    work.given = now_ns();
    work.not_before = work.given;
    if (knobs.delay_max_ns > 0 && work.lane != Lane::kNone) {
        work.not_before += static_cast<Nanos>(scramble(knobs.seed ^ work.number) %
                                              static_cast<std::uint64_t>(knobs.delay_max_ns + 1));
    }
    const std::uint64_t number = work.number;
    stream.queue.push_back(std::move(work));
    advance();
    engines.notify_all();
    return number;
}

/// The legacy default stream waits for what blocking streams of its context got before, and they
/// for what it got before.
bool Machine::may_begin(const Stream& stream) const {
    const Work& head = stream.queue.front();
    if (head.wait && !head.wait->done) {
        return false;
    }
    if ((stream.flags & CU_STREAM_NON_BLOCKING) != 0) {
        return true;
    }
    return std::none_of(queues.begin(), queues.end(), [&](const auto& other) {
        return other.get() != &stream && other->context == stream.context &&
               (other->flags & CU_STREAM_NON_BLOCKING) == 0 && other->legacy != stream.legacy &&
               !other->queue.empty() && other->queue.front().number < head.number;
    });
}

void Machine::advance() {
    bool again = true;
    while (again) {
        again = false;
        for (const auto& stream : queues) {
            while (!stream->running && !stream->queue.empty() &&
                   stream->queue.front().lane == Lane::kNone && may_begin(*stream)) {
                Work& head = stream->queue.front();
                stream->free_at = std::max(stream->free_at, head.given);
                if (head.wait) {
                    stream->free_at = std::max(stream->free_at, head.wait->at);
                }
                if (head.record) {
                    head.record->done = true;
                    head.record->at = stream->free_at;
                }
                stream->queue.pop_front();
                again = true;
            }
        }
    }
    // A destroyed stream is gone with the last of its work.
    std::erase_if(queues, [](const auto& stream) {
        return stream->queue.empty() && !stream->running && stream.use_count() == 1;
    });
    waiters.notify_all();
}

Stream* Machine::next_for(int device, Lane lane, Nanos now, Nanos& look_again) {
    Stream* chosen = nullptr;
    std::uint64_t best = 0;
    look_again = kNever;
    for (const auto& stream : queues) {
        if (stream->context->device != device || stream->running || stream->queue.empty() ||
            stream->queue.front().lane != lane || !may_begin(*stream)) {
            continue;
        }
        const Work& head = stream->queue.front();
        if (head.not_before > now) {
            look_again = std::min(look_again, head.not_before);
            continue;
        }
        const std::uint64_t key =
            knobs.seed == 0 ? head.number : scramble(knobs.seed + head.number);
        if (chosen == nullptr || key < best) {
            chosen = stream.get();
            best = key;
        }
    }
    return chosen;
}

void Machine::run(std::unique_lock<std::mutex>& lock, int device, Lane lane, Stream& stream) {
    Device& gpu = devices[static_cast<std::size_t>(device)];
    Nanos& lane_free = gpu.free_at[static_cast<int>(lane)];
    Work work = std::move(stream.queue.front());
    stream.running = true;  // the entry stays, with its number: others ask for its place

    bool skip = broken.load() != 0;
    if (lane != Lane::kOther && knobs.fail_copy > 0 && --knobs.fail_copy == 0) {
        skip = true;
        broken = static_cast<int>(knobs.fail_copy_error);
        counters.failed_by_order++;
    }
    const double rate = lane == Lane::kOther ? 0 : knobs.rate[static_cast<int>(lane)];
    const Nanos latency = lane == Lane::kOther ? 0 : knobs.latency_ns;
    Nanos begin = std::max({lane_free, stream.free_at, work.not_before, now_ns() - kCatchUp});
    begin += latency;
    const Nanos end =
        begin +
        (rate > 0 ? static_cast<Nanos>(static_cast<double>(work.bytes) / rate * 1e9) : Nanos{0});
    const bool timed = rate > 0 || latency > 0;

    lock.unlock();
    if (!skip) {
        if (timed) {
            sleep_until(begin);
        }
        copy_at_rate(work, begin, rate);
        if (work.act) {
            work.act();
        }
        if (timed) {
            sleep_until(end);
        }
    }
    lock.lock();

    lane_free = timed ? end : now_ns();
    stream.free_at = lane_free;
    if (!skip && lane == Lane::kIn) {
        counters.copies_in += work.pieces.size();
        counters.bytes_in += work.bytes;
    } else if (!skip && lane == Lane::kOut) {
        counters.copies_out += work.pieces.size();
        counters.bytes_out += work.bytes;
    } else if (!skip && work.calls_program) {
        counters.host_functions++;
    }
    stream.queue.pop_front();
    stream.running = false;
    advance();
    engines.notify_all();
}

void Machine::engine_loop(int device, Lane lane) {
    prctl(PR_SET_NAME, lane == Lane::kIn ? "fake_gpu_in" : "fake_gpu_out");
    prctl(PR_SET_TIMERSLACK, 1);
    std::unique_lock<std::mutex> lock(mutex);
    Nanos counted = 0;
    for (;;) {
        const Nanos cpu = cpu_ns();
        counters.engine_cpu_ns += static_cast<std::uint64_t>(cpu - counted);
        counted = cpu;
        Nanos look_again = kNever;
        Stream* stream = knobs.held ? nullptr : next_for(device, lane, now_ns(), look_again);
        if (stream != nullptr) {
            run(lock, device, lane, *stream);
        } else if (look_again == kNever) {
            engines.wait(lock);
        } else {
            // By the system's clock: GCC 12's ThreadSanitizer does not know waits by the other.
            engines.wait_until(lock, std::chrono::system_clock::now() +
                                         std::chrono::nanoseconds(look_again - now_ns()));
        }
    }
}

void Machine::start_engines(int device) {
    Device& gpu = devices[static_cast<std::size_t>(device)];
    if (gpu.started) {
        return;
    }
    for (const Lane lane : {Lane::kIn, Lane::kOut, Lane::kOther}) {
        std::thread([this, device, lane] { engine_loop(device, lane); }).detach();
    }
    gpu.started = true;
}

void Machine::wait_for(std::unique_lock<std::mutex>& lock, const Stream& stream,
                       std::uint64_t number) {
    waiters.wait(lock,
                 [&] { return stream.queue.empty() || stream.queue.front().number > number; });
}

void Machine::wait_for_device(std::unique_lock<std::mutex>& lock, int device) {
    const std::uint64_t number = next_number;
    waiters.wait(lock, [&] {
        return std::all_of(queues.begin(), queues.end(), [&](const auto& stream) {
            return (device >= 0 && stream->context->device != device) || stream->queue.empty() ||
                   stream->queue.front().number >= number;
        });
    });
}

}  // namespace penstock::device::cuda::fake
