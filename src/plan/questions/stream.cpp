// SPDX-License-Identifier: Apache-2.0
#include "plan/derive.hpp"
#include "plan/fields.hpp"
#include "plan/models/model.hpp"
#include "plan/models/model_table.hpp"
#include "plan/questions/optimizer.hpp"
#include "plan/questions/residency.hpp"
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

constexpr std::string_view kStream = "stream";
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kA100 = 312e12;
constexpr double kH200 = 989e12;

constexpr std::array<Field<StreamOptions>, 20> kFields{{
    {"config", Amount::kDocument, &StreamOptions::config,
     "The config.json of a Hugging Face model (-: standard input)"},
    {"model", Amount::kText, &StreamOptions::model,
     "In place of a config.json: llama-3-70b, ... or a number such as 13B"},
    {"preset", Amount::kText, &StreamOptions::preset,
     "A published run, whose numbers stand in for those not given: --list has them"},
    {"bytes_per_parameter", Amount::kNumber, &StreamOptions::bytes_per_parameter,
     "Of the weights: 2 for bf16, 1 for fp8, 0.5 for 4 bits (default: 2)"},
    {"rate", Amount::kRate, &StreamOptions::rate, "What storage delivers: 13GB/s, 48GiB/s"},
    {"rate_low", Amount::kRate, &StreamOptions::rate_low, "The lower end of its interval"},
    {"rate_high", Amount::kRate, &StreamOptions::rate_high, "The upper end"},
    {"memory", Amount::kBytes, &StreamOptions::memory,
     "Host memory for keys and values, and for as many weights as then fit"},
    {"memory_device", Amount::kBytes, &StreamOptions::memory_device,
     "The accelerator's memory, likewise; it holds the keys and values where it is given"},
    {"kv_host", Amount::kFlag, &StreamOptions::kv_host,
     "Keys and values are in host memory all the same"},
    {"kv_bytes_per_element", Amount::kNumber, &StreamOptions::kv_bytes_per_element,
     "Of keys and values: 2 for bf16, 1 for fp8 (default: 2)"},
    {"kv_bytes_per_token", Amount::kBytes, &StreamOptions::kv_bytes_per_token,
     "Keys and values of a token of a sequence, in place of the model's"},
    {"resident", Amount::kBytes, &StreamOptions::resident,
     "Weights that stay in host memory (default: 0)", true},
    {"resident_device", Amount::kBytes, &StreamOptions::resident_device,
     "Weights that stay in the accelerator's memory (default: 0)", true},
    {"link", Amount::kRate, &StreamOptions::link,
     "From host to accelerator, such as 55GB/s for PCIe 5 x16 (default: never the bound)"},
    {"flops", Amount::kNumber, &StreamOptions::flops,
     "Operations a second of the accelerator, such as 989e12 (default: never the bound)"},
    {"batch", Amount::kCount, &StreamOptions::batch, "Sequences at once (default: 1)"},
    {"prompt", Amount::kCount, &StreamOptions::prompt, "Tokens of a prompt (default: 1)"},
    {"generate", Amount::kCount, &StreamOptions::generate,
     "Tokens generated of each (default: 32)"},
    {"list", Amount::kFlag, &StreamOptions::list,
     "The published runs next to their bounds, and nothing else"},
}};

constexpr const char* kDetails =
    R"(A bound on the tokens a second of a model whose weights are read from storage in
every pass. A pass takes at least as long as storage needs for the weights that
do not stay in memory, as the link needs for those that are not on the
accelerator, and as the accelerator needs to compute. The first pass reads the
prompt, each further one makes a token of every sequence.

What stays in memory is not read again: residency helps more than a faster disk.
With --memory (and --memory-device) the keys and values of the batch take their
part of it first, by the layers, heads and windows of the config.json, and as
many weights as fit in the rest stay.

Examples:
  penstock plan stream --list                       published runs next to their bounds
  penstock plan stream --preset gen5-8-gds
  penstock plan stream --preset gen5-8-gds --resident-device 100GB
  penstock plan stream --model 8b --rate 3GB/s --batch 4
  penstock plan stream --model llama-3-8b --rate 3GB/s --memory 12GiB --batch 16 --prompt 2048
  penstock plan stream config.json --rate 7GB/s --resident 16GiB)";

constexpr const char* kDeepSpeed =
    "DeepSpeed's blog on DeepNVMe, June 2025: ZeRO-Inference, LLAMA3-70B, prompt 512, 32 tokens, "
    "batch 96; "
    "rates by its ds_io, which divides by 2^30";
