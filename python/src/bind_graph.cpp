// SPDX-License-Identifier: Apache-2.0
// Graphs and their sampler for penstock/features. Private: what users see is penstock.features.
#include "arguments.hpp"
#include "bind.hpp"
#include "borrowed_memory.hpp"
#include "buffer_object.hpp"
#include "engine_object.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "row_numbers.hpp"
#include "tensor/element_type.hpp"

#include <penstock/features.hpp>
#include <penstock/graph.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

struct GraphObject {
    std::optional<Graph> graph;
};

struct NeighborSamplerObject {
    std::optional<NeighborSampler> sampler;
};

/// An array of Python's as it lies in memory, and what keeps it.
struct BorrowedIndices {
    IndexArray values;
    std::shared_ptr<const void> keep;
};

// Refuses several dimensions, which would be read as one long row.
void check_flat(nb::handle object, const char* argument) {
    if (!nb::hasattr(object, "ndim") || nb::cast<std::int64_t>(object.attr("ndim")) == 1) {
        return;
    }
    raise_value(std::string(argument) + ": expected one dimension, got the shape " +
                text(nb::str(object.attr("shape"))));
}

BorrowedIndices indices_of(nb::handle object, const char* argument) {
    if (object.is_none()) {
        return {};
    }
    check_flat(object, argument);
    if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
        const auto own = std::make_shared<std::vector<std::uint64_t>>(
            counts_of(object, argument, "numbers of nodes"));
        return {IndexArray(*own), own};
    }
    BorrowedMemory memory = borrow_elements(object, argument);
    const bool fits = (memory.item_bytes == 4 || memory.item_bytes == 8) &&
                      (memory.kind == 'i' || memory.kind == 'u');
    if (!fits && memory.bytes != 0) {
        raise_type(std::string(argument) + ": expected int32, uint32, int64 or uint64, got a " +
                   type_text(object) + " of other elements");
    }
    const bool is_signed = memory.kind == 'i';
    const ElementType type = memory.item_bytes == 4
                                 ? (is_signed ? ElementType::kI32 : ElementType::kU32)
                                 : (is_signed ? ElementType::kI64 : ElementType::kU64);
    const IndexArray values(memory.data, memory.bytes == 0 ? 0 : memory.bytes / memory.item_bytes,
                            memory.bytes == 0 ? ElementType::kI64 : type);
    return {values, share_of(std::move(memory.keep))};
}

std::optional<std::uint64_t> optional_count(nb::handle value, const char* argument) {
    return value.is_none() ? std::nullopt
                           : std::optional<std::uint64_t>(count_of(value, argument, "nodes"));
}

GraphObject graph_of_arrays(nb::handle indptr, nb::handle indices, nb::handle sources,
                            nb::handle edge_ids, bool check) {
    const BorrowedIndices pointers = indices_of(indptr, "indptr");
    const BorrowedIndices nodes = indices_of(indices, "indices");
    const BorrowedIndices ids = indices_of(edge_ids, "edge_ids");
    const std::optional<std::uint64_t> count = optional_count(sources, "sources");
    const auto keep = std::make_shared<std::vector<std::shared_ptr<const void>>>(
        std::vector{pointers.keep, nodes.keep, ids.keep});
    const nb::gil_scoped_release nogil;
    return {Graph(pointers.values, nodes.values, count, ids.values, keep, check)};
}

GraphObject graph_of_edges(nb::handle from, nb::handle to, nb::handle sources,
                           nb::handle destinations) {
    const BorrowedIndices begins = indices_of(from, "from");
    const BorrowedIndices ends = indices_of(to, "to");
    const std::uint64_t source_count = count_of(sources, "sources", "nodes");
    const std::uint64_t destination_count = count_of(destinations, "destinations", "nodes");
    const nb::gil_scoped_release nogil;
    return {Graph::from_edges(begins.values, ends.values, source_count, destination_count)};
}

