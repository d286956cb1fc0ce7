# SPDX-License-Identifier: Apache-2.0
"""penstock.features.Graph and NeighborSampler: graphs of arrays, edges and files, and what is sampled of them."""

import os
import pickle
import threading

import numpy as np
import penstock
import pytest
from hypothesis import given, settings, strategies as st
from penstock.features import Graph, NeighborSampler, zipf_rows

torch = pytest.importorskip("torch")


@st.composite
def edges(draw):
    sources, destinations = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    some = st.lists(st.tuples(st.integers(0, sources - 1), st.integers(0, destinations - 1)), max_size=60)
    return sources, destinations, np.array(draw(some), dtype=np.int64).reshape(-1, 2).T


@settings(max_examples=60, deadline=None)
@given(edges(), st.sampled_from(["int32", "int64", "uint32", "uint64"]), st.data())
def test_samples_are_of_the_graph(some, dtype, data):
    sources, destinations, index = some
    nodes = max(sources, destinations)
    graph = Graph.from_edges(np.ascontiguousarray(index).astype(dtype), nodes)
    fanouts = data.draw(st.lists(st.integers(-1, 4), max_size=3))
    replace = data.draw(st.booleans())
    seeds = data.draw(st.lists(st.integers(0, nodes - 1), max_size=5))
    sampler = NeighborSampler(graph, fanouts, replace=replace, disjoint=data.draw(st.booleans()))
    found = sampler.sample(np.array(seeds, dtype="int32"), batch=1)
    assert list(found.nodes[: len(seeds)]) == seeds and sum(found.nodes_per_hop) == len(found.nodes)
    assert np.array_equal(found.nodes[found.row], index[0][found.edges])
    assert np.array_equal(found.nodes[found.col], index[1][found.edges])
    degrees = np.bincount(index[1], minlength=nodes)
    first = seen = 0
    for hop, fanout in enumerate(fanouts):
        count = found.edges_per_hop[hop]
        ends = found.col[seen : seen + count]
        for place in range(first, first + found.nodes_per_hop[hop]):
            degree = degrees[found.nodes[place]]
            wanted = degree if fanout < 0 else min(degree, fanout) if not replace else fanout * (degree > 0)
            assert (ends == place).sum() == wanted
        first, seen = first + found.nodes_per_hop[hop], seen + count
    if not replace:
        of_ends = list(zip(found.col.tolist(), found.edges.tolist()))
        assert len(set(of_ends)) == len(of_ends)


def test_arrays_tensors_and_lists_are_looked_at_where_they_lie():
    indptr, indices = torch.tensor([0, 2, 2, 3]), np.array([1, 2, 0], dtype="uint32")
    for graph in (Graph(indptr, indices), Graph([0, 2, 2, 3], [1, 2, 0], edge_ids=torch.arange(3, dtype=torch.int32))):
        assert (graph.sources, graph.destinations, graph.edges, graph.mapped) == (3, 3, 3, False)
        assert graph.indptr.tolist() == [0, 2, 2, 3] and graph.indices.tolist() == [1, 2, 0]
        assert not graph.indices.flags.writeable
        assert NeighborSampler(graph, [-1]).sample([0]).nodes.tolist() == [0, 1, 2]
    assert Graph(indptr, indices).indices.ctypes.data == indices.ctypes.data
    assert repr(Graph(indptr, indices)) == "Graph(sources=3, destinations=3, edges=3)"


def test_memory_of_a_graph_lives_as_long_as_it():
    graph = Graph(torch.tensor([0, 1]), torch.tensor([0]))
    kept = graph.indices
    sampler = NeighborSampler(graph, [1])
    del graph
    assert kept.tolist() == [0] and sampler.sample([0]).row.tolist() == [0]


