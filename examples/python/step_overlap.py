# SPDX-License-Identifier: Apache-2.0
"""Saves a training state in every step, with the write hidden behind forward and backward; prints what it cost.

python examples/python/step_overlap.py [FOLDER] [STEPS]
"""

import statistics
import sys
import time

import penstock
import torch


def training(width=512, batch=1024):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.GELU(), torch.nn.Linear(width, width)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randn(batch, width)

    def step():
        loss = (model(data) - data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, optimizer, step


def timed(step, count):
    times = []
    for _ in range(count):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main(folder, steps):
    model, optimizer, step = training()
    timed(step, 3)
    plain = timed(step, steps)

    def state():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}

    with penstock.CheckpointStore(folder, keep=2) as store:
        with penstock.StepOverlap(store, optimizer, state) as overlap:
            timed(step, 1)  # the first save makes the folder and takes the lock
            overlap.stall_s = 0.0
            saving = timed(step, steps)
        size = store.latest().tensor_bytes
        print(f"{overlap.saves} saves of {size / 1e6:.1f} MB, one in every step, {overlap.failures} failed")
        print(f"a step: {plain * 1e3:.1f} ms without saves, {saving * 1e3:.1f} ms with them")
        print(f"stall: {overlap.stall_s / steps * 1e3:.2f} ms a step, the rest was hidden")

        saved = store.load()
        for name, tensor in model.state_dict().items():
            assert torch.equal(saved["model"][name], tensor), name
        print(f"the newest checkpoint, of step {overlap.step}, is the model, bit for bit")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "checkpoints", int(sys.argv[2]) if len(sys.argv) > 2 else 12)
