// SPDX-License-Identifier: Apache-2.0
// One transfer over a file on each of several devices: bytes a second a device, so that linear
// scaling is the figure of one device.
#include "jobs.hpp"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

namespace penstock::benchmarks {

namespace {

std::vector<std::string> split(const std::string& list) {
    std::vector<std::string> parts;
    std::istringstream stream(list);
    for (std::string part; std::getline(stream, part, ',');) {
        parts.push_back(part);
    }
    return parts;
}

constexpr std::uint64_t kWindow = std::uint64_t{32} << 20;  // of memory a device, used in turns

/// `bytes` of each of the files from `first` to before `end`, from their start again at their end.
TransferRequest request_of(const std::vector<File>& files, std::size_t first, std::size_t end,
                           const Memory& memory, std::uint64_t bytes, bool write) {
    TransferRequest request;
    request.write = write;
    request.options.allow_overlap = write;
    request.files = files;
    for (std::size_t i = first; i < end; ++i) {
        const std::uint64_t size = files[i].size() / kWindow * kWindow;
        for (std::uint64_t at = 0; at < bytes; at += kWindow) {
            request.extents.push_back({at % size,
                                       {memory.data() + i * kWindow, std::min(kWindow, bytes - at)},
                                       static_cast<std::uint32_t>(i)});
        }
    }
    return request;
}

}  // namespace

void scaling(const Arguments& arguments, Figures& figures) {
    const bool write = arguments.text("op") == "write";
    const std::uint64_t bytes = arguments.number("bytes");
    const std::vector<std::string> paths = split(arguments.text("paths"));
    const std::uint64_t devices = arguments.number("devices", paths.size());
    if (devices < 1 || devices > paths.size()) {
        throw std::invalid_argument("scaling: --devices is 1 to the number of --paths");
    }
    const Memory memory(devices * kWindow);
    Engine engine;
    std::vector<File> files;
    for (std::size_t i = 0; i < devices; ++i) {
        files.emplace_back(paths[i],
                           FileOptions{.access = write ? Access::kReadWrite : Access::kRead,
                                       .cache = CachePolicy::kDirect});
        // Rings and threads come with the first transfer to a device.
        engine.read_async(files.back(), {memory.data(), 4096}).wait();
    }
    // The kernel counts a throttled device's bytes in slices of a tenth of a second: after a pause
    // every run begins with a fresh one, where else chance would give or take one (7 % of a run).
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    Meter meter;
    meter.start();
    if (arguments.handicap("in_turn")) {
        for (std::size_t i = 0; i < devices; ++i) {
            engine.run(request_of(files, i, i + 1, memory, bytes, write)).wait();
        }
    } else {
        engine.run(request_of(files, 0, devices, memory, bytes, write)).wait();
    }
    meter.stop();
    meter.report(figures, devices * bytes, devices * bytes / engine.options().block_bytes);
    figures.set("value", static_cast<double>(bytes) / meter.seconds());
    figures.set("devices", devices);
    note_engine(engine, figures);
}

}  // namespace penstock::benchmarks
