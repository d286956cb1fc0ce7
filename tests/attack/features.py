# SPDX-License-Identifier: Apache-2.0
"""FeatureStore against indexing by NumPy: types, shapes, stripes, .npy, tiers of memory, policies, hints, wrong ids."""

import math
import os
import pickle

import numpy as np
import penstock
import torch

STEPS = 60
GUARD = 0xA5
DTYPES = ["float32", "float16", "int8", "uint8", "int64", "float64", "bool"]
WIDTHS = [(), (1,), (3,), (7, 5), (100,), (128,), (1024,), (1000,), (300_000,)]
TABLE_NUMBERS_MAX = 3_000_000
POLICIES = ["window", "s3fifo", "clock", "static"]
NOT_IDS = [
    np.array([0.0, 1.0]),
    np.array(["a"]),
    np.array([True, False]),
    torch.tensor([0.5]),
    [0.5],
    [None],
    "ab",
    1.5,
]


def tables(run):
    r = run.random
    found = {}
    for number in range(r.choice([1, 1, 2, 3])):
        dtype, width = r.choice(DTYPES), r.choice(WIDTHS)
        rows = max(1, min(r.choice([1, 2, 17, 1000, 5000, 20_000]), TABLE_NUMBERS_MAX // math.prod(width)))
        found[f"t{number}"] = run.numbers.integers(0, 2 if dtype == "bool" else 100, (rows, *width)).astype(dtype)
    return found


def options(run, arrays):
    r = run.random
    total = sum(array.nbytes for array in arrays.values())
    found = {}
    if r.random() < 0.75:
        found["ram"] = r.choice(["auto", max(1, total // 10), max(4096, total // 3), total * 2, 1, 4096, 100_000])
        found["policy"] = r.choice(POLICIES)
        if r.random() < 0.4:
            found["hot"] = {
                name: run.numbers.integers(0, len(array), min(len(array), r.choice([0, 1, 100])))
                for name, array in arrays.items()
            }
    return found


def as_ids(r, ids):
    return r.choice(
        [
            lambda: ids,
            lambda: ids.astype(np.int32),
            lambda: ids.astype(np.uint64),
            lambda: ids.astype(np.uint32),
            lambda: torch.from_numpy(ids.copy()),
            lambda: ids.tolist(),
            lambda: torch.from_numpy(ids.astype(np.int32)),
            lambda: ids.reshape(2, -1) if len(ids) % 2 == 0 else ids,
        ]
    )()


class Scene:
    def __init__(self, run):
        self.run = run
        self.arrays = tables(run)
        self.path = f"{run.folder}/store"
        r = run.random
        folders = {}
        if r.random() < 0.3:
            folders["folders"] = [f"{run.folder}/part{i}" for i in range(r.choice([1, 2, 3]))]
            for folder in folders["folders"]:
                os.makedirs(folder)
        npy = len(self.arrays) == 1 and not folders and r.random() < 0.3
        if npy:
            self.path += ".npy"
            np.save(self.path, self.arrays["t0"])
        else:
            penstock.FeatureStore.write(self.path, self.arrays, progress=None, sync=False, **folders)
        self.options = options(run, self.arrays)
        run.note("open", "npy" if npy else len(folders.get("folders", [])), self.shapes(), self.options)
        self.store = self.open()
        if npy and self.store is not None:
            self.arrays = {next(iter(self.store.tables)): self.arrays["t0"]}
        self.hinted = []
        self.futures = []

    def shapes(self):
        return {name: (array.shape, array.dtype.name) for name, array in self.arrays.items()}

    def open(self):
        """None where the memory is too small for the options, which is an error that says so."""
        try:
            store = penstock.FeatureStore.open(self.path, **self.options)
        except (ValueError, MemoryError):
            self.run.check("hot" in self.options or self.options.get("ram") in (1, 4096), "a store does not open")
            return None
        return pickle.loads(pickle.dumps(store)) if self.run.chance(0.15) else store

    def batch(self, array):
        r, numbers = self.run.random, self.run.numbers
        count = min(r.choice([0, 1, 2, 10, 300, 3000]), max(1, 3_000_000 // max(1, array[0].nbytes)))
        kind = r.randrange(4)
        if kind == 1:
            return np.minimum(numbers.zipf(1.3, count) - 1, len(array) - 1).astype(np.int64)
        if kind == 3:
            return (r.randrange(len(array)) + np.arange(count)) % len(array)
        ids = numbers.integers(0, len(array), count)
        return np.sort(ids) if kind == 2 else ids

    def expect(self, got, wanted, what):
        got = got.numpy() if isinstance(got, torch.Tensor) else got
        alike = got.shape == wanted.shape and got.dtype == wanted.dtype
        self.run.check(alike, f"{what}: {got.shape} {got.dtype}, and {wanted.shape} {wanted.dtype} is expected")
        got, wanted = (np.frombuffer(array.tobytes(), np.uint8) for array in (got, wanted))
        self.run.equal_bytes(got, wanted, what)

    def hint(self, name):
        r = self.run.random
        for _ in range(r.choice([1, 3, 40])):
            ids = self.batch(self.arrays[name])
            self.hinted.append((name, ids))
            self.store[name].hint(as_ids(r, ids))
        del self.hinted[:-40]

    def next_batch(self):
        """Of what was hinted, mostly in its order, or something else."""
        r = self.run.random
        if self.hinted and r.random() < 0.5:
            return self.hinted.pop(r.randrange(len(self.hinted)) if r.random() < 0.3 else 0)
        name = r.choice(list(self.arrays))
        return name, self.batch(self.arrays[name])

    def gather(self):
        r = self.run.random
        name, chosen = self.next_batch()
        table, array = self.store[name], self.arrays[name]
        ids = as_ids(r, chosen)
        shape = tuple(ids.shape) if hasattr(ids, "shape") else (len(ids),)
        wanted = array[chosen].reshape(*shape, *array.shape[1:])
        how = r.choice(["plain", "out", "async", "all"])
        what = f"gather ({how}) of {len(chosen)} rows of {name}"
        self.run.note(what, type(ids).__name__, getattr(ids, "dtype", ""))
        if how == "out":
            self.gather_into(table, ids, wanted, what)
        elif how == "async":
            future = table.gather_async(ids)
            if r.random() < 0.7:
                self.expect(future.result(30), wanted, what)
            elif r.random() < 0.3:
                future.cancel()
            else:
                self.futures.append((future, wanted))
        elif how == "all" and len(self.arrays) > 1:
            batches = {name: self.batch(array) for name, array in self.arrays.items()}
            for name, got in self.store.gather(batches).items():
                self.expect(got, self.arrays[name][batches[name]], f"gather of several tables, {name}")
        else:
            got = table.gather(ids)
            self.run.check(isinstance(got, torch.Tensor) == isinstance(ids, torch.Tensor), f"{what}: another type")
            self.expect(got, wanted, what)
        self.run.count("gathers")

    def gather_into(self, table, ids, wanted, what):
        """Memory at odd places, with guards."""
        r = self.run.random
        whole = np.full(wanted.nbytes + 200, GUARD, np.uint8)
        begin = r.choice([0, 1, 64] if wanted.itemsize == 1 else [0, 64])
        out = whole[begin : begin + wanted.nbytes].view(wanted.dtype).reshape(wanted.shape)
        table.gather(ids, out=torch.from_numpy(out) if isinstance(ids, torch.Tensor) else out)
        outside = np.concatenate([whole[:begin], whole[begin + wanted.nbytes :]])
        self.run.check((outside == GUARD).all(), f"{what}: wrong bytes outside of out")
        self.expect(out, wanted, what)

    def wrong_ids(self):
        """Refused, each of them, and the next gather is right."""
        name = self.run.random.choice(list(self.arrays))
        array = self.arrays[name]
        for number in (-1, len(array), 1 << 40, -(1 << 63), (1 << 63) - 1):
            self.refuses(name, np.array([0, number], np.int64))
        self.refuses(name, np.array([0, 2**64 - 1], np.uint64))
        for ids in NOT_IDS:
            self.refuses(name, ids)

    def refuses(self, name, ids):
        try:
            self.store[name].gather(ids)
        except (ValueError, TypeError):
            return
        self.run.check(False, f"gather takes {ids!r} of {len(self.arrays[name])} rows")

    def wait(self):
        for future, wanted in self.futures:
            self.expect(future.result(30), wanted, "gather_async, some calls later")
        self.futures = []


def attack(run):
    scene = Scene(run)
    if scene.store is None:
        return
    for _ in run.steps(STEPS):
        kind = run.random.random()
        if kind < 0.15:
            scene.hint(run.random.choice(list(scene.arrays)))
        if kind < 0.03:
            penstock.evict(scene.path)
        if kind > 0.97:
            scene.wrong_ids()
        scene.gather()
        if len(scene.futures) > 6:
            scene.wait()
    scene.wait()
    scene.store.close()
