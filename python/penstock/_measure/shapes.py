# SPDX-License-Identifier: Apache-2.0
"""Typical file accesses of programs ("shapes"), each with Penstock and with the usual calls: measured by
`penstock bench --shapes`, and used by benchmarks/ for comparison.

All sides of a shape move the same bytes from the same initial state (cold, warm, dirty, new), into the same memory or
the same files. A checksum checks that."""

from __future__ import annotations

import importlib.util
import mmap
import os
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import penstock
from penstock._measure import storage
from penstock._measure.tool import ToolError

KIB, MIB = 1 << 10, 1 << 20
FILE_BYTES = 256 * MIB
_SMALL = 4 * KIB
_ROW = 100
_TENSORS = 64


@dataclass
class Shape:
    """Several sides with the same work; the first is Penstock's."""

    what: str
    sides: dict[str, Callable[[], object]]
    operations: int
    nbytes: int
    checksum: Callable[[], int]
    states: tuple[str, ...] = ("cold", "warm")
    paths: list[str] = field(default_factory=list)  # files that are read, or written new each time
    write_dirty: Callable[[], None] | None = None

    def begin(self, state: str) -> None:
        """Puts the files into the initial state of each side. Raises NotInState if that fails."""
        if state == "new":
            for path in self.paths:
                storage.remove(path)
        elif self.write_dirty is not None:
            self.write_dirty()
        else:
            for path in self.paths:
                (storage.make_cold if state == "cold" else storage.bring_in)(path)
            size = sum(os.path.getsize(path) for path in self.paths)
            cached = sum(storage.cached_bytes(path) for path in self.paths)
            if (cached > 0.02 * size) if state == "cold" else (cached < 0.98 * size):
                raise storage.NotInState(f"{100 * cached // size} % stay in the page cache")


# ---- the usual calls


def preadv(fd: int, memory: Any, offset: int) -> None:
    """Reads all bytes; one call moves at most 2 GiB."""
    done = os.preadv(fd, [memory], offset)
    while done < len(memory):
        more = os.preadv(fd, [memory[done:]], offset + done)
        if more == 0:
            raise ToolError(f"the file ends at byte {offset + done}: something else has cut it")
        done += more


