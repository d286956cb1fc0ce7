// SPDX-License-Identifier: Apache-2.0
// Saves a state as an index of shards, as Hugging Face's models are, and reads it by the folder.
#include <penstock/penstock.hpp>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

int main() {
    try {
        const auto engine = std::make_shared<penstock::Engine>();
        const penstock::FileSystem files = penstock::FileSystem::local();
        const std::vector<std::uint64_t> shape{256, 256};
        const auto bytes = penstock::bytes_of(penstock::ElementType::kBF16, shape).value();
        const std::vector<std::byte> data(bytes, std::byte{7});

        penstock::State state;
        for (int i = 0; i < 8; ++i) {
            state.tensors.push_back(
                {"layer." + std::to_string(i) + ".weight", "BF16", shape, data});
        }
        files.make_folder("model");
        penstock::save_file(engine, "model/model.safetensors.index.json", state,
                            {.shard_bytes = 3 * bytes});

        penstock::StateFile model(engine, "model");
        std::vector<std::byte> back(bytes);
        const penstock::TensorRead read{.name = "layer.5.weight", .into = back};
        model.read({&read, 1});
        std::printf("%zu tensors in %zu shards\n", model.table().tensors.size(),
                    model.table().files.size());
        model.close();

        for (const std::string& name : files.list("model")) {  // the example tidies up
            files.remove("model/" + name);
        }
        files.remove("model");
        return back == data ? 0 : 1;
    } catch (const penstock::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
