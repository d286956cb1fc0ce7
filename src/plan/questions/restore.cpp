// SPDX-License-Identifier: Apache-2.0
#include "plan/derive.hpp"
#include "plan/fields.hpp"
#include "plan/models/model.hpp"
#include "plan/models/model_table.hpp"
#include "plan/questions/optimizer.hpp"
#include "plan/questions/storage_rate.hpp"
#include "plan/verb.hpp"

#include <penstock/plan.hpp>

#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::string_view kRestore = "restore";
constexpr double kMinutesOfAnHour = 60;

constexpr std::array<Field<RestoreOptions>, 11> kFields{{
    {"config", Amount::kDocument, &RestoreOptions::config,
     "The config.json of a Hugging Face model (-: standard input)"},
    {"model", Amount::kText, &RestoreOptions::model,
     "In place of a config.json: llama-3-70b, 175b, ... or a number such as 13B"},
    {"optimizer", Amount::kText, &RestoreOptions::optimizer,
     "snia (14 bytes a parameter), adam, ..., weights for the weights alone (default: snia)"},
    {"bytes_per_parameter", Amount::kNumber, &RestoreOptions::bytes_per_parameter,
     "In place of the optimizer's"},
    {"seconds", Amount::kSeconds, &RestoreOptions::seconds,
     "Time in which the job has to run again (default: 5min)"},
    {"copies", Amount::kCount, &RestoreOptions::copies,
     "Replicas that need the whole state (default: 1)"},
    {"broadcast", Amount::kFlag, &RestoreOptions::broadcast,
     "One reads and sends to the others over the fabric"},
    {"storage", Amount::kRate, &RestoreOptions::storage,
     "Rate at which the storage reads: says whether it is enough"},
    {"storage_low", Amount::kRate, &RestoreOptions::storage_low, "The lower end of its interval"},
    {"storage_high", Amount::kRate, &RestoreOptions::storage_high, "The upper end"},
    {"list", Amount::kFlag, &RestoreOptions::list, "SNIA's sizes side by side, and nothing else"},
}};

constexpr const char* kDetails =
    R"(The rate at which a checkpoint has to come back: its bytes, times the replicas
that read all of it (the fan-out), over the time. Replicas that read once and
broadcast ask storage for one copy and the fabric for the others.

Examples:
  penstock plan restore --model 175b --seconds 5min                8.17 GB/s
  penstock plan restore --model 175b --seconds 5min --copies 16    130.7 GB/s
  penstock plan restore --model 175b --seconds 5h --copies 16      2.18 GB/s
  penstock plan restore --model 175b --copies 16 --broadcast       8.17 GB/s
  penstock plan restore --list --copies 16                         SNIA's sizes)";

constexpr const char* kHours =
    "SNIA's talk gives 2.18 GB/s for 175 B, \"16\" and five minutes. Every byte once in five "
    "minutes is "
    "8.17 GB/s, 16 copies are 130.7 GB/s; 2.18 GB/s is 16 copies in five hours, so a factor of 60 "
    "went "
    "astray. Do not plan with it.";

Answer list_of_sizes(const RestoreOptions& options) {
    Answer out;
    out.verb = kRestore;
    out.title = fmt::format("SNIA's sizes read back in {}", shown(options.seconds, "s"));
    Table table{"sizes",
                "",
                {{"model", "model", ""},
                 {"state_bytes", "size", "B"},
                 {"once_bytes_per_second", "every byte once", "B/s"},
                 {"read_bytes_per_second", fmt::format("{:g} copies", options.copies), "B/s"},
                 {"in_hours_bytes_per_second", "the same / 60", "B/s"}},
                {}};
    for (const std::string& name : snia_sizes()) {
        const double bytes = kSniaBytes * static_cast<double>(model_named(name).parameters);
        const double once = bytes / options.seconds;
        table.rows.push_back(row_of(name, bytes, once, options.copies * once,
                                    options.copies * once / kMinutesOfAnHour));
    }
    out.tables.push_back(std::move(table));
    out.notes.emplace_back(kHours);
    return out;
}

