# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tensors on a GPU. test_gpu_memory.py runs this file in a process whose driver is the fake one.

torch's CPU build makes no CUDA tensors. Here a state holds GpuTensor where a program has a CUDA tensor: a subclass that
says where it is, and that save() takes for torch.nn.Parameter. While Gpu is active torch.empty() makes them."""

import ctypes
import os
import random

import cuda_memory
import penstock
import pytest
import torch
from cuda_memory import Memory, Tensor, last_device
from torch.overrides import TorchFunctionMode


class _Storage:
    def __init__(self, memory):
        self._memory, self._cdata = memory, id(memory)
        self.device = torch.device("cuda", memory.device)

    def data_ptr(self):
        return self._memory.address

    def nbytes(self):
        return self._memory.nbytes

    def _untyped_storage(self):
        return self


class GpuTensor(Tensor):
    __dict__ = property(lambda self: {})  # a tensor with attributes of its own is refused

    @classmethod
    def of(cls, values, device=0):
        made = Tensor.of(values, device)
        return cls(made.memory, values.dtype, values.shape)

    def untyped_storage(self):
        return _Storage(self.memory)

    def storage_offset(self):
        return self.begin // self.dtype.itemsize

    def detach(self):
        return type(self)(self.memory, self.dtype, self.shape, self.stride(), self.begin)

    def set_(self, storage, offset=0, shape=None, stride=None):
        if shape is None:
            return type(self)(storage._memory, self.dtype)
        return type(self)(storage._memory, self.dtype, tuple(shape), tuple(stride), offset * self.dtype.itemsize)


class Gpu(TorchFunctionMode):
    """torch with a GPU."""

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = keywords or {}
        if function is torch.empty and torch.device(keywords.get("device") or "cpu").type == "cuda":
            shape = arguments[0] if len(arguments) == 1 else arguments
            shape = (shape,) if isinstance(shape, int) else tuple(shape)
            dtype = keywords["dtype"]
            size = dtype.itemsize
            for extent in shape:
                size *= extent
            return GpuTensor(Memory(size, torch.device(keywords["device"]).index), dtype, shape)
        return function(*arguments, **keywords)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.nn, "Parameter", GpuTensor)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda_memory.cuda().devices())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with Gpu():
        yield


@pytest.fixture
def fake():
    """The controls of the fake driver; calm again at the end."""
    library = cuda_memory.cuda().library
    if not hasattr(library, "fake_gpu_hold"):
        pytest.skip("the driver is not the fake one")
    library.fake_gpu_fail_copy.argtypes = (ctypes.c_uint64, ctypes.c_int)
    yield library
    library.fake_gpu_calm()


def values(seed=0):
    """Tensors of several types and sizes, from nothing to a few MiB."""
    torch.manual_seed(seed)
    return {
        "weight": torch.randn(700, 900),
        "half": torch.randn(33, 7).to(torch.bfloat16),
        "ids": torch.randint(0, 1000, (70_001,)),
        "large": torch.randint(0, 255, (5_300_000,), dtype=torch.uint8),
        "none": torch.zeros(0, 4),
        "one": torch.tensor(3.5),
    }


def small(seed):
    torch.manual_seed(seed)
    return {"weight": torch.randn(300, 100), "half": torch.randn(33, 7).to(torch.bfloat16)}


def on_gpu(state, devices=2):
    devices = min(devices, cuda_memory.cuda().devices())
    return {name: GpuTensor.of(tensor, i % devices) for i, (name, tensor) in enumerate(state.items())}


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)


def check(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        here = found[name]
        if isinstance(here, Tensor):
            assert here.raw() == bits(tensor).numpy().tobytes(), name
        else:
            assert torch.equal(bits(here.detach()), bits(tensor)), name
        assert (here.dtype, tuple(here.shape)) == (tensor.dtype, tuple(tensor.shape))


def loaded(where, **options):
    """Onto the host, with torch's own parameters. where: a path, or a store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn, "Parameter", _PARAMETER)
        if isinstance(where, penstock.CheckpointStore):
            return where.load(map_location="cpu", **options)
        return penstock.load(where, map_location="cpu", **options)


_PARAMETER = torch.nn.Parameter
_FAILED_BY_ORDER = 13  # its place among the counters of tests/fake_gpu/control.hpp


# ---- saving


def test_a_file_has_the_bytes_that_it_has_from_the_host(gpu, tmp_path):
    state = values()
    penstock.save(state, tmp_path / "host.safetensors")
    penstock.save(on_gpu(state), tmp_path / "gpu.safetensors")
    assert (tmp_path / "gpu.safetensors").read_bytes() == (tmp_path / "host.safetensors").read_bytes()
    penstock.save(on_gpu(state), tmp_path / "gpu.pt")
    check(loaded(tmp_path / "gpu.pt"), state)
    index = tmp_path / "model.safetensors.index.json"
    penstock.save(on_gpu(state), index, shard_bytes=3_000_000)
    check(loaded(index), state)
    with open(tmp_path / "written.pt", "wb") as file:
        penstock.save(on_gpu(state), file)
    check(loaded(tmp_path / "written.pt"), state)


