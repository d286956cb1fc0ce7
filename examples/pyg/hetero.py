# SPDX-License-Identifier: Apache-2.0
"""A heterogeneous GraphSAGE on the CPU, with papers and authors in one feature file and the graphs in mapped files.

python examples/pyg/hetero.py [FOLDER]
"""

import os
import sys

import numpy as np
import penstock
import torch
from penstock.features import Graph, pyg, zipf_rows
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import HeteroConv, SAGEConv

NODES = {"paper": 5000, "author": 2000}
EDGES = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "written_by", "author")]
CHANNELS, CLASSES = 32, 5


class HeteroSage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = HeteroConv({key: SAGEConv((CHANNELS, CHANNELS), 16) for key in EDGES})
        self.second = HeteroConv({key: SAGEConv((16, 16), CLASSES) for key in EDGES})

    def forward(self, x, edges):
        x = {name: rows.relu() for name, rows in self.first(x, edges).items()}
        return self.second(x, edges)["paper"]


def write_graph(folder, number, key):
    """Two .npy files of a graph, which Graph.open() maps."""
    ends = [zipf_rows(NODES[name], 0.6, 20_000, seed=number, batch=i) for i, name in enumerate((key[0], key[2]))]
    graph = Graph.from_edges(ends, (NODES[key[0]], NODES[key[2]]))
    paths = [os.path.join(folder, f"{'_'.join(key)}.{part}.npy") for part in ("indptr", "indices")]
    np.save(paths[0], graph.indptr)
    np.save(paths[1], graph.indices)
    return paths


def main(folder):
    torch.manual_seed(0)
    rows = {name: torch.randn(count, CHANNELS) for name, count in NODES.items()}
    path = os.path.join(folder, "hetero.features")
    penstock.FeatureStore.write(path, rows, progress=None)
    files = {key: write_graph(folder, number, key) for number, key in enumerate(EDGES)}
    graphs = pyg.GraphStore(
        {key: Graph.open(*paths, sources=NODES[key[0]], mapped=True) for key, paths in files.items()}
    )
    with penstock.FeatureStore.open(path) as store:
        features = pyg.FeatureStore(store)
        features.put_tensor(torch.randint(CLASSES, (NODES["paper"],)), group_name="paper", attr_name="y", index=None)
        sampler = pyg.NeighborSampler((features, graphs), {key: [8, 4] for key in EDGES}, seed=1)
        loader = NodeLoader((features, graphs), sampler, ("paper", torch.arange(2000)), batch_size=100, shuffle=True)
        model = HeteroSage()
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for batch in loader:
            for name in NODES:
                assert torch.equal(batch[name].x, rows[name][batch[name].n_id])
            out = model(batch.x_dict, batch.edge_index_dict)[: batch["paper"].batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch["paper"].y[: len(out)])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        stats = store.stats()
        print(f"loss {loss.item():.4f}; {stats.rows} rows in {stats.gathers} gathers, each of both types at once")
    for name in [path, *(name for paths in files.values() for name in paths)]:
        os.remove(name)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
