// SPDX-License-Identifier: Apache-2.0
// Where --json goes, and what else is written as JSON.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace penstock::cli {

class JsonOutput {
public:
    /// `option` is what it was asked for by. A file name, "-" for stdout, or empty for none. The
    /// file is opened here, before the work, so that a wrong path costs no time. Throws Error.
    JsonOutput(std::string option, std::string path);

    /// Where the text for people goes: stderr when stdout is taken by the JSON.
    [[nodiscard]] std::FILE* text_stream() const { return path_ == "-" ? stderr : stdout; }

    /// Nothing where no JSON was asked for. Throws Error.
    void write(const nlohmann::ordered_json& json);

private:
    struct Close {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    std::string option_;
    std::string path_;
    std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace penstock::cli
