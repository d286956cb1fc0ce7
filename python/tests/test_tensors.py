# SPDX-License-Identifier: Apache-2.0
"""Memory of others: torch, NumPy, plain buffers, whatever speaks DLPack; and our own Buffer."""

import array
import ctypes
import mmap

import numpy
import penstock
import pytest

torch = pytest.importorskip("torch")

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool,
    *(
        getattr(torch, name)
        for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
        if hasattr(torch, name)
    ),
]  # fmt: skip


def random_tensor(dtype, *shape):
    size = torch.empty(shape, dtype=dtype).nbytes
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 7), (2, 0, 3)], ids=str)
def test_torch_types(engine, tmp_path, dtype, shape):
    tensor = random_tensor(dtype, *shape)
    assert engine.write(tmp_path / "t", tensor) == tensor.nbytes
    assert (tmp_path / "t").read_bytes() == bytes(penstock.as_bytes(tensor))
    back = torch.zeros(shape, dtype=torch.uint8).to(dtype) if shape else torch.empty(shape, dtype=dtype)
    assert engine.read(tmp_path / "t", back) == tensor.nbytes
    assert bytes(penstock.as_bytes(back)) == bytes(penstock.as_bytes(tensor))
    assert back.shape == tensor.shape and back.dtype == tensor.dtype


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.zeros(4, 6).t(), ["not contiguous", "[6, 4]", "strides (1, 6)", ".contiguous()"]),
        (lambda: torch.zeros(10)[::2], ["not contiguous"]),
        (lambda: torch.zeros(1).expand(5), ["not contiguous"]),
        (lambda: torch.zeros(3, device="meta"), ["meta", "host memory", ".cpu()"]),
        (lambda: torch.zeros(3, 3).to_sparse(), ["sparse", "to_dense"]),
        (lambda: torch.zeros(3, dtype=torch.complex64).conj(), ["conj", "resolve"]),
    ],
)
@pytest.mark.parametrize("verb", ["read", "write"])
def test_torch_refusals(engine, tmp_path, verb, make, words):
    (tmp_path / "t").write_bytes(bytes(1000))
    with pytest.raises(ValueError) as caught:
        getattr(engine, verb)(tmp_path / "t", make())
    for word in ("into" if verb == "read" else "data", *words):
        assert word in str(caught.value)


