// SPDX-License-Identifier: Apache-2.0
#include "cli/json_output.hpp"

#include <penstock/error.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
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

// Whether a file begins as write() and those before it began theirs: with "command": ["penstock".
bool is_output_of_ours(const std::string& path) {
    constexpr std::size_t kLookedAt = 65536;
    constexpr std::string_view kCommand = "\"command\": [";
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return true;  // nobody can say, and who may not read it gave it for writing
    }
    std::string text(kLookedAt, '\0');
    file.read(text.data(), kLookedAt);
    text.resize(static_cast<std::size_t>(file.gcount()));
    const std::size_t at = text.find(kCommand);
    const std::size_t word =
        at == std::string::npos ? at : text.find_first_not_of(" \n", at + kCommand.size());
    return text.starts_with('{') && word != std::string::npos &&
           text.compare(word, 10, "\"penstock\"") == 0;
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
        struct stat is {};
        if (::fstat(fd, &is) == 0 && S_ISREG(is.st_mode) && is.st_size > 0 &&
            !is_output_of_ours(path_)) {
            throw Error(ErrorCode::kInvalidArgument, 0, "write", path_, kNoOffset,
                        option_ + ": '" + path_ +
                            "' is there, and is no earlier output of penstock; give another name, "
                            "or remove it");
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
