# SPDX-License-Identifier: Apache-2.0
"""penstock.deepnvme with tensors on a GPU: gds_handle, aio_handle, FastFileWriter, ds_io, ds_nvme_tune. Run as
gpu_cases.py is."""

import json
import logging
import os

import cuda_memory
import penstock
import pytest
import torch
from cuda_memory import Memory, Tensor
from penstock.deepnvme import (
    AsyncIOBuilder,
    FastFileWriter,
    FastFileWriterConfig,
    GDSBuilder,
    aio_handle,
    ds_io,
    ds_nvme_tune,
    gds_handle,
)

HANDLES = pytest.mark.parametrize("make", [gds_handle, aio_handle], ids=["gds", "aio"])


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "file")


@pytest.fixture
def cuda_torch(monkeypatch):
    """torch.empty() makes tensors on cuda:n."""
    empty = torch.empty

    def made(*size, device="cpu", dtype=torch.float32, **options):
        device = torch.device(device)
        if device.type != "cuda":
            return empty(*size, device=device, dtype=dtype, **options)
        count = size[0] if isinstance(size[0], int) else size[0][0]
        return Tensor(Memory(count * dtype.itemsize, device.index or 0), dtype)

    monkeypatch.setattr(torch, "empty", made)


def random(size, seed=0):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def content(path):
    with open(path, "rb") as file:
        return file.read()


def test_the_builder_is_compatible_and_says_by_which_way(caplog):
    builder = GDSBuilder()
    with caplog.at_level(logging.INFO, logger="penstock.deepnvme"):
        assert builder.is_compatible() is True and builder.is_compatible(verbose=True) is True
    assert "cuFile" in caplog.text and "pinned" in caplog.text and builder.error_log is None
    assert builder.load().gds_handle is gds_handle


def test_defaults_and_getters():
    handle = gds_handle()
    assert (handle.get_block_size(), handle.get_queue_depth()) == (1 << 20, 128)
    assert handle.get_single_submit() is handle.get_overlap_events() is False
    assert handle.get_intra_op_parallelism() == 1
    other = gds_handle(
        block_size=1 << 18, queue_depth=2, single_submit=True, overlap_events=True, intra_op_parallelism=8
    )
    assert (other.get_block_size(), other.get_queue_depth(), other.get_intra_op_parallelism()) == (1 << 18, 2, 8)
    assert other.get_single_submit() is other.get_overlap_events() is True
    assert handle.get_alignment() == other.get_alignment() == 512  # as DeepNVMe's: whatever the parallelism
    assert isinstance(other, aio_handle)


@HANDLES
@pytest.mark.parametrize("size", [0, 1, 511, 4096, 1_000_003])
def test_every_verb_moves_every_byte(path, make, size):
    handle = make(queue_depth=2)
    values = random(size)
    there = Tensor.of(values)
    expected = there.raw()
    write = {
        "write": lambda p: handle.write(there, p, True),
        "pwrite": lambda p: handle.pwrite(there, p, True, False),
        "sync_pwrite": lambda p: handle.sync_pwrite(there, p),
        "async_pwrite": lambda p: handle.async_pwrite(there, p) or handle.wait(),
        "pwrite_async": lambda p: handle.pwrite(there, p, False, True) or handle.wait(),
    }
    for name, verb in write.items():
        assert verb(f"{path}.{name}") == (0 if name == "write" else 1)
        assert content(f"{path}.{name}") == expected
    back = Tensor(Memory(size))
    read = {
        "read": lambda: handle.read(back, f"{path}.write", True),
        "pread": lambda: handle.pread(back, f"{path}.write", True, False),
        "sync_pread": lambda: handle.sync_pread(back, f"{path}.write"),
        "async_pread": lambda: handle.async_pread(back, f"{path}.write") or handle.wait(),
    }
    for name, verb in read.items():
        if size:
            back.memory.put(b"\xee" * size)
        assert verb() == (0 if name == "read" else 1)
        assert back.raw() == expected
    assert handle.wait() == 0


