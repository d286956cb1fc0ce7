# SPDX-License-Identifier: Apache-2.0
"""Records appended one call each, odd pieces of a file, new files: ours, and the loops of os.pwrite and os.write that
people write. Jobs of benchmarks.python_side."""

import os

from benchmarks.job_tools import need, repeated


def _remove(*paths):
    for path in paths:
        if os.path.exists(path):
            os.unlink(path)


def append(arguments):
    """`count` records of `bytes`, each written after the one before by a call of its own, to a new file that is synced
    at the end. Handicap `edges_each`: by cache="direct", the ends of each record by calls of their own."""
    path, size, count = arguments["path"], int(arguments["bytes"]), int(arguments["count"])
    data = os.urandom(size)

    def by_pwrite():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        for i in range(count):
            os.pwrite(fd, data, i * size)
        os.fdatasync(fd)
        os.close(fd)

    if arguments.get("api") == "pwrite":
        return repeated(by_pwrite, lambda: _remove(path), bytes=size * count, operations=count)
    penstock = need("penstock")
    policy = "direct" if arguments.get("handicap") == "edges_each" else "auto"
    with penstock.Engine() as engine:

        def ours():
            write = engine.write
            with penstock.File(path, "w", cache=policy) as file:
                for i in range(count):
                    if policy == "direct":
                        write(file, data[:1], i * size)
                        write(file, data[1 : size // 2], i * size + 1)
                        write(file, data[size // 2 : -1], i * size + size // 2)
                        write(file, data[-1:], (i + 1) * size - 1)
                    else:
                        write(file, data, i * size)
                file.sync()

        return repeated(ours, lambda: _remove(path), bytes=size * count, operations=count)


def scattered_writes(arguments):
    """20,000 x 4,097 B every 8 KiB of a file that is there, in one list, and a sync. Handicap `edges_each`: a call
    each by cache="direct"."""
    path, size, stride, count = arguments["path"], 4097, 8192, 20_000
    data = memoryview(os.urandom(size * count))
    pieces = [data[i * size : (i + 1) * size] for i in range(count)]
    offsets = [i * stride + 17 for i in range(count)]

    def by_pwritev():
        fd = os.open(path, os.O_WRONLY)
        for piece, offset in zip(pieces, offsets):
            os.pwritev(fd, [piece], offset)
        os.fdatasync(fd)
        os.close(fd)

    if arguments.get("api") == "pwritev":
        return repeated(by_pwritev, bytes=len(data), operations=count)
    penstock = need("penstock")
    with penstock.Engine() as engine:

        def ours():
            engine.write(path, pieces, offsets, sync=True)

        def each():
            with penstock.File(path, "w", cache="direct") as file:
                for piece, offset in zip(pieces, offsets):
                    engine.write(file, piece, offset)
                file.sync()

        return repeated(each if arguments.get("handicap") == "edges_each" else ours, bytes=len(data), operations=count)


def new_files(arguments):
    """`count` new files of `bytes`. Not synced: a call each, against open and write. `sync=1`: durable, ours in one
    list, against write, fdatasync and a sync of the folder each. Handicap `preallocate`: each is opened for direct I/O,
    preallocated and written. Handicap `each`, where they are synced: each by a call of its own, through the page cache,
    with a sync of its folder."""
    penstock = need("penstock")
    folder, size, count = os.path.join(arguments["dir"], "new"), int(arguments["bytes"]), int(arguments["count"])
    durable = arguments.get("sync") == "1"
    data = os.urandom(size)
    paths = [os.path.join(folder, str(i)) for i in range(count)]
    os.makedirs(folder, exist_ok=True)

    def by_write():
        for path in paths:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.write(fd, data)
            if durable:
                os.fdatasync(fd)
            os.close(fd)
            if durable:
                names = os.open(folder, os.O_RDONLY)
                os.fsync(names)
                os.close(names)

    with penstock.Engine() as engine:

        def preallocated():
            for path in paths:
                with penstock.File(path, "w", cache="direct") as file:
                    file.preallocate(0, size)
                    engine.write(file, data, 0)

        def each():
            for path in paths:
                engine.write(path, data, sync=True, cache="cached")

        def ours():
            if durable:
                engine.write(paths, [data] * count, sync=True)
                return
            for path in paths:
                engine.write(path, data)

        def prepare():
            _remove(*paths)
            os.sync()

        ways = {"write": by_write, "preallocate": preallocated, "each": each, "": ours}
        way = ways[arguments.get("api", arguments.get("handicap", ""))]
        try:
            return repeated(way, prepare, bytes=size * count, operations=count)
        finally:
            _remove(*paths)
            os.rmdir(folder)
