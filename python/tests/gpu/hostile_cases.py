# SPDX-License-Identifier: Apache-2.0
"""What a stranger found on the fake driver: streams of pinned memory, calls without bytes, properties that raise, what
another library left registered, a context that was reset."""

import ctypes
import os
import sys
import time

import cuda_memory
import numpy
import penstock
import pytest
import torch
from cuda_memory import InterfaceArray, Memory, Tensor
from gpu_cases import Late

BYTES = 300_000
_CAPTURES_ENDED = 22  # its place among the counters of tests/fake_gpu/control.hpp


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "file")


class Pinned:
    """Host memory of cuMemHostAlloc, as numba.cuda.mapped_array has it, that a stream writes 2 to after a while."""

    nbytes = BYTES

    def __init__(self, stream):
        cuda = cuda_memory.cuda()
        cuda.use(0)
        where = ctypes.c_void_p()
        cuda.call("cuMemHostAlloc", ctypes.byref(where), ctypes.c_size_t(BYTES), ctypes.c_uint(2))
        ctypes.memset(where.value, 1, BYTES)
        self.address = where.value
        self.source = Memory(BYTES).put(b"\2" * BYTES)
        self.wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.2))
        cuda.call("cuLaunchHostFunc", ctypes.c_void_p(stream), self.wait, None)
        source = ctypes.c_uint64(self.source.address)
        cuda.call("cuMemcpyDtoHAsync_v2", where, source, ctypes.c_size_t(BYTES), ctypes.c_void_p(stream))

    def free(self):
        cuda_memory.cuda().call("cuCtxSynchronize")
        cuda_memory.cuda().call("cuMemFreeHost", ctypes.c_void_p(self.address))


@pytest.mark.parametrize("others", [0, 1])
def test_a_stream_that_pinned_memory_names_is_waited_for(path, others):
    stream = cuda_memory.cuda().stream()
    pinned = Pinned(stream)
    tensors = [InterfaceArray(pinned, stream=stream)] + [Tensor(Memory(BYTES).put(b"\3" * BYTES))] * others
    penstock.write(path, tensors, offset=[BYTES * i for i in range(len(tensors))])
    with open(path, "rb") as file:
        assert file.read(BYTES) == b"\2" * BYTES
    pinned.free()


def test_an_empty_tensor_goes_with_any_stream(path):
    with open(path, "wb") as file:
        file.write(bytes(64))
    stream = cuda_memory.cuda().stream()
    empty = Tensor(Memory(64), shape=(0,))
    assert penstock.read(path, empty, stream=stream) == 0
    assert penstock.write(path, empty, stream=stream) == 0
    with pytest.raises(ValueError, match="host memory only"):
        penstock.read(path, bytearray(1), stream=stream)
    features = path + ".features"
    penstock.FeatureStore.write(features, {"f": torch.randn(50, 64), "g": torch.randn(50, 64)}, progress=False)
    with penstock.FeatureStore.open(features) as store:
        out = Tensor(Memory(64), torch.float32, (0, 64))
        none = numpy.array([], dtype=numpy.int64)
        assert store["f"].gather(none, out=out, stream=stream) is out
        with pytest.raises(ValueError, match="out is memory of the host"):
            store["f"].gather([1], out=torch.empty(1, 64), stream=stream)
        with pytest.raises(ValueError, match="0x4d is no stream of CUDA's.*give the handle"):
            store["f"].gather([1, 2], out=Tensor(Memory(512), torch.float32, (2, 64)), stream=77)


def test_what_a_property_raises_is_the_answer(path):
    class Raises:
        @property
        def __cuda_array_interface__(self):
            raise LookupError("no memory today")

    class RaisesLater:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            raise LookupError("no memory today")

    with pytest.raises(LookupError, match="no memory today"):
        penstock.write(path, Raises())
    with pytest.raises(ValueError, match=r"does not give its memory: LookupError: no memory today$"):
        penstock.write(path, RaisesLater())


def test_a_load_names_the_tensor_whose_memory_is_gone(tmp_path):
    penstock.save({"a": torch.ones(1000), "b": torch.ones(10)}, tmp_path / "a.pt")
    penstock.save({"a": torch.ones(1000), "b": torch.ones(10)}, tmp_path / "a.safetensors")
    for name in ("a.pt", "a.safetensors"):
        short = Tensor(Memory(400), torch.float32, (1000,))
        with pytest.raises(ValueError, match=r"into\['a'\] reaches past its storage, which has 400"):
            penstock.load(tmp_path / name, into={"a": short, "b": torch.zeros(10)})


def test_memory_that_another_library_left_registered_is_taken_over(tmp_path):
    features = tmp_path / "z.features"
    penstock.FeatureStore.write(features, {"f": torch.randn(5000, 64)}, progress=False)
    library = cuda_memory.cuda().library
    if not hasattr(library, "fake_gpu_fail"):
        pytest.skip("the driver is not the fake one")
    library.fake_gpu_fail.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)
    for refused in (0, 1, 1, 3):
        with penstock.FeatureStore.open(features, ram="3MB") as store:
            out = Tensor(Memory(512), torch.float32, (2, 64))
            expected = store["f"].gather([1, 2])
            store["f"].gather([1, 2], out=out)
            cuda_memory.cuda().call("cuCtxSynchronize")
            assert out.raw() == expected.tobytes()
            if refused:
                library.fake_gpu_fail(b"cuMemHostUnregister", 1, 1, refused)
        library.fake_gpu_calm()


