# SPDX-License-Identifier: Apache-2.0
"""Runs of the Python face, each in a fresh interpreter: `python -m benchmarks.python_side JOB --key=value ...`.

Prints one JSON object. Ends with 77 and the reason where something it needs is not installed. Nothing but the standard
library is imported before a clock runs.
"""

import random
import sys
import time
from pathlib import Path

from benchmarks import page_cache, small_files, small_writes
from benchmarks.gather_jobs import random_rows, rows, sparse
from benchmarks.job_tools import Meter, figures, need, run_job

_BLOCK = 4096


def _aligned_memory(size):
    import mmap

    return mmap.mmap(-1, size)


def import_module(arguments):
    """Seconds of `import MODULE`. Handicap `eager`: what the module leaves for later is imported at once."""
    start = time.perf_counter()
    module = need(arguments["module"])
    if arguments.get("handicap") == "eager":
        for eager in (
            "torch",
            "numpy",
            "asyncio",
            "unittest.mock",
            "xml.dom.minidom",
            "http.server",
            "multiprocessing.pool",
        ):
            try:
                __import__(eager)
            except ImportError:
                continue
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "version": getattr(module, "__version__", "unknown")}


def first_read(arguments):
    """Milliseconds of the first read after the import: rings, threads and memory come with it."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data")
        path.write_bytes(bytes(1 << 20))
        memory = bytearray(1 << 20)
        penstock = need("penstock")
        start = time.perf_counter()
        if arguments.get("handicap") == "delay_60ms":
            time.sleep(0.060)
        moved = penstock.read(str(path), memory)
        seconds = time.perf_counter() - start
        assert moved == 1 << 20
    return figures(value=seconds * 1000, seconds=seconds)


def latency(arguments):
    """Median microseconds of one blocking 4 KiB read. Handicap `hop`: through another thread."""
    penstock = need("penstock")
    count = int(arguments["count"])
    memory = _aligned_memory(_BLOCK)
    blocks = Path(arguments["path"]).stat().st_size // _BLOCK
    choose = random.Random(1)
    offsets = [choose.randrange(blocks) * _BLOCK for _ in range(count + 500)]
    times = []
    hop = arguments.get("handicap") == "hop"
    clock = time.perf_counter_ns
    with penstock.Engine() as engine, penstock.File(arguments["path"], "r", cache="direct") as file:
        read, read_async = engine.read, engine.read_async
        for offset in offsets:
            start = clock()
            if hop:
                read_async(file, memory, offset).result()
            else:
                read(file, memory, offset)
            times.append(clock() - start)
    times = sorted(times[500:])
    return figures(p50_us=times[len(times) // 2] / 1000, operations=count)


_EXIT = """
import os, sys, threading, time
path, api, drain_to_zero = sys.argv[1], sys.argv[2], sys.argv[3] == "1"
if api == "penstock":
    import penstock
    file, engine = penstock.File(path, "r", cache="direct"), penstock.Engine()
if drain_to_zero:
    import atexit
    def until_nothing_runs():
        while engine.stats().running:
            time.sleep(0)
    atexit.register(until_nothing_runs)  # before penstock refuses anybody

def prefetch():
    memory = [bytearray(1 << 20) for _ in range(16)]
    if api == "preadv":
        fd = os.open(path, os.O_RDONLY)
        for i in range(1 << 40):
            os.preadv(fd, memory[i % 16 : i % 16 + 1], i % 1024 << 20)
    running = []
    try:
        for i in range(1 << 40):
            if len(running) == 16:
                running.pop(0).result()
            running.append(engine.read_async(file, memory[i % 16], i % 1024 << 20))
    except RuntimeError:
        pass

for _ in range(4):
    threading.Thread(target=prefetch, daemon=True).start()
