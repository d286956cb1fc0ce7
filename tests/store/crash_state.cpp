// SPDX-License-Identifier: Apache-2.0
#include "store/crash_state.hpp"

#include "support/test_engine.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::store {

namespace {

struct Part {
    const char* name;
    std::uint64_t elements;
    std::uint64_t changes_every;  ///< saves; 0: never
};

// Empty, odd, a block, more than a block.
constexpr Part kParts[] = {{"embedding", 2000, 0}, {"head.bias", 77, 1}, {"head.weight", 1024, 1},
                           {"layer.0", 1500, 2},   {"layer.1", 900, 3},  {"nothing", 0, 0}};

std::string structure_of(std::uint64_t number) {
    return fmt::format(R"({{"penstock_structure":1,"values":[{}],"tensors":[],"storages":[]}})",
                       number);
}

std::vector<std::byte> content_of(const Part& part, std::uint64_t number, std::uint64_t scale) {
    const std::uint64_t version = part.changes_every == 0 ? 0 : number / part.changes_every;
    const auto salt = static_cast<std::uint64_t>(&part - kParts);
    return support::pattern(4 * part.elements * scale, version * 16 + salt);
}

}  // namespace

NumberedState::NumberedState(std::uint64_t number, std::uint64_t scale) : number_(number) {
    for (const Part& part : kParts) {
        contents_.push_back(content_of(part, number, scale));
        tensors_.push_back({.name = part.name,
                            .dtype = "F32",
                            .shape = {part.elements * scale},
                            .data = contents_.back()});
    }
}

State NumberedState::state() const {
    return {.tensors = tensors_,
            .structure = structure_of(number_),
            .metadata = {{"number", std::to_string(number_)}}};
}

std::string compare(Checkpoint& checkpoint, std::uint64_t number, std::uint64_t scale) {
    if (checkpoint.structure() != structure_of(number)) {
        return fmt::format("the structure is {}, that of number {} was wanted",
                           checkpoint.structure(), number);
    }
    if (checkpoint.tensors().size() != std::size(kParts)) {
        return fmt::format("{} tensors are there", checkpoint.tensors().size());
    }
    std::vector<std::vector<std::byte>> contents;
    std::vector<TensorRead> wanted;
    for (const Part& part : kParts) {
        contents.emplace_back(4 * part.elements * scale);
        wanted.push_back({.name = part.name, .into = contents.back()});
    }
    checkpoint.read(wanted);
    for (const Part& part : kParts) {
        if (contents[static_cast<std::size_t>(&part - kParts)] != content_of(part, number, scale)) {
            return fmt::format("tensor {} is not that of number {}", part.name, number);
        }
    }
    return {};
}

}  // namespace penstock::store
