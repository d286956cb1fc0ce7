# SPDX-License-Identifier: Apache-2.0
"""GraphSAGE on the CPU, with the features in a file: the losses are those of rows in memory, bit for bit.

python examples/pyg/graphsage.py [FOLDER]
"""

import os
import sys

import penstock
import torch
from penstock.features import Graph, pyg
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import SAGEConv

SCALE, CHANNELS, CLASSES, FANOUTS = 12, 64, 8, [10, 5]


class Sage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = SAGEConv(CHANNELS, 32), SAGEConv(32, CLASSES)

    def forward(self, x, edges):
        return self.second(self.first(x, edges).relu(), edges)


def train(data, steps=20):
    """The losses of a training. What is drawn follows from the seeds, so two trainings draw the same."""
    torch.manual_seed(1)
    model = Sage()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    sampler = pyg.NeighborSampler(data, FANOUTS, seed=1)
    loader = NodeLoader(data, sampler, torch.arange(1 << SCALE), batch_size=128, shuffle=True)
    losses = []
    for batch, _ in zip(loader, range(steps)):
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main(folder):
    graph = Graph.rmat(SCALE, 8)
    torch.manual_seed(0)
    x, y = torch.randn(graph.destinations, CHANNELS), torch.randint(CLASSES, (graph.destinations,))
    path = os.path.join(folder, "graphsage.features")
    penstock.FeatureStore.write(path, {"x": x}, progress=None)

    row = torch.from_numpy(graph.indices.astype("int64"))
    col = torch.arange(graph.destinations).repeat_interleave(torch.from_numpy(graph.indptr.astype("int64")).diff())
    in_memory = train(Data(x=x, y=y, edge_index=torch.stack([row, col])))

    with penstock.FeatureStore.open(path) as store:
        features = pyg.FeatureStore(store, attrs={(None, "x"): "x"})
        features.put_tensor(y, group_name=None, attr_name="y", index=None)  # labels stay in memory
        from_file = train((features, pyg.GraphStore(graph)))
        print(f"{store.stats().rows} rows gathered from {path}")
    os.remove(path)
    print("losses", *(f"{loss:.4f}" for loss in (from_file[0], from_file[-1])))
    assert from_file == in_memory
    print("the same as with rows in memory, bit for bit")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
