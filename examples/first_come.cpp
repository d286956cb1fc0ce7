// SPDX-License-Identifier: Apache-2.0
// Reads a file in blocks, a few under way at a time, and works on whichever block comes first.
#include <penstock/penstock.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kBlockBytes = 256 * 1024;
constexpr std::size_t kBlocks = 64;
constexpr std::size_t kUnderWay = 8;
constexpr const char* kPath = "first_come.bin";

std::uint64_t sum(std::span<const std::byte> block) {
    return std::accumulate(block.begin(), block.end(), std::uint64_t{0},
                           [](auto s, std::byte b) { return s + std::to_integer<unsigned>(b); });
}

}  // namespace

int main() {
    try {
        penstock::EngineOptions options = penstock::Engine::default_options();
        options.transfers_max = kUnderWay;
        penstock::Engine engine(options);
        std::vector<std::byte> data(kBlocks * kBlockBytes);
        for (std::size_t i = 0; i < data.size(); ++i) {
            data[i] = static_cast<std::byte>(i * i % 251);
        }
        engine.write(kPath, data);

        const penstock::File file(kPath);
        std::vector<std::byte> memory(data.size());
        penstock::TransferGroup group;  // after the memory: it waits for its transfers when it goes
        std::map<std::uint64_t, std::size_t> block_of;
        std::uint64_t total = 0;
        for (std::size_t next = 0; next < kBlocks || !group.empty();) {
            if (next < kBlocks) {
                penstock::TransferRequest request;
                request.files = {file};
                request.extents = {{.offset = next * kBlockBytes,
                                    .memory = {memory.data() + next * kBlockBytes, kBlockBytes}}};
                if (auto transfer = engine.try_submit(request)) {
                    block_of[group.add(std::move(*transfer))] = next++;
                    continue;
                }
            }
            if (auto ended = group.wait_any()) {
                ended->transfer.wait();  // throws its error, if it has one
                const std::size_t block = block_of.at(ended->number);
                total += sum(std::span(memory).subspan(block * kBlockBytes, kBlockBytes));
            } else {
                engine.wait_for_room();  // others have all transfers of the engine
            }
        }
        penstock::FileSystem::local().remove(kPath);
        const bool same = total == sum(data) && std::ranges::equal(memory, data);
        std::printf("%zu blocks, at most %zu at a time: %s\n", kBlocks, kUnderWay,
                    same ? "all as written" : "NOT as written");
        return same ? 0 : 1;
    } catch (const penstock::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
