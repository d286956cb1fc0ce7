// SPDX-License-Identifier: Apache-2.0
#include "base/assert.hpp"
#include "base/handles.hpp"
#include "base/raise.hpp"
#include "base/text/units.hpp"
#include "weights/experts/streaming_experts.hpp"

#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

constexpr std::string_view kOperation = "stream";
constexpr auto kForever = std::chrono::nanoseconds::max();

[[noreturn]] void refuse(ErrorCode code, const std::string& message) {
    base::raise(base::error(code, kOperation, message));
}

}  // namespace

void weights::StreamingExperts::check_usable() const {
    if (closed) {
        refuse(ErrorCode::kClosed, "these experts are closed; make another ExpertStream");
    }
    if (process != ::getpid()) {
        refuse(ErrorCode::kUnsupported,
               gpu ? "these experts belong to the parent of this process, whose GPU a child of "
                     "fork() cannot use; start the child by spawn"
                   : "these experts belong to the parent of this process, which reads them into "
                     "its own memory; make another ExpertStream after fork()");
    }
}

void weights::StreamingExperts::check_budget(std::uint64_t memory_bytes) const {
    const std::uint64_t least = layout.least_bytes();
    if (memory_bytes < least) {
        refuse(ErrorCode::kOutOfMemory,
               fmt::format("a budget of {} is too small for these experts: they need {} ({} "
                           "bytes), two of the largest; give more memory",
                           base::format_bytes(memory_bytes), base::format_bytes(least), least));
    }
}

void weights::StreamingExperts::check_call(std::size_t layer,
                                           std::span<const std::size_t> experts) const {
    if (layer >= layers.size()) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("layer {}: there are {}, from 0 on", layer, layers.size()));
    }
    if (is_acquired) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("experts of '{}' are asked for while others are held; release() first",
                           layers[layer].name));
    }
    std::vector<bool> seen(layers[layer].experts.size());
    for (const std::size_t number : experts) {
        if (number >= seen.size() || seen[number]) {
            refuse(ErrorCode::kInvalidArgument,
                   fmt::format("expert {} of '{}': expected numbers below {}, each once", number,
                               layers[layer].name, seen.size()));
        }
        seen[number] = true;
    }
    if (experts.empty()) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("no experts of '{}': expected one or more", layers[layer].name));
    }
}

// Slots keep their places, and the experts in them stay.
void weights::StreamingExperts::use(std::uint64_t memory_bytes) {
    stop_all();
    ahead.clear();
    likely.clear();
    std::size_t wanted = layout.experts;
    if (layout.slot_bytes != 0) {
        wanted = std::min<std::uint64_t>(wanted, memory_bytes / layout.slot_bytes);
    }
    if (wanted > slots.size()) {
        slots.resize(wanted);
    }
    cache.resize(wanted);  // asserts that nobody holds the slots that go
    slots.resize(wanted);
    stats.slots = wanted;
}

bool weights::StreamingExperts::acquire(std::size_t layer, std::span<const std::size_t> experts,
                                        std::chrono::nanoseconds timeout) {
    check_call(layer, experts);
    const bool is_begun = last_layer == layer && !asked.empty() && asked.size() <= experts.size() &&
                          std::equal(asked.begin(), asked.end(), experts.begin());
    if (!is_begun) {
        begin(layer, experts);
    }
    is_acquired = wait(timeout);
    if (is_acquired && is_last_wave) {
        is_last_wave = false;  // until the next one
        read_likely();
    }
    return is_acquired;
}

// Finds or starts the reading of a wave, and holds its slots from here on.
void weights::StreamingExperts::begin(std::size_t layer, std::span<const std::size_t> experts) {
    release();  // nobody came back for it
    const bool new_pass = last_layer == kNone || layer < last_layer;
    if (const auto next =
            budget.next(layout.least_bytes(), layout.experts * layout.slot_bytes, new_pass)) {
        tier::change_budget(budget, *next, layout.least_bytes(),
                            [this](std::uint64_t bytes) { use(bytes); });
    }
    reap();
    learn(layer, experts);
    if (last_layer == kNone || layer < last_layer || (layer == last_layer && ahead.empty())) {
        sources.check_unchanged();
    }
    last_layer = layer;
    const std::size_t size = experts.size() <= cache.slots()
                                 ? experts.size()
                                 : std::max<std::size_t>(1, cache.slots() / 2);
    try {
        take_wave(layer, experts.first(size));
    } catch (...) {
        release();
        throw;
    }
    drop_unlikely();
    is_last_wave = size == experts.size();
    read_ahead(layer, experts.subspan(size));
}

