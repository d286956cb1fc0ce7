# SPDX-License-Identifier: Apache-2.0
"""Files that a call opened are closed when it ends: also when it raises, while the exception is kept, without the cycle
collector."""

import contextlib
import gc
import os
import time

import penstock
import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_collector():
    """A cycle would keep its objects forever."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def open_below(folder, word=""):
    """What this process has open below a folder, with a word in its name."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith(os.path.realpath(folder)) and word in target:
                found.append(target)
    return found


def left_open(folder, word=""):
    """The same, once the threads of the engine had a moment to release finished transfers."""
    end = time.monotonic() + 30
    while open_below(folder, word) and time.monotonic() < end:
        time.sleep(0.001)
    return open_below(folder, word)


def mapped_below(folder):
    with open("/proc/self/maps") as maps:
        return [line for line in maps if os.path.realpath(folder) in line]


# ---- checkpoints


def state(value=0.0):
    return {f"w{i}": torch.full((3000,), value + i) for i in range(8)}


def test_a_load_leaves_no_file_open(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c", shard_bytes=5000) as store:
        store.save(state())
    store = penstock.CheckpointStore(tmp_path / "c")
    kept = [store.load(), store.load(names="w1"), store.load(into=state())]
    checkpoint = store.open(1)
    kept.append(checkpoint["w1"][2:5])
    assert open_below(tmp_path)
    del checkpoint
    assert not left_open(tmp_path) and len(kept) == 4


def test_a_deleted_checkpoint_gives_its_space_back_at_once(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c", keep=1) as store:
        store.save(state(), step=1)
        found = store.load()
        store.save(state(1.0), step=2)
        assert not left_open(tmp_path / "c", "(deleted)")
        assert torch.equal(found["w0"], torch.zeros(3000))


def test_a_tensor_of_a_checkpoint_is_a_user_of_its_files(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c") as store:
        store.save(state())
    tensor = penstock.CheckpointStore(tmp_path / "c").open(1)["w3"]
    assert tensor[0] == 3 and open_below(tmp_path)
    del tensor
    assert not left_open(tmp_path)


def test_a_closed_checkpoint_refuses_to_read(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c") as store:
        store.save(state(), step=7)
    with penstock.CheckpointStore(tmp_path / "c").open(1) as checkpoint:
        tensor = checkpoint["w3"]
        assert tensor[1] == 3
    assert not left_open(tmp_path)
    checkpoint.close()
    for call in (lambda: tensor[1], checkpoint.load, checkpoint.verify, lambda: checkpoint.load(names="w1")):
        with pytest.raises(ValueError, match="this checkpoint is closed; open it again"):
            call()
    assert checkpoint.info.step == 7 and list(checkpoint) == list(state()) and tensor.shape == (3000,)


# ---- exceptions


def damage(path, at=-100):
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 255]))


def full_writes(folder):
    """Calls by path that meet a full disk (no file may become longer than 1 MiB)."""
    from penstock import deepnvme

    big = torch.ones(1 << 19)
    handle = deepnvme.aio_handle()

    def later(verb):
        with contextlib.suppress(AttributeError):
            verb(big, f"{folder}/x")
        handle.wait()

    def writer():
        with penstock.FileWriter(f"{folder}/w.pt", buffer_bytes=1 << 16) as file:
            torch.save({"big": big}, file)

    def fast_writer():
        buffer = torch.empty(1 << 16, dtype=torch.uint8)
        made = deepnvme.FastFileWriter(f"{folder}/f", deepnvme.FastFileWriterConfig(handle, buffer))
        try:
            made.write(big.numpy().tobytes())
        finally:
            made.close()

    yield "write", lambda: penstock.write(f"{folder}/a", big)
    yield "write_async", lambda: penstock.write_async(f"{folder}/a", big).result()
    yield "sync_pwrite", lambda: handle.sync_pwrite(big, f"{folder}/b")
    yield "sync_pwrite by descriptor", lambda: by_descriptor(handle, big, f"{folder}/b")
    yield "handle.write", lambda: handle.write(big, f"{folder}/c", True)
    yield "pwrite", lambda: handle.pwrite(big, f"{folder}/d", True, False)
    yield "async_pwrite", lambda: later(handle.async_pwrite)
    yield "sync after async", lambda: (handle.async_pwrite(big, f"{folder}/g"), handle.sync_pwrite(big, f"{folder}/h"))
    yield "pwrite async, validated", lambda: (handle.pwrite(big, f"{folder}/d2", True, True), handle.wait())
    yield "aio_write", lambda: deepnvme.aio_write(big, f"{folder}/e", 1 << 20, 8, False, False, True)
    yield "save", lambda: penstock.save({"big": big}, f"{folder}/s.pt")
    yield "save safetensors", lambda: penstock.save({"big": big}, f"{folder}/s.safetensors")
    yield "save index", lambda: penstock.save({"big": big}, f"{folder}/s.safetensors.index.json")
    yield "save_async", lambda: penstock.save_async({"big": big}, f"{folder}/t.pt").result()
    yield "FileWriter", writer
    yield "FastFileWriter", fast_writer


def by_descriptor(handle, big, path):
    number = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        handle.sync_pwrite(big, fd=number)
    finally:
        os.close(number)


WRITES = [name for name, _ in full_writes("")]


@pytest.mark.parametrize("name", WRITES)
def test_a_full_disk_leaves_no_file_open(tmp_path, full_disk, name):
    call = dict(full_writes(tmp_path))[name]
    with pytest.raises(OSError) as caught:  # whose traceback has every frame of the call
        call()
    assert not left_open(tmp_path), caught.value


def test_a_full_store_leaves_no_shard_open(tmp_path, full_disk):
    with penstock.CheckpointStore(tmp_path / "c") as store:
        with pytest.raises(OSError) as caught:
            store.save({"big": torch.ones(1 << 19)})
        assert not left_open(tmp_path / "c", "shard"), caught.value


def failing_reads(folder):
    """Calls by path of files that are not sound."""
    from penstock import deepnvme

    good = {"w": torch.arange(200_000.0), "v": torch.ones(5)}
    handle = deepnvme.aio_handle()
    for suffix in ("pt", "safetensors"):
        path = f"{folder}/d.{suffix}"
        penstock.save(good, path)
        damage(path, 300_000)
        into = {name: torch.zeros_like(tensor) for name, tensor in good.items()}
        yield f"load {suffix}", lambda path=path: penstock.load(path)
        yield f"load into {suffix}", lambda path=path, into=into: penstock.load(path, into=into)
        cut = f"{folder}/cut.{suffix}"
        penstock.save(good, cut)
        os.truncate(cut, 5000)
        yield f"load cut {suffix}", lambda cut=cut: penstock.load(cut)
        yield f"load mapped {suffix}", lambda cut=cut: penstock.load(cut, mmap=True)
        yield f"inspect {suffix}", lambda cut=cut: penstock.inspect(cut)
        sound = f"{folder}/sound.{suffix}"
        penstock.save(good, sound)
        yield f"names {suffix}", lambda sound=sound: penstock.load(sound, names="no")
        yield f"slices {suffix}", lambda sound=sound: penstock.load(sound, names={"w": (0, 0)})
        wrong = {"w": torch.zeros(3)}
        yield f"wrong into {suffix}", lambda sound=sound, wrong=wrong: penstock.load(sound, into=wrong)

    index = f"{folder}/i.safetensors.index.json"
    penstock.save(good, index, shard_bytes=1000)
    shards = sorted(name for name in os.listdir(folder) if name.startswith("i-"))
    damage(f"{folder}/{shards[0]}", 4000)
    yield "load index", lambda: penstock.load(index)
    lost = f"{folder}/j.safetensors.index.json"
    penstock.save(good, lost, shard_bytes=1000)
    os.truncate(sorted(f"{folder}/{name}" for name in os.listdir(folder) if name.startswith("j-"))[-1], 7)
    yield "load cut index", lambda: penstock.load(lost)
    yield "inspect cut index", lambda: penstock.inspect(lost)

    with penstock.CheckpointStore(f"{folder}/c", shard_bytes=1000) as store:
        store.save(good)
    damage(f"{folder}/c/00000001-step-0/shard-00001.safetensors", 4000)
    reader = penstock.CheckpointStore(f"{folder}/c")
    yield "store.load", lambda: reader.load(generation=1)
    yield (
        "store.load into",
        lambda: reader.load(generation=1, into={name: torch.zeros_like(t) for name, t in good.items()}),
    )
    yield "store.load wrong", lambda: reader.load(generation=1, into={"w": torch.zeros(1)})
    yield "store.load name", lambda: reader.load(generation=1, names="no")

    short = f"{folder}/short"
    with open(short, "wb") as file:
        file.write(b"x" * 1000)
    big = torch.zeros(5000)
    yield "read", lambda: penstock.read(short, big)
    yield "read_async", lambda: penstock.read_async(short, big).result()
    yield "read many", lambda: penstock.read([short, f"{folder}/nowhere"], [torch.zeros(1), big])
    yield "sync_pread", lambda: handle.sync_pread(big, short)
    yield "pread validated", lambda: handle.pread(big, short, True, False)
    yield "handle.read", lambda: handle.read(big, short, True)
    yield "async_pread", lambda: (handle.async_pread(big, short), handle.wait())
    yield "pread async, validated", lambda: (handle.pread(big, short, True, True), handle.wait())
    yield "aio_read", lambda: deepnvme.aio_read(big, short, 1 << 20, 8, False, False, True)
    yield "validate", lambda: changing(handle, f"{folder}/changing")


def changing(handle, path):
    """A write whose comparison finds another byte."""
    tensor = torch.zeros(5000)
    handle.pwrite(tensor, path, True, True)
    for operation in handle._pending:
        operation._transfer.result()
    damage(path)
    handle.wait()


def test_what_a_call_that_fails_has_opened_is_closed(tmp_path):
    kept = []
    for name, call in failing_reads(str(tmp_path)):
        with pytest.raises((OSError, ValueError, LookupError)) as caught:
            call()
        kept.append(caught.value)
        assert not left_open(tmp_path), (name, caught.value)
        assert not mapped_below(tmp_path), (name, caught.value)
    assert len(kept) > 25
