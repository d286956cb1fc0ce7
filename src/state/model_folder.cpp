// SPDX-License-Identifier: Apache-2.0
#include "state/model_folder.hpp"

#include "format/shard_index.hpp"

#include <functional>
#include <set>
#include <string_view>
#include <utility>

namespace penstock::state {

namespace {

constexpr std::string_view kTensorsSuffix = ".safetensors";
constexpr std::string_view kUsualName = "model.safetensors";

}  // namespace

std::optional<std::string> model_file(const FileSystem& files,
                                      std::span<const std::string> folders) {
    std::set<std::string, std::less<>> indexes;
    std::set<std::string, std::less<>> tensors;
    for (const std::string& folder : folders) {
        for (const std::string& name : files.list(folder)) {
            if (name.ends_with(format::kIndexSuffix)) {
                indexes.insert(name);
            } else if (name.ends_with(kTensorsSuffix)) {
                tensors.insert(name);
            }
        }
    }
    for (const auto& [names, usual] :
         {std::pair{&indexes, format::kShardIndexName}, std::pair{&tensors, kUsualName}}) {
        if (names->contains(usual)) {
            return std::string(usual);
        }
        if (names->size() == 1) {
            return *names->begin();
        }
    }
    return std::nullopt;
}

}  // namespace penstock::state
