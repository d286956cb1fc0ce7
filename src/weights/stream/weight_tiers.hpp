// SPDX-License-Identifier: Apache-2.0
// Where the tensors of a model lie. Those of a unit are used in one memory, of the host or of a
// GPU: they stay there, or come into a slot. With a GPU, some that do not stay there stay in pinned
// host memory and are copied into slots. The others are read from the files.
#pragma once

#include "stream/progress_clock.hpp"
#include "tier/residency.hpp"
#include "tier/residents.hpp"
#include "tier/slots.hpp"
#include "weights/model/unit_tensors.hpp"
#include "weights/read/sources.hpp"

#include <penstock/engine.hpp>
#include <penstock/gpu.hpp>
#include <penstock/weights.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::weights {

/// One thread at a time.
class WeightTiers {
public:
    /// Keeps nothing yet. Everything that is referred to must last longer. Throws Error.
    WeightTiers(Engine& engine, Sources& sources, const Weights& all,
                std::span<const WeightUnit> units, const WeightStreamOptions& options);
    WeightTiers(const WeightTiers&) = delete;
    WeightTiers& operator=(const WeightTiers&) = delete;
    ~WeightTiers();

    /// Throws kOutOfMemory for a budget that is too small.
    void check(std::uint64_t memory_bytes) const;
    [[nodiscard]] std::uint64_t least() const { return least_; }
    [[nodiscard]] std::uint64_t most() const { return most_; }
    /// Chooses again what stays, drops and reads what that changes, and makes new slots. No
    /// transfer and no copy may use memory of tiers. After an error there are no slots, and the
    /// call is to be repeated. Throws Error.
    void use(std::uint64_t memory_bytes, const Progress& progress);
    [[nodiscard]] const WeightPlan& plan() const { return plan_; }
    /// The tensors of a unit that come into its slot: they do not stay where they are used.
    struct Moved {
        std::vector<std::size_t> tensors;   ///< in order
        std::vector<std::uint64_t> places;  ///< in the slot
        std::uint64_t read_bytes = 0;       ///< from files
        std::uint64_t copied_bytes = 0;     ///< from pinned host memory
        [[nodiscard]] bool any() const { return !tensors.empty(); }
    };
    [[nodiscard]] const Moved& moved(std::size_t unit) const { return moved_[unit]; }

    /// Starts to read what comes from files into a slot, after the work that `queue` holds. False
    /// where the engine has no room, unless it is urgent; nothing is begun then. The read is not
    /// valid where no tensor comes from a file. Throws Error.
    [[nodiscard]] bool read(std::size_t unit, std::uint32_t slot, Priority priority,
                            const GpuStream* queue, CopiedRead& out);
    /// Puts the copies from host memory on the queue. Throws the errors of the GPU.
    void copy(std::size_t unit, std::uint32_t slot, GpuStream& queue) const;
    [[nodiscard]] WeightView view(std::size_t unit, std::uint32_t slot) const;
    /// The tensors of a unit that come into its slot, for messages.
    [[nodiscard]] std::vector<NamedTensor> named(std::size_t unit) const;
    /// Gives up all memory. `copies_run`: a GPU may still read the pinned part, which then stays.
    void close(bool copies_run) noexcept;

private:
    struct Kept {
        tier::Residents* tier = nullptr;
        std::size_t tensor = 0;
    };

    void drop_others() noexcept;
    void fill(const Progress& progress);
    [[nodiscard]] std::vector<std::vector<Kept>> steps_of(std::span<const Kept> missing) const;
    [[nodiscard]] CopiedRead begin(std::span<const Kept> step);
    void end(CopiedRead& read, std::span<const Kept> step, stream::ProgressClock& clock);
    void read_all(std::span<const Kept> missing, const Progress& progress);
    [[nodiscard]] std::vector<NamedTensor> names_of(std::span<const Kept> tensors) const;
    [[nodiscard]] bool is_copied(std::size_t tensor) const { return host_ && host_->keeps(tensor); }
    [[nodiscard]] WeightStreamOptions with(std::uint64_t memory_bytes) const;
    [[nodiscard]] ReadPlace place(const tier::Residents& tier) const;
    void lay_out_slots();
    [[nodiscard]] Memory memory_of(const Moved& moved, std::size_t place, std::uint32_t slot) const;

    Engine& engine_;
    Sources& sources_;
    const Weights& all_;
    std::span<const WeightUnit> units_;
    const WeightStreamOptions wanted_;  // but for the budget of use()
    const std::optional<std::int32_t> gpu_;
    const std::uint64_t least_;
    const std::uint64_t most_;
    Tiers chosen_;
    std::unique_ptr<tier::Residents> used_;  // where units are used
    std::unique_ptr<tier::Residents> host_;  // with a GPU
    tier::Slots slots_;
    std::vector<Moved> moved_;  // of each unit
    WeightPlan plan_;
    std::uint64_t layout_ = 0;
};

}  // namespace penstock::weights
