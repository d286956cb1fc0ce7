# SPDX-License-Identifier: Apache-2.0
"""Saves in the background of training: how long it stands still, and what a step costs with a save in each.

`stall`: from the call until tensors may be changed again. --way=ours|memcpy|dcp. `memcpy` is the floor: the same
tensors copied by all cores into memory that was touched before, --by=memmove|torch. `dcp` is
torch.distributed.checkpoint.async_save with a stager that is kept, --staging=shared|plain (the third, which pins its
memory, wants an accelerator). --turn=first: the first save of the process; else the mean of
--repeat saves after two that warm everything, each waited for before the next.
"""

import concurrent.futures
import ctypes
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import time
from pathlib import Path

from benchmarks import checkpoint_states as states
from benchmarks.job_tools import figures, need, need_call, skip

# ---- the floor ----


class _Memcpy:
    """The state's bytes into touched memory on huge pages: an equal part a core, or torch's own parallel copies."""

    def __init__(self, state, by):
        self._by = by
        self._cores = len(os.sched_getaffinity(0))
        tensors = [tensor for _, tensor in states.tensors_of(state) if tensor.nbytes]
        total = sum(tensor.nbytes for tensor in tensors)
        self._memory = mmap.mmap(-1, total)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        ctypes.memset(self._address(), 1, total)
        self._parts = self._split(tensors, -(-total // self._cores))
        self._pairs = self._views(tensors) if by == "torch" else []
        self._pool = concurrent.futures.ThreadPoolExecutor(self._cores)
        list(self._pool.map(lambda _: time.sleep(0.01), range(self._cores)))

    def _address(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def _split(self, tensors, share):
        parts, at, room = [[]], self._address(), share
        for tensor in tensors:
            source, left = tensor.data_ptr(), tensor.nbytes
            while left:
                if not room:
                    parts.append([])
                    room = share
                size = min(left, room)
                parts[-1].append((at, source, size))
                at, source, left, room = at + size, source + size, left - size, room - size
        return parts

    def _views(self, tensors):
        """(there, here) of each tensor."""
        torch = need("torch")
        torch.set_num_threads(self._cores)
        there = torch.frombuffer(self._memory, dtype=torch.uint8)
        at, pairs = 0, []
        for tensor in tensors:
            here = tensor.detach().reshape(-1).view(torch.uint8)
            pairs.append((there[at : at + tensor.nbytes], here))
            at += tensor.nbytes
        return pairs

    def run(self):
        if self._by == "torch":
            for there, here in self._pairs:
                there.copy_(here)
            return

        def copy(part):
            for into, source, size in part:
                ctypes.memmove(into, source, size)  # without the GIL

        list(self._pool.map(copy, self._parts))


# ---- the sides of a stall: (save(index) -> after it tensors may change, wait()) ----


class _Ours:
    def __init__(self, folder, arguments):
        penstock = need("penstock")
        self._save = need_call(penstock, "save_async")
        self._folder = folder
        self._handicap = arguments.get("handicap")
        self._pending = None

    def save(self, state, index):
        if self._handicap == "copy":
            state = states.clone(state)
        self._path = f"{self._folder}/{index}.pt"
        self._pending = self._save(state, self._path)  # returns when the tensors may change

    def wait(self):
        self._pending.result()
        os.unlink(self._path)


class _Dcp:
    def __init__(self, folder, arguments):
        self._dcp = need("torch.distributed.checkpoint")
        staging = need("torch.distributed.checkpoint.staging")
        torch = need("torch")
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self._folder = folder
        shared = arguments["staging"] == "shared"
        self._stager = staging.DefaultStager(staging.StagingOptions(False, shared, False, False))
        self._future = None

    def save(self, state, index):
        self._path = f"{self._folder}/{index}"
        writer = self._dcp.FileSystemWriter(self._path)
        self._future = self._dcp.async_save(state, storage_writer=writer, async_stager=self._stager)

    def wait(self):
        self._future.result()
        shutil.rmtree(self._path)


class _Floor:
    def __init__(self, state, by):
        self._copy = _Memcpy(state, by)

    def save(self, _state, _index):
        self._copy.run()

    def wait(self):
        pass


def _side(arguments, state, folder):
    if arguments["way"] == "memcpy":
        return _Floor(state, arguments.get("by", "memmove"))
    return (_Ours if arguments["way"] == "ours" else _Dcp)(folder, arguments)


def stall(arguments):
    """Handicap `copy`: the state is cloned before it is handed over, as for a saver that is not trusted."""
    state = states.state_of(arguments)
    if "dir" not in arguments:
        arguments = {**arguments, "dir": "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp"}
    first = arguments.get("turn") == "first"
    wanted, stalls = 1 if first else int(arguments.get("repeat", "3")), []
    with states.own_folder(arguments) as folder:
        side = _side(arguments, state, folder)
        for index in range(wanted if first else wanted + 2):
            states.settle(folder)
            need("penstock._measure.host_memory").back_memory(states.bytes_of(state))
            start = time.perf_counter()
            side.save(state, index)
            stalls.append(time.perf_counter() - start)
            side.wait()
    module, size = "penstock" if arguments["way"] == "ours" else "torch", states.bytes_of(state)
    return figures(module, seconds=statistics.fmean(stalls[-wanted:]), bytes=size, operations=wanted, every_s=stalls)


# ---- a step with a save in it ----


class _Step:
    """Forward and backward as matmuls on cores - 1 threads for about `seconds`, then an update of every tensor."""

    def __init__(self, state, seconds):
        self._torch = need("torch")
        self._torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
        self._a, self._b = self._torch.randn(768, 768), self._torch.randn(768, 768)
        self._into = self._torch.empty(768, 768)
        self._tensors = [tensor for _, tensor in states.tensors_of(state) if tensor.dim()]
        self._count = 10
        for _ in range(3):  # the first of them warms up
            self._count = max(1, round(self._count * seconds / self.run()))

    def _compute(self):
        start = time.perf_counter()
        for _ in range(self._count):
            self._torch.matmul(self._a, self._b, out=self._into)
        return time.perf_counter() - start

    def run(self, before_update=None):
        """Seconds of the step; the update waits for what reads the tensors."""
        start = time.perf_counter()
        self._compute()
        if before_update:
            before_update()
        for tensor in self._tensors:
            tensor.mul_(0.9999)
        return time.perf_counter() - start


class _Fio:
    """fio writing the state's bytes once a step meanwhile: as many blocks at once, then a pause till the next step."""

    def __init__(self, folder, size, step_s, write_s):
        blocks = max(1, round(size / states.MIB))
        pause_us = max(1000, int((step_s - write_s) * 1e6))
        command = need("penstock._measure.fio").command(
            "write",
            **{"bs": "1m", "iodepth": 16, "ioengine": "io_uring", "filename": f"{folder}/beside", "size": f"{blocks}m"},
            **{"runtime": 600, "time_based": 1, "thinktime": f"{pause_us}us", "thinktime_blocks": blocks},
            thread=1,  # one process, whose bytes the kernel counts
        )
        self._log = Path(folder, "fio.json").open("w+")
        if not shutil.which("fio"):
            skip("the control fio is not installed: apt-get install fio")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.DEVNULL)
        time.sleep(1.0)  # it lays its file out
        self.stop()

    def written(self):
        """Bytes so far."""
        for line in Path(f"/proc/{self._process.pid}/io").read_text().splitlines():
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
        return 0

    def stop(self):
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self):
        """RuntimeError when it had failed."""
        self.go_on()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=30)
        self._log.seek(0)
        with self._log:
            need("penstock._measure.fio").figures(self._log.read(), "write")  # or why there are none