def preadv_each(path: str, pieces: Iterable[Any], offsets: Iterable[int], flags: int = 0) -> None:
    """A call of os.preadv for each piece, including the open."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        for piece, offset in zip(pieces, offsets):
            os.preadv(fd, [piece], offset)
    finally:
        os.close(fd)


def readinto_each(paths: Iterable[str], pieces: Iterable[Any]) -> None:
    for path, piece in zip(paths, pieces):
        with open(path, "rb", buffering=0) as file:
            file.readinto(piece)


def readinto_threads(paths: Sequence[str], pieces: Sequence[Any], threads: int = 8) -> None:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda one: readinto_each([one[0]], [one[1]]), zip(paths, pieces)))


def memmap_rows(path: str, out: Any, stride: int) -> None:
    """Copies the first bytes of each stride to `out[:]`, with numpy.memmap, including the mapping."""
    import numpy

    out[:] = numpy.memmap(path, numpy.uint8, "r", shape=(len(out), stride))[:, : out.shape[1]]


def pwritev_each(path: str, pieces: Iterable[Any], offsets: Iterable[int], sync: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        for piece, offset in zip(pieces, offsets):
            os.pwritev(fd, [piece], offset)
        if sync:
            os.fdatasync(fd)
    finally:
        os.close(fd)


def write_each(paths: Iterable[str], data: Any) -> None:
    for path in paths:
        with open(path, "wb", buffering=0) as file:
            file.write(data)


# ---- Penstock


def _ours_each(path: str, pieces: Iterable[Any], offsets: Iterable[int]) -> None:
    with penstock.File(path) as file:
        for piece, offset in zip(pieces, offsets):
            penstock.read(file, piece, offset)


def _ours_appends(path: str, pieces: Iterable[Any], offsets: Iterable[int]) -> None:
    with penstock.File(path, "w") as file:
        for piece, offset in zip(pieces, offsets):
            penstock.write(file, piece, offset)
        file.sync()


# ---- code that the sides share


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def memory_of(size: int) -> memoryview:
    """Memory that starts at a page and is touched, so that no side is timed with page faults."""
    memory = memoryview(mmap.mmap(-1, max(size, 1)))
    memory[:: mmap.PAGESIZE] = bytes(len(memory[:: mmap.PAGESIZE]))
    return memory[:size]


def _crc_of(memory: Any) -> Callable[[], int]:
    """The checksum of the memory, which is then cleared for the next side."""

    def checksum() -> int:
        found = zlib.crc32(memory)
        memory[:] = bytes(len(memory))
        return found

    return checksum


def _crc_of_files(paths: Sequence[str]) -> Callable[[], int]:
    def checksum() -> int:
        found = 0
        for path in paths:
            with open(path, "rb") as file:
                while part := file.read(8 * MIB):
                    found = zlib.crc32(part, found)
        return found

    return checksum


def write_random(path: str, size: int) -> None:
    """Writes incompressible bytes, through the page cache, without a sync."""
    with open(path, "wb", buffering=0) as file:
        for offset in range(0, size, 8 * MIB):
            file.write(os.urandom(min(8 * MIB, size - offset)))


class Files:
    """The files of a run, in a separate folder, made when a shape first needs them. `scale` is above 1 in tests: it
    divides all counts and the size of the large file."""

    def __init__(self, folder: str, scale: int = 1) -> None:
        self._folder = folder
        self._scale = scale
        self.large_bytes = FILE_BYTES // scale

    def count(self, count: int) -> int:
        return max(count // self._scale, 1)

    def path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def large(self) -> str:
        path = self.path("large")
        if not os.path.exists(path):
            write_random(path, self.large_bytes)
        return path

    def small(self) -> list[str]:
        folder = self.path("small")
        paths = [os.path.join(folder, str(i)) for i in range(self.count(1000))]
        if not os.path.isdir(folder):
            os.mkdir(folder)
            for path in paths:
                write_random(path, _SMALL)
        return paths

    def remove_own(self) -> None:
        """Removes the files that only one shape needs."""
        for name in os.listdir(self._folder):
            if name not in ("large", "small"):
                storage.remove(self.path(name))

    def new(self, count: int) -> list[str]:
        os.makedirs(self.path("new"), exist_ok=True)
        return [self.path(f"new/{i}") for i in range(count)]


def _whole(files: Files) -> Shape:
    path, size = files.large(), files.large_bytes
    memory = memory_of(size)
    return Shape(
        f"{size // MIB} MiB in one call",
        {
            "penstock": lambda: penstock.read(path, memory),
            "preadv": lambda: preadv_each(path, [memory], [0]),
            "O_DIRECT": lambda: preadv_each(path, [memory], [0], os.O_DIRECT),
        },
        1,
        size,
        _crc_of(memory),
        paths=[path],
    )


def _sequence(files: Files) -> Shape:
    path, count = files.large(), files.count(8192)
    memory = memory_of(count * _SMALL)
    offsets = range(0, count * _SMALL, _SMALL)
    pieces = [memory[offset : offset + _SMALL] for offset in offsets]

    def by_readinto() -> None:
        with open(path, "rb", buffering=0) as file:
            for piece in pieces:
                file.readinto(piece)

    return Shape(
        f"{count:,} x 4 KiB in sequence, one by one",
        {
            "penstock": lambda: _ours_each(path, pieces, offsets),
            "preadv": lambda: preadv_each(path, pieces, offsets),
            "readinto": by_readinto,
        },
        count,
        count * _SMALL,
        _crc_of(memory),
        paths=[path],
    )


def _random(files: Files) -> Shape:
    path, count, choose = files.large(), files.count(4000), random.Random(1)
    memory = memory_of(count * _SMALL)
    offsets = [choose.randrange(files.large_bytes // _SMALL) * _SMALL for _ in range(count)]
    pieces = [memory[i * _SMALL : (i + 1) * _SMALL] for i in range(count)]
    return Shape(
        f"{count:,} x 4 KiB at random, one list",
        {
            "penstock": lambda: penstock.read(path, pieces, offsets),
            "preadv": lambda: preadv_each(path, pieces, offsets),
        },
        count,
        count * _SMALL,
        _crc_of(memory),
        paths=[path],
    )


def _small_files(files: Files, as_list: bool) -> Shape:
    paths = files.small()
    memory = memory_of(len(paths) * _SMALL)
    pieces = [memory[i * _SMALL : (i + 1) * _SMALL] for i in range(len(paths))]

    def each() -> None:
        for path, piece in zip(paths, pieces):
            penstock.read(path, piece)

    sides: dict[str, Callable[[], object]] = {
        "penstock": (lambda: penstock.read(paths, pieces)) if as_list else each,
        "readinto": lambda: readinto_each(paths, pieces),
    }
    if as_list:
        sides["8 threads"] = lambda: readinto_threads(paths, pieces)
    how = "one list" if as_list else "a call each"
    what = f"{len(paths):,} files of 4 KiB, {how}"
    return Shape(what, sides, len(paths), len(memory), _crc_of(memory), paths=paths)


def _just_written(files: Files) -> Shape:
    path, size = files.path("dirty"), files.count(64) * MIB
    memory = memory_of(size)
    data = os.urandom(size)

    def write() -> None:
        storage.remove(path)
        write_each([path], data)

    return Shape(
        f"{size // MIB} MiB just written, not synced",
        {"penstock": lambda: penstock.read(path, memory), "readinto": lambda: readinto_each([path], [memory])},
        1,
        size,
        _crc_of(memory),
        ("dirty",),
        [path],
        write,
    )


def _loads(files: Files, suffix: str, states: tuple[str, ...]) -> Shape:
    """A model in tensors of 4 MiB. The bytes of every tensor are read, because a memory map reads nothing before."""
    import torch

    state = {f"layer{i}": torch.empty(MIB, dtype=torch.float32) for i in range(files.count(_TENSORS))}
    for tensor in state.values():
        tensor.random_(0, 1 << 24)
    path = files.path(f"model-{''.join(states)}.{suffix}")
    loaded: dict[str, Any] = {}

    def keep(found: dict[str, Any]) -> None:
        loaded.clear()
        loaded.update(found)

    def by_stock() -> None:
        if suffix == "pt":
            return keep(torch.load(path))
        from safetensors.torch import load_file

        return keep({name: tensor.clone() for name, tensor in load_file(path).items()})

    def save() -> None:
        torch.save(state, path)

    def checksum() -> int:
        found = 0
        for name in sorted(loaded):
            found = zlib.crc32(loaded[name].numpy(), found)
        loaded.clear()
        return found

    if suffix == "pt":
        save()
    else:
        penstock.save(state, path)
    stock = "torch.load" if suffix == "pt" else "load_file"
    what = f"load of {len(state) * 4} MiB, .{suffix}" + (", just saved" if states == ("dirty",) else "")
    return Shape(
        what,
        {"penstock": lambda: keep(penstock.load(path)), stock: by_stock},
        len(state),
        len(state) * 4 * MIB,
        checksum,
        states,
        [path],
        save if states == ("dirty",) else None,
    )


def _rows(files: Files, stride: int) -> Shape:
    path, count = files.large(), files.count(20_000)
    memory = memory_of(count * _ROW)
    ids = list(range(count))
    offsets = range(0, count * stride, stride)
    pieces = [memory[i * _ROW : (i + 1) * _ROW] for i in ids]
    out: Any = memory.cast("B", (count, _ROW))
    sides: dict[str, Callable[[], object]] = {}
    if has("numpy"):
        import numpy

        out, ids = numpy.asarray(out), numpy.arange(count)
        sides["memmap"] = lambda: memmap_rows(path, out, stride)
    ours: dict[str, Callable[[], object]] = {"penstock": lambda: penstock.read_rows(path, ids, out, stride=stride)}
    return Shape(
        f"{count:,} rows of 100 B, stride {stride:,}",
        ours | {"preadv": lambda: preadv_each(path, pieces, offsets)} | sides,
        count,
        count * _ROW,
        _crc_of(memory),
        paths=[path],
    )


def _sparse(files: Files, shuffled: bool) -> Shape:
    path, count, choose = files.large(), files.count(20_000), random.Random(1)
    lengths = [choose.randrange(1, 513) for _ in range(count)]
    offsets = sorted(choose.randrange(files.large_bytes - 512) for _ in range(count))
    if shuffled:
        choose.shuffle(offsets)
    memory = memory_of(sum(lengths))
    pieces, at = [], 0
    for length in lengths:
        pieces.append(memory[at : at + length])
        at += length
    return Shape(
        f"{count:,} pieces of 1 to 512 B, {'shuffled' if shuffled else 'sorted'}",
        {
            "penstock": lambda: penstock.read(path, pieces, offsets),
            "preadv": lambda: preadv_each(path, pieces, offsets),
        },
        count,
        at,
        _crc_of(memory),
        paths=[path],
    )


def _appends(files: Files, size: int, title: str, count: int) -> Shape:
    path, data, count = files.path("log"), os.urandom(size), files.count(count)
    records, offsets = [data] * count, range(0, size * count, size)
    return Shape(
        f"{count:,} appends of {title}, then sync",
        {
            "penstock": lambda: _ours_appends(path, records, offsets),
            "pwrite": lambda: pwritev_each(path, records, offsets, sync=True),
        },
        count,
        size * count,
        _crc_of_files([path]),
        ("new",),
        [path],
    )


def _scattered(files: Files) -> Shape:
    path, count, data = files.path("scattered"), files.count(4000), os.urandom(4097)
    records, offsets = [data] * count, [i * 8192 for i in range(count)]
    return Shape(
        f"{count:,} x 4,097 B every 8 KiB, synced",
        {
            "penstock": lambda: penstock.write(path, records, offsets, sync=True),
            "pwritev": lambda: pwritev_each(path, records, offsets, sync=True),
        },
        count,
        count * len(data),
        _crc_of_files([path]),
        ("new",),
        [path],
    )


def _new_files(files: Files, size: int, title: str, count: int) -> Shape:
    count, data = files.count(count), os.urandom(size)
    paths = files.new(count)

    def ours() -> None:
        for path in paths:
            penstock.write(path, data)

    return Shape(
        f"{count} new files of {title}, no sync",
        {"penstock": ours, "open, write": lambda: write_each(paths, data)},
        count,
        count * size,
        _crc_of_files(paths),
        ("new",),
        paths,
    )


def _threads(files: Files, threads: int) -> Shape:
    path, each, choose = files.large(), files.count(6400 // threads), random.Random(1)
    memory = memory_of(threads * each * _SMALL)
    pieces = [memory[i * _SMALL : (i + 1) * _SMALL] for i in range(threads * each)]
    offsets = [choose.randrange(files.large_bytes // _SMALL) * _SMALL for _ in pieces]

    def in_threads(work: Callable[..., None], *more: Any) -> None:
        parts = [slice(i * each, (i + 1) * each) for i in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda part: work(path, pieces[part], offsets[part], *more), parts))

    return Shape(
        f"{threads} threads, blocking reads of 4 KiB",
        {
            "penstock": lambda: in_threads(_ours_each),
            "O_DIRECT": lambda: in_threads(preadv_each, os.O_DIRECT),
            "preadv": lambda: in_threads(preadv_each),
        },
        len(pieces),
        len(memory),
        _crc_of(memory),
        ("cold",),
        [path],
    )


Make = Callable[[Files], Shape]

# The shapes, by the names for --only.
SHAPES: dict[str, Make] = {
    "whole": _whole,
    "sequence": _sequence,
    "random": _random,
    "files_each": lambda files: _small_files(files, as_list=False),
    "files_list": lambda files: _small_files(files, as_list=True),
    "just_written": _just_written,
    "load_saved": lambda files: _loads(files, "pt", ("dirty",)),
    "load_pt": lambda files: _loads(files, "pt", ("cold", "warm")),
    "load_safetensors": lambda files: _loads(files, "safetensors", ("cold", "warm")),
    "rows_128": lambda files: _rows(files, 128),
    "rows_4096": lambda files: _rows(files, 4096),
    "sparse_sorted": lambda files: _sparse(files, shuffled=False),
    "sparse_shuffled": lambda files: _sparse(files, shuffled=True),
    "append_4k": lambda files: _appends(files, 4096, "4 KiB", 2000),
    "append_10k": lambda files: _appends(files, 10_000, "10 kB", 1000),
    "append_1m": lambda files: _appends(files, MIB, "1 MiB", 64),
    "scattered_writes": _scattered,
    "new_64k": lambda files: _new_files(files, 64 * KIB, "64 KiB", 200),
    "new_1m": lambda files: _new_files(files, MIB, "1 MiB", 50),
    "threads_16": lambda files: _threads(files, 16),
    "threads_64": lambda files: _threads(files, 64),
}

# The modules that a shape needs.
NEEDS = {
    "load_saved": ("torch",),
    "load_pt": ("torch",),
    "load_safetensors": ("torch", "safetensors"),
}

# The large file, two models, and the files that are written at a time.
DISK_BYTES = FILE_BYTES * 4
MEMORY_BYTES = FILE_BYTES * 3
