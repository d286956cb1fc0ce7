// SPDX-License-Identifier: Apache-2.0
#include "plan/derive.hpp"
#include "plan/fields.hpp"
#include "plan/models/model.hpp"
#include "plan/models/model_table.hpp"
#include "plan/questions/layout_figures.hpp"
#include "plan/questions/optimizer.hpp"
#include "plan/questions/storage_rate.hpp"
#include "plan/verb.hpp"

#include <penstock/plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::string_view kCheckpoint = "checkpoint";
constexpr double kDaySeconds = 86400;
constexpr double kSniaShare = 0.05;
constexpr double kSniaInterval = 7200;
constexpr const char* kSniaSource = "SNIA's talk: 5 % of two hours";

constexpr std::array<Field<CheckpointOptions>, 23> kFields{{
    {"config", Amount::kDocument, &CheckpointOptions::config,
     "The config.json of a Hugging Face model (-: standard input)"},
    {"model", Amount::kText, &CheckpointOptions::model,
     "In place of a config.json: llama-3-70b, dlio-llama-1t, 175b, ... or a number such as 13B"},
    {"optimizer", Amount::kText, &CheckpointOptions::optimizer,
     "snia (14 bytes a parameter), adam, adam-fp32, adam-bf16, adam-8bit, lion, sgd, sgd-momentum, "
     "adafactor, weights (default: snia)"},
    {"bytes_per_parameter", Amount::kNumber, &CheckpointOptions::bytes_per_parameter,
     "In place of the optimizer's"},
    {"tensor", Amount::kCount, &CheckpointOptions::tensor,
     "Ranks that divide each tensor (default: 1)"},
    {"pipeline", Amount::kCount, &CheckpointOptions::pipeline,
     "Stages that divide the layers (default: 1)"},
    {"experts", Amount::kCount, &CheckpointOptions::experts,
     "Ranks that divide the experts of a layer: expert parallelism (default: 1)"},
    {"expert_tensor", Amount::kCount, &CheckpointOptions::expert_tensor,
     "Ranks that divide each tensor of an expert (default: as --tensor)"},
    {"data", Amount::kCount, &CheckpointOptions::data,
     "Replicas (default: 1, or what --ranks leaves)"},
    {"zero", Amount::kCount, &CheckpointOptions::zero, "ZeRO's stage, 0 to 3 (default: 0)", true},
    {"ranks", Amount::kCount, &CheckpointOptions::ranks, "All ranks: tensor x pipeline x data"},
    {"seconds", Amount::kSeconds, &CheckpointOptions::seconds,
     "Time in which a checkpoint has to be written"},
    {"interval", Amount::kSeconds, &CheckpointOptions::interval,
     "Time from one checkpoint to the next"},
    {"share", Amount::kShare, &CheckpointOptions::share,
     "Of the interval that writing may take (default: 5%; 100% with --overlapped)"},
    {"overlapped", Amount::kFlag, &CheckpointOptions::overlapped,
     "Training goes on while a copy in memory is written"},
    {"staging", Amount::kRate, &CheckpointOptions::staging,
     "Rate at which a rank copies its state to host memory"},
    {"keep", Amount::kCount, &CheckpointOptions::keep, "Checkpoints that are kept (default: 1)"},
    {"capacity", Amount::kBytes, &CheckpointOptions::capacity,
     "Bytes of all drives together, for drive writes a day"},
    {"storage", Amount::kRate, &CheckpointOptions::storage,
     "Rate of durable writes that the storage has: says whether it is enough"},
    {"storage_low", Amount::kRate, &CheckpointOptions::storage_low,
     "The lower end of its interval"},
    {"storage_high", Amount::kRate, &CheckpointOptions::storage_high, "The upper end"},
    {"tensors", Amount::kFlag, &CheckpointOptions::tensors, "Also a table of the model's tensors"},
    {"list", Amount::kFlag, &CheckpointOptions::list,
     "SNIA's sizes side by side, and nothing else"},
}};

constexpr const char* kDetails =
    R"(The bytes of a checkpoint: parameters times bytes a parameter. Parameters are
counted exactly, as transformers builds the model of a config.json; --tensors
lists them. With a layout (--tensor, --pipeline, --experts, --data, --zero)
also the bytes of each rank. With a time limit, or with an interval and a share of it,
also the rate of writing. Nothing is read but the config.json.

Examples:
  penstock plan checkpoint --model 175b --interval 2h --share 5%   6.81 GB/s
  penstock plan checkpoint --list                        SNIA's sizes
  penstock plan checkpoint Llama-3-8B/config.json --optimizer adam-8bit
  penstock plan checkpoint --model llama-3-405b --tensor 8 --pipeline 16 --ranks 256 --zero 1
  penstock plan checkpoint Mixtral/config.json --experts 8 --data 16 --zero 1
  penstock plan checkpoint --model 70b --interval 30min --overlapped --capacity 30TB)";

