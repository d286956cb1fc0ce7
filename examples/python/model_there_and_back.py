# SPDX-License-Identifier: Apache-2.0
"""Every parameter of a torch model in one file: one transfer there, one transfer back.

python examples/python/model_there_and_back.py [FILE]
"""

import itertools
import sys

import penstock
import torch


def layout(model):
    """Tensors and where each of them begins, one after the other."""
    tensors = [*model.parameters(), *model.buffers()]
    ends = list(itertools.accumulate(t.nbytes for t in tensors))
    return tensors, [0, *ends[:-1]]


def main(path):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.BatchNorm1d(1024)).to(torch.bfloat16)
    tensors, offsets = layout(model)
    with penstock.File(path, "rw", truncate=True) as file:
        moved = penstock.write(file, tensors, offsets, sync=True)
        print(f"{len(tensors)} tensors, {moved} bytes to {path}")

        torch.manual_seed(2)
        other = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.BatchNorm1d(1024)).to(torch.bfloat16)
        penstock.read(file, layout(other)[0], offsets)
    for mine, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    print("the same, bit for bit")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "model.bin")
