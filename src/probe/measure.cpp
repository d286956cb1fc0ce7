// SPDX-License-Identifier: Apache-2.0
// <penstock/plan.hpp>: patterns take turns on all paths at once, and a question of plan is
// answered with their rates.
#include "base/clock.hpp"
#include "base/raise.hpp"
#include "base/text/units.hpp"
#include "format/fault.hpp"
#include "probe/job.hpp"
#include "probe/scratch.hpp"
#include "probe/statistics.hpp"
#include "probe/watch.hpp"

#include <penstock/plan.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

namespace penstock::plan {

namespace {

using probe::JobSpec;
using probe::Rw;
using probe::Target;

constexpr const char* kOperation = "plan measure";
constexpr int kRounds = 5;
constexpr std::uint64_t kLeastBytes = std::uint64_t{4} << 20;
constexpr double kMostBytes = 1ULL << 60U;
constexpr double kLeastSlice = 0.02;  // seconds
constexpr double kConfidence = 0.95;
constexpr double kLeastSeconds = 0.1;
constexpr double kMostSeconds = 3600;
constexpr base::Nanos kReportNs = 100'000'000;
constexpr double kPlaceholder = 1e9;  // a rate, while words are checked

struct MeasuredPattern {
    const char* name;  // of the rate among the options of "feeds"
    const char* doing;
    bool MeasureOptions::*wanted;
    std::optional<MeasuredRate> StorageRates::*rate;
    JobSpec job;
};

// Requests as the engine makes them of whole files and shards, of samples, and of a save.
constexpr std::array<MeasuredPattern, 3> kPatterns{{{"files",
                                                     "reading in sequence",
                                                     &MeasureOptions::files,
                                                     &StorageRates::files,
                                                     {Rw::kRead, 1 << 20, 16}},
                                                    {"samples",
                                                     "reading at random",
                                                     &MeasureOptions::samples,
                                                     &StorageRates::samples,
                                                     {Rw::kRandRead, 128 << 10, 32}},
                                                    {"writes",
                                                     "writing durably",
                                                     &MeasureOptions::writes,
                                                     &StorageRates::writes,
                                                     {Rw::kWrite, 1 << 20, 16}}}};

[[noreturn]] void refuse_measure(const std::string& message) {
    base::raise(base::error(ErrorCode::kInvalidArgument, kOperation, message));
}

// Reports to the caller's function about ten times a second, which may stop the run.
class CallerWatch final : public probe::Watch {
public:
    CallerWatch(const MeasureOptions& options, const base::Clock& clock)
        : options_(options), clock_(clock), start_(clock.now()) {}

    void begin(std::string doing, std::size_t step, std::size_t steps) {
        now_ = {std::move(doing), step, steps, seconds_left(), 0};
        report();
    }
    void check() override {
        if (clock_.now() >= next_) {
            report();
        }
    }
    [[nodiscard]] bool due() const override { return clock_.now() >= next_; }
    void moved(std::uint64_t bytes, double seconds) override {
        now_.bytes_per_second = static_cast<double>(bytes) / (seconds + 1e-9);
        report();
    }
    void filled(const std::string& path, std::uint64_t bytes, std::uint64_t /*of*/,
                double seconds) override {
        now_.doing = fmt::format("making the scratch file {}", path);
        now_.bytes_per_second = static_cast<double>(bytes) / seconds;
    }
    [[nodiscard]] double seconds_left() const {
        return std::max(0.0, options_.seconds - static_cast<double>(clock_.now() - start_) * 1e-9);
    }

private:
    void report() {
        next_ = clock_.now() + kReportNs;
        now_.seconds_left = seconds_left();
        if (options_.progress && !options_.progress(now_)) {
            base::raise(base::error(ErrorCode::kCancelled, kOperation,
                                    "stopped by its progress function; no scratch file is left"));
        }
    }

