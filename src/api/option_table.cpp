// SPDX-License-Identifier: Apache-2.0
#include "api/option_table.hpp"

#include "base/text/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <locale>
#include <sstream>
#include <utility>

namespace penstock {

namespace {

struct BackendWord {
    std::string_view word;
    BackendKind kind;
};

// The first word of a kind is its name.
constexpr std::array<BackendWord, 6> kBackends{{{"auto", BackendKind::kAuto},
                                                {"io_uring", BackendKind::kUring},
                                                {"uring", BackendKind::kUring},
                                                {"libaio", BackendKind::kAio},
                                                {"aio", BackendKind::kAio},
                                                {"posix", BackendKind::kPosix}}};

// In the order of the enumeration.
constexpr std::array<const char*, 4> kCachePolicies{"auto", "cached", "direct", "required"};

constexpr std::array<const char*, 3> kGpuPaths{"auto", "bounce", "cufile"};

}  // namespace

std::optional<GpuPath> gpu_path_named(std::string_view word) {
    const auto found = std::find(kGpuPaths.begin(), kGpuPaths.end(), word);
    if (found == kGpuPaths.end()) {
        return std::nullopt;
    }
    return static_cast<GpuPath>(found - kGpuPaths.begin());
}

namespace {

std::optional<TunedGpuPath> tuned_in(std::string_view text) {
    std::istringstream words{std::string(text)};
    words.imbue(std::locale::classic());
    TunedGpuPath pair;
    char colon = 0;
    std::string path;
    std::string more;
    if (!(words >> pair.disk.major >> colon >> pair.disk.minor >> pair.gpu >> path) ||
        colon != ':' || words >> more || text.find('-') != std::string_view::npos) {
        return std::nullopt;
    }
    pair.path = gpu_path_named(path).value_or(GpuPath::kAuto);
    return pair.path == GpuPath::kAuto ? std::nullopt : std::optional(std::move(pair));
}

}  // namespace

std::optional<std::vector<TunedGpuPath>> gpu_paths_in(std::string_view text) {
    std::vector<TunedGpuPath> paths;
    while (text.find_first_not_of(' ') != std::string_view::npos) {
        const std::size_t comma = std::min(text.find(','), text.size());
        auto pair = tuned_in(text.substr(0, comma));
        if (!pair) {
            return std::nullopt;
        }
        paths.push_back(std::move(*pair));
        text.remove_prefix(std::min(comma + 1, text.size()));
    }
    return paths;
}

std::string text_of(const std::vector<TunedGpuPath>& paths) {
    std::string text;
    for (const TunedGpuPath& pair : paths) {
        text += fmt::format("{}{}:{} {} {}", text.empty() ? "" : ", ", pair.disk.major,
                            pair.disk.minor, pair.gpu, name_of(pair.path));
    }
    return text;
}

const char* name_of(GpuPath path) {
    const auto index = static_cast<std::size_t>(path);
    return index < kGpuPaths.size() ? kGpuPaths[index] : "";
}

std::optional<CachePolicy> cache_policy_named(std::string_view word) {
    const auto found = std::find(kCachePolicies.begin(), kCachePolicies.end(), word);
    if (found == kCachePolicies.end()) {
        return std::nullopt;
    }
    return static_cast<CachePolicy>(found - kCachePolicies.begin());
}

const char* name_of(CachePolicy policy) {
    const auto index = static_cast<std::size_t>(policy);
    return index < kCachePolicies.size() ? kCachePolicies[index] : "";
}

std::optional<BackendKind> backend_named(std::string_view word) {
    for (const BackendWord& backend : kBackends) {
        if (backend.word == word) {
            return backend.kind;
        }
    }
    return std::nullopt;
}

const char* name_of(BackendKind backend) {
    for (const BackendWord& known : kBackends) {
        if (known.kind == backend) {
            return known.word.data();
        }
    }
    return "";
}

namespace api {

std::string Option::allowed() const {
    const auto shown = [this](std::uint64_t value) {
        return is_size() ? base::format_bytes(value) : std::to_string(value);
    };
    const std::string from = shown(min);
    if (max >= kNoMost) {
        return from + " or more";
    }
    return step == 1 ? fmt::format("{} to {}", from, shown(max))
                     : fmt::format("a multiple of {} from {} to {}", shown(step), from, shown(max));
}

base::Failure refused(std::string_view option, std::string_view got, std::string_view expected) {
    return base::fail(base::error(ErrorCode::kInvalidArgument, "options",
                                  fmt::format("{}: got {}; expected {}", option, got, expected)));
}

}  // namespace api

}  // namespace penstock
