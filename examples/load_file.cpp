// SPDX-License-Identifier: Apache-2.0
// Loads a whole file, and reads tensors of it by name: all of one, rows of another, and what a
// pattern means.
#include <penstock/penstock.hpp>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

int main() {
    try {
        const auto engine = std::make_shared<penstock::Engine>();
        const std::vector<float> table(1000 * 64, 0.25F);
        const std::vector<float> bias(64, 1.0F);
        penstock::save_file(
            engine, "model.safetensors",
            {.tensors = {{"embed.weight", "F32", {1000, 64}, std::as_bytes(std::span(table))},
                         {"embed.bias", "F32", {64}, std::as_bytes(std::span(bias))}}});

        penstock::StateFile file(engine, "model.safetensors");
        const std::vector<std::string> wanted{"embed.*"};
        for (const std::string& name : file.select(wanted)) {
            std::printf("%s\n", name.c_str());
        }

        std::vector<float> rows(10 * 64);
        std::vector<float> whole(64);
        const std::vector<penstock::TensorRead> reads{
            {.name = "embed.weight",
             .into = std::as_writable_bytes(std::span(rows)),
             .begin = {500, 0},
             .end = {510, 64}},
            {.name = "embed.bias", .into = std::as_writable_bytes(std::span(whole))}};
        std::printf("%llu bytes read\n", static_cast<unsigned long long>(file.read(reads)));
        const bool same = rows[0] == 0.25F && whole[0] == 1.0F && file.verify().problems.empty();

        const penstock::LoadedState all = penstock::load_file(engine, "model.safetensors");
        for (const penstock::StateTensor& tensor : all.state.tensors) {
            std::printf("%s: %s, %llu bytes\n", tensor.name.c_str(), tensor.dtype.c_str(),
                        static_cast<unsigned long long>(tensor.data.bytes));
        }

        file.close();
        penstock::FileSystem::local().remove("model.safetensors");  // the example tidies up
        return same ? 0 : 1;
    } catch (const penstock::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
