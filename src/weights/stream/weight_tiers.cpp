// SPDX-License-Identifier: Apache-2.0
#include "weights/stream/weight_tiers.hpp"

#include "base/assert.hpp"
#include "base/planted.hpp"
#include "base/raise.hpp"
#include "base/wait_slice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>

namespace penstock::weights {

using tier::Residents;
using tier::StoredTensor;

namespace {

// Tensors that stay are read in steps of this size, two at a time, so that progress is seen.
constexpr std::uint64_t kStepBytes = 64 << 20;

std::vector<std::uint64_t> file_bytes_of(const Sources& sources) {
    std::vector<std::uint64_t> out;
    for (std::size_t i = 0; i < sources.size(); ++i) {
        out.push_back(sources.bytes(i));
    }
    return out;
}

}  // namespace

WeightTiers::WeightTiers(Engine& engine, Sources& sources, const Weights& all,
                         std::span<const WeightUnit> units, const WeightStreamOptions& options)
    : engine_(engine),
      sources_(sources),
      all_(all),
      units_(units),
      wanted_{.gpu = options.gpu,
              .host_memory_bytes = options.host_memory_bytes,
              .slots = options.slots},
      gpu_(options.gpu),
      least_(least_choice(all, options).used_bytes()),
      most_(most_memory(all, options)) {
    check(options.memory_bytes);
    if (!gpu_) {
        used_ =
            std::make_unique<Residents>(Residents::on_host(all.tensors, file_bytes_of(sources)));
        return;
    }
    used_ = std::make_unique<Residents>(Residents::on_gpu(all.tensors, *gpu_));
    if (wanted_.host_memory_bytes != 0) {
        host_ = std::make_unique<Residents>(Residents::pinned(all.tensors, *gpu_));
    }
}

WeightTiers::~WeightTiers() = default;

WeightStreamOptions WeightTiers::with(std::uint64_t memory_bytes) const {
    WeightStreamOptions out = wanted_;
    out.memory_bytes = memory_bytes;
    return out;
}

void WeightTiers::check(std::uint64_t memory_bytes) const {
    static_cast<void>(tiers_of(all_, units_, with(memory_bytes)));
}

void WeightTiers::use(std::uint64_t memory_bytes, const Progress& progress) {
    Tiers chosen = tiers_of(all_, units_, with(memory_bytes));
    moved_.clear();
    slots_.resize(0);  // before new ones are taken
    ++layout_;
    chosen_ = std::move(chosen);
    drop_others();
    slots_ = tier::Slots(chosen_.used.slots, chosen_.used.slot_bytes, gpu_);
    slots_.resize(chosen_.used.slots);
    fill(progress);
    lay_out_slots();
    plan_ = plan_of(all_, units_, chosen_, memory_bytes);
}

void WeightTiers::drop_others() noexcept {
    for (std::size_t i = 0; i < all_.tensors.size(); ++i) {
        if (used_->keeps(i) && !chosen_.used.stays[i]) {
            used_->drop(i);
        }
        if (host_ && host_->keeps(i) && !chosen_.in_host[i]) {
            host_->drop(i);
        }
    }
}

// After an error nothing is kept that was not read.
void WeightTiers::fill(const Progress& progress) {
    std::vector<Kept> missing;
    try {
        for (std::size_t i = 0; i < all_.tensors.size(); ++i) {
            const bool in_host = host_ && chosen_.in_host[i];
            Residents* const tier = chosen_.used.stays[i] ? used_.get()
                                    : in_host             ? host_.get()
                                                          : nullptr;
            if (tier != nullptr && !tier->keeps(i)) {
                missing.push_back({tier, i});
                tier->keep(i);
            }
        }
        read_all(missing, progress);
    } catch (...) {
        for (const Kept& one : missing) {
            if (one.tier->keeps(one.tensor)) {
                one.tier->drop(one.tensor);
            }
        }
        throw;
    }
}

ReadPlace WeightTiers::place(const Residents& tier) const {
    if (gpu_ && &tier == used_.get()) {
        return {.kind = MemoryKind::kDevice, .device = *gpu_};
    }
    return {};
}

std::vector<NamedTensor> WeightTiers::names_of(std::span<const Kept> tensors) const {
    std::vector<NamedTensor> out;
    for (const Kept& one : tensors) {
        out.push_back(
            {&all_.tensors[one.tensor], fmt::format("tensor '{}'", all_.names[one.tensor])});
    }
    return out;
}

// The tensors of each step, in the order of the files.
std::vector<std::vector<WeightTiers::Kept>> WeightTiers::steps_of(
    std::span<const Kept> missing) const {
    std::vector<Kept> order(missing.begin(), missing.end());
    std::erase_if(order, [this](const Kept& one) { return all_.tensors[one.tensor].bytes == 0; });
    std::stable_sort(order.begin(), order.end(), [this](const Kept& a, const Kept& b) {
        const StoredTensor& first = all_.tensors[a.tensor];
        const StoredTensor& second = all_.tensors[b.tensor];
        return std::tuple(a.tier == host_.get(), first.file(), first.offset()) <
               std::tuple(b.tier == host_.get(), second.file(), second.offset());
    });
    std::vector<std::vector<Kept>> out;
    std::uint64_t bytes = kStepBytes;  // of the last one
    for (const Kept& one : order) {
        if (bytes >= kStepBytes || out.back()[0].tier != one.tier) {
            out.emplace_back();
            bytes = 0;
        }
        out.back().push_back(one);
        bytes += all_.tensors[one.tensor].bytes;
    }
    return out;
}

CopiedRead WeightTiers::begin(std::span<const Kept> step) {
    std::vector<PlacedTensor> placed;
    for (const Kept& one : step) {
        placed.push_back({&all_.tensors[one.tensor], one.tier->of(one.tensor).data});
    }
    ReadPlace where = place(*step[0].tier);
    where.is_counted = false;
    return std::move(*sources_.read(engine_, placed, Priority::kUrgent, where));
}

void WeightTiers::end(CopiedRead& read, std::span<const Kept> step, stream::ProgressClock& clock) {
    try {
        while (!read.wait_for(base::kWaitSlice)) {
            clock.tick();
        }
    } catch (const Error& error) {
        if (error.reason() == ErrorCode::kCancelled) {
            throw;
        }
        throw sources_.located(error, "weights that stay in memory", names_of(step), "");
    }
    for (const Kept& one : step) {
        clock.add(all_.tensors[one.tensor].bytes);
    }
    clock.tick();
}

// Two steps are under way, so that the files never wait.
void WeightTiers::read_all(std::span<const Kept> missing, const Progress& progress) {
    stream::ProgressClock clock(progress, "stream");
    std::uint64_t total = 0;
    for (const Kept& one : missing) {
        total += all_.tensors[one.tensor].bytes;
    }
    clock.set_total(total);
    const std::vector<std::vector<Kept>> steps = steps_of(missing);
    CopiedRead before;
    for (std::size_t i = 0; i <= steps.size(); ++i) {
        CopiedRead read = i < steps.size() ? begin(steps[i]) : CopiedRead();
        if (i != 0) {
            end(before, steps[i - 1], clock);
        }
        before = std::move(read);
    }
    clock.tick(true);
}

void WeightTiers::lay_out_slots() {
    std::vector<Moved> moved(units_.size());
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
        std::vector<std::size_t>& tensors = moved[unit].tensors;
        for (const std::size_t tensor : all_.units[unit]) {
            if (!chosen_.used.stays[tensor] && all_.tensors[tensor].bytes != 0) {
                tensors.push_back(tensor);
            }
        }
        std::sort(tensors.begin(), tensors.end());
        tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
        moved[unit].places = tier::place_in_slot(all_.tensors, tensors);
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            const std::uint64_t bytes = all_.tensors[tensors[i]].bytes;
            PENSTOCK_ASSERT(moved[unit].places[i] + bytes <= chosen_.used.slot_bytes);
            (is_copied(tensors[i]) ? moved[unit].copied_bytes : moved[unit].read_bytes) += bytes;
        }
    }
    moved_ = std::move(moved);
}

