// SPDX-License-Identifier: Apache-2.0
// Saves a training state while training goes on: save_async() returns when a copy is made, and the
// checkpoint is there, whole and durable, some steps later.
#include <penstock/penstock.hpp>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

int main() {
    try {
        const auto engine = std::make_shared<penstock::Engine>();
        penstock::CheckpointStore store(engine, penstock::FileSystem::local(), {"checkpoints"},
                                        {.keep = 2});
        std::vector<float> weight(1 << 20, 0.5F);
        std::optional<penstock::PendingSave> pending;
        for (std::uint64_t step = 1; step <= 20; ++step) {
            for (float& value : weight) {
                value += 0.01F;  // training
            }
            // One save at a time; each takes the steps that it takes.
            if (!pending || pending->done()) {
                if (pending) {
                    pending->result();  // throws what went wrong
                }
                const penstock::State state{
                    .tensors = {{.name = "weight",
                                 .dtype = "F32",
                                 .shape = {weight.size()},
                                 .data = std::as_bytes(std::span(weight))}}};
                pending = store.save_async(state, {.step = step});
            }
        }
        const penstock::CheckpointInfo last = pending->result();
        std::printf("generation %llu has the weights of step %llu\n",
                    static_cast<unsigned long long>(last.generation),
                    static_cast<unsigned long long>(last.step));

        // At the next start: the newest that is sound, read and checked.
        store.open_newest([&](penstock::Checkpoint checkpoint) {
            const penstock::TensorRead read{.name = "weight",
                                            .into = std::as_writable_bytes(std::span(weight))};
            checkpoint.read({&read, 1});
        });
        std::filesystem::remove_all("checkpoints");  // the example tidies up
        return 0;
    } catch (const penstock::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
