# SPDX-License-Identifier: Apache-2.0
"""Gathers into the memory of a GPU. test_gpu_memory.py runs this file in a process whose driver is the fake one."""

import ctypes
import pickle

import cuda_memory
import numpy
import penstock
import pytest
import torch
from cuda_memory import DlpackArray, Memory, Stream, Tensor, last_device
from penstock.features import graphbolt

DTYPES = (torch.float32, torch.float16, torch.uint8, torch.int64, torch.bfloat16)


@pytest.fixture
def torch_on_gpu(monkeypatch):
    """torch.empty(device="cuda:n") as a build of torch with CUDA has it."""
    empty = torch.empty

    def made(*size, device=None, dtype=torch.float32, **options):
        found = torch.device(device or "cpu")
        if found.type != "cuda":
            return empty(*size, dtype=dtype, **options)
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
        elements = int(numpy.prod(shape, dtype=numpy.int64))
        return Tensor(Memory(elements * dtype.itemsize, found.index or 0), dtype, shape)

    monkeypatch.setattr(torch, "empty", made)
    monkeypatch.setattr("penstock._base.devices.missing", lambda device: None)


@pytest.fixture
def tables(tmp_path):
    torch.manual_seed(3)
    made = {
        str(dtype).removeprefix("torch."): torch.randint(0, 100, (300, 3, 5), dtype=torch.uint8).to(dtype)
        for dtype in DTYPES
    }
    made["wide"] = torch.randn(200, 1024)
    penstock.FeatureStore.write(tmp_path / "x.features", made, progress=False)
    return str(tmp_path / "x.features"), made


def ids_of(table, count, seed):
    found = numpy.random.default_rng(seed).integers(0, len(table), (count, 2))
    return torch.from_numpy(numpy.concatenate([found, found[:3]]))


def same(found, expected):
    assert found.is_cuda and found.dtype == expected.dtype and found.shape == expected.shape
    assert found.raw() == expected.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def test_rows_are_those_of_a_gather_on_the_host(torch_on_gpu, tables):
    path, made = tables
    for options in ({}, {"ram": "100KB", "hot": {"wide": range(50)}}, {"device_memory": "200KB"}):
        with penstock.FeatureStore.open(path, **options) as store:
            for round in range(3):
                for name, table in made.items():
                    ids = ids_of(table, 40, round)
                    same(store[name].gather(ids, device="cuda:0"), table[ids])
                several = {name: ids_of(table, 20, round) for name, table in made.items()}
                found = store.gather_async(several, device="cuda").result()
                for name, ids in several.items():
                    same(found[name], made[name][ids])
            stats = store.stats()
            assert (stats.rows_hit > 0) == bool(options), options
            assert (stats.rows_on_gpu > 0) == (stats.device_bytes > 0) == ("device_memory" in options)


def test_out_of_a_gpu_in_every_form(tables):
    path, made = tables
    table = made["wide"]
    with penstock.FeatureStore.open(path, device_memory="10MB") as store:
        for round in range(3):
            ids = ids_of(table, 30, round)
            expected = table[ids].contiguous()
            tensor = Tensor(Memory(expected.nbytes), torch.float32, tuple(expected.shape))
            assert store["wide"].gather(ids, out=tensor) is tensor
            same(tensor, expected)
            other = Tensor(Memory(expected.nbytes), torch.float32, tuple(expected.shape))
            stream = Stream(cuda_memory.cuda().stream())
            store["wide"].gather(ids.t().contiguous().t(), out=other, stream=stream)  # strided ids
            cuda_memory.cuda().call("cuCtxSynchronize")
            same(other, expected)
            memory = Memory(expected.nbytes)
            store["wide"].gather(ids.flatten().tolist(), out=DlpackArray(memory))
            assert memory.get() == tensor.raw()


def test_ids_of_a_gpu_are_copied(torch_on_gpu, tables):
    path, made = tables
    ids = ids_of(made["wide"], 10, 1)
    with penstock.FeatureStore.open(path) as store:
        same(store["wide"].gather(Tensor.of(ids), device="cuda:0"), made["wide"][ids])


def test_loaders_gather_where_they_are_told(torch_on_gpu, tables):
    path, made = tables
    wide = made["wide"]
    with penstock.FeatureStore.open(path, ram="100KB") as store:
        batches = [ids_of(wide, 10, seed) for seed in range(5)]
        for given in (batches, [Tensor.of(batch) for batch in batches]):
            found = penstock.features.Prefetch(given, store["wide"], window=2, device="cuda:0")
            for expected, (_, rows) in zip(batches, found, strict=True):
                same(rows, wide[expected])
        assert store.stats().hints_used > 0
        feature = graphbolt.Feature(store["wide"])
        same(feature.read(Tensor.of(batches[0])), wide[batches[0]])
        (waiter,) = feature.read_async(Tensor.of(batches[1]))
        same(waiter.wait(), wide[batches[1]])
        assert torch.equal(feature.read(batches[0]), wide[batches[0]])


def test_wrong_calls_say_what_is_wrong(tables):
    path, made = tables
    with penstock.FeatureStore.open(path) as store:
        wide = store["wide"]
        there = Tensor(Memory(4096), torch.float32, (1, 1024))
        with pytest.raises(TypeError, match="device: out says"):
            wide.gather([1], out=there, device="cuda:0")
        with pytest.raises(ValueError, match="stream"):
            wide.gather([1], stream=1)
        with pytest.raises((TypeError, ValueError), match="cuda_stream"):
            wide.gather([1], out=there, stream="x")
        second = Tensor(Memory(4096, last_device()), torch.float32, (1, 1024))
        if last_device() == 1:
            small = Tensor(Memory(15), torch.uint8, (1, 3, 5))
            with pytest.raises(ValueError, match="GPU"):
                store.gather({"wide": [1], "uint8": [2]}, out={"wide": second, "uint8": small})
        wide.gather([1], out=second)
        same(second, made["wide"][[1]])
    with pytest.raises(ValueError, match="device: got 'cpu'"):
        penstock.FeatureStore.open(path, device_memory="1MB", device="cpu")


def test_no_memory_of_the_gpu_is_a_memory_error(tables):
    path, _ = tables
    library = cuda_memory.cuda().library
    if not hasattr(library, "fake_gpu_fail"):
        pytest.skip("the driver is not the fake one")
    library.fake_gpu_fail.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)
    library.fake_gpu_fail(b"cuMemAlloc", 1, 2, 1)  # CUDA_ERROR_OUT_OF_MEMORY
    try:
        with pytest.raises(MemoryError):
            penstock.FeatureStore.open(path, device_memory="1MB")
    finally:
        library.fake_gpu_calm()


def test_a_pickled_store_opens_its_file_again(tables):
    path, made = tables
    with penstock.FeatureStore.open(path, device_memory="1MB", device=torch.device("cuda", last_device())) as store:
        again = pickle.loads(pickle.dumps(store))
        assert again.stats().device_bytes == store.stats().device_bytes > 0
        out = Tensor(Memory(4096, last_device()), torch.float32, (1, 1024))
        again["wide"].gather([7], out=out)
        same(out, made["wide"][[7]])
