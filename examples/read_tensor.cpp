// SPDX-License-Identifier: Apache-2.0
// Reads one tensor out of the middle of a file.
//
//     read_tensor [FILE OFFSET]
//
// Without arguments it makes a small file of its own first, and removes it.
#include <penstock/penstock.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kRows = 1024;
constexpr std::size_t kColumns = 768;

// Any memory will do, wherever it lies; so will any offset.
std::vector<float> read_tensor(penstock::Engine& engine, const std::string& path,
                               std::uint64_t offset) {
    std::vector<float> tensor(kRows * kColumns);
    const penstock::File file(path);
    engine.read(file, std::as_writable_bytes(std::span(tensor)), offset);
    const penstock::FileInfo info = file.info();
    std::printf("%s: %zu floats from offset %llu, %s (%s)\n", path.c_str(), tensor.size(),
                static_cast<unsigned long long>(offset), info.direct ? "direct" : "cached",
                info.reason.c_str());
    return tensor;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        penstock::Engine engine;
        if (argc == 3) {
            const auto tensor = read_tensor(engine, argv[1], std::strtoull(argv[2], nullptr, 10));
            std::printf("first value: %g\n", tensor.front());
            return 0;
        }
        const std::string path = "read_tensor.bin";
        const std::uint64_t offset = 100;  // nothing needs to be aligned
        std::vector<float> made(kRows * kColumns);
        for (std::size_t i = 0; i < made.size(); ++i) {
            made[i] = static_cast<float>(i);
        }
        engine.write(path, std::as_bytes(std::span(made)), offset);
        const bool same = read_tensor(engine, path, offset) == made;
        penstock::FileSystem::local().remove(path);
        std::printf("%s\n", same ? "it is the one that was written" : "it is NOT what was written");
        return same ? 0 : 1;
    } catch (const penstock::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
