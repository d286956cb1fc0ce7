# SPDX-License-Identifier: Apache-2.0
"""A frozen embedding table in a torch.nn.Module, whose rows stay in a file.

python examples/python/frozen_embedding.py [FILE]
"""

import os
import sys

import penstock
import torch


class FrozenEmbedding(torch.nn.Module):
    """torch.nn.Embedding of a table that is not trained and need not fit into memory. The table is no parameter:
    neither state_dict() nor the optimiser has it."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, ids):
        return self.table.gather(ids.cpu()).to(ids.device)


def main(path):
    torch.manual_seed(1)
    weights = torch.randn(20_000, 64)
    penstock.FeatureStore.write(path, {"embedding": weights}, progress=None)
    with penstock.FeatureStore.open(path) as store:
        head = torch.nn.Linear(64, 10)
        model = torch.nn.Sequential(FrozenEmbedding(store["embedding"]), head)
        expected = torch.nn.Sequential(torch.nn.Embedding.from_pretrained(weights), head)
        ids = torch.randint(20_000, (8, 32))
        assert torch.equal(model(ids), expected(ids))
        model(ids).sum().backward()
        assert head.weight.grad is not None and list(model.state_dict()) == ["1.weight", "1.bias"]
        print(f"{ids.numel()} rows of {tuple(store['embedding'].shape)}: the same as torch.nn.Embedding, bit for bit")
    os.remove(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "embedding.features")
