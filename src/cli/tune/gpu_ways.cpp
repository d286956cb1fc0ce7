// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/gpu_ways.hpp"

#include "report/message.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace penstock::cli {

namespace {

double rate_of(const std::vector<Rates>& turns, double Rates::*kind) {
    std::vector<double> rates;
    for (const Rates& turn : turns) {
        rates.push_back(turn.*kind);
    }
    return rates.empty() ? 0 : probe::median(rates);
}

// Reads and writes count alike.
double ratio_of(const Rates& one, const Rates& other) {
    double ratio = 1;
    int kinds = 0;
    for (double Rates::*const kind : {&Rates::read, &Rates::write}) {
        if (one.*kind > 0 && other.*kind > 0) {
            ratio *= one.*kind / (other.*kind);
            ++kinds;
        }
    }
    return kinds == 2 ? std::sqrt(ratio) : ratio;
}

void judge(GpuWays& ways) {
    std::vector<double> ratios;
    for (std::size_t turn = 0; turn < ways.cufile.size(); ++turn) {
        ratios.push_back(ratio_of(ways.cufile[turn], ways.bounce[turn]));
    }
    ways.ratio = probe::ratio_interval(ratios);
    ways.choice = ways.ratio.high < 1 ? GpuPath::kBounce : GpuPath::kCuFile;
}

std::string rates_text(const std::vector<Rates>& turns) {
    std::string text;
    for (const auto& [kind, word] : {std::pair{&Rates::read, "read"}, {&Rates::write, "write"}}) {
        if (const double rate = rate_of(turns, kind); rate > 0) {
            text += fmt::format("{}{} {:.3g} GB/s", text.empty() ? "" : ", ", word, rate / 1e9);
        }
    }
    return text;
}

}  // namespace

void compare_gpu_ways(GpuWays& ways, std::size_t turns, const std::function<Rates(GpuPath)>& run) {
    for (std::size_t turn = 0; turn < turns; ++turn) {
        for (const bool first : {true, false}) {
            if (first == (turn % 2 == 0)) {
                ways.bounce.push_back(run(GpuPath::kBounce));
            } else if (ways.why_not.empty()) {
                try {
                    ways.cufile.push_back(run(GpuPath::kCuFile));
                } catch (const Error& error) {
                    ways.why_not = report::message_of(error);
                }
            }
        }
    }
    ways.choice = GpuPath::kBounce;
    if (ways.why_not.empty()) {
        judge(ways);
    }
}

std::string gpu_ways_text(const GpuWays& ways) {
    std::string text =
        fmt::format("GPU: cuda:{}, {}{}: through pinned memory {}", ways.gpu.number,
                    ways.fake ? "FAKE, " : "", ways.gpu.pci, rates_text(ways.bounce));
    if (!ways.why_not.empty()) {
        return text + fmt::format(
                          "; no direct cuFile ({}), so 'auto' has no choice: it goes through "
                          "pinned memory",
                          ways.why_not);
    }
    text += fmt::format("; by cuFile {}: {:.2f} times ({:.2f} to {:.2f}). ",
                        rates_text(ways.cufile), ways.ratio.mean, ways.ratio.low, ways.ratio.high);
    if (ways.choice == GpuPath::kBounce) {
        return text + "With the file below 'auto' goes through pinned memory";
    }
    return text + (ways.ratio.low > 1 ? "'auto' goes by cuFile"
                                      : "No difference found: 'auto' goes by cuFile, which spares "
                                        "the memory of the host");
}

nlohmann::ordered_json gpu_ways_json(const GpuWays& ways) {
    nlohmann::ordered_json json{{"number", ways.gpu.number},
                                {"name", (ways.fake ? "FAKE: " : "") + ways.gpu.name},
                                {"pci", ways.gpu.pci},
                                {"fake", ways.fake},
                                {"choice", name_of(ways.choice)},
                                {"why_no_cufile", ways.why_not}};
    for (const auto& [name, turns] :
         {std::pair{"bounce", &ways.bounce}, {"cufile", &ways.cufile}}) {
        json[name] = nlohmann::ordered_json::array();
        for (const Rates& turn : *turns) {
            json[name].push_back(
                {{"read_bytes_per_s", turn.read}, {"write_bytes_per_s", turn.write}});
        }
    }
    if (ways.why_not.empty()) {
        json["cufile_to_bounce"] = {{"mean", ways.ratio.mean},
                                    {"ci95", {ways.ratio.low, ways.ratio.high}}};
    }
    return json;
}

std::vector<TunedGpuPath> with_pair(std::vector<TunedGpuPath> paths, const TunedGpuPath& pair) {
    std::erase_if(paths, [&](const TunedGpuPath& one) {
        return one.disk == pair.disk && one.gpu == pair.gpu;
    });
    paths.push_back(pair);
    return paths;
}

}  // namespace penstock::cli
