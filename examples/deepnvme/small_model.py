# SPDX-License-Identifier: Apache-2.0
"""A small transformer in plain torch, made on the spot, and the runs of a script on several engines side by side."""

import json
import os
import socket
import subprocess
import sys
import time

import torch
from torch import nn

VOCABULARY = 512


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        mixed = nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.before_mlp(x))))


class Transformer(nn.Module):
    """tokens [batch, length] -> the loss of guessing `targets`, or without them logits [batch, length, VOCABULARY]."""

    def __init__(self, width=512, layers=2, length=64):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads=width // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens, targets=None):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def one_process():
    """What a launcher would put into the environment, for a process that is alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in alone.items():
        os.environ.setdefault(name, str(value))
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def without_shared_memory_op():
    """Keeps DeepSpeed from compiling deepspeed_shm_comm, minutes of work for collectives that run without it too."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def bytes_moved():
    """What Penstock's engine has read and written in this process, in bytes; None where it is not in use."""
    penstock = sys.modules.get("penstock")
    if penstock is None:
        return None
    stats = penstock.default_engine().stats()
    return {"read": stats.bytes_read, "written": stats.bytes_written}


def run_sides(script, arguments, what):
    """Runs the script in memory, on DeepSpeed's op, and on Penstock and shows `what` each found; 0 when it is the same.

    The script is the same in all three: Penstock's run only begins with `python -m penstock.deepnvme`.
    """
    sides = {
        "in memory": [sys.executable, script, "--store=memory"],
        "DeepSpeed's op": [sys.executable, script, "--store=nvme"],
        "Penstock": [sys.executable, "-m", "penstock.deepnvme", script, "--store=nvme"],
    }
    found = {}
    for name, command in sides.items():
        print(f"{name}: {' '.join([*command, *arguments])}", flush=True)
        start = time.perf_counter()
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        if done.returncode:
            print(f"  ended with {done.returncode}:\n{(done.stderr or done.stdout)[-800:]}")
            if name == "DeepSpeed's op":
                print("  (it needs a compiler, ninja and libaio's headers; the others do not)")
                continue
            return 1
        result = json.loads(done.stdout.splitlines()[-1])
        found[name] = result[what]
        print(f"  {what}: {result[what]}\n  moved by Penstock: {result['moved']}   {time.perf_counter() - start:.1f} s")
    equal = all(value == found["in memory"] for value in found.values())
    print(f"{what} of {', '.join(found)}: {'equal' if equal else 'NOT EQUAL'}")
    return 0 if equal else 1
