// SPDX-License-Identifier: Apache-2.0
// Storage requirements: what a job needs of its storage, with the formula and the source of each
// figure.
#pragma once

#include <penstock/plan_model.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

// The size of a checkpoint, and the rates at which it has to be written and read.

/// The bytes of a checkpoint for each parameter.
struct OptimizerBytes {
    std::string name;    ///< "adam", "snia", "sgd", ...
    double weights = 0;  ///< bytes of the weights that are used for computing
    double master = 0;   ///< bytes of a copy of the weights in fp32, if there is one
    double states = 0;   ///< bytes of the optimizer's states; for "adafactor" and "adam-8bit" those
                         ///< of large matrices: the exact bytes depend on the shapes
    std::string formula;
    std::string source;
};

/// All optimizers. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<OptimizerBytes> optimizers();

/// Counts are whole numbers from 1 on; a model is named, or its config.json is given.
struct CheckpointOptions {
    std::string model;                          ///< a name of model_named()
    std::string config;                         ///< the text of a config.json
    std::string optimizer = "snia";             ///< a name of optimizers()
    std::optional<double> bytes_per_parameter;  ///< instead of the optimizer's
    std::optional<double> tensor;               ///< ranks that divide each tensor (default: 1)
    std::optional<double> pipeline;             ///< stages that divide the layers (default: 1)
    std::optional<double> experts;              ///< ranks that divide the experts (default: 1)
    std::optional<double> expert_tensor;        ///< ranks that divide its tensors (default: tensor)
    std::optional<double> data;                 ///< replicas (default: 1, or from `ranks`)
    double zero = 0;                            ///< ZeRO's stage, 0 to 3
    std::optional<double> ranks;                ///< total number: tensor x pipeline x data
    std::optional<double> seconds;              ///< time in which a checkpoint has to be written
    std::optional<double> interval;             ///< seconds from one checkpoint to the next
    std::optional<double>
        share;                ///< of the interval that writing may take: 0.05, or 1 if overlapped
    bool overlapped = false;  ///< training goes on while a copy in memory is written
    std::optional<double> staging;      ///< bytes/s at which a rank copies its state to host memory
    double keep = 1;                    ///< checkpoints that are kept
    std::optional<double> capacity;     ///< bytes of all drives together, for their endurance
    std::optional<double> storage;      ///< bytes/s that the storage writes durably, to check it
    std::optional<double> storage_low;  ///< the ends of its 95 % interval
    std::optional<double> storage_high;
    bool tensors = false;  ///< adds a table of the model's tensors
    bool list = false;     ///< a table of SNIA's sizes, and nothing else
};

/// Figures: parameters, checkpoint_bytes, room_bytes; with `seconds` or `interval`
/// write_bytes_per_second; with `interval` stall_share and written_bytes_per_day; with `capacity`
/// drive_writes_per_day; with a layout files_bytes, rank_bytes (of the rank that writes most) and
/// writing_ranks; with `storage` storage_bytes_per_second and storage_seconds, with an interval
/// also their _low and _high. Throws Error (kInvalidArgument, kUnsupported). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer checkpoint(const CheckpointOptions& options);

struct RestoreOptions {
    std::string model;               ///< a name of model_named()
    std::string config;              ///< the text of a config.json
    std::string optimizer = "snia";  ///< a name of optimizers(); "weights" for only the weights
    std::optional<double> bytes_per_parameter;  ///< instead of the optimizer's
    double seconds = 300;                       ///< time after which the job has to run again
    double copies = 1;                          ///< replicas that need the whole state
    std::optional<double> storage;              ///< bytes/s that the storage reads, to check it
    std::optional<double> storage_low;          ///< the ends of its 95 % interval
    std::optional<double> storage_high;
    bool broadcast = false;  ///< one replica reads and sends to the others over the fabric
    bool list = false;       ///< a table of SNIA's sizes, and nothing else
};

/// Figures: state_bytes, once_bytes_per_second, read_bytes_per_second (from storage, with the
/// fan-out), and fabric_bytes_per_second if it is broadcast; with `storage` as checkpoint(). Throws
/// Error (kInvalidArgument, kUnsupported). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer restore(const RestoreOptions& options);

// The number of accelerators that a measured storage feeds, and whether a checkpoint is written in
// time.

/// A mean of runs with the ends of its 95 % interval (Student's t). In bytes a second, above 0.
struct MeasuredRate {
    double mean = 0;
    double low = 0;
    double high = 0;
};

