// SPDX-License-Identifier: Apache-2.0
// `penstock features`: tables of rows that are larger than memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace penstock::cli {

struct SimulateOptions {
    std::string trace;
    std::vector<std::string> caches{"1%", "5%", "10%", "20%"};  ///< rows, or a share of them
    std::vector<std::string> policies;                          ///< empty: all
    std::uint64_t rows = 0;                                     ///< of the table; 0: see the trace
    std::uint64_t batch = 0;
    std::uint32_t window = 8;
    std::uint64_t warm_up = 0;
    std::string json;
};

/// Options of import, show and verify.
struct FeaturesOptions {
    std::string path;
    std::vector<std::string> sources;  ///< NAME=FILE
    std::vector<std::string> folders;
    std::string dtype;  ///< of raw files
    std::string row;    ///< shape of theirs: "3,224,224"
    std::uint64_t offset = 0;
    std::uint64_t rows = 0;  ///< 0: all
    std::string json;
};

class FeaturesCommand {
public:
    /// Adds `features` and its subcommands.
    explicit FeaturesCommand(CLI::App& app);
    [[nodiscard]] bool parsed() const;
    /// "features simulate", with as much as was given.
    [[nodiscard]] std::string name() const;
    /// The exit code.
    [[nodiscard]] int run(std::span<const std::string> command);

private:
    CLI::App* app_ = nullptr;
    void add_file_commands();

    CLI::App* import_ = nullptr;
    CLI::App* show_ = nullptr;
    CLI::App* verify_ = nullptr;
    CLI::App* simulate_ = nullptr;
    FeaturesOptions options_;
    SimulateOptions simulate_options_;
};

/// The shape of a row of "3,224,224"; nothing where a number is missing or 0, or is no number.
[[nodiscard]] std::optional<std::vector<std::uint64_t>> row_shape_of(std::string_view word);

/// The exit code, of all.
[[nodiscard]] int import_feature_files(const FeaturesOptions& options,
                                       std::span<const std::string> command);
[[nodiscard]] int show_features(const FeaturesOptions& options,
                                std::span<const std::string> command);
[[nodiscard]] int verify_feature_file(const FeaturesOptions& options,
                                      std::span<const std::string> command);
[[nodiscard]] int simulate_features(const SimulateOptions& options,
                                    std::span<const std::string> command);

}  // namespace penstock::cli
