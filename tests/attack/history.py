# SPDX-License-Identifier: Apache-2.0
"""A store through many saves of which most change little: each checkpoint that is left has the bytes of its own save.

Tensors change a little, become others of the same bytes, share storages, are renamed, come and go. Shards that did not
change are shared between checkpoints; stock safetensors reads them, too. Sizes lie around those of chunks and shards.
"""

import json

import penstock
import torch

from tests.attack.alike import bytes_of
from tests.attack.files import a_store

STEPS = 40
CHUNK_BYTES = 256 << 10
SIZES = [0, 1, 7, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 5, 1 << 20]
DTYPES = [torch.uint8, torch.float32, torch.bfloat16, torch.int64]


class Scene:
    def __init__(self, run):
        self.run = run
        r = run.random
        self.folders = [f"{run.folder}/a", f"{run.folder}/b"] if r.random() < 0.3 else f"{run.folder}/a"
        self.state = {}
        self.saved = {}  # generation: what was saved
        self.pinned = set()
        self.step = 0
        for _ in range(r.randrange(3, 10)):
            self.add()
        self.open()

    def open(self):
        r = self.run.random
        self.keep = r.choice([1, 2, 5, None])
        options = {
            "incremental": r.random() < 0.8,
            "shard_bytes": r.choice([1, CHUNK_BYTES, CHUNK_BYTES + 100, 1 << 20, 1 << 30]),
        }
        if self.keep:
            options["keep"] = self.keep
        self.run.note("open", options)
        self.store = penstock.CheckpointStore(self.folders, **options)

    def tensor(self):
        r = self.run.random
        dtype = r.choice(DTYPES)
        count = r.choice(SIZES) // torch.empty((), dtype=dtype).element_size()
        raw = self.run.numbers.integers(0, 100, count)
        return torch.from_numpy(raw).to(dtype)

    # ---- what happens between saves

    def add(self):
        self.state[f"t{self.run.random.randrange(12)}"] = self.tensor()

    def drop(self):
        if len(self.state) > 1:
            del self.state[self.run.random.choice(sorted(self.state))]

    def change(self):
        """One element, perhaps the first or the last of a chunk, or all."""
        r = self.run.random
        tensor = self.state[r.choice(sorted(self.state))]
        if tensor.numel():
            flat = tensor.view(-1)
            if r.random() < 0.2:
                flat += 1
            else:
                at = r.choice([0, len(flat) - 1, min(CHUNK_BYTES // tensor.element_size(), len(flat) - 1)])
                flat[at] += 1

    def same_bytes(self):
        """Another tensor with the bytes that were saved."""
        name = self.run.random.choice(sorted(self.state))
        self.state[name] = self.state[name].clone()

    def rename(self):
        r = self.run.random
        value = self.state.pop(r.choice(sorted(self.state)))
        self.state[f"t{r.randrange(12)}"] = value

    def share(self):
        """A view of another one: one storage has two names."""
        r = self.run.random
        tensor = self.state[r.choice(sorted(self.state))]
        begin = r.randrange(len(tensor) + 1)
        self.state[f"v{r.randrange(4)}"] = tensor[begin : begin + r.randrange(1, 2000)]

    def swap(self):
        """Two names change places; the bytes on the disk stay the same."""
        a, b = (self.run.random.choice(sorted(self.state)) for _ in range(2))
        self.state[a], self.state[b] = self.state[b], self.state[a]

    def edit(self):
        kinds = [self.change] * 5 + [self.same_bytes, self.rename, self.share, self.swap, self.add, self.drop]
        chosen = [self.run.random.choice(kinds) for _ in range(self.run.random.choice([0, 1, 1, 3]))]
        self.run.note("edit", [kind.__name__ for kind in chosen])
        for kind in chosen:
            kind()

    # ---- the store

    def save(self):
        r = self.run.random
        pending = []
        for _ in range(r.choice([1, 1, 1, 2])):
            self.edit()
            self.step += 1
            pinned = r.random() < 0.1
            truth = {name: (tensor.dtype, tuple(tensor.shape), bytes_of(tensor)) for name, tensor in self.state.items()}
            if r.random() < 0.5:
                info = self.store.save(self.state, step=self.step, pinned=pinned)
                self.saved[info.generation] = truth
            else:
                pending.append((self.store.save_async(self.state, step=self.step, pinned=pinned), truth))
                info = None
            if pinned:
                self.pinned.add(self.step)
        for save, truth in pending:
            self.saved[save.result().generation] = truth
        self.run.count("saves")

    def remove(self):
        listed = self.store.list()
        if len(listed) > 2:
            info = self.run.random.choice(listed[:-1])
            self.run.note("remove", info.generation)
            if info.step in self.pinned:
                self.store.pin(info.generation, False)
            self.store.remove(info.generation)

    def reopen(self):
        self.store.close()
        self.open()

    # ---- what must hold

    def check(self):
        listed = self.store.list()
        left = [info.generation for info in listed]
        newest = sorted(self.saved)[-1:]
        self.run.check(set(newest) <= set(left), f"generation {newest} is gone: {left}")
        for info in listed:
            self.run.check(not info.problem, f"{info}")
        for info in self.run.random.sample(listed, min(3, len(listed))):
            self.check_one(info)

    def check_one(self, info):
        r, truth = self.run.random, self.saved[info.generation]
        what = f"generation {info.generation}"
        if r.random() < 0.3:
            some = r.sample(sorted(truth), r.randrange(1, len(truth) + 1))
            self.compare(self.store.load(generation=info.generation, names=some), {n: truth[n] for n in some}, what)
        else:
            self.compare(self.store.load(generation=info.generation), truth, what)
        damaged = self.store.open(info.generation).verify()
        self.run.check(not damaged, f"wrong bytes: {what} is damaged: {damaged}")
        if r.random() < 0.3:
            self.by_safetensors(info, truth, what)
        self.run.count("checkpoints")

    def compare(self, state, truth, what):
        self.run.check(set(state) == set(truth), f"{what}: {sorted(state)}, and {sorted(truth)} is expected")
        for name, (dtype, shape, raw) in truth.items():
            tensor = state[name]
            alike = tensor.dtype == dtype and tuple(tensor.shape) == shape and bytes_of(tensor) == raw
            self.run.check(alike, f"wrong bytes: {name} of {what}: {tensor.dtype} {tuple(tensor.shape)}")

    def by_safetensors(self, info, truth, what):
        """The shards as stock safetensors finds them by the index. Views may be stored under the name of another."""
        from safetensors import safe_open

        with open(f"{info.path}/model.safetensors.index.json") as file:
            where = json.load(file)["weight_map"]
        for name, shard in where.items():
            if name in truth:
                with safe_open(f"{info.path}/{shard}", "pt") as opened:
                    raw = bytes_of(opened.get_tensor(name))
                self.run.check(raw == truth[name][2], f"wrong bytes: {name} of {what}, read by safetensors")

    def close(self):
        self.store.close()
        with a_store(self.folders) as self.store:
            self.check()


def attack(run):
    scene = Scene(run)
    for _ in run.steps(STEPS):
        run.random.choice([scene.save] * 7 + [scene.remove, scene.reopen])()
        if scene.saved:
            scene.check()
    if scene.saved:
        scene.close()
