// SPDX-License-Identifier: Apache-2.0
#include "base/clock.hpp"
#include "base/text/units.hpp"
#include "cli/checkpoint/command.hpp"
#include "cli/checkpoint/json.hpp"
#include "format/fault.hpp"
#include "report/flush.hpp"
#include "report/json_output.hpp"
#include "report/message.hpp"
#include "report/progress.hpp"
#include "state/source.hpp"
#include "store/keep/store_folder.hpp"
#include "store/read/stored_source.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace penstock::cli {

namespace {

void print_problem(std::FILE* out, const CheckpointProblem& problem, bool is_refused) {
    fmt::print(out, "  {}  {}{}{}: {}\n", is_refused ? "UNREADABLE" : "DAMAGED",
               format::escaped(problem.path),
               problem.offset == kNoOffset ? "" : fmt::format(", byte {}", problem.offset),
               problem.tensor.empty() ? "" : ", tensor " + format::shown(problem.tensor),
               format::escaped(problem.message));
}

// Paths to verify, each of one checkpoint.
std::vector<std::string> paths_of(const CheckpointOptions& options) {
    if (!options.all) {
        return {options.path};
    }
    if (!store::is_store(FileSystem::any(), options.path)) {
        throw Error(ErrorCode::kInvalidArgument, 0, "verify", options.path, kNoOffset,
                    fmt::format("{}: --all is for the folder of a store", options.path));
    }
    const auto scan = store::scan_folder(FileSystem::any(), options.path);
    std::vector<std::string> paths;
    for (auto entry = scan.checkpoints.rbegin(); entry != scan.checkpoints.rend(); ++entry) {
        paths.push_back(store::join(options.path, entry->name));
    }
    return paths;
}

}  // namespace

int checkpoint_verify(const CheckpointOptions& options, std::span<const std::string> command) {
    report::JsonOutput json("--json", options.json);
    std::FILE* const out = json.text_stream();
    const auto engine = new_engine(options);
    const base::SteadyClock clock;
    report::Progress progress;
    std::size_t damaged = 0;
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const std::string& path : paths_of(options)) {
        nlohmann::ordered_json row{{"path", path}};
        state::Verified found;
        std::uint64_t bytes = 0;
        bool is_refused = false;  // by the system: it may be whole
        const base::Nanos begin = clock.now();
        try {
            const auto source =
                store::open_source(engine, FileSystem::any(), path, options.generation);
            row["path"] = source->path();
            row["kind"] = source->kind();
            bytes = source->bytes();
            fmt::print(out, "{}: {}, {}, {}\n", source->path(), source->kind(),
                       counted(source->tensors().size(), "tensor"), base::format_bytes(bytes));
            report::flush(out);
            found = source->verify(told_by(progress, "verified"));
        } catch (const Error& error) {
            // Of a whole store, one that cannot be read keeps no other from being verified.
            if (error.reason() != ErrorCode::kDamaged &&
                !(options.all && store::may_concern_it_alone(error))) {
                throw;
            }
            is_refused = error.reason() != ErrorCode::kDamaged;
            const std::string where = error.path().empty() ? path : error.path();
            const std::string what = report::message_of(error);
            const bool twice = what.starts_with(where + ": ");
            found.problems.push_back(
                {where, "", kNoOffset, twice ? what.substr(where.size() + 2) : what});
        }
        progress.clear();
        row["problems"] = nlohmann::ordered_json::array();
        for (const CheckpointProblem& problem : found.problems) {
            print_problem(out, problem, is_refused);
            row["problems"].push_back(json_of(problem));
        }
        if (!found.note.empty()) {
            fmt::print(out, "  {}\n", found.note);
            row["note"] = found.note;
        }
        if (found.problems.empty()) {
            fmt::print(out, "  ok: {} in {}\n", base::format_bytes(bytes),
                       base::format_duration(clock.now() - begin));
        } else {
            ++damaged;
        }
        report::flush(out);
        rows.push_back(std::move(row));
    }
    json.write({{"command", words_of(command)}, {"verified", rows}, {"damaged", damaged}});
    return damaged == 0 ? 0 : 1;
}

}  // namespace penstock::cli
