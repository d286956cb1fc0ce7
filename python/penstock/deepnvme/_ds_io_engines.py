# SPDX-License-Identifier: Apache-2.0
"""The work of one process of `penstock ds_io`: its files, its tensor, its repetitions, on one of four engines.

    aio_handle    pread/pwrite of penstock.deepnvme's aio_handle, then wait()
    aio_basic     aio_read/aio_write of the module
    torch_io      torch.load and torch.save
    torch_fastio  torch.save through FastFileWriter; it has no reader, so reads are torch.load's

Only the call is timed. Files to read hold random bytes (torch engines: a tensor that torch.save wrote). Before each
repetition they are on the storage and not in the page cache.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import penstock

ENGINES = ("aio_handle", "aio_basic", "torch_io", "torch_fastio")
_CHUNK = 8 << 20


@dataclass
class Task:
    """One process: its folder, the file of each repetition, and those files that already exist and can be read as they
    are."""

    tid: int
    device: str
    folder: str
    files: list[str]
    options: argparse.Namespace
    ready: set[str] = field(default_factory=set)


@dataclass
class TaskResult:
    """Seconds of each repetition (the call alone, with the barrier, CPU), and how the files are accessed."""

    call_seconds: list[float] = field(default_factory=list)
    loop_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    file_system: str = ""
    direct: bool = False
    reason: str = ""


Tell = Callable[[int, str], None]


def need_torch(engine: str) -> Any:
    """torch, or an ImportError that says what to install."""
    try:
        import torch
    except ImportError as error:
        message = f"--engine {engine} works on torch tensors, and torch is not installed: pip install torch"
        raise ImportError(message) from error
    return torch


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _random_chunks(size: int) -> Any:
    """Yields (offset, random bytes), `size` bytes in total."""
    for offset in range(0, size, _CHUNK):
        yield offset, os.urandom(min(_CHUNK, size - offset))


def _make_read_file(path: str, size: int, tell: Callable[[str], None]) -> None:
    tell(f"makes {path}: {size} random bytes")
    _remove(path)
    with penstock.File(path, "rw", cache="direct") as file:
        for offset, chunk in _random_chunks(size):
            penstock.write(file, chunk, offset)
        file.sync()


def _fill(tensor: Any) -> None:
    """Fills a tensor with random bytes, which a drive cannot compress."""
    if not tensor.is_cpu:
        torch = need_torch("aio_handle")
        for offset, chunk in _random_chunks(tensor.nbytes):
            tensor[offset : offset + len(chunk)].copy_(torch.frombuffer(bytearray(chunk), dtype=torch.uint8))
        return
    view = memoryview(penstock.as_bytes(tensor)).cast("B")
    for offset, chunk in _random_chunks(len(view)):
        view[offset : offset + len(chunk)] = chunk


def _forget(path: str) -> None:
    """Removes the clean pages of a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _AioEngine:
    """The two engines that move a tensor, locked or on a GPU, through penstock.deepnvme."""

    def __init__(self, task: Task, tell: Callable[[str], None]) -> None:
        from penstock import deepnvme

        torch = need_torch(task.options.engine)
        options = task.options
        self._task = task
        self._module = deepnvme.AsyncIOBuilder().load()
        gds = deepnvme.GDSBuilder().load().gds_handle if options.use_gds else None
        self._handle = make_handle(options, gds or self._module.aio_handle)
        tell("Created DeepNVMe handle engine")
        if options.gpu:
            self._tensor, self._free = device_tensor(task, self._handle, torch)
        else:
            self._tensor, self._free = locked_tensor(options, options.io_size, self._handle, torch)
        self.device = str(self._tensor.device)
        tell(f"Allocate tensor of size {options.io_size} bytes")
        if options.read:
            for file in set(task.files) - task.ready:
                _make_read_file(file, options.io_size, tell)
        else:
            for file in set(task.files):
                _remove(file)
            _fill(self._tensor)

    def before(self, loop: int) -> None:
        # As in DeepSpeed: aio_basic writes a new file each time, aio_handle overwrites the first one.
        options = self._task.options
        file = self._task.files[loop]
        if options.read:
            _forget(file)
        elif options.engine == "aio_basic":
            _remove(file)

    def step(self, loop: int) -> None:
        options = self._task.options
        file = self._task.files[loop]
        if options.engine == "aio_handle":
            move = self._handle.pread if options.read else self._handle.pwrite
            move(self._tensor, file, options.validate, True)
            self._handle.wait()
        else:
            move = self._module.aio_read if options.read else self._module.aio_write
            settings = (options.block_size, options.queue_depth, options.single_submit, not options.sequential_requests)
            move(self._tensor, file, *settings, options.validate)

    def close(self) -> None:
        self._free()

    def way(self, file: str) -> tuple[str, bool, str]:
        with penstock.File(file, cache="direct") as opened:
            return opened.info.file_system, opened.info.direct, opened.info.reason


