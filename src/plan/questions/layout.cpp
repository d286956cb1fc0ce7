// SPDX-License-Identifier: Apache-2.0
#include "plan/questions/layout.hpp"

#include "plan/amount.hpp"
#include "plan/exact.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace penstock::plan {

namespace {

constexpr std::uint64_t kRanksMax = 1ULL << 32U;
constexpr std::uint64_t kStagesMax = 100'000;

std::uint64_t whole(const std::optional<double>& value) {
    return value ? static_cast<std::uint64_t>(*value) : 1;
}

std::string_view unit_name(TensorSplit split) {
    switch (split) {
        case TensorSplit::kHeads:
            return "attention heads";
        case TensorSplit::kKeyHeads:
            return "key/value heads";
        case TensorSplit::kInner:
            return "inner width";
        case TensorSplit::kVocabulary:
            return "vocabulary";
        case TensorSplit::kWhole:
            break;
    }
    return "tensor";
}

struct LocalShape {
    std::uint64_t rows = 0;
    std::uint64_t columns = 0;
    std::uint64_t elements = 0;
};

// The part of one such tensor that a rank has; `by`: the option that divides it.
LocalShape divided(std::string_view verb, const TensorGroup& group, std::uint64_t tensor,
                   const char* by) {
    const std::uint64_t all = group.rows * group.columns;
    const std::uint64_t units = group.units;
    std::uint64_t parts = tensor;
    switch (group.split) {
        case TensorSplit::kWhole:
            return {group.rows, group.columns, all};
        case TensorSplit::kVocabulary: {
            const std::uint64_t rows = divided_up(units, tensor) * (group.rows / units);
            return {rows, group.columns, rows * group.columns};
        }
        case TensorSplit::kKeyHeads:
            if (tensor > units && tensor % units == 0) {
                parts = units;
            }
            break;
        case TensorSplit::kHeads:
        case TensorSplit::kInner:
            break;
    }
    if (units % parts != 0) {
        refuse(verb,
               fmt::format("{}: got {}; the model's {} ({}) are {}; expected a divisor of that", by,
                           tensor, unit_name(group.split), group.name, units));
    }
    return group.divides_columns ? LocalShape{group.rows, group.columns / parts, all / parts}
                                 : LocalShape{group.rows / parts, group.columns, all / parts};
}

struct Stages {
    std::uint64_t count = 1;
    std::uint64_t each = 0;
    std::uint64_t more = 0;  // the first so many have one layer more

    [[nodiscard]] std::uint64_t of_layer(std::uint64_t layer) const {
        const std::uint64_t in_larger = more * (each + 1);
        return layer < in_larger ? layer / (each + 1) : more + (layer - in_larger) / each;
    }
    [[nodiscard]] std::uint64_t first(std::uint64_t stage) const {
        return stage * each + std::min(stage, more);
    }
};

}  // namespace

ParallelLayout layout_of(std::string_view verb, const CheckpointOptions& options) {
    ParallelLayout out{whole(options.tensor),  whole(options.pipeline),
                       whole(options.data),    static_cast<std::uint64_t>(options.zero),
                       whole(options.experts), 1};
    out.expert_tensor =
        options.expert_tensor ? static_cast<std::uint64_t>(*options.expert_tensor) : out.tensor;
    if (out.zero > 3) {
        refuse(verb, fmt::format("zero: got {}; expected a stage of ZeRO, 0 to 3", out.zero));
    }
    const Exact model_ranks = Exact(out.tensor) * out.pipeline;
    if (!model_ranks.fits() || model_ranks.value() > kRanksMax || out.pipeline > kStagesMax) {
        refuse(verb, fmt::format("tensor x pipeline: got {} x {}; expected 2^32 ranks at most, and "
                                 "{} stages at most",
                                 out.tensor, out.pipeline, kStagesMax));
    }
    if (options.ranks) {
        const auto ranks = static_cast<std::uint64_t>(*options.ranks);
        if (!options.data) {
            if (ranks % model_ranks.value() != 0) {
                const std::uint64_t below = ranks / model_ranks.value() * model_ranks.value();
                refuse(verb, fmt::format(
                                 "ranks: got {}, no multiple of tensor x pipeline = {} x {} = {}; "
                                 "expected {}{}",
                                 ranks, out.tensor, out.pipeline, model_ranks.value(),
                                 below == 0 ? std::string() : fmt::format("{} or ", below),
                                 below + model_ranks.value()));
            }
            out.data = ranks / model_ranks.value();
        }
        const Exact all = model_ranks * out.data;
        if (!all.fits() || all.value() != ranks) {
            refuse(verb,
                   fmt::format("ranks: got {}; tensor x pipeline x data = {} x {} x {} are {}; "
                               "leave one of them out, or make them agree",
                               ranks, out.tensor, out.pipeline, out.data,
                               all.fits() ? fmt::format("{}", all.value()) : "too many"));
        }
    }
    const Exact all = model_ranks * out.data;
    if (!all.fits() || all.value() > kRanksMax) {
        refuse(verb, fmt::format("data: got {}; with tensor {} and pipeline {} these are more than "
                                 "2^32 ranks",
                                 out.data, out.tensor, out.pipeline));
    }
    const Exact expert_ranks = Exact(out.experts) * out.expert_tensor;
    if (!expert_ranks.fits() || (out.tensor * out.data) % expert_ranks.value() != 0) {
        refuse(verb,
               fmt::format("experts: got {} with expert_tensor {}; expected that their product "
                           "divides tensor x data = {} x {}, the ranks of a stage",
                           out.experts, out.expert_tensor, out.tensor, out.data));
    }
    if (out.zero == 3 && out.divides_experts()) {
        refuse(verb,
               "zero: got 3 with experts that ranks divide; DeepSpeed refuses that (\"MoE not "
               "supported with Stage 3\"), and no other source says who writes what; expected "
               "zero 0 to 2, or neither experts nor expert_tensor");
    }
    if (out.zero >= 2 && out.pipeline > 1) {
        refuse(verb,
               fmt::format("zero: got {} with pipeline {}; DeepSpeed divides gradients and "
                           "weights (stages 2 and 3) only without a pipeline; expected zero 0 "
                           "or 1, or pipeline 1",
                           out.zero, out.pipeline));
    }
    return out;
}

