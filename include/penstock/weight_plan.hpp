// SPDX-License-Identifier: Apache-2.0
// The memory, the reads and the seconds that a model with streamed weights needs, computed before
// anything is run.
//
//     const penstock::TensorTable table = penstock::inspect(engine, "model/");
//     const penstock::WeightForecast forecast = penstock::forecast_weights(table, 8ull << 30);
//     const double seconds = penstock::pass_seconds(forecast.plan, 3e9);
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/weights.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// Finds the units of a model by the names of its tensors. A numbered group is a layer, and a unit:
/// "model.layers.0.mlp.up.weight" is in "model.layers.0". A tensor outside of layers is in the unit
/// of its module: "lm_head.weight" is in "lm_head". Layers are sorted by number; otherwise the
/// order is that of the table. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<WeightUnit> find_weight_units(const TensorTable& table);

/// Finds the layers of experts of a mixture by the names of its tensors. The tensors of one expert
/// are below "experts" and its number ("model.layers.0.mlp.experts.3.up_proj.weight"). Or tensors
/// of all experts are below "experts", with the expert as their first dimension. Layers are sorted
/// by number. A group of another form is omitted. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<ExpertLayer> find_expert_layers(const TensorTable& table);

/// The number of experts that a token uses in each layer, from config.json in one of the folders
/// (or next to the named file); 0 if no config.json has it. Throws Error: kDamaged for a file that
/// is not JSON; errors of the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t find_experts_per_token(
    Engine& engine, std::span<const std::string> folders,
    const FileSystem& files = FileSystem::local());

/// The experts of a mixture, which are read when a router has chosen them. All 0 if there are none,
/// or if everything stays in memory.
struct ExpertForecast {
    std::uint64_t layers = 0;
    std::uint64_t experts = 0;       ///< in all layers
    std::uint64_t chosen = 0;        ///< experts that a token uses, in all layers
    std::uint64_t bytes = 0;         ///< of all experts
    std::uint64_t memory_bytes = 0;  ///< their share of the budget
    std::uint64_t slots = 0;         ///< experts that fit into it
    std::uint64_t slot_bytes = 0;
    /// The expected share of chosen experts that are in memory: `slots` / `experts`, as if the
    /// router chose each equally often. A router that prefers some has more hits, as these stay.
    double hits = 0;
    std::uint64_t read_bytes = 0;  ///< expected bytes that a token reads of the others
};

/// The effect of a memory budget.
struct WeightForecast {
    WeightPlan plan;  ///< for all tensors except those of `experts`
    ExpertForecast experts;
    /// Bytes of experts that are read while a unit of the plan computes, for each unit.
    std::vector<std::uint64_t> expert_read_bytes;
    /// Bytes of the weights that compute a token, for each unit: without embeddings, of which it
    /// uses a row, and without experts that it does not use.
    std::vector<std::uint64_t> token_bytes;
    std::uint64_t weight_bytes = 0;  ///< of all tensors of the table
    /// Embeddings that are read by row, and so are in no unit and in no budget: tensors with two
    /// dimensions, outside of layers, with the name of an embedding ("embed_tokens", "wte"). None
    /// if everything stays. If no other tensor has the shape of the largest embedding, the head is
    /// assumed to be tied to it, and it is then a unit too.
    std::vector<std::string> rows;
    std::uint64_t least_memory_bytes = 0;  ///< the smallest budget that works
    std::string least_tensor;              ///< the tensor whose size determines it
    /// Bytes that a token reads: of units, and the expected bytes of experts.
    [[nodiscard]] std::uint64_t read_bytes() const noexcept {
        return plan.read_bytes + experts.read_bytes;
    }
    /// The used part of the budget.
    [[nodiscard]] std::uint64_t used_bytes() const noexcept {
        return plan.used_bytes() + experts.slots * experts.slot_bytes;
    }
    /// Bytes of the weights that compute a token.
    [[nodiscard]] std::uint64_t weights_of_token() const noexcept {
        return std::accumulate(token_bytes.begin(), token_bytes.end(), std::uint64_t{0});
    }
};

/// The plan for the units of find_weight_units(). Units that are too large for the budget are
/// divided into their parts, down to one tensor. `slots`: as for plan_weights(). If not everything
/// stays, experts (find_expert_layers()) have a separate share of the budget
/// (share_weight_memory()), and a token uses `experts_per_token` of them in each layer; 0: all.
/// Throws Error: kOutOfMemory for a budget that is too small, with the minimum and the tensor that
/// determines it; kInvalidArgument for a table without tensors; kUnsupported for a tensor with
/// strides. Thread-safe.
[[nodiscard]] PENSTOCK_API WeightForecast forecast_weights(const TensorTable& table,
                                                           std::uint64_t memory_bytes,
                                                           std::uint32_t slots = 2,
                                                           std::uint64_t experts_per_token = 0);

/// Seconds of a pass (a token, when decoding) of a plan. The device reads `bytes_per_second`, one
/// unit after the other, each as soon as it has a slot. A unit is computed when it is there and the
/// previous one is done. `compute_seconds`: the time to compute a whole pass with all weights in
/// memory; each unit has a share of it in proportion to its bytes. With 0 the result is the bound
/// of the device. Throws kInvalidArgument for a rate that is not above 0, and for negative seconds.
/// Thread-safe.
[[nodiscard]] PENSTOCK_API double pass_seconds(const WeightPlan& plan, double bytes_per_second,
                                               double compute_seconds = 0);
/// The same with experts. They are read first when their layer has chosen them, and the layer waits
/// for them.
[[nodiscard]] PENSTOCK_API double pass_seconds(const WeightForecast& forecast,
                                               double bytes_per_second, double compute_seconds = 0);

/// Measures the bytes a second at which the files of a model are read, without the page cache, each
/// from all folders that have it, all folders concurrently, for about `time`. Throws Error:
/// kInvalidArgument for a folder whose files are empty; errors of the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API double measure_weight_rate(
    Engine& engine, const WeightFolders& model,
    std::chrono::nanoseconds time = std::chrono::seconds(1),
    const FileSystem& files = FileSystem::local());

/// Measures the bytes a second that `threads` threads (0: one less than the process may use, at
/// least one) read from memory that no cache holds, for about `time`. A token of a batch of 1 uses
/// each weight once, so the bytes of a pass divided by this rate are the minimum time of computing
/// it. Products of 16-bit numbers often take longer. Throws Error (kOutOfMemory; kSystem if a
/// thread cannot be started). Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API double measure_memory_rate(
    unsigned threads = 0, std::chrono::nanoseconds time = std::chrono::milliseconds(500));

}  // namespace penstock