def test_cuda_is_refused(engine, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with pytest.raises(ValueError, match="cuda:0"):
        engine.write(tmp_path / "t", torch.zeros(4, device="cuda"))


def test_parameters_and_views(engine, tmp_path):
    parameter = torch.nn.Parameter(torch.zeros(100))
    penstock.write(tmp_path / "t", torch.arange(100, dtype=torch.float32))
    assert engine.read(tmp_path / "t", parameter) == 400
    assert parameter.requires_grad and torch.equal(parameter.detach(), torch.arange(100.0))
    weight = torch.nn.Linear(10, 10).weight
    assert engine.write(tmp_path / "w", weight * 2) == 400  # no leaf
    table = torch.zeros(10, 10)
    assert engine.read(tmp_path / "t", table[4:6]) == 80
    assert torch.equal(table.flatten()[40:60], torch.arange(20.0)) and table.sum() == 190
    with torch.inference_mode():
        assert engine.read(tmp_path / "t", torch.empty(100)) == 400


def test_swapping_data_under_a_transfer_is_safe(engine, tmp_path):
    parameter = torch.nn.Parameter(torch.full((1 << 20,), 3.0))
    transfer = engine.write_async(tmp_path / "t", parameter)
    parameter.data = torch.empty(0)
    torch.zeros(1 << 20).add_(9)  # takes the memory, were it free
    assert transfer.result() == 4 << 20
    assert (numpy.fromfile(tmp_path / "t", dtype=numpy.float32) == 3).all()


@pytest.mark.parametrize(
    "dtype",
    ["f2", "f4", "f8", "c8", "c16", "?", "i1", "u8", "S7", "U3", "M8[ns]", "V5", [("a", "i4"), ("b", "f8")], ">i4"],
    ids=str,
)
def test_numpy_types(engine, tmp_path, pattern, dtype):
    dtype = numpy.dtype(dtype)
    tensor = pattern(12 * dtype.itemsize).view(dtype) if dtype.kind != "?" else numpy.ones(12, dtype)
    tensor = tensor.reshape(3, 4)
    assert engine.write(tmp_path / "t", tensor) == tensor.nbytes
    back = numpy.zeros((3, 4), dtype)
    assert engine.read(tmp_path / "t", back) == tensor.nbytes
    assert back.tobytes() == tensor.tobytes()


def test_numpy_corner_cases(engine, tmp_path):
    (tmp_path / "t").write_bytes(bytes(range(100)))
    scalar = numpy.zeros(())
    assert engine.read(tmp_path / "t", scalar) == 8
    assert engine.read(tmp_path / "t", numpy.zeros((0, 5))) == 0
    frozen = numpy.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        engine.read(tmp_path / "t", frozen)
    assert engine.write(tmp_path / "u", frozen) == 32
    with pytest.raises(ValueError, match="not contiguous"):
        engine.read(tmp_path / "t", numpy.zeros((3, 3), order="F"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(40), lambda: memoryview(bytearray(40)), lambda: array.array("i", [0] * 10),
        lambda: (ctypes.c_int * 10)(), lambda: mmap.mmap(-1, 40), lambda: penstock.empty((5, 8)),
        lambda: memoryview(bytearray(100))[30:70],
    ],
)  # fmt: skip
def test_plain_buffers(engine, tmp_path, make):
    (tmp_path / "t").write_bytes(bytes(range(40)))
    into = make()
    assert engine.read(tmp_path / "t", into) == 40
    assert bytes(memoryview(into).cast("B")) == bytes(range(40))
    assert engine.write(tmp_path / "u", into) == 40
    assert (tmp_path / "u").read_bytes() == bytes(range(40))


class OnlyDlpack:
    """An array that has nothing but DLPack; `old` as it was before its version 1.0."""

    def __init__(self, array, old=False, device=(1, 0)):
        self.array, self.old, self.device = array, old, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if self.old and options:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("old", [False, True])
def test_dlpack(engine, tmp_path, old):
    (tmp_path / "t").write_bytes(bytes(range(200)))
    array = numpy.zeros((5, 5), dtype=numpy.int64)
    assert engine.read(tmp_path / "t", OnlyDlpack(array, old)) == 200
    assert array.tobytes() == bytes(range(200))
    assert engine.write(tmp_path / "u", OnlyDlpack(array[1:3], old)) == 80
    assert (tmp_path / "u").read_bytes() == bytes(range(40, 120))
    with pytest.raises(ValueError, match="not contiguous"):
        engine.read(tmp_path / "t", OnlyDlpack(array.T, old))
    with pytest.raises((ValueError, penstock.Unsupported), match="into"):
        engine.read(tmp_path / "t", OnlyDlpack(array, old, device=(2, 3)))


def test_dlpack_read_only(engine, tmp_path):
    (tmp_path / "t").write_bytes(bytes(32))
    frozen = numpy.zeros(4)
    frozen.flags.writeable = False
    try:
        frozen.__dlpack__(max_version=(1, 0))
    except (TypeError, BufferError) as error:
        pytest.skip(f"this NumPy has no read-only DLPack: {error}")
    with pytest.raises(ValueError, match="read-only"):
        engine.read(tmp_path / "t", OnlyDlpack(frozen))


def test_jax(engine, tmp_path):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    tensor = jax.numpy.arange(100, dtype="float32")
    assert engine.write(tmp_path / "t", tensor) == 400
    with pytest.raises(ValueError, match="immutable"):
        engine.read(tmp_path / "t", tensor)


# ---- Buffer


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float16", "float32", "complex128", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5)], ids=str)
@pytest.mark.parametrize("pinned", [False, True])
def test_empty(dtype, shape, pinned):
    buffer = penstock.empty(shape, dtype, pinned=pinned)
    assert (buffer.shape, buffer.dtype) == (shape, dtype)
    tensor = buffer.torch()
    assert tensor.shape == shape and tensor.dtype == getattr(torch, dtype) and tensor.nbytes == buffer.nbytes
    assert buffer.pinned != bool(buffer.pinned_reason) or not pinned
    if buffer.nbytes:
        assert tensor.data_ptr() % 4096 == 0
        tensor.view(-1).view(torch.uint8).fill_(1) if shape else tensor.fill_(1)
        assert bytes(penstock.as_bytes(buffer)) == bytes(penstock.as_bytes(tensor))
    if dtype != "bfloat16":
        view = buffer.numpy()
        assert view.shape == shape and view.dtype == dtype
        assert numpy.asarray(buffer).shape == shape and numpy.asarray(buffer).dtype == dtype
        assert numpy.from_dlpack(buffer).shape == shape


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.dtype("float32"), torch.float32, "float32"], ids=repr)
def test_names_of_types(dtype):
    assert penstock.empty(3, dtype).dtype == "float32"


def test_what_empty_refuses():
    for wrong in ("float33", float, None, numpy.dtype("M8[s]")):
        with pytest.raises(ValueError, match="dtype"):
            penstock.empty(3, wrong)
    with pytest.raises(ValueError, match="shape"):
        penstock.empty(-1)
    with pytest.raises(ValueError, match="shape"):
        penstock.empty((1 << 40, 1 << 40))
    with pytest.raises(TypeError):
        penstock.empty(1.5)
    with pytest.raises(MemoryError):
        penstock.empty(1 << 55)


def test_numpy_lacks_bfloat16():
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        with pytest.raises(TypeError, match="ml_dtypes"):
            penstock.empty(4, "bfloat16").numpy()


