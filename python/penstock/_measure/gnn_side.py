# SPDX-License-Identifier: Apache-2.0
"""One side of `penstock bench gnn` in a separate process: gathers the rows of each batch and checks every byte.

python -m penstock._measure.gnn_side '{"side": "memmap", "table": ..., "ids": ..., "ends": ..., "words": ...}'"""

from __future__ import annotations

import functools
import json
import mmap
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

Waits = Iterator[Callable[[], tuple[Any, float]]]
_HINTED = 8
_THREADS = 32
_GROUP = 512
_PART_ROWS = 1 << 14
_STEP = np.uint64(0xD1342543DE82EF95)


def row_keys(ids: Any) -> Any:
    """The first word of each row: its number, hashed by the finaliser of SplitMix64."""
    bits = ids.astype(np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def rows_of(ids: Any, words: int) -> Any:
    """The rows: word j is the first word plus j times a constant, so that two words of a table are not equal by
    chance."""
    return row_keys(ids)[:, None] + np.arange(words, dtype=np.uint64) * _STEP


def write_table(path: str, rows: int, words: int, told: Callable[[int], object] = lambda percent: None) -> None:
    """Writes a .npy whose rows begin at byte 4096, so that memory maps and direct reads find them at the same place."""
    head = f"{{'descr': '<u8', 'fortran_order': False, 'shape': ({rows}, {words}), }}"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + (4096 - 10).to_bytes(2, "little") + head.encode().ljust(4096 - 11) + b"\n")
        for begin in range(0, rows, _PART_ROWS):
            told(begin * 100 // rows)
            part = np.arange(begin, min(begin + _PART_ROWS, rows))
            file.write(memoryview(rows_of(part, words)).cast("B"))
        os.fsync(file.fileno())


def check(rows: Any, ids: Any) -> None:
    """Raises ValueError with the first row that has a wrong byte."""
    part = 4096
    for begin in range(0, len(ids), part):
        wanted = rows_of(ids[begin : begin + part], rows.shape[1])
        if not np.array_equal(rows[begin : begin + part], wanted):
            wrong = int((rows[begin : begin + part] != wanted).any(axis=1).argmax())
            raise ValueError(f"row {ids[begin + wrong]} has wrong bytes")


def _parts(ids: Any, out: Any, take: Callable[[Any, Any], None], pool: ThreadPoolExecutor) -> Any:
    """Fills `out`, each thread a part of it."""
    part = -(-len(ids) // _THREADS) or 1
    list(pool.map(lambda begin: take(ids[begin : begin + part], out[begin : begin + part]), range(0, len(ids), part)))
    return out


def _each(gather: Callable[[Any], Any], batches: list[Any]) -> Waits:
    """Gathers for which the loop waits from beginning to end."""

    def timed(ids: Any) -> tuple[Any, float]:
        start = time.perf_counter()
        rows = gather(ids)
        return rows, time.perf_counter() - start

    for ids in batches:
        yield functools.partial(timed, ids)


def _memmap(path: str, batches: list[Any], memory: int | None) -> Waits:
    table = np.load(path, mmap_mode="r")
    return _each(lambda ids: table[ids], batches)


def _torch(path: str, batches: list[Any], memory: int | None) -> Waits:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of memory that cannot be written
        table = torch.from_numpy(np.load(path, mmap_mode="r").view(np.int64))  # torch cannot index uint64
    return _each(lambda ids: table[torch.from_numpy(ids)].numpy().view(np.uint64), batches)


def _tuned(path: str, batches: list[Any], memory: int | None) -> Waits:
    table = np.load(path, mmap_mode="r")
    table._mmap.madvise(mmap.MADV_RANDOM)
    pool = ThreadPoolExecutor(_THREADS)

    def take(ids: Any, out: Any) -> None:
        np.take(table, ids, axis=0, out=out, mode="clip")

    return _each(lambda ids: _parts(ids, np.empty((len(ids), table.shape[1]), table.dtype), take, pool), batches)


def _rows_begin(path: str) -> tuple[int, int]:
    """The offset of the rows in a .npy, and the words of a row."""
    table = np.load(path, mmap_mode="r")
    return table.offset, table.shape[1]


def _pread(path: str, batches: list[Any], memory: int | None) -> Waits:
    begin, words = _rows_begin(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    pool = ThreadPoolExecutor(_THREADS)

    def take(ids: Any, out: Any) -> None:
        for number, row in zip(ids.tolist(), out, strict=True):
            if os.preadv(descriptor, [row], begin + number * row.nbytes) != row.nbytes:
                raise OSError(f"{path}: row {number} came short")

    return _each(lambda ids: _parts(ids, np.empty((len(ids), words), np.uint64), take, pool), batches)


def _graphbolt(path: str, batches: list[Any], memory: int | None) -> Waits:
    import penstock

    begin, words = _rows_begin(path)
    engine = penstock.Engine(queue_depth=_GROUP, gap_bytes=0)
    file = penstock.File(path, "r", cache="direct")
    bounce = np.empty((_GROUP, words), np.uint64)

    def gather(ids: Any) -> Any:
        out = np.empty((len(ids), words), np.uint64)
        for at in range(0, len(ids), _GROUP):
            some = ids[at : at + _GROUP]
            engine.read_rows(file, some, bounce[: len(some)], base=begin, stride=words * 8)
            out[at : at + len(some)] = bounce[: len(some)]
        return out

    return _each(gather, batches)


def _penstock(path: str, batches: list[Any], memory: int | None) -> Waits:
    import penstock

    with penstock.FeatureStore.open(path, ram="auto" if memory is None else memory) as store:
        (table,) = store.tables.values()
        yield from _each(table.gather, batches)


def _end_of(future: Any) -> float:
    """The time of its end. It does not touch the rows, which are the loop's."""
    over = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        future.notify(over)
        os.eventfd_read(over)
        return time.perf_counter()
    finally:
        os.close(over)


def _ahead(path: str, batches: list[Any], memory: int | None) -> Waits:
    import penstock

    with (
        penstock.FeatureStore.open(path, ram="auto" if memory is None else memory) as store,
        ThreadPoolExecutor(1) as clock,
    ):
        (table,) = store.tables.values()

        def begin(ids: Any) -> tuple[Any, float, Any]:
            start = time.perf_counter()
            future = table.gather_async(ids)
            return future, start, clock.submit(_end_of, future)

        for ids in batches[:_HINTED]:
            table.hint(ids)
        later = begin(batches[0]) if batches else None
        for number, following in enumerate([*batches[1:], None]):
            now = later
            for ids in batches[number + _HINTED : number + _HINTED + 1]:
                table.hint(ids)

            def wait(now: Any = now, following: Any = following) -> tuple[Any, float]:
                nonlocal later
                future, start, ended = now
                waiting = time.perf_counter()
                rows = future.result()
                came = time.perf_counter()
                # The wait also copies rows that stay in memory, after the reads.
                end = min(ended.result(), came)
                later = None if following is None else begin(following)
                return rows, end - start + came - max(end, waiting)

            yield wait


# Arguments of a side: the path of the table, batches, memory for rows that stay (for Penstock). For each batch a side
# yields a call that waits for its rows, and returns them with the seconds in which they were read and copied.
SIDES: dict[str, Callable[[str, list[Any], int | None], Waits]] = {
    "memmap": _memmap,
    "torch": _torch,
    "tuned": _tuned,
    "pread": _pread,
    "graphbolt": _graphbolt,
    "penstock": _penstock,
    "ahead": _ahead,
}


def _read_bytes() -> int:
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))


def run(
    side: str,
    table: str,
    ids: str,
    ends: str,
    memory: int | None = None,
    report: Callable[[int], None] = lambda batches: None,
) -> dict[str, Any]:
    """Measures a side. busy_s: time in which rows are read or copied, for each batch. exposed_s: time that the loop
    waits for them. step_s: time to check their bytes, in place of training. cpu_s: of the process without the checks.
    report: gets the number of batches so far, out of all of these times."""
    every, stops = np.load(ids), np.load(ends)
    batches = np.split(every, stops[:-1])
    busy, exposed, steps, checks_cpu = [], [], [], 0.0
    read, cpu = _read_bytes(), time.process_time()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    for number, wait in enumerate(SIDES[side](table, batches, memory)):
        start = time.perf_counter()
        rows, working = wait()
        came, own = time.perf_counter(), time.thread_time()
        check(rows, batches[number])
        checks_cpu += time.thread_time() - own
        busy.append(working)
        exposed.append(came - start)
        steps.append(time.perf_counter() - came)
        report(number + 1)
    return {
        "side": side,
        "busy_s": busy,
        "exposed_s": exposed,
        "step_s": steps,
        "cpu_s": time.process_time() - cpu - checks_cpu,
        "bytes_read": _read_bytes() - read,
        "major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults,
    }


def main(words: str) -> None:
    """Enters the control group `group`, if there is one; the other arguments are those of run(). Prints the number of
    each batch, then the figures."""
    arguments = json.loads(words)
    if arguments["side"] == "torch":
        import torch  # noqa: F401 (its own memory does not count: the limit is for the table)
    group = arguments.pop("group", None)
    if group:
        with open(os.path.join(group, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
    print(json.dumps(run(**arguments, report=functools.partial(print, flush=True))))


if __name__ == "__main__":
    main(sys.argv[1])