GraphObject graph_of_files(nb::handle indptr, nb::handle indices, nb::handle edge_ids,
                           nb::handle dtype, nb::handle sources, bool mapped, bool check) {
    GraphFiles files;
    files.indptr = path_bytes(indptr, "indptr", "");
    files.indices = path_bytes(indices, "indices", "");
    files.edge_ids = edge_ids.is_none() ? "" : path_bytes(edge_ids, "edge_ids", "");
    files.sources = optional_count(sources, "sources");
    files.mapped = mapped;
    files.check = check;
    if (!dtype.is_none()) {
        files.type = element_type(dtype).type;
    }
    const std::shared_ptr<Engine> engine = opened(default_engine());
    const nb::gil_scoped_release nogil;
    return {Graph::open(*engine, files)};
}

GraphObject graph_of_rmat(nb::handle scale, nb::handle edges_per_node, double a, double b, double c,
                          nb::handle seed, bool shuffle) {
    const RmatOptions options{
        .scale = static_cast<std::uint32_t>(count_of(scale, "scale", "bits of a node", UINT32_MAX)),
        .edges_per_node = count_of(edges_per_node, "edges_per_node", "edges"),
        .a = a,
        .b = b,
        .c = c,
        .seed = count_of(seed, "seed", "a seed"),
        .shuffle = shuffle};
    const nb::gil_scoped_release nogil;
    return {rmat_graph(options)};
}

// One dimension of memory that `owner` keeps.
nb::object flat_buffer(std::shared_ptr<void> owner, const void* data, std::uint64_t count,
                       ElementType type, bool readonly) {
    BufferObject out;
    out.owner = std::move(owner);
    out.data = const_cast<std::byte*>(static_cast<const std::byte*>(data));
    out.type = tensor::find_row([type](const auto& row) { return row.type == type; });
    out.bytes = count * out.type->bits / 8;
    out.shape = {static_cast<std::int64_t>(count)};
    out.strides_bytes = {static_cast<Py_ssize_t>(out.type->bits / 8)};
    out.readonly = readonly;
    out.pinned_reason = "it is memory of a graph";
    return nb::cast(std::move(out));
}

nb::object array_of(const GraphObject& self, const IndexArray& array) {
    return flat_buffer(std::make_shared<Graph>(*self.graph), array.data(), array.size(),
                       array.type(), true);
}

nb::object buffer_of_numbers(std::vector<std::uint64_t>&& numbers) {
    const auto owner = std::make_shared<std::vector<std::uint64_t>>(std::move(numbers));
    return flat_buffer(owner, owner->data(), owner->size(), ElementType::kI64, false);
}

std::vector<std::int64_t> fanouts_of(nb::handle list) {
    std::vector<std::int64_t> out;
    for (const nb::handle one : nb::iter(list)) {
        const long long number = PyLong_AsLongLong(one.ptr());
        if (number == -1 && PyErr_Occurred() != nullptr) {
            throw nb::python_error();
        }
        out.push_back(number);
    }
    return out;
}

void open_sampler(NeighborSamplerObject& self, nb::handle nodes, nb::handle relations, bool replace,
                  bool disjoint, nb::handle seed, nb::handle threads) {
    std::vector<SampledRelation> wanted;
    for (const nb::handle relation : nb::iter(relations)) {
        const auto number = [&relation](int i) {
            return static_cast<std::uint32_t>(
                count_of(nb::object(relation[i]), "relations", "types", UINT32_MAX));
        };
        const nb::object graph(relation[0]);
        wanted.push_back({.graph = nb::inst_ptr<GraphObject>(graph)->graph.value(),
                          .source = number(1),
                          .destination = number(2),
                          .fanouts = fanouts_of(nb::object(relation[3]))});
    }
    self.sampler.emplace(counts_of(nodes, "nodes", "nodes"), std::move(wanted),
                         SamplerOptions{.replace = replace,
                                        .disjoint = disjoint,
                                        .seed = count_of(seed, "seed", "a seed"),
                                        .threads = static_cast<std::uint32_t>(
                                            count_of(threads, "threads", "threads", UINT32_MAX))});
}

