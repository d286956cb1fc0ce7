# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of verbs: transfers, engines, files, buffers."""

import asyncio
import contextlib
import os
import threading
from pathlib import Path

import numpy as np
import penstock
from verbs import DATA, OLD, SIZE, verb


@verb("read", "Engine.read", "default_engine", torch=False)
def read(box):
    path, into = box.file(), bytearray(SIZE)
    with box.call():
        done = penstock.read(path, into)
    assert done == SIZE and into == DATA


@verb("read_async", "Engine.read_async", "Transfer.result", torch=False)
def read_async(box):
    path, into = box.file(), bytearray(SIZE - 1)
    with box.call():
        transfer = penstock.read_async(path, into, 1)
        done = transfer.result()
    assert done == SIZE - 1 and into == DATA[1:]


@verb("Transfer.join", torch=False)
def join(box):
    path, into = box.file(), bytearray(SIZE)
    with box.call():
        penstock.read_async(path, into).join(1)
    assert into == DATA


@verb("gpus", torch=False)
def gpus(box):
    with box.call():
        report = penstock.gpus()
    assert bool(report) is (report.reason == "") is bool(report.gpus)


@verb("cufile_conditions", torch=False)
def cufile_conditions(box):
    path = box.file()
    report = penstock.gpus()
    if not report:
        with box.call():
            penstock.gpus()
        return
    with box.call():
        found = penstock.cufile_conditions(report.gpus[0], path)
    assert bool(found) is (found.reasons == []) is (found.way != "")


class NoMemory:
    """Says that it is on a GPU, at an address where nothing is."""

    __cuda_array_interface__ = {  # noqa: RUF012
        "shape": (SIZE,), "typestr": "|u1", "data": (4096, False), "strides": None, "version": 3,
    }  # fmt: skip


@verb("read:no_gpu", torch=False)
def read_to_no_gpu(box):
    path = box.file()
    with box.call():
        try:
            penstock.read(path, NoMemory())
        except (penstock.Unsupported, ValueError) as error:
            assert "into" in str(error)  # noqa: PT017
            return
    raise AssertionError("nothing was read into")


@verb("read_npy", torch=False)
def read_npy(box):
    paths = [box.file(name="npy") for _ in range(2)]
    for path in paths:
        with open(path, "wb") as file:
            np.save(file, np.frombuffer(DATA, "u1"))
    out = np.zeros((2, SIZE), "u1")
    with box.call():
        got = penstock.read_npy(paths, out, progress=None)
    assert got is out and out[0].tobytes() == DATA and out[1].tobytes() == DATA


@verb("prefetch", torch=False)
def prefetch(box):
    path = box.file()
    with box.call():
        penstock.prefetch(path)
    assert Path(path).read_bytes() == DATA


@verb("evict", torch=False)
def evict(box):
    path = box.file()
    with box.call():
        penstock.evict(path, 4096, SIZE)
    assert Path(path).read_bytes() == DATA


@verb("read_rows", "Engine.read_rows", "RowTable", torch=False)
def read_rows(box):
    tables = [penstock.RowTable(box.file(), row_bytes=100, rows=50), penstock.RowTable(box.file(), row_bytes=100)]
    ids, out = memoryview(bytes([3, 50, 3, 7])), bytearray(400)
    with box.call():
        done = penstock.read_rows(tables, ids, out, destinations=[2, 1, 0, 3])
    assert done == 400 and out == DATA[300:400] + DATA[:100] + DATA[300:400] + DATA[700:800]


@verb("read_rows_async", "Engine.read_rows_async", torch=False)
def read_rows_async(box):
    path, out = box.file(), bytearray(200)
    with box.call():
        done = penstock.read_rows_async(path, [9, 1], out, row_bytes=100).result()
    assert done == 200 and out == DATA[900:1000] + DATA[100:200]


@verb("TensorRows", "TensorRows.gather", "TensorRows.gather_async", "TensorRows.close", "TensorRows.__enter__")
def tensor_rows(box):
    import torch

    path = box.path("flat.safetensors")
    parts = [torch.arange(3000, dtype=torch.int32).reshape(-1, 10) + i for i in range(2)]
    penstock.save({str(i): part for i, part in enumerate(parts)}, path)
    ids, out = torch.tensor([599, 0, 300]), torch.empty(3, 10, dtype=torch.int32)
    with box.call():
        with penstock.TensorRows(path, ["0", "1"]) as rows:
            found = rows.gather(ids)
            rows.gather_async(ids, out).result()
    assert torch.equal(found, torch.cat(parts)[ids]) and torch.equal(out, found)


