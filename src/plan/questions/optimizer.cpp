// SPDX-License-Identifier: Apache-2.0
#include "plan/questions/optimizer.hpp"

#include "plan/exact.hpp"
#include "plan/fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace penstock::plan {

namespace {

constexpr double kWord = 4;  // bytes of fp32
// bitsandbytes, optim/optimizer.py: a scale in fp32 for each block of 256 states of a byte, and
// states in fp32 for a tensor of fewer than 4,096 elements.
constexpr std::uint64_t kBlockElements = 256;
constexpr std::uint64_t kSmallElements = 4096;

struct Row {
    const char* name;
    double weights;
    double master;
    double states;
    const char* formula;
    const char* source;
};

constexpr std::array<Row, 10> kRows{
    {{"snia", 2, 4, 8, "2 (bf16 weights) + 4 (fp32 master) + 4 (m) + 4 (v)",
      "SNIA's talk: 14 bytes a parameter; DLIO has the same"},
     {"adam", 2, 4, 8, "2 (bf16 weights) + 4 (fp32 master) + 4 (m) + 4 (v)",
      "Adam or AdamW with mixed precision, as Megatron-LM and DeepSpeed save it"},
     {"adam-fp32", 4, 0, 8, "4 (fp32 weights) + 4 (m) + 4 (v)", "torch.optim.AdamW in fp32"},
     {"adam-bf16", 2, 0, 4, "2 (bf16 weights) + 2 (m) + 2 (v)",
      "torch.optim.AdamW with weights in bf16: its states have the type of the weights"},
     {"adam-8bit", 2, 0, 2 + 2 * kWord / kBlockElements,
      "2 (bf16 weights) + 1 (m) + 1 (v) + 8 / 256 (scales of blocks)",
      "bitsandbytes' AdamW8bit: a scale in fp32 for each 256 states; tensors of fewer than 4,096 "
      "elements have states in fp32"},
     {"lion", 2, 4, 4, "2 (bf16 weights) + 4 (fp32 master) + 4 (m)", "arXiv 2302.06675"},
     {"sgd-momentum", 2, 4, 4, "2 (bf16 weights) + 4 (fp32 master) + 4 (momentum)",
      "torch.optim.SGD with momentum, mixed precision"},
     {"sgd", 2, 4, 0, "2 (bf16 weights) + 4 (fp32 master)",
      "torch.optim.SGD without momentum, mixed precision"},
     {"adafactor", 2, 4, 0,
      "2 (bf16 weights) + 4 (fp32 master) + 4 (rows + columns) of each matrix, 4 of each element "
      "of "
      "a vector",
      "arXiv 1804.04235, without momentum"},
     {"weights", 2, 0, 0, "2 (bf16 weights)", "the weights alone, as for inference"}}};

OptimizerBytes bytes_of(const Row& row) {
    return {row.name, row.weights, row.master, row.states, row.formula, row.source};
}

constexpr std::string_view kFactored = "adafactor";
constexpr std::string_view kByteWise = "adam-8bit";

double factored_states(std::uint64_t rows, std::uint64_t columns, bool matrix) {
    return kWord * (matrix ? static_cast<double>(rows) + static_cast<double>(columns)
                           : static_cast<double>(rows));
}

double byte_states(std::uint64_t elements) {
    return elements < kSmallElements
               ? 2 * kWord * static_cast<double>(elements)
               : 2 * (static_cast<double>(elements) +
                      kWord * static_cast<double>(divided_up(elements, kBlockElements)));
}

}  // namespace

std::vector<OptimizerBytes> optimizers() {
    std::vector<OptimizerBytes> out;
    std::transform(kRows.begin(), kRows.end(), std::back_inserter(out), bytes_of);
    return out;
}

OptimizerBytes optimizer_named(std::string_view verb, std::string_view name) {
    std::array<std::string_view, kRows.size()> known;
    for (std::size_t i = 0; i < kRows.size(); ++i) {
        if (kRows[i].name == name) {
            return bytes_of(kRows[i]);
        }
        known[i] = kRows[i].name;
    }
    refuse_word(verb, "optimizer", name, known);
}

double other_bytes(const OptimizerBytes& optimizer, std::uint64_t rows, std::uint64_t columns,
                   bool matrix) {
    const std::uint64_t elements = rows * columns;
    return optimizer.master * static_cast<double>(elements) +
           (optimizer.name == kFactored ? factored_states(rows, columns, matrix)
                                        : byte_states(elements));
}

StateBytes state_bytes(const ModelParameters& model, const OptimizerBytes& optimizer,
                       const std::optional<double>& bytes_per_parameter) {
    const auto parameters = static_cast<double>(model.parameters);
    const bool by_shape = optimizer.name == kFactored || optimizer.name == kByteWise;
    StateBytes out;
    if (bytes_per_parameter) {
        out.per_parameter = *bytes_per_parameter;
        out.source = "given";
    } else if (by_shape && !model.groups.empty()) {
        double others = 0;
        for (const TensorGroup& group : model.groups) {
            others += other_bytes(optimizer, group.rows, group.columns, group.matrix) *
                      static_cast<double>(group.tensors());
        }
        out.bytes = parameters * optimizer.weights + others;
        out.per_parameter = out.bytes / parameters;
        out.formula = fmt::format("[parameters * {} + the states of each tensor by its shape]",
                                  optimizer.weights + optimizer.master);
        out.source = fmt::format("{}: {}", optimizer.formula, optimizer.source);
        out.by_shape = true;
        return out;
    } else {
        out.per_parameter = optimizer.weights + optimizer.master + optimizer.states;
        out.source = fmt::format("{}: {}", optimizer.formula, optimizer.source);
    }
    out.bytes = parameters * out.per_parameter;
    out.formula = "parameters * bytes_per_parameter";
    return out;
}

}  // namespace penstock::plan