/// Rates are bytes a second, finite and above 0. `_low` and `_high` are the ends of a 95 % interval
/// (low <= rate <= high); without them a rate is taken as exact.
struct FeedsOptions {
    std::optional<double> files;    ///< sequential reads: large files, and shards of samples
    std::optional<double> samples;  ///< random reads of 128 KiB: one file for each sample
    std::optional<double> writes;   ///< durable writes: a checkpoint
    std::optional<double> files_low;
    std::optional<double> files_high;
    std::optional<double> samples_low;
    std::optional<double> samples_high;
    std::optional<double> writes_low;
    std::optional<double> writes_high;
    std::string model;  ///< these five as in TrainOptions; without them a table of all presets
    std::string preset;
    std::string accelerator;
    std::optional<double> samples_per_second;
    std::optional<double> bytes_per_sample;
    std::optional<double> checkpoint_bytes;  ///< size of a checkpoint that is written
    double within = 360;                     ///< seconds that writing it may take
};

/// Whether each sample of a model is one file, so that reads are random. False: sequential reads.
[[nodiscard]] PENSTOCK_API bool reads_files_of_samples(const std::string& model);

/// Figures: files_, samples_ and writes_bytes_per_second, each with _low and _high; for one job
/// accelerators, accelerators_low and _high; for a checkpoint checkpoint_seconds, _low and _high.
/// If no job is named, the table "feeds" has all presets. The notes say it in a sentence. Throws
/// Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer feeds(const FeedsOptions& options);

// The best interval between saves, from the time between failures and the times of a save and a
// restore.

/// The failures and saves of a job. All times in seconds, finite; failures are independent, with
/// exponential times between them.
struct FailureModel {
    double mtbf = 0;   ///< mean time between failures of the whole job, above 0
    double stall = 0;  ///< time that training stops at each save, above 0
    double write = 0;  ///< from the end of the stall until the save is durable; 0 if it is by then
    double slowdown = 0;  ///< share of its speed that training loses meanwhile, from 0, below 1
    double restore = 0;   ///< reading the last save; a failure meanwhile restarts it
    double downtime = 0;  ///< after each failure, before restoring begins
};

/// The share of time in which a job makes progress that is kept, if it saves after each `interval`
/// seconds of computing at full speed. It is exact for the model. With
/// L = interval + stall + slowdown x write it is
///     interval x exp(-(restore + write x (1 - slowdown)) / mtbf) /
///         ((exp(L / mtbf) - 1) x (mtbf + downtime)),
/// which for write = downtime = 0 is the complete model of J. T. Daly, "A higher order estimate of
/// the optimum checkpoint interval for restart dumps" (2006); docs/plan.md derives it. Throws Error
/// (kInvalidArgument) for an invalid FailureModel, and for an interval in which a save would not be
/// durable before the next one begins. Thread-safe.
[[nodiscard]] PENSTOCK_API double goodput(const FailureModel& model, double interval);

/// The exact interval with the highest goodput: x x mtbf, where (1 - x) x exp(x) =
/// exp(-(stall + slowdown x write) / mtbf). It is longer if a save would not be durable before the
/// next one begins. Throws Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API double best_interval(const FailureModel& model);

/// The shares of time of a simulated job; they add up to 1.
struct SimulatedJob {
    double goodput = 0;    ///< computing that was kept
    double lost = 0;       ///< computing that a failure undid
    double saving = 0;     ///< stalls, and the slowdown by writing
    double restoring = 0;  ///< restores and downtimes
    std::uint64_t failures = 0;
};

/// Simulates the job event by event, with this number of random failures. The same seed gives the
/// same numbers. Throws Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API SimulatedJob simulate_job(const FailureModel& model, double interval,
                                                     std::uint64_t failures, std::uint64_t seed);

/// Times in seconds.
struct IntervalOptions {
    std::optional<double> mtbf;              ///< of one node
    double nodes = 1;                        ///< a whole number
    std::optional<double> accelerator_mtbf;  ///< of one accelerator, in addition to the nodes'
    double accelerators = 1;                 ///< a whole number
    double save = 0;                         ///< from the beginning of a save until it is durable
    std::optional<double> stall;     ///< the part of it in which training stops (default: all)
    double slowdown = 0;             ///< share of its speed that training loses during the rest
    std::optional<double> restore;   ///< reading the last save (default: as long as `save`)
    double downtime = 0;             ///< after each failure, before restoring begins
    std::optional<double> interval;  ///< another interval, to compare its goodput with the best
    std::optional<double> simulate;  ///< failures to simulate, to check the goodput
    double seed = 1;                 ///< of the simulation
};

