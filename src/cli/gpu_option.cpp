// SPDX-License-Identifier: Apache-2.0
#include "cli/gpu_option.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string_view>
#include <system_error>

namespace penstock::cli {

std::int32_t gpu_of(const std::string& word) {
    constexpr std::string_view kPrefix = "cuda:";
    std::int32_t number = word == "cuda" ? 0 : -1;
    if (word.starts_with(kPrefix)) {
        const char* const begin = word.data() + kPrefix.size();
        const char* const end = word.data() + word.size();
        const auto [stop, code] = std::from_chars(begin, end, number);
        number = code == std::errc() && stop == end ? number : -1;
    }
    if (number < 0) {
        throw CLI::ValidationError(
            "--device", fmt::format("got '{}'; expected cuda:0 or another number of a GPU", word));
    }
    return number;
}

Gpu find_gpu(const std::string& command, std::int32_t number) {
    const GpuReport report = gpus();
    if (!report.available) {
        throw Error(ErrorCode::kUnsupported, 0, command, {}, kNoOffset,
                    fmt::format("--device cuda:{}: {}", number, report.reason));
    }
    for (const Gpu& gpu : report.gpus) {
        if (gpu.number == number) {
            return gpu;
        }
    }
    throw Error(ErrorCode::kInvalidArgument, 0, command, {}, kNoOffset,
                fmt::format("--device cuda:{}: this process sees {} GPU{}, counted from 0", number,
                            report.gpus.size(), report.gpus.size() == 1 ? "" : "s"));
}

}  // namespace penstock::cli
