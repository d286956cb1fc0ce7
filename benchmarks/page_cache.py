# SPDX-License-Identifier: Apache-2.0
"""Reads of a file that is in the page cache, not in it, partly in it, or dirty there: ours by `cache="auto"`, or a loop
of os.preadv. Jobs of benchmarks.python_side. Handicap `always_direct`: ours by `cache="direct"`."""

import mmap
import os
import random
import sys

from benchmarks.job_tools import Meter, figures, need

_MIB = 1 << 20
_SMALL = 4096


def _evict(path):
    storage = need("penstock._measure.storage")
    storage.make_cold(path)
    assert storage.cached_bytes(path) < _MIB, f"{path} does not leave the page cache"


def _bring_in(path, size, stripes=1):
    """Every `stripes`-th 8 MiB of the file."""
    memory = memoryview(mmap.mmap(-1, 8 * _MIB))
    with open(path, "rb", buffering=0) as file:
        if stripes > 1:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for offset in range(0, size, 8 * _MIB * stripes):
            done = 0
            while done < min(8 * _MIB, size - offset):
                done += os.preadv(file.fileno(), [memory[done:]], offset + done)


def _write_dirty(path, size):
    chunk = os.urandom(8 * _MIB)
    with open(path, "r+b", buffering=0) as file:
        for offset in range(0, size, len(chunk)):
            os.pwrite(file.fileno(), chunk[: size - offset], offset)


def _prepare(path, state, size):
    if state == "dirty":
        _write_dirty(path, size)
        return
    _evict(path)
    if state in ("warm", "half"):
        wanted = 0.98 * (size if state == "warm" else size // 2)
        for _ in range(3):  # The kernel may have reclaimed pages by now.
            _bring_in(path, size, 1 if state == "warm" else 2)
            if need("penstock._measure.storage").cached_bytes(path) >= wanted:
                return
        sys.exit(f"{path}: the kernel does not keep it in the page cache")


def _offsets(what, size):
    if what == "all":
        return [0]
    if what == "sequence":
        return range(0, 8192 * _SMALL, _SMALL)
    choose = random.Random(1)
    if what == "mib":
        return [choose.randrange(size - _MIB) for _ in range(2_000)]
    return [choose.randrange(size // _SMALL) * _SMALL for _ in range(10_000)]


def reads(arguments):
    """Seconds of --what (all: the file in one call; small: 10,000 x 4 KiB at random, a call each; list, rows: the same
    in one call, to arrays or by number; sequence: 8,192 x 4 KiB one after the other; mib: 2,000 x 1 MiB at random, a
    call each) of a file that is --state (cold, warm, half: every other 8 MiB, dirty)."""
    penstock = need("penstock")
    path, what, state = arguments["path"], arguments["what"], arguments["state"]
    size = int(arguments.get("bytes", os.path.getsize(path)))
    offsets = _offsets(what, size)
    places = len(offsets) if what in ("list", "rows") else 1
    memory = memoryview(mmap.mmap(-1, {"all": size, "mib": _MIB}.get(what, _SMALL * places)))
    memory[:: mmap.PAGESIZE] = bytes(len(memory[:: mmap.PAGESIZE]))
    pieces = [memory[at : at + len(memory) // places] for at in range(0, len(memory), len(memory) // places)]
    pieces *= len(offsets) // places
    policy = "direct" if arguments.get("handicap") == "always_direct" else "auto"
    with penstock.Engine() as engine, penstock.File(path, cache=policy) as file:
        engine.read(file, memory[:_SMALL])
        _prepare(path, state, size)
        if arguments.get("api") == "preadv":
            flags = os.O_DIRECT if arguments.get("direct") == "1" else 0
            descriptor = os.open(path, os.O_RDONLY | flags)
            with Meter() as meter:
                for offset, piece in zip(offsets, pieces, strict=True):
                    done = 0
                    while done < len(piece):
                        done += os.preadv(descriptor, [piece[done:]], offset + done)
            os.close(descriptor)
        elif what == "list":
            with Meter() as meter:
                engine.read(file, pieces, offsets)
        elif what == "rows":
            ids = need("numpy").array(offsets) // _SMALL
            with Meter() as meter:
                engine.read_rows(file, ids, memory, row_bytes=_SMALL)
        else:
            read = engine.read
            with Meter() as meter:
                for offset in offsets:
                    read(file, memory, offset)
    with open(path, "rb", buffering=0) as buffered:
        assert os.pread(buffered.fileno(), _SMALL, offsets[-1]) == pieces[-1][:_SMALL]
    return meter.figures(sum(map(len, pieces)), len(pieces))


def cold_pages(arguments):
    """Pages in the page cache after a cold read of the whole file and 10,000 of 4 KiB. Handicap `nowait_probe`: each
    begins with a read of its first MiB that may not wait."""
    penstock = need("penstock")
    path = arguments["path"]
    size = os.path.getsize(path)
    probes = arguments.get("handicap") == "nowait_probe"
    _evict(path)
    with penstock.Engine() as engine, penstock.File(path) as file, open(path, "rb", buffering=0) as buffered:
        memory = memoryview(mmap.mmap(-1, 64 * _MIB))
        reads_of = [(offset, 64 * _MIB) for offset in range(0, size, 64 * _MIB)]
        reads_of += [(offset, _SMALL) for offset in _offsets("small", size)]
        for offset, length in reads_of:
            if probes:
                try:
                    os.preadv(buffered.fileno(), [memory[:_MIB]], offset, os.RWF_NOWAIT)
                except BlockingIOError:
                    pass
            engine.read(file, memory[: min(length, size - offset)], offset)
    return figures(value=need("penstock._measure.storage").cached_bytes(path) // mmap.PAGESIZE)


def asked(arguments):
    """Questions about the page cache, a cold 4 KiB read at random. Handicap `ask_each`: each by a new File."""
    penstock = need("penstock")
    path = arguments["path"]
    each = arguments.get("handicap") == "ask_each"
    _evict(path)
    memory = mmap.mmap(-1, _SMALL)
    offsets = _offsets("small", os.path.getsize(path))
    with penstock.Engine() as engine, penstock.File(path) as file:
        for offset in offsets:
            engine.read(path if each else file, memory, offset)
        questions = engine.stats().cache_questions
    return figures(value=questions / len(offsets), operations=len(offsets))