constexpr const char* kSglang =
    "DeepSpeed's blog on DeepNVMe, June 2025: SGLang with ZeRO-Inference, LLAMA3-70B, prompt 512, "
    "32 tokens, "
    "batch 128; it prints tokens of prompts and output together, of which 32 of 544 are output";
constexpr double kOutputShare = 32.0 / 544.0;

struct Preset {
    const char* name;
    const char* device;
    double rate;
    double flops;
    double batch;
    double published;
    const char* source;
};

// Tokens a second as published; of the runs with SGLang, the output's part of them.
constexpr std::array<Preset, 8> kPresets{
    {{"gen4-4-aio", "A100, 4 Gen4 drives, AIO", 10.0 * kGiB, kA100, 96, 6.2, kDeepSpeed},
     {"gen4-4-gds", "A100, 4 Gen4 drives, GDS", 9.6 * kGiB, kA100, 96, 7.2, kDeepSpeed},
     {"gen5-4-aio", "H200, 4 Gen5 drives, AIO", 23.4 * kGiB, kH200, 96, 15.6, kDeepSpeed},
     {"gen5-4-gds", "H200, 4 Gen5 drives, GDS", 26.5 * kGiB, kH200, 96, 17, kDeepSpeed},
     {"gen5-8-aio", "H200, 8 Gen5 drives, AIO", 46.0 * kGiB, kH200, 96, 22.8, kDeepSpeed},
     {"gen5-8-gds", "H200, 8 Gen5 drives, GDS", 48.0 * kGiB, kH200, 96, 26, kDeepSpeed},
     {"sglang-aio", "H200, 8 Gen5 drives, AIO", 46.0 * kGiB, kH200, 128, 290 * kOutputShare,
      kSglang},
     {"sglang-gds", "H200, 8 Gen5 drives, GDS", 48.0 * kGiB, kH200, 128, 400 * kOutputShare,
      kSglang}}};
constexpr const char* kPresetModel = "llama-3-70b";
constexpr double kPresetPrompt = 512;
constexpr double kPresetGenerate = 32;

const Preset& preset_named(const std::string& name) {
    std::array<std::string_view, kPresets.size()> known;
    for (std::size_t i = 0; i < kPresets.size(); ++i) {
        if (name == kPresets[i].name) {
            return kPresets[i];
        }
        known[i] = kPresets[i].name;
    }
    refuse_word(kStream, "preset", name, known);
}

// Whether the bound is one of the published run: what was given changes none of its reads.
bool is_as_published(const StreamOptions& options) {
    return options.model.empty() && options.config.empty() && !options.bytes_per_parameter &&
           !options.rate && !options.memory && !options.memory_device && options.resident == 0 &&
           options.resident_device == 0 && !options.batch && !options.prompt && !options.generate;
}

Answer list_of_presets() {
    Answer out;
    out.verb = kStream;
    out.title =
        "Published runs of ZeRO-Inference (LLAMA3-70B, 512 tokens of prompt, 32 generated) and "
        "their bounds";
    Table table{"presets",
                "",
                {{"preset", "preset", ""},
                 {"device", "on", ""},
                 {"batch", "batch", ""},
                 {"rate", "storage", "B/s"},
                 {"published_tokens_per_second", "published", "tokens/s"},
                 {"tokens_per_second", "bound", "tokens/s"},
                 {"share_of_bound", "of bound", "share"},
                 {"source", "source", "", true}},
                {}};
    for (const Preset& preset : kPresets) {
        StreamOptions options;
        options.preset = preset.name;
        const double bound = stream(options).at("tokens_per_second").value;
        table.rows.push_back(row_of(preset.name, preset.device, preset.batch, preset.rate,
                                    preset.published, bound, preset.published / bound,
                                    preset.source));
    }
    out.tables.push_back(std::move(table));
    out.notes.emplace_back(
        "More than 100 % of the bound: the rate and the tokens were not measured together (four "
        "Gen4 drives "
        "are rated at 13 GB/s).");
    return out;
}

