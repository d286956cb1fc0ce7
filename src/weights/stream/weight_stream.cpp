// SPDX-License-Identifier: Apache-2.0
// The state of a slot:
//
//     empty ──start()──> reading ──its transfer is done──> ready ──another unit──> reading
//                           └──the transfer failed──> empty
//
// A slot that is held is ready, and stays so. With a GPU, each slot has a stream of our own there,
// its queue:
//
//     release()   the queue waits for the stream that used the slot
//     start()     a transfer from the files, which begins after the queue; copies on the queue
//     acquire()   this thread waits for the transfer, the caller's stream for the queue
//
// So whatever comes into a slot comes after those that used it, and no thread waits for a GPU.
#include "base/assert.hpp"
#include "base/handles.hpp"
#include "base/raise.hpp"
#include "tier/budget.hpp"
#include "tier/unit_order.hpp"
#include "weights/model/unit_tensors.hpp"
#include "weights/read/sources.hpp"
#include "weights/stream/pass_times.hpp"
#include "weights/stream/weight_tiers.hpp"

#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

using tier::SlotUse;
using weights::Weights;

constexpr std::string_view kOperation = "stream";
constexpr std::size_t kNone = ~std::size_t{0};
constexpr auto kForever = std::chrono::nanoseconds::max();
constexpr std::chrono::seconds kPatience{10};  // a GPU that takes longer is gone
using Clock = std::chrono::steady_clock;

[[noreturn]] void refuse(ErrorCode code, const std::string& message) {
    base::raise(base::error(code, kOperation, message));
}

}  // namespace

class weights::Streaming {
public:
    struct UnitSlot : SlotUse {
        weights::CopiedRead transfer;  // valid while it is read
        bool is_ahead = false;         // it was asked for before its unit was needed
        std::optional<GpuStream> queue;
    };

    Streaming(std::shared_ptr<Engine> its_engine, const TensorTable& table,
              std::vector<WeightUnit> its_units, const WeightStreamOptions& options,
              const FileSystem& files)
        : engine(std::move(its_engine)),
          units(std::move(its_units)),
          all(weights::weights_of(table, units)),
          sources(*engine, files, table, options.copies),
          tiers(*engine, sources, all, units, options),
          budget(options.memory_bytes, options.spare, options.spare_interval),
          gpu(options.gpu),
          order(units.size()) {
        for (std::size_t i = 0; i < all.tensors.size(); ++i) {
            sources.check_ends(all.tensors[i], all.names[i]);
        }
        stats.stall.resize(units.size());
        held_units.resize(units.size());
        use(options.memory_bytes, options.progress);
        read_ahead();
    }
    Streaming(const Streaming&) = delete;
    Streaming& operator=(const Streaming&) = delete;
    ~Streaming() { close(); }

    void use(std::uint64_t memory_bytes, const Progress& progress);
    void check_usable(std::size_t unit) const;
    void follow(std::size_t unit);
    UnitSlot* slot_of(std::size_t unit);
    [[nodiscard]] std::uint32_t number(const UnitSlot& slot) const {
        return static_cast<std::uint32_t>(&slot - slots.data());
    }
    UnitSlot& free_slot(std::size_t unit);
    bool start(UnitSlot& slot, std::size_t unit, Priority priority);
    static void stop(UnitSlot& slot) noexcept;
    void reuse(UnitSlot& slot);
    [[nodiscard]] std::vector<SlotUse> uses() const { return {slots.begin(), slots.end()}; }
    void forget_read_ahead() noexcept;
    [[nodiscard]] bool is_idle() const;
    const WeightView* acquire(std::size_t unit, std::chrono::nanoseconds timeout,
                              const StreamHandle& stream);
    void begin(std::size_t unit);
    void release(std::size_t unit, const StreamHandle& stream);
    static void unhold(SlotUse& slot);
    bool wait(UnitSlot& slot, std::chrono::nanoseconds timeout);
    void read_ahead() noexcept;
    void read_ahead_next();
    const WeightView& view(std::size_t unit, std::uint32_t slot);
    [[nodiscard]] bool queues_are_idle() noexcept;
    void close() noexcept;

