// SPDX-License-Identifier: Apache-2.0
#include "cli/run.hpp"

#include "base/near.hpp"
#include "cli/bench/command.hpp"
#include "cli/bench/options.hpp"
#include "cli/checkpoint/command.hpp"
#include "cli/doctor/command.hpp"
#include "cli/environment.hpp"
#include "cli/interrupt.hpp"
#include "cli/message.hpp"
#include "cli/tune/command.hpp"
#include "cli/tune/options.hpp"
#include "cli/weights/command.hpp"
#include "format/fault.hpp"

#include <penstock/error.hpp>
#include <penstock/version.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

namespace penstock::cli {

namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

constexpr const char* kFooter = R"(Examples:
  penstock doctor /data                find what slows storage down, and how to fix it
  penstock bench /data                 measure this disk, in half a minute
  penstock bench /data --against fio   the same compared with fio, in turns
  penstock tune /data -o tuned.json    the best settings for this disk, under a minute
  penstock checkpoint ls runs/a        the checkpoints of a store; show, verify, diff, convert
  penstock weights plan model/         a model that is larger than memory, before it is run

With the Python package, which calls this program for all else:
  penstock report bench.json           one HTML page of what --json wrote
  penstock checkpoint bench /data      how fast a model's state is saved and loaded
  penstock bench --shapes /data        what programs do with files, compared with preadv,
                                       readinto, memmap and torch.load
  penstock ds_io                       DeepSpeed's I/O benchmark, on Penstock
  penstock ds_nvme_tune                DeepSpeed's tuner, on Penstock

`penstock COMMAND --help` says more.)";

// Including those of the Python package.
constexpr std::array<std::string_view, 8> kCommands{
    "bench", "checkpoint", "doctor", "ds_io", "ds_nvme_tune", "report", "tune", "weights"};

struct CommandLine {
    CLI::App app{"Penstock moves tensors between storage and memory at the speed of the device.",
                 "penstock"};
    CLI::App* bench = nullptr;
    CLI::App* tune = nullptr;
    CLI::App* doctor = nullptr;
    std::optional<CheckpointCommand> checkpoint;
    std::optional<WeightsCommand> weights;
    BenchOptions bench_options;
    TuneOptions tune_options;
    DoctorOptions doctor_options;

    CommandLine() {
        app.get_formatter()->column_width(28);
        app.footer(kFooter);
        app.set_version_flag("--version", "penstock " PENSTOCK_VERSION,
                             "Print the version and exit");
        app.set_help_flag("-h,--help", "Print this help and exit");
        app.require_subcommand(1);
        bench = app.add_subcommand("bench", "Measure what a disk gives through Penstock");
        tune = app.add_subcommand("tune", "Find the settings that suit a disk, in under a minute");
        doctor = app.add_subcommand("doctor", "Find what slows storage down on this machine");
        checkpoint.emplace(app);
        weights.emplace(app);
        add_bench_options(*bench, bench_options);
        add_tune_options(*tune, tune_options);
        add_doctor_options(*doctor, doctor_options);
    }
    CommandLine(const CommandLine&) = delete;
    CommandLine& operator=(const CommandLine&) = delete;
};

int wrong_usage(const CommandLine& line, const CLI::ParseError& error) {
    const CLI::App* command = nullptr;
    for (const CLI::App* one : {line.bench, line.tune, line.doctor}) {
        command = one->parsed() ? one : command;
    }
    std::string name = command != nullptr ? " " + command->get_name() : "";
    if (line.checkpoint->parsed()) {
        name = " " + line.checkpoint->name();
    }
    if (line.weights->parsed()) {
        name = " " + line.weights->name();
    }
    fmt::print(stderr, "penstock{}: {}\nTry: penstock{} --help\n", name, error.what(), name);
    return kWrongUsage;
}

// Detects an unknown command: CLI11 would only report a missing subcommand.
bool is_unknown_command(const CommandLine& line, const std::string& word) {
    return !word.starts_with('-') && word != line.bench->get_name() &&
           word != line.tune->get_name() && word != line.doctor->get_name() &&
           word != "checkpoint" && word != "weights";
}

