// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "graph/graph_edges.hpp"
#include "graph/mapped_file.hpp"

#include <penstock/graph.hpp>
#include <penstock/memory.hpp>
#include <penstock/tensor_table.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

using base::Result;

constexpr std::string_view kGraphOperation = "graph";
constexpr std::uint64_t kGraphNodesMax = std::uint64_t{1} << 48U;

base::Failure no_graph(std::string_view message) {
    return base::fail(base::error(ErrorCode::kInvalidArgument, kGraphOperation, message));
}

bool is_index_type(ElementType type) {
    return type == ElementType::kI32 || type == ElementType::kU32 || type == ElementType::kI64 ||
           type == ElementType::kU64;
}

// A number as its array has it.
std::string shown_index(const IndexArray& array, std::uint64_t i) {
    const std::uint64_t value = array[i];
    const bool is_signed = array.type() == ElementType::kI32 || array.type() == ElementType::kI64;
    return is_signed ? std::to_string(static_cast<std::int64_t>(value)) : std::to_string(value);
}

Result<void> check_indices(const IndexArray& indices, std::uint64_t nodes, const char* name) {
    for (std::uint64_t i = 0; i < indices.size(); ++i) {
        if (indices[i] >= nodes) {
            return no_graph(
                fmt::format("{}[{}] is {}, which is no node: there are {}, numbered from 0", name,
                            i, shown_index(indices, i), nodes));
        }
    }
    return {};
}

// Each element of indptr, then of indices.
Result<void> check_all(const IndexArray& indptr, const IndexArray& indices, std::uint64_t sources) {
    for (std::uint64_t i = 1; i < indptr.size(); ++i) {
        if (indptr[i] < indptr[i - 1] || indptr[i] > indices.size()) {
            return no_graph(fmt::format(
                "indptr[{}] is {}, and indptr[{}] is {}: expected numbers that never fall, up to "
                "the {} of indices",
                i - 1, shown_index(indptr, i - 1), i, shown_index(indptr, i), indices.size()));
        }
    }
    return check_indices(indices, sources, "indices");
}

Result<void> check_ends(const IndexArray& indptr, const IndexArray& indices,
                        const IndexArray& edge_ids) {
    const std::array<std::pair<const char*, const IndexArray*>, 3> arrays{
        {{"indptr", &indptr}, {"indices", &indices}, {"edge_ids", &edge_ids}}};
    for (const auto& [name, array] : arrays) {
        if (!is_index_type(array->type())) {
            return no_graph(fmt::format("{}: expected I32, U32, I64 or U64, got {}", name,
                                        name_of(array->type())));
        }
    }
    if (indptr.empty()) {
        return no_graph("indptr: expected one element more than there are nodes, got none");
    }
    if (indptr[0] != 0 || indptr[indptr.size() - 1] != indices.size()) {
        return no_graph(fmt::format(
            "indptr begins with {} and ends with {}: expected 0 and the number of edges, {}",
            shown_index(indptr, 0), shown_index(indptr, indptr.size() - 1), indices.size()));
    }
    if (!edge_ids.empty() && edge_ids.size() != indices.size()) {
        return no_graph(fmt::format("edge_ids: expected {}, one for each edge, got {}",
                                    indices.size(), edge_ids.size()));
    }
    return {};
}

/// An array of a file, and what keeps it.
struct LoadedArray {
    IndexArray values;
    std::shared_ptr<const void> keep;
    const graph::MappedFile* mapped = nullptr;
};

struct FileArray {
    std::uint64_t offset = 0;
    std::uint64_t count = 0;
    ElementType type = ElementType::kI64;
};

Result<FileArray> npy_array(Engine& engine, const std::string& path) {
    const NpyHeader header = read_npy_header(engine, path);
    constexpr std::array<std::pair<std::string_view, ElementType>, 4> kTypes{
        {{"<i4", ElementType::kI32},
         {"<u4", ElementType::kU32},
         {"<i8", ElementType::kI64},
         {"<u8", ElementType::kU64}}};
    const auto* const found = std::find_if(
        kTypes.begin(), kTypes.end(), [&header](const auto& t) { return t.first == header.dtype; });
    if (found == kTypes.end() || header.shape.size() != 1) {
        return base::fail(base::error(
            ErrorCode::kDamaged, kGraphOperation,
            fmt::format("expected one dimension of int32, uint32, int64 or uint64, got dtype {} "
                        "and shape [{}]",
                        header.dtype, fmt::join(header.shape, ", ")),
            path));
    }
    return FileArray{header.header_bytes, header.shape[0], found->second};
}