    std::shared_ptr<Engine> engine;
    std::vector<WeightUnit> units;
    Weights all;
    weights::Sources sources;
    weights::WeightTiers tiers;
    tier::Budget budget;
    std::optional<std::int32_t> gpu;
    pid_t process = ::getpid();
    bool closed = false;
    std::vector<UnitSlot> slots;
    std::vector<std::vector<std::optional<WeightView>>> views;  // of a unit in a slot, or in none
    tier::UnitOrder order;
    std::vector<std::uint32_t> held_units;
    std::size_t waiting = kNone;  // a unit that is begun, and whose caller has not got it yet
    WeightStreamStats stats;
    weights::PassTimes times;
};

void weights::Streaming::use(std::uint64_t memory_bytes, const Progress& progress) {
    PENSTOCK_ASSERT(is_idle());
    for (UnitSlot& slot : slots) {
        PENSTOCK_ASSERT(slot.held == 0);
        stop(slot);
    }
    if (!queues_are_idle()) {
        refuse(ErrorCode::kSystem,
               fmt::format("GPU {} has not done the copies of weights after {} s, so their memory "
                           "cannot change; end the work of its streams, then call again",
                           *gpu, kPatience.count()));
    }
    slots.clear();
    views.clear();
    tiers.use(memory_bytes, progress);
    const WeightPlan& plan = tiers.plan();
    slots.resize(plan.slots);
    for (UnitSlot& slot : slots) {
        if (gpu) {
            slot.queue.emplace(*gpu);
        }
    }
    views.assign(units.size(), std::vector<std::optional<WeightView>>(std::size_t{plan.slots} + 1));
    std::vector<bool> moves;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
        moves.push_back(tiers.moved(unit).any());
    }
    order.set_reads(std::move(moves));
}

void weights::Streaming::check_usable(std::size_t unit) const {
    if (closed) {
        refuse(ErrorCode::kClosed, "these weights are closed; make another WeightStream");
    }
    if (process != ::getpid()) {
        refuse(ErrorCode::kUnsupported,
               gpu ? "these weights belong to the parent of this process, whose GPU a child of "
                     "fork() cannot use; start the child by spawn"
                   : "these weights belong to the parent of this process, which reads them into "
                     "its own memory; make another WeightStream after fork()");
    }
    if (unit >= units.size()) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("unit {}: there are {}, from 0 on", unit, units.size()));
    }
}

void weights::Streaming::follow(std::size_t unit) {
    if (order.begins_pass(unit)) {
        sources.check_unchanged();
        times.begin_pass(Clock::now());
        ++stats.passes;
    }
    order.follow(unit);
    ++stats.acquired;
}

weights::Streaming::UnitSlot* weights::Streaming::slot_of(std::size_t unit) {
    const auto slot = std::find_if(slots.begin(), slots.end(),
                                   [unit](const UnitSlot& one) { return one.unit == unit; });
    return slot == slots.end() ? nullptr : &*slot;
}

// For a unit that was not read ahead.
weights::Streaming::UnitSlot& weights::Streaming::free_slot(std::size_t unit) {
    if (const auto chosen = order.slot_on_demand(uses())) {
        reuse(slots[*chosen]);
        return slots[*chosen];
    }
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("unit '{}' is needed while all {} slots are held; release a unit first, or "
                       "ask for more slots",
                       units[unit].name, slots.size()));
}

// The transfer comes first: one that began after the copies would wait for them. False where the
// engine has no room, and then nothing is begun: other callers have it all, and the unit is read
// when it is needed.
bool weights::Streaming::start(UnitSlot& slot, std::size_t unit, Priority priority) {
    const GpuStream* const queue = slot.queue ? &*slot.queue : nullptr;
    if (!tiers.read(unit, number(slot), priority, queue, slot.transfer)) {
        return false;
    }
    slot.unit = unit;
    slot.is_used = false;
    slot.is_ahead = priority != Priority::kUrgent;
    stats.bytes_read += tiers.moved(unit).read_bytes;
    if (slot.queue) {
        try {
            tiers.copy(unit, number(slot), *slot.queue);
        } catch (...) {
            stop(slot);
            throw;
        }
        stats.bytes_copied += tiers.moved(unit).copied_bytes;
    }
    return true;
}

