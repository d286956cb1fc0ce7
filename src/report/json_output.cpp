// SPDX-License-Identifier: Apache-2.0
#include "report/json_output.hpp"

#include "report/output_file.hpp"

#include <penstock/error.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace penstock::report {

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
    if (path_.empty() || path_ == "-") {
        return;
    }
    struct stat is {};
    const bool there = ::stat(path_.c_str(), &is) == 0;
    if (there && (S_ISFIFO(is.st_mode) || S_ISCHR(is.st_mode) || S_ISSOCK(is.st_mode))) {
        const int fd = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
        file_.reset(fd < 0 ? nullptr : ::fdopen(fd, "w"));
        if (!file_) {
            throw json_error(option_, path_, errno);
        }
        return;
    }
    if (const int code = why_not_writable(path_); code != 0) {
        throw json_error(option_, path_, code);
    }
    if (there && (S_ISBLK(is.st_mode) || (is.st_size > 0 && !is_json_of_ours(path_)))) {
        throw Error(ErrorCode::kInvalidArgument, 0, "write", path_, kNoOffset,
                    option_ + ": '" + path_ +
                        "' is there, and is no earlier output of penstock; give another name, "
                        "or remove it");
    }
}

void JsonOutput::write(const nlohmann::ordered_json& json) {
    if (path_.empty()) {
        return;
    }
    const std::string text =
        json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    if (!file_ && path_ != "-") {
        if (const int code = write_output(path_, text); code != 0) {
            throw json_error(option_, path_, code);
        }
        return;
    }
    std::FILE* const out = file_ ? file_.get() : stdout;
    if (std::fwrite(text.data(), 1, text.size(), out) != text.size() || std::fflush(out) != 0) {
        throw json_error(option_, path_, errno);
    }
}

}  // namespace penstock::report
