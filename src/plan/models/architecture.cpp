// SPDX-License-Identifier: Apache-2.0
#include "plan/models/architecture.hpp"

#include "base/raise.hpp"
#include "base/text/near.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace penstock::plan {

namespace {

constexpr std::string_view kOperation = "plan";
constexpr std::string_view kSource = "config.json, counted as transformers 5.23 builds the model";

std::vector<Architecture> architectures() {
    std::vector<Architecture> all;
    for (const auto table : {gated_decoders(), other_decoders(), encoders()}) {
        all.insert(all.end(), table.begin(), table.end());
    }
    std::sort(all.begin(), all.end(), [](const Architecture& a, const Architecture& b) {
        return a.model_type < b.model_type;
    });
    return all;
}

base::Failure refused(ErrorCode code, const std::string& message) {
    return base::fail(base::error(code, kOperation, message));
}

base::Result<ModelParameters> counted(std::string_view config_json) {
    PENSTOCK_TRY(fields, ConfigFields::parse(config_json));
    const std::string type = fields.text("model_type", "");
    if (!fields.wrong().empty()) {
        return refused(ErrorCode::kInvalidArgument, fields.wrong());
    }
    const std::vector<Architecture> all = architectures();
    std::vector<std::string_view> names(all.size());
    std::transform(all.begin(), all.end(), names.begin(),
                   [](const Architecture& known) { return known.model_type; });
    const auto found = std::find(names.begin(), names.end(), type);
    if (found == names.end()) {
        const std::string_view near = base::nearest(type, names);
        return refused(
            ErrorCode::kUnsupported,
            fmt::format("{}; {}expected one of {}, or a number of parameters in place of the file",
                        type.empty()
                            ? std::string("config.json has no model_type")
                            : fmt::format("model_type \"{}\" is not known", type.substr(0, 60)),
                        near.empty() ? std::string() : fmt::format("did you mean {}? ", near),
                        fmt::join(names, ", ")));
    }
    fields.set_type(type);
    ArchitectureBuilder builder;
    all[static_cast<std::size_t>(found - names.begin())].describe(fields, builder);
    if (!fields.wrong().empty()) {
        return refused(ErrorCode::kInvalidArgument, "config.json: " + fields.wrong());
    }
    PENSTOCK_TRY(model, builder.finish(type));
    model.assumed = fields.assumed();
    model.source = kSource;
    return model;
}

}  // namespace

Layers layers_from(std::uint64_t first, std::uint64_t count) {
    Layers out(static_cast<std::size_t>(count));
    std::iota(out.begin(), out.end(), static_cast<std::uint32_t>(first));
    return out;
}

std::uint64_t ArchitectureBuilder::units_of(TensorSplit split) const {
    switch (split) {
        case TensorSplit::kHeads:
            return shape_.heads;
        case TensorSplit::kKeyHeads:
            return shape_.key_heads;
        case TensorSplit::kInner:
            return shape_.inner;
        case TensorSplit::kVocabulary:
            return shape_.vocabulary;
        case TensorSplit::kWhole:
            break;
    }
    return 0;
}

void ArchitectureBuilder::add(TensorPlace place, const Layers& layers, const std::string& prefix,
                              Rows rows) {
    for (const Row& row : rows) {
        const Exact columns = row.columns.value_or(1);
        TensorGroup group;
        group.name = prefix + row.name + (row.parts == kNamed ? "" : ".weight");
        group.rows = row.rows.value();
        group.columns = columns.value();
        group.matrix = row.columns.has_value();
        group.in_a_layer = row.count;
        group.layers = layers;
        group.place = place;
        group.split = row.by.split;
        group.units = units_of(row.by.split);
        group.divides_columns = row.by.columns;
        total_ += row.rows * columns * Exact(group.tensors());
        if (group.parameters() > 0) {
            model_.groups.push_back(std::move(group));
        }
        if (row.parts == kBias) {
            // Ranks that divide the inputs add up their outputs, and each has the whole bias.
            add(place, layers, prefix,
                {{row.name + ".bias", kNamed, row.rows, {}, row.by.columns ? Division{} : row.by}});
        }
    }
}

void ArchitectureBuilder::cache(const Exact& elements, std::uint64_t windowed,
                                std::uint64_t window) {
    cached_ = elements * shape_.layers;
    model_.cache = KeyValueCache{elements.value(), shape_.layers - windowed, windowed, window};
}

base::Result<ModelParameters> ArchitectureBuilder::finish(std::string_view name) {
    if (!total_.fits() || !cached_.fits() || total_.value() > kTensorParametersMax) {
        return refused(ErrorCode::kInvalidArgument,
                       fmt::format("config.json: the dimensions of this {} give more than 2^62 "
                                   "parameters; expected those of a model",
                                   name));
    }
    if (total_.value() == 0) {
        return refused(ErrorCode::kInvalidArgument,
                       fmt::format("config.json: the dimensions of this {} give no parameters; "
                                   "expected those of a model",
                                   name));
    }
    model_.name = name;
    model_.layers = static_cast<std::uint32_t>(shape_.layers);
    model_.parameters = total_.value();
    return std::move(model_);
}

std::string architecture_named(ConfigFields& fields, const char* otherwise) {
    const ConfigValue* named = fields.find("architectures");
    if (named != nullptr && named->kind != ConfigValue::Kind::kList) {
        fields.refuse("architectures is no list; expected a list with the name of a class");
    }
    if (named == nullptr || named->texts.empty()) {
        fields.assume(fmt::format("architectures is not in the file; {}", otherwise));
        return {};
    }
    return named->texts.front();
}

bool has_token_head(ConfigFields& fields) {
    static constexpr std::array<std::string_view, 4> kWithHead{
        "ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM"};
    const std::string named =
        architecture_named(fields, "a model with a head for tokens was assumed");
    const std::string_view name = named;
    if (name.empty()) {
        return true;
    }
    if (std::any_of(kWithHead.begin(), kWithHead.end(),
                    [&](std::string_view end) { return name.ends_with(end); })) {
        return true;
    }
    if (name.ends_with("Model")) {
        return false;
    }
    fields.assume(fmt::format(
        "architectures names \"{}\"; a head for tokens was counted in place of its own head",
        name.substr(0, 60)));
    return true;
}

bool is_tied(ConfigFields& fields, bool fallback) {
    if (fields.find("tie_word_embeddings") == nullptr) {
        fields.assume(
            fmt::format("tie_word_embeddings is not in the file; {} was assumed, "
                        "transformers' default for this model_type",
                        fallback));
    }
    return fields.flag("tie_word_embeddings", fallback);
}

ModelParameters read_model(std::string_view config_json) {
    return base::unwrap(counted(config_json));
}

std::vector<std::string> model_types() {
    std::vector<std::string> out;
    for (const Architecture& known : architectures()) {
        out.emplace_back(known.model_type);
    }
    return out;
}

}  // namespace penstock::plan