// No transfer uses its memory afterwards. Copies may, and what comes into it waits for them.
void weights::Streaming::stop(UnitSlot& slot) noexcept {
    slot.transfer.stop();
    slot.transfer = {};
    slot.unit = kNone;
}

void weights::Streaming::reuse(UnitSlot& slot) {
    if (slot.is_waiting()) {
        order.gave_up();
    }
    stop(slot);
}

// After an error: what is read ahead may have met it too, and the next pass is to try again.
void weights::Streaming::forget_read_ahead() noexcept {
    for (UnitSlot& slot : slots) {
        if (slot.held == 0) {
            stop(slot);
        }
    }
}

bool weights::Streaming::wait(UnitSlot& slot, std::chrono::nanoseconds timeout) {
    const std::size_t unit = slot.unit;
    const bool is_waited = slot.is_ahead && !slot.transfer.done();
    const auto begin = Clock::now();
    try {
        slot.transfer.set_priority(Priority::kUrgent);
        if (timeout == kForever) {
            slot.transfer.wait();
        } else if (!slot.transfer.wait_for(timeout)) {
            stats.stall[unit] += (Clock::now() - begin).count();
            times.lose_track();
            return false;
        }
    } catch (const Error& error) {
        times.lose_track();
        slot.held = 0;
        stop(slot);
        waiting = kNone;
        forget_read_ahead();
        throw sources.located(error, fmt::format("weights of '{}'", units[unit].name),
                              tiers.named(unit), "; the next pass tries again");
    }
    const auto end = Clock::now();
    stats.stall[unit] += (end - begin).count();
    times.arrived(tiers.plan().units[unit].read_bytes, is_waited, end);
    slot.transfer = {};
    return true;
}

// A refusal is no error here: the unit is read when it is needed, and then the caller hears of it.
void weights::Streaming::read_ahead() noexcept {
    try {
        read_ahead_next();
    } catch (const std::exception&) {
        return;
    }
}

void weights::Streaming::read_ahead_next() {
    for (const auto& [slot, unit] : order.starts(uses())) {
        reuse(slots[slot]);
        if (!start(slots[slot], unit, Priority::kNormal)) {
            return;
        }
    }
}

const WeightView& weights::Streaming::view(std::size_t unit, std::uint32_t slot) {
    std::optional<WeightView>& known =
        views[unit][slot == WeightStream::kNoSlot ? slots.size() : slot];
    return known ? *known : known.emplace(tiers.view(unit, slot));
}

const WeightView* weights::Streaming::acquire(std::size_t unit, std::chrono::nanoseconds timeout,
                                              const StreamHandle& stream) {
    if (waiting != unit) {
        begin(unit);
    }
    UnitSlot* const slot = slot_of(unit);
    if (slot != nullptr && slot->transfer.valid() && !wait(*slot, timeout)) {
        return nullptr;
    }
    const WeightView& made = view(unit, slot == nullptr ? WeightStream::kNoSlot : number(*slot));
    if (slot != nullptr && tiers.moved(unit).copied_bytes != 0) {
        slot->queue->hold_up(stream);
    }
    waiting = kNone;
    ++held_units[unit];
    return &made;
}

bool weights::Streaming::is_idle() const {
    return std::all_of(held_units.begin(), held_units.end(),
                       [](std::uint32_t held) { return held == 0; });
}