Memory WeightTiers::memory_of(const Moved& moved, std::size_t place, std::uint32_t slot) const {
    return slots_.memory(slot, moved.places[place], all_.tensors[moved.tensors[place]].bytes);
}

bool WeightTiers::read(std::size_t unit, std::uint32_t slot, Priority priority,
                       const GpuStream* queue, CopiedRead& out) {
    const Moved& moved = moved_[unit];
    std::vector<PlacedTensor> placed;
    for (std::size_t i = 0; i < moved.tensors.size(); ++i) {
        if (!is_copied(moved.tensors[i])) {
            placed.push_back({&all_.tensors[moved.tensors[i]], memory_of(moved, i, slot).data});
        }
    }
    if (placed.empty()) {
        out = {};
        return true;
    }
    ReadPlace where = place(*used_);
    if (queue != nullptr) {
        where.streams.push_back(queue->handle());
    }
    std::optional<CopiedRead> begun = sources_.read(engine_, placed, priority, where);
    if (begun) {
        out = std::move(*begun);
    }
    return begun.has_value();
}

void WeightTiers::copy(std::size_t unit, std::uint32_t slot, GpuStream& queue) const {
    const Moved& moved = moved_[unit];
    for (std::size_t i = 0; i < moved.tensors.size(); ++i) {
        if (is_copied(moved.tensors[i])) {
            const Memory from = host_->of(moved.tensors[i]);
            queue.copy_in(memory_of(moved, i, slot).data, from.data, from.bytes);
        }
    }
}

WeightView WeightTiers::view(std::size_t unit, std::uint32_t slot) const {
    const Moved& moved = moved_[unit];
    WeightView made;
    made.slot = slot;
    made.layout = layout_;
    for (const std::size_t tensor : all_.units[unit]) {
        const std::uint64_t bytes = all_.tensors[tensor].bytes;
        if (bytes == 0) {
            const ReadPlace where = place(*used_);
            made.tensors.emplace_back(nullptr, 0, where.kind, where.device);
            made.owners.push_back(nullptr);
            continue;
        }
        const auto found = std::lower_bound(moved.tensors.begin(), moved.tensors.end(), tensor);
        if (found == moved.tensors.end() || *found != tensor) {
            made.tensors.push_back(used_->of(tensor));
            made.owners.push_back(used_->owner(tensor));
            continue;
        }
        auto place = static_cast<std::size_t>(found - moved.tensors.begin());
        if (place != 0 && base::planted("neighbour_weight") &&
            all_.tensors[moved.tensors[place - 1]].bytes == bytes) {
            --place;
        }
        made.tensors.push_back(memory_of(moved, place, slot));
        made.owners.push_back(slots_.owner(slot));
    }
    return made;
}

std::vector<NamedTensor> WeightTiers::named(std::size_t unit) const {
    std::vector<Kept> tensors;
    for (const std::size_t tensor : moved_[unit].tensors) {
        tensors.push_back({nullptr, tensor});
    }
    return names_of(tensors);
}

void WeightTiers::close(bool copies_run) noexcept {
    if (copies_run) {
        static_cast<void>(host_.release());
    }
    moved_.clear();
    slots_ = {};
    host_ = nullptr;
    used_ = nullptr;
}

}  // namespace penstock::weights
