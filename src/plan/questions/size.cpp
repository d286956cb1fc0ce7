// SPDX-License-Identifier: Apache-2.0
#include "plan/derive.hpp"
#include "plan/fields.hpp"
#include "plan/questions/train.hpp"
#include "plan/verb.hpp"

#include <penstock/plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::string_view kVerb = "size";
constexpr double kFilesOfAFolder = 131072;

constexpr std::array<Field<SizeOptions>, 11> kFields{{
    {"model", Amount::kText, &SizeOptions::model, "resnet50, unet3d, ...: plan train --list"},
    {"preset", Amount::kText, &SizeOptions::preset,
     "storage-1.0, -2.0, -3.0, dlio (default: the first with a batch that has the model)"},
    {"accelerator", Amount::kText, &SizeOptions::accelerator,
     "a100, h100, b200, ... (default: the first of the preset)"},
    {"accelerators", Amount::kCount, &SizeOptions::accelerators, "How many (default: 1)"},
    {"hosts", Amount::kCount, &SizeOptions::hosts, "How many hosts have them (default: 1)"},
    {"memory_bytes", Amount::kBytes, &SizeOptions::memory_bytes, "Of one host: 512GiB; needed"},
    {"batch", Amount::kCount, &SizeOptions::batch,
     "Samples a step of one accelerator, in place of the preset's"},
    {"bytes_per_sample", Amount::kBytes, &SizeOptions::bytes_per_sample,
     "In place of the preset's: 150KB"},
    {"samples_per_file", Amount::kCount, &SizeOptions::samples_per_file,
     "In place of the preset's (default: 1)"},
    {"steps", Amount::kCount, &SizeOptions::steps, "Steps of an epoch, at least (default: 500)"},
    {"memory_factor", Amount::kNumber, &SizeOptions::memory_factor,
     "Data divided by the memory of all hosts (default: 5)"},
}};

constexpr const char* kDetails =
    R"(How large a data set has to be so that a benchmark measures storage and not the
page cache: at least 5 times the memory of all hosts, and at least 500 steps of
all accelerators (MLPerf Storage, section 3 of its rules).

Examples:
  penstock plan size --model unet3d --accelerators 8 --memory-bytes 512GiB
  penstock plan size --batch 64 --bytes-per-sample 150KB --memory-bytes 64GiB)";

constexpr const char* kRule = "MLPerf Storage rules, v1.0 to v3.0";

std::span<const Field<SizeOptions>> fields() {
    return kFields;
}

Workload workload_of_size(const SizeOptions& options) {
    Workload out;
    if (options.model.empty()) {
        if (!options.batch || !options.bytes_per_sample || !options.preset.empty() ||
            !options.accelerator.empty()) {
            refuse(kVerb,
                   "expected --model, or --batch and --bytes-per-sample together; penstock "
                   "plan train --list has the models");
        }
        out.name = "a job of its own";
    } else {
        out.row =
            preset_of(kVerb, options.model, options.preset, options.accelerator, !options.batch);
        out.name = fmt::format("{} on {} ({})", out.row.model, out.row.accelerator, out.row.preset);
    }
    const std::string given(kGiven);
    if (options.batch) {
        out.row.batch = *options.batch;
    }
    if (options.bytes_per_sample) {
        out.row.bytes_per_sample = *options.bytes_per_sample;
        out.row.bytes_source = given;
    }
    if (options.samples_per_file) {
        out.row.samples_per_file = *options.samples_per_file;
    }
    return out;
}

Answer ask_size(const std::vector<Word>& words) {
    return size(options_of(kVerb, fields(), words));
}