std::uint64_t StageShare::writers() const {
    const auto of = [](const HeldShare& held) {
        return std::max(held.weights_bytes > 0 ? held.weights_writers : 0,
                        held.optimizer_bytes > 0 ? held.optimizer_writers : 0);
    };
    return std::max(of(dense), of(experts));
}

namespace {

// Whether the ranks that divide experts have a share of it.
bool is_of_experts(const TensorGroup& group, const ParallelLayout& layout) {
    return group.in_a_layer > 1 && layout.divides_experts();
}

void check_experts(std::string_view verb, const ModelParameters& model,
                   const ParallelLayout& layout) {
    if (!layout.divides_experts()) {
        return;
    }
    const auto found = std::find_if(model.groups.begin(), model.groups.end(),
                                    [](const TensorGroup& group) { return group.in_a_layer > 1; });
    if (found == model.groups.end()) {
        refuse(verb, fmt::format("experts: got {}; {}; expected neither experts nor expert_tensor",
                                 layout.experts,
                                 model.groups.empty()
                                     ? fmt::format("only the number of parameters of {} is known",
                                                   model.name)
                                     : fmt::format("{} has no experts", model.name)));
    }
    if (found->in_a_layer % layout.experts != 0) {
        refuse(verb,
               fmt::format("experts: got {}; a layer of {} has {}; expected a divisor of that",
                           layout.experts, model.name, found->in_a_layer));
    }
}

// Sets what the ranks write of a part: ZeRO divides states, and with stage 3 weights, over `data`
// ranks; `ranks` have a share before that.
void divide(HeldShare& held, const ParallelLayout& layout, double weights,
            const std::optional<double>& others, std::uint64_t ranks, std::uint64_t data) {
    const auto whole_share = static_cast<double>(held.elements);
    const auto shared = static_cast<double>(divided_up(held.elements, data));
    held.weights_bytes = weights * (layout.zero == 3 ? shared : whole_share);
    held.weights_writers = ranks * (layout.zero == 3 ? data : 1);
    held.optimizer_bytes =
        others ? *others * (layout.zero >= 1 ? shared : whole_share) : held.others_bytes;
    held.optimizer_writers = ranks * (layout.zero >= 1 ? data : 1);
}

}  // namespace

std::vector<StageShare> shares_of(std::string_view verb, const ModelParameters& model,
                                  const ParallelLayout& layout, double weights,
                                  const std::optional<double>& others,
                                  const OptimizerBytes& optimizer) {
    check_experts(verb, model, layout);
    if (model.layers > 0 && layout.pipeline > model.layers) {
        refuse(verb,
               fmt::format("pipeline: got {}; {} has {} layers; expected as many stages at most",
                           layout.pipeline, model.name, model.layers));
    }
    const Stages stages{layout.pipeline, model.layers / layout.pipeline,
                        model.layers % layout.pipeline};
    std::vector<StageShare> out(layout.pipeline);
    for (std::uint64_t i = 0; i < layout.pipeline; ++i) {
        out[i].first_layer = stages.first(i);
        out[i].layers = stages.first(i + 1) - out[i].first_layer;
        if (model.groups.empty()) {
            out[i].dense.elements = divided_up(model.parameters, layout.tensor * layout.pipeline);
        }
    }
    for (const TensorGroup& group : model.groups) {
        const bool expert = is_of_experts(group, layout);
        const LocalShape local = divided(verb, group, expert ? layout.expert_tensor : layout.tensor,
                                         expert ? "expert_tensor" : "tensor");
        const std::uint64_t count = group.in_a_layer / (expert ? layout.experts : 1);
        const double each =
            others ? 0 : other_bytes(optimizer, local.rows, local.columns, group.matrix);
        const auto add = [&](StageShare& stage) {
            HeldShare& held = expert ? stage.experts : stage.dense;
            held.elements += local.elements * count;
            held.others_bytes += each * static_cast<double>(count);
        };
        if (group.place != TensorPlace::kLayer) {
            add(group.place == TensorPlace::kBegin ? out.front() : out.back());
            continue;
        }
        for (const std::uint32_t layer : group.layers) {
            add(out[stages.of_layer(layer)]);
        }
    }
    for (StageShare& stage : out) {
        divide(stage.dense, layout, weights, others, layout.tensor, layout.data);
        divide(stage.experts, layout, weights, others, layout.expert_tensor * layout.experts,
               layout.expert_data());
    }
    return out;
}

}  // namespace penstock::plan