def test_pieces_of_two_allocations_that_adjoin(path):
    """A driver copies no more than one allocation at once, and torch's segments lie one after another."""
    size = 2 << 20
    made = {memory.address: memory for memory in [Memory(size) for _ in range(24)]}
    pairs = [(memory, made[memory.address + size]) for memory in made.values() if memory.address + size in made]
    if not pairs:
        pytest.skip("this driver leaves room between allocations")
    data = numpy.random.default_rng(5).bytes(2 * size)
    for first, second in pairs[:3]:
        first.put(data[:size])
        second.put(data[size:])
        for before, after in ((size, size), (4096, 8192), (1001, 30_000)):
            pieces = [Tensor(first, shape=(before,), begin=size - before), Tensor(second, shape=(after,))]
            penstock.write(path, pieces, [0, before])
            with open(path, "rb") as file:
                assert file.read() == data[size - before : size + after]
            first.put(bytes(before), size - before)
            second.put(bytes(after))
            penstock.read(path, pieces, [0, before])
            assert first.get(size - before) + second.get(0, after) == data[size - before : size + after]
            os.unlink(path)


def test_a_capture_of_another_thread_goes_on(tmp_path):
    """torch.cuda.graph() captures in a mode that a question about any event ends, whatever thread asks."""
    library = cuda_memory.cuda().library
    if not hasattr(library, "fake_gpu_capture"):
        pytest.skip("the driver is not the fake one")
    path, features = str(tmp_path / "file"), str(tmp_path / "x.features")
    data = numpy.random.default_rng(5).bytes(5_000_000)
    there, back = Tensor(Memory(len(data)).put(data)), Tensor(Memory(len(data)))
    rows = Tensor(Memory(512), torch.float32, (2, 64))
    penstock.FeatureStore.write(features, {"f": torch.randn(500, 64)}, progress=False)
    penstock.save({"a": torch.arange(100_000)}, tmp_path / "a.safetensors")
    loaded = Tensor(Memory(800_000), torch.int64, (100_000,))
    counters = (ctypes.c_uint64 * 64)()
    library.fake_gpu_counters(counters)
    before = list(counters)
    library.fake_gpu_capture(1)
    try:
        for engine_options in ({}, {"gpu_path": "bounce"}):
            with penstock.Engine(**engine_options) as engine:
                engine.write(path, there)
                engine.read(path, back)
                with penstock.File(path, "rw") as file:
                    small, whole = Tensor(there.memory, shape=(4096,)), Tensor(back.memory, shape=(4096,))
                    assert engine.write(file, small) == engine.read(file, whole) == 4096
                transfer = engine.write_async(path, there)
                transfer.join(cuda_memory.cuda().stream())
                transfer.result()
        for options in ({}, {"ram": "50KB"}, {"device_memory": "50KB"}):
            with penstock.FeatureStore.open(features, **options) as store:
                for _ in range(3):
                    store["f"].gather([1, 2], out=rows)
        penstock.load(tmp_path / "a.safetensors", into={"a": loaded})
    finally:
        library.fake_gpu_calm()
    library.fake_gpu_counters(counters)
    assert counters[_CAPTURES_ENDED] == before[_CAPTURES_ENDED]
    assert back.memory.get() == data and loaded.memory.get() == torch.arange(100_000).numpy().tobytes()


def test_an_array_that_refuses_the_buffer_protocol_is_taken_by_another(path):
    """As CuPy's do, by a TypeError."""
    if sys.version_info < (3, 12):
        pytest.skip("only C has the buffer protocol before Python 3.12")

    class Refuses(InterfaceArray):
        def __buffer__(self, flags):
            raise TypeError("not on the CPU")

    there = Refuses(Memory(5000).put(b"\7" * 5000))
    assert penstock.write(path, there) == 5000
    back = Refuses(Memory(5000))
    penstock.read(path, back)
    assert back.memory.get() == b"\7" * 5000


def test_a_default_engine_that_was_closed_is_made_again(path):
    first = penstock.default_engine()
    penstock.write(path, b"12345678")
    first.close()
    with pytest.raises(ValueError, match="it is closed"):
        first.read(path, bytearray(8))
    into = bytearray(8)
    assert penstock.read(path, into) == 8 and into == b"12345678"
    assert penstock.default_engine() is not first


def test_a_gather_comes_after_the_stream_that_its_memory_names(path):
    features = path + ".features"
    penstock.FeatureStore.write(features, {"f": torch.randn(50, 64)}, progress=False)
    theirs, ours = cuda_memory.cuda().stream(), cuda_memory.cuda().stream()
    memory = Memory(512)
    with penstock.FeatureStore.open(features) as store:
        expected = store["f"].gather([1, 2])
        late = Late(theirs, Tensor(memory), b"\xee" * 512)
        out = InterfaceArray(memory, shape=(2, 64), typestr="<f4", stream=theirs)
        store["f"].gather([1, 2], out=out, stream=ours)
        late.close()
        assert memory.get() == expected.tobytes()
