# SPDX-License-Identifier: Apache-2.0
"""PyTorch Geometric on Penstock: a FeatureStore, GraphStore and BaseSampler for its loaders, which then need no
pyg-lib or torch-sparse.

    from penstock.features import Graph, pyg

    features = pyg.FeatureStore(penstock.FeatureStore.open("igb.features"))
    graphs = pyg.GraphStore({("paper", "cites", "paper"): Graph.open("indptr.npy", "indices.npy", mapped=True)})
    sampler = pyg.NeighborSampler((features, graphs), [10, 5, 5])
    loader = NodeLoader((features, graphs), sampler, ("paper", train_ids), batch_size=1024, shuffle=True)

This module imports torch_geometric; nothing else of Penstock does."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
import torch_geometric.data
import torch_geometric.sampler
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from penstock._base import arguments as _arguments, modes as _modes
from penstock.features import _graph

__all__ = ["FeatureStore", "GraphStore", "NeighborSampler"]

_Key = tuple[str | None, str]


class FeatureStore(torch_geometric.data.FeatureStore):
    """Tables of a penstock.FeatureStore for PyTorch Geometric, by group (the type of nodes) and attribute.

    store: an open penstock.FeatureStore. attrs: {(group, attribute): table}; by default the table "paper" is attribute
    "x" of "paper", and "paper/y" its attribute "y". Other tensors, such as labels, may be added with put_tensor(), and
    stay in memory. All attributes of a batch are gathered in one transfer. The tables cannot be changed.
    Raises ValueError for a table that the store does not have. As thread-safe as the store."""

    @_arguments.named
    def __init__(self, store: Any, attrs: Mapping[_Key, str] | None = None) -> None:
        super().__init__()
        if not hasattr(store, "tables"):
            raise TypeError(f"FeatureStore: store: expected an open penstock.FeatureStore, got {_arguments.got(store)}")
        tables = list(store.tables)
        if attrs is None:
            attrs = {_key_of(name): name for name in tables}
        for key, name in attrs.items():
            _refuse_edges("FeatureStore: attrs", key)
            if name not in tables:
                raise ValueError(
                    f"FeatureStore: attrs: {key}: expected a table of {tables}, got {_arguments.shown(name)}"
                )
        self._store = store
        self._tables: dict[_Key, str] = dict(attrs)
        self._tensors: dict[_Key, Any] = {}

    def hint(self, nodes: Mapping[str | None, Any]) -> None:
        """Reports rows that will be gathered, {group: ids}, to the store's hint(). Does nothing for a store without
        hint()."""
        hint = getattr(self._store, "hint", None)
        if hint is None:
            return
        wanted = {}
        for (group, _), table in self._tables.items():
            if group in nodes:
                wanted[table] = nodes[group]
        if wanted:
            hint(wanted)

    def _put_tensor(self, tensor: Any, attr: Any) -> bool:
        key = (attr.group_name, attr.attr_name)
        _refuse_edges("put_tensor", key)
        if key in self._tables:
            raise ValueError(
                f"put_tensor: {key} is the table '{self._tables[key]}' of a file, which is not changed here"
            )
        if attr.index is None or key not in self._tensors:
            if attr.index is not None:
                return False  # the tensor does not exist
            self._tensors[key] = tensor
        else:
            self._tensors[key][attr.index] = tensor
        return True

    def _remove_tensor(self, attr: Any) -> bool:
        return self._tensors.pop((attr.group_name, attr.attr_name), None) is not None

    @_modes.plain
    def _get_tensor(self, attr: Any) -> Any:
        return self._multi_get_tensor([attr])[0]

    @_modes.plain
    def _multi_get_tensor(self, attrs: list[Any]) -> list[Any]:
        found: list[Any] = [None] * len(attrs)
        wanted: dict[str, Any] = {}
        places: dict[str, int] = {}
        for i, attr in enumerate(attrs):
            key = (attr.group_name, attr.attr_name)
            if key in self._tensors:
                tensor = self._tensors[key]
                found[i] = tensor if attr.index is None else tensor[attr.index]
            elif key in self._tables:
                table = self._tables[key]
                ids = _ids(attr.index, len(self._store[table]))
                if table in wanted:  # repeated in this call
                    found[i] = self._store[table].gather(ids)
                else:
                    wanted[table], places[table] = ids, i
            else:
                raise KeyError(f"get_tensor: there is no {key}; expected one of {[*self._tables, *self._tensors]}")
        if wanted:
            for table, rows in self._store.gather(wanted).items():
                found[places[table]] = rows
        return found

    def _get_tensor_size(self, attr: Any) -> tuple[int, ...] | None:
        key = (attr.group_name, attr.attr_name)
        if key in self._tensors:
            return tuple(self._tensors[key].shape)
        return tuple(self._store[self._tables[key]].shape) if key in self._tables else None

    def get_all_tensor_attrs(self) -> list[Any]:
        return [self._tensor_attr_cls(*key) for key in (*self._tables, *self._tensors)]

    def __repr__(self) -> str:
        return f"FeatureStore({[*self._tables, *self._tensors]})"


def _refuse_edges(verb: str, key: Any) -> None:
    """PyTorch Geometric's loaders take no attributes of edges from a feature store: none of a named type of edges, and
    those of a graph of one type by the numbers of nodes."""
    group, name = key
    if isinstance(group, tuple) or (group is None and str(name).startswith("edge_")):
        raise ValueError(
            f"{verb}: {key}: PyTorch Geometric's loaders do not take attributes of edges from a feature store; leave "
            "this one out, and gather it in the loader's transform=: store[table].gather(batch[edge_type].e_id)"
        )


def _key_of(table: str) -> _Key:
    group, _, name = table.rpartition("/")
    return (group, name) if group else (table, "x")


def _ids(index: Any, rows: int) -> torch.Tensor:
    """Converts an index of PyTorch Geometric to row numbers."""
    if index is None:
        return torch.arange(rows)
    if isinstance(index, slice):
        numbers = range(*index.indices(rows))  # arange() refuses an end before the begin
        return torch.arange(numbers.start, numbers.start + len(numbers) * numbers.step, numbers.step)
    if isinstance(index, Integral):  # NumPy's too
        return torch.tensor([int(index) + rows if index < 0 else int(index)])
    ids = torch.as_tensor(index)
    if ids.dtype != torch.bool:
        return ids
    if tuple(ids.shape) != (rows,):
        raise IndexError(f"get_tensor: index: expected a mask of shape ({rows},), got {tuple(ids.shape)}")
    return ids.nonzero().view(-1)


class GraphStore(torch_geometric.data.GraphStore):
    """Graphs for PyTorch Geometric.

    graphs: one Graph, or {(source type, relation, destination type): Graph}. The edge index is provided in CSC, and
    PyTorch Geometric makes the other layouts of it. put_edge_index() takes all three. The sampler of this module reads
    the graphs themselves."""

    @_arguments.named
    def __init__(self, graphs: _graph.Graph | Mapping[_graph.EdgeType, _graph.Graph] | None = None) -> None:
        super().__init__()
        if graphs is not None and not isinstance(graphs, (_graph.Graph, Mapping)):
            raise TypeError(f"GraphStore: graphs: expected a Graph, or a dict of them, got {_arguments.got(graphs)}")
        named = {None: graphs} if isinstance(graphs, _graph.Graph) else dict(graphs or {})
        self.graphs: dict[Any, _graph.Graph] = named

    @_modes.plain
    def _put_edge_index(self, edge_index: Any, edge_attr: Any) -> bool:
        row, col = edge_index
        layout = edge_attr.layout.value
        if layout == "csr":
            row = torch.repeat_interleave(torch.arange(len(row) - 1), torch.as_tensor(row).diff())
        if layout == "csc":
            sources = None if edge_attr.size is None else edge_attr.size[0]
            graph = _graph.Graph(_padded(col, edge_attr.size), row, sources=sources)
        else:
            graph = _graph.Graph.from_edges((row, col), edge_attr.size)
        self.graphs[edge_attr.edge_type] = graph
        return True

    @_modes.plain
    def _get_edge_index(self, edge_attr: Any) -> Any:
        graph = self.graphs.get(edge_attr.edge_type)
        if graph is None or edge_attr.layout.value != "csc":
            return None
        return _tensor(graph.indices), _tensor(graph.indptr)

    def _remove_edge_index(self, edge_attr: Any) -> bool:
        return self.graphs.pop(edge_attr.edge_type, None) is not None

    def get_all_edge_attrs(self) -> list[Any]:
        return [
            self._edge_attr_cls(edge_type, "csc", size=(graph.sources, graph.destinations))
            for edge_type, graph in self.graphs.items()
        ]


def _tensor(array: Any) -> torch.Tensor:
    """A copy, because torch has no read-only tensors."""
    return torch.from_numpy(array.astype("int64"))


def _padded(indptr: Any, size: Any) -> Any:
    """Adds the destinations that PyTorch Geometric left out because no edge ends there."""
    if size is None or len(indptr) >= size[1] + 1:
        return indptr
    last = indptr[-1:].expand(size[1] + 1 - len(indptr))
    return torch.cat([indptr, last])


class NeighborSampler(torch_geometric.sampler.BaseSampler):
    """Samples neighbourhoods for PyTorch Geometric's loaders: NodeLoader(data, sampler, ...), LinkLoader(data, sampler,
    ...), NeighborLoader(data, num_neighbors, neighbor_sampler=sampler, ...).

    data: the same as for the loader: a Data or HeteroData with `edge_index`, or (FeatureStore, GraphStore); or a
    penstock.features.Graph, or a dict of those by edge type. num_neighbors: for each hop, -1 is all; or a dict by edge
    type. replace, disjoint, threads: as in penstock.features.NeighborSampler. subgraph_type: "directional" or
    "bidirectional". seed: None: samples depend on torch's generator, as in PyTorch Geometric's own sampler. A number:
    samples depend on it, the seed nodes and set_epoch(), so that a batch is the same for any number of workers.
    features: receives the sampled nodes by hint() immediately: a penstock.FeatureStore, a table of one (for a graph of
    one type), or a FeatureStore of this module; by default that of `data`. Tables that cannot be those of the nodes are
    a ValueError.
    Raises ValueError for arguments that do not match, NotImplementedError for temporal and induced subgraphs.
    Thread-safe, except for set_epoch()."""

    @_arguments.named
    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        *,
        replace: bool = False,
        disjoint: bool = False,
        subgraph_type: str = "directional",
        seed: int | None = None,
        threads: int = 1,
        features: Any = None,
    ) -> None:
        kind = torch_geometric.sampler.base.SubgraphType(subgraph_type)
        if kind == torch_geometric.sampler.base.SubgraphType.induced:
            raise NotImplementedError(
                "NeighborSampler: subgraph_type: expected directional or bidirectional, got induced"
            )
        graphs, nodes, store = _graphs_of(data)
        self._bidirectional = kind == torch_geometric.sampler.base.SubgraphType.bidirectional
        self._hetero = not isinstance(graphs, _graph.Graph)
        self._sampler = _graph.NeighborSampler(
            graphs,
            _by_edge_type(num_neighbors, graphs),
            replace=replace,
            disjoint=disjoint,
            seed=0 if seed is None else seed,
            threads=threads,
            nodes=nodes,
        )
        self._seed, self._epoch = seed, 0
        sizes = self._sampler.num_nodes
        self._features, self._hinted = _hints_of(store if features is None else features, features is not None, sizes)

    @property
    def num_nodes(self) -> Any:
        """The number of nodes of the graph; for several types a dict."""
        return self._sampler.num_nodes if self._hetero else self._sampler.num_nodes[""]

    def set_epoch(self, epoch: int) -> None:
        """Changes the later samples of a sampler with a seed: call it at the start of an epoch. Workers that already
        exist (persistent_workers) are not affected."""
        self._epoch = _arguments.whole("set_epoch", "epoch", epoch)

    @_modes.plain
    def sample_from_nodes(self, inputs: Any, **keywords: Any) -> Any:
        """For a node loader: returns a SamplerOutput or HeteroSamplerOutput."""
        return self._directed(node_sample(inputs, self._sample))

    @_modes.plain
    def sample_from_edges(self, inputs: Any, neg_sampling: Any = None, **keywords: Any) -> Any:
        """For a link loader: returns a SamplerOutput or HeteroSamplerOutput."""
        neg_sampling = torch_geometric.sampler.NegativeSampling.cast(neg_sampling)
        found = edge_sample(inputs, self._sample, self.num_nodes, self._sampler.disjoint, None, neg_sampling)
        return self._directed(found)

    @property
    def edge_permutation(self) -> None:
        """None: edges have the same numbers as in `data`."""
        return None

    def _directed(self, found: Any) -> Any:
        return found.to_bidirectional() if self._bidirectional else found

    def _sample(self, seed: Any, seed_time: Any = None, **keywords: Any) -> Any:
        if seed_time is not None:
            raise NotImplementedError("NeighborSampler: times of nodes are not looked at; leave input_time None")
        if self._hetero != isinstance(seed, dict):
            raise ValueError(
                "NeighborSampler: seeds: expected "
                + (f"seeds of a type of {self._sampler.node_types}" if self._hetero else "seeds without a type")
                + ", as the graph is of "
                + ("several types" if self._hetero else "one")
            )
        found = self._sampler.sample(seed, batch=self._batch(seed))
        if self._hinted:
            wanted = {table: found.nodes[kind] if self._hetero else found.nodes for table, kind in self._hinted.items()}
            self._features.hint(wanted.get(None, wanted))
        output = torch_geometric.sampler.HeteroSamplerOutput if self._hetero else torch_geometric.sampler.SamplerOutput
        return output(
            node=found.nodes,
            row=found.row,
            col=found.col,
            edge=found.edges,
            batch=found.trees,
            num_sampled_nodes=found.nodes_per_hop,
            num_sampled_edges=found.edges_per_hop,
        )

    def _batch(self, seed: Any) -> int:
        if self._seed is None:
            return int(torch.randint(2**63 - 1, ()))
        content = hashlib.blake2b(self._epoch.to_bytes(8, "little"), digest_size=8)
        for name, ids in sorted(seed.items()) if isinstance(seed, dict) else [("", seed)]:
            content.update(name.encode() + b"\0" + ids.to(torch.int64).contiguous().numpy().tobytes())
        return int.from_bytes(content.digest(), "little")

    def __repr__(self) -> str:
        return f"NeighborSampler({self._sampler!r})"


def _hints_of(features: Any, given: bool, nodes: Mapping[str, int]) -> tuple[Any, dict[str | None, str]]:
    """Where sampled nodes are hinted: a store and {table: type of nodes}, or a table and {None: ""}. Features that were
    `given` for the purpose are refused if they cannot be those of the nodes; of others only the fitting ones count."""
    hetero = "" not in nodes
    tables: Mapping[Any, str | None]
    if isinstance(features, FeatureStore):
        store, tables = features._store, features._tables
    elif hasattr(features, "tables"):
        store, tables = features, {_key_of(name): name for name in features.tables}
    elif all(hasattr(features, name) for name in ("gather", "hint", "__len__")):
        if hetero:
            raise ValueError(
                f"NeighborSampler: features: expected a store, as the graph has nodes of several types ({list(nodes)}),"
                f" got {_arguments.got(features)}; give its store"
            )
        store, tables = features, {("", ""): None}
    elif given:
        raise TypeError(
            "NeighborSampler: features: expected a penstock.FeatureStore, a table of one, or a pyg.FeatureStore, got "
            + _arguments.got(features)
        )
    else:
        return None, {}  # a store of another class, which takes no hints
    if not hetero and any(group is None for group, _ in tables):
        tables = {key: table for key, table in tables.items() if key[0] is None}
    groups = list(dict.fromkeys(group for group, _ in tables))
    if given and not hetero and len(groups) != 1:
        raise ValueError(
            f"NeighborSampler: features: the graph has nodes of one type, and these are tables of {groups}; give one "
            "table, store[name]"
        )
    if given and hetero and not set(groups) & set(nodes):
        raise ValueError(
            f"NeighborSampler: features: expected tables of {list(nodes)}, got tables of {groups}; give a "
            'pyg.FeatureStore(store, attrs={(type, "x"): table})'
        )
    hinted = {}
    for (group, _), table in tables.items():
        kind = group if hetero else ""
        if kind not in nodes:
            continue
        rows = len(store if table is None else store[table])
        if rows >= nodes[kind]:
            hinted[table] = kind
        elif given:
            raise ValueError(
                f"NeighborSampler: features: {'this table' if table is None else repr(table)} has {rows} rows, and the "
                f"graph has {nodes[kind]} nodes{f' of type {kind!r}' if hetero else ''}; give the table of these nodes"
            )
    return store, hinted if hasattr(store, "hint") else {}


def _by_edge_type(num_neighbors: Any, graphs: Any) -> Any:
    """Also takes PyTorch Geometric's NumNeighbors; keys may be its strings."""
    numbers = num_neighbors
    if not isinstance(numbers, torch_geometric.sampler.NumNeighbors):
        if not isinstance(numbers, Mapping | Sequence):
            raise TypeError(f"NeighborSampler: num_neighbors: expected a list or a dict, got {_arguments.got(numbers)}")
        numbers = torch_geometric.sampler.NumNeighbors(dict(numbers) if isinstance(numbers, Mapping) else list(numbers))
    return copy.copy(numbers.get_values(None if isinstance(graphs, _graph.Graph) else list(graphs)))


