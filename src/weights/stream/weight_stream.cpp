// SPDX-License-Identifier: Apache-2.0
// The state of a slot:
//
//     empty ──start()──> reading ──its transfer is done──> ready ──another unit──> reading
//                           └──the transfer failed──> empty
//
// A slot that is held is ready, and stays so. Residents lie in an image of the files: a tensor's
// address there is its offset, so it is congruent to it, and what adjoins stays together. No two
// share memory, because each is given back without a look at the others.
#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/handles.hpp"
#include "base/planted.hpp"
#include "base/raise.hpp"
#include "stream/file_reader.hpp"
#include "weights/model/unit_tensors.hpp"
#include "weights/read/sources.hpp"
#include "weights/stream/followed_budget.hpp"
#include "weights/stream/pass_times.hpp"
#include "weights/stream/residency.hpp"
#include "weights/stream/slot_layout.hpp"
#include "weights/stream/unit_order.hpp"

#include <penstock/memory.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

using weights::Residency;
using weights::StoredTensor;
using weights::Weights;

constexpr std::string_view kOperation = "stream";
constexpr std::size_t kNone = ~std::size_t{0};
constexpr auto kForever = std::chrono::nanoseconds::max();
using Clock = std::chrono::steady_clock;

[[noreturn]] void refuse(ErrorCode code, const std::string& message, std::string_view path = {}) {
    base::raise(base::error(code, kOperation, message, path));
}

}  // namespace

class weights::Streaming {
public:
    struct Slot : SlotUse {
        weights::CopiedRead transfer;  // valid while it is read
        bool is_ahead = false;         // it was asked for before its unit was needed
    };

    Streaming(std::shared_ptr<Engine> its_engine, const TensorTable& table,
              std::vector<WeightUnit> its_units, const WeightStreamOptions& options,
              const FileSystem& files)
        : engine(std::move(its_engine)),
          units(std::move(its_units)),
          all(weights::weights_of(table, units)),
          sources(*engine, files, table, options.copies),
          slots_wanted(options.slots),
          least(weights::least_memory(all, slots_wanted)),
          spare(options.spare),
          spare_interval(options.spare_interval),
          order(units.size()) {
        const Residency chosen =
            weights::residency_of(all, units, options.memory_bytes, slots_wanted);
        for (std::size_t i = 0; i < all.tensors.size(); ++i) {
            sources.check_ends(all.tensors[i], all.names[i]);
        }
        lay_out_image();
        stats.stall.resize(units.size());
        held_units.resize(units.size());
        use(chosen, options.memory_bytes, options.progress);
        read_ahead();
    }
    Streaming(const Streaming&) = delete;
    Streaming& operator=(const Streaming&) = delete;
    ~Streaming() { close(); }

    void lay_out_image();
    void use(Residency chosen, std::uint64_t memory_bytes, const Progress& progress);
    void read_residents(const std::vector<bool>& known, const Progress& progress);
    void check_usable(std::size_t unit) const;
    void follow(std::size_t unit);
    void follow_memory(bool new_pass);
    Slot* slot_of(std::size_t unit);
    Slot& free_slot(std::size_t unit);
    bool start(Slot& slot, std::size_t unit, Priority priority);
    void stop(Slot& slot) noexcept;
    void reuse(Slot& slot);
    [[nodiscard]] std::vector<SlotUse> uses() const { return {slots.begin(), slots.end()}; }
    void forget_read_ahead() noexcept;
    const WeightView* acquire(std::size_t unit, std::chrono::nanoseconds timeout);
    void begin(std::size_t unit);
    void release(std::size_t unit);
    static void unhold(Slot& slot);
    bool wait(Slot& slot, std::chrono::nanoseconds timeout);
    void read_ahead() noexcept;
    void read_ahead_next();
    const WeightView& view(std::size_t unit, std::uint32_t slot);
    [[nodiscard]] std::vector<std::size_t> read_of(std::size_t unit) const;
    [[nodiscard]] std::vector<NamedTensor> named(std::span<const std::size_t> tensors) const;
    void close() noexcept;

