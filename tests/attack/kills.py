# SPDX-License-Identifier: Apache-2.0
"""Lifetimes of a process that saves, each ended by SIGKILL at a random moment. What was acknowledged is there, whole.

The child writes the number of each save that has returned to a pipe. A reader in another process then finds that
state or a later one, in files that stock torch reads too, and each checkpoint that is listed loads and verifies.
"""

import os
import random
import signal
import struct
import time

import penstock
import torch

from tests.attack.crowd import Process
from tests.attack.files import a_store

MODES = ["file", "index", "safetensors", "one", "two", "best"]
LIVES = 8
LAYERS = 24
STEP = struct.Struct("<q")
LEFT_BEHIND = (".unfinished", ".removed")


def state_of(step):
    """Some layers are frozen, some change in every step, some in every third."""
    state = {}
    for i in range(LAYERS):
        value = (i, step // 3 * 100 + i, step * 1000 + i)[i % 3]
        state[f"layer.{i}"] = torch.full((32 + i, 512), float(value))
    return state | {"step": torch.tensor(step)}


def check_state(run, state, what):
    """The step that a whole state is of."""
    step = int(state["step"])
    wanted = state_of(step)
    run.check(set(state) == set(wanted), f"{what}: other names than in step {step}")
    for name, tensor in wanted.items():
        run.check(torch.equal(tensor, state[name]), f"wrong bytes: {what}: {name} is not that of step {step}")
    return step


class Place:
    """Where one kind of save goes, and how it is read."""

    def __init__(self, run, mode):
        self.run = run
        self.mode = mode
        names = {"file": "one.pt", "index": "m.safetensors.index.json", "safetensors": "m.safetensors"}
        self.of_store = mode not in names
        self.path = f"{run.folder}/{names.get(mode, mode)}"
        self.folders = [self.path, f"{run.folder}/second"] if mode == "two" else self.path

    # ---- the child that is killed

    def live(self, first, seed, acknowledge):
        torch.set_num_threads(1)
        r = random.Random(seed)
        (self.live_in_store if self.of_store else self.live_in_file)(first, r, acknowledge)

    def live_in_file(self, step, r, acknowledge):
        while True:
            step += 1
            kind = r.randrange(3)
            if self.mode == "index":
                state = state_of(step)
                given = iter(state.items()) if step % 2 else state  # one after another, or whole
                penstock.save(given, self.path, shard_bytes=300_000)
            elif kind == 0:
                penstock.save(state_of(step), self.path)
            else:
                pending = [penstock.save_async(state_of(step + i), self.path) for i in range(kind)]
                for save in pending:
                    save.result()
                step += kind - 1
            acknowledge(step)

    def live_in_store(self, step, r, acknowledge):
        options = {
            "keep": r.choice([1, 2, 3]),
            "shard_bytes": r.choice([100_000, 400_000, 1 << 28]),
            "incremental": r.random() < 0.8,
        }
        if self.mode == "best":
            options |= {"keep_best": 2, "metric": "loss", "keep_every": 7}
        with a_store(self.folders, **options) as store:
            while True:
                step += 1
                kind = r.randrange(8)
                given = {"step": step, "metadata": {"loss": step * 7919 % 101 / 101.0}}
                if kind < 3:
                    store.save(state_of(step), **given)
                elif kind < 6:
                    store.save_async(state_of(step), **given).result()
                else:
                    pending = [store.save_async(state_of(step + i), **{**given, "step": step + i}) for i in range(2)]
                    for save in pending:
                        save.result()
                    step += 1
                acknowledge(step)
                if kind == 7:
                    self.pin_or_remove(store, r)

    @staticmethod
    def pin_or_remove(store, r):
        """The oldest of several; the newest is what the reader looks for."""
        listed = store.list()
        if len(listed) > 1:
            store.pin(listed[0].generation, r.random() < 0.5)
            if r.random() < 0.3:
                try:
                    store.remove(listed[0].generation)
                except ValueError:  # pinned
                    pass

    # ---- the reader

    def read(self, acknowledged):
        """The step that is there."""
        with self.run.never(OSError, ValueError, what=f"{self.mode}: what a killed save has left does not load"):
            newest = (self.read_store if self.of_store else self.read_file)(acknowledged)
        self.run.check(newest >= acknowledged, f"{self.mode}: step {acknowledged} had returned, {newest} is there")
        return newest

    def read_file(self, acknowledged):
        if not os.path.exists(self.path):
            self.run.check(not acknowledged, f"{self.mode}: step {acknowledged} had returned, and there is no file")
            return 0
        newest = check_state(self.run, penstock.load(self.path), self.mode)
        if self.mode == "file":
            check_state(self.run, torch.load(self.path), "the file, read by torch")
        return newest

    def read_store(self, acknowledged):
        with a_store(self.folders) as store:
            listed = store.list()
            self.run.check(listed or not acknowledged, f"{self.mode}: step {acknowledged} has gone")
            for info in listed:
                self.run.check(not info.problem, f"{self.mode}: {info}")
                step = check_state(self.run, store.load(generation=info.generation), f"{self.mode}, {info.path}")
                self.run.check(step == info.step, f"{self.mode}: step {step} is listed as {info.step}")
                damaged = store.open(info.generation).verify()
                self.run.check(not damaged, f"wrong bytes: {self.mode}: {damaged}")
            return check_state(self.run, store.load(), self.mode) if listed else 0

    def save_once_more(self, step):
        """What the dead have left goes with the next save."""
        if self.of_store:
            with a_store(self.folders, keep=1) as store:
                store.save(state_of(step), step=step)
        else:
            penstock.save(state_of(step), self.path)
        found = [
            name
            for folder, folders, files in os.walk(self.run.folder)
            for name in folders + files
            if name.startswith(LEFT_BEHIND) or name.endswith(".tmp")
        ]
        self.run.check(not found, f"{self.mode}: left behind after the next save: {found}")


def lifetime(run, place, acknowledged):
    """The newest step that has returned, of a child that lives for a moment."""
    read, write = os.pipe()
    seed, moment = run.random.getrandbits(30), run.random.random() ** 2 * 0.9 + 0.005
    child = Process(lambda: place.live(acknowledged, seed, lambda step: os.write(write, STEP.pack(step))))
    os.close(write)
    time.sleep(moment)
    child.kill()
    _, status = os.waitpid(child.pid, 0)
    said = child.text()
    run.check(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{place.mode}: a save failed: {said}")
    with open(read, "rb") as pipe:
        done = [step for (step,) in STEP.iter_unpack(pipe.read())]
    run.count("saves", len(done))
    return max(done, default=acknowledged)


def attack(run):
    place = Place(run, MODES[run.round % len(MODES)])
    acknowledged = 0
    for _ in run.steps(LIVES):
        acknowledged = lifetime(run, place, acknowledged)
        run.note("killed", place.mode, "acknowledged", acknowledged)
        acknowledged = int(Process(lambda newest=acknowledged: place.read(newest)).end())
        run.count("lives")
    Process(lambda: place.save_once_more(acknowledged + 1)).end()
