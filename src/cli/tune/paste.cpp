// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/paste.hpp"

#include "base/path.hpp"
#include "base/random.hpp"
#include "cli/bench/fio_peer.hpp"

#include <penstock/options.hpp>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
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

void check_options_file(const std::string& path) {
    const std::string folder = base::folder_of(path);
    if (::access(folder.c_str(), W_OK | X_OK) != 0) {
        throw output_error(path, errno);
    }
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
        throw output_error(path, EISDIR);
    }
}

// Replaces a file, also behind a symbolic link, as a whole; a pipe or a device is written to.
void write_options_file(const std::string& path, const nlohmann::ordered_json& options) {
    const std::string text =
        options.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    std::error_code unknown;
    const auto kind = std::filesystem::status(path, unknown).type();
    const bool is_link = std::filesystem::is_symlink(path, unknown);
    const bool replaces = kind == std::filesystem::file_type::regular ||
                          (kind == std::filesystem::file_type::not_found && !is_link);
    const std::string target =
        is_link && replaces ? std::filesystem::canonical(path).string() : path;
    // Makes a new file: never an existing one, and never through a link.
    const std::string fresh =
        replaces ? fmt::format("{}.{:016x}.tmp", target, base::random_bits()) : target;
    std::FILE* const out = std::fopen(fresh.c_str(), replaces ? "wxe" : "we");
    if (out == nullptr) {
        throw output_error(path, errno);
    }
    const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
    const bool kept = std::fclose(out) == 0 && written;
    if (!kept || (replaces && std::rename(fresh.c_str(), target.c_str()) != 0)) {
        const int code = errno;
        if (replaces) {
            ::unlink(fresh.c_str());
        }
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