void add_samples(Answer& out, const SizeOptions& options, const Workload& job) {
    const std::string given(kGiven);
    const TrainPreset& row = job.row;
    const Input steps{"steps", options.steps, "", options.steps == 500 ? kRule : given};
    const Input batch{"batch", row.batch, "samples", options.batch ? given : row.source};
    const Input count{"accelerators", options.accelerators, "", given};
    add_figure(out, {"samples_for_steps",
                     "samples for the steps",
                     options.steps * row.batch * options.accelerators,
                     "samples",
                     "steps * batch * accelerators",
                     {steps, batch, count}});
    const Input factor{"memory_factor", options.memory_factor, "",
                       options.memory_factor == 5 ? kRule : given};
    const Input hosts{"hosts", options.hosts, "", given};
    const Input memory{"memory_bytes", *options.memory_bytes, "B", given};
    const Input bytes{"bytes_per_sample", row.bytes_per_sample, "B", row.bytes_source};
    add_figure(out, {"samples_for_memory",
                     "samples for the memory",
                     std::ceil(options.memory_factor * options.hosts * *options.memory_bytes /
                               row.bytes_per_sample),
                     "samples",
                     "ceil(memory_factor * hosts * memory_bytes / bytes_per_sample)",
                     {factor, hosts, memory, bytes}});
    add_figure(out, {"samples",
                     "samples needed",
                     std::max(out.figures[0].value, out.figures[1].value),
                     "samples",
                     "max(samples_for_steps, samples_for_memory)",
                     {input_of(out, "samples_for_steps"), input_of(out, "samples_for_memory")}});
    const Input each{"samples_per_file", row.samples_per_file, "samples",
                     options.samples_per_file ? given : std::string("num_samples_per_file")};
    add_figure(out, {"files",
                     "files",
                     std::ceil(out.at("samples").value / row.samples_per_file),
                     "files",
                     "ceil(samples / samples_per_file)",
                     {input_of(out, "samples"), each}});
    add_figure(out, {"data_bytes",
                     "data set",
                     out.at("files").value * row.samples_per_file * row.bytes_per_sample,
                     "B",
                     "files * samples_per_file * bytes_per_sample",
                     {input_of(out, "files"), each, bytes}});
    add_figure(out,
               {"cached_share",
                "share that memory holds",
                std::min(1.0, options.hosts * *options.memory_bytes / out.at("data_bytes").value),
                "share",
                "min(1, hosts * memory_bytes / data_bytes)",
                {hosts, memory, input_of(out, "data_bytes")}});
    if (row.samples_per_second > 0) {
        const Input rate{"accelerator_samples_per_second", row.samples_per_second, "samples/s",
                         row.source};
        add_figure(out, {"epoch_seconds",
                         "an epoch at full speed",
                         out.at("samples").value / (options.accelerators * row.samples_per_second),
                         "s",
                         "samples / (accelerators * accelerator_samples_per_second)",
                         {input_of(out, "samples"), count, rate}});
    }
}

}  // namespace

Answer size(const SizeOptions& options) {
    check_fields(kVerb, fields(), options);
    if (!options.memory_bytes) {
        refuse(kVerb, "expected --memory-bytes, the memory of one host, such as 512GiB");
    }
    const Workload job = workload_of_size(options);
    Answer out;
    out.verb = kVerb;
    out.title = fmt::format("A data set for {}: {} accelerator{} in {} host{} of {}", job.name,
                            number_text(options.accelerators), options.accelerators == 1 ? "" : "s",
                            number_text(options.hosts), options.hosts == 1 ? "" : "s",
                            in_two_bases(*options.memory_bytes, "B").binary);
    add_samples(out, options, job);
    const bool memory = out.at("samples_for_memory").value >= out.at("samples_for_steps").value;
    out.notes.push_back(fmt::format(
        "{} decides. A data set that memory holds is read from storage once, and later epochs "
        "measure memory.",
        memory ? fmt::format("The rule of {} x memory", number_text(options.memory_factor))
               : fmt::format("The rule of {} steps", number_text(options.steps))));
    if (out.at("files").value > kFilesOfAFolder) {
        out.notes.emplace_back(
            "More than 131,072 files: MLPerf Storage spreads these over sub-folders.");
    }
    return out;
}

VerbRow size_verb() {
    return {{std::string(kVerb), "How large a data set has to be", kDetails, infos_of(fields())},
            ask_size};
}

}  // namespace penstock::plan
