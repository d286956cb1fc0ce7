# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of verbs: states in files, and files that are written to."""

import asyncio
import datetime
import os
import threading
from pathlib import Path

import penstock
import torch
from verbs import DATA, NEW, OLD, SIZE, alike, flat_of, nested_of, verb


def as_stream(state):
    return iter(list(state.items()))


def save_row(name, given=lambda state: state, **options):
    def run(box):
        path = box.path(name)
        old, new = (flat_of(OLD), flat_of(NEW)) if "flat" in name else (OLD, NEW)
        penstock.save(old, path, **options)

        def is_old():
            there = nested_of(penstock.load(path))
            assert alike(there, OLD) or alike(there, NEW), "neither the old nor the new state is there"
            left = [n for n in os.listdir(box.folder) if n.endswith(".tmp")]
            assert not left, f"left behind: {left}"

        with box.call(is_old):
            penstock.save(given(new), path, **options)
        assert alike(nested_of(penstock.load(path)), NEW)

    return run


verb("save")(save_row("state.pt"))
verb("save:safetensors")(save_row("flat.safetensors"))
verb("save:index")(save_row("flat.safetensors.index.json", shard_bytes=2000))
verb("save:stream")(save_row("flat.pt", as_stream))
verb("save:stream_index")(save_row("flat.safetensors.index.json", as_stream, shard_bytes=2000))
verb("save:stream_known")(save_row("flat.safetensors", as_stream, like=flat_of(NEW)))


@verb("save:file")
def save_file(box):
    path = box.path()
    with open(path, "wb") as file:
        with box.call():
            penstock.save(NEW, file)
    assert alike(penstock.load(path), NEW)


def load_row(name, **options):
    def run(box):
        path = box.path(name)
        penstock.save(flat_of(OLD), path, **({"shard_bytes": 2000} if "index" in name else {}))
        with box.call():
            found = penstock.load(path, **options)
        assert alike(nested_of(found), OLD)

    return run


def update_row(name, **options):
    """What failed in the file leaves a log, which is read."""

    def run(box):
        path = box.path(name)
        penstock.save(flat_of(OLD), path, **options)

        def is_old_or_new():
            there = nested_of(penstock.load(path))
            assert alike(there, OLD) or alike(there, NEW), "neither the old nor the new tensors are there"

        with box.call(is_old_or_new):
            penstock.update(path, flat_of(NEW))
        assert alike(nested_of(penstock.load(path)), NEW)

    return run


verb("update")(update_row("flat.pt"))
verb("update:safetensors")(update_row("flat.safetensors"))
verb("update:index")(update_row("flat.safetensors.index.json", shard_bytes=2000))


verb("load")(load_row("flat.pt"))


@verb("load_into")
def load_into_module(box):
    source, model = torch.nn.Linear(40, 30), torch.nn.Linear(40, 30)
    path = box.path("model.pt")
    penstock.save({"model": source.state_dict()}, path)
    with box.call():
        keys = penstock.load_into(model, path, names="model")
    assert keys == ([], []) and torch.equal(model.weight, source.weight)


verb("load:safetensors")(load_row("flat.safetensors"))
verb("load:index")(load_row("flat.safetensors.index.json"))
verb("load:mmap")(load_row("flat.safetensors", mmap=True))
verb("load:names")(load_row("flat.safetensors", names=["a", "b.c", "n"]))


@verb("load:into")
def load_into(box):
    path = box.path("state.safetensors")
    penstock.save(flat_of(OLD), path)
    into = {name: tensor.clone() for name, tensor in flat_of(NEW).items()}
    with box.call():
        penstock.load(path, into=into)
    assert alike(nested_of(into), OLD)


@verb("inspect")
def inspect_file(box):
    path = box.path("state.pt")
    penstock.save(OLD, path)
    with box.call():
        found = penstock.inspect(path)
    assert {row.name for row in found} == {"a", "b.c"}


@verb("Pickled", "Pickled.load")
def pickled(box):
    path = box.path("state.pt")
    state = {**OLD, "day": datetime.date(2026, 1, 2)}
    with box.call():
        penstock.save(state, path, default=penstock.Pickled)
        found = penstock.load(path, pickle=True)
        day = penstock.Pickled(state["day"]).load()
    assert alike(found, OLD) and found["day"] == day == state["day"]


