# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of verbs: stores of checkpoints."""

import os
import signal
import threading
import time

import penstock
import torch
from verbs import NEW, OLD, alike, verb


def new_store(box, **options):
    return penstock.CheckpointStore(box.path("store"), lock_wait_s=1, **options)


def sound(folder, *allowed):
    """Every checkpoint that a new store finds loads as one of `allowed`, and the next save works."""

    def check():
        with penstock.CheckpointStore(folder, lock_wait_s=1) as store:
            for info in store.list():
                assert not info.problem, info.problem
                assert not store.open(info.generation).verify()
                found = store.load(generation=info.generation)
                assert any(alike(found, state) for state in allowed), "a state that nobody saved"
            store.save(NEW, 99)
            assert alike(store.load(), NEW)
            hidden = [n for n in os.listdir(folder) if n.startswith((".unfinished", ".removed"))]
            assert not hidden, f"left after the next save: {hidden}"

    return check


@verb("CheckpointStore", "CheckpointStore.save", "CheckpointStore.close", "CheckpointStore.__enter__")
def store_save(box):
    folder = box.path("store")
    with penstock.CheckpointStore(folder, keep=2) as store:
        store.save(OLD, 1)
        store.save(OLD, 2)
    with box.call(sound(folder, OLD, NEW)):
        with penstock.CheckpointStore(folder, keep=2) as store:
            info = store.save(NEW, 3)
    assert info.step == 3
    with penstock.CheckpointStore(folder) as store:
        # Retention deletes nothing while it cannot read what would stay.
        assert alike(store.load(), NEW) and [i.step for i in store.list()][-2:] == [2, 3]


@verb("CheckpointStore.save_async", "CheckpointStore.wait")
def store_save_async(box):
    with new_store(box) as store:
        store.save(OLD, 1)
        with box.call():
            pending = store.save_async(NEW, 2)
            assert store.wait(20)
            info = pending.result(20)
        assert info.step == 2 and alike(store.load(), NEW)


@verb("Ranks", "Ranks.single", "Slice", "FlatSlice", "PerRank")
def parts_of_tensors(box):
    whole = torch.arange(12.0).reshape(3, 4)
    folder = box.path("store")
    with box.call():
        with penstock.CheckpointStore(folder, lock_wait_s=1, ranks=penstock.Ranks.single()) as store:
            flat = penstock.FlatSlice(whole.reshape(-1), (4, 3), 0)
            store.save(
                {"f": flat, "w": penstock.Slice(whole, (3, 4), (0, 0)), "own": penstock.PerRank(whole[0].clone())}, 1
            )
    with penstock.CheckpointStore(folder) as store:
        found = store.load()
    assert torch.equal(found["w"], whole) and torch.equal(found["f"], whole.reshape(4, 3))
    assert torch.equal(found["own"], whole[0])


@verb("Ranks.of_threads")
def ranks_of_threads(box):
    """A fault on one rank ends the save of both; where it does not even call it, after rank_wait_s."""
    folder = box.path("store")
    whole = torch.arange(4000.0).reshape(4, 1000)

    def save(ranks, errors):
        try:
            part = penstock.Slice(whole[2 * ranks.number : 2 * ranks.number + 2], (4, 1000), (2 * ranks.number, 0))
            with penstock.CheckpointStore(folder, lock_wait_s=1, ranks=ranks, rank_wait_s=5) as store:
                store.save({"w": part}, 1)
        except BaseException as error:
            errors.append(error)

    errors = []
    with box.call():
        first, second = penstock.Ranks.of_threads(2)
        thread = threading.Thread(target=save, args=(second, errors))
        thread.start()
        save(first, errors)
        thread.join()
        if errors:
            raise errors[0]
    with penstock.CheckpointStore(folder) as store:
        assert torch.equal(store.load()["w"], whole)


@verb("CheckpointStore.load", "CheckpointStore.latest", "CheckpointStore.list", "CheckpointStore.best")
def store_load(box):
    with new_store(box) as store:
        store.save(OLD, 1, metadata={"loss": 0.5})
        with box.call():
            found, newest, rows, best = store.load(), store.latest(), store.list(), store.best("loss")
        assert alike(found, OLD) and newest.step == 1 and len(rows) == 1 and best.metadata == {"loss": 0.5}


@verb(
    "Checkpoint", "Checkpoint.load", "Checkpoint.verify", "Checkpoint.keys", "Checkpoint.values", "Checkpoint.items",
    "Checkpoint.get", "Checkpoint.__getitem__", "Checkpoint.close", "Checkpoint.__enter__", "CheckpointStore.open",
)  # fmt: skip
def checkpoint(box):
    with new_store(box) as store:
        path = store.save(OLD, 1).path
        with box.call():
            found = penstock.Checkpoint(path)
            with store.open(1) as again:
                problems, state = found.verify(), again.load()
            found.close()
            if problems:
                raise OSError(problems)  # what the system refused is a problem of the checkpoint
        assert alike(state, OLD) and len(list(found.items())) == 2
        assert set(found.keys()) == {"a", "b.c"} and len(list(found.values())) == 2 and found.get("x") is None


@verb("CheckpointTensor", "CheckpointTensor.__getitem__")
def checkpoint_tensor(box):
    with new_store(box) as store:
        store.save(OLD, 1)
        found = store.open(1)
        with box.call():
            part = found["a"][10:20]
        assert torch.equal(part, OLD["a"][10:20])


@verb("CheckpointStore.pin")
def pin(box):
    with new_store(box) as store:
        store.save(OLD, 1)
        with box.call():
            store.pin(1)
        assert store.list()[0].pinned


@verb("CheckpointStore.remove")
def remove(box):
    folder = box.path("store")
    with penstock.CheckpointStore(folder) as store:
        store.save(OLD, 1)
        store.save(NEW, 2)
    with box.call(sound(folder, OLD, NEW)):
        with penstock.CheckpointStore(folder) as store:
            try:
                store.remove(1)
            except ValueError as refused:
                # If the newest cannot be read, the one before is the newest whole one, and stays.
                if "newest whole" not in str(refused):
                    raise
                raise OSError(str(refused)) from None
    with penstock.CheckpointStore(folder) as store:
        assert [info.step for info in store.list()] == [2] and alike(store.load(), NEW)


@verb("CheckpointStore.collect")
def collect(box):
    with new_store(box) as store:
        store.save(OLD, 1)
        with box.call():
            store.collect()
        assert alike(store.load(), OLD)


@verb("SaveOnSigterm", "SaveOnSigterm.step_end", "SaveOnSigterm.__enter__", "CheckpointStore.save_on_sigterm",
      main_thread=True, alone=True)  # fmt: skip
def on_sigterm(box):
    with new_store(box) as store:
        with box.call():
            try:
                with store.save_on_sigterm(lambda: NEW) as guard:
                    os.kill(os.getpid(), signal.SIGTERM)
                    while not guard.arrived:
                        time.sleep(0)
                    guard.step_end(7)
            except SystemExit as leaving:
                assert leaving.code == 143
        assert store.latest().step == 7 and alike(store.load(), NEW)


@verb("StepOverlap", "StepOverlap.close", "StepOverlap.__enter__")
def step_overlap(box):
    weight = torch.nn.Parameter(torch.ones(300))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with new_store(box, keep=2) as store:
        with box.call():
            with penstock.StepOverlap(store, optimizer, lambda: {"w": weight}, on_error="raise"):
                for _ in range(3):
                    weight.grad = torch.ones(300)
                    optimizer.step()
        assert torch.equal(store.load()["w"], weight) and store.latest().step == 3