// The longest of what is known, with its name.
Figure longest(const Answer& out, const char* name, const char* label,
               const std::vector<const char*>& candidates) {
    Figure figure{name, label, 0, "s", "", {}};
    for (const char* candidate : candidates) {
        const auto found = std::find_if(out.figures.begin(), out.figures.end(),
                                        [&](const Figure& each) { return each.name == candidate; });
        if (found != out.figures.end()) {
            figure.value = std::max(figure.value, found->value);
            figure.formula += figure.formula.empty() ? candidate : std::string(", ") + candidate;
            figure.inputs.push_back(input_of(out, candidate));
        }
    }
    figure.formula = figure.inputs.size() == 1 ? figure.formula : "max(" + figure.formula + ")";
    return figure;
}

void add_streamed(Answer& out) {
    const Input weights = input_of(out, "weights_bytes");
    const Input host = input_of(out, "resident_bytes");
    const Input device = input_of(out, "resident_device_bytes");
    add_figure(out, {"streamed_bytes",
                     "read from storage in a pass",
                     std::max(0.0, weights.value - host.value - device.value),
                     "B",
                     "max(0, weights_bytes - resident_bytes - resident_device_bytes)",
                     {weights, host, device}});
}

void add_times(Answer& out, const StreamOptions& options, const Input& rate, const Input& batch,
               const Input& prompt, const std::optional<Input>& flops) {
    const Input streamed = input_of(out, "streamed_bytes");
    add_figure(out, {"storage_seconds",
                     "a pass, for storage",
                     streamed.value / rate.value,
                     "s",
                     "streamed_bytes / rate",
                     {streamed, rate}});
    if (options.link) {
        const Input weights = input_of(out, "weights_bytes");
        const Input device = input_of(out, "resident_device_bytes");
        const Input link{"link", *options.link, "B/s", std::string(kGiven)};
        add_figure(out, {"link_seconds",
                         "a pass, for the link",
                         (weights.value - device.value) / link.value,
                         "s",
                         "(weights_bytes - resident_device_bytes) / link",
                         {weights, device, link}});
    }
    if (flops) {
        const Input parameters = input_of(out, "parameters");
        add_figure(out, {"compute_seconds",
                         "a pass, for the accelerator",
                         2 * parameters.value * batch.value / flops->value,
                         "s",
                         "2 * parameters * batch / flops",
                         {parameters, batch, *flops}});
        add_figure(out, {"prompt_compute_seconds",
                         "the first pass, for the accelerator",
                         2 * parameters.value * batch.value * prompt.value / flops->value,
                         "s",
                         "2 * parameters * batch * prompt / flops",
                         {parameters, batch, prompt, *flops}});
    }
    add_figure(out, longest(out, "pass_seconds", "a pass",
                            {"storage_seconds", "link_seconds", "compute_seconds"}));
    add_figure(out, longest(out, "prefill_seconds", "the first pass",
                            {"storage_seconds", "link_seconds", "prompt_compute_seconds"}));
}

std::string binding(const Answer& out) {
    const double pass = out.at("pass_seconds").value;
    return out.at("storage_seconds").value == pass ? "storage"
           : std::any_of(out.figures.begin(), out.figures.end(),
                         [&](const Figure& each) {
                             return each.name == "link_seconds" && each.value == pass;
                         })
               ? "the link from host to accelerator"
               : "the accelerator's computing";
}

// The bound at the ends of the interval of a measured rate.
void add_ends(Answer& out, const StreamOptions& options) {
    const std::optional<MeasuredRate> rate =
        rate_of(kStream, "rate", options.rate, options.rate_low, options.rate_high);
    if (!rate || is_exact(*rate)) {
        return;
    }
    for (const RateEnd& end : kRateEnds) {
        if (end.suffix[0] != '\0') {
            StreamOptions at = options;
            at.rate = *rate.*end.value;
            at.rate_low.reset();
            at.rate_high.reset();
            const std::string name = std::string("rate") + end.suffix;
            add_figure(out, {std::string("tokens_per_second") + end.suffix,
                             fmt::format("tokens generated{}", end.label),
                             stream(at).at("tokens_per_second").value,
                             "tokens/s",
                             fmt::format("[tokens_per_second with {} in place of rate]", name),
                             {{name, *at.rate, "B/s", std::string(kGiven)}}});
        }
    }
    out.notes.push_back(
        fmt::format("The storage reads {}, which bounds the tokens to {:.4g}/s ({:.4g} to {:.4g}).",
                    rate_text(*rate), out.at("tokens_per_second").value,
                    out.at("tokens_per_second_low").value, out.at("tokens_per_second_high").value));
}

