// SPDX-License-Identifier: Apache-2.0
// What the answers of penstock::plan are made of, and the sizes of a model.
#pragma once

#include <penstock/error.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace penstock::plan {

// The answer of a question about storage: figures with their formula, their inputs and the source
// of each constant. Text, derivation, Markdown and JSON are made from the same data.

/// A number in a formula. Units are those of Figure.
struct Input {
    std::string name;
    double value = 0;
    std::string unit;
    std::string source;  ///< "given", "default", "computed", or the publication
};

/// A number of an answer. `value` is finite.
struct Figure {
    std::string name;   ///< an identifier: "read_bytes_per_second"
    std::string label;  ///< for people: "read rate"
    double value = 0;
    /// "B", "B/s", "B/sample" (bytes; texts show them in GB and GiB), "s", "1/s", "samples/s", ""
    /// for a plain number, "share" for 0 to 1, or a noun that is counted ("files").
    std::string unit;
    /// Names of inputs, numbers, + - * / ** ( ), sqrt, min, max, ceil, floor: an expression with
    /// the same meaning as in Python. Or a text in square brackets for a longer computation:
    /// "[99th percentile of the sum, by time]".
    std::string formula;
    std::vector<Input> inputs;
};

/// A text, or a number of the unit of its column.
using Cell = std::variant<std::string, double>;

struct Column {
    std::string name;   ///< an identifier
    std::string label;  ///< for people
    std::string unit;   ///< of the numbers, as in Figure; empty for texts and plain numbers
    bool wide = false;  ///< omitted in text, which has 80 columns; Markdown and JSON have it
};

struct Table {
    std::string name;
    std::string title;
    std::vector<Column> columns;
    std::vector<std::vector<Cell>> rows;  ///< each as long as `columns`
};

/// A curve; in text it is drawn with characters.
struct Series {
    std::string name;
    std::string label;
    std::string x_label;
    std::string x_unit;
    std::string y_label;
    std::string y_unit;
    std::vector<double> x;  ///< ascending
    std::vector<double> y;  ///< the same number
};

struct Answer {
    std::string verb;   ///< "train"
    std::string title;  ///< the question in words
    std::vector<Figure> figures;
    std::vector<Table> tables;
    std::vector<Series> series;
    std::vector<std::string> notes;  ///< sentences

    /// Throws Error (kInvalidArgument) for an unknown name, with the nearest one.
    [[nodiscard]] PENSTOCK_API const Figure& at(std::string_view name) const;
};

/// Lines have at most `columns` characters if words allow it. All of these are thread-safe.
[[nodiscard]] PENSTOCK_API std::string text_of(const Answer& answer, std::size_t columns = 80);
/// The derivation: each figure with its formula, its inputs and their sources.
[[nodiscard]] PENSTOCK_API std::string explain(const Answer& answer, std::size_t columns = 80);
[[nodiscard]] PENSTOCK_API std::string markdown_of(const Answer& answer);
/// The whole answer; numbers keep every digit.
[[nodiscard]] PENSTOCK_API std::string json_of(const Answer& answer);
/// Reads the text of json_of(). Throws Error (kInvalidArgument) with the place and what was
/// expected.
[[nodiscard]] PENSTOCK_API Answer answer_of_json(std::string_view json);

/// "6.10 GB/s (5.68 GiB/s)": a number with its unit, as texts show it.
[[nodiscard]] PENSTOCK_API std::string shown(double value, std::string_view unit);

// The parameters of a model, counted exactly from its config.json or from a preset, without torch
// and without the weights.
//
//     const auto model = penstock::plan::read_model(config_text);
//     std::cout << model.parameters;  // 8030261248

/// The part of a model that contains a tensor; it determines the pipeline stage.
enum class TensorPlace : std::uint8_t {
    kBegin,  ///< before the layers (embeddings): the first stage
    kLayer,  ///< in layers: the stage of the layer
    kEnd,    ///< after the layers (last norm, head): the last stage
};

