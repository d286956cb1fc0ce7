# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer on the CPU, and goes on where it was when it is started again.

    python resumable_training.py --folder checkpoints --steps 200 --every 5 --losses losses.jsonl

Kill it at any moment and start it again with the same words: the losses are, number for number, those of a run that
nobody killed. What that takes is all in `Training.state()`: the model, the optimizer, both generators of random
numbers that are used, the order of the data and the place in it. penstock.CheckpointStore does the rest: each
checkpoint is there wholly and durably, or not at all, and saving does not stop the training.

The losses go to a file, a line a step, and so do the resumes: train_and_kill.py compares them.
"""

import argparse
import json
import random
from pathlib import Path

import penstock
import torch

CONTEXT = 32
BATCH = 8


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width), torch.nn.Dropout(0.1)
        )
        self.register_buffer("mask", torch.triu(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool), 1), persistent=False)

    def forward(self, x):
        y = self.norm_1(x)
        x = x + self.attention(y, y, y, attn_mask=self.mask, need_weights=False)[0]
        return x + self.mlp(self.norm_2(x))


class Transformer(torch.nn.Module):
    """Guesses the next byte of a text."""

    def __init__(self, width=64, blocks=2):
        super().__init__()
        self.bytes = torch.nn.Embedding(256, width)
        self.places = torch.nn.Embedding(CONTEXT, width)
        self.blocks = torch.nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.out = torch.nn.Linear(width, 256)

    def forward(self, text):
        return self.out(self.blocks(self.bytes(text) + self.places.weight))


class Training:
    """Everything that the next step depends on."""

    def __init__(self, seed):
        torch.manual_seed(seed)  # weights, and the dropout of every step
        self.order = random.Random(seed)  # the order of the data
        self.model = Transformer()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, 1.0, 20)
        self.text = torch.tensor(list(Path(__file__).read_bytes()))
        self.windows = []  # of this epoch, those that are still to come
        self.done = 0

    def step(self):
        batch = [self._window() for _ in range(BATCH)]
        inputs = torch.stack([self.text[at : at + CONTEXT] for at in batch])
        wanted = torch.stack([self.text[at + 1 : at + CONTEXT + 1] for at in batch])
        loss = torch.nn.functional.cross_entropy(self.model(inputs).flatten(0, 1), wanted.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.done += 1
        return loss.item()

    def _window(self):
        if not self.windows:
            self.windows = list(range(0, len(self.text) - CONTEXT - 1, CONTEXT // 2))
            self.order.shuffle(self.windows)
        return self.windows.pop()

    def state(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "torch_random": torch.get_rng_state(),
            "order_random": self.order.getstate(),
            "windows": self.windows,
            "done": self.done,
        }

    def resume(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["torch_random"])
        self.order.setstate(state["order_random"])
        self.windows = state["windows"]
        self.done = state["done"]


def train(folder, steps, every, losses, seed):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    training = Training(seed)
    with penstock.CheckpointStore(folder, keep=3) as store, open(losses, "a", buffering=1) as log:
        if store.latest() is not None:
            training.resume(store.load())
        log.write("\n" + json.dumps({"from": training.done}) + "\n")  # a line of its own, whatever a kill has left
        while training.done < steps:
            loss = training.step()
            log.write(json.dumps({"step": training.done, "loss": loss.hex()}) + "\n")
            if training.done % every == 0 or training.done == steps:
                # Returns when the tensors may change again; the write continues during the next steps. Should it fail,
                # the next save raises it, and at the latest the end of `with`.
                store.save_async(training.state(), step=training.done)
        store.wait()
        print(f"step {training.done} is done; checkpoints of steps {[info.step for info in store.list()]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="checkpoints", help="of the checkpoints (default: checkpoints)")
    parser.add_argument("--steps", type=int, default=200, help="until so many are done (default: 200)")
    parser.add_argument("--every", type=int, default=5, help="steps from one checkpoint to the next (default: 5)")
    parser.add_argument("--losses", default="losses.jsonl", help="a line a step (default: losses.jsonl)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    train(arguments.folder, arguments.steps, arguments.every, arguments.losses, arguments.seed)


if __name__ == "__main__":
    main()
