// SPDX-License-Identifier: Apache-2.0
// The memory, the reading and the seconds that a model needs when its weights are streamed, known
// before anything is run.
//
//     const penstock::TensorTable table = penstock::inspect(engine, "model/");
//     const penstock::WeightForecast forecast = penstock::forecast_weights(table, 8ull << 30);
//     const double seconds = penstock::pass_seconds(forecast.plan, 3e9);
#pragma once

#include <penstock/engine.hpp>
#include <penstock/expert_stream.hpp>
#include <penstock/file.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/weight_folders.hpp>
#include <penstock/weight_stream.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// The units of a model, found in the names of its tensors. A numbered group is a layer, and a
/// unit: "model.layers.0.mlp.up.weight" is in "model.layers.0". A tensor outside of layers is in
/// the unit of its module: "lm_head.weight" is in "lm_head". Layers come by number; otherwise the
/// order is that of the table. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<WeightUnit> find_weight_units(const TensorTable& table);

/// The layers of experts of a mixture, found in the names of its tensors: those of one expert below
/// "experts" and its number ("model.layers.0.mlp.experts.3.up_proj.weight"), or those of all below
/// "experts", which they have as their first dimension. Layers come by number. A group that has
/// another form is left out. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<ExpertLayer> find_expert_layers(const TensorTable& table);

/// The experts that a token uses in each layer, as config.json in one of the folders (or next to
/// the file that is named) says; 0 where none says it. Throws Error: kDamaged for a file that is
/// not JSON; errors of the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t find_experts_per_token(
    Engine& engine, std::span<const std::string> folders,
    const FileSystem& files = FileSystem::local());

/// The experts of a mixture that are read when a router chose them. All 0 where there are none, or
/// where everything stays.
struct ExpertForecast {
    std::uint64_t layers = 0;
    std::uint64_t experts = 0;       ///< of all layers
    std::uint64_t chosen = 0;        ///< of all layers, by a token
    std::uint64_t bytes = 0;         ///< of all experts
    std::uint64_t memory_bytes = 0;  ///< their share of the budget
    std::uint64_t slots = 0;         ///< experts that fit into it
    std::uint64_t slot_bytes = 0;
    /// The share of the chosen ones that is in memory: `slots` of `experts`, as if the router chose
    /// each equally often. A router that prefers some finds more, because these stay.
    double hits = 0;
    std::uint64_t read_bytes = 0;  ///< of the others, by a token: an expectation
};

/// What a budget of memory would do.
struct WeightForecast {
    WeightPlan plan;  ///< of all that is not an expert of `experts`
    ExpertForecast experts;
    /// Bytes of experts that are read while a unit of the plan computes, for each unit.
    std::vector<std::uint64_t> expert_read_bytes;
    /// Bytes of the weights that a token is computed with, for each unit: without embeddings, of
    /// which it takes a row, and without experts that it does not use.
    std::vector<std::uint64_t> token_bytes;
    std::uint64_t weight_bytes = 0;  ///< of all tensors of the table
    /// Embeddings that are read by row, and so are in no unit and in no budget: tensors with two
    /// dimensions, outside of layers, with a name of an embedding ("embed_tokens", "wte"). None
    /// where everything stays. Where the table has no other tensor of the shape of the largest
    /// one, the head is taken to be tied to that, and then it is a unit too.
    std::vector<std::string> rows;
    std::uint64_t least_memory_bytes = 0;  ///< the smallest budget that works
    std::string least_tensor;              ///< whose size sets it
    /// Sum of what a token reads: of units, and of experts by expectation.
    [[nodiscard]] std::uint64_t read_bytes() const noexcept {
        return plan.read_bytes + experts.read_bytes;
    }
    /// Memory that is taken of the budget.
    [[nodiscard]] std::uint64_t used_bytes() const noexcept {
        return plan.used_bytes() + experts.slots * experts.slot_bytes;
    }
    /// Weights that a token is computed with.
    [[nodiscard]] std::uint64_t weights_of_token() const noexcept {
        return std::accumulate(token_bytes.begin(), token_bytes.end(), std::uint64_t{0});
    }
};

/// The plan for the units of find_weight_units(); those that are too large for the budget are cut
/// into their parts, down to one tensor. `slots` as for plan_weights(). Where not everything stays,
/// experts (find_expert_layers()) have a share of the budget of their own (share_weight_memory()),
/// and a token uses `experts_per_token` of them in each layer, or all: 0. Throws Error:
/// kOutOfMemory for a budget that is too small, with the least that works and the tensor that sets
/// it; kInvalidArgument for a table without tensors; kUnsupported for a tensor with strides.
/// Thread-safe.
[[nodiscard]] PENSTOCK_API WeightForecast forecast_weights(const TensorTable& table,
                                                           std::uint64_t memory_bytes,
                                                           std::uint32_t slots = 2,
                                                           std::uint64_t experts_per_token = 0);

/// Seconds of a pass (a token, when decoding) of a plan: the device reads `bytes_per_second`, one
/// unit after the other, each as soon as it has a slot; a unit is computed when it is there and the
/// one before it is done. `compute_seconds`: of computing a whole pass with all weights in memory,
/// which each unit has a share of by its bytes. With 0 the result is the bound of the device.
/// Throws kInvalidArgument for a rate that is not above 0, and for negative seconds. Thread-safe.
[[nodiscard]] PENSTOCK_API double pass_seconds(const WeightPlan& plan, double bytes_per_second,
                                               double compute_seconds = 0);
/// The same with experts, which are read before all else when their layer has chosen them, and
/// which the layer waits for.
[[nodiscard]] PENSTOCK_API double pass_seconds(const WeightForecast& forecast,
                                               double bytes_per_second, double compute_seconds = 0);

/// Bytes a second that the files of a model are read at, past the page cache, each from all folders
/// that have it; measured for about `time`, all folders at once. Throws Error: kInvalidArgument for
/// a folder whose files are empty; errors of the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API double measure_weight_rate(
    Engine& engine, const WeightFolders& model,
    std::chrono::nanoseconds time = std::chrono::seconds(1),
    const FileSystem& files = FileSystem::local());

/// Bytes a second that `threads` threads (0: one less than the process may use, one at least) read
/// of memory that no cache holds; measured for about `time`. A token of a batch of 1 uses each
/// weight once, so the bytes of a pass by this are the least that its computation takes; products
/// of 16-bit numbers often take longer. Throws Error (kOutOfMemory, kSystem for a thread that
/// cannot be had). Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API double measure_memory_rate(
    unsigned threads = 0, std::chrono::nanoseconds time = std::chrono::milliseconds(500));

}  // namespace penstock
