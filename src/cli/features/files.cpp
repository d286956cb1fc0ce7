// SPDX-License-Identifier: Apache-2.0
// Commands import, show and verify: feature files made of other files, described and checked.
#include "base/clock.hpp"
#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/text/units.hpp"
#include "cli/checkpoint/command.hpp"
#include "cli/checkpoint/json.hpp"
#include "cli/features/command.hpp"
#include "cli/number_from.hpp"
#include "format/fault.hpp"
#include "report/flush.hpp"
#include "report/json_output.hpp"
#include "report/output_file.hpp"
#include "report/progress.hpp"

#include <penstock/engine.hpp>
#include <penstock/features.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

namespace penstock::cli {

namespace {

// "paper=node_feat.npy", or the file alone.
FeatureSource feature_source(const std::string& word, const FeaturesOptions& options) {
    const std::size_t equals = word.find('=');
    FeatureSource source;
    source.path = equals == std::string::npos ? word : word.substr(equals + 1);
    if (source.path.empty() || equals == 0) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "import features",
                                fmt::format("expected NAME=FILE, got {}", format::shown(word))));
    }
    source.table.name = equals != std::string::npos ? word.substr(0, equals) : std::string();
    source.table.dtype = options.dtype;
    source.table.row_shape = row_shape_of(options.row).value_or(std::vector<std::uint64_t>());
    source.offset = options.offset;
    source.rows_max = options.rows == 0 ? UINT64_MAX : options.rows;
    return source;
}

std::string blocks_of(const FeatureTable& table) {
    return fmt::format("{:.2f}", table.touched_4096 / 4096);
}

void print_features(std::FILE* out, const FeatureFile& file) {
    fmt::print(out, "{}: {}, {}, {}\n", format::escaped(file.path),
               file.is_npy ? "a .npy, read where it is" : "a feature file",
               counted(file.tables.size(), "table"), base::format_bytes(file.bytes));
    for (std::size_t i = 0; file.files.size() > 1 && i < file.files.size(); ++i) {
        fmt::print(out, "  part {}: {}\n", i, format::escaped(file.files[i]));
    }
    fmt::print(out, "  {:<18} {:<8} {:<12} {:>13} {:>9} {:>7} {:>4}\n", "table", "dtype", "row",
               "rows", "row bytes", "stride", "4K");
    for (const FeatureTable& table : file.tables) {
        fmt::print(out, "  {:<18} {:<8} {:<12} {:>13} {:>9} {:>7} {}\n",
                   format::escaped(table.name), table.dtype,
                   fmt::format("[{}]", fmt::join(table.row_shape, ", ")), table.rows,
                   table.row_bytes, table.stride_bytes, blocks_of(table));
    }
    fmt::print(out, "  4K: blocks of 4096 bytes that a row touches on average\n");
    for (const FeatureTable& table : file.tables) {
        if (file.is_npy && table.touched_4096 > 1.2 * static_cast<double>(table.row_bytes)) {
            fmt::print(
                out,
                "  its rows begin at byte {}: a device with blocks of 4096 bytes reads {:.0f}\n"
                "  for a row of {}; one with blocks of 512, {:.0f}. `penstock features import`\n"
                "  makes a file whose rows lie in as few blocks as they can\n",
                table.base, table.touched_4096, table.row_bytes, table.touched_512);
        }
    }
}

nlohmann::ordered_json features_json(const FeatureFile& file) {
    nlohmann::ordered_json tables = nlohmann::ordered_json::array();
    for (const FeatureTable& table : file.tables) {
        tables.push_back({{"name", table.name},
                          {"dtype", table.dtype},
                          {"row_shape", table.row_shape},
                          {"rows", table.rows},
                          {"row_bytes", table.row_bytes},
                          {"stride_bytes", table.stride_bytes},
                          {"base", table.base},
                          {"touched_bytes_512", table.touched_512},
                          {"touched_bytes_4096", table.touched_4096}});
    }
    nlohmann::ordered_json files = nlohmann::ordered_json::array();
    for (const std::string& path : file.files) {
        files.push_back(format::escaped(path));
    }
    return {{"path", format::escaped(file.path)},
            {"npy", file.is_npy},
            {"files", files},
            {"bytes", file.bytes},
            {"tables", tables}};
}

}  // namespace

std::optional<std::vector<std::uint64_t>> row_shape_of(std::string_view word) {
    std::vector<std::uint64_t> shape;
    while (true) {
        const std::size_t comma = word.find(',');
        const std::optional<std::uint64_t> length = whole_number(word.substr(0, comma));
        if (!length || *length == 0) {
            return std::nullopt;
        }
        shape.push_back(*length);
        if (comma == std::string_view::npos) {
            return shape;
        }
        word.remove_prefix(comma + 1);
    }
}

int import_feature_files(const FeaturesOptions& options, std::span<const std::string> command) {
    report::refuse_same_output("--json", options.json, "FEATURES", options.path);
    report::JsonOutput json("--json", options.json);
    std::FILE* const out = json.text_stream();
    std::vector<FeatureSource> sources;
    for (const std::string& word : options.sources) {
        sources.push_back(feature_source(word, options));
    }
    const auto engine = std::make_shared<Engine>();
    const base::SteadyClock clock;
    const base::Nanos begin = clock.now();
    report::Progress progress;
    import_features(engine, options.path, sources, {.folders = options.folders},
                    told_by(progress, "imported"));
    progress.clear();
    const FeatureFile file = inspect_features(engine, options.path);
    print_features(out, file);
    fmt::print(out, "  written in {}\n", base::format_duration(clock.now() - begin));
    report::flush(out);
    json.write({{"command", words_of(command)}, {"file", features_json(file)}});
    return 0;
}

int show_features(const FeaturesOptions& options, std::span<const std::string> command) {
    report::JsonOutput json("--json", options.json);
    std::FILE* const out = json.text_stream();
    const FeatureFile file = inspect_features(std::make_shared<Engine>(), options.path);
    print_features(out, file);
    report::flush(out);
    json.write({{"command", words_of(command)}, {"file", features_json(file)}});
    return 0;
}

int verify_feature_file(const FeaturesOptions& options, std::span<const std::string> command) {
    report::JsonOutput json("--json", options.json);
    std::FILE* const out = json.text_stream();
    const auto engine = std::make_shared<Engine>();
    const base::SteadyClock clock;
    const base::Nanos begin = clock.now();
    report::Progress progress;
    const std::vector<FeatureProblem> problems =
        verify_features(engine, options.path, told_by(progress, "verified"));
    progress.clear();
    nlohmann::ordered_json found = nlohmann::ordered_json::array();
    for (const FeatureProblem& problem : problems) {
        fmt::print(out, "  DAMAGED  table {}, from row {} on: {} at byte {} of {}: {}\n",
                   format::shown(problem.table), problem.row, base::format_bytes(problem.bytes),
                   problem.offset, format::escaped(problem.path), format::escaped(problem.message));
        found.push_back({{"table", problem.table},
                         {"row", problem.row},
                         {"path", format::escaped(problem.path)},
                         {"offset", problem.offset},
                         {"bytes", problem.bytes},
                         {"message", format::escaped(problem.message)}});
    }
    if (problems.empty()) {
        fmt::print(out, "{}: ok, verified in {}\n", format::escaped(options.path),
                   base::format_duration(clock.now() - begin));
    }
    report::flush(out);
    json.write({{"command", words_of(command)}, {"problems", found}});
    return problems.empty() ? 0 : 1;
}

}  // namespace penstock::cli