Answer ask_stream(const std::vector<Word>& words) {
    return stream(options_of(kStream, std::span<const Field<StreamOptions>>(kFields), words));
}

}  // namespace

Answer stream(const StreamOptions& options) {
    check_fields(kStream, std::span<const Field<StreamOptions>>(kFields), options);
    if (options.list) {
        return list_of_presets();
    }
    const Preset* const preset = options.preset.empty() ? nullptr : &preset_named(options.preset);
    if (preset == nullptr && !options.rate) {
        refuse(kStream, "rate: expected --rate, what storage delivers, such as 7GB/s; or --preset");
    }
    const bool own_model = !options.model.empty() || !options.config.empty();
    const ModelParameters model = preset != nullptr && !own_model
                                      ? model_named(kPresetModel)
                                      : model_of(kStream, options.model, options.config);
    const auto pick = [&](const char* name, const std::optional<double>& own,
                          const double* published, double otherwise, const char* unit) {
        return Input{name,
                     own                    ? *own
                     : published != nullptr ? *published
                                            : otherwise,
                     unit,
                     std::string(own                    ? kGiven
                                 : published != nullptr ? preset->source
                                                        : kDefault)};
    };
    const Input rate =
        pick("rate", options.rate, preset != nullptr ? &preset->rate : nullptr, 0, "B/s");
    const Input batch =
        pick("batch", options.batch, preset != nullptr ? &preset->batch : nullptr, 1, "");
    const Input prompt =
        pick("prompt", options.prompt, preset != nullptr ? &kPresetPrompt : nullptr, 1, "");
    const Input generate =
        pick("generate", options.generate, preset != nullptr ? &kPresetGenerate : nullptr, 32, "");
    std::optional<Input> flops;
    if (options.flops || preset != nullptr) {
        flops =
            pick("flops", options.flops, preset != nullptr ? &preset->flops : nullptr, 0, "1/s");
        if (!options.flops) {
            flops->source = "the accelerator's peak in bf16, from its data sheet";
        }
    }
    Answer out;
    out.verb = kStream;
    out.title = fmt::format(
        "{} from storage at {}, batch {:g}{}", model.name, shown(rate.value, "B/s"), batch.value,
        preset == nullptr ? std::string() : fmt::format(" ({})", preset->device));
    add_state(out, model,
              state_bytes(model, optimizer_named(kStream, "weights"), options.bytes_per_parameter),
              "weights_bytes", "weights");
    add_kv_cache(out, options, model, batch, prompt, generate);
    add_residents(out, options, model);
    add_streamed(out);
    add_times(out, options, rate, batch, prompt, flops);
    const Input pass = input_of(out, "pass_seconds");
    const Input prefill = input_of(out, "prefill_seconds");
    const double seconds = prefill.value + (generate.value - 1) * pass.value;
    if (!(seconds > 0)) {
        refuse(kStream,
               "all weights are resident, and neither --link nor --flops is given: nothing here "
               "takes time; "
               "expected a smaller --resident, or what else binds");
    }
    add_figure(out, {"tokens_per_second",
                     "tokens generated, at most",
                     batch.value * generate.value / seconds,
                     "tokens/s",
                     "batch * generate / (prefill_seconds + (generate - 1) * pass_seconds)",
                     {batch, generate, prefill, pass}});
    add_ends(out, options);
    const Input tokens = input_of(out, "tokens_per_second");
    if (preset != nullptr && is_as_published(options)) {
        add_figure(out, {"published_tokens_per_second",
                         "published",
                         preset->published,
                         "tokens/s",
                         "published",
                         {{"published", preset->published, "tokens/s", preset->source}}});
        add_figure(out, {"share_of_bound",
                         "published, of the bound",
                         preset->published / tokens.value,
                         "share",
                         "published_tokens_per_second / tokens_per_second",
                         {input_of(out, "published_tokens_per_second"), tokens}});
    }
    out.notes.push_back(fmt::format("The bound of a pass is {}.", binding(out)));
    out.notes.emplace_back(
        "A bound: reads, copies and computing overlap fully, and every pass reads the weights once "
        "for the whole batch. The keys and values of the sequences are in memory, and moving them "
        "takes no time here.");
    add_assumed(out, model);
    return out;
}

VerbRow stream_verb() {
    return {
        {std::string(kStream), "How fast a model generates whose weights are read in every pass",
         kDetails, infos_of(std::span<const Field<StreamOptions>>(kFields))},
        ask_stream};
}

}  // namespace penstock::plan