void weights::StreamingExperts::take_wave(std::size_t layer, std::span<const std::size_t> experts) {
    wave.reserve(experts.size());
    Chosen missing;
    missing.reserve(experts.size());
    for (const std::size_t number : experts) {
        const Expert expert{layer, number};
        cache.count(expert);
        if (const std::optional<std::size_t> slot = cache.find(expert)) {
            cache.hold(*slot);
            wave.emplace_back(*slot, expert);
            stats.hits += was_read_ahead(expert) ? 0 : 1;
        }
    }
    try {
        for (const std::size_t number : experts) {
            const Expert expert{layer, number};
            if (!cache.find(expert)) {
                missing.emplace_back(slot_for(expert), expert);
                cache.hold(missing.back().first);
                wave.push_back(missing.back());
            }
        }
        read(missing, Priority::kUrgent);
    } catch (...) {
        for (const auto& [slot, expert] : missing) {
            cache.clear(slot);
        }
        throw;
    }
    asked.assign(experts.begin(), experts.end());
}

bool weights::StreamingExperts::was_read_ahead(Expert expert) const {
    return std::any_of(ahead.begin(), ahead.end(), [expert](const auto& one) {
        return one.second.layer == expert.layer && one.second.number == expert.number;
    });
}

// A wave is no larger than the cache, so what is in its way is slots that transfers hold.
std::size_t weights::StreamingExperts::slot_for(Expert expert) {
    if (const std::optional<std::size_t> slot = cache.take(expert)) {
        return *slot;
    }
    for (Reading& reading : readings) {
        if (!is_wanted(reading)) {
            cancel(reading);
        }
    }
    std::erase_if(readings, [](const Reading& one) { return !one.transfer.valid(); });
    if (const std::optional<std::size_t> slot = cache.take(expert)) {
        return *slot;
    }
    wait(kForever);
    const std::optional<std::size_t> slot = cache.take(expert);
    PENSTOCK_ASSERT(slot);
    return *slot;
}

// A refusal is no error here: what is not read ahead is read when it is needed.
void weights::StreamingExperts::read_ahead(std::size_t layer,
                                           std::span<const std::size_t> experts) {
    experts = experts.first(std::min(experts.size(), cache.slots() - wave.size()));
    Chosen held;
    Chosen missing;
    Chosen known;  // read ahead before, and not used yet
    for (Chosen* const one : {&held, &missing, &known}) {
        one->reserve(experts.size());
    }
    for (const std::size_t number : experts) {
        const Expert expert{layer, number};
        std::optional<std::size_t> slot = cache.find(expert);
        if (slot && was_read_ahead(expert)) {
            known.emplace_back(*slot, expert);
        } else if (!slot) {
            slot = cache.take(expert);
            if (!slot) {
                break;
            }
            missing.emplace_back(*slot, expert);
        }
        cache.hold(*slot);
        held.emplace_back(*slot, expert);
    }
    bool is_read = false;
    try {
        is_read = read(missing, Priority::kNormal);
    } catch (const std::exception&) {
        is_read = false;
    }
    for (const auto& [slot, expert] : held) {
        cache.release(slot);
    }
    for (const auto& [slot, expert] : missing) {
        if (is_read) {
            known.emplace_back(slot, expert);
        } else {
            cache.clear(slot);
        }
    }
    ahead = std::move(known);
}

