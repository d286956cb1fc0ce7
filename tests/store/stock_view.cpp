// SPDX-License-Identifier: Apache-2.0
#include "store/stock_view.hpp"

#include "format/safetensors.hpp"
#include "store/keep/store_folder.hpp"
#include "store/store_support.hpp"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>

namespace penstock::test {

namespace {

using Shape = std::vector<std::uint64_t>;

struct Piece {
    Shape shape;
    Shape offset;
    std::vector<std::byte> data;
};

std::uint64_t product(std::span<const std::uint64_t> shape) {
    return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

// Row by row.
void place(const Piece& piece, std::uint64_t element, StockTensor& tensor) {
    if (piece.data.empty()) {
        return;
    }
    const std::size_t rank = piece.shape.size();
    const std::uint64_t row = rank == 0 ? 1 : piece.shape.back();
    for (std::uint64_t r = 0; r < product(piece.shape) / row; ++r) {
        std::uint64_t rest = r;
        std::uint64_t at = rank == 0 ? 0 : piece.offset.back();
        std::uint64_t stride = rank == 0 ? 1 : tensor.shape.back();
        for (std::size_t d = rank - std::min<std::size_t>(rank, 1); d-- > 0;) {
            at += (piece.offset[d] + rest % piece.shape[d]) * stride;
            rest /= piece.shape[d];
            stride *= tensor.shape[d];
        }
        const auto from = piece.data.begin() + static_cast<std::ptrdiff_t>(r * row * element);
        std::copy(from, from + static_cast<std::ptrdiff_t>(row * element),
                  tensor.data.begin() + static_cast<std::ptrdiff_t>(at * element));
    }
}

}  // namespace

std::map<std::string, StockTensor> read_as_stock(Engine& engine, const FileSystem& files,
                                                 const std::string& folder) {
    std::map<std::string, std::vector<Piece>> pieces;
    std::map<std::string, std::uint64_t> elements;
    for (const std::string& name : files.list(folder)) {
        if (!name.ends_with(".safetensors")) {
            continue;
        }
        const auto bytes = read_whole(engine, files, store::join(folder, name));
        const auto header = format::safetensors::read_header(bytes, bytes.size());
        if (!header) {
            throw std::runtime_error(name + ": " + header.error().describe());
        }
        nlohmann::json places;
        for (const auto& [key, value] : header->metadata) {
            places = key == "DCP_SHARDING_INFO" ? nlohmann::json::parse(value) : places;
        }
        for (const auto& tensor : header->tensors) {
            Piece piece{tensor.shape, Shape(tensor.shape.size(), 0), {}};
            if (!places.is_null()) {
                if (!places.contains(tensor.name)) {
                    throw std::runtime_error(name + " has no place of " + tensor.name);
                }
                piece.offset = places[tensor.name].at("saved_offsets").get<Shape>();
            }
            const auto begin =
                bytes.begin() + static_cast<std::ptrdiff_t>(header->data_begin + tensor.begin);
            piece.data.assign(begin,
                              begin + static_cast<std::ptrdiff_t>(tensor.end - tensor.begin));
            elements[tensor.name] =
                piece.data.empty() ? 1 : piece.data.size() / product(piece.shape);
            for (const Piece& other : pieces[tensor.name]) {
                if (other.offset == piece.offset) {
                    throw std::runtime_error(tensor.name + " has two slices at one place");
                }
            }
            pieces[tensor.name].push_back(std::move(piece));
        }
    }
    std::map<std::string, StockTensor> out;
    for (const auto& [name, list] : pieces) {
        StockTensor& tensor = out[name];
        tensor.shape.assign(list.front().shape.size(), 0);
        for (const Piece& piece : list) {
            for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
                tensor.shape[d] = std::max(tensor.shape[d], piece.offset.at(d) + piece.shape.at(d));
            }
        }
        tensor.data.assign(product(tensor.shape) * elements[name], std::byte{0xEE});
        for (const Piece& piece : list) {
            place(piece, elements[name], tensor);
        }
    }
    return out;
}

}  // namespace penstock::test