// Nodes by type, and the numbers that they refer to.
struct SeedsArgument {
    explicit SeedsArgument(nb::handle seeds) {
        numbers.reserve(nb::len(seeds));
        for (const nb::handle some : nb::iter(seeds)) {
            const nb::object type(some[0]);
            const nb::object ids(some[1]);
            numbers.emplace_back(ids, "seeds");
            nodes.push_back(
                {static_cast<std::uint32_t>(count_of(type, "seeds", "types", UINT32_MAX)),
                 numbers.back().values()});
        }
    }

    std::vector<RowNumbers> numbers;
    std::vector<SeedNodes> nodes;
};

nb::tuple sample_of(const NeighborSamplerObject& self, nb::handle seeds, nb::handle batch) {
    const SeedsArgument wanted(seeds);
    const std::uint64_t number = count_of(batch, "batch", "a batch");
    Sample sample;
    {
        const nb::gil_scoped_release nogil;
        sample = self.sampler.value().sample(wanted.nodes, number);
    }
    nb::list nodes;
    for (SampledNodes& type : sample.nodes) {
        nodes.append(nb::make_tuple(buffer_of_numbers(std::move(type.ids)),
                                    buffer_of_numbers(std::move(type.trees)),
                                    nb::cast(type.per_hop)));
    }
    nb::list edges;
    for (SampledEdges& relation : sample.edges) {
        edges.append(nb::make_tuple(
            buffer_of_numbers(std::move(relation.from)), buffer_of_numbers(std::move(relation.to)),
            buffer_of_numbers(std::move(relation.ids)), nb::cast(relation.per_hop)));
    }
    return nb::make_tuple(nodes, edges);
}

nb::object zipf_rows(nb::handle rows, double exponent, nb::handle count, nb::handle seed,
                     nb::handle batch) {
    const ZipfRows law(count_of(rows, "rows", "rows"), exponent, count_of(seed, "seed", "a seed"));
    std::vector<std::uint64_t> ids(count_of(count, "count", "rows", std::uint64_t{1} << 40U));
    law.fill(ids, count_of(batch, "batch", "a batch"));
    return buffer_of_numbers(std::move(ids));
}

// `fanouts`: None for the rows of most edges.
nb::object hot_rows(const GraphObject& self, nb::handle count, nb::handle fanouts, nb::handle batch,
                    nb::handle seeds) {
    const std::uint64_t most = count_of(count, "count", "rows");
    const std::uint64_t size = count_of(batch, "batch", "seeds");
    const std::optional<std::vector<std::int64_t>> hops =
        fanouts.is_none() ? std::nullopt : std::optional(fanouts_of(fanouts));
    const RowNumbers from = seeds.is_none() ? RowNumbers() : RowNumbers(seeds, "seeds");
    const Graph& graph = self.graph.value();
    std::vector<std::uint64_t> found;
    {
        const nb::gil_scoped_release nogil;
        found = hottest_rows(
            hops ? expected_visits(graph, *hops, {.batch = size, .seeds = from.values()})
                 : out_degrees(graph),
            most);
    }
    return buffer_of_numbers(std::move(found));
}

// For each type of nodes. `counts`: by type. `by_edges`: those of most edges, without seeds.
nb::list hot_rows_of_types(const NeighborSamplerObject& self, nb::handle counts, bool by_edges,
                           nb::handle batch, nb::handle seeds) {
    const std::vector<std::uint64_t> most = counts_of(counts, "count", "rows");
    const std::uint64_t size = count_of(batch, "batch", "seeds");
    const SeedsArgument from(seeds);
    std::vector<std::vector<std::uint64_t>> found;
    {
        const nb::gil_scoped_release nogil;
        const NeighborSampler& sampler = self.sampler.value();
        const auto heat =
            by_edges ? out_degrees(sampler) : expected_visits(sampler, from.nodes, size);
        for (std::size_t type = 0; type < heat.size(); ++type) {
            found.push_back(hottest_rows(heat[type], most.at(type)));
        }
    }
    nb::list out;
    for (std::vector<std::uint64_t>& rows : found) {
        out.append(buffer_of_numbers(std::move(rows)));
    }
    return out;
}

