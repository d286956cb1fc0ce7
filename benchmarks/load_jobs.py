# SPDX-License-Identifier: Apache-2.0
"""Loads of a file that the page cache holds, or that several processes load at once: ours by penstock.load, or the
stock way. Jobs of benchmarks.python_side.

Both sides load the file that the stock way saved. Every byte of what was loaded is summed: before the clock stops where
the file was in the page cache of a disk, for a map that nobody touches has read nothing. Handicaps of ours:
`always_direct`, loads by cache="direct"; `copies`, a load that should map reads; `one_thread`, all on one processor.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import checkpoint_states as states
from benchmarks.job_tools import Meter, figures, need

_TENSOR_BYTES = 32 * states.MIB


def _lay_out(folder, suffix, size, count):
    """The file, saved by the stock way and durable; made when it is not there. The place has room for one large file:
    another one of this size goes first."""
    path = Path(folder) / f"stock-{size}-{count}.{suffix}"
    if not path.exists():
        for other in Path(folder).glob(f"stock-{size}-*"):
            other.unlink()
        state = states.even_tensors(count, size // count)
        if suffix == "pt":
            need("torch").save(state, str(path))
        else:
            need("safetensors.torch").save_file(state, str(path))
        states.make_durable(str(path))
    return str(path)


def _loader(way, handicap, cache="auto"):
    """load(path), all that it imports done."""
    penstock, torch = need("penstock"), need("torch")
    load_file = need("safetensors.torch").load_file
    if way == "torch":
        return torch.load
    if way == "st":
        return load_file
    if way == "st_cloned":
        return lambda path: {name: tensor.clone() for name, tensor in load_file(path).items()}
    if way == "map" and handicap != "copies":
        return lambda path: penstock.load(path, mmap=True)
    return lambda path: penstock.load(path, cache="direct" if handicap == "always_direct" else cache)


def _sum(loaded):
    """Of every byte, as whole numbers."""
    torch = need("torch")
    return sum(int(tensor.view(torch.int64).sum()) for tensor in loaded.values())


_PEERS = {"torch": "torch", "st": "safetensors", "st_cloned": "safetensors"}


def warm(arguments):
    """Seconds of a load, --way=ours|map|torch|st|st_cloned, of a file of --form=pt|safetensors in --count tensors that
    is in the page cache; in --dir, or with none in a folder of /dev/shm."""
    way, handicap = arguments["way"], arguments.get("handicap", "")
    size, count = states.byte_count(arguments["bytes"]), int(arguments["count"])
    if handicap == "one_thread":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    load = _loader(way, handicap)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="penstock-bench-") as memory:
        folder = arguments.get("dir", memory)
        load(_lay_out(folder, arguments["form"], 8 * states.MIB, 1))
        path = _lay_out(folder, arguments["form"], size, count)
        expected = _sum(need("torch").load(path) if arguments["form"] == "pt" else _loader("st", "")(path))
        need("penstock._measure.host_memory").back_memory(2 * size)
        states.storage.bring_in(path)
        assert states.storage.cached_bytes(path) >= 0.98 * size, f"{path} is not in the page cache"
        with Meter() as meter:
            loaded = load(path)
            if "dir" in arguments:
                found = _sum(loaded)
    if "dir" not in arguments:
        found = _sum(loaded)
    if found != expected:
        sys.exit(f"{path}: what was loaded is not what was saved")
    return meter.figures(size, of=_PEERS.get(way, "penstock"))


def again(arguments):
    """Seconds of loads, --way=ours|torch|st_cloned, of 16 files of --form=pt|safetensors with a tensor of --bytes each,
    in the page cache, one after the other. None is kept: as of the samples of a dataset."""
    way, size = arguments["way"], states.byte_count(arguments["bytes"])
    load = _loader(way, arguments.get("handicap", ""))
    with tempfile.TemporaryDirectory(dir=arguments["dir"], prefix="penstock-bench-") as folder:
        paths = []
        for number in range(16):
            place = Path(folder) / str(number)
            place.mkdir()
            paths.append(_lay_out(place, arguments["form"], size, 1))
        for path in paths:
            states.storage.bring_in(path)
            if _sum(load(path)) != _sum(_loader("torch" if arguments["form"] == "pt" else "st", "")(path)):
                sys.exit(f"{path}: what was loaded is not what was saved")
        rounds = max(1, states.GIB // size // len(paths))
        with Meter() as meter:
            for path in paths * rounds:
                load(path)
    loads = rounds * len(paths)
    return meter.figures(loads * size, loads, _PEERS.get(way, "penstock"))


# ---- several processes


def _rank(way, handicap, path, size, small, pipe):
    load = _loader(way, handicap, "cached")
    load(small)
    need("penstock._measure.host_memory").back_memory(size)
    pipe.send("ready")
    pipe.recv()
    loaded = load(path)
    pipe.send((time.monotonic(), _sum(loaded)))


def ranks(arguments):
    """Seconds until the last of --processes has loaded the same cold file, by --way=ours (cache="cached") or torch."""
    way, handicap = arguments["way"], arguments.get("handicap", "")
    size, count = states.byte_count(arguments["bytes"]), int(arguments["processes"])
    path = _lay_out(arguments["dir"], "pt", size, size // _TENSOR_BYTES)
    small = _lay_out(arguments["dir"], "pt", 8 * states.MIB, 1)
    expected = _sum(need("torch").load(path))
    fresh = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(count):
        here, there = fresh.Pipe()
        processes.append(fresh.Process(target=_rank, args=(way, handicap, path, size, small, there)))
        processes[-1].start()
        there.close()
        pipes.append(here)
    try:
        for pipe in pipes:
            pipe.recv()
        share = states.make_cold([path])
        states.settle(arguments["dir"])
        start = time.monotonic()
        for pipe in pipes:
            pipe.send("go")
        ended = [pipe.recv() for pipe in pipes]
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    if any(found != expected for _, found in ended):
        sys.exit(f"{path}: what was loaded is not what was saved")
    seconds = max(end for end, _ in ended) - start
    more = {"bytes": size, "operations": count, "cached_share_before": share}
    return figures(_PEERS.get(way, "penstock"), seconds=seconds, **more)
