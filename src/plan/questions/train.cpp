// SPDX-License-Identifier: Apache-2.0
#include "plan/questions/train.hpp"

#include "plan/derive.hpp"
#include "plan/fields.hpp"
#include "plan/questions/storage_rate.hpp"
#include "plan/verb.hpp"

#include <penstock/plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::string_view kVerb = "train";

constexpr std::array<Field<TrainOptions>, 11> kFields{{
    {"model", Amount::kText, &TrainOptions::model, "resnet50, unet3d, ...: --list has all"},
    {"preset", Amount::kText, &TrainOptions::preset,
     "Whose figures: snia-2024, training-3.1, training-5.1, storage-1.0, -2.0, -3.0, dlio "
     "(default: the first that has the model)"},
    {"accelerator", Amount::kText, &TrainOptions::accelerator,
     "a100, h100, b200, ... (default: the first of the preset)"},
    {"accelerators", Amount::kCount, &TrainOptions::accelerators, "How many (default: 1)"},
    {"utilisation", Amount::kShare, &TrainOptions::utilisation,
     "Share of time in which accelerators compute (default: 1)"},
    {"samples_per_second", Amount::kNumber, &TrainOptions::samples_per_second,
     "Of one accelerator, in place of the preset's"},
    {"bytes_per_sample", Amount::kBytes, &TrainOptions::bytes_per_sample,
     "In place of the preset's: 150KB, 2MiB"},
    {"storage", Amount::kRate, &TrainOptions::storage,
     "Rate at which the storage reads: says whether it is enough"},
    {"storage_low", Amount::kRate, &TrainOptions::storage_low, "The lower end of its interval"},
    {"storage_high", Amount::kRate, &TrainOptions::storage_high, "The upper end"},
    {"list", Amount::kFlag, &TrainOptions::list, "All presets side by side, and nothing else"},
}};

constexpr const char* kDetails =
    R"(The rate at which a training job reads so that no accelerator waits: samples a
second of an accelerator, times bytes of a sample, times accelerators, times
the share of time in which they compute.

Presets are of two kinds. snia-2024 and training-* are throughputs that MLPerf
Training logged: what a tuned job takes. storage-* and dlio are computing times
that MLPerf Storage and DLIO wait for: what a submission has to feed.

Examples:
  penstock plan train --list                      all presets side by side
  penstock plan train --model resnet50 --accelerators 8
  penstock plan train --model unet3d --preset storage-2.0 --accelerator h100
  penstock plan train --samples-per-second 1200 --bytes-per-sample 150KB
  penstock plan train --model resnet50 --explain  formula, inputs and sources)";

// The preset's own word of what requests look like.
std::string_view shape_of(std::string_view model) {
    if (model == "unet3d") {
        return "What storage sees: whole .npz files of 50 to 300 MB in random order, each read in "
               "sequence. NumPy asks for 256 KiB at a time, which NFS cuts at its rsize (64 to "
               "256 KB); from S3 the same are ranges of 20 to 50 MB.";
    }
    if (model == "resnet50" || model == "bert") {
        return "What storage sees: shards of records (TFRecord, tar) read in sequence, 64 to 256 "
               "KB a request on NFS, ranges of 20 to 50 MB on S3; with a random order of samples "
               "one read of a sample's size each, out of the shards.";
    }
    if (reads_files_of_samples(std::string(model))) {
        return "What storage sees: a small file a sample in random order, so an open, a read of "
               "the whole file and a close each; operations a second bind before bytes do. From "
               "S3 one GET a sample.";
    }
    if (model == "dlrm" || model == "flux") {
        return "What storage sees: column chunks of Parquet files, some MB a range, in the order "
               "of row groups; columns that are not used are skipped or read in vain.";
    }
    return "What storage sees: samples out of large shards, read in sequence (64 to 256 KB a "
           "request on NFS, ranges of 20 to 50 MB on S3), or a request a sample where the order "
           "is random.";
}

constexpr const char* kWhichIsWhich =
    "Which is which: MLPerf Training logs what a tuned job takes, MLPerf Storage fixes the "
    "computing time of a batch. For ResNet-50 on H100 they are a factor of 4 apart (7,075 "
    "samples/s logged; 400 in 0.224 s, so 1,786, fixed): plan for the first, submit with the "
    "second.";

