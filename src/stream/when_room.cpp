// SPDX-License-Identifier: Apache-2.0
#include "stream/when_room.hpp"

#include <optional>

namespace penstock::stream {

namespace {

void run_when_room(Engine& engine, TransferRequest& request, const File& file, const void* memory,
                   std::uint64_t bytes, std::uint64_t offset) {
    request.files = {file};
    request.extents = {{offset, bytes, const_cast<void*>(memory), 0}};
    std::optional<Transfer> transfer = engine.try_run(request);
    for (; !transfer; transfer = engine.try_run(request)) {
        engine.wait_for_room();
    }
    transfer->wait();
}

}  // namespace

void read_when_room(Engine& engine, const File& file, std::span<std::byte> into,
                    std::uint64_t offset) {
    TransferRequest request;
    run_when_room(engine, request, file, into.data(), into.size(), offset);
}

void write_when_room(Engine& engine, const File& file, std::span<const std::byte> data,
                     std::uint64_t offset) {
    TransferRequest request;
    request.write = true;
    run_when_room(engine, request, file, data.data(), data.size(), offset);
}

}  // namespace penstock::stream
