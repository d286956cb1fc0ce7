// SPDX-License-Identifier: Apache-2.0
#include "plan/questions/layout_figures.hpp"

#include "plan/amount.hpp"
#include "plan/derive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace penstock::plan {

namespace {

bool has_layout(const CheckpointOptions& options) {
    return options.tensor || options.pipeline || options.experts || options.expert_tensor ||
           options.data || options.ranks || options.zero > 0;
}

void add_held(std::vector<Cell>& row, const HeldShare& held) {
    row.emplace_back(static_cast<double>(held.elements));
    row.emplace_back(held.weights_bytes);
    row.emplace_back(static_cast<double>(held.weights_writers));
    row.emplace_back(held.optimizer_bytes);
    row.emplace_back(static_cast<double>(held.optimizer_writers));
}

void add_held_columns(Table& table) {
    table.columns.push_back({"parameters", "parameters a rank", "", true});
    table.columns.push_back({"weights_bytes", "weights a rank", "B"});
    table.columns.push_back({"weights_writers", "by ranks", ""});
    table.columns.push_back({"optimizer_bytes", "optimizer a rank", "B"});
    table.columns.push_back({"optimizer_writers", "by ranks", ""});
}

Table table_of(const std::vector<StageShare>& stages, bool with_experts) {
    Table table{
        "stages",
        with_experts ? "What the ranks of each pipeline stage write, without experts"
                     : "What the ranks of each pipeline stage write",
        {{"stage", "stage", ""}, {"first_layer", "first layer", ""}, {"layers", "layers", ""}},
        {}};
    add_held_columns(table);
    for (std::size_t i = 0; i < stages.size(); ++i) {
        const StageShare& stage = stages[i];
        table.rows.push_back(row_of(static_cast<double>(i), static_cast<double>(stage.first_layer),
                                    static_cast<double>(stage.layers)));
        add_held(table.rows.back(), stage.dense);
    }
    return table;
}

Table table_of_experts(const std::vector<StageShare>& stages) {
    Table table{"experts", "What they write of the experts", {{"stage", "stage", ""}}, {}};
    add_held_columns(table);
    for (std::size_t i = 0; i < stages.size(); ++i) {
        table.rows.push_back(row_of(static_cast<double>(i)));
        add_held(table.rows.back(), stages[i].experts);
    }
    return table;
}

std::vector<Input> inputs_of(const CheckpointOptions& options, const ParallelLayout& layout) {
    const auto part = [&](const char* name, bool given, std::uint64_t used) {
        return Input{name, static_cast<double>(used), "", std::string(given ? kGiven : kDefault)};
    };
    std::vector<Input> out{part("tensor", options.tensor.has_value(), layout.tensor),
                           part("pipeline", options.pipeline.has_value(), layout.pipeline),
                           {"data", static_cast<double>(layout.data), "",
                            std::string(options.data    ? kGiven
                                        : options.ranks ? "ranks / (tensor * pipeline)"
                                                        : kDefault)},
                           part("zero", options.zero > 0, layout.zero)};
    if (layout.divides_experts()) {
        out.push_back(part("experts", options.experts.has_value(), layout.experts));
        out.push_back({"expert_tensor", static_cast<double>(layout.expert_tensor), "",
                       options.expert_tensor
                           ? std::string(kGiven)
                           : "tensor, as Megatron-LM has it (core/parallel_state.py)"});
        out.push_back({"expert_data", static_cast<double>(layout.expert_data()), "",
                       "tensor * data / (expert_tensor * experts), as Megatron-LM has it "
                       "(core/parallel_state.py)"});
    }
    return out;
}

// States follow the shape of a rank's part, which ZeRO hides.
void check_shapes(std::string_view verb, const ParallelLayout& layout,
                  const OptimizerBytes& optimizer) {
    if (layout.zero == 0) {
        return;
    }
    const bool factored = optimizer.states == 0;
    refuse(verb, fmt::format(
                     "zero: got {} with optimizer {}; with ZeRO it sees flat pieces of many "
                     "tensors in fp32 ({}), cut as the job's groups of parameters and buckets "
                     "are, which are not known; expected zero 0, another optimizer, or "
                     "bytes_per_parameter {} (2 weights + 4 master + {})",
                     layout.zero, optimizer.name, "DeepSpeed, runtime/zero/stage_1_and_2.py",
                     factored ? "10" : "8.03",
                     factored ? "4 of states, which flat pieces do not factor" : "2.03 of states"));
}

}  // namespace

void add_layout(Answer& out, std::string_view verb, const CheckpointOptions& options,
                const ModelParameters& model, const OptimizerBytes& optimizer,
                const StateBytes& state) {
    if (!has_layout(options)) {
        return;
    }
    const ParallelLayout layout = layout_of(verb, options);
    if (state.by_shape) {
        check_shapes(verb, layout, optimizer);
    }
    const double weights = std::min(optimizer.weights, state.per_parameter);
    const std::optional<double> others =
        state.by_shape ? std::nullopt : std::optional(state.per_parameter - weights);
    const std::vector<StageShare> stages =
        shares_of(verb, model, layout, weights, others, optimizer);
    const std::vector<Input> inputs = inputs_of(options, layout);
    double all = 0;
    double most = 0;
    double writers = 0;
    for (const StageShare& stage : stages) {
        all += stage.all_bytes();
        most = std::max(most, stage.rank_bytes());
        writers += static_cast<double>(stage.writers());
    }
    add_figure(out, {"ranks",
                     "ranks",
                     static_cast<double>(layout.ranks()),
                     "",
                     "tensor * pipeline * data",
                     {inputs[0], inputs[1], inputs[2]}});
    add_figure(out, {"files_bytes", "written by all ranks", all, "B",
                     "[sum over stages: bytes of a rank times the ranks that write]", inputs});
    add_figure(
        out,
        {"rank_bytes", "the most that a rank writes", most, "B",
         "[most of the stages: weights of a rank + master weights and states of a rank]", inputs});
    add_figure(out,
               {"writing_ranks", "ranks that write", writers, "",
                "[weights: replica 0, or all with ZeRO 3; states: replica 0, or all with ZeRO 1 "
                "to 3; of experts, a replica is one of expert_data]",
                inputs});
    const double over = all / out.at("checkpoint_bytes").value - 1;
    if (over > 1e-9) {
        out.notes.push_back(fmt::format(
            "The ranks together write {:.3g} % more than the state has, for tensors that tensor "
            "parallelism does not divide (norms{}) are in the file of each of its ranks.",
            100 * over, model.name.starts_with("dlio") ? ", embedding and head" : ""));
    }
    if (state.by_shape && layout.ranks() > 1) {
        out.notes.push_back(fmt::format(
            "Each rank runs {} on its part of each tensor: exact for parts as Megatron-LM cuts "
            "them, without ZeRO.",
            optimizer.name));
    }
    if (layout.divides_experts()) {
        out.notes.emplace_back(
            "Experts are divided as Megatron-LM does it; ZeRO 1 and 2 divide their states over the "
            "ranks of expert data parallelism (expert_data), as Megatron-LM and DeepSpeed do. "
            "Routers and shared experts are as all other tensors.");
    }
    if (model.groups.empty()) {
        out.notes.emplace_back(
            "Only the number of parameters is known, so equal shares were taken; a "
            "config.json gives the exact ones.");
    }
    out.tables.push_back(table_of(stages, layout.divides_experts()));
    if (layout.divides_experts()) {
        out.tables.push_back(table_of_experts(stages));
    }
}

}  // namespace penstock::plan