/// Figures: mtbf_seconds (of the job), interval_seconds (computing between saves, the best),
/// period_seconds, goodput, and with `interval` own_goodput, with `simulate` simulated_goodput. The
/// table "rules" has Young's, Daly's and the availability optimum; the series "goodput" is the
/// curve. Throws Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer interval(const IntervalOptions& options);

// Several jobs on one storage: the sum of their reads and writes over time.

/// Numbers are finite and above 0, `start` from 0 on. Times are seconds, sizes bytes. Each kind
/// takes some of the members:
///
///     train        model or samples_per_second and bytes_per_sample, accelerators, utilisation;
///                  start, length (default: to the end)
///     evaluation   the same; runs for `length` seconds, once in `every` seconds
///     checkpoint   bytes, every, within (seconds that a save may take)
///     restore      bytes, within, copies (number of readers of all bytes), start
///     preparation  bytes (read) and write_bytes, within; start, every
///     inference    bytes (of a model), within, copies (replicas that load it); start, every
struct MixJob {
    std::string name;  ///< for people; empty: the kind
    std::string kind;
    std::string model;  ///< these seven as in TrainOptions
    std::string preset;
    std::string accelerator;
    double accelerators = 1;
    double utilisation = 1;
    std::optional<double> samples_per_second;
    std::optional<double> bytes_per_sample;
    std::optional<double> bytes;
    std::optional<double> write_bytes;
    double copies = 1;
    std::optional<double> start;  ///< of the first time; default: 0, of a checkpoint `every`
    std::optional<double> length;
    std::optional<double> every;  ///< default: once
    std::optional<double> within;
};

struct MixOptions {
    std::string title;
    double length = 86400;  ///< simulated seconds
    std::vector<MixJob> jobs;
};

/// Figures: peak_bytes_per_second of the sum, peak_read_bytes_per_second,
/// peak_write_bytes_per_second, mean_bytes_per_second, p50_, p90_, p99_bytes_per_second (by time),
/// read_bytes, write_bytes, and aligned_bytes_per_second (if all bursts coincide). Table "jobs";
/// series "sum", "read", "write". Throws Error (kInvalidArgument) with the job. Thread-safe.
[[nodiscard]] PENSTOCK_API Answer mix(const MixOptions& options);

/// The jobs of a JSON document: {"title": "...", "length": "4h", "jobs": [{"kind": "train", ...}]},
/// with the members of MixJob, numbers or words with units. Throws Error (kInvalidArgument).
[[nodiscard]] PENSTOCK_API MixOptions mix_of_json(std::string_view json);

// The size that a data set needs so that a benchmark measures storage and not memory.

/// The rule of MLPerf Storage: a data set is at least 5 times the memory of all hosts, and at least
/// 500 steps long. Numbers are finite and above 0.
struct SizeOptions {
    std::string model;        ///< as in TrainOptions; empty if batch and bytes_per_sample are given
    std::string preset;       ///< empty: the first that has the model with a batch
    std::string accelerator;  ///< empty: the first of the preset
    double accelerators = 1;  ///< a whole number
    double hosts = 1;         ///< a whole number
    std::optional<double> memory_bytes;  ///< of one host; required
    std::optional<double> batch;         ///< samples a step of one accelerator
    std::optional<double> bytes_per_sample;
    std::optional<double> samples_per_file;
    double steps = 500;        ///< a whole number
    double memory_factor = 5;  ///< data divided by the memory of all hosts
};

/// Figures: samples_for_steps, samples_for_memory, samples, files, data_bytes, cached_share, and
/// epoch_seconds if the preset has a throughput. Throws Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer size(const SizeOptions& options);

// The speed of a model whose weights are read from storage in every pass.