void add_storage(Answer& out, const RestoreOptions& options) {
    const std::optional<MeasuredRate> rate =
        rate_of(kRestore, "storage", options.storage, options.storage_low, options.storage_high);
    if (!rate) {
        return;
    }
    add_rate_figures(out, "storage", "the storage, reads in sequence", *rate);
    add_durations(out, "storage_seconds", "it takes", "read_bytes", "storage");
    out.notes.push_back(fmt::format(
        "The storage reads {}, so a restore takes {}; it may take {}: {}.", rate_text(*rate),
        shown(out.at("storage_seconds").value, "s"), shown(options.seconds, "s"),
        verdict_of(*rate, out.at("read_bytes_per_second").value, "reads in sequence")));
}

Answer ask_restore(const std::vector<Word>& words) {
    return restore(options_of(kRestore, std::span<const Field<RestoreOptions>>(kFields), words));
}

}  // namespace

Answer restore(const RestoreOptions& options) {
    check_fields(kRestore, std::span<const Field<RestoreOptions>>(kFields), options);
    if (options.list) {
        return list_of_sizes(options);
    }
    const ModelParameters model = model_of(kRestore, options.model, options.config);
    const OptimizerBytes optimizer = optimizer_named(kRestore, options.optimizer);
    const StateBytes state = state_bytes(model, optimizer, options.bytes_per_parameter);
    Answer out;
    out.verb = kRestore;
    const bool one = options.copies == 1;
    out.title = fmt::format("{} read back in {}{}", model.name, shown(options.seconds, "s"),
                            one ? std::string()
                            : options.broadcast
                                ? fmt::format(" once, and sent to {:g} more", options.copies - 1)
                                : fmt::format(" by each of {:g} replicas", options.copies));
    const std::string given(kGiven);
    add_state(out, model, state, "state_bytes", "state");
    const Input bytes = input_of(out, "state_bytes");
    const Input seconds{
        "seconds", options.seconds, "s",
        options.seconds == RestoreOptions().seconds ? std::string(kDefault) : given};
    const Input copies{"copies", options.copies, "", one ? std::string(kDefault) : given};
    add_figure(out, {"once_bytes_per_second",
                     "every byte once",
                     bytes.value / options.seconds,
                     "B/s",
                     "state_bytes / seconds",
                     {bytes, seconds}});
    const Input once = input_of(out, "once_bytes_per_second");
    const double fan_out = options.broadcast ? 1 : options.copies;
    add_figure(out, {"fan_out", "times that storage is read", fan_out, "",
                     options.broadcast ? "1" : "copies",
                     options.broadcast ? std::vector<Input>{} : std::vector<Input>{copies}});
    add_figure(out, {"read_bytes_per_second",
                     "read rate of the storage",
                     once.value * fan_out,
                     "B/s",
                     "once_bytes_per_second * fan_out",
                     {once, input_of(out, "fan_out")}});
    add_figure(out, {"read_bytes",
                     "read from storage",
                     bytes.value * fan_out,
                     "B",
                     "state_bytes * fan_out",
                     {bytes, input_of(out, "fan_out")}});
    if (options.broadcast) {
        add_figure(out, {"fabric_bytes_per_second",
                         "arriving at the other replicas",
                         once.value * (options.copies - 1),
                         "B/s",
                         "once_bytes_per_second * (copies - 1)",
                         {once, copies}});
        out.notes.emplace_back(
            "A broadcast in a pipeline sends each byte once over each link, so the "
            "fabric of one node has to carry the rate of one copy, in and out.");
    } else if (!one) {
        out.notes.push_back(
            fmt::format("Read once and broadcast, the storage would be asked for {} (--broadcast).",
                        shown(once.value, "B/s")));
        out.notes.emplace_back(kHours);
    }
    add_storage(out, options);
    add_assumed(out, model);
    return out;
}

VerbRow restore_verb() {
    return {{std::string(kRestore), "How fast a checkpoint has to come back", kDetails,
             infos_of(std::span<const Field<RestoreOptions>>(kFields))},
            ask_restore};
}

}  // namespace penstock::plan
