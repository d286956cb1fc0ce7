# SPDX-License-Identifier: Apache-2.0
"""Many small files by their paths: a call each, or one list; ours by `cache="auto"`, or open and readinto. A job of
benchmarks.python_side. Handicap `always_direct`: ours by `cache="direct"`."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.job_tools import Meter, figures, need

_BYTES = 4096
_FILES = 2000
_THREADS = 8
_SECONDS_MIN = 0.5


def _lay_out(folder):
    paths = [str(folder / f"{i:04}") for i in range(_FILES)]
    if not Path(paths[-1]).exists():
        folder.mkdir(exist_ok=True)
        for path in paths:
            Path(path).write_bytes(os.urandom(_BYTES))
        os.sync()
    return paths


def _prepare(paths, state):
    for path in paths:
        with open(path, "rb") as file:
            if state == "cold":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                file.read()


def _readinto(pair):
    path, memory = pair
    with open(path, "rb", buffering=0) as file:
        return file.readinto(memory)


def files(arguments):
    """Seconds of 2,000 files of 4 KiB, by --how (each: a call each; list: one list; threads: eight, a call each) that
    are --state (cold, warm). Warm ones are read again until half a second is over."""
    penstock = need("penstock")
    how, state = arguments["how"], arguments["state"]
    cache = "direct" if arguments.get("handicap") == "always_direct" else "auto"
    paths = _lay_out(Path(arguments["dir"], "small_files"))
    memory = [bytearray(_BYTES) for _ in paths]
    pairs = list(zip(paths, memory, strict=True))
    if arguments.get("api") == "readinto":
        if how == "threads":
            pool = ThreadPoolExecutor(_THREADS)
            once = lambda: sum(pool.map(_readinto, pairs))  # noqa: E731
        else:
            once = lambda: sum(map(_readinto, pairs))  # noqa: E731
    elif how == "list":
        once = lambda: penstock.read(paths, memory, cache=cache)  # noqa: E731
    else:
        once = lambda: sum(penstock.read(path, piece, cache=cache) for path, piece in pairs)  # noqa: E731
    _prepare(paths, "warm")
    once()  # rings and threads come with the first
    _prepare(paths, state)
    times, cpu_s = [], 0.0
    while not times or (state == "warm" and sum(times) < _SECONDS_MIN):
        with Meter() as meter:
            moved = once()
        assert moved == _FILES * _BYTES
        times.append(meter.seconds)
        cpu_s += meter.cpu_s
    assert all(Path(path).read_bytes() == piece for path, piece in pairs)
    means = {"seconds": sum(times) / len(times), "cpu_s": cpu_s / len(times)}
    return figures(**means, bytes=_FILES * _BYTES, operations=_FILES)
