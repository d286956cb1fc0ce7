// SPDX-License-Identifier: Apache-2.0
#include "plan/questions/pulses.hpp"

#include "plan/fields.hpp"
#include "plan/json_tree.hpp"
#include "plan/questions/train.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

namespace penstock::plan {

namespace {

constexpr std::string_view kVerb = "mix";
constexpr std::size_t kPulsesMax = 1'000'000;
constexpr std::size_t kNameBytesMax = 64;  // a column of the table
constexpr std::size_t kTitleBytesMax = 200;

constexpr std::array<Field<MixJob>, 16> kFields{{
    {"name", Amount::kText, &MixJob::name, ""},
    {"kind", Amount::kText, &MixJob::kind, ""},
    {"model", Amount::kText, &MixJob::model, ""},
    {"preset", Amount::kText, &MixJob::preset, ""},
    {"accelerator", Amount::kText, &MixJob::accelerator, ""},
    {"accelerators", Amount::kCount, &MixJob::accelerators, ""},
    {"utilisation", Amount::kShare, &MixJob::utilisation, ""},
    {"samples_per_second", Amount::kNumber, &MixJob::samples_per_second, ""},
    {"bytes_per_sample", Amount::kBytes, &MixJob::bytes_per_sample, ""},
    {"bytes", Amount::kBytes, &MixJob::bytes, ""},
    {"write_bytes", Amount::kBytes, &MixJob::write_bytes, ""},
    {"copies", Amount::kCount, &MixJob::copies, ""},
    {"start", Amount::kSeconds, &MixJob::start, "", true},
    {"length", Amount::kSeconds, &MixJob::length, ""},
    {"every", Amount::kSeconds, &MixJob::every, ""},
    {"within", Amount::kSeconds, &MixJob::within, ""},
}};

std::span<const Field<MixJob>> fields() {
    return kFields;
}

struct Kind {
    std::string_view name;
    std::string_view needs;  // members, with spaces around each
    std::string_view takes;
};

constexpr std::string_view kTrainMembers =
    " model preset accelerator accelerators utilisation samples_per_second bytes_per_sample ";

constexpr std::array<Kind, 6> kKinds{{
    {"train", " ", " start length "},
    {"evaluation", " every length ", " start "},
    {"checkpoint", " bytes every within ", " start "},
    {"restore", " bytes within ", " copies start every "},
    {"preparation", " within ", " bytes write_bytes start every "},
    {"inference", " bytes within ", " copies start every "},
}};

bool trains(const Kind& kind) {
    return kind.name == "train" || kind.name == "evaluation";
}

bool has(std::string_view members, std::string_view name) {
    return members.find(fmt::format(" {} ", name)) != std::string_view::npos;
}

// "mix: job 'a'": what refuse() has in front of a message.
std::string verb_of(const MixJob& job, std::size_t number) {
    return fmt::format("mix: job {}{}", number + 1,
                       job.name.empty() ? "" : " " + format::shown(job.name));
}

const Kind& kind_of(const MixJob& job, std::string_view verb) {
    std::vector<std::string_view> names;
    for (const Kind& kind : kKinds) {
        if (kind.name == job.kind) {
            return kind;
        }
        names.push_back(kind.name);
    }
    refuse_word(verb, "kind", job.kind, names);
}

// Whether a member has another value than that of an empty job.
bool is_given(const Field<MixJob>& field, const MixJob& job) {
    static const MixJob none;
    return std::visit([&](auto member) { return job.*member != none.*member; }, field.member);
}

void check_members(const MixJob& job, const Kind& kind, std::string_view verb) {
    for (const Field<MixJob>& field : fields()) {
        const std::string_view name = field.name;
        if (name == "name" || name == "kind") {
            continue;
        }
        const bool given = is_given(field, job);
        const bool known = has(kind.needs, name) || has(kind.takes, name) ||
                           (trains(kind) && has(kTrainMembers, name));
        if (given && !known) {
            refuse(verb, fmt::format("{} jobs have no '{}'; expected{}{}{}", kind.name, name,
                                     trains(kind) ? kTrainMembers : kind.needs,
                                     trains(kind) ? kind.needs.substr(1) : "",
                                     kind.takes.substr(1, kind.takes.size() - 2)));
        }
        if (!given && has(kind.needs, name)) {
            refuse(verb, fmt::format("{} jobs need '{}'", kind.name, name));
        }
    }
}

void check_length(std::string_view verb, std::string_view name, std::string_view text,
                  std::size_t most) {
    if (text.size() > most) {
        refuse(verb, fmt::format("{}: got {} bytes; expected at most {}", name, text.size(), most));
    }
}

struct Burst {
    double read = 0;
    double write = 0;
    double start = 0;
    double length = 0;
    double every = 0;  // 0: once
};

Burst burst_of_training(const MixJob& job, const Kind& kind, std::string_view verb,
                        double horizon) {
    TrainOptions options;
    options.model = job.model;
    options.preset = job.preset;
    options.accelerator = job.accelerator;
    options.samples_per_second = job.samples_per_second;
    options.bytes_per_sample = job.bytes_per_sample;
    const Workload workload = workload_of(verb, options);
    Burst out;
    out.read = job.accelerators * job.utilisation * workload.row.samples_per_second *
               workload.row.bytes_per_sample;
    out.start = job.start.value_or(kind.name == "evaluation" ? *job.every : 0);
    out.length = job.length.value_or(std::max(0.0, horizon - out.start));
    out.every = job.every.value_or(0);
    return out;
}

Burst burst_of(const MixJob& job, const Kind& kind, std::string_view verb, double horizon) {
    if (trains(kind)) {
        return burst_of_training(job, kind, verb, horizon);
    }
    if (kind.name == "preparation" && !job.bytes && !job.write_bytes) {
        refuse(verb, "preparation jobs need 'bytes' that are read, 'write_bytes', or both");
    }
    const bool saves = kind.name == "checkpoint";
    Burst out;
    const double rate = job.copies * job.bytes.value_or(0) / *job.within;
    out.read = saves ? 0 : rate;
    out.write = saves ? rate : job.write_bytes.value_or(0) / *job.within;
    out.start = job.start.value_or(saves ? *job.every : 0);
    out.length = *job.within;
    out.every = job.every.value_or(0);
    return out;
}

// Seconds that it is busy.
double add_pulses(const Burst& burst, double horizon, std::string_view verb,
                  std::vector<Pulse>& pulses) {
    double busy = 0;
    const double count = burst.start >= horizon ? 0
                         : burst.every > 0      ? std::ceil((horizon - burst.start) / burst.every)
                                                : 1;
    if (count + static_cast<double>(pulses.size()) > static_cast<double>(kPulsesMax)) {
        refuse(verb, fmt::format("every: a burst each {} in {} makes more than a million bursts; "
                                 "expected fewer: a longer 'every', or a shorter length of the mix",
                                 shown(burst.every, "s"), shown(horizon, "s")));
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        const double start = burst.start + static_cast<double>(i) * burst.every;
        const double end = std::min(horizon, start + burst.length);
        if (end > start) {
            pulses.push_back({start, end, burst.read, burst.write});
            busy += end - start;
        }
    }
    return busy;
}

std::string word_of(std::string_view verb, std::string_view name, const JsonTree& value) {
    switch (value.kind) {
        case JsonTree::Kind::kNumber:
            return fmt::format("{}", value.number);
        case JsonTree::Kind::kString:
            return value.text;
        default:
            refuse(verb,
                   fmt::format("{}: got {}; expected a number or a text", name, value.kind_name()));
    }
}

MixJob job_of(const JsonTree& tree, std::size_t number) {
    const std::string verb = fmt::format("mix: job {}", number + 1);
    if (tree.kind != JsonTree::Kind::kObject) {
        refuse(verb, fmt::format("got {}; expected an object", tree.kind_name()));
    }
    std::vector<Word> words;
    for (std::size_t i = 0; i < tree.items.size(); ++i) {
        words.push_back({tree.names[i], word_of(verb, tree.names[i], tree.items[i])});
    }
    return options_of(verb, fields(), words);
}

}  // namespace

std::vector<JobRates> pulses_of(const MixOptions& options, std::vector<Pulse>& pulses) {
    if (options.jobs.empty()) {
        refuse(kVerb, "jobs: got none; expected one or more");
    }
    check_length(kVerb, "title", options.title, kTitleBytesMax);
    std::vector<JobRates> out;
    for (std::size_t i = 0; i < options.jobs.size(); ++i) {
        const MixJob& job = options.jobs[i];
        const std::string verb = verb_of(job, i);
        check_fields(verb, fields(), job);
        check_length(verb, "name", job.name, kNameBytesMax);
        const Kind& kind = kind_of(job, verb);
        check_members(job, kind, verb);
        const Burst burst = burst_of(job, kind, verb, options.length);
        if (burst.every > 0 && burst.length > burst.every) {
            refuse(verb, fmt::format("it takes {} and comes every {}; expected less than that",
                                     shown(burst.length, "s"), shown(burst.every, "s")));
        }
        if (!std::isfinite(burst.read + burst.write)) {
            refuse(verb, "its rate is out of range; check the units of its numbers");
        }
        const double busy = add_pulses(burst, options.length, verb, pulses);
        out.push_back({job.name.empty() ? job.kind : format::escaped(job.name), job.kind,
                       burst.read, burst.write, std::min(1.0, busy / options.length)});
    }
    return out;
}

MixOptions mix_of_json(std::string_view json) {
    const JsonTree tree = json_tree(json, "plan mix");
    constexpr std::array<std::string_view, 3> kNames{"title", "length", "jobs"};
    if (tree.kind != JsonTree::Kind::kObject) {
        refuse(kVerb,
               fmt::format("the file: got {}; expected an object with 'jobs'", tree.kind_name()));
    }
    for (const std::string& name : tree.names) {
        if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
            refuse_word(kVerb, "the file", name, kNames);
        }
    }
    MixOptions out;
    if (const JsonTree* title = tree.find("title")) {
        out.title = word_of(kVerb, "title", *title);
    }
    if (const JsonTree* length = tree.find("length")) {
        out.length =
            parse_amount(kVerb, "length", word_of(kVerb, "length", *length), Amount::kSeconds);
    }
    const JsonTree* const jobs = tree.find("jobs");
    if (jobs == nullptr || jobs->kind != JsonTree::Kind::kArray) {
        refuse(kVerb, fmt::format("jobs: got {}; expected a list of objects",
                                  jobs == nullptr ? "nothing" : jobs->kind_name()));
    }
    for (std::size_t i = 0; i < jobs->items.size(); ++i) {
        out.jobs.push_back(job_of(jobs->items[i], i));
    }
    return out;
}

}  // namespace penstock::plan