    std::shared_ptr<Engine> engine;
    std::vector<WeightUnit> units;
    Weights all;
    weights::Sources sources;
    std::uint32_t slots_wanted;
    std::uint64_t least;
    SpareMemory spare;
    std::chrono::nanoseconds spare_interval;
    Clock::time_point spare_asked = Clock::now();
    pid_t process = ::getpid();
    bool closed = false;
    std::vector<std::uint64_t> home;  // of each tensor: its place in the image
    std::shared_ptr<Region> image;
    std::shared_ptr<Region> slot_memory;
    Residency residency;
    std::uint64_t layout = 0;
    WeightPlan plan;
    std::optional<std::uint64_t> wanted_memory;
    std::vector<Slot> slots;
    std::vector<std::vector<std::optional<WeightView>>> views;  // of a unit in a slot, or in none
    UnitOrder order;
    std::vector<std::uint32_t> held_units;
    std::size_t waiting = kNone;  // a unit that is begun, and whose caller has not got it yet
    WeightStreamStats stats;
    weights::PassTimes times;
};

// The image is addresses only: memory is taken where a tensor stays.
void weights::Streaming::lay_out_image() {
    std::vector<std::uint64_t> file_bytes;
    for (std::size_t i = 0; i < sources.size(); ++i) {
        file_bytes.push_back(sources.bytes(i));
    }
    weights::ImageLayout laid_out = weights::lay_out_image(all.tensors, file_bytes);
    home = std::move(laid_out.places);
    image = std::make_shared<Region>(Region::host(laid_out.bytes));
}

void weights::Streaming::use(Residency chosen, std::uint64_t memory_bytes,
                             const Progress& progress) {
    for (Slot& slot : slots) {
        PENSTOCK_ASSERT(slot.held == 0);
        stop(slot);
    }
    PENSTOCK_ASSERT(std::all_of(held_units.begin(), held_units.end(),
                                [](std::uint32_t held) { return held == 0; }));
    slots.clear();
    views.clear();
    if (slot_memory) {
        slot_memory->drop(0, slot_memory->size());  // callers may keep its addresses
    }
    slot_memory = nullptr;  // before the new one is taken
    ++layout;
    std::vector<bool> known = residency.stays;
    known.resize(all.tensors.size());
    for (std::size_t i = 0; i < known.size(); ++i) {
        if (known[i] && !chosen.stays[i]) {
            image->drop(home[i], all.tensors[i].bytes);
        }
        known[i] = known[i] && chosen.stays[i];
    }
    residency = {.stays = known};  // what is true should reading fail
    slot_memory = std::make_shared<Region>(Region::host(chosen.slots * chosen.slot_bytes, true));
    residency = std::move(chosen);
    try {
        read_residents(known, progress);
    } catch (...) {
        residency.stays = known;
        throw;
    }
    slots.resize(residency.slots);
    views.assign(units.size(),
                 std::vector<std::optional<WeightView>>(std::size_t{residency.slots} + 1));
    plan = weights::plan_of(all, units, residency, memory_bytes);
    std::vector<bool> reads;
    for (const WeightPlan::Unit& unit : plan.units) {
        reads.push_back(unit.read_bytes != 0);
    }
    order.set_reads(std::move(reads));
}

void weights::Streaming::read_residents(const std::vector<bool>& known, const Progress& progress) {
    std::vector<std::vector<stream::Wanted>> wanted(sources.size());
    std::vector<std::size_t> tensors;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < all.tensors.size(); ++i) {
        if (!residency.stays[i] || known[i]) {
            continue;
        }
        tensors.push_back(i);
        std::byte* into = image->data() + home[i];
        for (const TensorStretch& stretch : all.tensors[i].stretches) {
            if (stretch.bytes != 0) {
                wanted[stretch.file].push_back(
                    {.offset = stretch.offset, .into = {into, stretch.bytes}});
                total += stretch.bytes;
            }
            into += stretch.bytes;
        }
    }
    std::uint64_t before = 0;
    for (std::size_t i = 0; i < sources.size(); ++i) {
        if (wanted[i].empty()) {
            continue;
        }
        const auto report = [&](std::uint64_t done, std::uint64_t /*of_file*/) {
            return !progress || progress(before + done, total);
        };
        try {
            static_cast<void>(
                stream::read_file(*engine, sources.file(i), wanted[i], {.verify = false}, report));
        } catch (const Error& error) {
            throw sources.located(error, "weights that stay in memory", named(tensors), "");
        }
        for (const stream::Wanted& one : wanted[i]) {
            before += one.into.bytes;
        }
    }
}

