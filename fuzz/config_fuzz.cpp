// SPDX-License-Identifier: Apache-2.0
// Any bytes as a config.json: an error with a text, or a count that is the sum of its tensors.
#include <penstock/plan_model.hpp>

#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    try {
        const penstock::plan::ModelParameters model = penstock::plan::read_model(
            std::string_view(reinterpret_cast<const char*>(data), bytes));
        std::uint64_t sum = 0;
        for (const penstock::plan::TensorGroup& group : model.groups) {
            sum += group.parameters();
        }
        if (sum != model.parameters || sum == 0 || sum > std::uint64_t{1} << 62U) {
            std::abort();
        }
    } catch (const penstock::Error& error) {
        if (std::string_view(error.what()).size() < 10) {
            std::abort();
        }
    }
    return 0;
}