@verb(
    "FeatureStore",
    "FeatureStore.open",
    "FeatureStore.gather",
    "FeatureStore.gather_async",
    "FeatureStore.hint",
    "FeatureStore.drop_hints",
    "FeatureStore.stats",
    "FeatureStore.describe",
    "FeatureStore.close",
    "FeatureStore.__enter__",
    "FeatureStore.__getitem__",
    torch=False,
)
def feature_store(box):
    path, table = box.path("features"), np.frombuffer(DATA[:200_000], "u1").reshape(-1, 100)
    penstock.FeatureStore.write(path, {"a": table, "b": table[::-1]}, progress=None)
    with box.call():
        with penstock.FeatureStore.open(path, ram=50_000, hot={"a": [7, 1999]}) as store:
            store.hint({"a": [1999, 0, 5], "b": [3]})
            store.drop_hints()
            store.hint({"a": [1999, 0, 5]})
            found = store["a"].gather([1999, 0, 5])
            later = store["b"].gather_async([3]).result()
            both = store.gather({"a": [7], "b": [7]})
            again = store.gather_async({"a": [8]}).result()
            gathers, described = store.stats().gathers, store.describe()
    assert np.array_equal(found, table[[1999, 0, 5]]) and np.array_equal(later, table[::-1][[3]])
    assert np.array_equal(both["a"], table[[7]]) and np.array_equal(both["b"], table[::-1][[7]])
    assert np.array_equal(again["a"], table[[8]]) and gathers == 4
    assert "memory" in str(described)


@verb("FeatureStore.write", torch=False)
def feature_store_write(box):
    path, table = box.path("features"), np.frombuffer(DATA[:200_000], "u1").reshape(-1, 100)
    penstock.FeatureStore.write(path, {"old": table[:3]}, progress=None)

    def otherwise():
        """The old file; or the new one, whole, where only the sync of its folder failed."""
        with penstock.FeatureStore(path) as store:
            if list(store) != ["old"]:
                assert np.array_equal(store["new"].gather(range(2000)), table)

    with box.call(otherwise):
        penstock.FeatureStore.write(path, {"new": table}, progress=None)
    assert np.array_equal(penstock.FeatureStore(path)["new"].gather([1999, 4]), table[[1999, 4]])


@verb("write", "Engine.write", torch=False)
def write(box):
    path = box.path()
    with box.call():
        done = penstock.write(path, DATA, sync=True)
    assert done == SIZE and Path(path).read_bytes() == DATA


@verb("write_async", "Engine.write_async", torch=False)
def write_async(box):
    path = box.path()
    with box.call():
        done = penstock.write_async(path, DATA, 5).result()
    assert done == SIZE and Path(path).read_bytes()[5:] == DATA


def warmed(path, mode="r"):
    """An open file of which the engine knows that it is in the page cache."""
    assert Path(path).read_bytes() == DATA
    file, into = penstock.File(path, mode), bytearray(100)
    for offset in (300, 9):
        penstock.read(file, into, offset)
    return file


@verb("read:at_once", torch=False)
def read_at_once(box):
    with warmed(box.file()) as file:
        one, some, rows = bytearray(5000), [bytearray(900) for _ in range(30)], bytearray(400)
        short = bytearray(500)
        with box.call():
            done = penstock.read(file, one, 77)
            listed = penstock.read(file, some, [i * 5003 for i in range(30)])
            gathered = penstock.read_rows(file, [1999, 0, 7, 7], rows, row_bytes=100)
            left = penstock.read(file, short, SIZE - 100, allow_short=True)
    assert (done, listed, gathered, left) == (5000, 27_000, 400, 100)
    assert one == DATA[77:5077] and all(part == DATA[i * 5003 : i * 5003 + 900] for i, part in enumerate(some))
    assert rows == DATA[199_900:200_000] + DATA[:100] + 2 * DATA[700:800] and short[:100] == DATA[-100:]


@verb("write:at_once", torch=False)
def write_at_once(box):
    path = box.file()
    with warmed(path, "rw") as file:
        with box.call():
            done = [penstock.write(file, DATA[i : i + 700], i + 5) for i in range(0, 7000, 700)]
            file.sync()
    assert done == [700] * 10 and Path(path).read_bytes() == DATA[:5] + DATA[:7000] + DATA[7005:]


@verb("read:many", torch=False)
def read_many(box):
    paths = [box.file(DATA[i : i + 5000]) for i in range(12)]
    into = [bytearray(6000) for _ in paths]
    with box.call():
        done = penstock.read(paths, into, allow_short=True)
    assert done == [5000] * 12 and all(into[i][:5000] == DATA[i : i + 5000] for i in range(12))
    assert all(part[5000:] == bytes(1000) for part in into)


@verb("Engine", "Engine.close", "Engine.__enter__", torch=False)
def engine(box):
    path, copy, into = box.file(), box.path(), bytearray(SIZE)
    with box.call():
        with penstock.Engine() as made:
            made.read(path, into)
            made.write(copy, into)
    assert into == DATA and Path(copy).read_bytes() == DATA


