// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/command.hpp"

#include "base/align.hpp"
#include "base/clock.hpp"
#include "base/text/units.hpp"
#include "cli/gpu_option.hpp"
#include "cli/scratch.hpp"
#include "cli/tune/gpu_ways.hpp"
#include "cli/tune/paste.hpp"
#include "cli/tune/report.hpp"
#include "cli/tune/search.hpp"
#include "cli/tune/slice.hpp"
#include "probe/gpu.hpp"
#include "report/environment.hpp"
#include "report/json_output.hpp"
#include "report/output_file.hpp"
#include "report/progress.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <vector>

namespace penstock::cli {

namespace {

constexpr double kSliceSeconds = 0.15;
constexpr double kSearchSecondsMin = 3;  // even if making the file took its time
constexpr double kEndSeconds = 3;        // for the last slice, the small reads and the report
constexpr double kGpuSeconds = 5;        // for the ways to a GPU
constexpr std::size_t kGpuTurns = 5;
constexpr std::uint64_t kGpuBytes = 8 * Slices::kGrain;

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
            check_options_file(options.output, options.path);
        }
    }

    void run(std::span<const std::string> command) {
        if (options_.gpu >= 0) {
            gpu_.emplace().gpu = find_gpu("tune", options_.gpu);
            gpu_memory_.emplace(options_.gpu, kGpuBytes).fill();  // an error comes at once
        }
        defaults_ = Engine::default_options();
        description_ = Engine(defaults_).describe();
        check_write_limit();
        target_ = make_target({.command = "tune",
                               .path = options_.path,
                               .size_bytes = options_.size_bytes,
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
        if (gpu_) {
            measure_gpu(slices, search.choice());
        }
        progress_.clear();
        report(command, slices, search);
    }

private:
    // Refuses a limit under which a scratch file can be made and nothing be measured.
    void check_write_limit() const {
        std::error_code absent;
        if (!std::filesystem::is_directory(options_.path, absent)) {
            return;  // nothing is written
        }
        const std::uint64_t file =
            options_.size_bytes != 0 ? options_.size_bytes : probe::kScratchBytes;
        const std::uint64_t slices =
            options_.write ? Slices::kCalibrationBytes + 2 * Slices::kSliceLeast : 0;
        if (options_.write_limit_bytes >= file + slices) {
            return;
        }
        throw Error(
            ErrorCode::kInvalidArgument, 0, "tune", options_.path, kNoOffset,
            fmt::format(
                "--write-limit: got {}; a scratch file of {}{} needs {}MiB: give that, {}",
                base::format_bytes(options_.write_limit_bytes), base::format_bytes(file),
                options_.write ? " and the first writes" : "",
                base::align_up(file + slices, std::uint64_t{base::kMiB}) / base::kMiB,
                options_.write ? "a smaller --size, or --only read" : "or a smaller --size"));
    }

    TuneSearch searched(Slices& slices) {
        progress_.step("getting the measure of the disk: ");
        if (options_.read) {
            slices.calibrate(false, kSliceSeconds, options_.write_limit_bytes);
        }
        if (write_) {
            slices.calibrate(true, kSliceSeconds, options_.write_limit_bytes);
        }
        const double begin = now();
        TuneSearch search(
            default_settings(defaults_),
            {.seconds = std::max(kSearchSecondsMin,
                                 options_.seconds - begin - kEndSeconds - (gpu_ ? kGpuSeconds : 0)),
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

    // The two ways between the disk and the GPU, and the options file's rows with the faster one.
    void measure_gpu(Slices& slices, const TuneSettings& settings) {
        gpu_->fake = probe::gpu_is_fake();
        gpu_->disk = target_.file.info().device;
        const CuFileReport direct = cufile_conditions(gpu_->gpu, target_.path);
        if (!direct.usable) {
            gpu_->why_not = fmt::format("{}", fmt::join(direct.reasons, "; "));
        }
        const std::uint64_t bytes =
            std::min(kGpuBytes, target_.bytes / Slices::kGrain * Slices::kGrain);
        const Memory on_gpu{gpu_memory_->data(), bytes, MemoryKind::kDevice, options_.gpu};
        EngineOptions engine = engine_options(settings, defaults_);
        engine.cache = CachePolicy::kDirect;
        compare_gpu_ways(*gpu_, kGpuTurns, [&](GpuPath way) {
            progress_.step(
                fmt::format("to cuda:{}, {}: ", options_.gpu,
                            way == GpuPath::kBounce ? "through pinned memory" : "by cuFile"));
            engine.gpu_path = way;
            Rates rates;
            if (options_.read) {
                rates.read = slices.run(engine, on_gpu, false).bytes_per_s();
            }
            if (write_ &&
                slices.written_bytes() + slices.slice_bytes(true) <= options_.write_limit_bytes) {
                rates.write = slices.run(engine, on_gpu, true).bytes_per_s();
            }
            return rates;
        });
        defaults_.tuned_gpu_paths = with_pair(known_pairs(), gpu_->tuned());
    }

    // Those of the file that is written, else of the environment.
    [[nodiscard]] std::vector<TunedGpuPath> known_pairs() const {
        std::error_code absent;
        if (options_.output.empty() || !std::filesystem::is_regular_file(options_.output, absent)) {
            return defaults_.tuned_gpu_paths;
        }
        try {
            return load_options(options_.output).tuned_gpu_paths;
        } catch (const Error&) {  // no options file: it is replaced
            return defaults_.tuned_gpu_paths;
        }
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
        const std::string about =
            fmt::format("penstock tune of {}, {}", options_.path, report::utc_now());
        const TuneResult result{.options = options_,
                                .target = target_,
                                .engine = description_,
                                .defaults = defaults_,
                                .search = search,
                                .samples = samples_,
                                .seconds = now(),
                                .written_bytes = slices.written_bytes(),
                                .why_ended = why_ended_,
                                .about = about,
                                .gpu = gpu_ ? &*gpu_ : nullptr};
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
    report::JsonOutput json_;
    std::FILE* out_;
    report::Progress progress_;
    EngineOptions defaults_;
    EngineDescription description_;
    Target target_;
    std::optional<GpuWays> gpu_;
    std::optional<probe::GpuMemory> gpu_memory_;
    bool write_ = false;
    std::string why_ended_;
    std::vector<CandidateSamples> samples_;
};

}  // namespace

void tune(const TuneOptions& options, std::span<const std::string> command) {
    report::refuse_same_output("--json", options.json, "-o", options.output);
    Tune(options).run(command);
}

}  // namespace penstock::cli
