// SPDX-License-Identifier: Apache-2.0
// The shares of a checkpoint that the ranks of a parallel job write.
#pragma once

#include "plan/questions/optimizer.hpp"

#include <penstock/plan.hpp>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace penstock::plan {

// Experts are divided as Megatron-LM does it (megatron/core/parallel_state.py): the ranks of a
// stage are expert_tensor x experts x expert_data of them, next to tensor x data of all else.
// Optimizer states of experts are divided over the ranks of expert data parallelism alone, in
// Megatron-LM's distributed optimizer and in DeepSpeed (runtime/zero/stage_1_and_2.py).
struct ParallelLayout {
    std::uint64_t tensor = 1;
    std::uint64_t pipeline = 1;
    std::uint64_t data = 1;
    std::uint64_t zero = 0;
    std::uint64_t experts = 1;        ///< ranks that divide the experts of a layer
    std::uint64_t expert_tensor = 1;  ///< ranks that divide each tensor of an expert

    [[nodiscard]] std::uint64_t ranks() const { return tensor * pipeline * data; }
    [[nodiscard]] std::uint64_t expert_data() const {
        return tensor * data / (expert_tensor * experts);
    }
    [[nodiscard]] bool divides_experts() const { return experts > 1 || expert_tensor != tensor; }
};

/// A part of the parameters of a stage, of which all ranks that have it have equal shares.
struct HeldShare {
    std::uint64_t elements = 0;         ///< parameters that a rank has
    double others_bytes = 0;            ///< of master weights and states, before ZeRO divides them
    double weights_bytes = 0;           ///< that a writing rank writes of them
    double optimizer_bytes = 0;         ///< that a writing rank writes of master weights and states
    std::uint64_t weights_writers = 0;  ///< ranks of this stage that write weights
    std::uint64_t optimizer_writers = 0;  ///< ranks of this stage that write optimizer states

    [[nodiscard]] double all_bytes() const {
        return weights_bytes * static_cast<double>(weights_writers) +
               optimizer_bytes * static_cast<double>(optimizer_writers);
    }
};

/// One stage of the pipeline.
struct StageShare {
    std::uint64_t first_layer = 0;
    std::uint64_t layers = 0;
    HeldShare dense;    ///< all but the experts, where these are divided
    HeldShare experts;  ///< nothing where they are not

    /// The bytes of the rank that writes most.
    [[nodiscard]] double rank_bytes() const {
        return dense.weights_bytes + dense.optimizer_bytes + experts.weights_bytes +
               experts.optimizer_bytes;
    }
    [[nodiscard]] double all_bytes() const { return dense.all_bytes() + experts.all_bytes(); }
    /// Ranks that write one or the other. Those that write a part are the first of the stage.
    [[nodiscard]] std::uint64_t writers() const;
};

/// The layout of the options. Throws Error (kInvalidArgument) that names what does not divide.
[[nodiscard]] ParallelLayout layout_of(std::string_view verb, const CheckpointOptions& options);

/// A share for each stage. `weights`: bytes a parameter; `others` likewise, or nothing where
/// `optimizer` has them by the shape of a rank's part of each tensor. Layers that do not divide go
/// to the first stages, one more each, as DLIO and Megatron-LM do it. Throws Error
/// (kInvalidArgument) where ranks do not divide the heads, the inner width or the experts, and
/// where there are more stages than layers.
[[nodiscard]] std::vector<StageShare> shares_of(std::string_view verb, const ModelParameters& model,
                                                const ParallelLayout& layout, double weights,
                                                const std::optional<double>& others,
                                                const OptimizerBytes& optimizer);

}  // namespace penstock::plan
