// SPDX-License-Identifier: Apache-2.0
// cuFile as the engine's way between files and memory of GPUs without a slot. The first request
// loads libcufile and registers the file's direct descriptor, one handle a file, which goes with
// the file. Memory is not registered: cuFile then goes through memory of its own on the GPU.
//
// cuFile's calls block, and the engine makes them on threads (16 a device at most). Its batch calls
// are not used: NVIDIA's header calls them experimental, their completions can only be polled, and
// nothing ends a sleeping channel's wait when one is through.
#pragma once

#include "device/cuda/driver.hpp"
#include "device/cufile/cufile_conditions.hpp"
#include "device/cufile/cufile_library.hpp"
#include "engine/device_path/device_path.hpp"

#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace penstock::device {

class CuFilePath final : public engine::DevicePath {
public:
    /// `tuned`: pairs of a disk and a GPU that may go the other way. A required path ignores it.
    explicit CuFilePath(bool required, MachineFolders folders = {},
                        std::vector<TunedGpuPath> tuned = {})
        : required_(required), folders_(std::move(folders)), tuned_(std::move(tuned)) {}

    [[nodiscard]] bool takes(os::File& file, const engine::MemoryPlace& place) override;
    [[nodiscard]] bool required() const override { return required_; }
    [[nodiscard]] base::Error why_not(os::File& file, const engine::MemoryPlace& place) override;
    [[nodiscard]] std::int64_t move(engine::Op op, os::File& file, const engine::MemoryPlace& place,
                                    std::byte* memory, std::uint64_t bytes,
                                    std::uint64_t offset) noexcept override;
    [[nodiscard]] std::string text() override;

private:
    /// The conditions for files of one disk and one GPU.
    struct Pair {
        DeviceId disk;
        std::string file_system;
        std::int32_t gpu = 0;
        CuFileConditions conditions;
        bool slower = false;  ///< than pinned memory, as it was measured
    };

    [[nodiscard]] bool is_slower(const Pair& pair, const std::string& pci) const;
    [[nodiscard]] const Pair* pair_of(const os::File& file, std::int32_t gpu);
    void note(std::string refusal) noexcept;

    const bool required_;
    const MachineFolders folders_;
    const std::vector<TunedGpuPath> tuned_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Pair>> pairs_;  ///< few; none goes or changes
    std::string no_library_;                    ///< why it is absent
    std::string last_refusal_;
};

/// The way that GpuPath asks for: nullptr for kBounce.
[[nodiscard]] std::shared_ptr<engine::DevicePath> make_device_path(
    GpuPath path, const MachineFolders& folders = {}, const std::vector<TunedGpuPath>& tuned = {});

}  // namespace penstock::device
