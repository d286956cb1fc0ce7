// SPDX-License-Identifier: Apache-2.0
#include "plan/derive.hpp"
#include "plan/fields.hpp"
#include "plan/questions/storage_rate.hpp"
#include "plan/questions/train.hpp"
#include "plan/verb.hpp"

#include <penstock/plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::string_view kVerb = "feeds";
constexpr std::array<std::string_view, 4> kFilesOfSamples{"cosmoflow", "retinanet", "maskrcnn",
                                                          "rnnt"};

constexpr std::array<Field<FeedsOptions>, 16> kFields{{
    {"files", Amount::kRate, &FeedsOptions::files,
     "Rate of reads in sequence, as of large files and shards: 5GB/s"},
    {"samples", Amount::kRate, &FeedsOptions::samples,
     "Rate of random reads of 128 KiB, as of a file a sample"},
    {"writes", Amount::kRate, &FeedsOptions::writes, "Rate of durable writes"},
    {"files_low", Amount::kRate, &FeedsOptions::files_low, "The lower end of an interval"},
    {"files_high", Amount::kRate, &FeedsOptions::files_high, "The upper end"},
    {"samples_low", Amount::kRate, &FeedsOptions::samples_low, "The lower end of an interval"},
    {"samples_high", Amount::kRate, &FeedsOptions::samples_high, "The upper end"},
    {"writes_low", Amount::kRate, &FeedsOptions::writes_low, "The lower end of an interval"},
    {"writes_high", Amount::kRate, &FeedsOptions::writes_high, "The upper end"},
    {"model", Amount::kText, &FeedsOptions::model,
     "resnet50, unet3d, ... (default: a table of all presets)"},
    {"preset", Amount::kText, &FeedsOptions::preset,
     "snia-2024, storage-2.0, ... (default: the first that has the model)"},
    {"accelerator", Amount::kText, &FeedsOptions::accelerator,
     "a100, h100, b200, ... (default: the first of the preset)"},
    {"samples_per_second", Amount::kNumber, &FeedsOptions::samples_per_second,
     "Of one accelerator, in place of the preset's"},
    {"bytes_per_sample", Amount::kBytes, &FeedsOptions::bytes_per_sample,
     "In place of the preset's: 150KB"},
    {"checkpoint_bytes", Amount::kBytes, &FeedsOptions::checkpoint_bytes,
     "Ask whether it is written in time: 2450GB"},
    {"within", Amount::kSeconds, &FeedsOptions::within,
     "The time that a checkpoint may take (default: 6min, 5 % of 2 h)"},
}};

constexpr const char* kDetails =
    R"(How many accelerators of each preset a storage feeds, by its rates; and whether
a checkpoint is written in time. `penstock plan measure FOLDER` measures the
rates and answers the same.

Examples:
  penstock plan feeds --files 25GB/s
  penstock plan feeds --files 25GB/s --model unet3d --preset storage-2.0
  penstock plan feeds --writes 6GB/s --checkpoint-bytes 2450GB --within 6min)";

std::span<const Field<FeedsOptions>> fields() {
    return kFields;
}

struct Pattern {
    std::string_view name;
    std::string_view label;
    std::optional<double> FeedsOptions::*mean;
    std::optional<double> FeedsOptions::*low;
    std::optional<double> FeedsOptions::*high;

    [[nodiscard]] std::optional<MeasuredRate> of(const FeedsOptions& options) const {
        return rate_of(kVerb, name, options.*mean, options.*low, options.*high);
    }
};
constexpr Pattern kFiles{"files", "reads in sequence", &FeedsOptions::files,
                         &FeedsOptions::files_low, &FeedsOptions::files_high};
constexpr Pattern kSamples{"samples", "random reads of 128 KiB", &FeedsOptions::samples,
                           &FeedsOptions::samples_low, &FeedsOptions::samples_high};
constexpr Pattern kWrites{"writes", "durable writes", &FeedsOptions::writes,
                          &FeedsOptions::writes_low, &FeedsOptions::writes_high};

const Pattern& pattern_of(const std::string& model) {
    return reads_files_of_samples(model) ? kSamples : kFiles;
}

void add_rates(Answer& out, const FeedsOptions& options) {
    for (const Pattern& pattern : {kFiles, kSamples, kWrites}) {
        if (const std::optional<MeasuredRate> rate = pattern.of(options)) {
            add_rate_figures(out, pattern.name, pattern.label, *rate);
        }
    }
}

