// SPDX-License-Identifier: Apache-2.0
#include "state/match/comparison.hpp"

#include "state/match/prefix_hint.hpp"

#include <map>
#include <unordered_set>
#include <utility>

namespace penstock::state {

namespace {

// As torch prints a shape.
std::string shape_text(std::span<const std::uint64_t> shape) {
    std::string out = "torch.Size([";
    for (std::size_t i = 0; i < shape.size(); ++i) {
        out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    }
    return out + "])";
}

std::string list_text(std::string_view what, std::span<const std::string> names) {
    std::string out(what);
    for (std::size_t i = 0; i < names.size(); ++i) {
        out += (i == 0 ? ": \"" : ", \"") + names[i] + "\"";
    }
    return out + ". ";
}

// Why this tensor of the file cannot be read into that of the model. Empty: it can.
std::string difference(const DescribedTensor& file, const DescribedTensor& model) {
    // A number of torch 0.3 has one dimension.
    const bool is_number = model.shape.empty() && file.shape.size() == 1 && file.shape.front() == 1;
    if (file.shape != model.shape && !is_number) {
        return "size mismatch for " + model.name + ": copying a param with shape " +
               shape_text(file.shape) + " from checkpoint, the shape in current model is " +
               shape_text(model.shape) + ".";
    }
    if (!is_converted(file.dtype, model.dtype)) {
        return "type mismatch for " + model.name + ": " + file.dtype + " in the file, " +
               model.dtype + " in the current model.";
    }
    return {};
}

}  // namespace

Comparison compare_states(std::span<const DescribedTensor> file, std::span<const ModelTensor> model,
                          std::string_view under, bool strict) {
    Comparison out;
    const std::size_t prefix = under.empty() ? 0 : under.size() + 1;
    std::map<std::string_view, const DescribedTensor*> there;
    for (const DescribedTensor& one : file) {
        there.emplace(std::string_view(one.name).substr(prefix), &one);
    }
    std::unordered_set<std::string_view> own;
    std::unordered_set<std::string_view> read;
    std::vector<std::string> taken;
    std::vector<std::string> differences;
    for (const auto& [tensor, memory] : model) {
        own.insert(tensor.name);
        const auto found = there.find(tensor.name);
        if (found == there.end()) {
            continue;
        }
        read.insert(memory);
        taken.push_back(found->second->name);
        if (std::string text = difference(*found->second, tensor); !text.empty()) {
            differences.push_back(std::move(text));
        }
    }
    for (const auto& [tensor, memory] : model) {
        if (!there.contains(tensor.name) && !read.contains(memory)) {
            out.missing.push_back(tensor.name);
        }
    }
    for (const DescribedTensor& one : file) {
        if (std::string name = one.name.substr(prefix); !own.contains(name)) {
            out.unexpected.push_back(std::move(name));
        }
    }
    out.hint = prefix_hint("load_into", out.missing, out.unexpected, under);
    if (strict && !out.missing.empty()) {
        out.problems.push_back(list_text("Missing key(s) in state_dict", out.missing));
    }
    if (strict && !out.unexpected.empty()) {
        out.problems.push_back(list_text("Unexpected key(s) in state_dict", out.unexpected));
    }
    out.problems.insert(out.problems.end(), differences.begin(), differences.end());
    for (const auto& [scale, owner] : lost_scales(file, taken)) {
        out.problems.push_back(scale + " is a scale, zero point or table of " + owner +
                               ", and the model does not take it.");
    }
    if (!out.problems.empty()) {
        if (const std::string kind = quantized_as(file); !kind.empty()) {
            out.problems.push_back("The file is quantized: " + kind + ".");
        }
        if (!out.hint.empty()) {
            out.problems.push_back("Hint: " + out.hint + ".");
        }
    }
    return out;
}

std::vector<std::pair<std::string, std::string>> lost_scales(std::span<const DescribedTensor> file,
                                                             std::span<const std::string> taken) {
    const std::unordered_set<std::string_view> known(taken.begin(), taken.end());
    std::vector<DescribedTensor> used;
    for (const DescribedTensor& one : file) {
        if (known.contains(one.name)) {
            used.push_back(one);
        }
    }
    const ScaleOwners owners(used);
    std::vector<std::pair<std::string, std::string>> out;
    for (const DescribedTensor& one : file) {
        if (known.contains(one.name)) {
            continue;
        }
        if (const std::string_view owner = owners.owner_of(one.name); !owner.empty()) {
            out.emplace_back(one.name, owner);
        }
    }
    return out;
}

}  // namespace penstock::state
