# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of GPU memory. test_gpu_memory.py runs this file in a process whose driver is the fake one."""

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import threading
import time
import weakref

import cuda_memory
import numpy
import penstock
import pytest
import torch
from cuda_memory import DLPACK_CUDA_MANAGED, DlpackArray, InterfaceArray, Memory, ProtocolStream, Stream, Tensor

DTYPES = (torch.uint8, torch.int16, torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.bool)
EDGE = 64  # bytes before and after what is read into, which stay


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "file")


@pytest.fixture
def fake():
    """The controls of the fake driver; calm again at the end."""
    library = cuda_memory.cuda().library
    if not hasattr(library, "fake_gpu_hold"):
        pytest.skip("the driver is not the fake one")
    library.fake_gpu_set_rate.argtypes = (ctypes.c_double, ctypes.c_double, ctypes.c_uint32)
    library.fake_gpu_fail_copy.argtypes = (ctypes.c_uint64, ctypes.c_int)
    yield library
    library.fake_gpu_calm()


@contextlib.contextmanager
def held(fake):
    """No copy goes on meanwhile. Garbage goes first, and none is collected: memory of a GPU in it would be freed, and
    cuMemFree waits for the copies."""
    gc.collect()
    gc.disable()
    fake.fake_gpu_hold(1)
    try:
        yield
    finally:
        fake.fake_gpu_hold(0)
        gc.enable()


@pytest.mark.parametrize("way", ["auto", "bounce", "cufile"])
def test_an_engine_takes_the_way_that_it_is_told(path, monkeypatch, way):
    data = data_of(3_000_001)
    direct = bool(penstock.cufile_conditions(penstock.gpus().gpus[0], os.path.dirname(path)))
    for options in ({"gpu_path": way}, {}):
        if not options:
            monkeypatch.setenv("PENSTOCK_GPU_PATH", way)
        with penstock.Engine(**options) as engine:
            source, target = Tensor.of(torch.frombuffer(bytearray(data), dtype=torch.uint8)), Tensor(Memory(len(data)))
            if way == "cufile" and not direct:
                with pytest.raises(penstock.Unsupported, match="choose 'auto' to go through host memory"):
                    engine.write(path, source)
                continue
            engine.write(path, source)
            engine.read(path, target)
            assert target.raw() == data
            assert (engine.stats().cufile_requests > 0) == (direct and way != "bounce")


def test_a_way_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="auto.*bounce.*cufile"):
        penstock.Engine(gpu_path="direct")


def data_of(size, seed=0):
    return numpy.random.default_rng(seed).integers(0, 256, size, dtype=numpy.uint8).tobytes()


def file_of(path, data):
    with open(path, "wb") as file:
        file.write(data)
    return path


def content(path):
    with open(path, "rb") as file:
        return file.read()


def framed(size, device=0):
    """A tensor of so many bytes, inside of memory that shows who writes past it."""
    memory = Memory(size + 2 * EDGE, device).put(b"\xee" * (size + 2 * EDGE))
    return Tensor(memory, shape=(size,), begin=EDGE)


def check_framed(tensor, expected):
    all_of_it = tensor.memory.get()
    assert all_of_it[EDGE:-EDGE] == expected
    assert all_of_it[:EDGE] == all_of_it[-EDGE:] == b"\xee" * EDGE


# ---- bytes