def _steps_beside_fio(step, folder, size, write_s, step_s, count):
    """Seconds of `count` steps, and the bytes that fio wrote a step."""
    fio = _Fio(folder, size, step_s, write_s)
    try:
        before = fio.written()
        fio.go_on()
        taken = [step.run() for _ in range(count + 1)]
        fio.stop()
        written = (fio.written() - before) / len(taken)
    finally:
        fio.end()
    return taken[1:], written


def _saved_steps(step, state, folder, count, handicap):
    """`count` steps, a save in each: begun when the step begins, and done with the tensors before they are updated."""
    penstock = need("penstock")
    store = need_call(penstock, "CheckpointStore")(f"{folder}/store", keep=1, incremental=False, read_back=False)
    taken, waits = [], []
    with store:
        for index in range(count + 1):
            start = time.perf_counter()
            pending = store.save_async(state, step=index, copy=False)
            if handicap == "sync":
                pending.result()

            def before_update(pending=pending):
                begun = time.perf_counter()
                pending.wait_before_update()
                waits.append(time.perf_counter() - begun)

            step.run(before_update)
            taken.append(time.perf_counter() - start)
            pending.result()
    return taken[1:], waits[1:]  # the first one has the pools to make


def every_step(arguments):
    """The seconds of a step with a write in each, to those of the step alone. --way=ours|fio, --rate= bytes a second of
    the device, --fill= the part of the step that the write takes. Handicap `sync`: each save is waited for at once."""
    state = states.state_of(arguments)
    size = states.bytes_of(state)
    write_s = size / float(arguments["rate"])
    step = _Step(state, write_s / float(arguments["fill"]))
    count = int(arguments.get("count", "6"))
    alone, beside, waits = [], [], []
    with states.own_folder(arguments) as folder:
        step.run()
        alone += [step.run() for _ in range(count)]
        if arguments["way"] == "fio":
            # A step takes longer while fio runs, and fio is to write once a step: so its pause is set twice.
            begun, _ = _steps_beside_fio(step, folder, size, write_s, statistics.median(alone), 3)
            beside, written = _steps_beside_fio(step, folder, size, write_s, statistics.median(begun), count)
        else:
            written = -states.io_bytes("write")
            beside, waits = _saved_steps(step, state, folder, count, arguments.get("handicap"))
            written = (written + states.io_bytes("write")) / (count + 1)
        alone += [step.run() for _ in range(count)]
    filled = write_s / statistics.median(alone)
    if not 0.45 <= filled <= 0.85:
        skip(f"the write would fill {filled:.2f} of a step, not 0.5 to 0.8: this machine is too busy to set its length")
    return figures(
        value=statistics.median(beside) / statistics.median(alone),
        seconds=statistics.median(beside),
        **{"alone_s": alone, "beside_s": beside, "wait_before_update_s": waits, "filled": filled},
        **{"bytes": round(written), "state_bytes": size, "operations": count},  # bytes a step
    )