// A parameter in the place of its option, with the default's source where it was not given.
Input given_or(const char* name, const std::optional<double>& value, double otherwise,
               const char* unit, std::string_view source) {
    return {name, value.value_or(otherwise), unit, std::string(value ? kGiven : source)};
}

Answer list_of_sizes() {
    Answer out;
    out.verb = kCheckpoint;
    out.title = "Checkpoints of SNIA's sizes, written in 5 % of two hours (360 s)";
    Table table{"sizes",
                "",
                {{"model", "model", ""},
                 {"parameters", "parameters", ""},
                 {"checkpoint_bytes", "size", "B"},
                 {"write_bytes_per_second", "write in 360 s", "B/s"}},
                {}};
    for (const std::string& name : snia_sizes()) {
        const auto parameters = static_cast<double>(model_named(name).parameters);
        const double bytes = kSniaBytes * parameters;
        table.rows.push_back(row_of(name, parameters, bytes, bytes / (kSniaShare * kSniaInterval)));
    }
    out.tables.push_back(std::move(table));
    out.notes.emplace_back(
        "14 bytes a parameter: 2 (bf16 weights) + 4 + 4 + 4 (fp32 master weights and Adam's two "
        "states). MLPerf Storage's sizes of the same models are in GiB, though it writes GB.");
    return out;
}

void add_rate(Answer& out, const CheckpointOptions& options) {
    const Input bytes = input_of(out, "checkpoint_bytes");
    const double share = options.overlapped ? 1 : kSniaShare;
    if (options.seconds) {
        add_figure(out, {"write_bytes_per_second",
                         "write rate",
                         bytes.value / *options.seconds,
                         "B/s",
                         "checkpoint_bytes / seconds",
                         {bytes, {"seconds", *options.seconds, "s", std::string(kGiven)}}});
    } else if (options.interval) {
        const Input part = given_or("share", options.share, share, "share",
                                    options.overlapped ? kDefault : kSniaSource);
        add_figure(out, {"write_bytes_per_second",
                         "write rate",
                         bytes.value / (part.value * *options.interval),
                         "B/s",
                         "checkpoint_bytes / (share * interval)",
                         {bytes, part, {"interval", *options.interval, "s", std::string(kGiven)}}});
    } else {
        return;
    }
    const Input rate = input_of(out, "write_bytes_per_second");
    add_figure(out, {"write_seconds",
                     "time to write one",
                     bytes.value / rate.value,
                     "s",
                     "checkpoint_bytes / write_bytes_per_second",
                     {bytes, rate}});
}

void add_stall(Answer& out, const CheckpointOptions& options) {
    if (!options.interval) {
        return;
    }
    const Input interval{"interval", *options.interval, "s", std::string(kGiven)};
    const Input seconds = input_of(out, "write_seconds");
    if (seconds.value > interval.value * (1 + 1e-12)) {
        refuse(kCheckpoint,
               fmt::format("seconds: writing takes {} of an interval of {}; expected at most the "
                           "interval, since one checkpoint follows the other",
                           shown(seconds.value, "s"), shown(interval.value, "s")));
    }
    if (!options.overlapped) {
        add_figure(out, {"stall_share",
                         "share of time that training stands still",
                         seconds.value / interval.value,
                         "share",
                         "write_seconds / interval",
                         {seconds, interval}});
    } else if (options.staging) {
        const bool has_ranks =
            std::any_of(out.figures.begin(), out.figures.end(),
                        [](const Figure& figure) { return figure.name == "rank_bytes"; });
        const Input rank = input_of(out, has_ranks ? "rank_bytes" : "checkpoint_bytes");
        const Input staging{"staging", *options.staging, "B/s", std::string(kGiven)};
        add_figure(out, {"stall_seconds",
                         "training stands still for",
                         rank.value / staging.value,
                         "s",
                         rank.name + " / staging",
                         {rank, staging}});
        add_figure(out, {"stall_share",
                         "share of time that training stands still",
                         out.at("stall_seconds").value / interval.value,
                         "share",
                         "stall_seconds / interval",
                         {input_of(out, "stall_seconds"), interval}});
    }
    const Input bytes = input_of(out, "checkpoint_bytes");
    add_figure(out, {"written_bytes_per_day",
                     "written in a day",
                     bytes.value * kDaySeconds / interval.value,
                     "B",
                     "checkpoint_bytes * 86400 / interval",
                     {bytes, interval}});
    if (options.capacity) {
        const Input written = input_of(out, "written_bytes_per_day");
        add_figure(out, {"drive_writes_per_day",
                         "drive writes a day",
                         written.value / *options.capacity,
                         "",
                         "written_bytes_per_day / capacity",
                         {written, {"capacity", *options.capacity, "B", std::string(kGiven)}}});
    }
}

