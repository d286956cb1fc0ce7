# SPDX-License-Identifier: Apache-2.0
"""Scenes of stores and files that others share, and of a clock that goes back; children of server.py run them."""

import errno
import os
import signal
import time
import traceback

import penstock
import shim
import torch
from verbs import NEW, OLD, alike, flat_of


def several_stores(progress, folder):
    """Several stores in one process: on folders of their own all at once, and on one folder one after the other."""
    stores = [penstock.CheckpointStore(os.path.join(folder, str(i)), keep=2) for i in range(6)]
    pending = [store.save_async(state, step) for step in range(4) for store in stores for state in (NEW,)]
    for save in pending:
        save.result(30)
    for store in stores:
        assert alike(store.load(), NEW) and [info.step for info in store.list()] == [2, 3]
    second = penstock.CheckpointStore(os.path.join(folder, "0"), lock_wait_s=0.1)
    assert alike(second.load(), NEW), "reading needs no lock"
    began = time.monotonic()
    try:
        second.save(OLD, 9)
    except penstock.Error as error:
        assert error.errno == errno.EWOULDBLOCK and time.monotonic() - began < 30
    else:
        raise AssertionError("two stores of one process write to one folder at once")
    stores[0].close()
    second.save(OLD, 9)
    assert second.latest().step == 9
    for store in [second, *stores[1:]]:
        store.close()


def clock_goes_back(progress, folder):
    """The order of checkpoints, retention and what is linked go by generation, whatever the clock says."""
    store = penstock.CheckpointStore(os.path.join(folder, "store"), keep=3)
    parts = {"fixed": torch.arange(50_000.0), "n": 0}
    day = 86_400
    # Forward, back by a day, by ten years, by what it takes to 1970, and before that.
    for step, moved in enumerate((0, day, 0, -3650 * day, 3 - time.time(), -time.time() - day, 0)):
        shim.move_clock(moved)
        info = store.save({**parts, "n": step}, step)
        assert not info.problem and store.latest().step == step
        assert store.load()["n"] == step
        assert [row.step for row in store.list()] == list(range(max(0, step - 2), step + 1))
        assert not store.open(info.generation).verify()
    shim.move_clock(-day)
    path = os.path.join(folder, "state.pt")
    for state in (OLD, NEW):
        penstock.save(state, path)
        assert alike(penstock.load(path), state)
    # Waiting goes by a clock that nobody sets.
    into = bytearray(1000)
    with open(path, "ab") as file:
        file.write(bytes(1000))
    transfer = penstock.read_async(path, into)
    shim.move_clock(-3650 * day)
    assert transfer.result(20) == 1000 and penstock.default_engine().drain(20)
    shim.move_clock(0)
    store.close()


def _others(count, run):
    """Runs it in processes of its own at once; their exit statuses."""
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run(number)
                status = 0
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def state_of(writer, step):
    return {"a": torch.full((20_000,), float(writer * 1000 + step)), "b": torch.full((9,), float(writer * 1000 + step))}


def locks_that_guard_nothing(progress, folder):
    """Two machines on one folder whose server keeps no locks: saves may fail, but no checkpoint is a mix of two."""
    path = os.path.join(folder, "store")
    shim.take_locks_away()

    def write(writer):
        saved = 0
        with penstock.CheckpointStore(path, keep=4, lock_wait_s=1) as store:
            for step in range(12):
                try:
                    store.save(state_of(writer, step), writer * 1000 + step)
                    saved += 1
                except OSError as error:
                    progress("refused", str(error))
        progress("saved", saved)

    statuses = _others(2, write)
    assert statuses == [0, 0], f"exit statuses {statuses}: their errors are on stderr"
    with penstock.CheckpointStore(path) as store:
        whole = 0
        there = store.list()
        steps = {info.step for info in there}
        for info in there:
            try:
                found = store.load(generation=info.generation)
            except OSError as error:
                progress("unreadable", str(error))
                continue
            first = float(found["a"][0])
            assert bool((found["a"] == first).all()) and bool((found["b"] == first).all()), "a mix of two saves"
            assert int(first) in steps, "a state of no step"  # both writers may have taken one generation
            whole += 1
        progress("whole", whole)
        assert alike(_saved(store, NEW), NEW)


def _saved(store, state):
    store.save(state, 99)
    return store.load()


def cut_mapping(progress, folder):
    """load(mmap=True): a file that is replaced stays readable as it was. One that is cut is SIGBUS where its pages are
    touched, as with any mapping; nothing else of the process is concerned."""
    path = os.path.join(folder, "flat.safetensors")
    state = {"a": torch.ones(1 << 20)}
    penstock.save(state, path)
    mapped = penstock.load(path, mmap=True)
    penstock.save({"a": torch.zeros(1 << 20)}, path)
    assert torch.equal(mapped["a"], state["a"]), "a save changes what others have mapped"

    def touch(_):
        signal.signal(signal.SIGBUS, signal.SIG_DFL)  # faulthandler's would write where it stands
        cut = penstock.load(path, mmap=True)
        os.truncate(path, 4096)
        float(cut["a"].sum())

    assert _others(1, touch) == [-signal.SIGBUS]
    # Read into memory, the same file is an exception.
    try:
        penstock.load(path)
    except penstock.Damaged:
        pass
    else:
        raise AssertionError("a file that was cut loads")
    penstock.save(flat_of(NEW), path)
    assert torch.equal(penstock.load(path)["a"], NEW["a"])