def test_gpus_are_told():
    report = penstock.gpus()
    assert report and report.available and report.reason == "" and report.driver_version >= 12000
    assert len(report.gpus) == cuda_memory.cuda().devices()
    assert [gpu.number for gpu in report.gpus] == list(range(len(report.gpus)))
    assert all(gpu.name and gpu.memory_bytes > 0 and gpu.pci for gpu in report.gpus)
    assert report.gpus[0].compute_capability >= (1, 0) and "GPU" in repr(report) and "Gpu(" in repr(report.gpus[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_any_type_comes_back(path, dtype):
    values = (
        torch.frombuffer(bytearray(data_of(48_000)), dtype=torch.uint8).view(dtype)
        if dtype != torch.bool
        else (torch.arange(3_000) % 3 == 0)
    )
    there = Tensor.of(values.reshape(2, -1))
    assert penstock.write(path, there) == there.nbytes == os.path.getsize(path)
    back = Tensor(Memory(there.nbytes), dtype, there.shape)
    assert penstock.read(path, back) == back.nbytes
    assert back.raw() == there.raw() == content(path)


@pytest.mark.parametrize("cache", ["auto", "direct", "cached"])
def test_any_offset_and_length(path, cache):
    data = data_of(9_000_000)
    file_of(path, data)
    sizes = numpy.random.default_rng(1).integers(0, [1, 600, 5000, 70_000, 3_000_000] * 4)
    for seed, size in enumerate(map(int, sizes)):
        offset = seed * 997 % 4099
        into = framed(size)
        assert penstock.read(path, into, offset, cache=cache) == size
        check_framed(into, data[offset : offset + size])
        out = path + ".out"
        file_of(out, b"\x11" * (offset + size + 77))
        assert (
            penstock.write(out, Tensor(Memory(size).put(data[:size]) if size else Memory(0)), offset, cache=cache)
            == size
        )
        assert content(out) == b"\x11" * offset + data[:size] + b"\x11" * 77


def test_many_tensors_of_host_and_gpus_in_one_transfer(path):
    data = data_of(5_000_000)
    file_of(path, data)
    devices = cuda_memory.cuda().devices()
    cuts = sorted({0, len(data), *map(int, numpy.random.default_rng(3).integers(0, len(data), 60))})
    spans = list(zip(cuts, cuts[1:]))
    into = [bytearray(b - a) if i % 3 == 0 else framed(b - a, i % devices) for i, (a, b) in enumerate(spans)]
    assert penstock.read(path, into, [a for a, _ in spans]) == len(data)
    for tensor, (a, b) in zip(into, spans):
        if isinstance(tensor, bytearray):
            assert tensor == data[a:b]
        else:
            check_framed(tensor, data[a:b])
    out = path + ".out"
    assert penstock.write(out, into, [a for a, _ in spans], sync=True) == len(data)
    assert content(out) == data


def test_a_file_each(tmp_path):
    paths = [file_of(str(tmp_path / str(i)), data_of(10_000 + i, i)) for i in range(20)]
    into = [framed(10_000 + i) for i in range(20)]
    transfer = penstock.read_async(paths, into, priority="urgent")
    assert transfer.result(30) == sum(10_000 + i for i in range(20))
    for i, tensor in enumerate(into):
        check_framed(tensor, data_of(10_000 + i, i))


def test_rows_go_to_a_gpu(path):
    table = numpy.random.default_rng(4).integers(0, 256, (1000, 300), dtype=numpy.uint8)
    file_of(path, table.tobytes())
    ids = numpy.random.default_rng(5).integers(0, 1000, 400)
    out = Tensor(Memory(400 * 300), shape=(400, 300))
    assert penstock.read_rows(path, ids, out) == 400 * 300
    assert out.raw() == table[ids].tobytes()


def test_short_files_are_told(path):
    data = data_of(100_000)
    file_of(path, data)
    into = framed(150_000)
    assert penstock.read(path, into, allow_short=True) == 100_000
    assert into.raw()[:100_000] == data
    with pytest.raises(penstock.EndOfFile, match="100000|150000"):
        penstock.read(path, framed(150_000))


def test_await(path):
    file_of(path, data_of(100_000))
    into = framed(100_000)

    async def run():
        return await penstock.read_async(path, into)

    assert asyncio.run(run()) == 100_000
    check_framed(into, data_of(100_000))


def test_the_engine_says_what_moved_it(path):
    with penstock.Engine() as engine:
        engine.write(path, Tensor.of(torch.arange(1 << 20, dtype=torch.uint8)))
        before = engine.stats()
        engine.read(path, Tensor(Memory(1 << 20)))
        assert (
            engine.stats().bytes_read - before.bytes_read + engine.stats().bytes_cached - before.bytes_cached >= 1 << 20
        )
        (gpu,) = engine.describe().gpus
        assert gpu.number == 0 and gpu.channels >= 1 and 0 < gpu.pinned_bytes <= gpu.pinned_bytes_max
        assert gpu.way in str(engine.describe())


# ---- arrays of others


def test_arrays_with_the_cuda_array_interface(path):
    data = data_of(4096)
    file_of(path, data)
    memory = Memory(4096)
    assert penstock.read(path, InterfaceArray(memory, shape=(4, 256), typestr="<f4", strides=(1024, 4))) == 4096
    assert memory.get() == data
    assert penstock.write(path + "2", InterfaceArray(memory, version=2, data=(memory.address, True))) == 4096
    assert content(path + "2") == data
    assert penstock.read(path, InterfaceArray(memory, shape=(0, 7), data=(0, False))) == 0
    assert penstock.read(path, Tensor(memory).interface()) == 4096


@pytest.mark.parametrize("kind", [cuda_memory.DLPACK_CUDA, DLPACK_CUDA_MANAGED])
def test_arrays_with_dlpack(path, kind):
    data = data_of(4096)
    file_of(path, data)
    memory = Memory(4096 + 32, managed=kind == DLPACK_CUDA_MANAGED)
    array = DlpackArray(memory, kind, begin=32)
    assert penstock.read(path, array) == 4096
    assert memory.get(32) == data
    assert penstock.write(path + "2", array) == 4096
    assert content(path + "2") == data
    # The default stream has the number 1 there; the producer puts what it has under way before it.
    assert set(array.asked) == {1}
    stream = cuda_memory.cuda().stream()
    assert penstock.read(path, array, stream=stream) == 4096
    assert array.asked[-1] == stream


# ---- what cannot be


def refuses(argument, *words, error=ValueError, path="absent", verb=penstock.read, **options):
    with pytest.raises(error) as raised:
        verb(path, argument, **options)
    for word in words:
        assert word in str(raised.value), raised.value


def test_what_is_not_contiguous_is_refused():
    memory = Memory(4096)
    refuses(Tensor(memory, shape=(16, 16), strides=(32, 1)), "into", "not contiguous", "contiguous()")
    refuses(InterfaceArray(memory, shape=(16, 16), strides=(32, 1)), "not contiguous", "strides (32, 1) in bytes")
    refuses(InterfaceArray(memory, shape=(16,), strides=(-1,)), "not contiguous")
    refuses(DlpackArray(memory, strides=2), "not contiguous")
    refuses([bytearray(1), Tensor(memory, shape=(2, 2), strides=(1, 2))], "into[1]", "not contiguous", offset=[0, 0])


def test_interfaces_that_say_nonsense_are_refused():
    memory = Memory(64)
    for entries, word in (
        ({"mask": object()}, "mask"),
        ({"typestr": "float"}, "typestr"),
        ({"typestr": None}, "type of its elements"),
        ({"typestr": "<f0"}, "typestr"),
        ({"shape": 64}, "shape"),
        ({"shape": (-64,)}, "shape"),
        ({"shape": (1 << 40, 1 << 40)}, "more bytes"),
        ({"strides": (1, 1)}, "as many"),
        ({"data": memory.address}, "data"),
        ({"data": ("x", False)}, "address"),
        ({"stream": "x"}, "stream"),
    ):
        refuses(InterfaceArray(memory, **entries), "into", word)
    refuses(InterfaceArray(memory, data=(memory.address, True)), "read-only")
    array = InterfaceArray(memory)
    array.entries = [1]
    refuses(array, "no dictionary")


def test_memory_that_the_driver_does_not_know_is_refused(path):
    file_of(path, bytes(64))
    host = numpy.zeros(64, dtype=numpy.uint8)
    memory = Memory(64)
    refuses(InterfaceArray(memory, data=(host.ctypes.data, False)), "into", "InterfaceArray", path=path)
    refuses(InterfaceArray(memory, data=(12345, False)), "into", path=path)
    refuses(InterfaceArray(memory, shape=(1 << 40,)), "into", path=path)
    freed = Memory(1 << 20)
    address = freed.address
    freed.free()
    refuses(InterfaceArray(memory, data=(address, False)), "into", path=path)
    assert penstock.read(path, memory_array := InterfaceArray(memory)) == 64 and memory_array.memory.get() == bytes(64)


def test_other_devices_are_named():
    memory = Memory(64)
    refuses(DlpackArray(memory, kind=10), "ROCm", "CUDA")
    refuses(DlpackArray(memory, kind=8), "Metal")
    refuses(torch.empty(3, device="meta"), "meta", "CUDA")


def test_calls_that_take_host_memory_say_so():
    there = Tensor(Memory(64))
    for verb in (
        lambda: penstock.as_bytes(there),
        lambda: penstock.as_bytes(there.interface()),
        lambda: penstock.read_rows("absent", there, bytearray(64)),
    ):
        with pytest.raises(ValueError, match="host memory"):
            verb()


# ---- streams


@pytest.mark.parametrize("stream", [True, "x", 1.5, -1, 1 << 65, Stream("x")], ids=repr)
def test_what_is_no_stream_is_refused(stream):
    refuses(Tensor(Memory(64)), "stream", "cuda_stream", error=(TypeError, ValueError), stream=stream)


def test_a_stream_orders_nothing_on_the_host(path):
    file_of(path, bytes(64))
    refuses(bytearray(64), "stream", "host memory", path=path, stream=1)


_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Late:
    """Puts a copy of `data` into a tensor on a stream, after a while."""

    def __init__(self, stream, tensor, data):
        self.wait = _HOST_FUNCTION(lambda _: time.sleep(0.2))
        self.source = ctypes.create_string_buffer(data, len(data))
        cuda = cuda_memory.cuda()
        cuda.use(tensor.memory.device)
        cuda.call("cuMemHostRegister_v2", self.source, ctypes.c_size_t(len(data)), 0)
        cuda.call("cuLaunchHostFunc", ctypes.c_void_p(stream), self.wait, None)
        cuda.call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(tensor.data_ptr()),
            self.source,
            ctypes.c_size_t(len(data)),
            ctypes.c_void_p(stream),
        )

    def close(self):
        cuda_memory.cuda().call("cuCtxSynchronize")
        cuda_memory.cuda().call("cuMemHostUnregister", self.source)


@pytest.mark.parametrize("face", [int, Stream, ProtocolStream])
def test_a_write_begins_after_the_stream(path, face):
    old, new = data_of(300_000, 1), data_of(300_000, 2)
    tensor = Tensor(Memory(300_000).put(old))
    stream = cuda_memory.cuda().stream()
    late = Late(stream, tensor, new)
    assert penstock.write(path, tensor, stream=face(stream)) == 300_000
    late.close()
    assert content(path) == new


def test_a_read_begins_after_the_stream(path):
    old, new = data_of(300_000, 1), data_of(300_000, 2)
    file_of(path, new)
    tensor = Tensor(Memory(300_000))
    stream = cuda_memory.cuda().stream()
    late = Late(stream, tensor, old)
    assert penstock.read(path, tensor, stream=stream) == 300_000
    late.close()
    assert tensor.raw() == new


def test_the_stream_of_an_interface_is_waited_for(path):
    old, new = data_of(300_000, 1), data_of(300_000, 2)
    tensor = Tensor(Memory(300_000).put(old))
    stream = cuda_memory.cuda().stream()
    late = Late(stream, tensor, new)
    penstock.write(path, InterfaceArray(tensor.memory, stream=stream))
    late.close()
    assert content(path) == new
    # Also where the caller names another: what the producer has under way is not done yet.
    tensor.memory.put(old)
    late = Late(stream, tensor, new)
    penstock.write(path, InterfaceArray(tensor.memory, stream=stream), stream=cuda_memory.cuda().stream())
    late.close()
    assert content(path) == new


def test_none_is_the_current_stream_of_torch(path, monkeypatch):
    old, new = data_of(300_000, 1), data_of(300_000, 2)
    tensor = Tensor(Memory(300_000).put(old))
    stream = cuda_memory.cuda().stream()
    asked = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: asked.append(device) or Stream(stream, device))
    late = Late(stream, tensor, new)
    penstock.write(path, tensor)
    late.close()
    assert content(path) == new and asked == [0]