/// The division of a tensor by tensor parallelism (as in Megatron-LM).
enum class TensorSplit : std::uint8_t {
    kWhole,       ///< not at all: every rank has a copy (norms, routers)
    kHeads,       ///< by attention heads
    kKeyHeads,    ///< by key/value heads; with more ranks than heads, each rank has a copy of one
    kInner,       ///< by the inner width of the feed-forward block
    kVocabulary,  ///< by rows of the vocabulary, padded to equal shares
};

/// Equal tensors of a model.
struct TensorGroup {
    std::string name;           ///< as in the files, "*" for the number of the layer
    std::uint64_t rows = 0;     ///< for a vector, its elements
    std::uint64_t columns = 1;  ///< 1 for a vector
    bool matrix = false;        ///< whether it has two dimensions (for factored optimizers)
    std::uint64_t in_a_layer =
        1;  ///< their number: of the experts, which expert parallelism divides; else 1
    std::vector<std::uint32_t> layers;  ///< the layers that have it; none outside of layers
    TensorPlace place = TensorPlace::kLayer;
    TensorSplit split = TensorSplit::kWhole;
    std::uint64_t units = 0;       ///< what `split` divides: heads, rows; 0 for kWhole
    bool divides_columns = false;  ///< `split` divides the columns of a matrix, else its rows

    /// The number of tensors: `in_a_layer` × layers.
    [[nodiscard]] std::uint64_t tensors() const noexcept {
        return in_a_layer * (place == TensorPlace::kLayer ? layers.size() : 1);
    }
    /// Elements of all of them. Never overflows: read_model() has checked it.
    [[nodiscard]] std::uint64_t parameters() const noexcept { return rows * columns * tensors(); }
};

/// The elements that a model keeps for each token of a sequence: keys and values, or with latent
/// attention the narrow vector that they are computed from.
struct KeyValueCache {
    std::uint64_t elements = 0;         ///< of one layer and one token, keys and values together
    std::uint64_t layers = 0;           ///< that keep all tokens
    std::uint64_t windowed_layers = 0;  ///< that keep the last `window` tokens
    std::uint64_t window = 0;
};

/// The properties of a model that matter for storage.
struct ModelParameters {
    std::string name;                 ///< the model_type, or the name of the preset
    std::uint64_t parameters = 0;     ///< all of them; shared (tied) ones count once
    std::uint32_t layers = 0;         ///< 0 if only the count is known
    std::vector<TensorGroup> groups;  ///< empty if only the count is known
    /// Nothing if only the count is known, and for encoders.
    std::optional<KeyValueCache> cache;
    /// A line for each field that the file lacks and for each choice that it leaves open: the
    /// field, the value that was assumed, and the source of that value.
    std::vector<std::string> assumed;
    std::string source;  ///< the origin of the figures
};

/// Counts the parameters of a Hugging Face model from the text of its config.json, exactly as
/// transformers builds it. A missing field has the default of transformers, and a line in
/// `assumed`. Throws Error: kInvalidArgument for text that is not JSON (with the offset), and for a
/// field that is negative, too large, of another type, or contradicts another one; kUnsupported for
/// an unknown model_type, with the nearest one and the whole list. Thread-safe; the text may be
/// hostile.
[[nodiscard]] PENSTOCK_API ModelParameters read_model(std::string_view config_json);

/// A model by its name: DLIO's Llamas ("dlio-llama-70b"), the sizes of SNIA's table ("175b"), or a
/// published model ("llama-3-70b"). Also any count: "13b", "1.5t", "70553706496". Throws Error
/// kInvalidArgument with the nearest names. Thread-safe.
[[nodiscard]] PENSTOCK_API ModelParameters model_named(std::string_view name);

/// The names of model_named(), in the order of size within their source.
[[nodiscard]] PENSTOCK_API std::vector<std::string> model_names();

/// The values of model_type that read_model() supports, sorted.
[[nodiscard]] PENSTOCK_API std::vector<std::string> model_types();

}  // namespace penstock::plan
