// SPDX-License-Identifier: Apache-2.0
// A slot has a lane, a stream of our own on the GPU:
//
//     release()   the lane waits for the stream that used the slot
//     start()     a transfer from the files, which begins after the lane; copies on the lane
//     acquire()   this thread waits for the transfer, the user's stream for the lane
//
// So whatever comes into a slot comes after those that used it, and no thread waits for a GPU.
#include "base/assert.hpp"
#include "base/handles.hpp"
#include "weights/model/unit_tensors.hpp"
#include "weights/read/sources.hpp"
#include "weights/stream/residency.hpp"
#include "weights/stream/slot_layout.hpp"
#include "weights/stream/unit_order.hpp"

#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

using weights::Residency;
using weights::Weights;

constexpr std::string_view kOperation = "stream";
constexpr std::size_t kNone = ~std::size_t{0};
constexpr auto kForever = std::chrono::nanoseconds::max();
constexpr std::chrono::seconds kPatience(10);  // a GPU that takes longer is gone

[[noreturn]] void refuse(ErrorCode code, const std::string& message) {
    base::raise(base::error(code, kOperation, message));
}

struct Tiers {
    Residency device;
    std::vector<bool> in_host;  // of each tensor: it stays in host memory
    std::uint64_t host_bytes = 0;
};

Tiers tiers_of(const Weights& all, std::span<const WeightUnit> units, std::uint64_t device_bytes,
               std::uint64_t host_bytes, std::uint32_t slots) {
    Tiers out;
    out.device = weights::residency_of(all, units, device_bytes, slots);
    std::vector<std::uint64_t> bytes;
    for (std::size_t i = 0; i < all.tensors.size(); ++i) {
        bytes.push_back(out.device.stays[i] ? 0 : all.tensors[i].bytes);
    }
    const Residency host = weights::choose_residency(bytes, all.units, host_bytes, 0);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        out.in_host.push_back(bytes[i] != 0 && host.stays[i]);
        out.host_bytes += out.in_host[i] ? weights::memory_of(bytes[i]) : 0;
    }
    return out;
}

GpuWeightPlan gpu_plan_of(const Weights& all, std::span<const WeightUnit> units,
                          const Tiers& tiers) {
    GpuWeightPlan out;
    for (std::size_t i = 0; i < units.size(); ++i) {
        GpuWeightPlan::Unit& unit = out.units.emplace_back();
        unit.name = units[i].name;
        for (const std::size_t tensor : all.units[i]) {
            const std::uint64_t bytes = all.tensors[tensor].bytes;
            unit.bytes += bytes;
            if (!tiers.device.stays[tensor]) {
                (tiers.in_host[tensor] ? unit.copied_bytes : unit.read_bytes) += bytes;
            }
        }
        out.copied_bytes += unit.copied_bytes;
        out.read_bytes += unit.read_bytes;
    }
    out.resident_bytes = tiers.device.resident_bytes;
    out.slots = tiers.device.slots;
    out.slot_bytes = tiers.device.slot_bytes;
    out.host_bytes = tiers.host_bytes;
    return out;
}

}  // namespace

class weights::GpuStreaming {
public:
    struct Slot : SlotUse {
        CopiedRead transfer;  // valid while it is read
        GpuStream lane;
    };
    // Tensors in memory of their own, and where each is in it.
    struct Packed {
        std::vector<std::size_t> tensors;
        std::vector<std::uint64_t> places;
        std::uint64_t bytes = 0;
    };

    GpuStreaming(std::shared_ptr<Engine> its_engine, const TensorTable& table,
                 std::vector<WeightUnit> its_units, const GpuWeightStreamOptions& options,
                 const FileSystem& files)
        : engine(std::move(its_engine)),
          units(std::move(its_units)),
          all(weights_of(table, units)),
          device(options.device),
          tiers(tiers_of(all, units, options.device_memory_bytes, options.host_memory_bytes,
                         options.slots)),
          plan(gpu_plan_of(all, units, tiers)),
          order(units.size()),
          sources(*engine, files, table, options.copies) {
        for (std::size_t i = 0; i < all.tensors.size(); ++i) {
            sources.check_ends(all.tensors[i], all.names[i]);
        }
        std::vector<bool> moves;
        for (const GpuWeightPlan::Unit& unit : plan.units) {
            moves.push_back(unit.copied_bytes + unit.read_bytes != 0);
        }
        order.set_reads(std::move(moves));
        stats.stall.resize(units.size());
        held_units.resize(units.size());
        views.assign(units.size(), std::vector<std::optional<GpuWeightView>>(plan.slots + 1));
        allocate();
        try {
            read_residents();
        } catch (...) {
            close();
            throw;
        }
        read_ahead();
    }
    GpuStreaming(const GpuStreaming&) = delete;
    GpuStreaming& operator=(const GpuStreaming&) = delete;
    ~GpuStreaming() { close(); }

