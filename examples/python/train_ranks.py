# SPDX-License-Identifier: Apache-2.0
"""Trains a model that FSDP2 cuts over ranks, and saves it in the background. Started again with more or fewer ranks, it
goes on where the newest checkpoint ends, also if a rank was killed in the middle of a save.

    torchrun --standalone --nproc-per-node 4 train_ranks.py checkpoints --steps 100
    torchrun --standalone --nproc-per-node 3 train_ranks.py checkpoints --steps 200
"""

import argparse

import penstock
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def make_model():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def train_step(model, optimizer, step):
    torch.manual_seed(1000 + step)  # every rank has the same data, so that the losses do not depend on their number
    data = torch.randn(32, 64)
    loss = (model(data) - data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of the checkpoints: the same on all ranks")
    parser.add_argument("--steps", type=int, default=100, help="number of the last step (default: 100)")
    parser.add_argument("--every", type=int, default=5, help="steps from one save to the next (default: 5)")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train_step(model, optimizer, 0)  # makes the moments, which the load fills

    def state():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}

    step = 0
    with penstock.CheckpointStore(args.folder, keep=2, ranks=penstock.Ranks.torch(), rank_wait_s=60) as store:
        if newest := store.latest():
            loaded = store.load(into=state(), generation=newest.generation)
            model.load_state_dict(loaded["model"])
            optimizer.load_state_dict(loaded["optimizer"])
            step = loaded["step"]
            print(f"rank {rank} of {dist.get_world_size()} goes on at step {step}", flush=True)
        while step < args.steps:
            step += 1
            loss = train_step(model, optimizer, step)
            if rank == 0:
                print(f"step {step}: loss {loss:.6f}", flush=True)
            if step % args.every == 0:
                store.save_async(state(), step=step)
        store.wait()
        if rank == 0:
            print(f"saved {store.latest().path}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
