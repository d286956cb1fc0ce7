// SPDX-License-Identifier: Apache-2.0
#include "state/update/checkpoint_folder.hpp"

#include "base/path.hpp"

#include <algorithm>
#include <string_view>

namespace penstock::state {

namespace {

constexpr std::string_view kManifestOfStore = "manifest.json";
constexpr std::string_view kManifestBegin = "{\"penstock_checkpoint\":";
// A part of the name of a folder with shards, and the begin of the names of a store's own files in
// the folder above.
constexpr std::string_view kStepInName = "-step-";
constexpr std::string_view kStoreName = ".store";

bool has_manifest(const FileSystem& files, const std::string& folder) {
    const std::string path = base::join(folder, kManifestOfStore);
    try {
        const auto status = files.find(path);
        return status && status->kind == FileKind::kFile && files.begins_with(path, kManifestBegin);
    } catch (const Error&) {  // it may not be read
        return false;
    }
}

bool is_below_store(const FileSystem& files, const std::string& folder) {
    if (base::last_name(folder).find(kStepInName) == std::string_view::npos) {
        return false;
    }
    try {
        const auto above = files.list(base::folder_of(folder));
        return std::any_of(above.begin(), above.end(), [](const std::string& name) {
            return name == kStoreName || name.starts_with(std::string(kStoreName) + "-");
        });
    } catch (const Error&) {  // it may not be listed
        return false;
    }
}

}  // namespace

bool is_checkpoint_folder(const FileSystem& files, const std::string& folder) {
    return has_manifest(files, folder) || is_below_store(files, folder);
}

}  // namespace penstock::state