def make_handle(options: argparse.Namespace, handle: Any) -> Any:
    """A handle of this class with the given settings."""
    parallel = options.io_parallel or 1
    overlap = not options.sequential_requests
    return handle(options.block_size, options.queue_depth, options.single_submit, overlap, parallel)


def locked_tensor(options: argparse.Namespace, size: int, handle: Any, torch: Any) -> tuple[Any, Callable[[], object]]:
    """A locked tensor of `size` bytes, and a function that frees it."""
    if options.use_accelerator_pin_memory:
        from penstock import deepnvme

        handle = deepnvme.PinMemoryBuilder().load().pin_handle()
    tensor = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
    return tensor, lambda: handle.free_cpu_locked_tensor(tensor)


def device_tensor(task: Task, handle: Any, torch: Any) -> tuple[Any, Callable[[], object]]:
    """A tensor on the GPU of the task, and a function that frees it."""
    tensor = torch.empty(task.options.io_size, dtype=torch.uint8, device=f"cuda:{int(task.device)}")
    if not task.options.use_gds:
        return tensor, lambda: None
    handle.pin_device_tensor(tensor)
    return tensor, lambda: handle.unpin_device_tensor(tensor)


class _TorchEngine:
    """torch.save and torch.load, plain or through FastFileWriter."""

    device = "cpu"

    def __init__(self, task: Task, tell: Callable[[str], None]) -> None:
        from penstock import deepnvme

        options = task.options
        self._task = task
        self._torch = need_torch(options.engine)
        self._fast = options.engine == "torch_fastio"
        self._zip = not options.torch_legacy_save
        self._frees: list[Callable[[], object]] = []
        module = deepnvme.AsyncIOBuilder().load()
        self._handle = make_handle(options, module.aio_handle)
        self._tensor = self._locked(options.io_size)
        tell(f"Allocate tensor of size {options.io_size} bytes")
        if self._fast and not options.read:
            self._buffer = self._locked(options.fast_io_size)
        _fill(self._tensor)
        for file in dict.fromkeys(task.files):
            _remove(file)
            if options.read:
                tell(f"makes {file} by torch.save")
                self._save(file)
        tell(f"created {options.engine} engine")

    def _locked(self, size: int) -> Any:
        tensor, free = locked_tensor(self._task.options, size, self._handle, self._torch)
        self._frees.append(free)
        return tensor

    def _save(self, to: Any) -> None:
        self._torch.save(self._tensor, to, _use_new_zipfile_serialization=self._zip)

    def before(self, loop: int) -> None:
        file = self._task.files[loop]
        if self._task.options.read:
            _forget(file)
        else:
            _remove(file)

    def step(self, loop: int) -> None:
        file = self._task.files[loop]
        if self._task.options.read:
            loaded = self._torch.load(file, map_location="cpu", weights_only=True)
            if loaded.numel() != self._task.options.io_size:
                raise OSError(f"{file}: torch.load gave {loaded.numel()} bytes of {self._task.options.io_size}")
        elif self._fast:
            from penstock.deepnvme import FastFileWriter, FastFileWriterConfig

            writer = FastFileWriter(file, FastFileWriterConfig(dnvme_handle=self._handle, pinned_tensor=self._buffer))
            try:
                self._save(writer)
            finally:
                writer.close()
        else:
            self._save(file)

    def close(self) -> None:
        for free in self._frees:
            free()

    def way(self, file: str) -> tuple[str, bool, str]:
        with penstock.File(file, cache="direct") as opened:
            info = opened.info
        if self._fast and not self._task.options.read:
            return info.file_system, info.direct, info.reason
        how = "torch.load, its pages dropped before each loop" if self._task.options.read else "torch.save"
        return info.file_system, False, how


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run_task(task: Task, barrier: Any, tell_tid: Tell) -> TaskResult:
    """Makes the files, runs all repetitions together with the other processes, and returns their times."""
    options = task.options
    result = TaskResult()

    def tell(text: str) -> None:
        tell_tid(task.tid, text)

    engine = (_AioEngine if options.engine.startswith("aio") else _TorchEngine)(task, tell)
    try:
        kind = "Read" if options.read else "Write"
        tell(f"{kind} file {task.files[0]} of size {options.io_size} bytes from buffer on device {engine.device}")
        for loop in range(options.total_loops):
            tell(f"running main task {loop}")
            engine.before(loop)
            barrier.wait()
            cpu = _cpu_seconds()
            start = time.perf_counter()
            engine.step(loop)
            if options.fsync and not options.read:
                _fsync(task.files[loop])
            end = time.perf_counter()
            cpu = _cpu_seconds() - cpu
            barrier.wait()
            result.call_seconds.append(end - start)
            result.loop_seconds.append(time.perf_counter() - start)
            result.cpu_seconds.append(cpu)
        result.file_system, result.direct, result.reason = engine.way(task.files[-1])
        tell(f"task_latency_sec = {result.call_seconds}")
    finally:
        engine.close()
    return result