@verb("Unread")
def unread(box):
    path = box.path("state.pt")
    torch.save({**OLD, "day": datetime.date(2026, 1, 2)}, path)
    with box.call():
        found = penstock.load(path, unread="keep")
        seen = penstock.inspect(path)
    assert alike(found, OLD) and type(found["day"]) is penstock.Unread and found["day"].name == "datetime.date"
    assert seen.unread == ["state['day'] (datetime.date)"]


@verb("save_async", "PendingSave.result")
def save_async(box):
    path = box.path("state.pt")
    penstock.save(OLD, path)

    def is_old():
        there = penstock.load(path)
        assert alike(there, OLD) or alike(there, NEW), "neither the old nor the new state is there"

    with box.call(is_old):
        penstock.save_async(NEW, path).result(20)
    assert alike(penstock.load(path), NEW)


@verb(
    "PendingSave.done", "PendingSave.exception", "PendingSave.wait_before_update", "PendingSave.__await__",
    "PendingSave.staged", "PendingSave.durable", "PendingSave.coroutine",
)  # fmt: skip
def pending_save(box):
    path, saves = box.path("state.pt"), []

    async def run():
        saves.append(penstock.save_async(OLD, path))
        return await saves[1]

    try:
        with box.call():
            saves.append(penstock.save_async(NEW, path, copy=False))
            pending = saves[0]
            pending.wait_before_update()
            error = pending.exception(20)
            assert pending.done()
            if error is not None:
                raise error
            assert pending.staged() and pending.durable()
            asyncio.run(run())
    finally:
        for save in saves:
            save.exception(20)  # else the next save raises it
    assert alike(penstock.load(path), OLD)


@verb("PendingSave.cancel", "PendingSave.cancelled", "PendingSave.notify", "PendingSave.add_done_callback")
def cancel_save(box):
    path, called, event = box.path("state.pt"), threading.Event(), os.eventfd(0)
    try:
        with box.call():
            pending = penstock.save_async(NEW, path)
            try:
                pending.notify(event)
                pending.add_done_callback(lambda _: called.set())
                pending.cancel()
                pending.result(20)
            except penstock.Cancelled:
                assert not os.path.exists(path) and pending.cancelled()
                assert called.wait(20) and os.eventfd_read(event) == 1
                return
            finally:
                pending.exception(20)
    finally:
        os.close(event)
    assert alike(penstock.load(path), NEW)


@verb(
    "FileWriter", "FileWriter.write", "FileWriter.flush", "FileWriter.tell", "FileWriter.close",
    "FileWriter.__enter__",
)  # fmt: skip
def file_writer(box):
    path = box.file(b"old")

    def is_old():
        assert Path(path).read_bytes() in (b"old", DATA)
        assert os.listdir(box.folder) == [os.path.basename(path)], "a temporary file is left"

    with box.call(is_old):
        with penstock.FileWriter(path, buffer_bytes=1 << 20) as file:
            file.write(DATA[:1000])
            file.flush()
            file.write(DATA[1000:])
            assert file.tell() == SIZE
    assert Path(path).read_bytes() == DATA


@verb("FileWriter.abort")
def abort(box):
    path = box.file(b"old")
    with box.call():
        file = penstock.FileWriter(path, buffer_bytes=1 << 20)
        try:
            file.write(DATA)
        finally:
            file.abort()
    assert Path(path).read_bytes() == b"old"


@verb("stream", alone=True)
def stream(box):
    import torch

    path = box.path("flat.safetensors")
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(3)))
    penstock.save(model.state_dict(), path)
    x = torch.ones(1, 40)
    with torch.no_grad():
        expected = model(x)
    with torch.device("meta"):
        empty = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(3)))
    with box.call():
        streamed = penstock.stream(empty, path, memory=60_000)
        try:
            with torch.no_grad():
                out = streamed(x)
        finally:
            streamed.unstream()
    assert torch.equal(out, expected)