/// Numbers are finite and above 0 unless said otherwise.
struct StreamOptions {
    std::string preset;  ///< a published run; its numbers replace those not given
    std::string model;   ///< a name of model_named()
    std::string config;  ///< the text of a config.json
    std::optional<double> bytes_per_parameter;  ///< of the weights (default: 2)
    std::optional<double> rate;                 ///< bytes/s that storage delivers
    std::optional<double> rate_low;             ///< the ends of its 95 % interval, if measured
    std::optional<double> rate_high;
    /// Bytes of host memory and of accelerator memory, for keys and values and for weights. First
    /// they hold the keys and values of the batch (in accelerator memory if it is given; in host
    /// memory with `kv_host`), then as many weights as fit. Instead of `resident` and
    /// `resident_device`.
    std::optional<double> memory;
    std::optional<double> memory_device;
    bool kv_host = false;                        ///< keys and values in host memory
    std::optional<double> kv_bytes_per_element;  ///< default: 2 (bf16); 1 for fp8
    std::optional<double> kv_bytes_per_token;    ///< of a sequence, instead of the model's
    double resident = 0;                         ///< bytes of weights that stay in host memory
    double resident_device = 0;    ///< bytes of weights that stay in the accelerator's memory
    std::optional<double> link;    ///< bytes/s from host to accelerator (PCIe)
    std::optional<double> flops;   ///< operations a second of the accelerator, at its peak or less
    std::optional<double> batch;   ///< concurrent sequences (default: 1)
    std::optional<double> prompt;  ///< tokens of a prompt (default: 1)
    std::optional<double> generate;  ///< tokens generated for each (default: 32)
    bool list = false;               ///< the published runs with their bounds, and nothing else
};

/// An upper bound: no implementation with the same reads is faster. Figures: weights_bytes,
/// streamed_bytes (from storage, in a pass), resident_bytes, resident_device_bytes, pass_seconds,
/// prefill_seconds, tokens_per_second; for a preset published_tokens_per_second and share_of_bound;
/// for a known model kv_bytes_per_token and kv_cache_bytes (of the batch, at its longest); with an
/// interval of the rate tokens_per_second_low and _high. Throws Error (kInvalidArgument,
/// kUnsupported). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer stream(const StreamOptions& options);

// The read rate of a training job.

/// Numbers are finite and above 0.
struct TrainOptions {
    /// "resnet50", "unet3d", ...: see train_presets(). Empty if samples_per_second and
    /// bytes_per_sample are given.
    std::string model;
    std::string preset;  ///< "snia-2024", "storage-3.0", ...; empty: the first that has the model
    std::string accelerator;  ///< "h100", ...; empty: the first of the preset that has the model
    double accelerators = 1;  ///< a whole number
    double utilisation = 1;   ///< the share of time in which accelerators compute, at most 1
    std::optional<double> samples_per_second;  ///< of one accelerator, instead of the preset's
    std::optional<double> bytes_per_sample;    ///< instead of the preset's
    std::optional<double> storage;             ///< bytes/s that the storage reads, to check it
    std::optional<double> storage_low;         ///< the ends of its 95 % interval
    std::optional<double> storage_high;
    bool list = false;  ///< a table of all presets, and nothing else
};

/// Figures: read_bytes_per_second, samples_per_second (of all accelerators), and, if the preset has
/// a passing utilisation, pass_bytes_per_second. With `storage` storage_bytes_per_second and
/// accelerators_fed, with an interval also their _low and _high, and a note that says whether it is
/// enough. Throws Error (kInvalidArgument). Thread-safe.
[[nodiscard]] PENSTOCK_API Answer train(const TrainOptions& options);

/// A published throughput of an accelerator.
struct TrainPreset {
    std::string preset;             ///< "snia-2024", "training-3.1", "storage-1.0", "dlio", ...
    std::string model;              ///< "resnet50"
    std::string accelerator;        ///< "h100"
    double samples_per_second = 0;  ///< of one accelerator
    double bytes_per_sample = 0;
    double batch = 0;        ///< samples a step of one accelerator; 0 if the source has none
    double utilisation = 0;  ///< the minimum to pass; 0 if the source has none
    double samples_per_file = 1;
    std::string source;        ///< of samples_per_second
    std::string bytes_source;  ///< of bytes_per_sample
};

/// All rows, in the order of the presets. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<TrainPreset> train_presets();

// The storage that a job needs: arithmetic with its sources. Nothing here touches a disk.
//
//     penstock::plan::TrainOptions job{.model = "resnet50", .accelerators = 8};
//     const penstock::plan::Answer answer = penstock::plan::train(job);
//     const double rate = answer.at("read_bytes_per_second").value;
//     std::puts(penstock::plan::text_of(answer).c_str());

/// The kind of value of an option.
enum class Amount {
    kCount,       ///< a whole number
    kNumber,      ///< a number
    kShare,       ///< 0.9 or 90%
    kBytes,       ///< bytes: 4096, 4KiB (binary), 4kB (decimal)
    kRate,        ///< bytes a second: 6.8GB/s, 100Gbit/s
    kSeconds,     ///< 300, 300s, 5min, 2h, 1d, 20ms
    kParameters,  ///< a whole number, 70B (1e9 each), 350M, 1T
    kText,
    kFlag,      ///< true if it is given
    kDocument,  ///< the text of a JSON document; on the command line a file that holds it
};

