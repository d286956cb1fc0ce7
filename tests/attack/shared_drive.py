# SPDX-License-Identifier: Apache-2.0
"""Stores whose further folders lie on a drive that others use too. A model knows what each store must still have.

Stores are saved to, archived, started again at the same path, moved, copied, restored from a copy, their first folder
is missing for a while, and single checkpoints are moved out of them, or copied within them. No checkpoint of one loses
a byte by a save, a collection or a removal of another, and what somebody else has put on the drive stays. A store may
refuse; then nothing is removed.
"""

import os
import shutil

import penstock
import torch

from tests.attack.crowd import Process
from tests.attack.files import a_store

STEPS = 25
REFUSES = (OSError, ValueError, RuntimeError)
STRANGERS = [  # a shard of an earlier version, one of another store, and files that no store makes
    f"00000001-step-0.{24 * 'a'}/shard-00001.safetensors",
    f"00000001-step-7.{40 * 'b'}/shard-00001.safetensors",
    "00000009-step-9/x.bin",
    "notes.txt",
]


def state_of(mark):
    return {f"l{i}": torch.full((900,), float(mark * 10 + (i if i % 2 else 0))) for i in range(6)} | {
        "mark": torch.tensor(mark)
    }


class Scene:
    """Stores by the path of their first folder, as archives have them, and what must be in them."""

    def __init__(self, run):
        self.run = run
        self.drive = f"{run.folder}/drive"
        self.marks = self.moves = 0
        self.content = {}  # path of a first folder: {generation: mark}
        self.single = {}  # path of a checkpoint that was moved out of its store: mark
        self.copies = {}  # path of a copy of a checkpoint in its store: mark
        for name in STRANGERS:
            os.makedirs(os.path.dirname(f"{self.drive}/{name}"), exist_ok=True)
            with open(f"{self.drive}/{name}", "w") as file:
                file.write("of somebody else")

    def folders(self, path):
        return [path, self.drive]

    def act(self, path, function, **options):
        """A store in a process of its own, as the next run of a program is. What the function returns, or None."""

        def alone():
            torch.set_num_threads(1)
            try:
                with a_store(self.folders(path), shard_bytes=4000, lock_wait_s=0.5, **options) as store:
                    return function(store)
            except REFUSES as error:
                return f"refused: {error}"

        answer = Process(alone).end()
        self.run.note(os.path.basename(path), function.__name__, answer)
        self.run.count("refused" if answer.startswith("refused") else "acts")
        return None if answer.startswith("refused") else answer

    # ---- what happens to stores

    def live(self):
        """The paths where a program may save: they keep their names when a store is archived."""
        return [f"{self.run.folder}/run{i}" for i in range(2)]

    def save(self):
        path = self.run.random.choice(self.live())
        keep = self.run.random.choice([1, 2, 3, None])
        self.marks += 1
        mark = self.marks

        def save(store):
            generation = store.save(state_of(mark), step=mark).generation
            return f"{generation} {' '.join(os.path.basename(info.path) for info in store.list())}"

        answer = self.act(path, save, **({"keep": keep} if keep else {}))
        if answer is not None:
            generation, *names = answer.split()
            content = {**self.content.get(path, {}), int(generation): mark}
            left = [number for number in content if self.name(number, content[number]) in names]
            kept = sorted(content)[-(keep or len(content)) :]
            self.run.check(set(kept) <= set(left), f"{path}: {left} is left of {sorted(content)}, with keep={keep}")
            self.content[path] = {number: content[number] for number in left}
            self.gone(content.items() - self.content[path].items())

    def collect(self):
        def collect(store):
            store.collect()
            return "done"

        path = self.run.random.choice(self.live())
        if path in self.content:
            self.act(path, collect)

    def remove(self):
        path = self.run.random.choice(self.live())
        content = self.content.get(path, {})
        if len(content) < 2:
            return
        generation = min(content)

        def remove(store):
            store.remove(generation)
            return "done"

        if self.act(path, remove):
            self.gone({(generation, content.pop(generation))})

    def gone(self, checkpoints):
        """What a store removes is gone for its copies too: they have no data of their own."""
        for path, content in self.content.items():
            self.content[path] = dict(content.items() - checkpoints)

    @staticmethod
    def name(generation, mark):
        return f"{generation:08}-step-{mark}"

    def renamed(self, path, there):
        os.rename(path, there)
        self.content[there] = self.content.pop(path)
        self.copies = {copy.replace(f"{path}/", f"{there}/"): mark for copy, mark in self.copies.items()}

    def archived(self, path):
        """The first folder moves away; the next save at its path begins a store of its own."""
        there = self.away()
        self.renamed(path, there)
        self.run.note("archived", os.path.basename(path), os.path.basename(there))

    def away(self):
        self.moves += 1
        return f"{self.run.folder}/archive{self.moves}"

    def archive(self):
        path = self.run.random.choice(self.live())
        if path in self.content:
            self.archived(path)

    def restore(self):
        """A store that was archived comes back, in the place of the one that is there, which is archived."""
        path = self.run.random.choice(self.live())
        others = sorted(there for there in self.content if "archive" in there)
        if others:
            there = self.run.random.choice(others)
            if path in self.content:
                self.archived(path)
            self.renamed(there, path)
            self.run.note("restored", os.path.basename(there), os.path.basename(path))

    def copy(self):
        """A backup of a first folder: both name the same parts on the drive. What each saves from now on is its own."""
        path = self.run.random.choice(self.live())
        if path in self.content:
            there = self.away()
            shutil.copytree(path, there, symlinks=True)
            self.content[there] = dict(self.content[path])
            self.run.note("copied", os.path.basename(path), os.path.basename(there))

    def move_out(self):
        """A checkpoint for the shelf: `mv` of its folder."""
        path = self.run.random.choice(self.live())
        content = self.content.get(path)
        if not content:
            return
        generation = self.run.random.choice(sorted(content))
        name = self.name(generation, content[generation])
        there = self.away()
        os.rename(f"{path}/{name}", there)
        self.single[there] = content.pop(generation)
        # A copy of the store has no shards of its own: what it removes is gone.
        if any(generation in others for where, others in self.content.items() if where != path):
            del self.single[there]
        self.run.note("moved out", name, os.path.basename(path))

    def copy_within(self):
        """`cp -a` of a checkpoint under another name, as a way back to an older step: another number, the same with
        another step, or a word. It leads to the same shards, and keeps them when the original goes."""
        path = self.run.random.choice(self.live())
        content = self.content.get(path)
        if not content:
            return
        generation = self.run.random.choice(sorted(content))
        name = self.name(generation, content[generation])
        there = [int(other[:8]) for other in os.listdir(path) if other[:8].isdigit()]
        number = max(there) + self.run.random.choice([1, 4])
        kind = self.run.random.choice(["number", "double", "word"])
        copy = {"number": f"{number:08}-step-0", "double": f"{generation:08}-step-{number + 10**6}"}.get(kind)
        copy = f"{path}/{copy or f'best{number}'}"
        shutil.copytree(f"{path}/{name}", copy, symlinks=True)
        self.copies[copy] = content[generation]
        self.run.note("copied within", os.path.basename(path), name, os.path.basename(copy))

        def remove_copy(store):
            store.remove(number)
            return "done"

        if kind == "number" and self.run.random.random() < 0.5:  # otherwise it goes as older ones do
            self.act(path, remove_copy)

    # ---- what must hold

    def check(self):
        for name in STRANGERS:
            self.run.check(os.path.exists(f"{self.drive}/{name}"), f"a file of somebody else is gone: {name}")
        for path, content in self.content.items():
            Process(lambda path=path, content=content: self.check_store(path, content)).end()
        self.copies = {path: mark for path, mark in self.copies.items() if os.path.exists(path)}
        if self.single or self.copies:
            Process(self.check_others).end()

    def check_others(self):
        for path, mark in self.single.items():
            self.check_one(path, mark, "a checkpoint that was moved out")
        for path, mark in self.copies.items():
            self.check_one(path, mark, f"the copy {os.path.basename(path)}")

    def check_store(self, path, content):
        for generation, mark in content.items():
            what = f"generation {generation} of {os.path.basename(path)}"
            self.check_one(f"{path}/{self.name(generation, mark)}", mark, what)

    def check_one(self, path, mark, what):
        try:
            with penstock.Checkpoint(path) as checkpoint:
                state = checkpoint.load()
        except Exception as error:
            self.run.check(False, f"wrong bytes: {what} has lost data: {error}")
        for name, tensor in state_of(mark).items():
            self.run.check(torch.equal(state[name], tensor), f"wrong bytes in {name} of {what}")


def attack(run):
    scene = Scene(run)
    for _ in run.steps(STEPS):
        kinds = [scene.save] * 6 + [scene.archive, scene.restore, scene.copy, scene.collect, scene.remove]
        kinds += [scene.move_out] * 2 + [scene.copy_within]
        run.random.choice(kinds)()
        scene.check()
        run.count("steps")
