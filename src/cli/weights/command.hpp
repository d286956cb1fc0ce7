// SPDX-License-Identifier: Apache-2.0
// `penstock weights`: what a model that is larger than memory needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace penstock::cli {

struct WeightsOptions {
    std::vector<std::string> folders;
    std::uint64_t memory = 0;   ///< bytes
    std::string rate;           ///< bytes a second, or "measured"; empty: no seconds
    std::string compute;        ///< seconds of a token in memory, or "measured"; empty: 0
    std::uint64_t experts = 0;  ///< that a token uses in a layer; 0: as config.json says
    std::uint32_t slots = 2;
    std::string json;
};

inline constexpr std::string_view kMeasured = "measured";

class WeightsCommand {
public:
    /// Adds `weights` and its subcommands.
    explicit WeightsCommand(CLI::App& app);
    [[nodiscard]] bool parsed() const;
    /// "weights plan", with as much as was given.
    [[nodiscard]] std::string name() const;
    /// The exit code.
    [[nodiscard]] int run(std::span<const std::string> command);

private:
    CLI::App* app_ = nullptr;
    CLI::App* plan_ = nullptr;
    WeightsOptions options_;
};

/// The exit code.
[[nodiscard]] int weights_plan(const WeightsOptions& options, std::span<const std::string> command);

}  // namespace penstock::cli
