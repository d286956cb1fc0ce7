// SPDX-License-Identifier: Apache-2.0
// Command plan: what a budget keeps in memory and reads, a line a group of layers.
#include "base/text/units.hpp"
#include "cli/weights/command.hpp"
#include "format/fault.hpp"
#include "report/flush.hpp"
#include "report/json_output.hpp"

#include <penstock/engine.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace penstock::cli {

namespace {

using base::format_bytes;

constexpr std::size_t kNameWidth = 34;

// The number that an option's word was replaced by; 0 for "measured" and where none is given.
double given(const std::string& word) {
    return base::parse_seconds(word).value_or(0);
}

struct Speed {
    double rate = 0;  // bytes a second; 0: not known
    double compute_seconds = 0;
    double seconds = 0;
};

// `given`: what the options say in numbers. The rest is measured.
Speed speed_of(Speed given, const WeightsOptions& options, Engine& engine,
               const WeightFolders& model, const WeightForecast& forecast) {
    if (options.compute == kMeasured) {
        given.compute_seconds =
            static_cast<double>(forecast.weights_of_token()) / measure_memory_rate();
    }
    if (options.rate == kMeasured) {
        given.rate = measure_weight_rate(engine, model);
    }
    if (given.rate > 0) {
        given.seconds = pass_seconds(forecast, given.rate, given.compute_seconds);
    }
    return given;
}

// Layers of one group, which follow one another.
struct Group {
    std::string prefix;  // with its dot; empty for a unit by itself
    std::string first;
    std::string last;
    std::size_t units = 0;
    std::uint64_t bytes = 0;
    std::uint64_t read_bytes = 0;