def test_none_is_the_default_stream_for_others(path):
    old, new = data_of(300_000, 1), data_of(300_000, 2)
    tensor = Tensor(Memory(300_000).put(old))
    late = Late(0, tensor, new)
    penstock.write(path, tensor.interface())
    late.close()
    assert content(path) == new


@pytest.mark.parametrize("by_fake", [False, True], ids=["free", "held"])
def test_a_stream_comes_after_a_transfer_that_it_joins(path, by_fake, request):
    data = data_of(3_000_000)
    file_of(path, data)
    tensor, copy = Tensor(Memory(3_000_000)), Memory(3_000_000)
    stream = cuda_memory.cuda().stream()
    fake = request.getfixturevalue("fake") if by_fake else None
    with held(fake) if by_fake else contextlib.nullcontext():
        transfer = penstock.read_async(path, tensor, stream=stream)
        transfer.join(stream)
        if by_fake:
            assert not transfer.done()
            fake.fake_gpu_set_rate(200e6, 0, 0)
    cuda_memory.cuda().use(0)
    cuda_memory.cuda().call(
        "cuMemcpyDtoDAsync_v2",
        ctypes.c_uint64(copy.address),
        ctypes.c_uint64(tensor.data_ptr()),
        ctypes.c_size_t(3_000_000),
        ctypes.c_void_p(stream),
    )
    cuda_memory.cuda().call("cuStreamSynchronize", ctypes.c_void_p(stream))
    assert copy.get() == data
    with pytest.raises(TypeError, match="stream"):
        transfer.join(None)
    failed = penstock.read_async(path, Tensor(Memory(4_000_000)))
    with pytest.raises(penstock.EndOfFile):
        failed.join(Stream(stream))


