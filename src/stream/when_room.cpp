// SPDX-License-Identifier: Apache-2.0
#include "stream/when_room.hpp"

#include <penstock/error.hpp>

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace penstock::stream {

namespace {

// False when there was no room for it.
template <typename Work>
bool done_if_room(Work&& work) {
    try {
        work();
        return true;
    } catch (const Error& error) {
        if (error.reason() != ErrorCode::kWouldBlock) {
            throw;
        }
        return false;
    }
}

template <typename Work>
void when_room(const Work& work) {
    while (!done_if_room(work)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

}  // namespace

std::optional<Transfer> submit_if_room(Engine& engine, TransferRequest request) {
    std::optional<Transfer> sent;
    done_if_room([&] { sent = engine.submit(std::move(request)); });
    return sent;
}

std::optional<Transfer> run_if_room(Engine& engine, TransferRequest request) {
    std::optional<Transfer> sent;
    done_if_room([&] { sent = engine.run(std::move(request)); });
    return sent;
}

void let_end(Transfer& transfer) noexcept {
    if (!transfer.valid()) {
        return;
    }
    try {
        transfer.wait();
    } catch (const std::exception&) {  // its error, or no memory to say which: it has ended
        return;
    }
}

void read_when_room(Engine& engine, const File& file, std::span<std::byte> into,
                    std::uint64_t offset) {
    when_room([&] { engine.read(file, into, offset); });
}

void write_when_room(Engine& engine, const File& file, std::span<const std::byte> data,
                     std::uint64_t offset) {
    when_room([&] { engine.write(file, data, offset); });
}

}  // namespace penstock::stream
