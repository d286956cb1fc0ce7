// SPDX-License-Identifier: Apache-2.0
#include "cli/json_output.hpp"

#include <penstock/error.hpp>

#include <fcntl.h>
#include <unistd.h>

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
    // Keeps the output of an earlier run until there is a new one to replace it.
    if (!path_.empty() && path_ != "-") {
        const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
        file_.reset(fd < 0 ? nullptr : ::fdopen(fd, "w"));
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
    if (file_ && ::ftruncate(::fileno(out), 0) != 0 && errno != EINVAL) {  // a pipe has no length
        throw json_error(option_, path_, errno);
    }
    const std::string text =
        json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    if (std::fwrite(text.data(), 1, text.size(), out) != text.size() || std::fflush(out) != 0) {
        throw json_error(option_, path_, errno);
    }
}

}  // namespace penstock::cli