@HANDLES
def test_descriptors_and_offsets(path, make):
    handle = make()
    there = Tensor.of(random(100_000))
    with open(path, "wb") as file:
        assert handle.async_pwrite(there, file.fileno(), 1000) == 0
        assert handle.wait() == 1
    assert content(path) == bytes(1000) + there.raw()
    back = Tensor(Memory(50_000))
    assert handle.sync_pread(back, path, 2000) == 1
    assert back.raw() == there.raw()[1000:51_000]


@HANDLES
def test_several_operations_under_way(tmp_path, make):
    handle = make()
    tensors = [Tensor.of(random(300_000 + i, i)) for i in range(5)]
    for i, tensor in enumerate(tensors):
        assert handle.async_pwrite(tensor, str(tmp_path / str(i))) == 0
    assert handle.wait() == 5
    back = [Tensor(Memory(300_000 + i)) for i in range(5)]
    for i, tensor in enumerate(back):
        assert handle.async_pread(tensor, str(tmp_path / str(i))) == 0
    assert handle.wait() == 5
    assert [t.raw() for t in back] == [t.raw() for t in tensors]


def test_cpu_tensors_go_through_a_gds_handle_too(path):
    handle = gds_handle()
    values = random(70_001)
    assert handle.sync_pwrite(values, path) == 1
    locked = handle.new_cpu_locked_tensor(70_001, values)
    assert handle.is_pinned(locked) and handle.sync_pread(locked, path) == 1 and torch.equal(locked, values)
    assert handle.free_cpu_locked_tensor(locked) is True


def test_a_write_of_aio_handle_has_the_values_at_the_call(path):
    for make, expected in ((aio_handle, 1), (gds_handle, None)):
        tensor = Tensor.of(torch.full((3_000_000,), 1, dtype=torch.uint8))
        library = cuda_memory.cuda().library
        if not hasattr(library, "fake_gpu_hold"):
            pytest.skip("the driver is not the fake one")
        handle = make()
        handle.async_pwrite(tensor, path)
        tensor.memory.put(bytes(3_000_000))
        assert handle.wait() == 1
        if expected is not None:
            assert set(content(path)) == {expected}


def test_strided_tensors_are_written_and_refused_as_destinations(path):
    handle = gds_handle()
    memory = Memory(4096).put(bytes(range(256)) * 16)
    strided = Tensor(memory, shape=(16, 16), strides=(32, 2))
    assert handle.sync_pwrite(strided, path) == 1
    assert content(path) == bytes(strided.cpu().flatten().tolist())
    with pytest.raises(ValueError, match="contiguous"):
        handle.sync_pread(strided, path)


def test_short_files_and_missing_ones_are_errors(path):
    handle = gds_handle()
    with pytest.raises(FileNotFoundError):
        handle.async_pread(Tensor(Memory(64)), path)
    with open(path, "wb") as file:
        file.write(bytes(1000))
    for verb in (handle.sync_pread, handle.async_pread):
        with pytest.raises(penstock.EndOfFile):
            verb(Tensor(Memory(4096)), path)
            handle.wait()
    assert handle.wait() == 0 and handle.sync_pread(Tensor(Memory(1000)), path) == 1


def test_a_write_that_cannot_be_makes_no_file(path):
    handle = gds_handle()
    gone = Tensor(Memory(4096))
    freed = gone.memory.address
    gone.memory.free()
    gone.memory.address = freed
    try:
        with pytest.raises(ValueError):
            handle.sync_pwrite(gone, path)
    finally:
        gone.memory.address = 0
    assert not os.path.exists(path)


