// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/command.hpp"

#include "base/clock.hpp"
#include "base/units.hpp"
#include "cli/environment.hpp"
#include "cli/json_output.hpp"
#include "cli/progress.hpp"
#include "cli/scratch.hpp"
#include "cli/tune/paste.hpp"
#include "cli/tune/report.hpp"
#include "cli/tune/search.hpp"
#include "cli/tune/slice.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

namespace penstock::cli {

namespace {

constexpr double kSliceSeconds = 0.15;
constexpr double kSearchSecondsMin = 3;  // even if making the file took its time
constexpr double kEndSeconds = 3;        // for the last slice, the small reads and the report

// The backends of this machine except the one that runs anyway.
std::vector<BackendKind> other_backends(const EngineDescription& running) {
    std::vector<BackendKind> found;
    for (const BackendKind kind : {BackendKind::kUring, BackendKind::kAio, BackendKind::kPosix}) {
        EngineOptions options = Engine::default_options();
        options.backend = kind;
        try {
            if (Engine(options).describe().backend != running.backend) {
                found.push_back(kind);
            }
        } catch (const Error&) {
            continue;  // not available here; doctor says why
        }
    }
    return found;
}

class Tune {
public:
    explicit Tune(const TuneOptions& options)
        : options_(options), json_("--json", options.json), out_(json_.text_stream()) {
        if (!options.output.empty()) {
            check_options_file(options.output);
        }
    }

    void run(std::span<const std::string> command) {
        defaults_ = Engine::default_options();
        description_ = Engine(defaults_).describe();
        target_ = make_target({.command = "tune",
                               .path = options_.path,
                               .size_bytes = options_.size_bytes,
                               .size_word = options_.size_word,
                               .block_bytes_max = Slices::kGrain,
                               .write_words = options_.only == "write" ? "--only write" : ""},
                              progress_);
        if (target_.bytes < 4 * Slices::kGrain) {
            throw Error(ErrorCode::kInvalidArgument, 0, "tune", target_.path, kNoOffset,
                        fmt::format("tune {}: it has {} bytes, and 64 MiB are the least that "
                                    "says something; name a folder or a larger file",
                                    target_.path, target_.bytes));
        }
        write_ = options_.write && target_.ours;
        progress_.clear();
        print_tune_head(out_, options_, target_, description_);
        Slices slices(target_, defaults_, progress_);
        TuneSearch search = searched(slices);
        if (measures_gap()) {
            progress_.step("what a small request costs: ");
            defaults_.gap_bytes = slices.gap_bytes(search.choice());
        }
        progress_.clear();
        report(command, slices, search);
    }

private:
    TuneSearch searched(Slices& slices) {
        progress_.step("getting the measure of the disk: ");
        if (options_.read) {
            slices.calibrate(false, kSliceSeconds);
        }
        if (write_) {
            slices.calibrate(true, kSliceSeconds);
        }
        const double begin = now();
        TuneSearch search(
            default_settings(defaults_),
            {.seconds = std::max(kSearchSecondsMin, options_.seconds - begin - kEndSeconds),
             .gain_min = options_.gain_percent / 100,
             .read = options_.read,
             .write = write_,
             .full = options_.full,
             .seed = static_cast<std::uint64_t>(::getpid()),
             .backends = other_backends(description_)});
        while (const auto candidate = search.next(now() - begin)) {
            if (write_ &&
                slices.written_bytes() + slices.slice_bytes(true) > options_.write_limit_bytes) {
                why_ended_ = fmt::format("It ended before it knew: {} were written (--write-limit)",
                                         base::format_bytes(slices.written_bytes()));
                search.stop();
                break;
            }
            announce(search, *candidate);
            search.add(measured(slices, search, *candidate), now() - begin);
        }
        samples_.resize(search.candidates().size());
        return search;
    }

    Rates measured(Slices& slices, const TuneSearch& search, std::size_t candidate) {
        samples_.resize(search.candidates().size());
        const TuneSettings& settings = search.candidates()[candidate].settings;
        Rates rates;
        if (options_.read) {
            samples_[candidate].read.push_back(slices.run(settings, false));
            rates.read = samples_[candidate].read.back().bytes_per_s();
        }
        if (write_) {
            samples_[candidate].write.push_back(slices.run(settings, true));
            rates.write = samples_[candidate].write.back().bytes_per_s();
        }
        return rates;
    }

    void announce(const TuneSearch& search, std::size_t candidate) {
        constexpr std::array<const char*, 4> kStages{"far and wide", "around the best",
                                                     "the best against the defaults", "over"};
        progress_.step(fmt::format(
            "[{:.0f} of {:.0f} s at most] {}: {} settings in the race; ", now(), options_.seconds,
            kStages[static_cast<std::size_t>(search.stage())], search.racing()));
        if (progress_.due()) {
            progress_.show(to_string(search.candidates()[candidate].settings));
        }
    }

    void report(std::span<const std::string> command, const Slices& slices,
                const TuneSearch& search) {
        const std::string about = fmt::format("penstock tune of {}, {}", options_.path, utc_now());
        const TuneResult result{
            .options = options_,
            .target = target_,
            .engine = description_,
            .defaults = defaults_,
            .search = search,
            .samples = samples_,
            .seconds = now(),
            .written_bytes = slices.written_bytes() + (target_.ours ? target_.bytes : 0),
            .why_ended = why_ended_,
            .about = about};
        print_tune_result(out_, result);
        if (!options_.output.empty()) {
            write_options_file(options_.output, options_json(search.choice(), defaults_, about));
        }
        json_.write(tune_json(command, result));
    }

    // A request to the page cache says nothing of the disk.
    [[nodiscard]] bool measures_gap() const { return options_.read && target_.file.info().direct; }

    [[nodiscard]] double now() const { return static_cast<double>(clock_.now() - start_) * 1e-9; }

    const TuneOptions& options_;
    base::SteadyClock clock_;
    base::Nanos start_ = clock_.now();
    JsonOutput json_;
    std::FILE* out_;
    Progress progress_;
    EngineOptions defaults_;
    EngineDescription description_;
    Target target_;
    bool write_ = false;
    std::string why_ended_;
    std::vector<CandidateSamples> samples_;
};

}  // namespace

void tune(const TuneOptions& options, std::span<const std::string> command) {
    Tune(options).run(command);
}

}  // namespace penstock::cli
