// SPDX-License-Identifier: Apache-2.0
#include "stream/when_room.hpp"

#include <optional>

namespace penstock::stream {

namespace {

void run_when_room(Engine& engine, TransferRequest& request, const File& file, Memory memory,
                   std::uint64_t offset) {
    request.files = {file};
    request.extents = {{offset, memory, 0}};
    std::optional<Transfer> transfer = engine.try_run(request);
    for (; !transfer; transfer = engine.try_run(request)) {
        engine.wait_for_room();
    }
    transfer->wait();
}

}  // namespace

void read_when_room(Engine& engine, const File& file, Memory into, std::uint64_t offset,
                    CachePolicy cache) {
    TransferRequest request;
    request.options.cache = cache;
    run_when_room(engine, request, file, into, offset);
}

void write_when_room(Engine& engine, const File& file, ConstMemory data, std::uint64_t offset) {
    TransferRequest request;
    request.write = true;
    run_when_room(engine, request, file, to_write(data), offset);
}

}  // namespace penstock::stream
