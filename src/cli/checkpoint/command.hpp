// SPDX-License-Identifier: Apache-2.0
// `penstock checkpoint`: lists, shows, verifies, compares and converts checkpoints in a store or a
// file of tensors.
#pragma once

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace penstock::report {
class Progress;
}

namespace penstock::cli {

struct CheckpointOptions {
    std::string path;
    std::string other;  ///< diff: B; convert: the target
    std::optional<std::uint64_t> generation;
    std::vector<std::uint64_t> generations;  ///< diff: of A, then of B
    std::vector<std::string> names;          ///< convert: parts of the state; empty: all of it
    std::string pattern;                     ///< of tensor names; empty: all
    std::string json;
    bool verbose = false;       ///< show: where the bytes lie; diff: what is the same, too
    bool all = false;           ///< verify: every checkpoint of the store
    bool force = false;         ///< convert: replace an existing file
    bool tensors_only = false;  ///< convert: leave out everything that is not a tensor
    bool verify = true;         ///< convert: verify the source first
    std::optional<std::uint64_t> memory;       ///< convert: of tensors held; none: what is left
    std::optional<std::uint64_t> shard_bytes;  ///< convert: of a shard of an index; none: 5 GB
    std::uint64_t step = 0;                    ///< convert: of the new checkpoint
    bool step_given = false;
    std::string cache;  ///< diff, convert: a policy; empty: the environment's
};

class CheckpointCommand {
public:
    /// Adds `checkpoint` and its subcommands.
    explicit CheckpointCommand(CLI::App& app);
    [[nodiscard]] bool parsed() const;
    /// "checkpoint verify", with as much as was given.
    [[nodiscard]] std::string name() const;
    /// The exit code.
    [[nodiscard]] int run(std::span<const std::string> command);

private:
    CLI::App* app_ = nullptr;
    CLI::App* ls_ = nullptr;
    CLI::App* show_ = nullptr;
    CLI::App* verify_ = nullptr;
    CLI::App* diff_ = nullptr;
    CLI::App* convert_ = nullptr;
    CheckpointOptions options_;
};

// Each returns the exit code.
[[nodiscard]] int checkpoint_ls(const CheckpointOptions& options,
                                std::span<const std::string> command);
[[nodiscard]] int checkpoint_show(const CheckpointOptions& options,
                                  std::span<const std::string> command);
[[nodiscard]] int checkpoint_verify(const CheckpointOptions& options,
                                    std::span<const std::string> command);
[[nodiscard]] int checkpoint_diff(const CheckpointOptions& options,
                                  std::span<const std::string> command);
[[nodiscard]] int checkpoint_convert(const CheckpointOptions& options,
                                     std::span<const std::string> command);

/// Shows the progress and ends at a signal (Interrupted). `shown` outlives it.
[[nodiscard]] penstock::Progress told_by(report::Progress& shown, std::string what);
[[nodiscard]] bool matches(const std::string& name, const std::string& pattern);
[[nodiscard]] std::shared_ptr<Engine> new_engine(const CheckpointOptions& options);
/// "1 tensor", "7 tensors".
[[nodiscard]] std::string counted(std::uint64_t count, const std::string& what);

}  // namespace penstock::cli
