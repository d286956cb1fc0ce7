# SPDX-License-Identifier: Apache-2.0
"""What a child of server.py does: scenes over the rows of the table of verbs."""

import contextlib
import errno
import gc
import importlib
import logging
import os
import pkgutil
import shutil
import signal
import threading
import time
import traceback
import warnings
from pathlib import Path

import penstock
import rows_deepnvme  # noqa: F401 (they fill the table)
import rows_io  # noqa: F401
import rows_plan  # noqa: F401
import rows_states  # noqa: F401
import rows_stores  # noqa: F401
import shim
import torch
from planted import planted_links  # noqa: F401
from shared_folder import clock_goes_back, cut_mapping, locks_that_guard_nothing, several_stores  # noqa: F401
from verbs import NEW, OLD, ROWS, Box, alike, flat_of, in_threads, nested_of

# Exceptions that a call may raise when the machine fails (docs/python.md, Errors).
DOCUMENTED = (OSError, MemoryError)

# The errors of each kind of call: the first in each level, all of them when there is time. EINTR comes once; a signal
# does not come forever.
FAULTS = {
    "malloc": [errno.ENOMEM],
    "mmap": [errno.ENOMEM],
    "madvise": [errno.ENOMEM],
    "pthread_create": [errno.EAGAIN],
    "open": [errno.EMFILE, errno.EACCES, errno.EIO, errno.EINTR],
    "opendir": [errno.ENOMEM, errno.EMFILE],
    "readdir": [errno.EIO],
    "close": [errno.EIO],
    "read": [errno.EIO, errno.EINTR],
    "pread": [errno.EIO, errno.ENOMEM, errno.EINTR],
    "write": [errno.ENOSPC, errno.EIO, errno.EINTR],
    "pwrite": [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR],
    "fsync": [errno.EIO, errno.ENOSPC],
    "syncfs": [errno.EIO],
    "fallocate": [errno.ENOSPC, errno.EOPNOTSUPP, errno.EPERM, errno.EINTR],
    "ftruncate": [errno.EIO, errno.EINTR],
    "rename": [errno.EIO, errno.EACCES, errno.ENOSPC],
    "link": [errno.EMLINK, errno.EPERM],
    "mkdir": [errno.ENOSPC, errno.EACCES],
    "unlink": [errno.EIO, errno.EACCES],
    "stat": [errno.EIO, errno.ENOMEM, errno.EACCES],
    "statfs": [errno.EIO],
    "chmod": [errno.EPERM],
    "utimes": [errno.EPERM],
    "flock": [errno.ENOLCK, errno.EINTR],
    "eventfd": [errno.EMFILE],
    "poll": [errno.EINTR, errno.ENOMEM],
    "io_uring_setup": [errno.ENOMEM, errno.EPERM],
    "io_uring_register": [errno.ENOMEM],
    "io_uring_enter": [errno.EAGAIN, errno.EINTR, errno.ENOMEM],
    "io_setup": [errno.EAGAIN],
    "io_submit": [errno.EAGAIN],
    "io_getevents": [errno.EINTR],
    "openat2": [errno.EMFILE],
}
RINGS = ("anon_inode:[eventfd]", "anon_inode:[io_uring]")
RINGS_MAX = 16
ONCE = (errno.EINTR, errno.EAGAIN)
CALLS_MAX = 20_000


def warm_up():
    """Imports of which a call under test would do the first one, with nothing of the engine begun: children fork."""
    for found in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not found.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)
    parameter = torch.nn.Parameter(torch.zeros(1))
    torch.optim.SGD([parameter], lr=1.0)
    logging.getLogger("penstock.deepnvme").addHandler(logging.NullHandler())
    gc.collect()
    gc.freeze()


def plan(counts, level, malloc):
    """(kind, errno, persist, [n]) to try; [n] None: from 1 on, until nothing fails any more."""
    for kind in FAULTS:
        if kind not in counts or (kind == "malloc") != malloc:
            continue
        for i, number in enumerate(FAULTS[kind]):
            for persist in (False, True):
                if persist and number in ONCE and kind != "pthread_create":
                    continue
                if level == "all":
                    yield kind, number, persist, None
                elif level == "ci" or (i == 0 and (persist is False or malloc)):
                    most = {"quick": 10 if malloc else 2, "ci": 40 if malloc else 4}[level]
                    yield kind, number, persist, sampled(counts[kind], most, len(kind) + i + persist)