constexpr const char* kColdOnly =
    "Demand at the storage is this only where the data set is much larger than memory: from the "
    "second epoch on what fits the page cache is read from there.";

std::vector<std::string_view> distinct(const std::vector<TrainPreset>& rows,
                                       std::string TrainPreset::*member) {
    std::vector<std::string_view> out;
    for (const TrainPreset& row : rows) {
        if (std::find(out.begin(), out.end(), row.*member) == out.end()) {
            out.emplace_back(row.*member);
        }
    }
    return out;
}

// Keeps the rows that have the word; refuses one that none has.
void narrow(std::vector<TrainPreset>& rows, std::string_view verb, std::string_view name,
            const std::string& word, std::string TrainPreset::*member) {
    if (word.empty()) {
        return;
    }
    std::vector<TrainPreset> kept;
    for (const TrainPreset& row : rows) {
        if (row.*member == word) {
            kept.push_back(row);
        }
    }
    if (kept.empty()) {
        refuse_word(verb, name, word, distinct(rows, member));
    }
    rows = std::move(kept);
}

Answer list_of_presets() {
    Answer out;
    out.verb = kVerb;
    out.title = "Published throughputs of training jobs, and what each reads";
    Table table{"presets",
                "",
                {{"preset", "preset", ""},
                 {"model", "model", ""},
                 {"accelerator", "on", ""},
                 {"samples_per_second", "samples/s", "samples/s"},
                 {"bytes_per_sample", "a sample", "B"},
                 {"read_bytes_per_second", "one reads", "B/s"},
                 {"read_bytes_per_second_of_8", "8 read", "B/s"},
                 {"source", "source", "", true},
                 {"bytes_source", "source of the bytes", "", true}},
                {}};
    for (const TrainPreset& row : train_presets()) {
        const double rate = row.samples_per_second * row.bytes_per_sample;
        table.rows.push_back(row_of(row.preset, row.model, row.accelerator, row.samples_per_second,
                                    row.bytes_per_sample, rate, 8 * rate, row.source,
                                    row.bytes_source));
    }
    out.tables.push_back(std::move(table));
    out.notes = {kWhichIsWhich, kColdOnly};
    return out;
}

void add_storage(Answer& out, const TrainOptions& options, const std::string& model) {
    const std::optional<MeasuredRate> rate =
        rate_of(kVerb, "storage", options.storage, options.storage_low, options.storage_high);
    if (!rate) {
        return;
    }
    const std::string_view reads =
        reads_files_of_samples(model) ? "random reads of 128 KiB" : "reads in sequence";
    add_rate_figures(out, "storage", fmt::format("the storage, {}", reads), *rate);
    add_multiples(out, "accelerators_fed", "accelerators that it feeds", "storage",
                  "accelerator_bytes_per_second");
    const double needed = out.at("read_bytes_per_second").value;
    out.notes.push_back(fmt::format(
        "The storage reads {}, and the job needs {}: {}. It feeds {}.", rate_text(*rate),
        in_two_bases(needed, "B/s").decimal, verdict_of(*rate, needed, reads),
        accelerators_text(*rate, out.at("accelerator_bytes_per_second").value)));
}

Answer ask_train(const std::vector<Word>& words) {
    return train(options_of(kVerb, std::span<const Field<TrainOptions>>(kFields), words));
}

}  // namespace

TrainPreset preset_of(std::string_view verb, const std::string& model, const std::string& preset,
                      const std::string& accelerator, bool with_batch) {
    std::vector<TrainPreset> rows = train_presets();
    narrow(rows, verb, "model", model, &TrainPreset::model);
    if (!preset.empty()) {
        const std::vector<TrainPreset> all = train_presets();
        const auto known = distinct(all, &TrainPreset::preset);
        if (std::find(known.begin(), known.end(), preset) == known.end()) {
            refuse_word(verb, "preset", preset, known);
        }
    }
    const auto has = [&](const TrainPreset& row) { return row.preset == preset; };
    if (!preset.empty() && std::none_of(rows.begin(), rows.end(), has)) {
        refuse(verb, fmt::format("preset '{}' has no {}; it is in {}", preset, model,
                                 fmt::join(distinct(rows, &TrainPreset::preset), ", ")));
    }
    narrow(rows, verb, "preset", preset, &TrainPreset::preset);
    narrow(rows, verb, "accelerator", accelerator, &TrainPreset::accelerator);
    if (with_batch) {
        std::erase_if(rows, [](const TrainPreset& row) { return row.batch == 0; });
        if (rows.empty()) {
            refuse(verb, fmt::format("{} has no batch in {}; expected --batch, or a preset of "
                                     "MLPerf Storage",
                                     model, preset.empty() ? "any preset" : preset));
        }
    }
    return rows.front();
}

