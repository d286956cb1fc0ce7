// SPDX-License-Identifier: Apache-2.0
// The tensors of a model, collected while an architecture describes itself, and the table of the
// architectures that are known.
#pragma once

#include "base/result.hpp"
#include "plan/exact.hpp"
#include "plan/models/config_fields.hpp"

#include <penstock/plan_model.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

/// How a tensor is divided, and by how many units at most.
struct Division {
    TensorSplit split = TensorSplit::kWhole;
    std::uint64_t units = 0;
    bool columns = false;  // of a matrix, in place of its rows
};

using Layers = std::vector<std::uint32_t>;

/// 0, 1, ..., count - 1, moved by `first`.
[[nodiscard]] Layers layers_from(std::uint64_t first, std::uint64_t count);

class ArchitectureBuilder {
public:
    void set_layers(std::uint64_t layers) { model_.layers = static_cast<std::uint32_t>(layers); }

    // Outside of layers.
    void matrix(TensorPlace place, std::string name, Exact rows, Exact columns, Division by = {});
    void vector(TensorPlace place, std::string name, Exact elements, Division by = {});
    // In each of `layers`; `count` times in each.
    void matrix(const Layers& layers, std::string name, Exact rows, Exact columns, Division by = {},
                std::uint64_t count = 1);
    void vector(const Layers& layers, std::string name, Exact elements, Division by = {},
                std::uint64_t count = 1);
    /// A linear layer, with its bias or without.
    void linear(const Layers& layers, const std::string& name, Exact outputs, Exact inputs,
                bool bias, Division by = {}, bool divides_inputs = false);

    /// Keys and values: so many elements a token in each layer, of which `windowed` layers keep the
    /// last `window` tokens.
    void cache(const Exact& elements, std::uint64_t layers, std::uint64_t windowed = 0,
               std::uint64_t window = 0);

    /// Everything, or an error when the parameters do not fit into 64 bits.
    [[nodiscard]] base::Result<ModelParameters> finish(std::string_view name);

private:
    void add(TensorGroup group, const Exact& rows, const Exact& columns);

    ModelParameters model_;
    Exact total_;
    Exact cached_;  // elements a token
};

using Describe = void (*)(ConfigFields& fields, ArchitectureBuilder& out);

struct Architecture {
    std::string_view model_type;
    Describe describe;
};

// Each file of architectures has a table.
[[nodiscard]] std::span<const Architecture> gated_decoders();
[[nodiscard]] std::span<const Architecture> other_decoders();
[[nodiscard]] std::span<const Architecture> encoders();

/// The first name in `architectures`; empty, and noted with `otherwise`, where the file lacks it.
/// Refuses what is no list.
[[nodiscard]] std::string architecture_named(ConfigFields& fields, const char* otherwise);

/// Whether the model has a head that makes tokens, by the first name in `architectures`
/// ("LlamaForCausalLM"; "LlamaModel" has none). One that is not known is taken to have it, and
/// noted.
[[nodiscard]] bool has_token_head(ConfigFields& fields);

/// Whether the head and the embedding are one tensor; a default is noted.
[[nodiscard]] bool is_tied(ConfigFields& fields, bool fallback);

}  // namespace penstock::plan
