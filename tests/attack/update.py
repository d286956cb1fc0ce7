# SPDX-License-Identifier: Apache-2.0
"""Tensors of one file are updated in place by processes that are killed at random moments. All readers see all of the
old tensors or all of the new ones, and never older ones than an update that returned; they write nothing. The next
update leaves a file that stock torch, safetensors and zipfile accept, whose other bytes are as they were, with nothing
next to it. Other programs write to the file meanwhile, or give its name to another: what they wrote stays.
"""

import os
import random
import signal
import struct
import time
import warnings
import zipfile

import penstock
import torch
from safetensors.torch import load_file, save_file

from tests.attack.crowd import Process

KINDS = ["torch.pt", "legacy.pt", "stock.safetensors", "own.safetensors", "m.safetensors.index.json"]
LIVES = 8
STEP = struct.Struct("<q")
SIZES = (1, 9, 127, 4096, 70_001, 400_000)
OF_OTHERS = -1.0  # no number of an update


def value_of(name, step):
    """Of a tensor at a step: a third of the names changes in every update, a third in every second, a third never."""
    i = int(name[1:])
    return (0.0, float(step), float(step // 2 * 2))[i % 3]


class Place:
    """One file of one kind, and what is in it."""

    def __init__(self, run):
        self.run = run
        self.kind = KINDS[run.round % len(KINDS)]
        self.folder = f"{run.folder}/f"
        os.mkdir(self.folder)
        self.path = f"{self.folder}/{self.kind}"
        self.sizes = {f"t{i}": run.random.choice(SIZES) for i in range(run.random.randint(4, 9))}

    def state_of(self, step, only=None):
        names = self.sizes if only is None else only
        return {name: torch.full((self.sizes[name],), value_of(name, step)) for name in names}

    def write(self, tensors, path):
        """Over what is there."""
        if self.kind.endswith(".json"):
            penstock.save(tensors, path, shard_bytes=300_000)
        elif self.kind.startswith("own"):
            penstock.save(tensors, path)
        elif self.kind.endswith(".safetensors"):
            save_file(tensors, path)
        else:
            torch.save(tensors, path, _use_new_zipfile_serialization=self.kind != "legacy.pt")

    def files(self):
        found = {}
        for name in os.listdir(self.folder):
            with open(f"{self.folder}/{name}", "rb") as file:
                found[name] = file.read()
        return found

    # ---- the processes that are killed

    def live(self, step, seed, acknowledge):
        torch.set_num_threads(1)
        r = random.Random(seed)
        while True:
            step += 1
            names = [name for name in self.sizes if int(name[1:]) % 3]
            r.shuffle(names)
            try:
                penstock.update(self.path, self.state_of(step, names))
            except BlockingIOError:  # two seconds behind another one
                step -= 1
                continue
            acknowledge(step)

    # ---- readers

    def step_in(self, state, what):
        """The step that all of a state is of."""
        self.run.check(set(state) == set(self.sizes), f"{what}: other names")
        values = {name: tensor.unique().tolist() for name, tensor in state.items()}
        for name, tensor in state.items():
            whole = tensor.shape == (self.sizes[name],) and len(values[name]) == 1
            self.run.check(whole, f"wrong bytes: {what}: {name} has {values[name][:5]}")
        step = int(max(value[0] for value in values.values()))
        is_one = all(value == [value_of(name, step)] for name, value in values.items())
        self.run.check(is_one, f"wrong bytes: {what}: not of one update: {values}")
        return step

    def read(self, acknowledged):
        """The step that is there, by each reader."""
        time.sleep(0.05)  # direct writes of a killed process may still be under way
        before = self.files()
        with self.run.never(OSError, ValueError, Warning, what=f"{self.kind}: what a killed update left does not load"):
            warnings.simplefilter("error", RuntimeWarning)
            warnings.filterwarnings("ignore", ".*did not come to its end", RuntimeWarning)  # as it should
            step = self.step_in(penstock.load(self.path), "load")
            into = {name: torch.zeros(size) for name, size in self.sizes.items()}
            penstock.load(self.path, into=into)
            self.run.check(self.step_in(into, "load(into=)") == step, "load(into=) has another step")
            mapped = self.step_in(penstock.load(self.path, mmap=True), "load(mmap=True)")
            self.run.check(mapped == step, "load(mmap=True) has another step")
        self.run.check(self.files() == before, f"{self.kind}: a reader wrote to the folder")
        self.run.check(step >= acknowledged, f"{self.kind}: update {acknowledged} had returned, {step} is there")
        return step

    def read_meanwhile(self, seconds):
        """Next to updaters: a whole step, or an error."""
        end, reads = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            try:
                found = penstock.load(self.path)
            except (penstock.Damaged, FileNotFoundError):
                continue
            self.step_in(found, "a reader next to updaters")
            reads += 1
        return reads

    def read_by_others(self):
        if self.kind.endswith(".pt"):
            if self.kind == "torch.pt":
                self.run.check(zipfile.ZipFile(self.path).testzip() is None, "wrong bytes: zipfile finds another CRC")
            return torch.load(self.path)
        shards = [self.path]
        if self.kind.endswith(".json"):
            shards = [f"{self.folder}/{name}" for name in os.listdir(self.folder) if name.endswith(".safetensors")]
        return {name: tensor for shard in shards for name, tensor in load_file(shard).items()}

    def finish(self, names):
        """Nothing is left next to the file."""
        penstock.update(self.path, {})
        self.run.check(sorted(os.listdir(self.folder)) == names, f"{self.kind}: left: {os.listdir(self.folder)}")
        return self.step_in(self.read_by_others(), "stock")


def lifetime(run, place, acknowledged):
    """An updater or two, and a reader, for a moment. The newest step that has returned; 0 where two took turns."""
    read, write = os.pipe()
    seeds = [run.random.getrandbits(30) for _ in range(run.random.choice((1, 1, 2)))]

    def acknowledge(step):
        os.write(write, STEP.pack(step))

    children = [Process(lambda seed=seed: place.live(acknowledged, seed, acknowledge)) for seed in seeds]
    os.close(write)
    reader = Process(lambda: place.read_meanwhile(0.15))
    time.sleep(run.random.random() ** 2 * 0.3 + 0.005)
    for child in children:
        child.kill()
        _, status = os.waitpid(child.pid, 0)
        said = child.text()
        run.check(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"an update failed: {said}")
    run.count("reads", int(reader.end()))
    with open(read, "rb") as pipe:
        done = [step for (step,) in STEP.iter_unpack(pipe.read())]
    run.count("updates", len(done))
    return 0 if len(children) > 1 else max(done, default=acknowledged)


def others_write(run, place):
    """Another program writes the file while the new tensors go to the log, in place or by a new file."""
    other = {name: torch.full((size,), OF_OTHERS) for name, size in place.sizes.items()}
    how, written = run.random.choice(("in place", "replaced")), {}
    run.note("another program writes", place.kind, how)

    def report(done, total):
        if not written:
            place.write(other, place.path + ".new")
            if how == "replaced":
                os.replace(place.path + ".new", place.path)
            else:
                with open(place.path + ".new", "rb") as new, open(place.path, "r+b") as file:
                    file.write(new.read())
                    file.truncate()
                os.remove(place.path + ".new")
            written[place.kind] = place.files()[place.kind]
        return True

    changed = [name for name in place.sizes if int(name[1:]) % 3]
    try:
        penstock.update(place.path, place.state_of(1, changed), progress=report)
    except (penstock.Error, ValueError):
        pass
    if written:
        run.check(place.files() == written, f"wrong bytes: {place.kind}: what another program wrote ({how}) is gone")
        run.count("writes of others")


def attack(run):
    place = Place(run)
    place.write(place.state_of(0), place.path)
    names = sorted(os.listdir(place.folder))
    acknowledged = 0
    for _ in run.steps(LIVES):
        acknowledged = lifetime(run, place, acknowledged)
        run.note("killed", place.kind, "acknowledged", acknowledged)
        acknowledged = int(Process(lambda newest=acknowledged: place.read(newest)).end())
        if run.chance(0.5):
            step = int(Process(lambda: place.finish(names)).end())
            run.check(step == acknowledged, f"{place.kind}: {acknowledged} was read, and {step} is there")
        run.count("lives")
    Process(lambda: place.finish(names)).end()
    if place.kind in ("torch.pt", "legacy.pt", "stock.safetensors"):
        others_write(run, place)
