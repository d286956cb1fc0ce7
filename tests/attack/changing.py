# SPDX-License-Identifier: Apache-2.0
"""Tensors that change while a save reads them: by a thread, by processes that share them, by a validation that swaps
weights under StepOverlap, in flat buffers that parameters share with what forward changes.

A save fails, and says so, or what it commits loads, with its sums and with one value in each tensor that did not
change meanwhile. Whatever fails, the newest checkpoint that was good stays.
"""

import os
import threading
import time
import warnings

import penstock
import torch

from tests.attack.crowd import Process
from tests.attack.files import a_store
from tests.attack.run import Wrong

MIB = 1 << 18  # of float32
SAVES = 6


class Changer:
    """A thread that fills a tensor again and again."""

    def __init__(self, tensor):
        self._tensor = tensor
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        value = 0.0
        while not self._stop.is_set():
            value += 1
            self._tensor.fill_(value)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def tried(run, save, *args, **kw):
    """Whether a save has returned without an error. One that writes what it finds has none."""
    try:
        save(*args, **kw)
    except penstock.Damaged as error:
        raise Wrong(f"wrong bytes: a save finds that what it has committed is damaged: {error}") from error
    except penstock.Changed as error:
        run.check(kw.get("changing") != "torn", f"changing='torn' fails: {error}")
        run.note("the save fails:", error)
        run.count("saves that fail")
        return False
    run.count("saves")
    return True


def check_store(run, folder, what, fixed, good):
    """Each checkpoint that is listed loads and verifies, and good ones, by their step, are there.

    fixed(step): the value of the tensor that did not change during a save."""
    with a_store(folder) as store:
        listed = store.list()
        for info in listed:
            run.check(not info.problem, f"{what}: {info}")
            damaged = store.open(info.generation).verify()
            run.check(not damaged, f"wrong bytes: {what}: a save committed what is damaged: {damaged}")
            state = store.load(generation=info.generation)
            run.check(bool((state["w"] == fixed(info.step)).all()), f"wrong bytes: {what}: 'w' is not of its step")
        if good:
            newest = store.load()["w"].flatten()[0].item()
            run.check(listed and newest >= fixed(max(good)), f"{what}: step {max(good)} was saved, {newest} is there")
    run.count("checkpoints", len(listed))


def by_a_thread(run):
    """As an average of weights, a background optimizer, or an evaluation in another thread."""
    r = run.random
    size = r.choice([1, 4, 16]) * MIB + r.randrange(1000)
    w, other = torch.zeros(size), torch.zeros(size)
    folder = f"{run.folder}/store"
    good = []
    with a_store(folder, keep=2, incremental=r.random() < 0.5, shard_bytes=r.choice([1 << 20, 1 << 30])) as store:
        w += 1
        store.save({"w": w, "other": other}, step=1)
        with Changer(other):
            for step in range(2, SAVES):
                w += 1
                save = store.save if r.random() < 0.6 else lambda *a, **kw: store.save_async(*a, **kw).result()
                changing = r.choice(["raise", "raise", "torn"])
                if tried(run, save, {"w": w, "other": other}, step=step, changing=changing):
                    good.append(step)
    check_store(run, folder, "a tensor that a thread changes", float, good or [1])


def by_a_thread_in_a_file(run):
    r = run.random
    suffix = r.choice([".pt", ".safetensors", ".safetensors.index.json"])
    path = f"{run.folder}/t{suffix}"
    tensors = {"w": torch.ones(4 * MIB), "other": torch.zeros(r.choice([1, 16]) * MIB)}
    with Changer(tensors["other"]):
        saved = [
            tried(run, penstock.save, tensors, path, sync=False, changing=r.choice(["raise", "raise", "torn"]))
            for _ in range(SAVES)
        ]
    if not any(saved):
        run.check(not os.path.exists(path), f"a save to {suffix} has failed, and the file is there")
        return
    try:
        state = penstock.load(path)
        if suffix == ".pt":
            torch.load(path)
    except Exception as error:
        raise Wrong(f"wrong bytes: what save() has written to {suffix} does not load: {error}") from error
    run.check(bool((state["w"] == 1).all()), f"wrong bytes in {suffix}: 'w' did not change")


