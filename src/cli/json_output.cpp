// SPDX-License-Identifier: Apache-2.0
#include "cli/json_output.hpp"

#include <penstock/error.hpp>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace penstock::cli {

namespace {

Error json_error(const std::string& option, const std::string& path, int code) {
    return {ErrorCode::kSystem,
            code,
            "write",
            path,
            kNoOffset,
            option + " " + path + ": " + std::strerror(code) +
                "; name a file in a folder that is there, or - for stdout"};
}

}  // namespace

JsonOutput::JsonOutput(std::string option, std::string path)
    : option_(std::move(option)), path_(std::move(path)) {
    if (!path_.empty() && path_ != "-") {
        file_.reset(std::fopen(path_.c_str(), "we"));
        if (!file_) {
            throw json_error(option_, path_, errno);
        }
    }
}

void JsonOutput::write(const nlohmann::ordered_json& json) {
    if (path_.empty()) {
        return;
    }
    std::FILE* const out = file_ ? file_.get() : stdout;
    const std::string text =
        json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    if (std::fwrite(text.data(), 1, text.size(), out) != text.size() || std::fflush(out) != 0) {
        throw json_error(option_, path_, errno);
    }
}

}  // namespace penstock::cli
