// SPDX-License-Identifier: Apache-2.0
// Saves tensors that are made one after another in the same memory, so that the state may be larger
// than memory: to a `.pt` and to an index, which need to know nothing before, and to one
// `.safetensors`, whose header comes first.
#include <penstock/penstock.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

constexpr int kLayers = 8;

// Layer i is made of bytes i, in `memory`.
penstock::TensorStream layers(std::vector<std::byte>& memory) {
    penstock::TensorStream stream;
    stream.next = [&memory, layer = 0]() mutable -> std::optional<penstock::StateTensor> {
        if (layer == kLayers) {
            return std::nullopt;
        }
        std::fill(memory.begin(), memory.end(), std::byte(layer));
        return penstock::StateTensor{
            "layer." + std::to_string(layer++) + ".weight", "U8", {memory.size()}, memory};
    };
    return stream;
}

}  // namespace

int main() {
    try {
        const auto engine = std::make_shared<penstock::Engine>();
        const penstock::FileSystem files = penstock::FileSystem::local();
        std::vector<std::byte> memory(1 << 20);
        files.make_folder("streamed");

        penstock::save_file(engine, "streamed/state.pt", layers(memory));
        penstock::save_file(engine, "streamed/model.safetensors.index.json", layers(memory),
                            {.shard_bytes = 3 << 20});
        penstock::TensorStream known = layers(memory);
        known.like.emplace();
        for (int layer = 0; layer < kLayers; ++layer) {
            known.like->push_back(
                {"layer." + std::to_string(layer) + ".weight", "U8", {memory.size()}, {}});
        }
        penstock::save_file(engine, "streamed/whole.safetensors", known);

        bool right = true;
        for (const char* name : {"state.pt", "model.safetensors.index.json", "whole.safetensors"}) {
            penstock::StateFile file(engine, std::string("streamed/") + name);
            std::vector<std::byte> back(memory.size());
            const penstock::TensorRead read{.name = "layer.5.weight", .into = back};
            file.read({&read, 1});
            right = right && back == std::vector<std::byte>(memory.size(), std::byte{5});
            std::printf("%s: %zu tensors in %zu files\n", name, file.table().tensors.size(),
                        file.table().files.size());
        }
        for (const std::string& name : files.list("streamed")) {  // the example tidies up
            files.remove("streamed/" + name);
        }
        files.remove("streamed");
        return right ? 0 : 1;
    } catch (const penstock::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
