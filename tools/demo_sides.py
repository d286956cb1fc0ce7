# SPDX-License-Identifier: Apache-2.0
"""The sides that the demo sets beside each other: Penstock, fio, torch. Each function gives the seconds it took.

The same care for all: a file is new when it is written, its bytes are on the disk when the clock stops (fsync), and
the page cache knows nothing of it when it is read.
"""

import json
import os
import platform
import shutil
import subprocess
import time
from functools import cache

import penstock
import torch

MIB = 1 << 20


def machine():
    model = ""
    with open("/proc/cpuinfo") as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    cpus = len(os.sched_getaffinity(0))
    return f"{cpus} x {model or platform.machine()}, kernel {platform.release()}, torch {torch.__version__}"


def free_memory():
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + cached()


def cached():
    """Bytes of the page cache, which the kernel gives back."""
    with open("/proc/meminfo") as lines:
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Cached:")), 0)


def tensor_of(size):
    """Values that no disk can compress."""
    return torch.randint(-(2**62), 2**62, (size // 8,), generator=torch.Generator().manual_seed(size))


def empty_like_tensor(size):
    return empty_like(torch.empty(size // 8, dtype=torch.int64))


def empty_like(tensor):
    """Memory that has been touched, with other bits in it."""
    return torch.full_like(tensor, 7)


def equal_bits(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def forget(path):
    """Out of the page cache: what a program reads that starts tomorrow."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def remove(path):
    path.unlink(missing_ok=True)


# Penstock ------------------------------------------------------------------------------------------------------------


def write_penstock(path, tensor):
    remove(path)
    start = time.perf_counter()
    penstock.write(path, tensor, sync=True)
    return time.perf_counter() - start


def read_penstock(path, into):
    forget(path)
    start = time.perf_counter()
    penstock.read(path, into)
    return time.perf_counter() - start


def places(tensors):
    """One tensor after the other."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end += tensor.nbytes
    return offsets


def write_penstock_many(path, tensors):
    remove(path)
    start = time.perf_counter()
    penstock.write(path, tensors, places(tensors), sync=True)
    return time.perf_counter() - start


def read_penstock_many(path, tensors):
    forget(path)
    start = time.perf_counter()
    penstock.read(path, tensors, places(tensors))
    return time.perf_counter() - start


# torch ---------------------------------------------------------------------------------------------------------------


def save_torch(path, value):
    remove(path)
    start = time.perf_counter()
    with open(path, "wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def load_torch(path):
    forget(path)
    start = time.perf_counter()
    value = torch.load(path, weights_only=True)
    seconds = time.perf_counter() - start
    del value
    return seconds


# fio -----------------------------------------------------------------------------------------------------------------


def run_watched(command, tick):
    """Its standard output; `tick` is called several times a second. It does not outlive us."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                out, errors = process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                tick()
    except BaseException:
        process.terminate()
        process.communicate()
        raise
    if process.returncode:
        raise SystemExit(
            f"demo: {' '.join(command[:6])} ... ended with {process.returncode}: {(errors or out).strip()[-600:]}"
        )
    return out


class Fio:
    """fio with blocks of 1 MiB, 16 at once, past the page cache; io_uring where it is allowed, else libaio."""

    def __init__(self, engine):
        self.engine = engine
        self.name = f"fio ({engine}, 1 MiB x 16)"

    @staticmethod
    @cache
    def find():
        """None where it is not installed."""
        if not shutil.which("fio"):
            return None
        backend = penstock.default_engine().describe().backend
        return Fio("io_uring" if backend == "io_uring" else "libaio")

    def _run(self, *options):
        command = ["fio", "--name=demo", "--thread", f"--ioengine={self.engine}", "--bs=1M", "--iodepth=16"]
        command += ["--output-format=json", "--eta=never", *options]
        out = run_watched(command, lambda: None)
        return json.loads(out[out.index("{") :])["jobs"][0]

    def write(self, path, size):
        remove(path)
        job = self._run(
            "--rw=write", "--end_fsync=1", f"--filename={path}", f"--size={size}", f"--direct={direct(path.parent)}"
        )
        return job["write"]["runtime"] / 1000

    def read(self, path, size):
        forget(path)
        job = self._run(
            "--rw=read", "--readonly", f"--filename={path}", f"--size={size}", f"--direct={direct(path.parent)}"
        )
        return job["read"]["runtime"] / 1000


@cache
def direct(folder):
    """1 where files in this folder can be read past the page cache."""
    probe = folder / "direct.probe"
    try:
        with penstock.File(probe, "rw") as file:
            return 1 if file.info.direct else 0
    finally:
        remove(probe)
