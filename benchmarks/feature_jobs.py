# SPDX-License-Identifier: Apache-2.0
"""Rows of feature files by penstock.FeatureStore, and the same rows by other means: jobs of python_side."""

import os
import time

from benchmarks.job_tools import Meter, figures, need, repeated


def _depth(arguments):
    """The default engine is made by the first call; a handicap has to be known before."""
    if arguments.get("handicap") == "depth4":
        os.environ["PENSTOCK_QUEUE_DEPTH"] = "4"


def written(arguments, rows, row_bytes):
    """A feature file of random rows at `new`, durable, with none of its pages in the page cache."""
    numpy, penstock = need("numpy"), need("penstock")
    block = numpy.random.default_rng(2).integers(0, 256, (max(1, (4 << 20) // row_bytes), row_bytes), dtype="u1")
    pieces = (block[: min(len(block), rows - begin)] for begin in range(0, rows, len(block)))
    penstock.FeatureStore.write(arguments["new"], {"rows": pieces}, progress=None)
    penstock.evict(arguments["new"])
    return block


def gather(arguments):
    """`count` distinct random rows of `row` bytes of a table of `rows`, `gather` (4,096) at a time. Handicaps: depth4;
    copy_more, a copy of each result; wait_512, 512 rows at a time."""
    _depth(arguments)
    numpy, penstock = need("numpy"), need("penstock")
    row, rows, count = (int(arguments[name]) for name in ("row", "rows", "count"))
    handicap = arguments.get("handicap")
    gathered = 512 if handicap == "wait_512" else int(arguments.get("gather", 4096))
    block = written(arguments, rows, row)
    ids = numpy.random.default_rng(1).permutation(rows)[:count]
    out = numpy.empty((gathered, row), "u1")
    out.fill(0)  # its memory is there before the clock runs
    with penstock.FeatureStore.open(arguments["new"], ram=None) as store:
        table = store["rows"]
        table.gather([0])  # the ring comes with the first transfer
        with Meter() as meter:
            for begin in range(0, count, gathered):
                some = ids[begin : begin + gathered]
                table.gather(some, out[: len(some)])
                if handicap == "copy_more":
                    out.copy()
    assert numpy.array_equal(out[: len(some)], block[some % len(block)])
    os.unlink(arguments["new"])
    return meter.figures(count * row, count)


def again(arguments):
    """An epoch of 100 batches of 500 random rows of 128 bytes, of a table of 100,000, after two others. `api`:
    penstock, which opens a feature file with the defaults, or memmap, of a `.npy`. The median of some epochs. Handicap
    `no_tier`: the store keeps no row."""
    numpy, penstock = need("numpy"), need("penstock")
    rows, path = 100_000, arguments["new"]
    table = numpy.random.default_rng(2).random((rows, 32), "f4")
    if arguments["api"] == "memmap":
        path += ".npy"
        numpy.save(path, table)
        gather = numpy.load(path, mmap_mode="r").__getitem__
    else:
        penstock.FeatureStore.write(path, {"rows": table}, progress=None)
        options = {"ram": None} if arguments.get("handicap") == "no_tier" else {}
        gather = penstock.FeatureStore.open(path, **options)["rows"].gather
    times = []
    for epoch in range(30):
        batches = numpy.random.default_rng(epoch).integers(0, rows, (100, 500))
        start = time.perf_counter()
        for ids in batches:
            found = gather(ids)
        times.append(time.perf_counter() - start)
        if epoch >= 2 and sum(times[2:]) > 0.5:
            break
    assert numpy.array_equal(found, table[ids])
    os.unlink(path)
    kept = sorted(times[2:])
    return figures(seconds=kept[len(kept) // 2], operations=batches.size, repeated=len(kept))


def moved(arguments):
    """Bytes that the device moved by bytes wanted, for 500 distinct rows of 4,096 bytes, 256 apart or more. `api`:
    npy (rows after a header of 128 bytes) or features. Handicaps: blocks_4k reads whole blocks of 4,096 bytes,
    block_more a block of 512 more for each row."""
    numpy, penstock = need("numpy"), need("penstock")
    row, rows = 4096, 128_000
    path = arguments["new"] + (".npy" if arguments["api"] == "npy" else "")
    ids = numpy.random.default_rng(1).permutation(rows // 256) * 256
    if arguments["api"] == "npy":
        made = numpy.lib.format.open_memmap(path, "w+", "u1", (rows, row))  # its blocks are holes, but for these
        made[ids] = numpy.arange(row, dtype="u1")
        made.flush()
        del made
        base = 128
    else:
        pieces = (numpy.full((1000, row), 3, "u1") for _ in range(rows // 1000))
        penstock.FeatureStore.write(path, {"rows": pieces}, progress=None)
        base = 4096
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    penstock.evict(path)
    engine, handicap = penstock.default_engine(), arguments.get("handicap")
    store = penstock.FeatureStore.open(path, ram=None)
    before = engine.stats().bytes_read
    if handicap in ("blocks_4k", "block_more"):
        longer = 8192 if handicap == "blocks_4k" else row + 512
        engine.read_rows(path, ids, numpy.empty((len(ids), longer), "u1"), base=base // 4096 * 4096, stride=4096)
    else:
        store.gather(ids)
    moved_bytes = engine.stats().bytes_read - before
    os.unlink(path)
    return figures(value=moved_bytes / (len(ids) * row), seconds=0.0)


def hits(arguments):
    """30,000 rows of 4,096 bytes that are all in memory, to one array. `api`: penstock or numpy, which copies them from
    another array. Handicap `copy_more`: a copy of the result."""
    numpy, penstock = need("numpy"), need("penstock")
    rows, row = 20_000, 4096
    ids = numpy.random.default_rng(1).integers(0, rows, 30_000)
    out = numpy.zeros((len(ids), row), "u1")
    block = written(arguments, rows, row)
    if arguments["api"] == "numpy":
        table = numpy.concatenate([block] * -(-rows // len(block)))[:rows]

        def once():
            numpy.take(table, ids, axis=0, out=out, mode="clip")

    else:
        store = penstock.FeatureStore.open(arguments["new"], ram="160MiB", hot=numpy.arange(rows))

        def once():
            store.gather(ids, out)
            if arguments.get("handicap") == "copy_more":
                out.copy()

    found = repeated(once, operations=len(ids))
    os.unlink(arguments["new"])
    return figures(**found)
