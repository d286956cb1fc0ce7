// SPDX-License-Identifier: Apache-2.0
// The local cache of Hugging Face. A model "organization/name" lies in
//
//     models--organization--name/refs/main            the name of a snapshot
//     models--organization--name/snapshots/<name>/    its files, which are links
//
// Source: huggingface_hub, "Understand caching".
#include "base/environment.hpp"
#include "base/path.hpp"
#include "weights/model/small_file.hpp"

#include <penstock/weights.hpp>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>

namespace penstock {

namespace {

using base::system_environment_text;

constexpr std::uint64_t kNameBytesMax = 256;

// Whether a text is the name of one file, and not a way out of its folder.
bool is_name(std::string_view text) {
    const auto is_good = [](char one) {
        return (one >= 'a' && one <= 'z') || (one >= 'A' && one <= 'Z') ||
               (one >= '0' && one <= '9') || one == '-' || one == '_' || one == '.';
    };
    return !text.empty() && text.size() <= kNameBytesMax && text != "." && text != ".." &&
           std::all_of(text.begin(), text.end(), is_good);
}

std::string of_user(const std::string& path) {
    const bool is_theirs = path == "~" || path.starts_with("~/");
    return is_theirs ? system_environment_text("HOME").value_or("~") + path.substr(1) : path;
}

}  // namespace

std::string hub_cache_folder() {
    for (const char* const name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
        if (const auto given = system_environment_text(name)) {
            return of_user(*given);
        }
    }
    if (const auto home = system_environment_text("HF_HOME")) {
        return base::join(of_user(*home), "hub");
    }
    const auto caches = system_environment_text("XDG_CACHE_HOME");
    return base::join(of_user(caches.value_or("~/.cache")), "huggingface/hub");
}

std::string find_hub_model(Engine& engine, const std::string& name, const FileSystem& files) {
    const std::size_t slash = name.find('/');
    std::string folder = "models--" + name.substr(0, slash);
    if (!is_name(name.substr(0, slash))) {
        return {};
    }
    if (slash != std::string::npos) {
        if (!is_name(name.substr(slash + 1))) {
            return {};
        }
        folder += "--" + name.substr(slash + 1);
    }
    const std::string model = base::join(hub_cache_folder(), folder);
    std::optional<std::string> snapshot =
        weights::text_of(engine, files, base::join(model, "refs/main"), kNameBytesMax + 1);
    while (snapshot && snapshot->ends_with('\n')) {
        snapshot->pop_back();
    }
    if (!snapshot || !is_name(*snapshot)) {
        return {};
    }
    const std::string found = base::join(model, "snapshots/" + *snapshot);
    try {
        return files.status(files.resolve(found)).kind == FileKind::kFolder ? found : "";
    } catch (const Error& error) {
        if (error.system_errno() == ENOENT || error.system_errno() == ENOTDIR) {
            return {};
        }
        throw;
    }
}

}  // namespace penstock