// Detects commands of the Python package, which are not in this program.
bool is_python_command(std::span<const std::string> args) {
    const std::string& word = args[0];
    return word == "report" || word == "ds_io" || word == "ds_nvme_tune" ||
           (word == "checkpoint" && args.size() > 1 && args[1] == "bench") ||
           (word == "bench" && std::find(args.begin(), args.end(), "--shapes") != args.end());
}

int run_command(CommandLine& line, std::span<const std::string> args) {
    const InterruptGuard guard;
    try {
        if (line.checkpoint->parsed()) {
            return line.checkpoint->run(args);
        }
        if (line.weights->parsed()) {
            return line.weights->run(args);
        }
        if (line.doctor->parsed()) {
            return doctor(line.doctor_options, args);
        }
        if (line.tune->parsed()) {
            tune(line.tune_options, args);
            return 0;
        }
        bench(line.bench_options, args);
        return 0;
    } catch (const Interrupted& interrupted) {
        fmt::print(stderr, "\npenstock: ended by {}; no scratch file is left\n",
                   signal_name(interrupted.signal));
        return 128 + interrupted.signal;
    } catch (const Error& error) {
        fmt::print(stderr, "penstock: {}\n", message_of(error));
        return error.reason() == ErrorCode::kInvalidArgument ? kWrongUsage : kFailed;
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "penstock: out of memory; smaller --block-size or --depth need less\n");
        return kFailed;
    }
}

// Opens missing standard descriptors: otherwise the first opened file would receive our output.
void open_standard_files() {
    for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
        if (::fcntl(fd, F_GETFD) < 0) {
            [[maybe_unused]] const int opened = ::open("/dev/null", O_RDWR);  // the lowest: fd
        }
    }
}

// Reports lost output, such as a full disk. A closed pipe (| head) is silent, as in other programs.
int output_lost(int code) {
    if (code == EPIPE) {
        return 128 + SIGPIPE;
    }
    std::fprintf(stderr, "penstock: the output could not be written: %s\n", std::strerror(code));
    return kFailed;
}

// Flushes the output: its last part may still be in a buffer.
int with_output_written(int status) {
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) {
        return status;
    }
    const int code = errno == 0 ? EIO : errno;
    std::clearerr(stdout);
    return output_lost(code);
}

int run_line(std::span<const std::string> args) {
    CommandLine line;
    try {
        if (args.empty()) {
            fmt::print("{}", line.app.help());
            return kWrongUsage;
        }
        if (is_python_command(args)) {
            fmt::print(
                stderr,
                "penstock: '{}' comes with the Python package, whose own penstock command has "
                "it: pip install penstock\n",
                args[0] == "checkpoint" ? "checkpoint bench"
                : args[0] == "bench"    ? "bench --shapes"
                                        : args[0]);
            return kWrongUsage;
        }
        if (is_unknown_command(line, args[0])) {
            const std::string_view near = base::nearest(args[0], kCommands);
            fmt::print(stderr, "penstock: there is no command {}; {}\nTry: penstock --help\n",
                       format::shown(args[0]),
                       near.empty() ? fmt::format("expected one of {}", fmt::join(kCommands, ", "))
                                    : fmt::format("did you mean '{}'?", near));
            return kWrongUsage;
        }
        line.app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
        if (line.bench->parsed()) {
            line.bench_options.finish();
        }
        if (line.tune->parsed()) {
            line.tune_options.finish();
        }
    } catch (const CLI::Success& success) {  // --help, --version
        std::ostringstream text;
        const int status = line.app.exit(success, text, text);
        fmt::print("{}", text.str());
        return status;
    } catch (const CLI::ParseError& error) {
        return wrong_usage(line, error);
    }
    return run_command(line, args);
}

}  // namespace

int run(std::span<const std::string> args) {
    open_standard_files();
    try {
        return with_output_written(run_line(args));
    } catch (const std::system_error& error) {  // thrown by fmt::print
        std::clearerr(stdout);
        return output_lost(error.code().value());
    }
}

std::string environment_json() {
    return machine_json().dump();
}

}  // namespace penstock::cli
