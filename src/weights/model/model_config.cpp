// SPDX-License-Identifier: Apache-2.0
// The facts of a model's config.json that no tensor shows.
#include "base/path.hpp"
#include "base/raise.hpp"
#include "plan/models/config_fields.hpp"
#include "state/model_folder.hpp"
#include "weights/model/small_file.hpp"

#include <penstock/weights.hpp>

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace penstock {

namespace {

// Models of several kinds of input have it one object deeper.
std::uint64_t count_in(const std::string& text, const std::string& path) {
    constexpr std::array<std::string_view, 4> kNames{"num_experts_per_tok", "num_experts_per_token",
                                                     "experts_per_token", "moe_topk"};
    const auto read = plan::ConfigFields::parse(text);
    if (!read) {
        base::Error error = read.error();
        error.code = ErrorCode::kDamaged;
        error.path = path;
        base::raise(error);
    }
    return read->anywhere(kNames);
}

}  // namespace

std::uint64_t find_experts_per_token(Engine& engine, std::span<const std::string> folders,
                                     const FileSystem& files) {
    for (const std::string& folder : folders) {
        for (const std::string& place :
             {state::model_folder(files, folder), base::folder_of(folder)}) {
            const std::string path = base::join(place, "config.json");
            if (const std::optional<std::string> text =
                    weights::text_of(engine, files, path, plan::kConfigBytesMax)) {
                if (const std::uint64_t count = count_in(*text, path); count != 0) {
                    return count;
                }
                break;
            }
        }
    }
    return 0;
}

}  // namespace penstock
