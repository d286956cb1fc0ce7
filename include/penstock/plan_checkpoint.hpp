// SPDX-License-Identifier: Apache-2.0
// The size of a checkpoint, and the rates at which it has to be written and read.
#pragma once

#include <penstock/plan_answer.hpp>
#include <penstock/plan_model.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::plan {

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

}  // namespace penstock::plan