def test_pinned_device_tensors(cuda_torch, path):
    handle, other = gds_handle(), gds_handle()
    tensor = handle.new_pinned_device_tensor(1000, torch.zeros(1, dtype=torch.float64))
    assert tensor.is_cuda and tensor.dtype == torch.float64 and tensor.shape == (1000,)
    assert handle.sync_pwrite(tensor, path) == 1 and os.path.getsize(path) == 8000
    assert other.free_pinned_device_tensor(tensor) is True
    assert other.free_pinned_device_tensor(tensor) is False
    assert handle.pin_device_tensor(tensor) is True and handle.pin_device_tensor(tensor=tensor) is True
    assert other.unpin_device_tensor(tensor=tensor) is True and handle.unpin_device_tensor(tensor) is False
    assert handle.new_pinned_device_tensor(num_elem=0, example_tenosr=torch.zeros(1)).numel() == 0
    for verb in (handle.pin_device_tensor, handle.unpin_device_tensor, handle.free_pinned_device_tensor):
        with pytest.raises(ValueError, match="cpu"):
            verb(torch.zeros(3))
        with pytest.raises(TypeError, match="torch tensor"):
            verb(b"x")
    with pytest.raises(ValueError, match="num_elem"):
        handle.new_pinned_device_tensor(-1, tensor)
    with pytest.raises(TypeError, match="example"):
        handle.new_pinned_device_tensor(1, None)
    assert handle.is_pinned(tensor) is False  # that question is about CPU memory


def test_a_module_function_takes_device_tensors(path):
    module = AsyncIOBuilder().load()
    tensor = Tensor.of(random(5000))
    assert module.aio_write(tensor, path, 1 << 20, 8, False, True, True) == 0
    back = Tensor(Memory(5000))
    assert module.aio_read(back, path, 1 << 20, 8, False, True, True) == 0
    assert back.raw() == tensor.raw()


def test_fast_file_writer_takes_a_buffer_on_a_gpu(path):
    buffer = Tensor(Memory(1 << 16))
    writer = FastFileWriter(path, FastFileWriterConfig(gds_handle(), buffer))
    state = {"a": torch.arange(100_000), "b": torch.ones(3)}
    torch.save(state, writer)
    writer.close()
    loaded = torch.load(path)
    assert torch.equal(loaded["a"], state["a"]) and torch.equal(loaded["b"], state["b"])


@pytest.mark.parametrize("words", [[], ["--read"], ["--use_gds"], ["--read", "--use_gds", "--validate"]], ids=" ".join)
def test_ds_io(cuda_torch, tmp_path, capsys, words):
    report = tmp_path / "report.json"
    words = ["--gpu", "--folder", str(tmp_path), "--io_size", "1000003", "--json", str(report), *words]
    status = ds_io.main(words)
    out = capsys.readouterr()
    assert status == 0, out
    kind = "Read" if "--read" in words else "Write"
    assert f"E2E {kind} Speed = " in out.out and "on device cuda:0" in out.out and "cuFile" in out.out
    found = json.loads(report.read_text())["ds_io"]
    assert found["gpu"] is True and found["use_gds"] is ("--use_gds" in words) and found["bytes"] == 3 * 1000003


def test_ds_io_names_gpus_that_are_not_there(tmp_path, capsys):
    count = cuda_memory.cuda().devices()
    words = ["--gpu", "--folder_to_device_mapping", f"{tmp_path}:{count}", "--io_size", "1M"]
    assert ds_io.main(words) == 2
    assert f"there is no GPU {count}" in capsys.readouterr().err
    assert ds_io.main(["--use_gds", "--folder", str(tmp_path), "--io_size", "1M"]) == 2
    assert "--use_gds needs --gpu" in capsys.readouterr().err
    assert ds_io.main(["--gpu", "--engine", "torch_io", "--folder", str(tmp_path), "--io_size", "1M"]) == 2
    assert "aio_handle" in capsys.readouterr().err


def test_ds_nvme_tune(cuda_torch, tmp_path, capsys):
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"block_size": ["64K", "1M"], "queue_depth": [4]}))
    logs = tmp_path / "logs"
    words = ["--gpu", "--gds", "--nvme_dir", str(tmp_path), "--io_size", "300K", "--rounds", "1"]
    status = ds_nvme_tune.main([*words, "--log_dir", str(logs), "--sweep_config", str(sweep)])
    out = capsys.readouterr()
    assert status == 0, out
    assert "Best performance" in out.out
    assert json.loads((logs / "ds_config_aio.json").read_text())["aio"]["use_gds"] is True
    assert "on a GPU" in next((logs / "_aio_bench_read_logs").iterdir()).read_text()
    assert ds_nvme_tune.main(["--gds", "--nvme_dir", str(tmp_path)]) == 2
    assert "--gds needs --gpu" in capsys.readouterr().err