def test_tensors_that_come_one_after_another(gpu, tmp_path):
    state = values()
    for name in ("s.pt", "s.safetensors", "s.safetensors.index.json"):
        penstock.save(iter(on_gpu(state).items()), tmp_path / name, like=state, shard_bytes=3_000_000)
        check(loaded(tmp_path / name), state)


def test_save_async_of_a_file_copies_before_it_returns(gpu, tmp_path):
    state = values()
    for name in ("a.pt", "a.safetensors"):
        there = on_gpu(state)
        pending = penstock.save_async(there, tmp_path / name)
        for tensor in there.values():
            if tensor.nbytes:
                tensor.memory.put(b"\xaa" * tensor.nbytes)
        pending.result(60)
        check(loaded(tmp_path / name), state)


@pytest.mark.parametrize("checksums", [True, False])
def test_a_store_takes_tensors_of_gpus_and_of_the_host(gpu, tmp_path, checksums):
    with penstock.CheckpointStore(tmp_path / "store", checksums=checksums, shard_bytes=2_000_000) as store:
        state = values()
        there = on_gpu(state) | {"host": torch.arange(1000)}
        whole = state | {"host": torch.arange(1000)}
        store.save(there, step=1)
        check(loaded(store), whole)
        again = store.save(there, step=2)
        assert (again.linked_shards == again.shards) == checksums
        there["one"].memory.put(b"\0\0\0\0")
        whole["one"] = torch.tensor(0.0)
        pending = store.save_async(there, step=3)
        for name in state:
            if there[name].nbytes:
                there[name].memory.put(b"\xbb" * there[name].nbytes)
        info = pending.result(60)
        assert info.step == 3 and (info.linked_shards > 0) == checksums
        check(loaded(store), whole)
        assert store.latest().step == 3 and penstock.Checkpoint(info.path).verify() == [] or not checksums


def test_without_a_copy_and_beyond_the_budget(gpu, tmp_path):
    state = values()
    with penstock.CheckpointStore(tmp_path / "store", host_memory=4 << 20) as store:
        with pytest.warns(RuntimeWarning, match="host_memory"):
            store.save_async(on_gpu(state), step=1).result(60)
        check(loaded(store), state)
    with penstock.CheckpointStore(tmp_path / "other") as store:
        pending = store.save_async(on_gpu(state), step=1, copy=False)
        pending.wait_before_update()
        pending.result(60)
        check(loaded(store), state)
        store.save_async(on_gpu(state), step=2).result(60)
        budget, used, kept = store._store.host_memory()
        assert used == 0 and sum(t.nbytes for t in state.values()) <= kept <= budget


def test_fast_file_writer_takes_storages_of_a_gpu(gpu, fake, tmp_path):
    from penstock.deepnvme import FastFileWriter, FastFileWriterConfig

    state = values()
    pinned = torch.zeros(1 << 20, dtype=torch.uint8)
    writer = FastFileWriter(str(tmp_path / "file"), FastFileWriterConfig(None, pinned))
    storages = [(tensor.untyped_storage(), tensor.dtype) for tensor in on_gpu(state, 1).values()]
    assert writer.save_torch_storage_object_list(storages, False) == sum(t.nbytes for t in state.values())
    writer.close()
    expected = b"".join(bits(tensor).numpy().tobytes() for tensor in state.values())
    assert (tmp_path / "file").read_bytes() == expected


# ---- loading


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.safetensors.index.json"])
def test_files_load_to_a_gpu(gpu, tmp_path, name):
    state = values()
    penstock.save(state, tmp_path / name)
    last = f"cuda:{last_device()}"
    for device in ("cuda", last, torch.device(last), {"cpu": last}):
        found = penstock.load(tmp_path / name, map_location=device)
        check(found, state)
        assert {t.device.type for n, t in found.items() if n != "none"} == {"cuda"}
    some = penstock.load(tmp_path / name, map_location="cuda:0", names=["ids", "half"])
    check(some, {"ids": state["ids"], "half": state["half"]})
    into = {n: GpuTensor(Memory(t.nbytes), t.dtype, t.shape) for n, t in state.items()}
    penstock.load(tmp_path / name, into=into)
    check(into, state)