def sampled(count, most, phase):
    """At most so many of 1 to count, with both ends, spread evenly; phase shifts those between."""
    if count <= most:
        return list(range(1, count + 1))
    step = count / most
    return sorted({1, count, *(1 + int((i + (phase * 0.37) % 1) * step) for i in range(most - 2))})


def open_files():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(found)


def emptied(folder):
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


class NeverEnds(AssertionError):
    """After this a process cannot be used any more."""


class Faulty:
    """A row, run again and again in one folder, with and without a fault."""

    def __init__(self, name, folder):
        self.row = ROWS[name]
        self.folder = folder
        self.fault = (None, 0, 0, False)
        self.failed = 0
        self.box = Box(folder, lambda: shim.arm(*self.fault), self._disarm)
        self.baseline = []

    def _disarm(self):
        self.failed = shim.disarm()

    def run(self, *fault):
        """The exception that it ended with, or None."""
        self.fault = fault or (None, 0, 0, False)
        self.failed = 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.row.run(self.box)
        except DOCUMENTED as error:
            # Its traceback keeps what the frames held.
            return error.with_traceback(None)
        finally:
            shim.disarm()
        return None

    def settle(self):
        """After each run: nothing in flight, folder empty. What dropped transfers failed with is raised here."""
        for _ in range(20):
            try:
                if not penstock.default_engine().drain(5):
                    raise NeverEnds("drain(5) is False: a transfer never ends")
                break
            except DOCUMENTED:
                pass
        emptied(self.folder)

    def check_files(self):
        """No more descriptors than before; what is closed elsewhere gets a moment."""
        end = time.monotonic() + 30
        while True:
            now = open_files()
            # The engine opens a ring and an eventfd for a device when it first needs them.
            rings = sum(name in RINGS for name in now) - sum(name in RINGS for name in self.baseline)
            if len(now) - len(self.baseline) <= min(max(rings, 0), RINGS_MAX):
                return
            gc.collect()
            if time.monotonic() > end:
                extra = list(now)
                for name in self.baseline:
                    if name in extra:
                        extra.remove(name)
                raise AssertionError(f"descriptors left open: {extra}")
            time.sleep(0.01)


def faults(progress, row, folder, level, malloc, after=None, only=None):
    """Every fault of the level at one row. after: where to go on, [kind, errno, persist, n]. only: just this one."""
    faulty = Faulty(row, folder)
    for _ in range(3):
        error = faulty.run()
        if error is not None:
            raise error
        faulty.settle()
    counts = shim.seen()
    gc.collect()
    faulty.baseline = open_files()
    progress("counts", counts)
    cases = [(*only[:3], [only[3]])] if only else plan(counts, level, malloc)
    skipping = after is not None
    for kind, number, persist, wanted in cases:
        first = 1
        if skipping:
            if [kind, number, persist] != after[:3]:
                continue
            skipping, first = False, after[3] + 1
        for n in wanted if wanted is not None else range(1, CALLS_MAX):
            if n < first:
                continue
            progress("try", [kind, number, persist, n])
            if not one_fault(faulty, progress, kind, number, persist, n) and wanted is None:
                break
    progress("end", None)


def one_fault(faulty, progress, kind, number, persist, n):
    """Whether the fault came."""
    where = [kind, errno.errorcode[number], "persists" if persist else "once", n]
    came = False
    try:
        error = faulty.run(kind, n, number, persist)
        came = faulty.failed > 0
        if error is not None and not came:
            raise AssertionError(f"raised without a fault: {error!r}")
        del error
        faulty.settle()
        faulty.check_files()
        if came:
            after = faulty.run()
            if after is not None:
                raise AssertionError(f"the next call failed, without a fault: {after!r}")
            faulty.settle()
    except NeverEnds:
        raise
    except BaseException as error:
        came = came or faulty.failed > 0
        progress("defect", [where, "".join(traceback.format_exception(error))[-3000:]])
        del error
        with contextlib.suppress(OSError):
            emptied(faulty.folder)
        gc.collect()
        faulty.baseline = open_files()
    return came


# ---- scenes of processes