Result<FileArray> array_of_file(Engine& engine, const std::string& path,
                                std::optional<ElementType> type) {
    const std::uint64_t bytes = File(path).size();
    FileArray array;
    if (!type) {
        PENSTOCK_TRY(named, npy_array(engine, path));
        array = named;
    } else {
        array.type = *type;
        array.count = bytes / std::max(bits_of(*type) / 8U, 1U);
    }
    const std::uint64_t item_bytes = std::max(bits_of(array.type) / 8U, 1U);
    const bool has_all =
        array.offset <= bytes && array.count <= (bytes - array.offset) / item_bytes;
    if (!has_all || (type && bytes % item_bytes != 0)) {
        return base::fail(base::error(
            ErrorCode::kDamaged, kGraphOperation,
            fmt::format("it has {} bytes, which are not {} elements of {} bytes from byte {} on; "
                        "it was cut, or its dtype is another",
                        bytes, array.count, item_bytes, array.offset),
            path));
    }
    return array;
}

Result<LoadedArray> load_array(Engine& engine, const std::string& path, const GraphFiles& files) {
    PENSTOCK_TRY(array, array_of_file(engine, path, files.type));
    const std::uint64_t bytes = array.count * (bits_of(array.type) / 8U);
    if (files.mapped) {
        PENSTOCK_TRY(opened, graph::MappedFile::open(path));
        const auto file = std::make_shared<graph::MappedFile>(std::move(opened));
        if (file->bytes().size() < array.offset + bytes) {
            return base::fail(base::error(ErrorCode::kDamaged, kGraphOperation,
                                          "it was cut while it was opened", path));
        }
        const std::byte* const begin = file->bytes().data() + array.offset;
        return LoadedArray{IndexArray(array.count == 0 ? nullptr : begin, array.count, array.type),
                           file, file.get()};
    }
    PENSTOCK_CHECK(graph::check_memory(kGraphOperation, bytes));
    const auto memory = std::make_shared<Buffer>();
    if (bytes != 0) {
        *memory = MemoryPool().take(bytes);
        engine.read(path, memory->bytes(), array.offset);
    }
    return LoadedArray{IndexArray(memory->data(), array.count, array.type), memory, nullptr};
}

}  // namespace

struct Graph::Impl {
    IndexArray indptr;
    IndexArray indices;
    IndexArray edge_ids;
    std::uint64_t sources = 0;
    std::uint64_t destinations = 0;
    bool mapped = false;
    std::shared_ptr<const void> keep;
};

Graph::Graph(IndexArray indptr, IndexArray indices, std::optional<std::uint64_t> sources,
             IndexArray edge_ids, std::shared_ptr<const void> keep, bool check) {
    base::unwrap(check_ends(indptr, indices, edge_ids));
    const auto made = std::make_shared<Impl>();
    made->indptr = indptr;
    made->indices = indices;
    made->edge_ids = edge_ids;
    made->destinations = indptr.size() - 1;
    made->sources = sources.value_or(made->destinations);
    made->keep = std::move(keep);
    if (made->sources > kGraphNodesMax) {
        base::raise(base::error(
            ErrorCode::kInvalidArgument, kGraphOperation,
            fmt::format("sources: expected 0 to {}, got {}", kGraphNodesMax, made->sources)));
    }
    if (check) {
        base::unwrap(check_all(indptr, indices, made->sources));
    }
    impl_ = made;
}

Graph Graph::from_edges(IndexArray from, IndexArray to, std::uint64_t sources,
                        std::uint64_t destinations) {
    const auto checked = [&]() -> Result<void> {
        if (!is_index_type(from.type()) || !is_index_type(to.type())) {
            return no_graph(fmt::format("edges: expected I32, U32, I64 or U64, got {} and {}",
                                        name_of(from.type()), name_of(to.type())));
        }
        if (from.size() != to.size()) {
            return no_graph(fmt::format("edges: {} begin and {} end; expected as many of both",
                                        from.size(), to.size()));
        }
        if (std::max(sources, destinations) > kGraphNodesMax) {
            return no_graph(fmt::format("nodes: expected 0 to {}, got {} and {}", kGraphNodesMax,
                                        sources, destinations));
        }
        PENSTOCK_CHECK(check_indices(from, sources, "from"));
        return check_indices(to, destinations, "to");
    };
    base::unwrap(checked());
    return base::unwrap(
        graph::sorted_graph(kGraphOperation, from, to, sources, destinations, true));
}

