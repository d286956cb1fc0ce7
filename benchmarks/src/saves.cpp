// SPDX-License-Identifier: Apache-2.0
// A durable save of a state to a CheckpointStore.
#include "jobs.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace penstock::benchmarks {

namespace {

constexpr std::uint64_t kTensorBytes = std::uint64_t{64} << 20;

}  // namespace

void store_save(const Arguments& arguments, Figures& figures) {
    const std::uint64_t bytes = arguments.number("bytes");
    const bool are_copies = arguments.number("copies", 0) != 0;
    const std::string folder = arguments.text("dir") + "/store-save-" + std::to_string(::getpid());
    const Memory memory(bytes);
    std::fill_n(memory.data(), bytes, std::byte{7});
    State state;
    for (std::uint64_t at = 0; at < bytes; at += kTensorBytes) {
        const std::uint64_t size = std::min(kTensorBytes, bytes - at);
        state.tensors.push_back(
            {"t" + std::to_string(at), "U8", {size}, {memory.data() + at, size}});
        state.tensors.back().is_copy = are_copies;
    }
    const auto engine = std::make_shared<Engine>();
    Meter meter;
    {
        CheckpointStore store(engine, FileSystem::local(), {folder});
        State small = state;  // threads and folders come with the first save
        small.tensors.resize(1);
        small.tensors[0].shape = {4096};
        small.tensors[0].data.bytes = 4096;
        store.save(small);
        meter.start();
        const CheckpointInfo info = store.save(state);
        if (arguments.handicap("read_back") && !store.open(info.generation).verify().empty()) {
            throw std::runtime_error("store_save: what was saved is damaged");
        }
        meter.stop();
    }
    std::filesystem::remove_all(folder);
    meter.report(figures, bytes, 1);
    note_engine(*engine, figures);
}

}  // namespace penstock::benchmarks
