# SPDX-License-Identifier: Apache-2.0
"""Memory of loads: tensors of random sizes, freed in random order between loads, keep their bytes while they live.

Each tensor is filled with one byte, so what it holds is known without a copy. Sizes lie around the limits of the
memory of loads: a line, a page, 64 KiB, 1 MiB, and 32 and 64 MiB together. Parts of weights of MiB with short ones
between them come often: several of them meet in one page.
"""

import os
import random
import shutil
import threading

import numpy as np
import penstock
import torch

from tests.attack.crowd import in_threads
from tests.attack.files import write_tensors
from tests.attack.run import Wrong

KINDS = ["safetensors", "safetensors", "safetensors", "torch", "torch", "pt", "own", "index", "store"]
KIB, MIB = 1 << 10, 1 << 20
LIMITS = [64, 4 * KIB, 8 * KIB, 64 * KIB, MIB, 2 * MIB]
STEPS = 40
ENDS = 8 * KIB
KEPT_MAX = 40
THREADS_S = 2
THREAD_TURNS = 8


def size(r):
    return r.choice(
        [
            lambda: r.randrange(1, 3000),
            lambda: r.randrange(1, 9000),
            lambda: r.choice(LIMITS) + r.choice([-1, 0, 0, 1, r.randrange(5000)]),
            lambda: MIB + r.randrange(5000),
            lambda: r.randrange(1, 3 * MIB),
        ]
    )()


def sizes(r):
    """Of the tensors of a file, most of them at most 2, 6 or 20 MiB together."""
    most = r.choice([2, 6, 6, 20]) * MIB
    wanted = [size(r) for _ in range(r.choice([1, 3, 8, 20, 60]))]
    if r.random() < 0.4:  # weight, bias, weight, two of them in every page
        wanted = [n for _ in range(r.randrange(1, 6)) for n in (MIB + r.randrange(3 * KIB), r.randrange(1, 2 * KIB))]
    if r.random() < 0.07:
        wanted[:1] = [33 * MIB + r.randrange(10_000)]  # a large load
    found = []
    for n in wanted:
        if sum(found) + n <= max(most, n):
            found.append(n)
    return found


class Alive:
    """Tensors of loads that the program still holds, and the byte that each is filled with."""

    def __init__(self, run):
        self.run = run
        self.held = []
        self.lock = threading.Lock()

    def add(self, r, name, tensor, byte):
        """A tensor, or a view of a piece of it while the tensor itself is dropped."""
        self.run.check(tensor.numel() == 0 or int(tensor[0]) == byte, f"{name}: wrong bytes right after the load")
        if r.random() < 0.2:
            begin = r.randrange(tensor.numel())
            tensor = tensor[begin : begin + r.randrange(1, tensor.numel() + 1)]
        with self.lock:
            self.held.append((name, tensor, byte))

    def free(self, r):
        """Some, many, or all but a few."""
        with self.lock:
            dropped = []
            keep = min(KEPT_MAX, r.choice([0, 3, r.randrange(len(self.held) + 1), len(self.held) * 3 // 4]))
            self.run.note("free", len(self.held) - keep, "of", len(self.held))
            while len(self.held) > keep:
                dropped.append(self.held.pop(r.randrange(len(self.held))))
        self.run.count("frees", len(dropped))

    def check(self, all_of_it=False):
        """Mostly the ends of each, and some bytes of every page."""
        with self.lock:
            held = list(self.held)
        for name, tensor, byte in held:
            parts = [tensor]
            if not all_of_it and len(tensor) > 4 * ENDS:
                parts = [tensor[:ENDS], tensor[-ENDS:], tensor[::500]]
            if all(bool((part == byte).all()) for part in parts):
                continue
            wrong = (tensor != byte).nonzero().flatten()
            raise Wrong(
                f"wrong bytes in {name}, which is alive: {len(wrong)} of {tensor.numel()}, the first at "
                f"{int(wrong[0])}, {int(tensor[wrong[0]])} for {byte}; it begins {tensor.data_ptr() % 4096} bytes "
                "into a page"
            )


def load_some(run, r, alive, number):
    """A file of random tensors, loaded once or twice, whole or by names, or into memory that is there."""
    kind = r.choice(KINDS)
    lengths = sizes(r)
    values = {f"k{i:03}": r.randrange(1, 256) for i in range(len(lengths))}
    tensors = {
        name: torch.full((length,), value, dtype=torch.uint8) for (name, value), length in zip(values.items(), lengths)
    }
    run.note("load", kind, lengths)
    folder = f"{run.folder}/{number}"
    os.mkdir(folder)
    load = write_tensors(kind, tensors, folder, "t")
    for _ in range(r.choice([1, 1, 2])):
        how = r.choice(["whole", "whole", "whole", "names", "into", "mmap"])
        if how == "names":
            loaded = load(names=[name for name in values if r.random() < 0.6] or ["k000"])
        elif how == "into":
            loaded = load(into={name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
        elif how == "mmap" and kind in ("safetensors", "torch", "pt"):
            loaded = load(mmap=True)
        else:
            loaded = load()
        run.count("loads")
        names = list(loaded)
        r.shuffle(names)
        for name in names:
            alive.add(r, f"{name} of a load of {kind} ({how}, step {run.step})", loaded.pop(name), values[name])
    shutil.rmtree(folder)  # mapped files stay, without a name


def other_memory(run, r, alive):
    """Memory of other places that keep it: buffers, and rows that are gathered."""
    byte = r.randrange(1, 256)
    if r.random() < 0.5:
        buffer = penstock.empty(r.choice([100, 5000, 70_000, MIB, 5 * MIB]), pinned=False).numpy()
        buffer[:] = byte
        alive.add(r, "a buffer of penstock.empty", torch.from_numpy(buffer), byte)
    else:
        path = f"{run.folder}/rows{threading.get_ident()}.npy"
        np.save(path, np.full((2000, 512), byte, np.uint8))
        with penstock.FeatureStore.open(path) as store:
            (table,) = store.tables
            rows = store[table].gather(np.array([r.randrange(2000) for _ in range(r.choice([1, 50, 1900]))]))
        alive.add(r, "gathered rows", torch.from_numpy(rows).flatten(), byte)
    run.note("other memory", byte)


def act(run, r, alive, number):
    if r.random() < 0.85:
        load_some(run, r, alive, number)
    else:
        other_memory(run, r, alive)
    alive.check()
    for _ in range(2):
        alive.free(r)
        alive.check()


def attack(run):
    alive = Alive(run)
    if run.round % 4 == 3:
        seconds = run.left(THREADS_S)
        seeds = [run.random.getrandbits(32) for _ in range(3)]

        def work(k):
            r = random.Random(seeds[k])
            for turn in range(THREAD_TURNS):
                if run.over():
                    return
                act(run, r, alive, f"{k}-{turn}")

        in_threads([lambda k=k: work(k) for k in range(3)], seconds)
    else:
        for step in run.steps(STEPS):
            act(run, run.random, alive, step)
    alive.check(all_of_it=True)
