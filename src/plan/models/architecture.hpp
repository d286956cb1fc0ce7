// SPDX-License-Identifier: Apache-2.0
// The tensors of a model, collected while an architecture describes itself, and the table of the
// architectures that are known.
#pragma once

#include "base/result.hpp"
#include "plan/exact.hpp"
#include "plan/models/config_fields.hpp"

#include <penstock/plan_model.hpp>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

/// The widths that most models have; what divides their tensors is among them.
struct Shape {
    std::uint64_t vocabulary = 0;
    std::uint64_t hidden = 0;
    std::uint64_t inner = 0;
    std::uint64_t layers = 0;
    std::uint64_t heads = 0;
    std::uint64_t key_heads = 0;
    std::uint64_t head_dim = 0;
};

/// How tensor parallelism divides a tensor: the rows (outputs), or the columns (inputs).
struct Division {
    TensorSplit split = TensorSplit::kWhole;
    bool columns = false;
};
inline constexpr Division kByVocabulary{TensorSplit::kVocabulary};
inline constexpr Division kByHeads{TensorSplit::kHeads};
inline constexpr Division kByHeadInputs{TensorSplit::kHeads, true};
inline constexpr Division kByKeyHeads{TensorSplit::kKeyHeads};
inline constexpr Division kByInner{TensorSplit::kInner};
inline constexpr Division kByInnerInputs{TensorSplit::kInner, true};

/// The tensors of a row: one of exactly its name, "NAME.weight", or that and "NAME.bias".
enum Parts : std::uint8_t { kNamed, kWeight, kBias };

/// A vector, or with columns a matrix. A row without elements is left out: the model lacks it.
struct Row {
    std::string name;
    Parts parts = kWeight;
    Exact rows;
    std::optional<Exact> columns = std::nullopt;
    Division by = {};
    std::uint64_t count = 1;  // in each layer
};
using Rows = std::initializer_list<Row>;

using Layers = std::vector<std::uint32_t>;

/// 0, 1, ..., count - 1, moved by `first`.
[[nodiscard]] Layers layers_from(std::uint64_t first, std::uint64_t count);

class ArchitectureBuilder {
public:
    /// The number of layers, and what divides the rows that follow.
    void set_shape(const Shape& shape) { shape_ = shape; }
    /// Another inner width for the rows that follow.
    void set_inner(std::uint64_t inner) { shape_.inner = inner; }

    // The tensors before the layers, after them, in every layer, and in some. `prefix` begins each
    // name.
    void first(const std::string& prefix, Rows rows) { add(TensorPlace::kBegin, {}, prefix, rows); }
    void last(const std::string& prefix, Rows rows) { add(TensorPlace::kEnd, {}, prefix, rows); }
    void each(const std::string& prefix, Rows rows) {
        each(layers_from(0, shape_.layers), prefix, rows);
    }
    void each(const Layers& layers, const std::string& prefix, Rows rows) {
        add(TensorPlace::kLayer, layers, prefix, rows);
    }

    /// Keys and values: so many elements a token in each layer, of which `windowed` layers keep the
    /// last `window` tokens.
    void cache(const Exact& elements, std::uint64_t windowed = 0, std::uint64_t window = 0);

    /// Everything, or an error when the parameters do not fit into 64 bits.
    [[nodiscard]] base::Result<ModelParameters> finish(std::string_view name);

private:
    void add(TensorPlace place, const Layers& layers, const std::string& prefix, Rows rows);
    [[nodiscard]] std::uint64_t units_of(TensorSplit split) const;

    Shape shape_;
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

/// The SigLIP vision tower, and what joins it to a language model of width `hidden` as Gemma 3
/// does.
void describe_siglip(ConfigFields& vision, ArchitectureBuilder& out, std::uint64_t hidden);

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