def test_a_buffer_lives_as_long_as_its_shares():
    view = penstock.empty((1 << 20,), pinned=False).numpy()
    tensor = penstock.empty((1 << 20,), pinned=False).torch()
    view[:] = 7
    tensor.fill_(9)
    others = [penstock.empty((1 << 20,), pinned=False).numpy() for _ in range(4)]
    for other in others:
        other[:] = 0
    assert (view == 7).all() and (tensor == 9).all()
    capsule = penstock.empty(10).__dlpack__(max_version=(1, 0))
    del capsule


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32], ids=str)
def test_as_bytes_is_the_same_memory(dtype):
    tensor = random_tensor(dtype, 4, 5)
    view = penstock.as_bytes(tensor)
    assert (view.shape, view.dtype, view.nbytes, view.readonly) == ((tensor.nbytes,), "uint8", tensor.nbytes, False)
    view.numpy()[0] = 0x3C
    assert tensor.view(torch.uint8).flatten()[0] == 0x3C
    assert view.torch().data_ptr() == tensor.data_ptr()
    assert penstock.as_bytes(b"abc").readonly
    with pytest.raises(BufferError):
        memoryview(penstock.as_bytes(b"abc")).__class__(penstock.as_bytes(b"abc")).cast("B")[0:1].obj.__dlpack__()
    with pytest.raises(ValueError, match="not contiguous"):
        penstock.as_bytes(torch.zeros(4, 4).t())
    with pytest.raises(TypeError, match="tensor"):
        penstock.as_bytes(3)


# FSDP and others let a tensor's memory go and keep the tensor.
@pytest.mark.parametrize("bytes_left", [0, 40, 203])
def test_a_tensor_whose_storage_shrank_is_refused(engine, tmp_path, bytes_left):
    (tmp_path / "file").write_bytes(bytes(40_000))
    tensor = torch.zeros(101)[50:51]
    tensor.untyped_storage().resize_(bytes_left)
    for call in (
        lambda: engine.read(tmp_path / "file", tensor),
        lambda: engine.write(tmp_path / "file", tensor),
        lambda: penstock.as_bytes(tensor),
    ):
        with pytest.raises(ValueError, match=f"reaches past its storage, which has {bytes_left} "):
            call()
    tensor.untyped_storage().resize_(204)
    assert engine.read(tmp_path / "file", tensor) == 4
    empty = torch.zeros(100)[:0]
    empty.untyped_storage().resize_(0)
    assert engine.read(tmp_path / "file", empty) == 0


def test_a_tensor_that_is_mapped_to_be_read_is_refused(run_script):
    out = run_script(
        """
        import numpy, penstock, torch
        open("source", "wb").write(b"s" * 100_000)
        open("mapped", "wb").write(bytes(100_000))
        mapped = torch.from_numpy(numpy.memmap("mapped", "u1", "r"))
        for size in (1, 511, 4096, 100_000):
            for call in (penstock.read, penstock.read_async):
                try:
                    call("source", mapped[:size])
                except ValueError as error:
                    assert "into: this torch.Tensor cannot be written" in str(error), error
                else:
                    raise SystemExit("it was taken")
        assert penstock.write("copy", mapped) == 100_000
        own = torch.from_numpy(numpy.memmap("mapped", "u1", "r+"))
        assert penstock.read("source", own) == 100_000 and own.sum() == 100_000 * ord("s")
        """
    )
    assert out == ""


@pytest.mark.parametrize("make", [lambda: b"hello", lambda: numpy.frombuffer(b"hello", "u1")])
def test_torch_has_no_tensors_on_read_only_memory(make):
    memory = make()
    view = penstock.as_bytes(memory)
    with pytest.raises(ValueError, match="read-only"):
        view.torch()
    assert not view.numpy().flags.writeable
    assert torch.tensor(view.numpy()).tolist() == list(b"hello")


def test_dlpack_gives_a_copy_to_who_asks_for_one():
    buffer = penstock.empty((2, 3), "float32", pinned=False)
    buffer.numpy()[:] = 7
    for copied in (numpy.from_dlpack(buffer, copy=True), torch.from_dlpack(buffer, copy=True)):
        copied[:] = 1
        assert (buffer.numpy() == 7).all()
    shared = torch.from_dlpack(buffer, copy=False)
    shared[:] = 5
    assert (buffer.numpy() == 5).all()
    read_only = penstock.as_bytes(b"abc")
    copied = torch.from_dlpack(read_only, copy=True)
    copied[0] = 0
    assert bytes(memoryview(read_only)) == b"abc"


def test_as_bytes_keeps_the_tensor():
    import weakref

    array = numpy.arange(10)
    seen = weakref.ref(array)
    view = penstock.as_bytes(array)
    tensor = view.torch()
    del array, view
    assert seen() is not None and tensor.sum() == 45
    del tensor
    assert seen() is None