@pytest.mark.parametrize("mapped", [False, True])
def test_files(tmp_path, monkeypatch, mapped):
    np.save(tmp_path / "p.npy", np.array([0, 2, 2, 3]))
    np.save(tmp_path / "i.npy", np.array([1, 2, 0], dtype="int32"))
    graph = Graph.open(tmp_path / "p.npy", os.fsencode(tmp_path / "i.npy"), mapped=mapped)
    assert graph.mapped == mapped and graph.indices.tolist() == [1, 2, 0]
    pickled = pickle.dumps(graph)
    again = pickle.loads(pickled)
    assert again.mapped == mapped and again.indices.tolist() == [1, 2, 0]
    monkeypatch.chdir(tmp_path)
    relative = pickle.dumps(Graph.open("p.npy", "i.npy", mapped=mapped))
    monkeypatch.chdir("/")
    assert pickle.loads(relative).indices.tolist() == [1, 2, 0]
    np.save(tmp_path / "new.npy", np.array([1, 1, 1], dtype="int32"))
    os.replace(tmp_path / "new.npy", tmp_path / "i.npy")
    for one in (pickled, relative):
        with pytest.raises(penstock.Damaged, match="files were replaced after the graph that is unpickled"):
            pickle.loads(one)
    np.array([0, 1], dtype="uint64").tofile(tmp_path / "p")
    np.array([6], dtype="uint64").tofile(tmp_path / "i")
    raw = Graph.open(tmp_path / "p", tmp_path / "i", dtype="uint64", sources=7, mapped=mapped)
    assert (raw.sources, raw.destinations) == (7, 1)
    with pytest.raises(penstock.Damaged, match="6, which is no node: there are 1"):
        Graph.open(tmp_path / "p", tmp_path / "i", dtype="uint64", mapped=mapped)
    unchecked = Graph.open(tmp_path / "p", tmp_path / "i", dtype="uint64", mapped=mapped, check=False)
    with pytest.raises(penstock.Damaged, match="the graph is invalid, or changed since it was checked"):
        NeighborSampler(unchecked, [1]).sample([0])
    with pytest.raises(FileNotFoundError):
        Graph.open(tmp_path / "none.npy", tmp_path / "i.npy", mapped=mapped)
    (tmp_path / "short.npy").write_bytes((tmp_path / "i.npy").read_bytes()[:-2])
    with pytest.raises(penstock.Damaged, match="it was cut"):
        Graph.open(tmp_path / "p.npy", tmp_path / "short.npy", mapped=mapped)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Graph([0, 2], [0]), ValueError, "ends with 2: expected 0 and the number of edges, 1"),
        (lambda: Graph([0, 1], np.array([0.5])), TypeError, "indices: expected int32, uint32, int64 or uint64"),
        (lambda: Graph([0, 1], np.array([5], dtype="int8")), TypeError, "indices: expected int32"),
        (lambda: Graph([0, 1], np.zeros((4, 2), dtype="int64")[:, 0]), ValueError, "not contiguous"),
        (lambda: Graph([0, 1], [0], check=1), TypeError, "check: expected True, False"),
        (lambda: Graph([0, 1], [0], sources=-1), ValueError, "sources"),
        (lambda: Graph([0, 1], [0], edge_isd=None), TypeError, "did you mean 'edge_ids'"),
        (lambda: Graph.from_edges(torch.tensor([[0], [-1]]), 5), ValueError, r"to\[0\] is -1, which is no node"),
        (lambda: Graph.from_edges(torch.zeros(3, 1, dtype=torch.int64)), ValueError, r"the shape \(2, edges\)"),
        (lambda: Graph.from_edges([[0], [0]], (1, 2, 3)), ValueError, "sources and destinations, got 3"),
        (lambda: Graph.rmat(99), ValueError, "scale: expected 1 to 40, got 99"),
        (lambda: Graph.rmat(5, probabilities=(1, 1, 1)), ValueError, "expected probabilities"),
        (lambda: Graph.rmat(5, probabilities=(1, 0)), ValueError, "expected 3, got 2"),
        (lambda: NeighborSampler(Graph([0, 1], [0]), [-2]), ValueError, "fanouts: expected -1 to"),
        (lambda: NeighborSampler(Graph([0, 1], [0]), [0.5]), TypeError, "fanouts: expected an integer"),
        (
            lambda: Graph(np.array([[0, 1], [2, 3]]), [0, 0, 0]),
            ValueError,
            r"indptr: expected one dimension, .*\(2, 2\)",
        ),
        (lambda: Graph([0, 1], torch.tensor([[0]])), ValueError, r"indices: expected one dimension, .*\[1, 1\]"),
        (lambda: Graph([0, 1], [0], edge_ids=np.zeros((1, 1), "i8")), ValueError, "edge_ids: expected one dimension"),
        (lambda: Graph.from_edges(np.zeros((2, 2, 2), "i8"), 5), ValueError, "from: expected one dimension"),
        (lambda: NeighborSampler(Graph([0, 1], [0]), [True]), TypeError, r"fanouts: expected an integer, got True"),
        (lambda: NeighborSampler(Graph([0, 1], [0]), 5), TypeError, "fanouts: expected a list of integers"),
        (lambda: NeighborSampler({"a": Graph([0, 1], [0])}, [1]), TypeError, r"expected keys \(source type"),
        (lambda: NeighborSampler({("a", "b", "c"): 1}, [1]), TypeError, "expected a Graph, got 1"),
        (lambda: NeighborSampler(Graph([0, 1], [0]), [1], threads=0), ValueError, "threads: expected 1"),
        (lambda: NeighborSampler(Graph([0, 1], [0]), [1], seed=-1), ValueError, "seed"),
        (lambda: NeighborSampler(Graph([0, 1], [0]), [1]).sample([1]), ValueError, r"seeds\[0\]: 1 is no node"),
        (lambda: NeighborSampler(Graph([0, 1], [0]), [1]).sample([-1]), ValueError, "seeds"),
        (lambda: NeighborSampler(Graph([0, 1], [0]), [1]).sample({"a": [0]}), TypeError, "expected seeds of one type"),
        (lambda: NeighborSampler(Graph([0, 1], [0]), [1]).sample([0], bacth=1), TypeError, "did you mean 'batch'"),
        (lambda: zipf_rows(5, 9, 1), ValueError, "exponent: expected 0 to 8, got 9"),
        (lambda: zipf_rows(0, 1, 1), ValueError, "rows: expected 1 to"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_several_types_of_nodes_and_edges():
    graphs = {
        ("author", "writes", "paper"): Graph.from_edges([[0, 1, 1], [0, 0, 1]], (2, 3)),
        ("paper", "cites", "paper"): Graph.from_edges([[1, 2], [0, 1]], 3),
    }
    sampler = NeighborSampler(graphs, {("author", "writes", "paper"): [-1, -1], ("paper", "cites", "paper"): [1, 1]})
    found = sampler.sample({"paper": torch.tensor([0])})
    assert {name: ids.tolist() for name, ids in found.nodes.items()} == {"author": [0, 1], "paper": [0, 1, 2]}
    assert found.edges[("author", "writes", "paper")].tolist() == [0, 1, 2]
    assert found.edges_per_hop[("paper", "cites", "paper")] == [1, 1]
    assert all(isinstance(ids, torch.Tensor) for ids in found.nodes.values())
    with pytest.raises(ValueError, match=r"expected types of \['author', 'paper'\], got 'papers'"):
        sampler.sample({"papers": [0]})
    with pytest.raises(TypeError, match="expected a dict {type: seeds}"):
        sampler.sample([0])
    with pytest.raises(ValueError, match="got none for"):
        NeighborSampler(graphs, {("paper", "cites", "paper"): [1]})
    with pytest.raises(ValueError, match="has 3 nodes of 'paper', expected 4 as before"):
        NeighborSampler(graphs, [1], nodes={"paper": 4})
    assert NeighborSampler(graphs, [1], nodes={"venue": 4}).sample({"venue": [3]}).nodes["venue"].tolist() == [3]


def test_a_seed_repeats_in_threads_pickles_and_children():
    sampler = NeighborSampler(Graph.rmat(12, seed=5), [10, 5], seed=8, threads=3)
    seeds = np.arange(500)
    expected = [sampler.sample(seeds, batch=batch).nodes.tolist() for batch in range(4)]
    assert expected[0] != expected[1]
    again = NeighborSampler(Graph.rmat(12, seed=5), [10, 5], seed=8)
    assert [again.sample(seeds).nodes.tolist() for _ in range(4)] == expected  # they count from 0 on
    copied = pickle.loads(pickle.dumps(sampler))
    assert copied.sample(seeds, batch=2).nodes.tolist() == expected[2]
    found = {}

    def run(batch):
        found[batch] = sampler.sample(seeds, batch=batch).nodes.tolist()

    threads = [threading.Thread(target=run, args=(batch,)) for batch in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[batch] for batch in range(4)] == expected
    child = os.fork()
    if child == 0:
        os._exit(0 if sampler.sample(seeds, batch=3).nodes.tolist() == expected[3] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_rows_of_a_law_are_the_same_for_the_same_batch():
    rows = zipf_rows(1000, 0.6, 5000, batch=3)
    assert rows.dtype == np.int64 and rows.min() >= 0 and rows.max() < 1000
    assert np.array_equal(rows, zipf_rows(1000, 0.6, 5000, batch=3))
    assert not np.array_equal(rows, zipf_rows(1000, 0.6, 5000, batch=4))
    assert np.bincount(zipf_rows(100, 1.2, 20_000), minlength=100).max() > 2000 > 20_000 / 100


def test_edges_may_be_strided():
    pairs = np.array([[0, 1], [1, 2], [2, 0], [0, 2]])
    expected = Graph.from_edges(np.ascontiguousarray(pairs.T))
    for edges in (pairs.T, torch.from_numpy(pairs).t(), np.repeat(pairs.T, 2, axis=1)[:, ::2]):
        graph = Graph.from_edges(edges)
        assert all(
            np.array_equal(*both) for both in zip((graph.indptr, graph.indices), (expected.indptr, expected.indices))
        )
        assert pickle.loads(pickle.dumps(graph)).edges == 4
