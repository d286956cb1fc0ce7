# SPDX-License-Identifier: Apache-2.0
"""penstock.deepnvme.FastFileWriter, without DeepSpeed: what is written is what the file holds, or it says why not."""

import errno
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")
from penstock.deepnvme import FastFileWriter, FastFileWriterConfig, aio_handle  # noqa: E402

BUFFER = 64 << 10


def make(path, size=BUFFER, handle=None, **options):
    return FastFileWriter(path, FastFileWriterConfig(handle, torch.empty(size, dtype=torch.uint8), **options))


@pytest.mark.parametrize("double_buffer", [True, False])
@pytest.mark.parametrize("size", [2, 4097, BUFFER, 200_000])
def test_any_portions(tmp_path, pattern, size, double_buffer):
    """The file is the concatenation, whatever the sizes of portions and buffer."""
    data = pattern(500_000).tobytes() if size > 2 else pattern(301).tobytes()
    choose = np.random.default_rng(3)
    writer, at = make(tmp_path / "file", size, double_buffer=double_buffer), 0
    while at < len(data):
        portion = data[at : at + int(choose.integers(0, 100_000))]
        assert writer.write(portion) == len(portion)
        at += len(portion)
    writer.close()
    assert (tmp_path / "file").read_bytes() == data


def test_data_may_change_after_write(tmp_path):
    writer, data = make(tmp_path / "file"), bytearray(b"a" * 300_000)
    for letter in b"bcd":
        writer.write(data)
        data[:] = bytes([letter]) * len(data)
    writer.close()
    assert (tmp_path / "file").read_bytes() == b"".join(c * 300_000 for c in (b"a", b"b", b"c"))


def test_over_a_longer_file(tmp_path):
    """DeepSpeed's puts the tail behind the end of the file that was there; torch cannot load that."""
    path = tmp_path / "checkpoint"
    for numbers in (500_000, 100_003):
        state = {"weights": torch.arange(numbers, dtype=torch.float32)}
        writer = make(path)
        torch.save(state, writer)
        writer.close()
        torch.save(state, expected := io.BytesIO())
        assert path.read_bytes() == expected.getvalue()
        assert torch.equal(torch.load(path)["weights"], state["weights"])


@pytest.mark.parametrize("zip_format", [True, False])
def test_torch_save(tmp_path, zip_format):
    state = {
        "a": torch.randn(1000, 333),
        "b": torch.arange(7, dtype=torch.bfloat16),
        "c": [torch.tensor(True)],
        "d": "text",
    }
    writer = make(tmp_path / "state", handle=aio_handle(block_size=1 << 20, queue_depth=4))
    torch.save(state, writer, _use_new_zipfile_serialization=zip_format)
    writer.close()
    back = torch.load(tmp_path / "state")
    assert torch.equal(back["a"], state["a"]) and torch.equal(back["b"], state["b"]) and back["c"][0].item() is True
    assert back["d"] == "text"


def test_pickle_and_flush(tmp_path):
    writer = make(tmp_path / "file", 10_000)
    thing = {"numbers": list(range(10_000))}
    pickle.dump(thing, writer)
    writer.flush()
    assert pickle.loads((tmp_path / "file").read_bytes()) == thing
    pickle.dump("again", writer)
    writer.close()
    with open(tmp_path / "file", "rb") as file:
        assert [pickle.load(file), pickle.load(file), file.read()] == [thing, "again", b""]


def storages(*tensors):
    return [(tensor.untyped_storage(), tensor.dtype) for tensor in tensors]