    [[nodiscard]] Packed pack(const std::vector<bool>& chosen) const;
    void allocate();
    void read_residents();
    void check_usable(std::size_t unit) const;
    void follow(std::size_t unit);
    Slot* slot_of(std::size_t unit);
    Slot& free_slot(std::size_t unit);
    [[nodiscard]] std::vector<std::size_t> not_on_device(std::size_t unit) const;
    [[nodiscard]] std::vector<NamedTensor> named(std::span<const std::size_t> tensors) const;
    [[nodiscard]] std::byte* memory_of_slot(const Slot& slot) const;
    bool start(Slot& slot, std::size_t unit, Priority priority);
    static void stop(Slot& slot) noexcept;
    void reuse(Slot& slot);
    [[nodiscard]] std::vector<SlotUse> uses() const;
    void begin(std::size_t unit);
    bool wait(Slot& slot, std::chrono::nanoseconds timeout);
    const GpuWeightView* acquire(std::size_t unit, std::chrono::nanoseconds timeout,
                                 const StreamHandle& stream);
    const GpuWeightView& view(std::size_t unit, std::uint32_t slot);
    void release(std::size_t unit, const StreamHandle& stream);
    void read_ahead() noexcept;
    void read_ahead_next();
    void close() noexcept;

    std::shared_ptr<Engine> engine;
    std::vector<WeightUnit> units;
    Weights all;
    std::int32_t device;
    Tiers tiers;
    GpuWeightPlan plan;
    UnitOrder order;
    Sources sources;
    pid_t process = ::getpid();
    bool closed = false;
    Packed on_device;
    Packed in_host;
    std::vector<std::uint64_t> home;  // of each tensor that stays: its place
    std::shared_ptr<Region> residents;
    std::shared_ptr<Region> slot_memory;
    Region host;
    std::vector<Slot> slots;
    std::vector<std::vector<std::optional<GpuWeightView>>> views;  // of a unit in a slot or none
    std::vector<std::uint32_t> held_units;
    std::size_t waiting = kNone;  // a unit that is begun, and whose caller has not got it yet
    GpuWeightStreamStats stats;
    std::vector<WeightFolderStats> before;  // of reading what stays
};

weights::GpuStreaming::Packed weights::GpuStreaming::pack(const std::vector<bool>& chosen) const {
    Packed out;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (chosen[i]) {
            out.tensors.push_back(i);
        }
    }
    out.places = place_in_slot(all.tensors, out.tensors);
    for (std::size_t i = 0; i < out.tensors.size(); ++i) {
        out.bytes = std::max(out.bytes, out.places[i] + all.tensors[out.tensors[i]].bytes);
    }
    return out;
}

void weights::GpuStreaming::allocate() {
    on_device = pack(tiers.device.stays);
    in_host = pack(tiers.in_host);
    home.resize(all.tensors.size());
    for (const Packed* const packed : {&on_device, &in_host}) {
        for (std::size_t i = 0; i < packed->tensors.size(); ++i) {
            home[packed->tensors[i]] = packed->places[i];
        }
    }
    residents = std::make_shared<Region>(Region::gpu(on_device.bytes, device));
    slot_memory = std::make_shared<Region>(Region::gpu(plan.slots * plan.slot_bytes, device));
    host = Region::pinned(in_host.bytes, device);
    slots.resize(plan.slots);
    for (Slot& slot : slots) {
        slot.lane = GpuStream(device);
    }
}