struct OptionInfo {
    std::string name;  ///< as in the struct of options; with - for _ on the command line
    Amount amount = Amount::kText;
    std::string about;  ///< with its default
};

/// A question that can be asked: a subcommand of `penstock plan`, a function of penstock.plan.
struct Verb {
    std::string name;
    std::string summary;
    std::string details;  ///< for help: what is computed, examples
    std::vector<OptionInfo> options;
};

/// An option as it was written: {"accelerators", "8"}.
struct Word {
    std::string name;
    std::string text;
};

/// All questions. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<Verb> verbs();

/// The answer of a question whose options are words. Throws Error (kInvalidArgument) with the
/// option, its value and what is expected; for an unknown verb, option, preset or model with the
/// nearest name. Thread-safe.
[[nodiscard]] PENSTOCK_API Answer ask(std::string_view verb, const std::vector<Word>& words);

// Measures the rates of folders, and what they mean for a job.
//
//     const penstock::plan::StorageRates rates = penstock::plan::measure_rates({.paths =
//     {"/data"}}); std::cout << rates.files->mean << " bytes/s, from " << rates.files->low << '\n';
//     const auto answer = penstock::plan::ask_measured("train", {{"model", "unet3d"}},
//                                                      {.paths = {"/data"}});

/// A report while folders are measured.
struct MeasureStep {
    std::string doing;            ///< "reading in sequence", "making the scratch file /data/..."
    std::size_t step = 0;         ///< from 1 on; 0 while scratch files are made
    std::size_t steps = 0;        ///< number of steps
    double seconds_left = 0;      ///< of the whole measurement, approximately
    double bytes_per_second = 0;  ///< of this step so far
};

/// The paths to measure, and how long. `size` in bytes: finite, 4 MiB or more.
struct MeasureOptions {
    /// Folders, files or block devices; all are read concurrently. Files and devices are only read.
    std::vector<std::string> paths;
    double seconds = 20;         ///< in total, with the making of scratch files: 0.1 to 3600
    std::optional<double> size;  ///< of a scratch file; default: 1 GiB, or what 5 s of writing give
    bool files = true;           ///< sequential reads: 1 MiB, 16 concurrent
    bool samples = true;         ///< random reads: 128 KiB, 32 concurrent
    bool writes = true;  ///< writes that end with a sync: 1 MiB, 16 concurrent; only in folders
    /// Called on the caller's thread, about ten times a second. False stops: kCancelled.
    std::function<bool(const MeasureStep&)> progress;
};

/// The rates of all paths together, without the page cache of this host. Nothing for a pattern that
/// was not requested, and for writes that would change a given file or device.
struct StorageRates {
    std::optional<MeasuredRate> files;
    std::optional<MeasuredRate> samples;
    std::optional<MeasuredRate> writes;
    std::string places;  ///< for people: "/data (ext4, direct I/O)"
};

/// Reads and writes the paths. Only direct I/O is used: no rate comes from the page cache. Scratch
/// files are unlinked as soon as they are made, so that nothing is left however the process ends.
/// Throws Error: kInvalidArgument for options out of range, a repeated path, a file under 4 MiB,
/// and a file if only writes are requested; kUnsupported for a file system without direct I/O;
/// kCancelled by `progress`; kSystem for a folder that is missing, full, or may not be written.
/// Thread-safe; blocks.
[[nodiscard]] PENSTOCK_API StorageRates measure_rates(const MeasureOptions& options);

/// ask() with measured rates in place of those that are not given: for "feeds" (whose answer is
/// then called "measure"), and for "train", "checkpoint", "restore" and "stream". Only the patterns
/// that the question needs are measured; `files`, `samples` and `writes` of the options are
/// ignored. Wrong words are refused before anything is written. Throws as ask() and
/// measure_rates(). Thread-safe; blocks.
[[nodiscard]] PENSTOCK_API Answer ask_measured(std::string_view verb,
                                               const std::vector<Word>& words,
                                               const MeasureOptions& options);

/// The same for feeds(), with its options as a struct, without rates.
[[nodiscard]] PENSTOCK_API Answer measure(const FeedsOptions& job, const MeasureOptions& options);

}  // namespace penstock::plan