time.sleep(0.5)
print(flush=True)
"""
_EXIT_CUT_S = 30


def end_of_the_interpreter(arguments):
    """Seconds from the last line of a program to the end of its process, with 4 daemon threads that go on reading.

    Handicap `drain_to_zero`: the end waits for a moment at which nothing runs. It is cut after 30 s.
    """
    import subprocess

    api = arguments.get("api", "penstock")
    handicap = arguments.get("handicap") == "drain_to_zero"
    words = [sys.executable, "-c", _EXIT, arguments["path"], api, str(int(handicap))]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        start = time.perf_counter()
        try:
            child.wait(_EXIT_CUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
        seconds = time.perf_counter() - start
    return figures(seconds=seconds)


def many_paths(arguments):
    """Many files of 4 KiB, read cold as one transfer under a limit on descriptors (`nofile`); made once in `dir`.

    Handicap `one_at_a_time`: a transfer for each file, waited for before the next.
    """
    import os
    import resource

    count, folder = int(arguments["count"]), Path(arguments["dir"], "many_paths")
    penstock = need("penstock")
    paths = [str(folder / f"{i:06}") for i in range(count)]
    if not folder.exists():
        folder.mkdir()
        for path in paths:
            Path(path).write_bytes(bytes(_BLOCK))
        os.sync()
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    limit, hard = int(arguments["nofile"]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    memory = _aligned_memory(count * _BLOCK)
    pieces = [memoryview(memory)[i * _BLOCK : (i + 1) * _BLOCK] for i in range(count)]
    penstock.read(paths[0], pieces[0])  # rings and threads come with the first
    with Meter() as meter:
        if arguments.get("handicap") == "one_at_a_time":
            moved = sum(
                penstock.read_async(path, piece, cache="direct").result()
                for path, piece in zip(paths, pieces, strict=True)
            )
        else:
            moved = penstock.read(paths, pieces, cache="direct")
    assert moved == count * _BLOCK
    return meter.figures(moved, count)


def torch_tensor(arguments):
    """One tensor as torch allocates it, read or written whole. Handicap `delay_1ms`: in blocks, a pause after each."""
    penstock, torch = need("penstock"), need("torch")
    size = int(arguments["bytes"])
    tensor = torch.ones(size, dtype=torch.uint8)
    pieces = [(tensor, 0)]
    pause = arguments.get("handicap") == "delay_1ms"
    if pause:
        pieces = [(tensor[at : at + (1 << 20)], at) for at in range(0, size, 1 << 20)]
    write = arguments["op"] == "write"
    with penstock.Engine() as engine, penstock.File(arguments["path"], "rw" if write else "r", cache="direct") as file:
        # The ring comes with the first transfer; fio makes its own before its clock starts.
        engine.read_async(file, torch.empty(_BLOCK, dtype=torch.uint8), 0).result()
        verb = engine.write if write else engine.read
        with Meter() as meter:
            for piece, offset in pieces:
                verb(file, piece, offset)
                if pause:
                    time.sleep(0.001)
    alignment = tensor.data_ptr() & -tensor.data_ptr()
    return meter.figures(size, len(pieces), torch=torch.__version__, address_alignment=alignment)


def tune(arguments):
    """Wall seconds of `penstock tune`. Handicap `patient`: it may take 75 s and has no early end."""
    import os
    import subprocess

    words = [sys.executable, "-m", "penstock", "tune", arguments["dir"], "--json", os.devnull]
    if arguments.get("handicap") == "patient":
        words += ["--seconds", "75", "--full"]
    start = time.perf_counter()
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"penstock tune: exit {done.returncode}: {done.stderr[-500:]}")
    return figures(value=seconds, seconds=seconds)


_JOBS = {
    "import": import_module,
    "first_read": first_read,
    "latency": latency,
    "exit": end_of_the_interpreter,
    "paths": many_paths,
    "random_rows": random_rows,
    "rows": rows,
    "sparse": sparse,
    "torch": torch_tensor,
    "tune": tune,
    "cached_reads": page_cache.reads,
    "cold_pages": page_cache.cold_pages,
    "files": small_files.files,
    "cache_questions": page_cache.asked,
    "append": small_writes.append,
    "scattered_writes": small_writes.scattered_writes,
    "new_files": small_writes.new_files,
    "warm_load": "load_jobs.warm",
    "load_again": "load_jobs.again",
    "ranks": "load_jobs.ranks",
    "feature_gather": "feature_jobs.gather",
    "gather_again": "feature_jobs.again",
    "feature_exposed": "feature_sides.exposed",
    "feature_hits": "feature_jobs.hits",
    "feature_moved": "feature_jobs.moved",
    "feature_side": "feature_sides.side",
    "plan_rows": "plan_rows.rows",
    "plan_seconds": "plan_jobs.seconds",
    "plan_measure": "plan_jobs.measured",
    "plan_params": "plan_counts.params",
    "plan_interval": "plan_counts.interval",
    "plan_goodput": "plan_counts.goodput",
}


def main():
    return run_job("python_side", _JOBS)


if __name__ == "__main__":
    sys.exit(main())
