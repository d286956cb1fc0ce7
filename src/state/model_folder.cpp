// SPDX-License-Identifier: Apache-2.0
#include "state/model_folder.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/shard_index.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string_view>
#include <vector>

namespace penstock::state {

namespace {

using Names = std::set<std::string, std::less<>>;

constexpr std::string_view kTensorsSuffix = ".safetensors";
constexpr std::string_view kBinIndexSuffix = ".bin.index.json";
constexpr std::array<std::string_view, 3> kTorchSuffixes{".bin", ".pt", ".pth"};
// The names that transformers, and those that diffusers writes.
constexpr std::array<std::string_view, 2> kUsualNames{"model.safetensors",
                                                      "diffusion_pytorch_model.safetensors"};
// The model of a pipeline that runs in each step.
constexpr std::array<std::string_view, 3> kModelsOfSteps{"transformer", "unet", "prior"};

struct Found {
    Names indexes;
    Names tensors;
};

Found found_in(const FileSystem& files, std::span<const std::string> folders) {
    Found found;
    for (const std::string& folder : folders) {
        for (const std::string& name : files.list(folder)) {
            if (name.ends_with(format::kIndexSuffix)) {
                found.indexes.insert(name);
            } else if (name.ends_with(kTensorsSuffix)) {
                found.tensors.insert(name);
            }
        }
    }
    return found;
}

std::optional<std::string> chosen(const Names& names, std::string_view more, bool usual_alone) {
    for (const std::string_view usual : kUsualNames) {
        if (const auto name = names.find(std::string(usual) + std::string(more));
            name != names.end()) {
            return *name;
        }
    }
    return names.size() == 1 && !usual_alone ? std::optional(*names.begin()) : std::nullopt;
}

std::optional<std::string> chosen(const Found& found) {
    constexpr std::string_view kIndex = format::kIndexSuffix;
    auto index = chosen(found.indexes, kIndex.substr(kTensorsSuffix.size()), false);
    // The only file next to several indexes is a shard of theirs.
    return index ? index : chosen(found.tensors, "", !found.indexes.empty());
}

std::string listed(const Names& names) {
    constexpr std::size_t kShown = 3;
    std::vector<std::string> some;
    for (const std::string& name : names) {
        if (some.size() < kShown) {
            some.push_back(format::escaped(name));
        }
    }
    return fmt::format("{}{}", fmt::join(some, ", "), names.size() > kShown ? ", ..." : "");
}

// Says what a folder without a model has, and what to pass instead.
std::string why_not(const FileSystem& files, const std::string& folder, const Found& found) {
    const Names& several = found.indexes.empty() ? found.tensors : found.indexes;
    if (!several.empty()) {
        return fmt::format(
            "has {} {} ({}) and {}; give the path of one of them{}", several.size(),
            found.indexes.empty() ? ".safetensors files" : "indexes of shards", listed(several),
            found.indexes.empty() ? "no index that says which tensors are where"
                                  : "none has the usual name",
            found.indexes.empty() ? fmt::format(", or add the {}", format::kShardIndexName) : "");
    }
    const std::vector<std::string> all = files.list(folder);
    const Names names(all.begin(), all.end());
    const auto convert = [&](const std::string& from, std::string_view to, const char* done) {
        return fmt::format("has no .safetensors file; `penstock checkpoint convert {} {}` makes {}",
                           format::escaped(base::join(folder, from)),
                           format::escaped(base::join(folder, std::string(to))), done);
    };
    for (const std::string& name : names) {
        if (name.ends_with(kBinIndexSuffix)) {
            return convert(name, format::kShardIndexName, "them of its .bin shards");
        }
    }
    for (const std::string& name : names) {
        if (std::any_of(kTorchSuffixes.begin(), kTorchSuffixes.end(),
                        [&](std::string_view suffix) { return name.ends_with(suffix); })) {
            return convert(name, kUsualNames[0], "one of it");
        }
    }
    return "has no .safetensors file; give the folder or the file that has the weights";
}

bool has_config(const FileSystem& files, const std::string& folder) {
    try {
        const std::vector<std::string> names = files.list(folder);
        return std::find(names.begin(), names.end(), "config.json") != names.end();
    } catch (const Error&) {  // it is no folder, or is not there
        return false;
    }
}

}  // namespace

std::optional<std::string> model_file(const FileSystem& files,
                                      std::span<const std::string> folders) {
    return chosen(found_in(files, folders));
}

std::string the_model_file(const FileSystem& files, std::span<const std::string> folders) {
    const Found found = found_in(files, folders);
    if (auto name = chosen(found)) {
        return std::move(*name);
    }
    base::raise(base::error(ErrorCode::kInvalidArgument, "open",
                            fmt::format("this folder {}", why_not(files, folders[0], found)),
                            folders[0]));
}

std::string model_folder(const FileSystem& files, const std::string& folder, bool always) {
    if (files.status(files.resolve(folder)).kind != FileKind::kFolder) {
        return folder;
    }
    const std::vector<std::string> names = files.list(folder);
    if (std::find(names.begin(), names.end(), "model_index.json") == names.end() ||
        (!always && model_file(files, {&folder, 1}))) {
        return folder;
    }
    for (const std::string_view name : kModelsOfSteps) {
        if (const std::string model = base::join(folder, std::string(name));
            has_config(files, model)) {
            return model;
        }
    }
    return folder;
}

std::optional<std::string> tensors_in(const FileSystem& files, const std::string& folder) {
    const std::string model = model_folder(files, folder);
    if (const auto name = model_file(files, {&model, 1})) {
        return base::join(model, *name);
    }
    const std::vector<std::string> all = files.list(folder);
    const Names names(all.begin(), all.end());
    for (const std::string_view suffix : {kTensorsSuffix, std::string_view(".pt"),
                                          std::string_view(".pth"), std::string_view(".bin")}) {
        for (const std::string& name : names) {
            if (name.ends_with(suffix)) {
                return base::join(folder, name);
            }
        }
    }
    return std::nullopt;
}

}  // namespace penstock::state