    [[nodiscard]] std::string name() const {
        return units == 1 ? first : fmt::format("{} to {}", first, last.substr(prefix.size()));
    }
};

std::vector<Group> groups_of(const WeightPlan& plan) {
    std::vector<Group> out;
    for (const WeightPlan::Unit& unit : plan.units) {
        const std::size_t digits = unit.name.find_last_not_of("0123456789") + 1;
        const std::string prefix =
            digits == unit.name.size() ? std::string() : unit.name.substr(0, digits);
        if (out.empty() || prefix.empty() || out.back().prefix != prefix) {
            Group& group = out.emplace_back();
            group.prefix = prefix;
            group.first = unit.name;
        }
        Group& group = out.back();
        group.last = unit.name;
        ++group.units;
        group.bytes += unit.bytes;
        group.read_bytes += unit.read_bytes;
    }
    return out;
}

// The end of a long name says more than its beginning.
std::string cut(const std::string& name) {
    const std::string text = format::escaped(name);
    return text.size() <= kNameWidth ? text : "..." + text.substr(text.size() - kNameWidth + 3);
}

void print_plan(std::FILE* out, const WeightFolders& model, const WeightForecast& forecast) {
    const WeightPlan& plan = forecast.plan;
    fmt::print(out, "{}: {} in {} tensors, {} file{}\n", format::escaped(model.table.path),
               format_bytes(forecast.weight_bytes), model.table.tensors.size(),
               model.table.files.size(), model.table.files.size() == 1 ? "" : "s");
    fmt::print(out, "  memory {}: {} stay, ", format_bytes(plan.memory_bytes),
               format_bytes(forecast.stay_bytes + plan.resident_bytes));
    if (plan.slots == 0) {
        fmt::print(out, "no slot is needed\n");
    } else {
        fmt::print(out, "{} slots of {}\n", plan.slots, format_bytes(plan.slot_bytes));
    }
    fmt::print(out, "  the least that works is {}, for {}\n",
               format_bytes(forecast.least_memory_bytes), cut(forecast.least_tensor));
    for (const std::string& name : forecast.rows) {
        fmt::print(out, "  read by row: {}\n", format::escaped(name));
    }
    fmt::print(out, "\n  {:<{}}  {:>5}  {:>9}  {:>9}  {:>9}\n", "units", kNameWidth, "count",
               "size", "stays", "read");
    const ExpertForecast& experts = forecast.experts;
    for (const Group& group : groups_of(plan)) {
        fmt::print(out, "  {:<{}}  {:>5}  {:>9}  {:>9}  {:>9}\n", cut(group.name()), kNameWidth,
                   group.units, format_bytes(group.bytes),
                   format_bytes(group.bytes - group.read_bytes), format_bytes(group.read_bytes));
    }
    if (experts.experts != 0) {
        fmt::print(out, "  {:<{}}  {:>5}  {:>9}  {:>9}  {:>9}\n", "experts", kNameWidth,
                   experts.experts, format_bytes(experts.bytes),
                   format_bytes(experts.slots * experts.slot_bytes),
                   format_bytes(experts.read_bytes));
        fmt::print(out,
                   "\n  a token uses {} of {} experts, of which {:.0f} % are expected in memory\n",
                   experts.chosen, experts.experts, 100 * experts.hits);
    }
}

void print_speed(std::FILE* out, const WeightsOptions& options, const WeightForecast& forecast,
                 const Speed& speed) {
    fmt::print(out, "\n  a token reads {}", format_bytes(forecast.read_bytes()));
    if (speed.rate > 0) {
        fmt::print(out, " at {}{}", base::format_rate(speed.rate),
                   options.rate == kMeasured ? " (measured)" : "");
        fmt::print(out, ": {}{}", speed.compute_seconds > 0 ? "" : "at least ",
                   base::format_duration(static_cast<std::int64_t>(speed.seconds * 1e9)));
    }
    fmt::print(out, "\n");
    if (options.compute == kMeasured) {
        fmt::print(out, "  it is computed with {}, in {} or more (measured)\n",
                   format_bytes(forecast.weights_of_token()),
                   base::format_duration(static_cast<std::int64_t>(speed.compute_seconds * 1e9)));
    }
}

nlohmann::ordered_json json_of(const ExpertForecast& experts) {
    if (experts.experts == 0) {
        return nullptr;
    }
    return {{"layers", experts.layers},
            {"experts", experts.experts},
            {"chosen", experts.chosen},
            {"bytes", experts.bytes},
            {"memory_bytes", experts.memory_bytes},
            {"slots", experts.slots},
            {"slot_bytes", experts.slot_bytes},
            {"hits", experts.hits},
            {"read_bytes", experts.read_bytes}};
}

nlohmann::ordered_json json_of(const WeightFolders& model, const WeightForecast& forecast) {
    const WeightPlan& plan = forecast.plan;
    nlohmann::ordered_json units = nlohmann::ordered_json::array();
    for (const WeightPlan::Unit& unit : plan.units) {
        units.push_back(
            {{"name", unit.name}, {"bytes", unit.bytes}, {"read_bytes", unit.read_bytes}});
    }
    return {{"path", model.table.path},
            {"files", model.table.files.size()},
            {"tensors", model.table.tensors.size()},
            {"weight_bytes", forecast.weight_bytes},
            {"memory_bytes", plan.memory_bytes},
            {"used_bytes", forecast.used_bytes()},
            {"resident_bytes", forecast.stay_bytes + plan.resident_bytes},
            {"slots", plan.slots},
            {"slot_bytes", plan.slot_bytes},
            {"read_bytes", forecast.read_bytes()},
            {"token_bytes", forecast.weights_of_token()},
            {"rows", forecast.rows},
            {"least_memory_bytes", forecast.least_memory_bytes},
            {"least_tensor", forecast.least_tensor},
            {"units", units},
            {"experts", json_of(forecast.experts)}};
}

// Names of models in the local cache of Hugging Face mean their folders.
std::vector<std::string> folders_of(Engine& engine, std::vector<std::string> folders) {
    for (std::string& folder : folders) {
        std::error_code ignored;
        if (!std::filesystem::exists(folder, ignored)) {
            const std::string found = find_hub_model(engine, folder);
            folder = found.empty() ? folder : found;
        }
    }
    return folders;
}

}  // namespace

int weights_plan(const WeightsOptions& options, std::span<const std::string> command) {
    report::JsonOutput json("--json", options.json);
    std::FILE* const out = json.text_stream();
    const auto engine = std::make_shared<Engine>();
    const std::vector<std::string> folders = folders_of(*engine, options.folders);
    const WeightFolders model = inspect_folders(engine, folders);
    std::uint64_t experts = options.experts;
    if (experts == 0 && !find_expert_layers(model.table).empty()) {
        experts = find_experts_per_token(*engine, folders);
    }
    const WeightForecast forecast =
        forecast_weights(model.table, options.memory, options.slots, experts);
    print_plan(out, model, forecast);
    report::flush(out);
    const Speed speed =
        speed_of({given(options.rate), given(options.compute)}, options, *engine, model, forecast);
    print_speed(out, options, forecast, speed);
    report::flush(out);
    nlohmann::ordered_json words = nlohmann::ordered_json::array({"penstock"});
    for (const std::string& word : command) {
        words.push_back(word);
    }
    nlohmann::ordered_json all{{"command", words}};
    all.update(json_of(model, forecast));
    if (!options.compute.empty()) {
        all["compute_seconds"] = speed.compute_seconds;
        all["compute_is_measured"] = options.compute == kMeasured;
    }
    if (speed.rate > 0) {
        all["rate_bytes_per_second"] = speed.rate;
        all["rate_is_measured"] = options.rate == kMeasured;
        all["seconds_a_token"] = speed.seconds;
    }
    json.write(all);
    return 0;
}

}  // namespace penstock::cli