    const MeasureOptions& options_;
    const base::Clock& clock_;
    base::Nanos start_;
    base::Nanos next_ = 0;
    MeasureStep now_;
};

class StorageProbe {
public:
    explicit StorageProbe(const MeasureOptions& options) : options_(options) {}

    StorageRates run() {
        make_targets();
        std::vector<MeasuredPattern> patterns;
        std::copy_if(kPatterns.begin(), kPatterns.end(), std::back_inserter(patterns),
                     [&](const MeasuredPattern& one) {
                         return options_.*one.wanted && (!is_write(one.job.rw) || writable());
                     });
        const std::size_t steps = patterns.size() * (kRounds + 1);
        const double slice =
            std::max(kLeastSlice, watch_.seconds_left() / static_cast<double>(steps));
        std::vector<std::vector<double>> rates(patterns.size());
        std::size_t step = 0;
        // Patterns take turns, so that a disturbance meets them all.
        for (int round = 0; round <= kRounds; ++round) {
            for (std::size_t i = 0; i < patterns.size(); ++i) {
                watch_.begin(patterns[i].doing, ++step, steps);
                const double rate = rate_of_run(patterns[i].job, slice);
                if (round > 0) {  // the first finds the device idle
                    rates[i].push_back(rate);
                }
            }
        }
        StorageRates out;
        out.places = places();
        for (std::size_t i = 0; i < patterns.size(); ++i) {
            const probe::MeanInterval interval = probe::mean_interval(rates[i], kConfidence);
            // Student's interval of runs that differ much has no lower end above 0.
            out.*patterns[i].rate = MeasuredRate{
                interval.mean, std::max(interval.low, interval.mean / 100), interval.high};
        }
        return out;
    }

private:
    void make_targets() {
        targets_.reserve(options_.paths.size());
        for (const std::string& path : options_.paths) {
            probe::TargetRequest request;
            request.command = "plan";
            request.path = path;
            request.size_bytes = static_cast<std::uint64_t>(options_.size.value_or(0));
            request.size_name = "size";
            request.cache = CachePolicy::kRequired;
            watch_.begin(fmt::format("opening {}", path), 0, 0);
            targets_.push_back(probe::make_target(request, watch_));
            if (targets_.back().bytes < kLeastBytes) {
                refuse_measure(fmt::format("{}: got {}; expected {} or more", format::escaped(path),
                                           base::format_bytes(targets_.back().bytes),
                                           base::format_bytes(kLeastBytes)));
            }
        }
        for (const Target& target : targets_) {
            all_.push_back(&target);
        }
    }

    [[nodiscard]] std::string places() const {
        std::string out;
        for (std::size_t i = 0; i < targets_.size(); ++i) {
            out += fmt::format("{}{} ({}, direct I/O)", out.empty() ? "" : ", ",
                               format::escaped(options_.paths[i]),
                               targets_[i].file.info().file_system);
        }
        return out;
    }
    [[nodiscard]] bool writable() const {
        return std::all_of(targets_.begin(), targets_.end(),
                           [](const Target& target) { return target.ours; });
    }

    double rate_of_run(const JobSpec& job, double seconds) {
        const probe::Sample sample = probe::run_job(job, {.seconds = seconds}, all_, pool_, watch_);
        double spent = sample.seconds;
        if (is_write(job.rw)) {
            const base::Nanos before = clock_.now();
            for (Target& target : targets_) {
                target.file.sync_data();
            }
            spent += static_cast<double>(clock_.now() - before) * 1e-9;
        }
        return static_cast<double>(sample.bytes) / spent;
    }

