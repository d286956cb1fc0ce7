// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/paste.hpp"

#include "cli/bench/fio_peer.hpp"
#include "report/output_file.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstring>
#include <nlohmann/json.hpp>

namespace penstock::cli {

namespace {

// Quotes 'path' for a shell.
std::string quoted(const std::string& path) {
    constexpr const char* kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=";
    if (path.find_first_not_of(kPlain) == std::string::npos) {
        return path;
    }
    std::string out = "'";
    for (const char c : path) {
        out += c == '\'' ? "'\\''" : std::string(1, c);
    }
    return out + "'";
}

Error output_error(const std::string& path, int code) {
    return {ErrorCode::kSystem,
            code,
            "write",
            path,
            kNoOffset,
            fmt::format("-o {}: {}; name a file in a folder that is there and may be written", path,
                        std::strerror(code))};
}

}  // namespace

void check_options_file(const std::string& path, const std::string& measured) {
    if (const int code = report::why_not_writable(path); code != 0) {
        throw output_error(path, code);
    }
    if (report::is_same_file(path, measured)) {
        throw Error(ErrorCode::kInvalidArgument, 0, "write", path, kNoOffset,
                    fmt::format("-o: '{}' is the file that is measured, which the settings would "
                                "replace; give another name",
                                path));
    }
    struct stat is {};
    if (::stat(path.c_str(), &is) != 0 || S_ISFIFO(is.st_mode) || S_ISCHR(is.st_mode) ||
        (S_ISREG(is.st_mode) && is.st_size == 0)) {
        return;
    }
    static_cast<void>(Engine::default_options());  // an error of the environment is not the file's
    try {
        static_cast<void>(load_options(S_ISREG(is.st_mode) ? path : std::string()));
    } catch (const Error&) {
        throw Error(ErrorCode::kInvalidArgument, 0, "write", path, kNoOffset,
                    fmt::format("-o: '{}' is there, and is no options file of penstock; give "
                                "another name, or remove it",
                                path));
    }
}

void write_options_file(const std::string& path, const nlohmann::ordered_json& options) {
    const std::string text =
        options.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    if (const int code = report::write_output(path, text); code != 0) {
        throw output_error(path, code);
    }
}

nlohmann::ordered_json options_json(const TuneSettings& settings, const EngineOptions& defaults,
                                    const std::string& about) {
    const EngineOptions options = engine_options(settings, defaults);
    nlohmann::ordered_json json{{"about", about},
                                {"backend", name_of(options.backend)},
                                {"block_bytes", options.block_bytes},
                                {"queue_depth", options.queue_depth},
                                {"in_flight_bytes", options.in_flight_bytes},
                                {"channels", options.channels},
                                {"gap_bytes", options.gap_bytes}};
    if (!options.tuned_gpu_paths.empty()) {
        json["tuned_gpu_paths"] = text_of(options.tuned_gpu_paths);
    }
    return json;
}

nlohmann::ordered_json deepspeed_json(const TuneSettings& settings) {
    return {{"aio",
             {{"block_size", settings.block_bytes},
              {"queue_depth", settings.depth},
              {"intra_op_parallelism", settings.channels},
              {"single_submit", false},
              {"overlap_events", true}}}};
}

std::string fio_command(const TuneSettings& settings, const std::string& backend,
                        const std::string& path, bool is_folder, bool write) {
    const std::string engine = backend == "posix" ? "psync" : backend;
    // psync has one request per job, so depth is the number of jobs.
    const std::uint32_t jobs =
        backend == "posix" ? settings.depth * settings.channels : settings.channels;
    const std::uint32_t depth = backend == "posix" ? 1 : settings.depth;
    const std::string name = path + (path.ends_with('/') ? "fio.tmp" : "/fio.tmp");
    return fmt::format(
        "fio --name=tuned --filename={} {} --direct=1 --ioengine={} --rw={} --bs={} --iodepth={} "
        "--numjobs={} --thread --group_reporting --time_based --runtime=10",
        quoted(fio_filename(is_folder ? name : path)),
        is_folder ? "--size=1GiB --unlink=1" : "--readonly", engine, write ? "write" : "read",
        settings.block_bytes, depth, jobs);
}

}  // namespace penstock::cli
