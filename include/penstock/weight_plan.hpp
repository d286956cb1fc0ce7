// SPDX-License-Identifier: Apache-2.0
// The memory, the reading and the seconds that a model needs when its weights are streamed, known
// before anything is run.
//
//     const penstock::TensorTable table = penstock::inspect(engine, "model/");
//     const penstock::WeightForecast forecast = penstock::forecast_weights(table, 8ull << 30);
//     const double seconds = penstock::pass_seconds(forecast.plan, 3e9);
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/weight_folders.hpp>
#include <penstock/weight_stream.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock {

/// The units of a model, found in the names of its tensors. A numbered group is a layer, and a
/// unit: "model.layers.0.mlp.up.weight" is in "model.layers.0". A tensor outside of layers is in
/// the unit of its module: "lm_head.weight" is in "lm_head". Layers come by number; otherwise the
/// order is that of the table. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<WeightUnit> find_weight_units(const TensorTable& table);

/// What a budget of memory would do.
struct WeightForecast {
    WeightPlan plan;
    std::uint64_t weight_bytes = 0;  ///< of all tensors of the table
    /// Embeddings that are read by row, and so are in no unit and in no budget: tensors with two
    /// dimensions, outside of layers, with a name of an embedding ("embed_tokens", "wte"). None
    /// where everything stays. Where the table has no other tensor of the shape of the largest
    /// one, the head is taken to be tied to that, and then it is a unit too.
    std::vector<std::string> rows;
    std::uint64_t least_memory_bytes = 0;  ///< the smallest budget that works
    std::string least_tensor;              ///< whose size sets it
};

/// The plan for the units of find_weight_units(); those that are too large for the budget are cut
/// into their parts, down to one tensor. `slots` as for plan_weights(). Throws Error: kOutOfMemory
/// for a budget that is too small, with the least that works and the tensor that sets it;
/// kInvalidArgument for a table without tensors; kUnsupported for a tensor with strides.
/// Thread-safe.
[[nodiscard]] PENSTOCK_API WeightForecast forecast_weights(const TensorTable& table,
                                                           std::uint64_t memory_bytes,
                                                           std::uint32_t slots = 2);

/// Seconds of a pass (a token, when decoding) of a plan: the device reads `bytes_per_second`, one
/// unit after the other, each as soon as it has a slot; a unit is computed when it is there and the
/// one before it is done. `compute_seconds`: of computing a whole pass with all weights in memory,
/// which each unit has a share of by its bytes. With 0 the result is the bound of the device.
/// Throws kInvalidArgument for a rate that is not above 0, and for negative seconds. Thread-safe.
[[nodiscard]] PENSTOCK_API double pass_seconds(const WeightPlan& plan, double bytes_per_second,
                                               double compute_seconds = 0);

/// Bytes a second that the files of a model are read at, past the page cache, each from all folders
/// that have it; measured for about `time`, all folders at once. Throws Error: kInvalidArgument for
/// a folder whose files are empty; errors of the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API double measure_weight_rate(
    Engine& engine, const WeightFolders& model,
    std::chrono::nanoseconds time = std::chrono::seconds(1),
    const FileSystem& files = FileSystem::local());

}  // namespace penstock