# ---- the life of tensors and processes


def test_a_tensor_is_kept_until_its_copies_are_through(path, fake):
    data = data_of(3_000_000)
    file_of(path, data)
    memory = Memory(3_000_000)
    alive = weakref.ref(memory)
    with held(fake):
        transfer = penstock.read_async(path, Tensor(memory))
        del memory
        gc.collect()
        assert not transfer.done() and alive() is not None
        kept = alive()
    assert transfer.result(30) == 3_000_000
    assert kept.get() == data
    del kept
    gc.collect()
    assert alive() is None


def test_no_byte_is_counted_before_its_copy(path, fake):
    file_of(path, data_of(3_000_000))
    with held(fake):
        transfer = penstock.read_async(path, Tensor(Memory(3_000_000)))
        time.sleep(0.1)
        assert not transfer.done() and transfer.status == "running"
    assert transfer.result(30) == 3_000_000


def test_ctrl_c_cancels(path, fake):
    file_of(path, bytes(64 << 20))
    tensor = Tensor(Memory(64 << 20))
    fake.fake_gpu_set_rate(20e6, 20e6, 0)  # it would take 3 s
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        penstock.read(path, tensor)
    assert time.monotonic() - began < 2.5
    fake.fake_gpu_calm()
    assert penstock.read(path, tensor) == 64 << 20