def _graphs_of(data: Any) -> tuple[Any, Any, Any]:
    """Graphs, numbers of nodes by type, and the feature store, of any data that a loader takes."""
    if isinstance(data, _graph.Graph):
        return data, None, None
    if isinstance(data, torch_geometric.data.HeteroData):
        nodes = {name: data[name].num_nodes for name in data.node_types}
        graphs = {
            key: _graph.Graph.from_edges(_edge_index(data[key]), (nodes[key[0]], nodes[key[2]]))
            for key in data.edge_types
        }
        return graphs, nodes, None
    if isinstance(data, torch_geometric.data.Data):
        return _graph.Graph.from_edges(_edge_index(data), data.num_nodes), None, None
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[1], torch_geometric.data.GraphStore):
        features, store = data
        graphs = store.graphs if isinstance(store, GraphStore) else _graphs_of_store(store)
        if list(graphs) == [None]:
            return graphs[None], None, features
        if not graphs or None in graphs:
            raise ValueError(f"NeighborSampler: data: expected graphs of one type or of named ones, got {list(graphs)}")
        return graphs, None, features
    if isinstance(data, Mapping):
        return dict(data), None, None
    raise TypeError(
        "NeighborSampler: data: expected a Data, HeteroData, (FeatureStore, GraphStore), Graph or dict of graphs, got "
        + _arguments.got(data)
    )


def _edge_index(store: Any) -> Any:
    if "edge_index" not in store:
        raise ValueError("NeighborSampler: data: expected `edge_index`; layouts of torch-sparse (adj_t) are not read")
    return store.edge_index


def _graphs_of_store(store: Any) -> dict[Any, _graph.Graph]:
    """The graphs of a store of another class: converted to CSC, with the numbers of its edges."""
    graphs = {}
    for attr in store.get_all_edge_attrs():
        row, col, perm = store._edge_to_layout(attr, torch_geometric.data.graph_store.EdgeLayout.CSC)
        sources = None if attr.size is None else attr.size[0]
        graphs[attr.edge_type] = _graph.Graph(_padded(col, attr.size), row, sources=sources, edge_ids=perm)
    return graphs
