# SPDX-License-Identifier: Apache-2.0
"""Many small pieces of a file by Penstock and by the loops that people write: jobs of python_side."""

import os
import random

from benchmarks.job_tools import Meter, figures, need, repeated

_COUNT = 20_000
_ROW = 100


def _bring_in(path, size):
    with open(path, "rb", buffering=0) as file:
        while size > 0 and (chunk := file.read(min(size, 8 << 20))):
            size -= len(chunk)


def _engine(penstock, handicap):
    options = {"no_gaps": {"gap_bytes": 0}, "depth1": {"queue_depth": 1}}
    return penstock.Engine(**options.get(handicap, {}))


def rows(arguments):
    """20,000 rows of 100 bytes, one every `stride` bytes, to one array. `api`: penstock, preadv or memmap; `state`:
    cold or warm."""
    numpy = need("numpy")
    path, stride, api = arguments["path"], int(arguments["stride"]), arguments.get("api", "penstock")
    ids, out = numpy.arange(_COUNT), numpy.empty((_COUNT, _ROW), numpy.uint8)
    penstock, shapes, storage = need("penstock"), need("penstock._measure.shapes"), need("penstock._measure.storage")
    warm = arguments.get("state") == "warm"
    prepare = (lambda: _bring_in(path, _COUNT * stride)) if warm else (lambda: storage.make_cold(path))
    stock = {
        "preadv": lambda: shapes.preadv_each(path, out, range(0, _COUNT * stride, stride)),
        "memmap": lambda: shapes.memmap_rows(path, out, stride),
    }
    if api != "penstock":
        return repeated(stock[api], prepare, operations=_COUNT)
    with _engine(penstock, arguments.get("handicap")) as engine:
        found = repeated(lambda: engine.read_rows(path, ids, out, stride=stride), prepare, operations=_COUNT)
    with open(path, "rb") as file:
        for i in (0, 1, _COUNT // 2, _COUNT - 1):
            file.seek(i * stride)
            assert file.read(_ROW) == out[i].tobytes()
    return figures(**found)


def sparse(arguments):
    """20,000 pieces of 1 to 512 bytes of 256 MiB, each to an array of its own. `order`: sorted or shuffled; `api`:
    penstock or preadv."""
    numpy = need("numpy")
    path, api = arguments["path"], arguments.get("api", "penstock")
    choose = random.Random(1)
    pieces = [numpy.empty(choose.randrange(1, 513), numpy.uint8) for _ in range(_COUNT)]
    offsets = sorted(choose.randrange((256 << 20) - 512) for _ in range(_COUNT))
    if arguments["order"] == "shuffled":
        choose.shuffle(offsets)
    penstock, shapes, storage = need("penstock"), need("penstock._measure.shapes"), need("penstock._measure.storage")
    if api != "penstock":
        read = lambda: shapes.preadv_each(path, pieces, offsets)  # noqa: E731
        return repeated(read, lambda: storage.make_cold(path), operations=_COUNT)
    with _engine(penstock, arguments.get("handicap")) as engine:
        read = lambda: engine.read(path, pieces, offsets)  # noqa: E731
        return figures(**repeated(read, lambda: storage.make_cold(path), operations=_COUNT))


def random_rows(arguments):
    """`count` rows of 4 KiB by random numbers, in one transfer. Handicap `rows_as_tensors`: a list of arrays."""
    numpy, penstock = need("numpy"), need("penstock")
    block, window, count, path = 4096, 4096, int(arguments["count"]), arguments["path"]
    table = os.path.getsize(path) // block
    ids = numpy.random.default_rng(1).integers(0, table, count)
    out, destinations = numpy.empty((window, block), numpy.uint8), numpy.arange(count) % window
    with penstock.Engine() as engine, penstock.File(path) as file:
        engine.read_async(file, bytearray(block)).result()  # the ring comes with the first transfer
        with Meter() as meter:
            if arguments.get("handicap") == "rows_as_tensors":
                engine.read(file, [out[i] for i in destinations], (ids * block).tolist())
            else:
                engine.read_rows(file, ids, out, destinations=destinations)
    return meter.figures(count * block, count)
