// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/command.hpp"

#include "cli/doctor/checks.hpp"
#include "report/environment.hpp"
#include "report/flush.hpp"
#include "report/json_output.hpp"
#include "report/style.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace penstock::cli {

namespace {

constexpr const char* kDoctorFooter =
    R"(Each line is the result of one check:
  ok       nothing to do
  better   it works, and could be better
  PROBLEM  it does not work
with the evidence (--all: also for what is fine) and the command that fixes it.
Nothing is changed and no rights are needed. In a folder, 1 MiB is written to a file
without a name and read back.

Exit code: 0 nothing is broken, 1 something is a problem, 2 wrong usage.

Examples:
  penstock doctor                 this machine, and the current folder
  penstock doctor /data           this machine, and the folder of your data
  penstock doctor /dev/nvme0n1    a block device, opened for reading
  penstock doctor /data --options tuned.json   with the ways to GPUs that tune found
  penstock doctor /data --json -  for machines)";

constexpr std::array<const char*, 3> kShort{"ok", "better", "PROBLEM"};
constexpr std::array<report::Colour, 3> kColours{report::Colour::kGreen, report::Colour::kYellow,
                                                 report::Colour::kRed};
constexpr std::array<const char*, 3> kLong{"ok", "could be better", "problem"};

std::size_t count(const Findings& findings, Severity severity) {
    return static_cast<std::size_t>(
        std::count_if(findings.begin(), findings.end(),
                      [&](const Finding& finding) { return finding.severity == severity; }));
}

void print_findings(std::FILE* out, const Findings& findings, bool all) {
    constexpr std::size_t kIndent = 24;
    const report::Style style(out);
    for (const Finding& finding : findings) {
        const auto severity = static_cast<std::size_t>(finding.severity);
        const std::string word = fmt::format("{:<8}", kShort[severity]);
        fmt::print(out, "  {}{:<14}{}\n", style.paint(kColours[severity], word), finding.topic,
                   style.wrap(finding.what, kIndent));
        if (finding.severity != Severity::kOk || all) {
            fmt::print(out, "{:24}{}\n", "", style.wrap("evidence: " + finding.evidence, kIndent));
        }
        // A command is not broken into lines: it is copied.
        if (!finding.cure.empty()) {
            fmt::print(out, "{:24}fix it:   {}\n", "", finding.cure);
        }
    }
}

nlohmann::json findings_json(const Findings& findings) {
    nlohmann::json json = nlohmann::json::array();
    for (const Finding& finding : findings) {
        json.push_back({{"topic", finding.topic},
                        {"verdict", kLong[static_cast<std::size_t>(finding.severity)]},
                        {"what", finding.what},
                        {"evidence", finding.evidence},
                        {"cure", finding.cure}});
    }
    return json;
}

}  // namespace

void add_doctor_options(CLI::App& app, DoctorOptions& options) {
    app.footer(kDoctorFooter);
    app.add_option("path", options.path, "A folder, file or block device")
        ->capture_default_str()
        ->type_name("PATH");
    app.add_flag("--all", options.all, "Also show the evidence of what is fine");
    app.add_option("--options", options.options,
                   "Options file of tune, whose ways to GPUs are in force")
        ->type_name("FILE");
    app.add_option("--json", options.json,
                   "Write it all to FILE (-: stdout, and the text to stderr)")
        ->type_name("FILE");
}

int doctor(const DoctorOptions& options, std::span<const std::string> command) {
    report::JsonOutput json("--json", options.json);
    std::FILE* const out = json.text_stream();
    const EngineOptions engine =
        options.options.empty() ? Engine::default_options() : load_options(options.options);
    Findings machine;
    check_machine(machine);
    check_gpus(machine);
    fmt::print(out, "Penstock {} doctor\n\nThis machine\n", PENSTOCK_VERSION);
    print_findings(out, machine, options.all);
    Findings path;
    fmt::print(out, "\n{}\n", options.path);
    report::flush(out);
    check_path(options.path, engine.tuned_gpu_paths, path);
    print_findings(out, path, options.all);

    Findings& all = machine;
    all.insert(all.end(), path.begin(), path.end());
    const std::size_t problems = count(all, Severity::kProblem);
    fmt::print(out, "\n{} ok, {} could be better, {} {}.\n", count(all, Severity::kOk),
               count(all, Severity::kBetter), problems, problems == 1 ? "problem" : "problems");
    report::flush(out);
    nlohmann::json words = nlohmann::json::array({"penstock"});
    for (const std::string& word : command) {
        words.push_back(word);
    }
    json.write({{"command", words},
                {"environment", report::machine_json()},
                {"path", options.path},
                {"findings", findings_json(all)},
                {"problems", problems}});
    return problems == 0 ? 0 : 1;
}

}  // namespace penstock::cli