void add_job(Answer& out, const FeedsOptions& options) {
    TrainOptions named;
    named.model = options.model;
    named.preset = options.preset;
    named.accelerator = options.accelerator;
    named.samples_per_second = options.samples_per_second;
    named.bytes_per_sample = options.bytes_per_sample;
    const Workload job = workload_of(kVerb, named);
    const Pattern& pattern = pattern_of(job.row.model);
    const std::optional<MeasuredRate> rate = pattern.of(options);
    if (!rate) {
        refuse(kVerb,
               fmt::format("{} needs '{}', the rate of {}", job.name, pattern.name, pattern.label));
    }
    add_figure(out, {"accelerator_bytes_per_second",
                     "one accelerator reads",
                     job.row.samples_per_second * job.row.bytes_per_sample,
                     "B/s",
                     "accelerator_samples_per_second * bytes_per_sample",
                     {{"accelerator_samples_per_second", job.row.samples_per_second, "samples/s",
                       job.row.source},
                      {"bytes_per_sample", job.row.bytes_per_sample, "B", job.row.bytes_source}}});
    const double one = out.at("accelerator_bytes_per_second").value;
    add_multiples(out, "accelerators", "accelerators fed", pattern.name,
                  "accelerator_bytes_per_second");
    out.notes.push_back(fmt::format("It feeds {} of {}; {} bind.", accelerators_text(*rate, one),
                                    job.name, pattern.label));
}

void add_table(Answer& out, const FeedsOptions& options) {
    Table table{"feeds",
                "Accelerators that it feeds",
                {{"preset", "preset", ""},
                 {"model", "model", ""},
                 {"accelerator", "on", ""},
                 {"accelerator_bytes_per_second", "one reads", "B/s"},
                 {"accelerators", "feeds", ""},
                 {"accelerators_low", "at least", ""},
                 {"accelerators_high", "at most", ""},
                 {"binds", "what binds", "", true}},
                {}};
    for (const TrainPreset& row : train_presets()) {
        const Pattern& pattern = pattern_of(row.model);
        const std::optional<MeasuredRate> rate = pattern.of(options);
        const double one = row.samples_per_second * row.bytes_per_sample;
        // v1.0 and v2.0 have the same figures.
        if (rate && row.preset != "storage-1.0") {
            table.rows.push_back(row_of(row.preset, row.model, row.accelerator, one,
                                        rate->mean / one, rate->low / one, rate->high / one,
                                        std::string(pattern.label)));
        }
    }
    if (table.rows.empty()) {
        return;
    }
    out.tables.push_back(std::move(table));
    if (const auto files = kFiles.of(options)) {
        const TrainPreset first = preset_of(kVerb, "resnet50", "snia-2024", "h100");
        const TrainPreset second = preset_of(kVerb, "unet3d", "storage-2.0", "h100");
        out.notes.push_back(fmt::format(
            "It feeds {} of resnet50 on h100 (snia-2024), and {} of unet3d on h100 (storage-2.0); "
            "reads in sequence bind.",
            accelerators_text(*files, first.samples_per_second * first.bytes_per_sample),
            accelerators_text(*files, second.samples_per_second * second.bytes_per_sample)));
    }
}

void add_checkpoint(Answer& out, const FeedsOptions& options) {
    const auto rate = kWrites.of(options);
    if (!rate) {
        refuse(kVerb,
               "checkpoint_bytes needs 'writes', the rate of durable writes (existing files "
               "are only read: name folders)");
    }
    add_figure(out,
               {"checkpoint_bytes", "checkpoint", *options.checkpoint_bytes, "B", "[given]", {}});
    add_durations(out, "checkpoint_seconds", "a checkpoint takes", "checkpoint_bytes",
                  kWrites.name);
    const bool exact = is_exact(*rate);
    const double least = out.at(exact ? "checkpoint_seconds" : "checkpoint_seconds_low").value;
    const double most = out.at(exact ? "checkpoint_seconds" : "checkpoint_seconds_high").value;
    out.notes.push_back(fmt::format(
        "A checkpoint of {} takes {}{}, and may take {}: {}.",
        shown(*options.checkpoint_bytes, "B"), shown(out.at("checkpoint_seconds").value, "s"),
        exact ? "" : fmt::format(" ({} to {}, 95 % interval)", shown(least, "s"), shown(most, "s")),
        shown(options.within, "s"),
        most <= options.within    ? "it fits"
        : least <= options.within ? "whether it fits cannot be said"
                                  : "it does not fit, durable writes bind"));
}

Answer ask_feeds(const std::vector<Word>& words) {
    return feeds(options_of(kVerb, fields(), words));
}

}  // namespace

bool reads_files_of_samples(const std::string& model) {
    return std::find(kFilesOfSamples.begin(), kFilesOfSamples.end(), model) !=
           kFilesOfSamples.end();
}

Answer feeds(const FeedsOptions& options) {
    check_fields(kVerb, fields(), options);
    Answer out;
    out.verb = kVerb;
    out.title = "What a storage of these rates feeds";
    add_rates(out, options);
    if (out.figures.empty()) {
        refuse(kVerb, "expected one or more of the rates files, samples and writes");
    }
    const bool job = !options.model.empty() || !options.preset.empty() ||
                     !options.accelerator.empty() || options.samples_per_second ||
                     options.bytes_per_sample;
    if (job) {
        add_job(out, options);
    } else {
        add_table(out, options);
    }
    if (options.checkpoint_bytes) {
        add_checkpoint(out, options);
    }
    return out;
}

VerbRow feeds_verb() {
    return {
        {std::string(kVerb), "How many accelerators a storage feeds", kDetails, infos_of(fields())},
        ask_feeds};
}

}  // namespace penstock::plan
