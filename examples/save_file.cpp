// SPDX-License-Identifier: Apache-2.0
// Saves tensors to a file that torch.load() reads, and to one for safetensors, whole and durable.
#include <penstock/penstock.hpp>

#include <cstdio>
#include <memory>
#include <span>
#include <vector>

int main() {
    try {
        const auto engine = std::make_shared<penstock::Engine>();
        const penstock::FileSystem files = penstock::FileSystem::local();
        const std::vector<float> weight(512 * 256, 0.5F);
        const std::vector<float> bias(512, 0.0F);

        penstock::State state;
        state.tensors = {{"layer.weight", "F32", {512, 256}, std::as_bytes(std::span(weight))},
                         {"layer.bias", "F32", {512}, std::as_bytes(std::span(bias))}};
        penstock::save_file(engine, "model.pt", state);

        state.metadata = {{"format", "pt"}, {"made_by", "save_file"}};
        penstock::save_file(engine, "model.safetensors", state);
        // Scratch that may be lost with a power failure need not wait for the device.
        penstock::save_file(engine, "scratch.safetensors", state, {.sync = false});

        for (const char* path : {"model.pt", "model.safetensors", "scratch.safetensors"}) {
            std::printf("%s: %llu bytes\n", path,
                        static_cast<unsigned long long>(files.status(path).bytes));
            files.remove(path);  // the example tidies up
        }
        return 0;
    } catch (const penstock::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
