// SPDX-License-Identifier: Apache-2.0
// The facts of a model's config.json that no tensor shows.
#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/json.hpp"
#include "state/model_folder.hpp"
#include "weights/model/small_file.hpp"

#include <penstock/weights.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace penstock {

namespace {

constexpr std::uint64_t kConfigBytesMax = 16 << 20;

// Looks for the number of experts that a token uses, anywhere in a configuration: models of several
// kinds of input have it one object deeper.
class ExpertsPerToken final : public format::JsonHandler {
public:
    std::uint64_t count = 0;

    [[nodiscard]] bool takes_python() const override { return true; }
    std::string key(std::string& name) override {
        constexpr std::array<std::string_view, 4> kNames{
            "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk"};
        is_it_ = std::find(kNames.begin(), kNames.end(), name) != kNames.end();
        return {};
    }
    std::string scalar(const format::JsonScalar& value) override {
        if (is_it_ && count == 0 && value.kind == format::JsonScalar::Kind::kUnsigned) {
            count = value.number;
        }
        is_it_ = false;
        return {};
    }
    std::string open(bool /*array*/) override {
        is_it_ = false;
        return {};
    }
    std::string close(bool /*array*/) override { return {}; }

private:
    bool is_it_ = false;
};

std::uint64_t count_in(const std::string& text, const std::string& path) {
    ExpertsPerToken handler;
    if (const auto read = format::read_json(text, handler, "plan"); !read) {
        base::Error error = read.error();
        error.code = ErrorCode::kDamaged;
        error.path = path;
        base::raise(error);
    }
    return handler.count;
}

}  // namespace

std::uint64_t find_experts_per_token(Engine& engine, std::span<const std::string> folders,
                                     const FileSystem& files) {
    for (const std::string& folder : folders) {
        for (const std::string& place :
             {state::model_folder(files, folder), base::folder_of(folder)}) {
            const std::string path = base::join(place, "config.json");
            if (const std::optional<std::string> text =
                    weights::text_of(engine, files, path, kConfigBytesMax)) {
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