bool weights::StreamingExperts::read(const Chosen& missing, Priority priority) {
    if (missing.empty()) {
        return true;
    }
    readings.reserve(readings.size() + 1);
    Reading reading;
    reading.experts = missing;
    std::vector<PlacedTensor> placed;
    std::uint64_t bytes = 0;
    for (const auto& [slot, expert] : missing) {
        const StoredExpert& stored = layout.of(expert.layer, expert.number);
        for (std::size_t i = 0; i < stored.parts.size(); ++i) {
            const std::uint64_t part = stored.parts[i].bytes;
            placed.push_back({&stored.parts[i], slots.memory(slot, stored.places[i], part).data});
            bytes += part;
        }
    }
    const bool is_likely = priority == Priority::kBackground;
    std::uint64_t& counted = is_likely ? stats.likely_reads : stats.misses;
    if (bytes == 0) {  // there is nothing to wait for, and no transfer to hold the slots
        counted += missing.size();
        return true;
    }
    ReadPlace where;
    if (gpu) {
        where = {.kind = MemoryKind::kDevice, .device = *gpu, .streams = {queue.handle()}};
    }
    std::optional<CopiedRead> transfer = sources.read(*engine, placed, priority, where);
    if (!transfer) {
        return false;
    }
    for (const auto& [slot, expert] : missing) {
        cache.hold(slot);
    }
    reading.transfer = std::move(*transfer);
    reading.is_likely = is_likely;
    counted += missing.size();
    readings.push_back(std::move(reading));
    ++stats.transfers;
    stats.bytes_read += bytes;
    return true;
}

bool weights::StreamingExperts::is_wanted(const Reading& reading) const {
    return std::any_of(reading.experts.begin(), reading.experts.end(), [this](const auto& one) {
        return std::any_of(wave.begin(), wave.end(),
                           [&](const auto& held) { return held.first == one.first; });
    });
}

// Waits for all that the wave needs.
bool weights::StreamingExperts::wait(std::chrono::nanoseconds timeout) {
    const auto begin = std::chrono::steady_clock::now();
    bool is_done = true;
    for (Reading& reading : readings) {
        if (!is_done || !is_wanted(reading)) {
            continue;
        }
        try {
            reading.transfer.set_priority(Priority::kUrgent);
            if (timeout == kForever) {
                reading.transfer.wait();
            } else {
                is_done = reading.transfer.wait_for(timeout);
            }
        } catch (const Error& error) {
            const Chosen experts = reading.experts;
            end(reading, false);
            std::erase_if(readings, [](const Reading& one) { return !one.transfer.valid(); });
            release();
            rethrow(error, experts);
        }
        if (is_done) {
            end(reading, true);
        }
    }
    std::erase_if(readings, [](const Reading& one) { return !one.transfer.valid(); });
    stats.stall += (std::chrono::steady_clock::now() - begin).count();
    return is_done;
}

// Its slots are free of requests.
void weights::StreamingExperts::end(Reading& reading, bool is_valid) noexcept {
    reading.transfer = {};
    for (const auto& [slot, expert] : reading.experts) {
        cache.release(slot);
        if (!is_valid || reading.is_dropped) {
            cache.clear(slot);
        }
    }
}

// A child of a fork has copies of its parent's transfers, which never end there.
void weights::StreamingExperts::cancel(Reading& reading) noexcept {
    bool is_valid = false;
    try {
        if (process == ::getpid()) {
            reading.transfer.cancel();
            reading.transfer.wait();
            is_valid = true;
        }
    } catch (const std::exception&) {
        // Cancelled, or failed: nobody wants it any more.
    }
    end(reading, is_valid);
}

// Takes back the slots of transfers that are done.
void weights::StreamingExperts::reap() {
    for (Reading& reading : readings) {
        if (reading.transfer.done()) {
            cancel(reading);
        }
    }
    std::erase_if(readings, [](const Reading& one) { return !one.transfer.valid(); });
}

void weights::StreamingExperts::rethrow(const Error& error, const Chosen& experts) const {
    std::vector<NamedTensor> were_read;
    for (const auto& [slot, expert] : experts) {
        const StoredExpert& stored = layout.of(expert.layer, expert.number);
        for (std::size_t i = 0; i < stored.parts.size(); ++i) {
            were_read.push_back(
                {&stored.parts[i],
                 fmt::format("expert {}, tensor '{}'", expert.number,
                             layers[expert.layer].experts[expert.number][i].tensor)});
        }
    }
    const std::string& layer = layers[experts.front().second.layer].name;
    throw sources.located(error, fmt::format("experts of '{}'", layer), were_read,
                          "; the next pass tries again");
}