    const MeasureOptions& options_;
    base::SteadyClock clock_;
    CallerWatch watch_{options_, clock_};
    std::vector<Target> targets_;
    std::vector<const Target*> all_;
    MemoryPool pool_;
};

// A path that comes twice would be counted as two devices.
void check_paths(const std::vector<std::string>& paths, bool only_writes) {
    if (paths.empty()) {
        refuse_measure("paths: got none; expected folders, files or block devices");
    }
    for (std::size_t i = 0; i < paths.size(); ++i) {
        if (paths[i].find('\0') != std::string::npos) {
            refuse_measure(fmt::format("paths: got {}; expected a path without a zero byte",
                                       format::shown(paths[i])));
        }
        std::error_code failed;
        if (only_writes && std::filesystem::exists(paths[i], failed) &&
            !std::filesystem::is_directory(paths[i], failed)) {
            refuse_measure(fmt::format(
                "{} is no folder: what exists is only read, and durable writes are asked for; "
                "expected folders",
                format::shown(paths[i])));
        }
        for (std::size_t k = 0; k < i; ++k) {
            if (std::filesystem::equivalent(paths[i], paths[k], failed)) {
                refuse_measure(fmt::format("{} and {} are the same; expected each path once",
                                           format::shown(paths[k]), format::shown(paths[i])));
            }
        }
    }
}

void check_options(const MeasureOptions& options) {
    if (!(options.seconds >= kLeastSeconds && options.seconds <= kMostSeconds)) {
        refuse_measure(fmt::format("seconds: got {}; expected {} to {}", options.seconds,
                                   kLeastSeconds, kMostSeconds));
    }
    if (options.size &&
        !(*options.size >= static_cast<double>(kLeastBytes) && *options.size <= kMostBytes &&
          std::floor(*options.size) == *options.size)) {
        refuse_measure(fmt::format("size: got {}; expected whole bytes, {} or more", *options.size,
                                   base::format_bytes(kLeastBytes)));
    }
    if (!options.files && !options.samples && !options.writes) {
        refuse_measure("expected one or more of files, samples and writes");
    }
    check_paths(options.paths, !options.files && !options.samples);
}

// Whether "feeds" takes the rate: of one job those that it reads by, and writes.
bool is_asked_by_feeds(const MeasuredPattern& pattern, bool one_job, const std::string& model) {
    return is_write(pattern.job.rw) || !one_job ||
           is_random(pattern.job.rw) == reads_files_of_samples(model);
}

// A question, the pattern that it asks for, and the option that takes its rate. "" is the pattern
// of the model: of files or of samples.
struct MeasuredVerb {
    std::string_view verb;
    std::string_view pattern;
    std::string_view option;
};
constexpr std::array<MeasuredVerb, 4> kVerbs{{{"train", "", "storage"},
                                              {"checkpoint", "writes", "storage"},
                                              {"restore", "files", "storage"},
                                              {"stream", "files", "rate"}}};
constexpr std::string_view kFeeds = "feeds";

std::string word_of(const std::vector<Word>& words, std::string_view name) {
    const auto found = std::find_if(words.begin(), words.end(),
                                    [&](const Word& word) { return word.name == name; });
    return found == words.end() ? std::string() : found->text;
}

bool has_word(const std::vector<Word>& words, std::string_view name) {
    return std::any_of(words.begin(), words.end(),
                       [&](const Word& word) { return word.name == name; });
}

// The option of the question that takes the rate of a pattern; empty for one that it does not ask
// for.
std::string option_of(std::string_view verb, const std::vector<Word>& words,
                      const MeasuredPattern& pattern) {
    const std::string model = word_of(words, "model");
    if (verb == kFeeds) {
        const bool one = has_word(words, "model") || has_word(words, "bytes_per_sample");
        return is_asked_by_feeds(pattern, one, model) ? pattern.name : std::string();
    }
    for (const MeasuredVerb& known : kVerbs) {
        if (known.verb == verb) {
            const std::string_view wanted = !known.pattern.empty()          ? known.pattern
                                            : reads_files_of_samples(model) ? "samples"
                                                                            : "files";
            return std::string(pattern.name == wanted ? known.option : std::string_view());
        }
    }
    std::vector<std::string_view> names{kFeeds};
    for (const MeasuredVerb& known : kVerbs) {
        names.push_back(known.verb);
    }
    refuse_measure(fmt::format("question: got {}; expected one of {}, which measured rates answer",
                               format::shown(std::string(verb)), fmt::join(names, ", ")));
}

void add_rate(std::vector<Word>& words, const std::string& name, const MeasuredRate& rate) {
    words.push_back({name, fmt::format("{}", rate.mean)});
    words.push_back({name + "_low", fmt::format("{}", rate.low)});
    words.push_back({name + "_high", fmt::format("{}", rate.high)});
}

// Says where the rates come from.
void add_origin(Answer& answer, const StorageRates& rates) {
    answer.notes.push_back(fmt::format(
        "Measured on {}: means of {} runs of each pattern in turn, with Student's 95 % interval, "
        "past the page cache of this host. A cache in the drive, the server or the hypervisor is "
        "part of what was measured.",
        rates.places, kRounds));
}

void call_it_measure(Answer& answer, const StorageRates& rates) {
    answer.verb = "measure";
    answer.title = fmt::format("What {} feeds", rates.places);
    if (!rates.writes) {
        answer.notes.emplace_back(
            "Existing files are only read: durable writes were not measured.");
    }
    add_origin(answer, rates);
}

}  // namespace

StorageRates measure_rates(const MeasureOptions& options) {
    check_options(options);
    return StorageProbe(options).run();
}

Answer ask_measured(std::string_view verb, const std::vector<Word>& words,
                    const MeasureOptions& options) {
    MeasureOptions wanted = options;
    std::vector<Word> checked = words;
    std::vector<std::string> names;
    for (const MeasuredPattern& pattern : kPatterns) {
        names.push_back(option_of(verb, words, pattern));
        wanted.*pattern.wanted = !names.back().empty();
        if (has_word(words, names.back())) {
            refuse_measure(fmt::format("{}: got a rate and paths to measure; expected one of them",
                                       names.back()));
        }
        if (!names.back().empty()) {
            checked.push_back({names.back(), fmt::format("{}", kPlaceholder)});
        }
    }
    // Refuses what is wrong with the question before a gigabyte is written.
    check_options(wanted);
    static_cast<void>(ask(verb, checked));
    const StorageRates rates = measure_rates(wanted);
    std::vector<Word> all = words;
    for (std::size_t i = 0; i < kPatterns.size(); ++i) {
        if (const auto& rate = rates.*kPatterns[i].rate) {
            add_rate(all, names[i], *rate);
        }
    }
    Answer answer = ask(verb, all);
    if (verb == kFeeds) {
        call_it_measure(answer, rates);
    } else {
        add_origin(answer, rates);
    }
    return answer;
}

Answer measure(const FeedsOptions& job, const MeasureOptions& options) {
    const bool one = !job.model.empty() || job.bytes_per_sample;
    MeasureOptions wanted = options;
    for (const MeasuredPattern& pattern : kPatterns) {
        wanted.*pattern.wanted = is_asked_by_feeds(pattern, one, job.model);
    }
    FeedsOptions checked = job;
    checked.files = checked.samples = checked.writes = kPlaceholder;
    check_options(wanted);
    static_cast<void>(feeds(checked));
    const StorageRates rates = measure_rates(wanted);
    const auto fill = [](const std::optional<MeasuredRate>& rate, std::optional<double>& mean,
                         std::optional<double>& low, std::optional<double>& high) {
        if (rate) {
            mean = rate->mean;
            low = rate->low;
            high = rate->high;
        }
    };
    FeedsOptions measured = job;
    fill(rates.files, measured.files, measured.files_low, measured.files_high);
    fill(rates.samples, measured.samples, measured.samples_low, measured.samples_high);
    fill(rates.writes, measured.writes, measured.writes_low, measured.writes_high);
    Answer answer = feeds(measured);
    call_it_measure(answer, rates);
    return answer;
}

}  // namespace penstock::plan
