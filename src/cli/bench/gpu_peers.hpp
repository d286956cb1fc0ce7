// SPDX-License-Identifier: Apache-2.0
// Other programs that move bytes between a file and the memory of a GPU: KvikIO and NVIDIA's gdsio.
#pragma once

#include "cli/bench/options.hpp"
#include "cli/scratch.hpp"
#include "report/progress.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::cli {

/// The driver that a peer is to find.
struct PeerDriver {
    std::int32_t gpu = 0;
    std::string fake_folder;      ///< of the fake's libcuda.so.1; empty: the machine's driver
    double fake_bytes_per_s = 0;  ///< what the fake copies at
};

class GpuPeer {
public:
    GpuPeer() = default;
    GpuPeer(const GpuPeer&) = delete;
    GpuPeer& operator=(const GpuPeer&) = delete;
    virtual ~GpuPeer() = default;

    [[nodiscard]] virtual std::string name() const = 0;
    [[nodiscard]] virtual std::string version() const = 0;
    /// Why it does not take such a row, or nothing.
    [[nodiscard]] virtual std::string refusal(const JobSpec& job) const = 0;
    /// Throws Error where the program fails or says what is not understood.
    [[nodiscard]] virtual Sample run(const JobSpec& job, const Target& target, double seconds,
                                     report::Progress& progress) = 0;
};

struct GpuPeers {
    std::vector<std::unique_ptr<GpuPeer>> found;
    std::vector<std::string> absent;  ///< "KvikIO: ..." and what would bring it, for each
};

/// The peers that are installed. Runs their `--version` or an import; throws Interrupted.
[[nodiscard]] GpuPeers find_gpu_peers(const PeerDriver& driver, report::Progress& progress);

/// The figures in the last line that gdsio prints; nothing where it has none.
[[nodiscard]] std::optional<Sample> gdsio_sample(const std::string& output);

}  // namespace penstock::cli
