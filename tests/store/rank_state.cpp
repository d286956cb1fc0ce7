// SPDX-License-Identifier: Apache-2.0
#include "store/rank_state.hpp"

#include "support/test_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock::store {

namespace {

struct Matrix {
    std::string name;
    std::uint64_t rows;
    std::uint64_t columns;
    bool cut;      ///< each rank has some rows of it
    bool changes;  ///< at each save
};

std::vector<Matrix> matrices(std::uint64_t whole) {
    return {{"embedding", 12, 50, true, false}, {"uneven", 5, 7, true, true},
            {"weight", 12, 40, true, true},     {"bias", 1, 77, false, true},
            {"head", 1, whole, false, true},    {"table", 1, whole, false, false}};
}

std::vector<std::byte> content_of(const Matrix& matrix, std::uint64_t number) {
    return support::pattern(4 * matrix.rows * matrix.columns,
                            (matrix.changes ? number : 0) * 16 + matrix.name.size());
}

std::string structure_of(std::uint64_t number) {
    return fmt::format(R"({{"penstock_structure":1,"values":[{}],"tensors":[],"storages":[]}})",
                       number);
}

}  // namespace

RankState::RankState(std::uint32_t rank, std::uint32_t count, std::uint64_t number,
                     std::uint64_t whole)
    : number_(number) {
    for (const Matrix& matrix : matrices(whole)) {
        const std::uint64_t begin = matrix.cut ? matrix.rows * rank / count : 0;
        const std::uint64_t end = matrix.cut ? matrix.rows * (rank + 1) / count : matrix.rows;
        const std::vector<std::byte> content = content_of(matrix, number);
        const std::uint64_t row = 4 * matrix.columns;
        contents_.emplace_back(content.begin() + static_cast<std::ptrdiff_t>(begin * row),
                               content.begin() + static_cast<std::ptrdiff_t>(end * row));
        StateTensor& tensor = tensors_.emplace_back();
        tensor.name = matrix.name;
        tensor.dtype = "F32";
        tensor.shape = {end - begin, matrix.columns};
        tensor.data = contents_.back();
        if (matrix.cut) {
            tensor.global_shape = {matrix.rows, matrix.columns};
            tensor.global_offset = {begin, 0};
        }
    }
}

State RankState::state() const {
    return {.tensors = tensors_, .structure = structure_of(number_)};
}

std::string RankState::compare(Checkpoint& checkpoint, std::uint64_t number, std::uint64_t whole) {
    if (checkpoint.structure() != structure_of(number)) {
        return fmt::format("the structure is {}, that of number {} was wanted",
                           checkpoint.structure(), number);
    }
    const std::vector<Matrix> wanted = matrices(whole);
    if (checkpoint.tensors().size() != wanted.size()) {
        return fmt::format("{} tensors are there", checkpoint.tensors().size());
    }
    for (const Matrix& matrix : wanted) {
        std::vector<std::byte> found(4 * matrix.rows * matrix.columns);
        const TensorRead read{.name = matrix.name, .into = found};
        checkpoint.read({&read, 1});
        if (found != content_of(matrix, number)) {
            return fmt::format("{} is not that of number {}", matrix.name, number);
        }
    }
    return {};
}

}  // namespace penstock::store
