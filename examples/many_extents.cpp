// SPDX-License-Identifier: Apache-2.0
// Many pieces of several files in one transfer with one wait: how the shards of a model are read.
#include <penstock/penstock.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kFiles = 2;
constexpr std::size_t kTensorsPerFile = 500;
constexpr std::size_t kTensorBytes = 16 * 1024 + 40;  // not a multiple of anything

std::string shard(std::size_t index) {
    return "many_extents-" + std::to_string(index) + ".bin";
}

std::byte value_of(std::size_t tensor) {
    return static_cast<std::byte>(tensor % 251);
}

}  // namespace

int main() {
    try {
        penstock::Engine engine;
        const std::size_t count = kFiles * kTensorsPerFile;
        std::vector<std::byte> memory(count * kTensorBytes);
        for (std::size_t i = 0; i < count; ++i) {
            std::memset(memory.data() + i * kTensorBytes, static_cast<int>(value_of(i)),
                        kTensorBytes);
        }

        // Out: by path; the files are made, and opened once each for the transfer.
        penstock::TransferRequest out;
        out.write = true;
        for (std::size_t i = 0; i < kFiles; ++i) {
            out.paths.push_back(shard(i));
        }
        // Neighbours in a file that follow each other in the list are written (and read) together.
        for (std::size_t i = 0; i < count; ++i) {
            out.extents.push_back({.offset = i % kTensorsPerFile * kTensorBytes,
                                   .memory = {memory.data() + i * kTensorBytes, kTensorBytes},
                                   .file = static_cast<std::uint32_t>(i / kTensorsPerFile)});
        }
        const std::vector<penstock::Extent> extents = out.extents;
        const std::uint64_t written = engine.submit(std::move(out)).wait();

        // And back, from files that were opened beforehand.
        std::memset(memory.data(), 0, memory.size());
        penstock::TransferRequest in;
        for (std::size_t i = 0; i < kFiles; ++i) {
            in.files.emplace_back(shard(i));
        }
        in.extents = extents;
        const std::uint64_t read = engine.submit(std::move(in)).wait();

        bool same = true;
        for (std::size_t i = 0; i < memory.size(); ++i) {
            same = same && memory[i] == value_of(i / kTensorBytes);
        }
        for (std::size_t i = 0; i < kFiles; ++i) {
            penstock::FileSystem::local().remove(shard(i));
        }
        const penstock::EngineStats stats = engine.stats();
        std::printf("%zu tensors: %llu bytes out, %llu bytes back, %llu requests; %s\n", count,
                    static_cast<unsigned long long>(written), static_cast<unsigned long long>(read),
                    static_cast<unsigned long long>(stats.requests),
                    same ? "all as written" : "NOT as written");
        return same ? 0 : 1;
    } catch (const penstock::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
