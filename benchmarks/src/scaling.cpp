// SPDX-License-Identifier: Apache-2.0
// One transfer over a file on each of several devices: bytes a second a device, so that linear
// scaling is the figure of one device.
#include "jobs.hpp"

#include <algorithm>
#include <sstream>

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

/// A piece of one file to the same place of its memory.
struct Piece {
    std::uint32_t file;
    std::uint64_t offset;
    std::uint64_t bytes;
};

TransferRequest request_of(const std::vector<File>& files, const std::vector<Piece>& pieces,
                           Memory& memory, std::uint64_t bytes_each, bool write) {
    TransferRequest request;
    request.write = write;
    request.files = files;
    for (const Piece& piece : pieces) {
        std::byte* const to = memory.data() + piece.file * bytes_each + piece.offset;
        request.extents.push_back({piece.offset, piece.bytes, to, piece.file});
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
    Memory memory(devices * bytes);
    Engine engine;
    std::vector<File> files;
    std::vector<Piece> pieces;
    for (std::uint32_t i = 0; i < devices; ++i) {
        files.emplace_back(paths[i],
                           FileOptions{.access = write ? Access::kReadWrite : Access::kRead});
        pieces.push_back({i, 0, bytes});
        // Rings and threads come with the first transfer to a device.
        engine.read_async(files.back(), {memory.data(), 4096}).wait();
    }
    Meter meter;
    meter.start();
    if (arguments.handicap("in_turn")) {
        for (const Piece& piece : pieces) {
            engine.run(request_of(files, {piece}, memory, bytes, write)).wait();
        }
    } else {
        engine.run(request_of(files, pieces, memory, bytes, write)).wait();
    }
    meter.stop();
    meter.report(figures, devices * bytes, devices * bytes / engine.options().block_bytes);
    figures.set("value", static_cast<double>(bytes) / meter.seconds());
    figures.set("devices", devices);
    note_engine(engine, figures);
}

}  // namespace penstock::benchmarks