// One transfer for each tier: nothing else is under way.
void weights::GpuStreaming::read_residents() {
    const ReadPlace gpu{.kind = MemoryKind::kDevice, .device = device};
    for (const Packed* const packed : {&on_device, &in_host}) {
        std::byte* const memory = packed == &on_device ? residents->data() : host.data();
        std::vector<PlacedTensor> placed;
        for (std::size_t i = 0; i < packed->tensors.size(); ++i) {
            placed.push_back({&all.tensors[packed->tensors[i]], memory + packed->places[i]});
        }
        if (placed.empty()) {
            continue;
        }
        try {
            auto transfer = sources.read(*engine, placed, Priority::kUrgent,
                                         packed == &on_device ? gpu : ReadPlace{});
            transfer->wait();
        } catch (const Error& error) {
            throw sources.located(error, "weights that stay in memory", named(packed->tensors), "");
        }
    }
    before = sources.folders();
}

void weights::GpuStreaming::check_usable(std::size_t unit) const {
    if (closed) {
        refuse(ErrorCode::kClosed, "these weights are closed; make another GpuWeightStream");
    }
    if (process != ::getpid()) {
        refuse(ErrorCode::kUnsupported,
               "these weights belong to the parent of this process, whose GPU a child of fork() "
               "cannot use; start the child by spawn");
    }
    if (unit >= units.size()) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("unit {}: there are {}, from 0 on", unit, units.size()));
    }
}

void weights::GpuStreaming::follow(std::size_t unit) {
    if (order.begins_pass(unit)) {
        sources.check_unchanged();
        ++stats.passes;
    }
    order.follow(unit);
    ++stats.acquired;
}

weights::GpuStreaming::Slot* weights::GpuStreaming::slot_of(std::size_t unit) {
    const auto slot = std::find_if(slots.begin(), slots.end(),
                                   [unit](const Slot& one) { return one.unit == unit; });
    return slot == slots.end() ? nullptr : &*slot;
}

// For a unit that was not begun ahead.
weights::GpuStreaming::Slot& weights::GpuStreaming::free_slot(std::size_t unit) {
    if (const auto chosen = order.slot_on_demand(uses())) {
        reuse(slots[*chosen]);
        return slots[*chosen];
    }
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("unit '{}' is needed while all {} slots are held; release a unit first, or "
                       "ask for more slots",
                       units[unit].name, slots.size()));
}

std::vector<std::size_t> weights::GpuStreaming::not_on_device(std::size_t unit) const {
    std::vector<std::size_t> out;
    for (const std::size_t tensor : all.units[unit]) {
        if (!tiers.device.stays[tensor]) {
            out.push_back(tensor);
        }
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

std::vector<weights::NamedTensor> weights::GpuStreaming::named(
    std::span<const std::size_t> tensors) const {
    std::vector<NamedTensor> out;
    for (const std::size_t tensor : tensors) {
        out.push_back({&all.tensors[tensor], fmt::format("tensor '{}'", all.names[tensor])});
    }
    return out;
}

std::byte* weights::GpuStreaming::memory_of_slot(const Slot& slot) const {
    return slot_memory->data() + static_cast<std::uint64_t>(&slot - slots.data()) * plan.slot_bytes;
}

// The transfer comes first: one that began after these copies would wait for them. False where the
// engine has no room, and then nothing is begun.
bool weights::GpuStreaming::start(Slot& slot, std::size_t unit, Priority priority) {
    const std::vector<std::size_t> chosen = not_on_device(unit);
    const std::vector<std::uint64_t> places = place_in_slot(all.tensors, chosen);
    std::byte* const memory = memory_of_slot(slot);
    std::vector<PlacedTensor> to_read;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        const StoredTensor& tensor = all.tensors[chosen[i]];
        PENSTOCK_ASSERT(places[i] + tensor.bytes <= plan.slot_bytes);
        if (!tiers.in_host[chosen[i]] && tensor.bytes != 0) {
            to_read.push_back({&tensor, memory + places[i]});
            bytes += tensor.bytes;
        }
    }
    if (!to_read.empty()) {
        std::optional<CopiedRead> transfer = sources.read(
            *engine, to_read, priority, {MemoryKind::kDevice, device, {slot.lane.handle()}});
        if (!transfer) {
            return false;
        }
        slot.transfer = std::move(*transfer);
        stats.bytes_read += bytes;
    }
    slot.unit = unit;
    slot.is_used = false;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (tiers.in_host[chosen[i]]) {
            const std::uint64_t length = all.tensors[chosen[i]].bytes;
            try {
                slot.lane.copy_in(memory + places[i], host.data() + home[chosen[i]], length);
            } catch (...) {
                stop(slot);
                throw;
            }
            stats.bytes_copied += length;
        }
    }
    return true;
}