Workload workload_of(std::string_view verb, const TrainOptions& options) {
    Workload out;
    const bool own = options.samples_per_second && options.bytes_per_sample;
    if (options.model.empty() &&
        (!own || !options.preset.empty() || !options.accelerator.empty())) {
        refuse(verb,
               "expected --model, or --samples-per-second and --bytes-per-sample together; "
               "penstock plan train --list has the models");
    }
    if (!options.model.empty()) {
        out.row = preset_of(verb, options.model, options.preset, options.accelerator);
    }
    const std::string given(kGiven);
    if (options.samples_per_second) {
        out.row.samples_per_second = *options.samples_per_second;
        out.row.source = given;
    }
    if (options.bytes_per_sample) {
        out.row.bytes_per_sample = *options.bytes_per_sample;
        out.row.bytes_source = given;
    }
    out.name = options.model.empty() ? std::string("a job of its own")
                                     : fmt::format("{} on {} ({})", out.row.model,
                                                   out.row.accelerator, out.row.preset);
    return out;
}

Answer train(const TrainOptions& options) {
    check_fields(kVerb, std::span<const Field<TrainOptions>>(kFields), options);
    if (options.list) {
        return list_of_presets();
    }
    const Workload job = workload_of(kVerb, options);
    const TrainPreset& row = job.row;
    Answer out;
    out.verb = kVerb;
    const std::string given(kGiven);
    out.title = fmt::format("{}, {} accelerator{}, {} utilisation", job.name,
                            number_text(options.accelerators), options.accelerators == 1 ? "" : "s",
                            shown(options.utilisation, "share"));
    const Input count{"accelerators", options.accelerators, "", given};
    const Input use{"utilisation", options.utilisation, "share", given};
    const Input rate{"accelerator_samples_per_second", row.samples_per_second, "samples/s",
                     row.source};
    const Input bytes{"bytes_per_sample", row.bytes_per_sample, "B", row.bytes_source};
    add_figure(out, {"samples_per_second",
                     "samples read",
                     options.accelerators * row.samples_per_second * options.utilisation,
                     "samples/s",
                     "accelerators * accelerator_samples_per_second * utilisation",
                     {count, rate, use}});
    add_figure(out, {"read_bytes_per_second",
                     "read rate",
                     out.figures[0].value * row.bytes_per_sample,
                     "B/s",
                     "samples_per_second * bytes_per_sample",
                     {input_of(out, "samples_per_second"), bytes}});
    add_figure(out, {"accelerator_bytes_per_second",
                     "of one accelerator",
                     out.at("read_bytes_per_second").value / options.accelerators,
                     "B/s",
                     "read_bytes_per_second / accelerators",
                     {input_of(out, "read_bytes_per_second"), count}});
    if (row.utilisation > 0) {
        const double pass = row.utilisation;
        add_figure(
            out,
            {"pass_bytes_per_second",
             "the least that passes",
             out.at("read_bytes_per_second").value / options.utilisation * pass,
             "B/s",
             "read_bytes_per_second / utilisation * pass_utilisation",
             {input_of(out, "read_bytes_per_second"),
              use,
              {"pass_utilisation", pass, "share", fmt::format("metric.au of {}", row.preset)}}});
    }
    add_storage(out, options, row.model);
    out.notes.emplace_back(shape_of(row.model));
    if (row.model == "resnet50") {
        out.notes.emplace_back(kWhichIsWhich);
    }
    out.notes.emplace_back(kColdOnly);
    return out;
}

VerbRow train_verb() {
    return {{std::string(kVerb), "How fast a training job reads", kDetails,
             infos_of(std::span<const Field<TrainOptions>>(kFields))},
            ask_train};
}

}  // namespace penstock::plan
