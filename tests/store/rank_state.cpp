// SPDX-License-Identifier: Apache-2.0
#include "store/rank_state.hpp"

#include "state/structure/structure.hpp"
#include "store/stock_view.hpp"
#include "support/test_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace penstock::store {

namespace {

struct Matrix {
    std::string name;
    std::uint64_t rows;
    std::uint64_t columns;
    std::uint64_t parts;  ///< slices that each rank has of its rows; 0: all ranks have all of it
    bool changes;         ///< at each save
};

std::vector<Matrix> matrices(std::uint64_t whole) {
    return {{"embedding", 12, 50, 1, false}, {"uneven", 5, 7, 1, true}, {"weight", 12, 40, 1, true},
            {"strided", 20, 5, 2, true},     {"bias", 1, 77, 0, true},  {"head", 1, whole, 0, true},
            {"table", 1, whole, 0, false}};
}

std::vector<std::byte> content_of(const Matrix& matrix, std::uint64_t number) {
    return support::pattern(4 * matrix.rows * matrix.columns,
                            (matrix.changes ? number : 0) * 16 + matrix.name.size());
}

std::string structure_of(std::uint64_t number) {
    return fmt::format(
        "{{\"penstock_structure\":1,\n\"values\":[{}],\n\"tensors\":[],\n\"storages\":[]}}",
        number);
}

constexpr std::uint64_t kOwnBytes = 4 * 20;

std::vector<std::byte> own_content(std::uint64_t rank) {
    return support::pattern(kOwnBytes, 1000 + rank);
}

// A rank has {"number": ..., "own": PerRank({rank: tensor})}, and "last" on the last one.
std::string structure_of_rank(std::uint64_t number, std::uint32_t rank, bool is_last) {
    return fmt::format(
        R"({{"penstock_structure":1,"values":[["dict",1,2,3,4{}],"number",{},"own",)"
        R"(["per_rank",5,6],{},["tensor",0]{}],"tensors":[[0]{}],"storages":["own.{}"{}]}})",
        is_last ? ",7,8" : "", number, rank, is_last ? R"(,"last",["tensor",1])" : "",
        is_last ? ",[1]" : "", rank, is_last ? R"(,"last")" : "");
}

// Whether a structure is one of structure_of_rank(), of all ranks joined.
std::string wrong_structure_of(Checkpoint& checkpoint, std::uint64_t number, std::size_t count) {
    const state::Skeleton found = state::skeleton_of(checkpoint.structure(), checkpoint.tensors());
    const format::Value& root = found.tree.at(found.tree.root);
    if (root.items.size() != 6 ||
        found.tree.at(root.items[1]).integer != static_cast<std::int64_t>(number)) {
        return fmt::format("the structure is {}, that of number {} was wanted",
                           checkpoint.structure(), number);
    }
    const format::Value& own = found.tree.at(root.items[3]);
    return own.kind == format::ValueKind::kPerRank && own.items.size() == 2 * count
               ? ""
               : "not each rank has a value of its own";
}

}  // namespace

RankState::RankState(std::uint32_t rank, std::uint32_t count, std::uint64_t number,
                     std::uint64_t whole, bool apart)
    : structure_(apart ? structure_of_rank(number, rank, rank + 1 == count)
                       : structure_of(number)) {
    if (apart) {
        add_own(rank, count);
    }
    for (const Matrix& matrix : matrices(whole)) {
        if (matrix.parts == 0) {
            add_rows(matrix.name, content_of(matrix, number), 0, matrix.rows, matrix.rows);
        }
        for (std::uint64_t part = 0; part < matrix.parts; ++part) {
            const std::uint64_t place = part * count + rank;
            const std::uint64_t begin = matrix.rows * place / (matrix.parts * count);
            const std::uint64_t end = matrix.rows * (place + 1) / (matrix.parts * count);
            add_rows(matrix.name, content_of(matrix, number), begin, end, matrix.rows);
            tensors_.back().global_shape = {matrix.rows, matrix.columns};
            tensors_.back().global_offset = {begin, 0};
        }
    }
}

void RankState::add_rows(const std::string& name, const std::vector<std::byte>& content,
                         std::uint64_t begin, std::uint64_t end, std::uint64_t rows) {
    const std::uint64_t row = content.size() / rows;
    contents_.emplace_back(content.begin() + static_cast<std::ptrdiff_t>(begin * row),
                           content.begin() + static_cast<std::ptrdiff_t>(end * row));
    StateTensor& tensor = tensors_.emplace_back();
    tensor.name = name;
    tensor.dtype = "F32";
    tensor.shape = {end - begin, row / 4};
    tensor.data = contents_.back();
}

void RankState::add_own(std::uint32_t rank, std::uint32_t count) {
    add_rows(fmt::format("own.{}", rank), own_content(rank), 0, 1, 1);
    if (rank + 1 == count) {
        add_rows("last", own_content(99), 0, 1, 1);
    }
}

State RankState::state() const {
    return {.tensors = tensors_, .structure = structure_};
}

std::string RankState::compare(Checkpoint& checkpoint, std::uint64_t number, std::uint64_t whole,
                               bool apart) {
    std::size_t owned = 0;  // tensors of one rank
    if (apart) {
        std::vector<std::byte> found(kOwnBytes);
        const auto holds = [&](const std::string& name, std::uint64_t content) {
            const TensorRead read{.name = name, .into = found};
            checkpoint.read({&read, 1});
            return found == own_content(content);
        };
        owned = checkpoint.tensors().size() - matrices(whole).size();
        for (std::size_t rank = 0; rank + 1 < owned; ++rank) {
            if (!holds(fmt::format("own.{}", rank), rank)) {
                return fmt::format("what rank {} has is not there", rank);
            }
        }
        if (!holds("last", 99)) {
            return "what the last rank has is not there";
        }
        if (std::string wrong = wrong_structure_of(checkpoint, number, owned - 1); !wrong.empty()) {
            return wrong;
        }
    } else if (checkpoint.structure() != structure_of(number)) {
        return fmt::format("the structure is {}, that of number {} was wanted",
                           checkpoint.structure(), number);
    }
    const std::vector<Matrix> wanted = matrices(whole);
    if (checkpoint.tensors().size() != wanted.size() + owned) {
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

std::string RankState::compare_as_stock(Engine& engine, const FileSystem& files,
                                        const std::string& folder, std::uint64_t number,
                                        std::uint64_t whole, bool apart) {
    try {
        const auto found = test::read_as_stock(engine, files, folder);
        const std::vector<Matrix> wanted = matrices(whole);
        if (apart ? found.size() < wanted.size() + 3 : found.size() != wanted.size()) {
            return fmt::format("the shards have {} tensors", found.size());
        }
        for (const Matrix& matrix : wanted) {
            const auto tensor = found.find(matrix.name);
            if (tensor == found.end() || tensor->second.data != content_of(matrix, number)) {
                return fmt::format("the shards do not have {} of number {}", matrix.name, number);
            }
        }
    } catch (const std::exception& error) {
        return error.what();
    }
    return {};
}

}  // namespace penstock::store