def test_a_store_loads_to_a_gpu(gpu, tmp_path):
    state = values()
    with penstock.CheckpointStore(tmp_path / "store", shard_bytes=2_000_000) as store:
        store.save(state, step=1)
        found = store.load(map_location=f"cuda:{last_device()}")
        check(found, state)
        assert {t.device for n, t in found.items() if n != "none"} == {torch.device("cuda", last_device())}
        into = {n: GpuTensor(Memory(t.nbytes), t.dtype, t.shape) for n, t in state.items()}
        into["one"] = torch.tensor(0.0)
        store.load(into=into)
        check(into, state)


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "store"])
def test_damage_is_found_in_what_went_to_a_gpu(gpu, tmp_path, name):
    state = {"large": values()["large"]}
    where = tmp_path / name
    if name == "store":
        with penstock.CheckpointStore(where) as store:
            info = store.save(state, step=1)
        where = info.path
        (path,) = [os.path.join(where, f) for f in os.listdir(where) if f.startswith("shard") and f.endswith("tensors")]
    else:
        penstock.save(state, where)
        path = where
    with open(path, "r+b") as file:
        file.seek(3_000_000)
        byte = file.read(1)[0]
        file.seek(3_000_000)
        file.write(bytes([byte ^ 1]))
    load = penstock.Checkpoint(where).load if name == "store" else lambda **options: penstock.load(where, **options)
    with pytest.raises(penstock.Damaged, match="large"):
        load(map_location="cuda:0")
    with pytest.raises(penstock.Damaged, match="large"):
        load(into={"large": GpuTensor(Memory(state["large"].nbytes))})


# ---- errors


def test_freed_memory_is_refused_by_its_place(gpu, tmp_path):
    there = on_gpu(values())
    penstock.save(there, tmp_path / "a.pt")
    before = (tmp_path / "a.pt").read_bytes()
    address = there["ids"].memory.address
    there["ids"].memory.free()
    there["ids"].memory.address = address
    for save in (penstock.save, lambda state, path: penstock.save_async(state, path).result(60)):
        with pytest.raises(ValueError, match="state.'ids'.*freed"):
            save(there, tmp_path / "a.pt")
    there["ids"].memory.address = 0
    assert (tmp_path / "a.pt").read_bytes() == before and os.listdir(tmp_path) == ["a.pt"]


def test_the_child_of_a_fork_is_told(gpu, tmp_path):
    there = on_gpu({"one": torch.arange(10)})
    child = os.fork()
    if child == 0:
        try:
            penstock.save(there, tmp_path / "a.pt")
        except penstock.Error as error:
            os._exit(7 if "spawn" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os.listdir(tmp_path) == []


def retried(call):
    def again(*arguments):
        try:
            call(*arguments)
        except cuda_memory.CudaError:
            call(*arguments)

    return again


def failed_by_order(fake):
    found = (ctypes.c_uint64 * 64)()
    fake.fake_gpu_counters(found)
    return found[_FAILED_BY_ORDER]


def refused(fake, call, prepare=lambda: None, stride=1, error=2):
    """How many calls `call` makes, and of how many a fault was an error. Each of them fails once."""
    n, errors = 1, 0
    while True:
        prepare()
        fake.fake_gpu_fail(b"*", ctypes.c_uint64(n), error, ctypes.c_uint64(1))
        before = failed_by_order(fake)
        try:
            call()
        except (OSError, MemoryError, ValueError) as found:
            assert str(found)
            errors += 1
        finally:
            reached = failed_by_order(fake) != before
            fake.fake_gpu_calm()
        if not reached:
            return n - 1, errors
        n += stride


def test_a_fault_of_any_call_leaves_the_checkpoint_before(gpu, fake, tmp_path):
    before, state = small(1), small(2)
    with penstock.CheckpointStore(tmp_path / "store", incremental=False, keep=2) as store:
        store.save(on_gpu(before), step=1)
        there = on_gpu(state)

        def save(run):
            try:
                run()
                last = state
            except Exception:
                last = good[-1]
                raise
            finally:
                good.append(last)
                check(loaded(store), last)

        good = [before]
        calls, errors = refused(fake, lambda: save(lambda: store.save(there, step=2)))
        assert calls > 10 and errors > 3
        good = [state]
        calls, errors = refused(fake, lambda: save(lambda: store.save_async(there, step=2).result(60)), stride=4)
        assert calls > 5 and errors > 0
    assert not [name for name in os.listdir(tmp_path / "store") if name.startswith(".tmp")]


def test_a_fault_of_any_call_is_no_wrong_load(gpu, fake, tmp_path):
    state = small(3)
    penstock.save(state, tmp_path / "a.safetensors")
    into = on_gpu(state)

    def clear():
        for tensor in into.values():
            tensor.memory.put(b"\0" * tensor.nbytes)

    def load():
        penstock.load(tmp_path / "a.safetensors", into=into)
        with pytest.MonkeyPatch.context() as patch:  # looking at it is not what fails
            patch.setattr(cuda_memory.cuda(), "call", retried(cuda_memory.cuda().call))
            check(into, state)

    calls, errors = refused(fake, load, clear)
    assert calls > 10 and errors > 3


def test_a_copy_that_fails_ends_the_save(gpu, fake, tmp_path):
    there = on_gpu(values(), 1)
    with penstock.CheckpointStore(tmp_path / "store") as store:
        store.save(there, step=1)
        fake.fake_gpu_fail_copy(random.Random(3).randrange(1, 4), 700)
        with pytest.raises((OSError, penstock.Error), match="700|ILLEGAL"):
            store.save(there | {"more": torch.arange(5)}, step=2)
        fake.fake_gpu_calm()
        assert store.latest().step == 1