void weights::Streaming::check_usable(std::size_t unit) const {
    if (closed) {
        refuse(ErrorCode::kClosed, "these weights are closed; make another WeightStream");
    }
    if (process != ::getpid()) {
        refuse(ErrorCode::kUnsupported,
               "these weights belong to the parent of this process, which reads them into its "
               "own memory; make another WeightStream after fork()");
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

weights::Streaming::Slot* weights::Streaming::slot_of(std::size_t unit) {
    const auto slot = std::find_if(slots.begin(), slots.end(),
                                   [unit](const Slot& one) { return one.unit == unit; });
    return slot == slots.end() ? nullptr : &*slot;
}

// For a unit that was not read ahead.
weights::Streaming::Slot& weights::Streaming::free_slot(std::size_t unit) {
    if (const auto chosen = order.slot_on_demand(uses())) {
        reuse(slots[*chosen]);
        return slots[*chosen];
    }
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("unit '{}' is needed while all {} slots are held; release a unit first, or "
                       "ask for more slots",
                       units[unit].name, slots.size()));
}

std::vector<std::size_t> weights::Streaming::read_of(std::size_t unit) const {
    std::vector<std::size_t> out;
    for (const std::size_t tensor : all.units[unit]) {
        if (!residency.stays[tensor]) {
            out.push_back(tensor);
        }
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

std::vector<weights::NamedTensor> weights::Streaming::named(
    std::span<const std::size_t> tensors) const {
    std::vector<weights::NamedTensor> out;
    for (const std::size_t tensor : tensors) {
        out.push_back({&all.tensors[tensor], fmt::format("tensor '{}'", all.names[tensor])});
    }
    return out;
}

bool weights::Streaming::start(Slot& slot, std::size_t unit, Priority priority) {
    const std::vector<std::size_t> chosen = read_of(unit);
    const std::vector<std::uint64_t> places = weights::place_in_slot(all.tensors, chosen);
    std::byte* const memory =
        slot_memory->data() +
        static_cast<std::uint64_t>(&slot - slots.data()) * residency.slot_bytes;
    std::vector<weights::PlacedTensor> placed;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        const StoredTensor& tensor = all.tensors[chosen[i]];
        PENSTOCK_ASSERT(places[i] + tensor.bytes <= residency.slot_bytes);
        placed.push_back({&tensor, memory + places[i]});
        bytes += tensor.bytes;
    }
    std::optional<weights::CopiedRead> transfer = sources.read(*engine, placed, priority);
    if (!transfer) {
        return false;  // other callers have all the room; it is read when it is needed
    }
    slot.transfer = std::move(*transfer);
    slot.unit = unit;
    slot.is_used = false;
    slot.is_ahead = priority != Priority::kUrgent;
    stats.bytes_read += bytes;
    return true;
}

// Its memory is free of requests afterwards.
void weights::Streaming::stop(Slot& slot) noexcept {
    slot.transfer.stop();
    slot.transfer = {};
    slot.unit = kNone;
}

void weights::Streaming::reuse(Slot& slot) {
    if (slot.is_waiting()) {
        order.gave_up();
    }
    stop(slot);
}

// After an error: what is read ahead may have met it too, and the next pass is to try again.
void weights::Streaming::forget_read_ahead() noexcept {
    for (Slot& slot : slots) {
        if (slot.held == 0) {
            stop(slot);
        }
    }
}

bool weights::Streaming::wait(Slot& slot, std::chrono::nanoseconds timeout) {
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
        slot = Slot();
        waiting = kNone;
        forget_read_ahead();
        throw sources.located(error, fmt::format("weights of '{}'", units[unit].name),
                              named(read_of(unit)), "; the next pass tries again");
    }
    const auto end = Clock::now();
    stats.stall[unit] += (end - begin).count();
    times.arrived(plan.units[unit].read_bytes, is_waited, end);
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
        views[unit][slot == WeightStream::kNoSlot ? std::size_t{residency.slots} : slot];
    if (known) {
        return *known;
    }
    const std::vector<std::size_t> chosen = read_of(unit);
    const std::vector<std::uint64_t> places = weights::place_in_slot(all.tensors, chosen);
    WeightView made;
    made.slot = slot;
    made.layout = layout;
    for (const std::size_t tensor : all.units[unit]) {
        const auto in_slot = std::lower_bound(chosen.begin(), chosen.end(), tensor);
        const bool is_read = in_slot != chosen.end() && *in_slot == tensor;
        auto place = static_cast<std::size_t>(in_slot - chosen.begin());
        if (is_read && place != 0 && base::planted("neighbour_weight") &&
            all.tensors[chosen[place - 1]].bytes == all.tensors[tensor].bytes) {
            --place;
        }
        const std::byte* const at =
            is_read ? slot_memory->data() + slot * residency.slot_bytes + places[place]
                    : image->data() + home[tensor];
        made.tensors.emplace_back(at, all.tensors[tensor].bytes);
        made.owners.push_back(is_read ? slot_memory : image);
    }
    return known.emplace(std::move(made));
}

const WeightView* weights::Streaming::acquire(std::size_t unit, std::chrono::nanoseconds timeout) {
    if (waiting != unit) {
        begin(unit);
    }
    Slot* const slot = slot_of(unit);
    if (slot != nullptr && slot->transfer.valid() && !wait(*slot, timeout)) {
        return nullptr;
    }
    waiting = kNone;
    ++held_units[unit];
    return &view(unit, slot == nullptr ? WeightStream::kNoSlot
                                       : static_cast<std::uint32_t>(slot - slots.data()));
}

// Asks what memory is left. A budget that the caller has just set comes first.
void weights::Streaming::follow_memory(bool new_pass) {
    const auto now = Clock::now();
    if (!spare || wanted_memory || now - spare_asked < spare_interval) {
        return;
    }
    spare_asked = now;
    wanted_memory = weights::followed_budget({.budget = plan.memory_bytes,
                                              .spare = spare(),
                                              .least = least,
                                              .most = weights::most_memory(all),
                                              .may_grow = new_pass});
}

// Finds or starts the reading of a unit, and holds its slot from here on.
void weights::Streaming::begin(std::size_t unit) {
    if (waiting != kNone) {  // nobody came back for it
        unhold(*slot_of(std::exchange(waiting, kNone)));
    }
    if (std::all_of(held_units.begin(), held_units.end(),
                    [](std::uint32_t held) { return held == 0; })) {
        follow_memory(order.begins_pass(unit));
        if (wanted_memory) {
            use(weights::residency_of(all, units, *wanted_memory, slots_wanted), *wanted_memory,
                {});
            wanted_memory.reset();  // after an error the next call tries again
        }
    }
    follow(unit);
    if (plan.units[unit].read_bytes == 0) {
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

void weights::Streaming::unhold(Slot& slot) {
    PENSTOCK_ASSERT(slot.held != 0);
    --slot.held;
}

void weights::Streaming::release(std::size_t unit) {
    if (held_units[unit] == 0) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("unit '{}' is not held: release() as often as acquire()",
                           units[unit].name));
    }
    --held_units[unit];
    if (Slot* const slot = slot_of(unit)) {
        unhold(*slot);
    }
    times.released(Clock::now());
    read_ahead();
}

void weights::Streaming::close() noexcept {
    for (Slot& slot : slots) {
        stop(slot);
    }
    slots.clear();
    views.clear();
    sources.close();
    slot_memory = nullptr;
    image = nullptr;
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
    return base::object_of(impl_, "stream").plan;
}

const WeightView& WeightStream::acquire(std::size_t unit) {
    return *acquire_for(unit, kForever);
}

const WeightView* WeightStream::acquire_for(std::size_t unit, std::chrono::nanoseconds timeout) {
    auto& self = base::object_of(impl_, "stream");
    self.check_usable(unit);
    return self.acquire(unit, timeout);
}

void WeightStream::release(std::size_t unit) {
    auto& self = base::object_of(impl_, "stream");
    self.check_usable(unit);
    self.release(unit);
}

void WeightStream::set_memory(std::uint64_t memory_bytes, SpareMemory spare) {
    auto& self = base::object_of(impl_, "stream");
    self.check_usable(0);
    static_cast<void>(weights::residency_of(self.all, self.units, memory_bytes, self.slots_wanted));
    self.wanted_memory = memory_bytes;
    self.spare = std::move(spare);
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
