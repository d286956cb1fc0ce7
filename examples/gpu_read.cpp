// SPDX-License-Identifier: Apache-2.0
// A tensor from the memory of a GPU to a file, and parts of it back to where the GPU has room: the
// calls are those for memory of the host. Without a GPU it says so.
#include "cuda/driver.hpp"

#include <penstock/penstock.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <numeric>
#include <vector>

namespace {

constexpr std::size_t kValues = 1'000'000;

void write_and_read() {
    const cuda_example::Gpu gpu;
    std::vector<float> values(kValues);
    std::iota(values.begin(), values.end(), 0.0F);
    const cuda_example::Values<float> weights(gpu, values);
    const cuda_example::Values<float> back(gpu, kValues);
    const auto memory = [](const cuda_example::Values<float>& of, std::size_t first,
                           std::size_t count) {
        return penstock::device_memory(of.data() + first, count * sizeof(float));
    };

    penstock::Engine engine;
    engine.write("weights.bin", memory(weights, 0, kValues));

    // Two parts that lie anywhere, in one transfer.
    const std::size_t third = kValues / 3;
    const penstock::File file("weights.bin");
    penstock::TransferRequest request;
    request.files = {file};
    request.extents = {{third * sizeof(float), memory(back, third, kValues - third), 0},
                       {0, memory(back, 0, third), 0}};
    penstock::Transfer transfer = engine.submit(std::move(request));
    transfer.wait();  // the bytes are there for all streams of the GPU

    const penstock::EngineStats stats = engine.stats();
    std::printf("%zu values written from a GPU and read back to it; %llu bytes by cuFile\n",
                kValues, static_cast<unsigned long long>(stats.cufile_bytes));
    if (back.get() != values) {
        throw std::runtime_error("what came back is not what was written");
    }
}

}  // namespace

int main() {
    const penstock::GpuReport report = penstock::gpus();
    if (!report.available) {
        std::printf("no GPU: %s\n", report.reason.c_str());
        return 0;
    }
    try {
        write_and_read();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