def by_processes(run):
    """Hogwild: workers update shared memory while their parent saves."""
    w, other = torch.zeros(1000), torch.zeros(8 * MIB).share_memory_()
    end = time.monotonic() + 30

    def work():
        torch.set_num_threads(1)
        while time.monotonic() < end:
            other.add_(1)

    workers = [Process(work) for _ in range(2)]
    folder, good = f"{run.folder}/store", [1]
    try:
        with a_store(folder, keep=2) as store:
            for step in range(1, SAVES):
                w.fill_(step)
                if tried(run, store.save, {"w": w, "other": other}, step=step):
                    good.append(step)
    finally:
        for worker in workers:
            worker.kill()
            os.waitpid(worker.pid, 0)
            worker.text()
    check_store(run, folder, "a tensor that other processes change", float, good if len(good) > 1 else [])


class Flat(torch.nn.Module):
    """Parameters and statistics in one buffer, as apex, Megatron and programs of one's own have them."""

    def __init__(self, size, share):
        super().__init__()
        flat = torch.zeros(size)
        cut = int(size * share)
        self.w = torch.nn.Parameter(flat[:cut])
        self.register_buffer("seen", flat[cut:])

    def forward(self, x):
        self.seen += 1
        return (self.w * x).sum()


def overlapped(run, folder, optimizer, state, step, steps):
    """Steps of training under StepOverlap; those that were saved, as the object counts them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with a_store(folder, keep=steps + 1) as store:
            try:
                with penstock.StepOverlap(store, optimizer, state) as overlap:
                    for _ in range(steps):
                        step()
            except penstock.Changed as error:  # a failure that nobody has heard yet
                run.note("StepOverlap fails:", error)
            run.count("saves", overlap.saves)
            run.count("saves that fail", overlap.failures)


def flat_buffer(run):
    """What is saved is what each tensor was after its step, also where forward has changed it meanwhile."""
    net = Flat(run.random.choice([4, 32, 64]) * MIB, run.random.choice([0.1, 0.5, 0.9]))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    seen = []

    def state():
        seen.append(float(net.seen[0]))
        return {"w": net.w, "seen": net.seen, "n": len(seen)}

    def step():
        net(torch.tensor(1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()

    folder = f"{run.folder}/store"
    overlapped(run, folder, optimizer, state, step, 5)
    with a_store(folder) as store:
        for info in store.list():
            damaged = store.open(info.generation).verify()
            run.check(not damaged, f"wrong bytes: StepOverlap committed what is damaged: {damaged}")
            saved = store.load(generation=info.generation)
            wanted = seen[saved["n"] - 1]
            got = saved["seen"].unique().tolist()
            run.check(
                got == [wanted], f"wrong bytes: StepOverlap saved statistics {got[:4]} of a step that had {wanted}"
            )
            run.count("checkpoints")


def swapped_weights(run):
    """Validation with averaged weights, copied in and out again, while the save of the step goes on."""
    w = torch.nn.Parameter(torch.zeros(run.random.choice([8, 32]) * MIB))
    optimizer = torch.optim.SGD([w], lr=1.0)
    held = w.data if run.random.random() < 0.5 else w  # torch does not count what .data changes
    seconds = run.random.choice([0.0, 0.005, 0.1])  # the last is longer than a save
    averaged, backup = torch.full_like(w, -5.0), torch.zeros_like(w)
    truth = []

    def state():
        truth.append(float(w[0]))
        return {"w": w, "n": len(truth)}

    def step():
        w.grad = torch.full_like(w, -1.0)
        optimizer.step()
        backup.copy_(w.detach())
        with torch.no_grad():
            held.copy_(averaged)
            time.sleep(seconds)
            held.copy_(backup)

    folder = f"{run.folder}/store"
    overlapped(run, folder, optimizer, state, step, 5)
    with a_store(folder) as store:
        for info in store.list():
            damaged = store.open(info.generation).verify()
            run.check(not damaged, f"wrong bytes: StepOverlap committed what is damaged: {damaged}")
            saved = store.load(generation=info.generation)
            got, wanted = saved["w"].unique().tolist(), truth[saved["n"] - 1]
            run.check(got == [wanted], f"wrong bytes: weights were swapped: {got[:4]} is saved, and {wanted} is right")
            run.count("checkpoints")


SCENES = [by_a_thread, by_a_thread_in_a_file, flat_buffer, by_processes, swapped_weights]


def attack(run):
    torch.set_num_threads(1)
    scene = SCENES[run.round % len(SCENES)]
    run.note(scene.__name__)
    scene(run)