def exit_with_threads(progress, row, folder):
    """The interpreter ends while daemon threads go on calling a verb."""
    if ROWS[row].torch:
        shim.stop_exits()  # torch does not survive what older Pythons do
    count = 2
    begun = threading.Barrier(count + 1)

    def run(number):
        place = Path(folder) / str(number)
        place.mkdir()
        box = Box(place)
        ROWS[row].run(box)
        begun.wait()
        with contextlib.suppress(Exception):
            while True:
                ROWS[row].run(box)

    threading.excepthook = lambda _: None
    for number in range(count):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    begun.wait(20)
    time.sleep(0.03)
    return "interpreter"


def fork_with_threads(progress, row, folder):
    """A process that uses the engine from a thread forks; the child uses it from several at once, and so does the
    parent."""
    places = [Path(folder) / name for name in ("before", "parent", "child")]
    for place in places:
        place.mkdir()
    ROWS[row].run(Box(places[0]))
    stop = threading.Event()

    def go_on():
        into = bytearray(1 << 16)
        path = Path(folder) / "other"
        path.write_bytes(bytes(1 << 16))
        while not stop.is_set():
            penstock.read_async(str(path), into).result()

    thread = threading.Thread(target=go_on)
    thread.start()
    pid = os.fork()
    if pid == 0:
        errors = in_threads(ROWS[row], places[2], 4)
        drained = penstock.default_engine().drain(10)
        for error in errors:
            progress("defect", [["child"], "".join(traceback.format_exception(error))[-3000:]])
        if not drained:
            progress("defect", [["child"], "drain(10) is False"])
        os._exit(0)
    try:
        errors = in_threads(ROWS[row], places[1], 2)
    finally:
        stop.set()
        thread.join()
    _, status = os.waitpid(pid, 0)
    for error in errors:
        progress("defect", [["parent"], "".join(traceback.format_exception(error))[-3000:]])
    if status:
        progress("defect", [["child"], f"wait status {status}"])
    progress("end", None)


# ---- killed at a call


def _save(folder, name, state):
    path = os.path.join(folder, name)
    if name == "store":
        with penstock.CheckpointStore(path, keep=2) as store:
            store.save(state, state["b"]["n"])
    elif name == "async_store":
        with penstock.CheckpointStore(path, keep=2) as store:
            store.save_async(state, state["b"]["n"]).result(30)
    elif name == "removed":
        with penstock.CheckpointStore(path) as store:
            store.save(state, state["b"]["n"])
            for info in store.list()[:-1]:
                store.remove(info.generation)
    elif name == "async.pt":
        penstock.save_async(state, path).result(30)
    elif name == "writer.pt":
        with penstock.FileWriter(path, buffer_bytes=1 << 20) as file:
            torch.save(state, file)
    elif name == "saved.safetensors.index.json":
        penstock.save(flat_of(state), path, shard_bytes=2000)
    else:
        penstock.save(flat_of(state), path)


KILLED = (
    "saved.pt", "saved.safetensors", "saved.safetensors.index.json", "async.pt", "writer.pt", "store", "async_store",
    "removed",
)  # fmt: skip


def prepare_kill(progress, name, folder):
    _save(folder, name, OLD)


def killed(progress, name, folder):
    """The tracer takes over where it stops itself."""
    penstock.default_engine()
    os.kill(os.getpid(), signal.SIGSTOP)
    _save(folder, name, NEW)


def after_kill(progress, name, folder, whole):
    """The old or the new state is there, whole; and the next save works."""
    path = os.path.join(folder, name)
    for again in range(2):
        if os.path.isdir(path):
            with penstock.CheckpointStore(path) as store:
                rows = store.list()
                states = [store.load(generation=info.generation) for info in rows]
                assert not any(store.open(info.generation).verify() for info in rows)
                problems = [info.problem for info in rows if info.problem]
                assert not problems, problems
        else:
            states = [nested_of(penstock.load(path))]
        assert states and all(alike(state, OLD) or alike(state, NEW) for state in states)
        newest = "new" if alike(states[-1], NEW) else "old"
        if again == 0:
            progress("newest", newest)
            if whole:
                assert newest == "new", "it had returned, and the old state is there"
            _save(folder, name, NEW)
    assert newest == "new"
    if os.path.isdir(path):
        hidden = [n for n in os.listdir(path) if n.startswith((".unfinished", ".removed"))]
        assert not hidden, f"left after the next save: {hidden}"
