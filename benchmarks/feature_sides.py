# SPDX-License-Identifier: Apache-2.0
"""Rows by the sides of `penstock bench gnn`, under a limit of memory: jobs of python_side."""

import contextlib
import json
import os
import subprocess
import sys
import time

from benchmarks.job_tools import figures, need, skip

_READ_AHEAD_KB = 128
_LOOP_MAJOR = 7


def _table(path, rows, row):
    """A .npy whose rows begin at byte 4,096 and follow from their numbers, durable, with no page in the page cache."""
    need("penstock._measure.gnn_side").write_table(path, rows, row // 8)
    need("penstock._measure.storage").make_cold(path)


@contextlib.contextmanager
def _read_ahead(folder):
    """The loop device under a folder reads 128 KiB ahead, whatever the kernel chose for it."""
    device = os.stat(folder).st_dev
    name = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/read_ahead_kb"
    if os.major(device) != _LOOP_MAJOR:
        skip(f"{folder} lies on no loop device, and the read-ahead of others is not changed")
    with open(name) as file:
        before = file.read()

    def put(value):
        try:
            with open(name, "w") as file:
                file.write(value)
        except OSError as error:
            skip(f"{name}: {error.strerror}; run as root")

    put(str(_READ_AHEAD_KB))
    try:
        yield
    finally:
        put(before)


def _sampled(rows, count, batch):
    """`count` batches: the neighbourhoods of `batch` seeds each, in an R-MAT graph."""
    numpy, features = need("numpy"), need("penstock.features")
    sampler = features.NeighborSampler(features.Graph.rmat(rows.bit_length() - 1, seed=1), [10, 5, 5], seed=1)
    order = numpy.random.default_rng(1).permutation(rows)
    seeds = [order.take(range(i * batch, (i + 1) * batch), mode="wrap") for i in range(count)]
    return [sampler.sample(some, batch=i).nodes for i, some in enumerate(seeds)]


def _random(rows, count, batch):
    """`count` distinct rows in batches."""
    ids = need("numpy").random.default_rng(1).permutation(rows)[:count]
    return [ids[begin : begin + batch] for begin in range(0, count, batch)]


def _batches(arguments, rows):
    make = _sampled if arguments.get("trace") == "rmat" else _random
    return make(rows, int(arguments["count"]), int(arguments["batch"]))


def side(arguments):
    """Rows of 4 KiB of a .npy of `rows`, by `side` of gnn_side, in a process that may use `cap` MiB of memory. `trace`:
    rmat, `count` batches of `batch` seeds, or random, `count` distinct rows, `batch` at a time. `kept`: MiB of rows
    that Penstock keeps. Every byte is checked, out of the figures. Handicaps: depth1; uncached, nothing is
    kept, at depth 1; window0, no look-ahead, at depth 1."""
    numpy, gnn_bench = need("numpy"), need("penstock._measure.gnn_bench")
    handicap, row, rows = arguments.get("handicap"), 4096, int(arguments["rows"])
    path, kept = arguments["new"], int(arguments.get("kept", 0)) << 20
    _table(path, rows, row)
    batches = _batches(arguments, rows)
    words = {"side": arguments["side"], "table": path, "memory": kept or None}
    environment = dict(os.environ)
    if handicap in ("depth1", "uncached", "window0"):
        environment["PENSTOCK_QUEUE_DEPTH"] = "1"
    if handicap == "uncached":
        words |= {"side": "penstock", "memory": None}
    elif handicap == "window0":
        words["side"] = "penstock"
    for name, values in (("ids", numpy.concatenate(batches)), ("ends", numpy.cumsum([len(ids) for ids in batches]))):
        words[name] = f"{path}.{name}.npy"
        numpy.save(words[name], values)
    try:
        limited = gnn_bench.limited(int(arguments["cap"]) << 20)
        with _read_ahead(os.path.dirname(path)), limited as (group, reason):
            if group is None:
                skip(reason)
            command = [sys.executable, "-m", "penstock._measure.gnn_side", json.dumps(words | {"group": group})]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0:
            sys.exit(f"{words['side']}: exit {done.returncode}: {done.stderr[-1000:]}")
    finally:
        for name in (path, words["ids"], words["ends"]):
            os.unlink(name)
    found = json.loads(done.stdout.splitlines()[-1])
    count = sum(map(len, batches))
    told = {"cpu_s": found["cpu_s"], "device_bytes": found["bytes_read"], "major_faults": found["major_faults"]}
    return figures(seconds=sum(found["exposed_s"]), bytes=count * row, operations=count, **told)


def exposed(arguments):
    """Seconds that a loop waits for rows, by the seconds that it computes: as long as the same rows take without
    look-ahead. Each step sleeps, as one on a GPU would. `count` batches of `batch` seeds, a window of 8. Handicap
    `window0`: gathers in the loop."""
    penstock, features = need("penstock"), need("penstock.features")
    rows = int(arguments["rows"])
    _table(arguments["new"], rows, 4096)
    batches = _sampled(rows, int(arguments["count"]), int(arguments["batch"]))
    try:
        with penstock.FeatureStore.open(arguments["new"]) as store:
            (table,) = store.tables.values()
            table.gather([0])
            start = time.perf_counter()
            for ids in batches:
                table.gather(ids)
            step = (time.perf_counter() - start) / len(batches)
            penstock.evict(arguments["new"])
            waited, begin = 0.0, time.perf_counter()
            if arguments.get("handicap") == "window0":
                gathered = ((ids, table.gather(ids)) for ids in batches)
            else:
                gathered = features.Prefetch(batches, table, window=8)
            for _, _rows in gathered:
                waited += time.perf_counter() - begin
                time.sleep(step)
                begin = time.perf_counter()
    finally:
        os.unlink(arguments["new"])
    share = waited / (step * len(batches))
    return figures(value=share, seconds=waited, step_s=step, operations=sum(map(len, batches)))
