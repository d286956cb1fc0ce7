// SPDX-License-Identifier: Apache-2.0
// The experts of a mixture that is larger than memory: only experts that the router chose are read.
//
//     penstock::ExpertStream experts(engine, table, layers, {.memory_bytes = 4ull << 30});
//     for (auto chosen = router(x); !chosen.empty();) {               // in a layer
//         const auto views = experts.acquire(layer, chosen);          // the first ones that fit
//         for (const penstock::ExpertView& view : views) { compute(view.parts); }
//         experts.release();
//         chosen = chosen.subspan(views.size());
//     }
//
// Frequently chosen experts stay in a cache that all layers share.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/joined_tensors.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/weight_stream.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

namespace weights {
class StreamingExperts;
}  // namespace weights

/// The experts of a layer, all of the same number of parts.
struct ExpertLayer {
    std::string name;  ///< "model.layers.0.mlp.experts"; for messages
    /// Each expert: its tensors, or its part of each tensor that all experts of the layer share.
    std::vector<std::vector<TensorPart>> experts;
};

struct ExpertStreamOptions {
    std::uint64_t memory_bytes = 0;                     ///< for the slots of experts
    std::vector<std::vector<std::string>> copies = {};  ///< as WeightStreamOptions::copies
    /// If given, the budget follows it, as WeightStreamOptions::spare. With a larger reserve than
    /// that of a WeightStream, experts give memory back first and grow last.
    SpareMemory spare = {};
    std::chrono::nanoseconds spare_interval = std::chrono::milliseconds(100);
    /// Experts that the next layer will likely need are read while this layer computes, in the
    /// class kBackground, into at most a quarter of the slots. They are predicted from earlier
    /// choices that followed the present one. A prediction is used only if at least half of its
    /// recent guesses were right. Takes a byte for each pair of experts of adjoining layers.
    bool read_likely = true;
};

/// An expert in memory.
struct ExpertView {
    /// Its bytes, in the order of ExpertLayer::experts. They have the same address modulo 64 as if
    /// the whole tensor were mapped from its file (a joined tensor: began at a multiple of 64).
    std::vector<std::span<const std::byte>> parts;
    std::shared_ptr<void> owner;  ///< keeps the addresses mapped, not the content
    std::uint32_t slot = 0;
};

/// Counters since the stream was made.
struct ExpertStreamStats {
    std::uint64_t hits = 0;       ///< experts that were in memory, or being read
    std::uint64_t misses = 0;     ///< experts that were read when they were needed
    std::uint64_t transfers = 0;  ///< transfers of these reads
    std::uint64_t bytes_read = 0;
    std::uint64_t likely_reads = 0;  ///< experts that were read because they were likely
    std::uint64_t likely_hits = 0;   ///< of them, chosen by the next layer; they are hits too
    std::uint64_t slots = 0;         ///< experts that fit
    std::uint64_t slot_bytes = 0;    ///< memory of each
    std::int64_t stall = 0;          ///< nanoseconds of waiting
    std::vector<WeightFolderStats> folders;  ///< as WeightStreamStats::folders
};

/// Streams experts. One thread at a time; in the child of a fork() calls throw kUnsupported, and
/// the parent continues. Movable.
class PENSTOCK_API ExpertStream {
public:
    /// Opens the files and reads nothing. Throws Error: kInvalidArgument for a tensor that the
    /// table does not have or a part beyond its end; kUnsupported for a tensor with strides;
    /// kOutOfMemory for a budget of less than least_expert_memory(); errors of the system.
    ExpertStream(std::shared_ptr<Engine> engine, const TensorTable& table,
                 std::vector<ExpertLayer> layers, const ExpertStreamOptions& options,
                 const FileSystem& files = FileSystem::local());
    ExpertStream(ExpertStream&& other) noexcept;
    ExpertStream& operator=(ExpertStream&& other) noexcept;
    ExpertStream(const ExpertStream&) = delete;
    ExpertStream& operator=(const ExpertStream&) = delete;
    /// Cancels what is being read and waits for it.
    ~ExpertStream();

    /// Waits until the first of `experts` are in memory, as many as there is room for and at least
    /// one, and holds them until release(). All missing ones are read by one transfer. If not all
    /// fit, the next ones are read meanwhile. Throws Error: kInvalidArgument for unknown or
    /// repeated numbers, for no experts, and for experts that are already held; kDamaged for a file
    /// that was changed, checked once a pass (a pass begins when the layer is not later than the
    /// last one); errors of reading, with the file and a tensor. The next acquire() tries again.
    std::vector<ExpertView> acquire(std::size_t layer, std::span<const std::size_t> experts);
    /// The same, or nothing when the time is over; reading continues.
    std::optional<std::vector<ExpertView>> acquire_for(std::size_t layer,
                                                       std::span<const std::size_t> experts,
                                                       std::chrono::nanoseconds timeout);
    /// Releases the acquired experts, which may then be dropped. Does nothing if there are no such.
    void release();
    /// Changes the budget at the next acquire(): slots are added, or dropped with their content. It
    /// then follows `spare`; without `spare` it is fixed. Throws kOutOfMemory as the constructor.
    void set_memory(std::uint64_t memory_bytes, SpareMemory spare = {});
    [[nodiscard]] ExpertStreamStats stats() const;
    /// Does the same as the destructor. Later calls throw kClosed. May be called again.
    void close() noexcept;

private:
    std::unique_ptr<weights::StreamingExperts> impl_;
};

/// The minimum budget: two experts, so that one is read while the other computes. Throws
/// kInvalidArgument and kUnsupported as ExpertStream. Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t least_expert_memory(const TensorTable& table,
                                                             std::span<const ExpertLayer> layers);

/// The shares of a budget for a WeightStream and an ExpertStream of one model.
struct WeightShares {
    std::uint64_t units_bytes = 0;
    std::uint64_t experts_bytes = 0;
};

/// Divides a budget. Experts always get `least_experts` (least_expert_memory()), and room for 8 of
/// them as far as the minimum of the units (`least_units`, least_weight_memory()) allows. Then
/// units get as much as they can use, up to `most_units` bytes, because all of them are used in
/// each pass. Experts get the rest. Thread-safe.
[[nodiscard]] PENSTOCK_API WeightShares share_weight_memory(std::uint64_t memory_bytes,
                                                            std::uint64_t least_units,
                                                            std::uint64_t most_units,
                                                            std::uint64_t least_experts) noexcept;

}  // namespace penstock