@pytest.mark.parametrize("save_size", [True, False])
@pytest.mark.parametrize("writers", [1, 2, 3, 7])
def test_storages_in_shares(tmp_path, save_size, writers):
    """The shares of all ranks, one behind the other, are what one writer writes."""
    tensors = [
        torch.randn(1001),
        torch.arange(13, dtype=torch.int16),
        torch.tensor([True]),
        torch.empty(0),
        torch.randn(50, 2).to(torch.bfloat16)[:, :1],  # a storage is more than its view
    ]
    expected = b""
    for tensor in tensors:
        data = bytes(tensor.untyped_storage())
        if save_size:
            expected += (len(data) // tensor.element_size()).to_bytes(8, sys.byteorder)
        expected += data
    shares = []
    for rank in range(writers):
        writer = make(tmp_path / str(rank), 1000, num_parallel_writers=writers, writer_rank=rank)
        written = writer.save_torch_storage_object_list(storages(*tensors), save_size)
        writer.close()
        shares.append((tmp_path / str(rank)).read_bytes())
        assert written == len(shares[-1])
    assert b"".join(shares) == expected
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_statistics(tmp_path, capsys):
    writer = make(tmp_path / "file")
    writer.write(b"x" * 100_000)
    writer.save_torch_storage_object_list(storages(torch.zeros(1000)), True)
    writer.flush()
    assert writer.fileno() == -1
    writer.close()
    writer.close()
    writer._dump_state()
    line = capsys.readouterr().out
    assert line.startswith("stats = {") and line.count("\n") == 1
    stats = eval(line.removeprefix("stats = "), {"PosixPath": str})
    counted = {"close": 1, "fileno": 1, "flush": 1, "write": 3, "bytes": 104_008, "aio_bytes": 104_008}
    counted |= {"save_storage": 1, "save_storage_bytes": 4008, "slow_bytes": 0, "path": str(tmp_path / "file")}
    assert {key: stats[key] for key in counted} == counted
    assert stats["write_GB/s"] > 0 and stats["aio_GB/s"] > 0 and stats["fill_buffer_GB/s"] > 0
    assert writer.file_path() == tmp_path / "file"


def test_full_disk(tmp_path):
    """Raised by a write or by close, and by everything after; the file is closed all the same."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a file system of 8 MiB")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk], check=True)
    try:
        writer = make(disk / "file", 1 << 20)
        with pytest.raises(OSError) as raised:
            for _ in range(32):
                writer.write(bytes(1 << 20))
        assert raised.value.errno == errno.ENOSPC and str(disk / "file") in str(raised.value)
        for call in (lambda: writer.write(b"more"), writer.flush, writer.close):
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno == errno.ENOSPC
        writer.close()
        descriptors = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        assert str(disk / "file") not in descriptors

        # The last piece does not fit: it is close() that finds it.
        (disk / "file").unlink()
        (disk / "filler").write_bytes(bytes(7 << 20))
        writer = make(disk / "file", 8 << 20, double_buffer=False)
        writer.write(bytes(2 << 20))
        with pytest.raises(OSError) as raised:
            writer.close()
        assert raised.value.errno == errno.ENOSPC
    finally:
        subprocess.run(["umount", disk], check=True)


def test_durable_on_close(tmp_path):
    """After close() nothing of the file is dirty in the page cache: its data was synced, and so was the file."""
    calls = tmp_path / "calls"
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch\n"
        "from penstock.deepnvme import FastFileWriter, FastFileWriterConfig\n"
        "w = FastFileWriter(sys.argv[1], FastFileWriterConfig(None, torch.empty(4096, dtype=torch.uint8)))\n"
        "w.write(b'x' * 5001); w.close()\n"
    )
    try:
        subprocess.run(["strace", "-V"], stdout=subprocess.DEVNULL, check=True)
    except OSError:
        pytest.skip("strace is not installed")
    trace = ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync", "-o", calls]
    subprocess.run([*trace, sys.executable, program, tmp_path / "file"], check=True)
    synced = [line for line in calls.read_text().splitlines() if "sync(" in line]
    assert any(f"<{tmp_path / 'file'}>" in line for line in synced), synced
    assert (tmp_path / "file").read_bytes() == b"x" * 5001


def test_dropped_without_close(tmp_path, run_script):
    """What was written is there all the same, also at the end of the interpreter."""
    run_script(
        """
        import sys, torch
        from penstock.deepnvme import FastFileWriter, FastFileWriterConfig
        config = FastFileWriterConfig(None, torch.empty(4096, dtype=torch.uint8))
        FastFileWriter(sys.argv[1], config).write(b"x" * 5001)
        kept = FastFileWriter(sys.argv[2], config)
        kept.write(b"y" * 5001)
        """,
        tmp_path / "dropped",
        tmp_path / "kept",
    )
    assert (tmp_path / "dropped").read_bytes() == b"x" * 5001
    assert (tmp_path / "kept").read_bytes() == b"y" * 5001


def test_refuses(tmp_path):
    with pytest.raises(ValueError, match="writer_rank is 2 of 2"):
        make(tmp_path / "file", num_parallel_writers=2, writer_rank=2)
    with pytest.raises(ValueError, match="no buffer"):
        make(tmp_path / "file", 1)
    with pytest.raises((TypeError, ValueError), match="contiguous"):
        FastFileWriter(tmp_path / "file", FastFileWriterConfig(None, torch.empty(100, 100)[:, ::2]))
    assert not (tmp_path / "file").exists()
    with pytest.raises(FileNotFoundError):
        make(tmp_path / "no" / "such" / "folder")
    writer = make(tmp_path / "file")
    writer.close()
    with pytest.raises(ValueError, match="after close"):
        writer.write(b"more")
    with pytest.raises(TypeError):
        make(tmp_path / "file").write("text")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"pinned_tensor": bytes(BUFFER)}, ValueError, "pinned_tensor is read-only"),
        ({"num_parallel_writers": 2.5}, TypeError, "num_parallel_writers: expected an integer, got 2.5"),
        ({"writer_rank": 0.0}, TypeError, "writer_rank: expected an integer"),
        ({"double_buffer": "false"}, TypeError, "double_buffer: expected True or False, got 'false'"),
    ],
)
def test_a_configuration_that_cannot_work_leaves_the_file(tmp_path, options, error, match):
    path = tmp_path / "file"
    path.write_bytes(b"kept")
    config = {"dnvme_handle": None, "pinned_tensor": torch.empty(BUFFER, dtype=torch.uint8)} | options
    with pytest.raises(error, match=match):
        FastFileWriter(path, FastFileWriterConfig(**config))
    assert path.read_bytes() == b"kept"


def test_numpy_writes_archives_to_a_file_writer(tmp_path):
    numpy = pytest.importorskip("numpy")
    arrays = {"a": numpy.arange(100_000), "b": numpy.ones((3, 4), dtype=numpy.float32)}
    for save in (numpy.savez, numpy.savez_compressed):
        with penstock.FileWriter(tmp_path / "x.npz", buffer_bytes=1 << 16) as file:
            save(file, **arrays)
        with numpy.load(tmp_path / "x.npz") as found:
            assert sorted(found) == ["a", "b"] and all((found[name] == arrays[name]).all() for name in arrays)
    with penstock.FileWriter(tmp_path / "y") as file:
        assert not file.readable()
        with pytest.raises(OSError, match="not readable"):
            file.read()