nb::object hot_rows_of_batches(nb::handle batches, nb::handle count) {
    const std::uint64_t most = count_of(count, "count", "rows");
    RowTrace trace;
    for (const nb::handle batch : nb::iter(batches)) {
        trace.add(RowNumbers(batch, "batches").values());
    }
    std::vector<std::uint64_t> found;
    {
        const nb::gil_scoped_release nogil;
        const auto largest = std::max_element(trace.ids.begin(), trace.ids.end());
        const std::uint64_t rows = largest == trace.ids.end() ? 0 : *largest + 1;
        found = hottest_rows(batch_counts(trace, rows), most);
    }
    return buffer_of_numbers(std::move(found));
}

}  // namespace

void bind_graph(nb::module_& m) {
    nb::class_<GraphObject>(m, "Graph", "Private; penstock.features.Graph is public.")
        .def_static("of_arrays", graph_of_arrays, nb::arg("indptr"), nb::arg("indices"),
                    nb::arg("sources").none(), nb::arg("edge_ids").none(), nb::arg("check"))
        .def_static("of_edges", graph_of_edges, nb::arg("begins"), nb::arg("ends"),
                    nb::arg("sources"), nb::arg("destinations"))
        .def_static("of_files", graph_of_files, nb::arg("indptr"), nb::arg("indices"),
                    nb::arg("edge_ids").none(), nb::arg("dtype").none(), nb::arg("sources").none(),
                    nb::arg("mapped"), nb::arg("check"))
        .def_static("of_rmat", graph_of_rmat, nb::arg("scale"), nb::arg("edges_per_node"),
                    nb::arg("a"), nb::arg("b"), nb::arg("c"), nb::arg("seed"), nb::arg("shuffle"))
        .def_prop_ro("sources", [](const GraphObject& self) { return self.graph->sources(); })
        .def_prop_ro("destinations",
                     [](const GraphObject& self) { return self.graph->destinations(); })
        .def_prop_ro("edges", [](const GraphObject& self) { return self.graph->edges(); })
        .def_prop_ro("mapped", [](const GraphObject& self) { return self.graph->mapped(); })
        .def_prop_ro("indptr",
                     [](const GraphObject& self) { return array_of(self, self.graph->indptr()); })
        .def_prop_ro("indices",
                     [](const GraphObject& self) { return array_of(self, self.graph->indices()); })
        .def_prop_ro("edge_ids", [](const GraphObject& self) {
            return array_of(self, self.graph->edge_ids());
        });
    nb::class_<NeighborSamplerObject>(m, "NeighborSampler",
                                      "Private; penstock.features.NeighborSampler is public.")
        .def(
            "__init__",
            [](NeighborSamplerObject* self, nb::handle nodes, nb::handle relations, bool replace,
               bool disjoint, nb::handle seed, nb::handle threads) {
                auto* const made = new (self) NeighborSamplerObject;
                try {
                    open_sampler(*made, nodes, relations, replace, disjoint, seed, threads);
                } catch (...) {
                    made->~NeighborSamplerObject();
                    throw;
                }
            },
            nb::arg("nodes"), nb::arg("relations"), nb::arg("replace"), nb::arg("disjoint"),
            nb::arg("seed"), nb::arg("threads"))
        .def("sample", sample_of, nb::arg("seeds"), nb::arg("batch"));
    m.def("hot_rows", hot_rows, nb::arg("graph"), nb::arg("count"), nb::arg("fanouts").none(),
          nb::arg("batch"), nb::arg("seeds").none(),
          "Private; penstock.features.hot_rows is public.");
    m.def("hot_rows_of_types", hot_rows_of_types, nb::arg("sampler"), nb::arg("counts"),
          nb::arg("by_edges"), nb::arg("batch"), nb::arg("seeds"),
          "Private; penstock.features.hot_rows is public.");
    m.def("hot_rows_of_batches", hot_rows_of_batches, nb::arg("batches"), nb::arg("count"),
          "Private; penstock.features.hot_rows is public.");
    m.def("zipf_rows", zipf_rows, nb::arg("rows"), nb::arg("exponent"), nb::arg("count"),
          nb::arg("seed"), nb::arg("batch"), "Private; penstock.features.zipf_rows is public.");
}

}  // namespace penstock::python
