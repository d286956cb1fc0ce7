// SPDX-License-Identifier: Apache-2.0
// The destination of --json, and helpers for JSON output.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace penstock::report {

class JsonOutput {
public:
    /// `option` is the command-line option, for messages. A file name, "-" for stdout, or empty for
    /// none. The file is checked here, before the work, so that a wrong path costs no time; it is
    /// made by write(), as a whole. A file that is there is replaced only where it is empty or an
    /// earlier output. Throws Error.
    JsonOutput(std::string option, std::string path);

    /// The stream of the text for people: stderr when the JSON is written to stdout.
    [[nodiscard]] std::FILE* text_stream() const { return path_ == "-" ? stderr : stdout; }

    /// Does nothing if no JSON was requested. Throws Error.
    void write(const nlohmann::ordered_json& json);

private:
    struct Close {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    std::string option_;
    std::string path_;
    std::unique_ptr<std::FILE, Close> file_;  // a pipe or a device, from the start
};

}  // namespace penstock::report