// No transfer uses its memory afterwards; copies still may, and what comes into it waits for them.
void weights::GpuStreaming::stop(Slot& slot) noexcept {
    slot.transfer.stop();
    slot.transfer = {};
    slot.unit = kNone;
}

void weights::GpuStreaming::reuse(Slot& slot) {
    if (slot.is_waiting()) {
        order.gave_up();
    }
    stop(slot);
}

// Slots have a lane each, which cannot be copied.
std::vector<weights::SlotUse> weights::GpuStreaming::uses() const {
    std::vector<SlotUse> out;
    for (const Slot& slot : slots) {
        out.push_back(slot);
    }
    return out;
}

bool weights::GpuStreaming::wait(Slot& slot, std::chrono::nanoseconds timeout) {
    const std::size_t unit = slot.unit;
    const auto began = std::chrono::steady_clock::now();
    bool is_done = true;
    try {
        slot.transfer.set_priority(Priority::kUrgent);
        if (timeout == kForever) {
            slot.transfer.wait();
        } else {
            is_done = slot.transfer.wait_for(timeout);
        }
    } catch (const Error& error) {
        slot.held = 0;
        waiting = kNone;
        stop(slot);
        for (Slot& other : slots) {  // what is read ahead may have met it too
            if (other.held == 0) {
                stop(other);
            }
        }
        throw sources.located(error, fmt::format("weights of '{}'", units[unit].name),
                              named(not_on_device(unit)), "; the next pass tries again");
    }
    stats.stall[unit] += (std::chrono::steady_clock::now() - began).count();
    if (is_done) {
        slot.transfer = {};
    }
    return is_done;
}

// Finds or starts the reading of a unit, and holds its slot from here on.
void weights::GpuStreaming::begin(std::size_t unit) {
    if (waiting != kNone) {  // nobody came back for it, and no stream has used it
        --slot_of(std::exchange(waiting, kNone))->held;
    }
    follow(unit);
    if (plan.units[unit].copied_bytes + plan.units[unit].read_bytes == 0) {
        ++stats.ready;
        read_ahead();
        return;
    }
    Slot* slot = slot_of(unit);
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

const GpuWeightView* weights::GpuStreaming::acquire(std::size_t unit,
                                                    std::chrono::nanoseconds timeout,
                                                    const StreamHandle& stream) {
    if (waiting != unit) {
        begin(unit);
    }
    Slot* const slot = slot_of(unit);
    if (slot != nullptr && slot->transfer.valid() && !wait(*slot, timeout)) {
        return nullptr;
    }
    const GpuWeightView& made =
        view(unit, slot == nullptr ? WeightStream::kNoSlot
                                   : static_cast<std::uint32_t>(slot - slots.data()));
    if (slot != nullptr && plan.units[unit].copied_bytes != 0) {
        slot->lane.hold_up(stream);
    }
    waiting = kNone;
    ++held_units[unit];
    return &made;
}

const GpuWeightView& weights::GpuStreaming::view(std::size_t unit, std::uint32_t slot) {
    std::optional<GpuWeightView>& known =
        views[unit][slot == WeightStream::kNoSlot ? std::size_t{plan.slots} : slot];
    if (known) {
        return *known;
    }
    const std::vector<std::size_t> chosen = not_on_device(unit);
    const std::vector<std::uint64_t> places = place_in_slot(all.tensors, chosen);
    GpuWeightView made;
    made.slot = slot;
    for (const std::size_t tensor : all.units[unit]) {
        const auto in_slot = std::lower_bound(chosen.begin(), chosen.end(), tensor);
        const bool stays = tiers.device.stays[tensor];
        const std::byte* const at =
            stays ? residents->data() + home[tensor]
                  : memory_of_slot(slots[slot]) +
                        places[static_cast<std::size_t>(in_slot - chosen.begin())];
        made.tensors.emplace_back(at, all.tensors[tensor].bytes, MemoryKind::kDevice, device);
        made.owners.push_back(stays ? residents : slot_memory);
    }
    return known.emplace(std::move(made));
}

// The order comes first: if the GPU refuses it, the unit is held as before.
void weights::GpuStreaming::release(std::size_t unit, const StreamHandle& stream) {
    if (held_units[unit] == 0) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("unit '{}' is not held: release() as often as acquire()",
                           units[unit].name));
    }
    if (Slot* const slot = slot_of(unit)) {
        slot->lane.wait_for(stream);
        --slot->held;
    }
    --held_units[unit];
    read_ahead();
}

