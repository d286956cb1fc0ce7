// SPDX-License-Identifier: Apache-2.0
#include "cli/run.hpp"

#include "base/text/near.hpp"
#include "cli/bench/command.hpp"
#include "cli/command_line.hpp"
#include "cli/tune/command.hpp"
#include "format/fault.hpp"
#include "report/environment.hpp"
#include "report/interrupt.hpp"
#include "report/message.hpp"
#include "report/style.hpp"

#include <penstock/error.hpp>

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
#include <memory>
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

// Including those of the Python package.
constexpr std::array<std::string_view, 10> kCommands{
    "bench",    "checkpoint", "doctor", "ds_io", "ds_nvme_tune",
    "features", "plan",       "report", "tune",  "weights"};

// Says which command may be meant, or which there are.
std::string expected_of(const CLI::App& above, std::string_view word) {
    std::vector<std::string_view> names(kCommands.begin(), kCommands.end());
    if (above.get_parent() != nullptr) {
        names.clear();
        for (const CLI::App* one : above.get_subcommands({})) {
            names.push_back(one->get_name());
        }
        if (above.get_name() == "checkpoint" || above.get_name() == "weights") {
            names.push_back("bench");  // of the Python package
        }
    }
    const std::string_view near = base::nearest(word, names);
    return near.empty() ? fmt::format("expected one of {}", fmt::join(names, ", "))
                        : fmt::format("did you mean '{}'?", near);
}

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
    if (line.features->parsed()) {
        name = " " + line.features->name();
    }
    if (line.plan->parsed()) {
        name = " " + line.plan->name();
    }
    fmt::print(stderr, "penstock{}: {}\nTry: penstock{} --help\n", name, error.what(), name);
    return kWrongUsage;
}

// Detects a word that should be a command and is not, or a command that is missing: CLI11 would
// only say that one is required. Returns the message, or nothing.
std::string wrong_command(const CommandLine& line, std::span<const std::string> args) {
    const CLI::App* above = &line.app;
    std::string name = "penstock";
    for (const std::string& word : args) {
        const std::vector<const CLI::App*> commands = above->get_subcommands({});
        if (commands.empty() || above->get_require_subcommand_min() == 0 || word.starts_with('-')) {
            return {};
        }
        const auto known = std::find_if(commands.begin(), commands.end(), [&](const CLI::App* one) {
            return one->get_name() == word;
        });
        if (known == commands.end()) {
            return fmt::format("{}: there is no command {}; {}", name, format::shown(word),
                               expected_of(*above, word));
        }
        above = *known;
        name += " " + word;
    }
    return above->get_subcommands({}).empty() || above->get_require_subcommand_min() == 0
               ? std::string()
               : fmt::format("{}: {}", name, expected_of(*above, ""));
}

// Detects commands of the Python package, which are not in this program.
bool is_python_command(std::span<const std::string> args) {
    const std::string& word = args[0];
    return word == "report" || word == "ds_io" || word == "ds_nvme_tune" ||
           ((word == "checkpoint" || word == "weights") && args.size() > 1 && args[1] == "bench") ||
           (word == "bench" && args.size() > 1 && args[1] == "gnn") ||
           (word == "bench" && std::find(args.begin(), args.end(), "--shapes") != args.end());
}

int run_command(CommandLine& line, std::span<const std::string> args) {
    const report::InterruptGuard guard;
    try {
        if (line.checkpoint->parsed()) {
            return line.checkpoint->run(args);
        }
        if (line.weights->parsed()) {
            return line.weights->run(args);
        }
        if (line.features->parsed()) {
            return line.features->run(args);
        }
        if (line.plan->parsed()) {
            return line.plan->run(args);
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
    } catch (const report::Interrupted& interrupted) {
        fmt::print(stderr, "\npenstock: ended by {}; no scratch file is left\n",
                   report::signal_name(interrupted.signal));
        return 128 + interrupted.signal;
    } catch (const Error& error) {
        fmt::print(stderr, "penstock: {}\n", report::message_of(error));
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

void print_help(const std::string& text) {
    constexpr std::size_t kNarrow = 60;
    constexpr std::size_t kWide = 100;
    fmt::print("{}", report::fitted(text, std::clamp(report::columns_of(stdout), kNarrow, kWide)));
}

int run_line(std::span<const std::string> args) {
    CommandLine line;
    try {
        if (args.empty()) {
            print_help(line.app.help());
            return kWrongUsage;
        }
        if (is_python_command(args)) {
            fmt::print(
                stderr,
                "penstock: '{}' comes with the Python package, whose own penstock command has "
                "it: pip install penstock\n",
                args[0] == "checkpoint" ? "checkpoint bench"
                : args[0] == "weights"  ? "weights bench"
                : args[0] != "bench"    ? args[0]
                : args[1] == "gnn"      ? "bench gnn"
                                        : "bench --shapes");
            return kWrongUsage;
        }
        if (const std::string wrong = wrong_command(line, args); !wrong.empty()) {
            fmt::print(stderr, "{}\nTry: {} --help\n", wrong, wrong.substr(0, wrong.find(':')));
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
        print_help(text.str());
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
    return report::machine_json().dump();
}

}  // namespace penstock::cli