def test_an_error_of_the_gpu_ends_the_transfer_and_leaves_the_host(path, fake):
    file_of(path, data_of(8 << 20))
    fake.fake_gpu_fail(b"cuEventRecord", ctypes.c_uint64(1), 719, ctypes.c_uint64(1 << 30))
    with pytest.raises(OSError) as raised:
        penstock.read(path, Tensor(Memory(8 << 20)))
    assert "719" in str(raised.value) or "LAUNCH_FAILED" in str(raised.value), raised.value
    fake.fake_gpu_calm()
    into = bytearray(8 << 20)
    assert penstock.read(path, into) == 8 << 20 and into == data_of(8 << 20)


def test_a_disk_error_in_the_middle_ends_it(path):
    file_of(path, bytes(3 << 20))
    with pytest.raises(penstock.EndOfFile):
        penstock.read([path, path], [Tensor(Memory(3 << 20)), Tensor(Memory(4 << 20))], [0, 0])
    assert penstock.read(path, Tensor(Memory(3 << 20))) == 3 << 20


def test_the_child_of_a_fork_has_no_gpu_and_the_host_goes_on(path):
    data = data_of(1 << 20)
    file_of(path, data)
    tensor = Tensor(Memory(1 << 20))
    assert penstock.read(path, tensor) == 1 << 20
    under_way = penstock.read_async(path, tensor)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            into = bytearray(1 << 20)
            assert penstock.read(path, into) == 1 << 20 and into == data
            report = penstock.gpus()
            assert not report and "fork" in report.reason, report.reason
            try:
                penstock.read(path, tensor)
            except penstock.Unsupported as error:
                assert "fork" in str(error), error
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert under_way.result(30) == 1 << 20
    assert penstock.read(path, tensor) == 1 << 20 and tensor.raw() == data