// Finds or starts the reading of a unit, and holds its slot from here on.
void weights::Streaming::begin(std::size_t unit) {
    if (waiting != kNone) {  // nobody came back for it
        unhold(*slot_of(std::exchange(waiting, kNone)));
    }
    if (is_idle()) {
        if (const auto next = budget.next(tiers.least(), tiers.most(), order.begins_pass(unit))) {
            tier::change_budget(budget, *next, tiers.least(),
                                [this](std::uint64_t bytes) { use(bytes, {}); });
        }
    }
    follow(unit);
    if (!tiers.moved(unit).any()) {
        ++stats.ready;
        read_ahead();
        return;
    }
    UnitSlot* slot = slot_of(unit);
    if (slot == nullptr) {
        slot = &free_slot(unit);
        static_cast<void>(start(*slot, unit, Priority::kUrgent));
        ++stats.on_demand;
    } else if (!slot->transfer.valid() || slot->transfer.done()) {
        ++stats.ready;
    }
    ++slot->held;
    slot->is_used = true;
    waiting = unit;
    read_ahead();
}

void weights::Streaming::unhold(SlotUse& slot) {
    PENSTOCK_ASSERT(slot.held != 0);
    --slot.held;
}

// The order on the GPU comes first: if the GPU refuses it, the unit is held as before.
void weights::Streaming::release(std::size_t unit, const StreamHandle& stream) {
    if (held_units[unit] == 0) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("unit '{}' is not held: release() as often as acquire()",
                           units[unit].name));
    }
    if (UnitSlot* const slot = slot_of(unit)) {
        if (slot->queue) {
            slot->queue->wait_for(stream);
        }
        unhold(*slot);
    }
    --held_units[unit];
    times.released(Clock::now());
    read_ahead();
}

// Without copies from host memory nothing on a queue uses memory of ours.
bool weights::Streaming::queues_are_idle() noexcept {
    return tiers.plan().copied_bytes == 0 ||
           std::all_of(slots.begin(), slots.end(), [](UnitSlot& slot) {
               return !slot.queue || slot.queue->wait_until_idle(kPatience);
           });
}

// Pinned memory stays where the GPU does not say that copies of it are over.
void weights::Streaming::close() noexcept {
    for (UnitSlot& slot : slots) {
        stop(slot);
    }
    const bool copies_run = !queues_are_idle();
    slots.clear();
    views.clear();
    sources.close();
    tiers.close(copies_run);
    closed = true;
}

WeightStream::WeightStream(std::shared_ptr<Engine> engine, const TensorTable& table,
                           std::vector<WeightUnit> units, const WeightStreamOptions& options,
                           const FileSystem& files)
    : impl_(std::make_unique<weights::Streaming>(base::engine_given(std::move(engine), "stream"),
                                                 table, std::move(units), options, files)) {}

WeightStream::WeightStream(WeightStream&& other) noexcept = default;
WeightStream& WeightStream::operator=(WeightStream&& other) noexcept = default;
WeightStream::~WeightStream() = default;

const WeightPlan& WeightStream::plan() const {
    return base::object_of(impl_, "stream").tiers.plan();
}

const WeightView& WeightStream::acquire(std::size_t unit, const StreamHandle& stream) {
    return *acquire_for(unit, kForever, stream);
}

const WeightView* WeightStream::acquire_for(std::size_t unit, std::chrono::nanoseconds timeout,
                                            const StreamHandle& stream) {
    auto& self = base::object_of(impl_, "stream");
    self.check_usable(unit);
    return self.acquire(unit, timeout, stream);
}

void WeightStream::release(std::size_t unit, const StreamHandle& stream) {
    auto& self = base::object_of(impl_, "stream");
    self.check_usable(unit);
    self.release(unit, stream);
}

void WeightStream::set_memory(std::uint64_t memory_bytes, SpareMemory spare) {
    auto& self = base::object_of(impl_, "stream");
    self.check_usable(0);
    self.tiers.check(memory_bytes);
    self.budget.set(memory_bytes, std::move(spare));
}

WeightStreamStats WeightStream::stats() const {
    auto& self = base::object_of(impl_, "stream");
    WeightStreamStats out = self.stats;
    self.times.fill(out);
    out.folders = self.sources.folders();
    return out;
}

void WeightStream::close() noexcept {
    if (impl_ != nullptr) {
        impl_->close();
    }
}

}  // namespace penstock