// A refusal is no error here: the unit is read when it is needed, and then the caller hears of it.
void weights::GpuStreaming::read_ahead() noexcept {
    try {
        read_ahead_next();
    } catch (const std::exception&) {
        return;
    }
}

void weights::GpuStreaming::read_ahead_next() {
    for (const auto& [slot, unit] : order.starts(uses())) {
        reuse(slots[slot]);
        if (!start(slots[slot], unit, Priority::kNormal)) {
            return;
        }
    }
}

// Copies read pinned memory, which stays where the GPU does not say that they are over.
void weights::GpuStreaming::close() noexcept {
    for (Slot& slot : slots) {
        stop(slot);
    }
    bool is_idle = true;
    for (Slot& slot : slots) {
        is_idle = is_idle && (in_host.bytes == 0 || slot.lane.wait_until_idle(kPatience));
    }
    if (!is_idle) {
        host.leave();
    }
    slots.clear();
    views.clear();
    sources.close();
    host = Region();
    slot_memory = nullptr;
    residents = nullptr;
    closed = true;
}

GpuWeightStream::GpuWeightStream(std::shared_ptr<Engine> engine, const TensorTable& table,
                                 std::vector<WeightUnit> units,
                                 const GpuWeightStreamOptions& options, const FileSystem& files)
    : impl_(std::make_unique<weights::GpuStreaming>(base::engine_given(std::move(engine), "stream"),
                                                    table, std::move(units), options, files)) {}

GpuWeightStream::GpuWeightStream(GpuWeightStream&& other) noexcept = default;
GpuWeightStream& GpuWeightStream::operator=(GpuWeightStream&& other) noexcept = default;
GpuWeightStream::~GpuWeightStream() = default;

const GpuWeightPlan& GpuWeightStream::plan() const {
    return base::object_of(impl_, "stream").plan;
}

const GpuWeightView& GpuWeightStream::acquire(std::size_t unit, const StreamHandle& stream) {
    return *acquire_for(unit, kForever, stream);
}

const GpuWeightView* GpuWeightStream::acquire_for(std::size_t unit,
                                                  std::chrono::nanoseconds timeout,
                                                  const StreamHandle& stream) {
    auto& self = base::object_of(impl_, "stream");
    self.check_usable(unit);
    return self.acquire(unit, timeout, stream);
}

void GpuWeightStream::release(std::size_t unit, const StreamHandle& stream) {
    auto& self = base::object_of(impl_, "stream");
    self.check_usable(unit);
    self.release(unit, stream);
}

GpuWeightStreamStats GpuWeightStream::stats() const {
    auto& self = base::object_of(impl_, "stream");
    GpuWeightStreamStats out = self.stats;
    out.folders = self.sources.folders();
    for (std::size_t i = 0; i < out.folders.size(); ++i) {
        out.folders[i].bytes_read -= self.before[i].bytes_read;
    }
    return out;
}

void GpuWeightStream::close() noexcept {
    if (impl_ != nullptr) {
        impl_->close();
    }
}

GpuWeightPlan plan_gpu_weights(const TensorTable& table, std::span<const WeightUnit> units,
                               std::uint64_t device_memory_bytes, std::uint64_t host_memory_bytes,
                               std::uint32_t slots) {
    const Weights all = weights::weights_of(table, units);
    return gpu_plan_of(all, units,
                       tiers_of(all, units, device_memory_bytes, host_memory_bytes, slots));
}

}  // namespace penstock