@verb("Engine.drain", torch=False)
def drain(box):
    path = box.path()
    with box.call():
        penstock.write_async(path, DATA)
        assert penstock.default_engine().drain(10)
    assert Path(path).read_bytes() == DATA


@verb("Engine.stats", "Engine.describe", torch=False)
def stats(box):
    with box.call():
        made = penstock.default_engine()
        moved, text = made.stats(), str(made.describe())
    assert moved.bytes_read >= 0 and text


@verb("Transfer.__await__", "Transfer.coroutine", torch=False)
def awaited(box):
    path, into = box.file(), bytearray(SIZE)

    async def run():
        transfer = penstock.read_async(path, into)
        with box.call():
            await asyncio.create_task(transfer.coroutine())
            return await transfer

    assert asyncio.run(run()) == SIZE and into == DATA


@verb("Transfer.cancel", "Transfer.cancelled", "Transfer.done", "Transfer.exception", torch=False)
def cancel(box):
    path, into = box.file(), bytearray(SIZE)
    with box.call():
        transfer = penstock.read_async(path, into)
        transfer.cancel()
        try:
            done = transfer.result(10)
        except penstock.Cancelled:
            done = None
    assert transfer.done() and (done is None) == transfer.cancelled()
    assert into == DATA if done is not None else transfer.exception() is not None


@verb("Transfer.add_done_callback", torch=False)
def add_done_callback(box):
    path, into, called = box.file(), bytearray(SIZE), threading.Event()
    with box.call():
        transfer = penstock.read_async(path, into)
        transfer.add_done_callback(lambda _: called.set())
        done = transfer.result()
    assert called.wait(20) and done == SIZE and into == DATA


@verb("Transfer.set_priority", torch=False)
def set_priority(box):
    path, into = box.file(), bytearray(SIZE)
    with box.call():
        transfer = penstock.read_async(path, into, priority="background")
        transfer.set_priority("urgent")
        done = transfer.result()
    assert done == SIZE and into == DATA


@verb("Transfer.notify", torch=False)
def notify(box):
    path, into, event = box.file(), bytearray(SIZE), os.eventfd(0)
    transfer = None
    try:
        with box.call():
            transfer = penstock.read_async(path, into)
            transfer.notify(event)
            done = transfer.result()
        assert done == SIZE and into == DATA and os.eventfd_read(event) == 1
    finally:
        if transfer is not None:
            with contextlib.suppress(OSError, MemoryError):
                transfer.result()
        os.close(event)


# ---- File, Buffer


@verb("File", "File.close", "File.__enter__", torch=False)
def file_object(box):
    path, into = box.file(), bytearray(SIZE)
    with box.call():
        with penstock.File(path) as file:
            done = penstock.read(file, into)
    assert done == SIZE and into == DATA


@verb("File.truncate", "File.sync", torch=False)
def truncate(box):
    path = box.file()
    with box.call():
        with penstock.File(path, "rw") as file:
            file.truncate(1000)
            penstock.write(file, b"end", 1000)
            file.sync()
    assert Path(path).read_bytes() == DATA[:1000] + b"end"


def append_all(box, **options):
    """Records of 4,000 bytes; where a call raises, what is there is the beginning of all of them."""
    path = box.path()
    beginning = lambda: DATA.startswith(Path(path).read_bytes() if Path(path).exists() else b"")  # noqa: E731

    def otherwise():
        assert beginning(), "records that nobody wrote so"

    with box.call(otherwise):
        with penstock.File(path, "a", **options) as file:
            for begin in range(0, SIZE, 4000):
                file.append(DATA[begin : begin + 4000])
                if begin == 40_000:
                    file.flush()
            file.sync()
            gathered = file.buffered_bytes
    assert gathered == 0 and Path(path).read_bytes() == DATA


@verb("File.append", torch=False)
def append(box):
    append_all(box)


@verb("File.flush", "File.append:buffer", torch=False)
def append_with_a_buffer(box):
    append_all(box, buffer="30kB")


@verb("File.preallocate", torch=False)
def preallocate(box):
    path = box.path()
    with box.call():
        with penstock.File(path, "rw") as file:
            file.preallocate(0, SIZE)
            penstock.write(file, DATA)
    assert Path(path).read_bytes()[:SIZE] == DATA


@verb("Buffer", "empty", "Buffer.numpy", "Buffer.torch")
def buffer(box):
    with box.call():
        made = penstock.empty((100, 7), "float32")
        made.numpy()[:] = 2
        seen = made.torch()
    assert seen.sum() == 1400


@verb("as_bytes")
def as_bytes(box):
    with box.call():
        made = penstock.as_bytes(OLD["a"])
    assert bytes(made) == OLD["a"].numpy().tobytes()
