# SPDX-License-Identifier: Apache-2.0
"""Graphs and the sampling of neighbourhoods: penstock.features.Graph and NeighborSampler."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import _core
from penstock._base import arguments as _arguments, gathered as _gathered
from penstock._base.errors import Damaged

if TYPE_CHECKING:
    from numpy.typing import NDArray

EdgeType = tuple[str, str, str]


class Graph:
    """The edges of one type, by the node that they end at (compressed sparse columns, CSC).

    indptr: one more integer than there are destinations, from 0 up to the number of edges. The edges to node v come
    from the nodes indices[indptr[v]:indptr[v + 1]]. Both are lists, or tensors or arrays of int32, uint32, int64 or
    uint64; these are used without a copy and must not change. sources: the number of nodes that edges begin at; None:
    the number of destinations. edge_ids: the number of each edge; None: its place in `indices`. check: checks all of it
    now, instead of during sampling.
    Raises ValueError for an invalid graph, with the element. Immutable, thread-safe."""

    @_arguments.named
    def __init__(
        self, indptr: Any, indices: Any, *, sources: int | None = None, edge_ids: Any = None, check: bool = True
    ) -> None:
        _arguments.flag("Graph", "check", check)
        self._made: tuple[Any, ...] = (_graph_again, indptr, indices, sources, edge_ids)
        self._core = _core.Graph.of_arrays(indptr, indices, sources, edge_ids, bool(check))

    @classmethod
    def _of(cls, core: Any, made: tuple[Any, ...]) -> Graph:
        graph = cls.__new__(cls)
        graph._core, graph._made = core, made
        return graph

    @classmethod
    @_arguments.named
    def from_edges(cls, edge_index: Any, nodes: int | tuple[int, int] | None = None) -> Graph:
        """The graph of edges edge_index[0][i] -> edge_index[1][i], as in PyTorch Geometric: a tensor or array of shape
        (2, edges), or two of one dimension. They are copied; edge i keeps number i.

        nodes: their number, or (sources, destinations); None: up to the largest number in edge_index.
        Raises ValueError for numbers beyond these, MemoryError."""
        if len(edge_index) != 2:
            raise ValueError(f"from_edges: edge_index: expected the shape (2, edges), got {_arguments.got(edge_index)}")
        begins, ends = (_gathered.numbers(edge_index[end], named="edge_index") for end in (0, 1))
        if nodes is None:
            nodes = max((_largest(end) for end in (begins, ends)), default=-1) + 1
        if isinstance(nodes, tuple | list):
            if len(nodes) != 2:
                raise ValueError(f"from_edges: nodes: expected a number, or sources and destinations, got {len(nodes)}")
            sources, destinations = nodes
        else:
            sources = destinations = nodes
        sources = _arguments.whole("from_edges", "nodes", sources)
        destinations = _arguments.whole("from_edges", "nodes", destinations)
        core = _core.Graph.of_edges(begins, ends, sources, destinations)
        return cls._of(core, (_graph_of_edges, begins, ends, sources, destinations))

    @classmethod
    @_arguments.named
    def open(
        cls,
        indptr: Any,
        indices: Any,
        *,
        edge_ids: Any = None,
        dtype: Any = None,
        sources: int | None = None,
        mapped: bool = False,
        check: bool = True,
    ) -> Graph:
        """Opens the graph in these files: `.npy` files of one dimension each, or, with a dtype ("int64"), raw ones.

        mapped: maps the files and reads through the page cache, instead of copying them to memory. They must not be
        truncated while the graph exists: that ends the process (SIGBUS), as with numpy.memmap. check: reads and checks
        all of it now. Raises penstock.Damaged for an invalid graph, ValueError for a file that is not .npy, OSError."""
        for name, value in (("mapped", mapped), ("check", check)):
            _arguments.flag("open", name, value)
        arguments = (indptr, indices, edge_ids, dtype, sources, bool(mapped))
        core = _core.Graph.of_files(*arguments, bool(check))
        # Absolute, because a pickled graph may be opened where the working folder is another.
        paths = [None if path is None else os.path.abspath(path) for path in (indptr, indices, edge_ids)]
        return cls._of(core, (_graph_of_files, *paths, *arguments[3:], _changes(paths)))

    @classmethod
    @_arguments.named
    def rmat(
        cls,
        scale: int,
        edges_per_node: int = 16,
        *,
        probabilities: Sequence[float] = (0.57, 0.19, 0.19),
        seed: int = 1,
        shuffle: bool = True,
    ) -> Graph:
        """A recursive-matrix graph of 2**scale nodes (R-MAT: Chakrabarti, Zhan and Faloutsos, SDM 2004; the defaults
        are Graph500's), for tests and measurements. The same arguments always give the same graph.

        edges_per_node: on average; double edges and loops count. probabilities: of the quarters (low, low), (low, high)
        and (high, low) of (from, to). shuffle: permutes the numbers of the nodes; else low numbers have most edges.
        Raises ValueError for numbers out of range, MemoryError."""
        if len(probabilities) != 3:
            raise ValueError(f"rmat: probabilities: expected 3, got {len(probabilities)}")
        _arguments.flag("rmat", "shuffle", shuffle)
        arguments = (scale, edges_per_node, *(float(p) for p in probabilities), seed, bool(shuffle))
        return cls._of(_core.Graph.of_rmat(*arguments), (_graph_of_rmat, *arguments))

    @property
    def sources(self) -> int:
        """The number of nodes that edges may begin at."""
        return self._core.sources

    @property
    def destinations(self) -> int:
        """The number of nodes that edges may end at."""
        return self._core.destinations

    @property
    def edges(self) -> int:
        return self._core.edges

    @property
    def mapped(self) -> bool:
        """Whether its files are mapped."""
        return self._core.mapped

    @property
    def indptr(self) -> NDArray[Any]:
        """A read-only NumPy array on the graph's memory."""
        return self._core.indptr.numpy()

    @property
    def indices(self) -> NDArray[Any]:
        """A read-only NumPy array on the graph's memory."""
        return self._core.indices.numpy()

    @property
    def edge_ids(self) -> NDArray[Any]:
        """A read-only NumPy array on the graph's memory; empty if the number of an edge is its place."""
        return self._core.edge_ids.numpy()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made[0], self._made[1:]

    def __repr__(self) -> str:
        return f"Graph(sources={self.sources}, destinations={self.destinations}, edges={self.edges})"


def _largest(numbers: Any) -> int:
    if not len(numbers):
        return -1
    return int(max(numbers) if isinstance(numbers, list | tuple) else numbers.max())


# Unpickling in other processes uses these arguments. The graph was already checked in this process.
def _graph_again(indptr: Any, indices: Any, sources: int | None, edge_ids: Any) -> Graph:
    return Graph(indptr, indices, sources=sources, edge_ids=edge_ids, check=False)


def _graph_of_edges(begins: Any, ends: Any, sources: int, destinations: int) -> Graph:
    return Graph.from_edges((begins, ends), (sources, destinations))


def _graph_of_files(
    indptr: Any, indices: Any, edge_ids: Any, dtype: Any, sources: int | None, mapped: bool, changes: Any
) -> Graph:
    graph = Graph.open(indptr, indices, edge_ids=edge_ids, dtype=dtype, sources=sources, mapped=mapped, check=False)
    if _changes([indptr, indices, edge_ids]) != changes:
        raise Damaged(
            f"open graph {_arguments.shown(indptr)}: its files were replaced after the graph that is unpickled here "
            "was opened; open the new files, and pickle that graph",
            operation="open graph",
            path=os.fsdecode(indptr),
        )
    return graph


def _changes(paths: list[Any]) -> list[tuple[int, int]]:
    """Sizes of files, and the times of their last changes."""
    stats = [os.stat(path) for path in paths if path is not None]
    return [(one.st_size, one.st_mtime_ns) for one in stats]


def _graph_of_rmat(scale: int, edges_per_node: int, a: float, b: float, c: float, seed: int, shuffle: bool) -> Graph:
    return Graph.rmat(scale, edges_per_node, probabilities=(a, b, c), seed=seed, shuffle=shuffle)


@dataclass(frozen=True)
class Sample:
    """A sampled neighbourhood. With several types of nodes and edges each field is a dict by type.

    nodes: numbers in the graph: first the seeds in their given order, then the new nodes of each hop. trees: in a
    disjoint sample the number of the seed that each node belongs to, else None. row, col: the begin and end of each
    edge, as places in `nodes`. edges: its number in the graph. nodes_per_hop: the number of seeds, then of new nodes in
    each hop. edges_per_hop: the number in each hop. int64 tensors if the seeds are a tensor, else NumPy arrays."""

    nodes: Any
    trees: Any
    row: Any
    col: Any
    edges: Any
    nodes_per_hop: Any
    edges_per_hop: Any


class NeighborSampler:
    """Samples neighbourhoods hop by hop: for each node of the previous hop, edges that end there, all equally likely.

    graph: a Graph, or {(source type, relation, destination type): Graph}. fanouts: the number of edges to sample for a
    node, for each hop: 0 or more, or -1 for all; with several types one list for all, or a dict by edge type. replace:
    draws with replacement; else each edge at most once. disjoint: a separate neighbourhood for each seed. seed: a
    sample depends only on it and on the number of the batch. threads: of a sample; they change its time, not its
    content. nodes: {type: count} of types that no edge begins or ends at.
    Raises ValueError for fan-outs and graphs that do not match. Thread-safe; can be pickled and used in children of
    fork()."""

    @_arguments.named
    def __init__(
        self,
        graph: Graph | Mapping[EdgeType, Graph],
        fanouts: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        *,
        replace: bool = False,
        disjoint: bool = False,
        seed: int = 0,
        threads: int = 1,
        nodes: Mapping[str, int] | None = None,
    ) -> None:
        for name, value in (("replace", replace), ("disjoint", disjoint)):
            _arguments.flag("NeighborSampler", name, value)
        self._made = (graph, fanouts, bool(replace), bool(disjoint), seed, threads, nodes)
        if not isinstance(graph, (Graph, Mapping)):
            came = _arguments.got(graph)
            raise TypeError(f"NeighborSampler: graph: expected a Graph, or a dict of edge types and Graphs, got {came}")
        self.hetero = not isinstance(graph, Graph)
        graphs = {("", "", ""): graph} if isinstance(graph, Graph) else dict(graph)
        self.edge_types: list[EdgeType] = [_edge_type(key) for key in graphs]
        counts = _counts(graphs, {} if nodes is None else nodes)
        self.node_types: list[str] = list(counts)
        self.num_nodes: dict[str, int] = counts
        self.disjoint = bool(disjoint)
        relations = [
            (one._core, self.node_types.index(key[0]), self.node_types.index(key[2]), _fanouts_of(fanouts, key))
            for key, one in graphs.items()
        ]
        self._core = _core.NeighborSampler(
            list(counts.values()), relations, bool(replace), bool(disjoint), seed, threads
        )
        self._batches = itertools.count()

    @_arguments.named
    def sample(self, seeds: Any, *, batch: int | None = None) -> Sample:
        """Samples the neighbourhood of nodes.

        seeds: an integer tensor, array or list; with several types {type: seeds}. batch: a number. The same number, and
        the same seed of the sampler, give the same sample. None: 0 for the first call, then 1, 2, ...
        Raises ValueError for a node that does not exist, penstock.Damaged for a graph that was not checked and is
        invalid."""
        if self.hetero != isinstance(seeds, Mapping):
            wanted = "a dict {type: seeds}" if self.hetero else "seeds of one type"
            raise TypeError(f"sample: seeds: expected {wanted}, got {_arguments.got(seeds)}")
        given = dict(seeds) if self.hetero else {"": seeds}
        for name in given:
            if name not in self.num_nodes:
                raise ValueError(f"sample: seeds: expected types of {self.node_types}, got {_arguments.shown(name)}")
        numbered = [
            (self.node_types.index(name), _gathered.numbers(ids, named="sample: seeds")) for name, ids in given.items()
        ]
        nodes, edges = self._core.sample(numbered, next(self._batches) if batch is None else batch)
        is_torch = "torch" in sys.modules and any(_is_torch(ids) for ids in given.values())
        return self._shaped(nodes, edges, "torch" if is_torch else "numpy")

    def _shaped(self, nodes: Any, edges: Any, kind: str) -> Sample:
        def column(rows: Any, place: int, keys: Any) -> Any:
            values = [row[place] for row in rows]
            made = [getattr(value, kind)() if isinstance(value, _core.Buffer) else value for value in values]
            return dict(zip(keys, made)) if self.hetero else made[0]

        return Sample(
            nodes=column(nodes, 0, self.node_types),
            trees=column(nodes, 1, self.node_types) if self.disjoint else None,
            row=column(edges, 0, self.edge_types),
            col=column(edges, 1, self.edge_types),
            edges=column(edges, 2, self.edge_types),
            nodes_per_hop=column(nodes, 2, self.node_types),
            edges_per_hop=column(edges, 3, self.edge_types),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _sampler_again, self._made

    def __repr__(self) -> str:
        return (
            f"NeighborSampler(nodes={self.num_nodes if self.hetero else self.num_nodes['']}, fanouts={self._made[1]})"
        )


def _sampler_again(graph: Any, fanouts: Any, replace: bool, disjoint: bool, seed: int, threads: int, nodes: Any) -> Any:
    return NeighborSampler(graph, fanouts, replace=replace, disjoint=disjoint, seed=seed, threads=threads, nodes=nodes)


def _is_torch(ids: Any) -> bool:
    return isinstance(ids, sys.modules["torch"].Tensor)


def _edge_type(key: Any) -> EdgeType:
    if not isinstance(key, tuple) or len(key) != 3 or not all(isinstance(part, str) for part in key):
        raise TypeError(
            "NeighborSampler: graph: expected keys (source type, relation, destination type), got "
            + _arguments.shown(key)
        )
    return key


def _counts(graphs: Mapping[EdgeType, Graph], nodes: Mapping[str, int]) -> dict[str, int]:
    """The number of nodes of each type; all graphs must agree."""
    counts = {name: _arguments.whole("NeighborSampler", f"nodes[{name!r}]", count) for name, count in nodes.items()}
    for key, graph in graphs.items():
        if not isinstance(graph, Graph):
            raise TypeError(f"NeighborSampler: graph: expected a Graph, got {_arguments.got(graph)}")
        for name, count in ((key[0], graph.sources), (key[2], graph.destinations)):
            if counts.setdefault(name, count) != count:
                raise ValueError(
                    f"NeighborSampler: graph: {key} has {count} nodes of '{name}', expected {counts[name]} as before"
                )
    return counts


def _fanouts_of(fanouts: Any, key: EdgeType) -> list[int]:
    if isinstance(fanouts, Mapping):
        if key not in fanouts:
            raise ValueError(f"NeighborSampler: fanouts: expected one for each edge type, got none for {key}")
        fanouts = fanouts[key]
    if isinstance(fanouts, str | bytes) or not isinstance(fanouts, Iterable):
        raise TypeError(f"NeighborSampler: fanouts: expected a list of integers, got {_arguments.got(fanouts)}")
    whole = functools.partial(_arguments.whole, "NeighborSampler", "fanouts", least=-1, most=1 << 32)
    return [whole(value) for value in fanouts]


@_arguments.named
def zipf_rows(rows: int, exponent: float, count: int, *, seed: int = 1, batch: int = 0) -> NDArray[Any]:
    """`count` numbers below `rows` with Zipf's distribution: the k-th most frequent has 1 / k**exponent of the
    frequency of the first; exponent 0: all are equally frequent. An int64 NumPy array. The same arguments always give
    the same numbers. Raises ValueError for an exponent that is negative or above 8."""
    return _core.zipf_rows(rows, float(exponent), count, seed, batch).numpy()


@_arguments.named
def hot_rows(
    graph: Graph | Mapping[EdgeType, Graph] | Iterable[Any],
    count: int | Mapping[str, int],
    *,
    fanouts: Any = None,
    batch: int = 1024,
    seeds: Any = None,
) -> Any:
    """The `count` nodes whose rows are used most, the most used first: the argument hot= of FeatureStore.open().

    graph: the graph that batches are sampled from, or {(source type, relation, destination type): Graph} as for
        NeighborSampler: the result is then a dict by type of node. Or batches of ids that were sampled, as for
        gather(): the rows that most of them have, without the other arguments.
    count: with several types of each one, or {type: count}; types that it does not name have none.
    fanouts: a list with a number for each hop, -1 for all neighbours; with several types also a dict by edge type.
        Nodes are then sorted by how often a batch of `batch` seeds is expected to sample them. None: sorted by the
        number of edges that begin at them.
    seeds: the nodes that batches are drawn from; with several types {type: nodes}, and a batch has `batch` of each.
        None: all.
    Returns an int64 NumPy array, or a dict of them, without nodes that are never used. Raises ValueError for seeds that
    do not exist. Reads all edges once for each hop; thread-safe."""
    if isinstance(graph, Mapping):
        return _hot_rows_by_type(graph, count, fanouts, batch, seeds)
    if not isinstance(graph, Graph):
        if not hasattr(graph, "__iter__") or isinstance(graph, (str, bytes)):
            raise TypeError(f"hot_rows: graph: expected a Graph or batches of ids, got {_arguments.got(graph)}")
        if fanouts is not None or seeds is not None:
            raise TypeError("hot_rows: fanouts and seeds are for a Graph; these are batches that were sampled")
        return _core.hot_rows_of_batches([_gathered.numbers(ids) for ids in graph], count).numpy()
    hops = None if fanouts is None else _fanouts_of(fanouts, ("", "", ""))
    return _core.hot_rows(graph._core, count, hops, batch, seeds).numpy()


def _hot_rows_by_type(graph: Any, count: Any, fanouts: Any, batch: int, seeds: Any) -> dict[str, NDArray[Any]]:
    sampler = NeighborSampler(graph, [] if fanouts is None else fanouts)
    types = sampler.node_types
    if seeds is not None and not isinstance(seeds, Mapping):
        raise TypeError(f"hot_rows: seeds: expected a dict {{type: nodes}}, got {_arguments.got(seeds)}")
    for name, given in (("count", count), ("seeds", seeds)):
        for key in given if isinstance(given, Mapping) else ():
            if key not in types:
                raise ValueError(f"hot_rows: {name}: expected types of {types}, got {_arguments.shown(key)}")
    counts = [count.get(name, 0) if isinstance(count, Mapping) else count for name in types]
    numbered = [(types.index(name), _gathered.numbers(ids, named="seeds")) for name, ids in (seeds or {}).items()]
    found = _core.hot_rows_of_types(sampler._core, counts, fanouts is None, batch, numbered)
    return {name: rows.numpy() for name, rows in zip(types, found)}
