# SPDX-License-Identifier: Apache-2.0
"""Processes that read what others replace meanwhile: a store with keep=1, an index with two writers, a file with two.

Each read gives one whole state, of a step that a writer has written, and never goes back to an earlier one. Stock torch
reads the file, stock safetensors the shards of the index.
"""

import os
import time
import warnings

import penstock
import torch

from tests.attack.crowd import in_processes
from tests.attack.files import a_store
from tests.attack.kills import LEFT_BEHIND

ROUND_S = 4
LAYERS = 8
PATIENCE_S = 30


def state_of(step):
    return {f"l{i}": torch.full((20_000,), float(step if i % 2 else step // 4)) for i in range(LAYERS)} | {
        "n": torch.tensor(step)
    }


class Scene:
    def __init__(self, run):
        self.run = run
        self.end = time.monotonic() + run.left(ROUND_S)
        self.store = f"{run.folder}/store"
        self.index = f"{run.folder}/index/m.safetensors.index.json"
        self.file = f"{run.folder}/one.pt"
        os.mkdir(f"{run.folder}/index")

    def turns(self, ready):
        """Until the time is over, once there is something to read."""
        begun = time.monotonic()
        while not ready() and time.monotonic() < begun + PATIENCE_S:
            time.sleep(0.01)
        turn = 0
        while time.monotonic() < self.end or not turn:
            turn += 1
            yield turn

    def check(self, state, what, names=None):
        step = int(state["n"])
        for name, wanted in state_of(step).items():
            if names is None or name in names:
                self.run.check(torch.equal(wanted, state[name]), f"wrong bytes: {what}: {name} is not of step {step}")
        return step

    # ---- a store

    def store_is_there(self):
        with a_store(self.store) as store:
            return store.latest() is not None

    def write_store(self):
        step = 0
        with a_store(self.store, keep=1, shard_bytes=200_000) as store:
            while time.monotonic() < self.end:
                step += 1
                if step % 5 == 0:
                    store.save_async(state_of(step), step=step)
                else:
                    store.save(state_of(step), step=step)
        return step

    def read_store(self, kind):
        done = last = 0
        with a_store(self.store) as store, self.run.never(OSError, what=f"{kind} of a store that is saved to"):
            for _ in self.turns(self.store_is_there):
                step = getattr(self, kind)(store)
                self.run.check(step is None or step >= last, f"{kind}: step {step} after {last}")
                last = step or last
                done += 1
        return done

    def load(self, store):
        return self.check(store.load(), "load")

    def latest(self, store):
        info = store.latest()
        self.run.check(info is not None, "latest() is None, and a checkpoint was there")
        return info.step

    def list(self, store):
        for info in store.list():
            self.run.check(not info.problem, f"list: {info}")

    def names(self, store):
        self.check(store.load(names=["l3", "l4", "n"]), "names", ("l3", "l4"))

    def into(self, store):
        target = state_of(0)
        store.load(into=target)
        return self.check(target, "into")

    def opened(self, store):
        """One that is open stays whole while it is removed; one that is gone before is not found."""
        try:
            checkpoint = store.open(store.latest().generation)
        except (OSError, ValueError):
            return
        with checkpoint:
            time.sleep(0.02)
            self.check(
                {name: checkpoint[name][:] if name != "n" else checkpoint[name][()] for name in checkpoint}, "open"
            )

    # ---- an index, and a file

    def write_index(self):
        step = 0
        while time.monotonic() < self.end:
            step += 1
            penstock.save(state_of(step), self.index, shard_bytes=200_000)
        return step

    def read_index(self):
        done = 0
        with self.run.never(OSError, what="a load of an index that is replaced"):
            for _ in self.turns(lambda: os.path.exists(self.index)):
                self.check(penstock.load(self.index), "an index")
                done += 1
        return done

    def write_file(self):
        step = 0
        while time.monotonic() < self.end:
            step += 1
            penstock.save(state_of(step), self.file, sync=step % 3 == 0)
        return step

    def read_file(self):
        done = 0
        with self.run.never(OSError, what="a load of a file that is replaced"):
            for turn in self.turns(lambda: os.path.exists(self.file)):
                load = [penstock.load, lambda path: penstock.load(path, mmap=True), torch.load][turn % 3]
                self.check(load(self.file), "a file")
                done += 1
        return done


def attack(run):
    scene = Scene(run)
    kinds = ["load", "latest", "list", "opened", "names", "into"]
    scenes = [
        [scene.write_store, *(lambda kind=kind: scene.read_store(kind) for kind in kinds)],
        [scene.write_index, scene.write_index, scene.read_index, scene.read_index],
        [scene.write_file, scene.write_file, scene.read_file],
    ]

    def quiet(function):
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        return function()

    chosen = scenes[run.round % len(scenes)]
    run.note("scene", run.round % len(scenes))
    for answer in in_processes([lambda f=function: quiet(f) for function in chosen], ROUND_S + PATIENCE_S):
        run.count("reads and saves", int(answer))
    found = [
        name
        for folder, folders, files in os.walk(run.folder)
        for name in folders + files
        if name.startswith(LEFT_BEHIND) or name.endswith(".tmp")
    ]
    run.check(not found, f"left behind by writers that have ended: {found}")