std::vector<ExpertView> weights::StreamingExperts::views() const {
    std::vector<ExpertView> out;
    for (const std::size_t number : asked) {
        const std::size_t slot = *cache.find({last_layer, number});
        const StoredExpert& stored = layout.of(last_layer, number);
        ExpertView& view = out.emplace_back();
        view.owner = slots.owner(slot);
        view.slot = static_cast<std::uint32_t>(slot);
        for (std::size_t i = 0; i < stored.parts.size(); ++i) {
            view.parts.push_back(slots.memory(slot, stored.places[i], stored.parts[i].bytes));
        }
    }
    return out;
}

void weights::StreamingExperts::release() noexcept {
    for (const auto& [slot, expert] : wave) {
        cache.release(slot);
    }
    wave.clear();
    asked.clear();
    is_acquired = false;
}

void weights::StreamingExperts::stop_all() noexcept {
    for (Reading& reading : readings) {
        cancel(reading);
    }
    readings.clear();
    release();
}

void weights::StreamingExperts::close() noexcept {
    stop_all();
    sources.close();
    slots = {};
    queue = {};
    closed = true;
}

ExpertStream::ExpertStream(std::shared_ptr<Engine> engine, const TensorTable& table,
                           std::vector<ExpertLayer> layers, const ExpertStreamOptions& options,
                           const FileSystem& files)
    : impl_(std::make_unique<weights::StreamingExperts>(
          base::engine_given(std::move(engine), "stream"), table, std::move(layers), options,
          files)) {}

ExpertStream::ExpertStream(ExpertStream&& other) noexcept = default;
ExpertStream& ExpertStream::operator=(ExpertStream&& other) noexcept = default;
ExpertStream::~ExpertStream() = default;

std::vector<ExpertView> ExpertStream::acquire(std::size_t layer,
                                              std::span<const std::size_t> experts) {
    return *acquire_for(layer, experts, kForever);
}

std::optional<std::vector<ExpertView>> ExpertStream::acquire_for(
    std::size_t layer, std::span<const std::size_t> experts, std::chrono::nanoseconds timeout) {
    auto& self = base::object_of(impl_, "stream");
    self.check_usable();
    if (!self.acquire(layer, experts, timeout)) {
        return std::nullopt;
    }
    return self.views();
}

// The order on the GPU comes first: if the GPU refuses it, the experts are held as before.
void ExpertStream::release(const StreamHandle& stream) {
    auto& self = base::object_of(impl_, "stream");
    self.check_usable();
    if (self.gpu && self.is_acquired) {
        self.queue.wait_for(stream);
    }
    self.release();
}

void ExpertStream::set_memory(std::uint64_t memory_bytes, SpareMemory spare) {
    auto& self = base::object_of(impl_, "stream");
    self.check_usable();
    self.check_budget(memory_bytes);
    self.budget.set(memory_bytes, std::move(spare));
}

ExpertStreamStats ExpertStream::stats() const {
    auto& self = base::object_of(impl_, "stream");
    ExpertStreamStats out = self.stats;
    out.folders = self.sources.folders();
    return out;
}

void ExpertStream::close() noexcept {
    if (impl_ != nullptr) {
        impl_->close();
    }
}

std::uint64_t least_expert_memory(const TensorTable& table, std::span<const ExpertLayer> layers,
                                  const ExpertStreamOptions& options) {
    return weights::lay_out_experts(table, layers, options.gpu).least_bytes();
}

WeightShares share_weight_memory(std::uint64_t memory_bytes, std::uint64_t least_units,
                                 std::uint64_t most_units, std::uint64_t least_experts) noexcept {
    constexpr std::uint64_t kWished = 4;  // times two experts, which are the least
    const std::uint64_t left = memory_bytes - std::min(memory_bytes, least_units);
    const std::uint64_t experts = std::max(least_experts, std::min(kWished * least_experts, left));
    const std::uint64_t units =
        std::min(most_units, memory_bytes - std::min(memory_bytes, experts));
    return {units, memory_bytes - units};
}

}  // namespace penstock