def test_a_program_may_end_with_a_transfer_under_way(path, run_script):
    file_of(path, bytes(16 << 20))
    out = run_script(
        """
        import sys
        sys.path.insert(0, sys.argv[2])
        import penstock
        from cuda_memory import Memory, Tensor
        transfer = penstock.read_async(sys.argv[1], Tensor(Memory(16 << 20)))
        dropped = penstock.read_async(sys.argv[1], Tensor(Memory(16 << 20)))
        del dropped
        print("end")
        """,
        path,
        os.path.dirname(__file__),
    )
    assert out == "end\n"


def test_a_stream_that_was_destroyed_is_an_error(path, fake):  # NVIDIA's driver does not survive it
    stream = cuda_memory.cuda().stream()
    cuda_memory.cuda().call("cuStreamDestroy_v2", ctypes.c_void_p(stream))
    tensor = Tensor(Memory(4096).put(data_of(4096)))
    with pytest.raises((ValueError, OSError), match="stream"):
        penstock.write(path, tensor, stream=stream)
    with pytest.raises(ValueError, match="stream"):
        penstock.write_async(path, tensor).join(stream)
    assert penstock.write(path, tensor) == 4096 and content(path) == data_of(4096)


def test_a_tensor_whose_memory_was_freed_or_cut_is_refused(path):
    file_of(path, bytes(4096))
    tensor = Tensor(Memory(4096))
    tensor.memory.nbytes = 100  # as storage.resize_(100)
    refuses(tensor, "into", "reaches past its storage", path=path)
    tensor.memory.nbytes = 4096
    address = tensor.memory.address
    tensor.memory.free()
    tensor.memory.address = address
    try:
        refuses(tensor, "into", path=path)
    finally:
        tensor.memory.address = 0


def test_the_driver_decides_which_gpu_it_is(path):
    """A tensor that says the wrong number is moved all the same: the pointer tells."""
    if cuda_memory.cuda().devices() < 2:
        pytest.skip("there is one GPU")
    data = data_of(100_000)
    file_of(path, data)
    memory = Memory(100_000, device=1)
    memory.device = 0
    tensor = Tensor(memory)
    memory.device = 1
    assert tensor.get_device() == 0 and penstock.read(path, tensor) == 100_000
    assert tensor.raw() == data