Graph Graph::open(Engine& engine, const GraphFiles& files) {
    if (files.type && !is_index_type(*files.type)) {
        base::raise(base::error(
            ErrorCode::kInvalidArgument, kGraphOperation,
            fmt::format("type: expected I32, U32, I64 or U64, got {}", name_of(*files.type))));
    }
    auto arrays = std::make_shared<std::array<LoadedArray, 3>>();
    const std::array<const std::string*, 3> paths{&files.indptr, &files.indices, &files.edge_ids};
    for (std::size_t i = 0; i < arrays->size(); ++i) {
        if (i == 2 && files.edge_ids.empty()) {
            continue;
        }
        (*arrays)[i] = base::unwrap(load_array(engine, *paths[i], files));
        if (files.check && (*arrays)[i].mapped != nullptr) {
            (*arrays)[i].mapped->expect_all(true);
        }
    }
    try {
        Graph made((*arrays)[0].values, (*arrays)[1].values, files.sources, (*arrays)[2].values,
                   arrays, files.check);
        for (const LoadedArray& array : *arrays) {
            if (array.mapped != nullptr) {
                array.mapped->expect_all(false);
            }
        }
        const auto impl = std::make_shared<Impl>(*made.impl_);
        impl->mapped = files.mapped;
        return Graph(impl);
    } catch (const Error& invalid) {
        if (invalid.reason() != ErrorCode::kInvalidArgument) {
            throw;
        }
        base::raise(base::error(
            ErrorCode::kDamaged, kGraphOperation,
            fmt::format("{} and {} are no graph: {}", files.indptr, files.indices, invalid.what()),
            files.indptr));
    }
}

std::uint64_t Graph::sources() const noexcept {
    return impl_->sources;
}

std::uint64_t Graph::destinations() const noexcept {
    return impl_->destinations;
}

std::uint64_t Graph::edges() const noexcept {
    return impl_->indices.size();
}

bool Graph::mapped() const noexcept {
    return impl_->mapped;
}

const IndexArray& Graph::indptr() const noexcept {
    return impl_->indptr;
}

const IndexArray& Graph::indices() const noexcept {
    return impl_->indices;
}

const IndexArray& Graph::edge_ids() const noexcept {
    return impl_->edge_ids;
}

Graph::Range Graph::edges_to(std::uint64_t node) const {
    if (node >= impl_->destinations) {
        base::raise(base::error(
            ErrorCode::kInvalidArgument, kGraphOperation,
            fmt::format("{} is no node; there are {}, from 0 on", node, impl_->destinations)));
    }
    const Range range{impl_->indptr[node], impl_->indptr[node + 1]};
    if (range.begin > range.end || range.end > impl_->indices.size()) {
        base::raise(base::error(
            ErrorCode::kDamaged, kGraphOperation,
            fmt::format("indptr[{}] is {} and the next {}: expected numbers that never fall, up to "
                        "{}; the graph is invalid, or changed since it was checked",
                        node, range.begin, range.end, impl_->indices.size())));
    }
    return range;
}

std::uint64_t Graph::source_of(std::uint64_t place) const {
    // The memory may change at any time: what was checked is what is returned.
    const std::uint64_t source = place < impl_->indices.size() ? impl_->indices[place] : UINT64_MAX;
    if (source >= impl_->sources) {
        base::raise(base::error(
            ErrorCode::kDamaged, kGraphOperation,
            fmt::format("indices[{}] is no node of {}, or is not there: there are {}; the graph is "
                        "invalid, or changed since it was checked",
                        place, impl_->sources, impl_->indices.size())));
    }
    return source;
}

std::uint64_t Graph::edge_id(std::uint64_t place) const noexcept {
    return impl_->edge_ids.empty() || place >= impl_->edge_ids.size() ? place
                                                                      : impl_->edge_ids[place];
}

}  // namespace penstock