void add_room(Answer& out, const CheckpointOptions& options) {
    const Input bytes = input_of(out, "checkpoint_bytes");
    add_figure(
        out,
        {"room_bytes",
         "room for those kept and one more",
         bytes.value * (options.keep + 1),
         "B",
         "checkpoint_bytes * (keep + 1)",
         {bytes, {"keep", options.keep, "", std::string(options.keep == 1 ? kDefault : kGiven)}}});
    if (options.capacity && out.at("room_bytes").value > *options.capacity) {
        out.notes.push_back(
            fmt::format("The drives have {}, which is less than that room: keep fewer, or "
                        "add drives.",
                        shown(*options.capacity, "B")));
    }
}

void add_storage(Answer& out, const CheckpointOptions& options) {
    const std::optional<MeasuredRate> rate =
        rate_of(kCheckpoint, "storage", options.storage, options.storage_low, options.storage_high);
    if (!rate) {
        return;
    }
    add_rate_figures(out, "storage", "the storage, durable writes", *rate);
    add_durations(out, "storage_seconds", "it takes", "checkpoint_bytes", "storage");
    const std::string takes =
        fmt::format("The storage writes {}, so a checkpoint takes {}", rate_text(*rate),
                    shown(out.at("storage_seconds").value, "s"));
    if (!options.seconds && !options.interval) {
        out.notes.push_back(takes + ".");
        return;
    }
    out.notes.push_back(
        fmt::format("{}; it may take {}: {}.", takes, shown(out.at("write_seconds").value, "s"),
                    verdict_of(*rate, out.at("write_bytes_per_second").value, "durable writes")));
}

Answer ask_checkpoint(const std::vector<Word>& words) {
    return checkpoint(
        options_of(kCheckpoint, std::span<const Field<CheckpointOptions>>(kFields), words));
}

}  // namespace

Answer checkpoint(const CheckpointOptions& options) {
    check_fields(kCheckpoint, std::span<const Field<CheckpointOptions>>(kFields), options);
    if (options.list) {
        return list_of_sizes();
    }
    if (options.share && !options.interval) {
        refuse(kCheckpoint,
               "share: got a share without an interval; expected --interval with it, or "
               "--seconds");
    }
    if (options.share && options.seconds) {
        refuse(kCheckpoint, "share: got a share of the interval and seconds; expected one of them");
    }
    const ModelParameters model = model_of(kCheckpoint, options.model, options.config);
    const OptimizerBytes optimizer = optimizer_named(kCheckpoint, options.optimizer);
    const StateBytes state = state_bytes(model, optimizer, options.bytes_per_parameter);
    Answer out;
    out.verb = kCheckpoint;
    out.title = fmt::format("{}: a checkpoint with {}", model.name,
                            options.bytes_per_parameter
                                ? fmt::format("{} bytes a parameter", *options.bytes_per_parameter)
                                : "optimizer " + optimizer.name);
    add_state(out, model, state, "checkpoint_bytes", "checkpoint");
    if (optimizer.name != "snia" || options.bytes_per_parameter) {
        const Input parameters = input_of(out, "parameters");
        add_figure(out, {"snia_bytes",
                         "as SNIA counts it",
                         kSniaBytes * parameters.value,
                         "B",
                         "parameters * snia_bytes_per_parameter",
                         {parameters,
                          {"snia_bytes_per_parameter", kSniaBytes, "B",
                           optimizer_named(kCheckpoint, "snia").source}}});
    }
    add_layout(out, kCheckpoint, options, model, optimizer, state);
    add_rate(out, options);
    add_stall(out, options);
    add_storage(out, options);
    add_room(out, options);
    add_assumed(out, model);
    if (options.tensors) {
        add_tensors(out, model);
    }
    if (options.overlapped) {
        out.notes.emplace_back(
            "Overlapped: the checkpoint is copied to host memory first, which has to "
            "hold it (each node the shares of its ranks), and is durable only when it "
            "is written: see penstock plan interval --overlapped.");
    }
    return out;
}

VerbRow checkpoint_verb() {
    return {
        {std::string(kCheckpoint), "How large a checkpoint is, and how fast it has to be written",
         kDetails, infos_of(std::span<const Field<CheckpointOptions>>(kFields))},
        ask_checkpoint};
}

}  // namespace penstock::plan
