# SPDX-License-Identifier: Apache-2.0
"""penstock.features.pyg under the loaders of torch_geometric itself. Here because .venv-deepspeed is where packages are
that nothing else needs."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")

import penstock  # noqa: E402
import torch_geometric.nn as gnn  # noqa: E402
from penstock.features import Graph, Prefetch, pyg  # noqa: E402
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader, NodeLoader  # noqa: E402
from torch_geometric.sampler import NodeSamplerInput  # noqa: E402

NODES, CITES, WRITES = {"paper": 300, "author": 120}, ("paper", "cites", "paper"), ("author", "writes", "paper")
WRITTEN = ("paper", "written", "author")
EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "pyg").glob("*.py"))


class Tables:
    """What pyg.FeatureStore asks of a penstock.FeatureStore, with rows in memory; counts calls."""

    def __init__(self, tables):
        self.tables, self.gathers, self.hints = tables, [], []

    def __getitem__(self, name):
        return Rows(self, name)

    def gather(self, ids):
        self.gathers.append(sorted(ids))
        return {name: self.tables[name][rows] for name, rows in ids.items()}

    def hint(self, ids):
        self.hints.append(ids)


class Rows:
    def __init__(self, store, name):
        self.store, self.name = store, name
        self.shape = store.tables[name].shape

    def __len__(self):
        return self.shape[0]

    def gather(self, ids):
        return self.store.gather({self.name: ids})[self.name]


def edge_index(sources, destinations, count, seed):
    random = torch.Generator().manual_seed(seed)
    rows = [torch.randint(high, (count,), generator=random) for high in (sources, destinations)]
    return torch.stack(rows)


@pytest.fixture
def homogeneous():
    torch.manual_seed(0)
    x, y = torch.randn(300, 16), torch.randint(4, (300,))
    return Data(x=x, y=y, edge_index=edge_index(300, 300, 3000, 1), edge_attr=torch.arange(3000))


@pytest.fixture
def hetero():
    torch.manual_seed(0)
    data = HeteroData()
    for name, count in NODES.items():
        data[name].x = torch.randn(count, 16)
    data["paper"].y = torch.randint(4, (300,))
    for seed, key in enumerate((CITES, WRITES, WRITTEN)):
        data[key].edge_index = edge_index(NODES[key[0]], NODES[key[2]], 1500, seed)
    return data


def stores_of(hetero):
    tables = Tables({"paper": hetero["paper"].x, "author": hetero["author"].x})
    features = pyg.FeatureStore(tables)
    features.put_tensor(hetero["paper"].y, group_name="paper", attr_name="y", index=None)
    graphs = pyg.GraphStore()
    for key in hetero.edge_types:
        size = (NODES[key[0]], NODES[key[2]])
        graphs.put_edge_index(hetero[key].edge_index, edge_type=key, layout="coo", size=size)
    return tables, features, graphs


def check_hetero_batch(batch, hetero, num_neighbors):
    for name in NODES:
        assert torch.equal(batch[name].x, hetero[name].x[batch[name].n_id])
        assert len(batch[name].n_id.unique()) == len(batch[name].n_id)
    for key in hetero.edge_types:
        row, col = batch[key].edge_index
        ends = batch[key[0]].n_id[row], batch[key[2]].n_id[col]
        assert torch.equal(torch.stack(ends), hetero[key].edge_index[:, batch[key].e_id])
        assert (col.bincount(minlength=1) <= max(num_neighbors)).all()
    assert torch.equal(batch["paper"].y, hetero["paper"].y[batch["paper"].n_id])


def test_a_homogeneous_batch_has_the_rows_and_edges_of_its_nodes(homogeneous):
    sampler = pyg.NeighborSampler(homogeneous, [5, 3])
    loader = NeighborLoader(homogeneous, [5, 3], neighbor_sampler=sampler, batch_size=40, shuffle=True)
    seen = []
    for batch in loader:
        assert torch.equal(batch.x, homogeneous.x[batch.n_id]) and torch.equal(batch.y, homogeneous.y[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], homogeneous.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, batch.e_id)
        assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id)
        assert sum(batch.num_sampled_nodes) == batch.num_nodes and sum(batch.num_sampled_edges) == batch.num_edges
        seen.append(batch.input_id)
    assert torch.cat(seen).sort().values.tolist() == list(range(300))


def test_homogeneous_stores(homogeneous):
    tables = Tables({"x": homogeneous.x})
    features = pyg.FeatureStore(tables, attrs={(None, "x"): "x"})
    features.put_tensor(homogeneous.y, group_name=None, attr_name="y", index=None)
    graphs = pyg.GraphStore(Graph.from_edges(homogeneous.edge_index, 300))
    sampler = pyg.NeighborSampler((features, graphs), [5, 3])
    batches = list(NodeLoader((features, graphs), sampler, torch.arange(100), batch_size=30))
    for batch in batches:
        assert torch.equal(batch.x, homogeneous.x[batch.n_id]) and torch.equal(batch.y, homogeneous.y[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], homogeneous.edge_index[:, batch.e_id])
    assert tables.gathers == [["x"]] * 4
    assert [ids["x"].tolist() for ids in tables.hints] == [batch.n_id.tolist() for batch in batches]


def test_a_heterogeneous_batch_of_data_and_of_stores(hetero):
    sampler = pyg.NeighborSampler(hetero, [4, 2])
    for batch in NeighborLoader(hetero, [4, 2], ("paper", None), neighbor_sampler=sampler, batch_size=64):
        check_hetero_batch(batch, hetero, [4, 2])
    tables, features, graphs = stores_of(hetero)
    sampler = pyg.NeighborSampler((features, graphs), {CITES: [4, 2], WRITES: [3, 0], WRITTEN: [2, 2]})
    for batch in NodeLoader((features, graphs), sampler, ("paper", torch.arange(99)), batch_size=33):
        check_hetero_batch(batch, hetero, [4, 2])
        assert len(batch[WRITES].num_sampled_edges) == 2 and batch[WRITES].num_sampled_edges[1] == 0
    assert tables.gathers == [["author", "paper"]] * 3  # both types as one submission
    assert len(tables.hints) == 3 and sorted(tables.hints[0]) == ["author", "paper"]
    assert len(list(NodeLoader((features, graphs), sampler, "paper", batch_size=150))) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_seed_repeats_whatever_the_workers(homogeneous, workers):
    sampler = pyg.NeighborSampler(homogeneous, [5, 3], seed=3)
    expected = [batch.n_id for batch in NodeLoader(homogeneous, sampler, torch.arange(90), batch_size=30)]
    loader = NodeLoader(homogeneous, sampler, torch.arange(90), batch_size=30, num_workers=workers)
    assert all(torch.equal(batch.n_id, ids) for batch, ids in zip(loader, expected))
    sampler.set_epoch(1)
    assert not torch.equal(next(iter(loader)).n_id, expected[0])
    again = pickle.loads(pickle.dumps(pyg.NeighborSampler(homogeneous, [5, 3], seed=3)))
    found = again.sample_from_nodes(NodeSamplerInput(None, torch.arange(30)))
    assert torch.equal(found.node, expected[0])


def test_without_a_seed_torch_decides(homogeneous):
    sampler = pyg.NeighborSampler(homogeneous, [5, 3])
    inputs = NodeSamplerInput(None, torch.arange(30))
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(sampler.sample_from_nodes(inputs).node)
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_disjoint_and_bidirectional(homogeneous):
    sampler = pyg.NeighborSampler(homogeneous, [3, 3], disjoint=True)
    batch = next(iter(NodeLoader(homogeneous, sampler, torch.arange(50), batch_size=10)))
    assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
    assert batch.batch[:10].tolist() == list(range(10))
    sampler = pyg.NeighborSampler(homogeneous, [3, 3], subgraph_type="bidirectional")
    batch = next(iter(NodeLoader(homogeneous, sampler, torch.arange(50), batch_size=10)))
    ends = set(map(tuple, batch.edge_index.t().tolist()))
    assert all((b, a) in ends for a, b in ends)


@pytest.mark.parametrize("negative", [None, "binary", "triplet"])
def test_loaders_of_links(homogeneous, hetero, negative):
    sampler = pyg.NeighborSampler(homogeneous, [3, 2])
    loader = LinkNeighborLoader(
        homogeneous, [3, 2], neighbor_sampler=sampler, batch_size=50, neg_sampling=negative, shuffle=True
    )
    batch = next(iter(loader))
    if negative == "triplet":
        positive = torch.stack([batch.src_index, batch.dst_pos_index])
    else:
        positive = batch.edge_label_index[:, :50]
    links = set(map(tuple, homogeneous.edge_index.t().tolist()))
    assert all(link in links for link in map(tuple, batch.n_id[positive].t().tolist()))
    assert torch.equal(batch.x, homogeneous.x[batch.n_id])
    _, features, graphs = stores_of(hetero)
    stored = pyg.NeighborSampler((features, graphs), [3, 2])
    loader = LinkNeighborLoader(
        (features, graphs), [3, 2], (WRITES, None), neighbor_sampler=stored, batch_size=50, neg_sampling=negative
    )
    check_hetero_batch(next(iter(loader)), hetero, [3, 2])


def test_each_edge_is_as_likely(homogeneous):
    ids = (homogeneous.edge_index[1] == 7).nonzero().view(-1)
    sampler = pyg.NeighborSampler(homogeneous, [2])
    counts = torch.zeros(3000)
    for _ in range(2000):
        found = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([7])))
        assert len(found.edge.unique()) == 2
        counts[found.edge] += 1
    assert counts.sum() == 4000 and (counts[ids] > 0).all()
    expected = 4000 / len(ids)
    freedom = len(ids) - 1
    term = 2 / (9 * freedom)
    limit = freedom * (1 - term + 3.72 * term**0.5) ** 3  # chi-square, 99.99 % (Wilson and Hilferty)
    assert ((counts[ids] - expected) ** 2 / expected).sum() < limit


def losses(loader, model, steps=6):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for batch, _ in zip(loader, range(steps)):
        if isinstance(batch, HeteroData):
            out, y, size = model(batch.x_dict, batch.edge_index_dict), batch["paper"].y, batch["paper"].batch_size
        else:
            out, y, size = model(batch.x, batch.edge_index), batch.y, batch.batch_size
        loss = torch.nn.functional.cross_entropy(out[:size], y[:size])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


class Sage(torch.nn.Module):
    def __init__(self, channels=16, classes=4):
        super().__init__()
        self.first, self.second = gnn.SAGEConv(channels, 8), gnn.SAGEConv(8, classes)

    def forward(self, x, edges):
        return self.second(self.first(x, edges).relu(), edges)


class HeteroSage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = gnn.HeteroConv({key: gnn.SAGEConv((16, 16), 8) for key in (CITES, WRITES, WRITTEN)})
        self.second = gnn.HeteroConv({key: gnn.SAGEConv((8, 8), 4) for key in (CITES, WRITES, WRITTEN)})

    def forward(self, x, edges):
        x = {name: rows.relu() for name, rows in self.first(x, edges).items()}
        return self.second(x, edges)["paper"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_feature_file_under_the_loaders(hetero, tmp_path, workers):
    path = tmp_path / "hetero.features"
    tables = {"paper": hetero["paper"].x, "author": hetero["author"].x, "paper/y": hetero["paper"].y}
    penstock.FeatureStore.write(path, tables, progress=None)
    _, _, graphs = stores_of(hetero)
    with penstock.FeatureStore.open(path, ram="1MiB") as store:
        data = pyg.FeatureStore(store), graphs
        sampler = pyg.NeighborSampler(data, [4, 2], seed=1)
        loader = NodeLoader(data, sampler, ("paper", torch.arange(99)), batch_size=33, num_workers=workers)
        batches = list(loader)
        for batch in batches:
            check_hetero_batch(batch, hetero, [4, 2])
        if workers == 0:
            stats = store.stats()
            assert stats.gathers == 3 == len(batches) and stats.hints == 9 and stats.rows_hit > 0
        assert torch.equal(data[0].get_tensor("author", "x", None), hetero["author"].x)
        assert torch.equal(pickle.loads(pickle.dumps(data[0])).get_tensor("author", "x", None), hetero["author"].x)


def test_prefetch_reads_ahead_of_the_loaders(homogeneous, hetero, tmp_path):
    rows = {"paper": hetero["paper"].x, "author": hetero["author"].x}
    penstock.FeatureStore.write(tmp_path / "hetero.features", rows, progress=None)
    bare = HeteroData()
    for name, count in NODES.items():
        bare[name].num_nodes = count
    for key in hetero.edge_types:
        bare[key].edge_index = hetero[key].edge_index
    with penstock.FeatureStore.open(tmp_path / "hetero.features", ram="1MiB") as store:
        loader = NodeLoader(bare, pyg.NeighborSampler(bare, [4, 2]), ("paper", torch.arange(99)), batch_size=9)
        ahead = Prefetch(loader, store, window=4, key=lambda batch: {name: batch[name].n_id for name in NODES})
        batches = list(ahead)
        for batch, found in batches:
            assert all(torch.equal(found[name], rows[name][batch[name].n_id]) for name in NODES)
        assert len(batches) == 11 and store.stats().hints_used > 0
    penstock.FeatureStore.write(tmp_path / "x.features", {"x": homogeneous.x}, progress=None)
    bare = Data(edge_index=homogeneous.edge_index, num_nodes=300)
    with penstock.FeatureStore.open(tmp_path / "x.features") as store:
        loader = NodeLoader(bare, pyg.NeighborSampler(bare, [4, 2]), torch.arange(50), batch_size=9)
        for batch, found in Prefetch(loader, store["x"]):
            assert torch.equal(found, homogeneous.x[batch.n_id])


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_example(program, tmp_path):
    run = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout and not list(tmp_path.iterdir())


def test_losses_of_stores_are_those_of_rows_in_memory(homogeneous, hetero, tmp_path):
    penstock.FeatureStore.write(tmp_path / "x.features", {"x": homogeneous.x}, progress=None)
    store = penstock.FeatureStore.open(tmp_path / "x.features")
    features = pyg.FeatureStore(store, attrs={(None, "x"): "x"})
    features.put_tensor(homogeneous.y, group_name=None, attr_name="y", index=None)
    stores = features, pyg.GraphStore(Graph.from_edges(homogeneous.edge_index, 300))
    _, hetero_features, hetero_graphs = stores_of(hetero)
    for model, memory, stored, nodes in (
        (Sage, homogeneous, stores, torch.arange(300)),
        (HeteroSage, hetero, (hetero_features, hetero_graphs), ("paper", torch.arange(300))),
    ):
        found = []
        for data in (memory, stored):
            torch.manual_seed(4)
            sampler = pyg.NeighborSampler(data, [5, 3], seed=1)
            found.append(losses(NodeLoader(data, sampler, nodes, batch_size=50), model()))
        assert found[0] == found[1] and len(found[0]) == 6  # bit for bit


def test_the_interface_of_the_feature_store(hetero):
    tables, features, _ = stores_of(hetero)
    x = hetero["paper"].x
    for index in (None, slice(5, 50, 3), torch.tensor([3, 3, 1]), 7, slice(-3, None)):
        expected = x if index is None else x[index] if not isinstance(index, int) else x[index][None]
        assert torch.equal(features.get_tensor("paper", "x", index), expected)
    for index in (slice(5, 2), slice(300, 400), slice(10, 5, 2)):
        assert features.get_tensor("paper", "x", index).shape == (0, 16)
    assert torch.equal(features.get_tensor("paper", "x", np.int64(-1)), x[-1:])
    mask = torch.zeros(300, dtype=torch.bool)
    mask[[1, 5]] = True
    assert torch.equal(features["paper", "x", mask], x[mask])
    for odd in (mask[:10], torch.ones(301, dtype=torch.bool), mask[:, None]):
        with pytest.raises(IndexError, match=r"expected a mask of shape \(300,\), got"):
            features.get_tensor("paper", "x", odd)
    assert torch.equal(features["paper"].x[torch.tensor([4])], x[[4]])
    assert features.get_tensor_size("paper", "x") == (300, 16) and features.get_tensor_size("paper", "z") is None
    assert {(a.group_name, a.attr_name) for a in features.get_all_tensor_attrs()} == {
        ("paper", "x"),
        ("author", "x"),
        ("paper", "y"),
    }
    assert features.update_tensor(torch.arange(300), "paper", "y", None)
    assert features.put_tensor(torch.tensor([-1]), "paper", "y", torch.tensor([2]))
    assert features.get_tensor("paper", "y", slice(1, 4)).tolist() == [1, -1, 3]
    assert features.remove_tensor("paper", "y", None) and not features.remove_tensor("paper", "y", None)
    assert not features.put_tensor(torch.zeros(1), "paper", "new", torch.tensor([0]))
    with pytest.raises(ValueError, match="is the table 'paper' of a file"):
        features.put_tensor(x, "paper", "x", None)
    with pytest.raises(KeyError, match="there is no .*'paper', 'z'.*; expected one of"):
        features.get_tensor("paper", "z", None)
    with pytest.raises(ValueError, match="expected a table of .*, got 'papers'"):
        pyg.FeatureStore(tables, attrs={("paper", "x"): "papers"})
    named = pyg.FeatureStore(Tables({"paper": x, "paper/age": x[:, 0]}))
    assert torch.equal(named.get_tensor("paper", "age", torch.tensor([1])), x[[1], 0])


@pytest.mark.parametrize("device", ["cpu", "meta", "cuda"])
def test_a_default_device_changes_nothing(hetero, device):
    _, features, graphs = stores_of(hetero)
    x, index = hetero["paper"].x, hetero[WRITES].edge_index
    sampler = pyg.NeighborSampler(hetero, [5, 5], seed=1)
    seeds = NodeSamplerInput(None, torch.arange(20), input_type="paper")
    wanted = sampler.sample_from_nodes(seeds)
    with torch.device(device):
        for one in (None, slice(5, 50, 3), [3, 3, 1], 7):
            given = x if one is None else x[one] if not isinstance(one, int) else x[one][None]
            assert torch.equal(features.get_tensor("paper", "x", one), given)
        again = pyg.GraphStore()
        assert again.put_edge_index(
            graphs.get_edge_index(edge_type=WRITES, layout="csc", size=(120, 300)),
            edge_type=WRITES,
            layout="csc",
            size=(120, 300),
        )
        got = sampler.sample_from_nodes(seeds)
    assert all(torch.equal(got.node[name], wanted.node[name]) for name in wanted.node)
    assert index.shape[1] == again.get_edge_index(edge_type=WRITES, layout="csc", size=(120, 300))[0].numel()


def test_the_interface_of_the_graph_store(hetero):
    index = hetero[WRITES].edge_index
    by_layout = {}
    for layout in ("coo", "csc", "csr"):
        graphs = pyg.GraphStore()
        source = pyg.GraphStore({WRITES: Graph.from_edges(index, (120, 300))})
        row, col, _ = getattr(source, layout)()
        assert graphs.put_edge_index((row[WRITES], col[WRITES]), edge_type=WRITES, layout=layout, size=(120, 300))
        row, col, _ = graphs.coo()
        by_layout[layout] = sorted(zip(row[WRITES].tolist(), col[WRITES].tolist()))
        assert graphs.remove_edge_index(edge_type=WRITES, layout="csc") and not graphs.get_all_edge_attrs()
        with pytest.raises(KeyError):
            graphs.get_edge_index(edge_type=WRITES, layout="csc")
    assert by_layout["coo"] == by_layout["csc"] == by_layout["csr"] == sorted(map(tuple, index.t().tolist()))


def test_what_does_not_fit_is_named(homogeneous, hetero):
    with pytest.raises(TypeError, match="expected a Data, HeteroData"):
        pyg.NeighborSampler(5, [1])
    with pytest.raises(TypeError, match="num_neighbors: expected a list or a dict"):
        pyg.NeighborSampler(homogeneous, 5)
    with pytest.raises(NotImplementedError, match="expected directional or bidirectional"):
        pyg.NeighborSampler(homogeneous, [1], subgraph_type="induced")
    with pytest.raises(ValueError, match="expected `edge_index`"):
        pyg.NeighborSampler(Data(x=homogeneous.x), [1])
    with pytest.raises(TypeError, match="did you mean 'num_neighbors'"):
        pyg.NeighborSampler(homogeneous, num_neighbor=[1])
    with pytest.raises(NotImplementedError, match="times of nodes are not looked at"):
        pyg.NeighborSampler(homogeneous, [1]).sample_from_nodes(
            NodeSamplerInput(None, torch.arange(2), time=torch.arange(2))
        )
    with pytest.raises(ValueError, match="expected seeds of a type of"):
        pyg.NeighborSampler(hetero, [1]).sample_from_nodes(NodeSamplerInput(None, torch.arange(2)))
    with pytest.raises(ValueError, match=r"seeds\[1\]: 300 is no node"):
        pyg.NeighborSampler(homogeneous, [1]).sample_from_nodes(NodeSamplerInput(None, torch.tensor([0, 300])))


@pytest.fixture
def file(tmp_path):
    rows = {"paper": torch.randn(300, 4), "author": torch.randn(120, 3)}
    penstock.FeatureStore.write(tmp_path / "two", rows, progress=None)
    penstock.FeatureStore.write(tmp_path / "one", {"paper": rows["paper"]}, progress=None)
    return tmp_path


def test_hints_of_features(homogeneous, hetero, file):
    def hints(data, store, features, seeds=None):
        before = store.stats().hints
        sampler = pyg.NeighborSampler(data, [3], seed=1, features=features)
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(300), input_type=seeds))
        return store.stats().hints - before

    one, two = (penstock.FeatureStore.open(file / name, ram="1MB") for name in ("one", "two"))
    assert hints(homogeneous, one, one) == 1
    assert hints(homogeneous, two, two["paper"]) == 1
    assert hints(homogeneous, one, pyg.FeatureStore(one)) == 1
    assert hints(homogeneous, two, pyg.FeatureStore(two, attrs={(None, "x"): "paper"})) == 1
    assert hints(hetero, two, two, "paper") >= 1
    assert hints(hetero, two, pyg.FeatureStore(two), "paper") >= 1
    # By default only fitting tables of the data are hinted: a wrong hint is no error.
    data = (pyg.FeatureStore(two), pyg.GraphStore(Graph.from_edges(homogeneous.edge_index, 300)))
    assert hints(data, two, None) == 1
    sampler = pickle.loads(pickle.dumps(pyg.NeighborSampler(homogeneous, [3], features=two["paper"])))
    sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(300)))


def test_features_that_cannot_be_those_of_the_nodes(homogeneous, hetero, file):
    two = penstock.FeatureStore.open(file / "two", ram="1MB")
    for data, features, error, why in (
        (homogeneous, two, ValueError, r"nodes of one type, .* tables of \['paper', 'author'\]; give one table, store"),
        (homogeneous, pyg.FeatureStore(two), ValueError, "nodes of one type, .* give one table"),
        (homogeneous, two["author"], ValueError, "this table has 120 rows, and the graph has 300 nodes; give"),
        (hetero, two["paper"], ValueError, "several types .*; give its store"),
        (hetero, pyg.FeatureStore(two, attrs={("x", "x"): "paper"}), ValueError, r"got tables of \['x'\]; give a pyg"),
        (
            hetero,
            pyg.FeatureStore(two, attrs={("paper", "x"): "author"}),
            ValueError,
            "300 nodes of type 'paper'; give",
        ),
        (homogeneous, {"paper": 1}, TypeError, "expected a penstock.FeatureStore, a table of one, or a pyg"),
    ):
        with pytest.raises(error, match=f"NeighborSampler: features: .*{why}"):
            pyg.NeighborSampler(data, [3], features=features)


def test_a_child_of_fork_samples(homogeneous):
    sampler = pyg.NeighborSampler(homogeneous, [5], seed=1)
    inputs = NodeSamplerInput(None, torch.arange(10))
    expected = sampler.sample_from_nodes(inputs).node
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(sampler.sample_from_nodes(inputs).node, expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_attributes_of_edges_are_refused_and_gathered_by_what_is_advised(hetero):
    values = torch.arange(1500.0).view(-1, 1)
    tables, features, graphs = stores_of(hetero)
    tables.tables["cites"] = values
    for attrs in ({("paper", "x"): "paper", (CITES, "edge_attr"): "cites"}, {(None, "edge_weight"): "cites"}):
        with pytest.raises(ValueError, match=r"edge_.*attributes of edges.*transform="):
            pyg.FeatureStore(tables, attrs=attrs)
    with pytest.raises(ValueError, match=r"put_tensor: .*attributes of edges"):
        features.put_tensor(values, group_name=CITES, attr_name="edge_attr", index=None)

    def with_edges(batch):
        batch[CITES].edge_attr = values[batch[CITES].e_id]
        return batch

    sampler = pyg.NeighborSampler((features, graphs), [4, 3])
    for batch in NodeLoader(
        (features, graphs), sampler, ("paper", torch.arange(300)), batch_size=100, transform=with_edges
    ):
        assert torch.equal(batch[CITES].edge_attr.view(-1).long(), batch[CITES].e_id)
