# SPDX-License-Identifier: Apache-2.0
"""The builders, the modules that they load, and the functions of these."""

import logging
import subprocess
import sys

import penstock
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from penstock import deepnvme  # noqa: E402
from penstock.deepnvme import (  # noqa: E402
    AsyncIOBuilder,
    GDSBuilder,
    PinMemoryBuilder,
    UtilsBuilder,
    aio_handle,
    aio_read,
    aio_write,
    cast_to_byte_tensor,
    deepspeed_memcpy,
    gds_handle,
    pin_handle,
)

BUILDERS = {
    AsyncIOBuilder: ("async_io", "deepspeed.ops.aio.async_io_op", "DS_BUILD_AIO"),
    GDSBuilder: ("gds", "deepspeed.ops.gds.gds_op", "DS_BUILD_GDS"),
    PinMemoryBuilder: ("pin_memory", "deepspeed.ops.pin_memory.pin_memory_op", "DS_BUILD_PIN_MEMORY"),
    UtilsBuilder: ("utils", "deepspeed.ops.utils_op", "DS_BUILD_UTILS"),
}


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_builder_answers_what_deepspeed_asks(builder):
    name, absolute, variable = BUILDERS[builder]
    made = builder()
    assert (builder.NAME, made.name, made.absolute_name(), builder.BUILD_VAR) == (name, name, absolute, variable)
    assert made.load() is builder().load(verbose=True) is made.load(False)
    assert made.sources() == [] and made.include_paths() == []
    assert (
        made.is_compatible()
        is made.is_compatible(verbose=False)
        is (builder is not GDSBuilder or bool(penstock.gpus()))
    )
    assert getattr(made.load(), "__file__", None) is None  # DeepSpeed would dlopen it


def test_the_modules_have_what_theirs_have():
    async_io = AsyncIOBuilder().load()
    assert async_io.aio_handle is aio_handle and async_io.deepspeed_memcpy is deepspeed_memcpy
    assert async_io.aio_read is aio_read and async_io.aio_write is aio_write
    assert GDSBuilder().load().gds_handle is gds_handle
    assert PinMemoryBuilder().load().pin_handle is pin_handle
    assert UtilsBuilder().load().cast_to_byte_tensor is cast_to_byte_tensor


@pytest.mark.skipif(bool(penstock.gpus()), reason="a GPU is here")
def test_gds_is_not_compatible_without_a_gpu_and_says_why(caplog):
    builder = GDSBuilder()
    with caplog.at_level(logging.WARNING, "penstock.deepnvme"):
        assert builder.is_compatible(verbose=True) is False
    assert penstock.gpus().reason in caplog.text and "aio_handle" in builder.error_log
    with pytest.raises(penstock.Unsupported, match="gds_handle: no memory of a GPU") as raised:
        GDSBuilder().load().gds_handle(block_size=1 << 20, queue_depth=8)
    assert penstock.gpus().reason in str(raised.value)


def test_the_package_without_torch_and_deepspeed():
    program = (
        "import sys, penstock.deepnvme as d\n"
        "assert not {'torch', 'deepspeed', 'numpy'} & set(sys.modules), 'imported early'\n"
        "sys.modules['torch'] = None\n"
        "handle = d.AsyncIOBuilder().load().aio_handle()\n"
        "try:\n"
        "    d.pin_handle().new_cpu_locked_tensor(3, None)\n"
        "except TypeError as error:\n"
        "    print(error)\n"
        "print(handle.wait(), d.GDSBuilder().is_compatible())\n"
        "print(sorted(set(d.__all__) - set(dir(d))))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert "give a torch tensor" in lines[0] and lines[1:] == [f"0 {bool(penstock.gpus())}", "[]"]


def test_what_the_package_does_not_have():
    with pytest.raises(AttributeError, match="no_such_thing"):
        deepnvme.no_such_thing  # noqa: B018


def test_aio_read_and_aio_write(tmp_path, capfd):
    data = torch.arange(10_001, dtype=torch.int16)
    path = str(tmp_path / "f")
    assert aio_write(data, path, 1 << 20, 8, False, True, True) == 0
    into = torch.zeros_like(data)
    assert aio_read(into, path, 1000, 1, True, False, True) == 0
    assert torch.equal(into, data)
    with pytest.raises(FileNotFoundError):
        aio_read(into, str(tmp_path / "none"), 1 << 20, 8, False, True, False)
    with pytest.raises(EOFError):
        aio_read(torch.zeros(30_000), path, 1 << 20, 8, False, True, False)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", ["uint8", "bool", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (64,), (100,), (4, 100), (3, 5, 7)], ids=str)
def test_memcpy_copies_all_elements_and_nothing_else(dtype, shape):
    dtype = getattr(torch, dtype)
    src = torch.rand(shape).mul(100).to(dtype)
    count = src.numel()
    frame = torch.zeros(count + 64, dtype=dtype)
    dest = frame[32 : 32 + count].view(shape)
    assert deepspeed_memcpy(dest, src) == 0
    assert torch.equal(dest, src)
    assert not frame[:32].any() and not frame[32 + count :].any()


def test_memcpy_of_strided_tensors_leaves_and_other_dtypes():
    src = torch.arange(600.0).reshape(20, 30)
    dest = torch.zeros(30, 20).t()
    assert deepspeed_memcpy(dest=dest, src=src) == 0
    assert torch.equal(dest, src)
    leaf = torch.zeros(600, requires_grad=True)
    deepspeed_memcpy(leaf, src.t())
    assert torch.equal(leaf, src.t().reshape(-1)) and leaf.is_leaf
    as_bytes = torch.zeros(2400, dtype=torch.uint8)
    deepspeed_memcpy(as_bytes, src)
    assert torch.equal(as_bytes.view(torch.float32), src.flatten())


def test_memcpy_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="dest has 3 elements"):
        deepspeed_memcpy(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="contiguous"):
        deepspeed_memcpy(torch.zeros(8, dtype=torch.uint8)[::2], torch.zeros(1))
    with pytest.raises(ValueError, match="meta"):
        deepspeed_memcpy(torch.zeros(3), torch.zeros(3, device="meta"))
    with pytest.raises(TypeError, match="src"):
        deepspeed_memcpy(torch.zeros(3), [1, 2, 3])


@pytest.mark.parametrize("dtype", ["int16", "bfloat16", "float32", "complex128", "bool", "uint8"])
def test_cast_to_bytes_shares_the_memory_and_keeps_it(dtype):
    dtype = getattr(torch, dtype)
    tensor = torch.rand(3, 5).mul(9).to(dtype).requires_grad_(dtype == torch.float32)
    made = UtilsBuilder().load().cast_to_byte_tensor(tensor)
    assert made.dtype == torch.uint8 and made.shape == (tensor.nbytes,) and made.data_ptr() == tensor.data_ptr()
    expected = tensor.detach().clone().flatten().view(torch.uint8)
    del tensor
    others = [torch.zeros(3, 5).to(dtype) for _ in range(10)]
    assert torch.equal(made, expected) and not any(bool(o.any()) for o in others)


def test_cast_of_lists_and_of_little():
    tensors = [torch.arange(3.0), torch.tensor(5), torch.zeros(1, dtype=torch.bool), torch.zeros(0)]
    made = cast_to_byte_tensor(src_tensor=tensors)
    assert isinstance(made, list)
    assert [m.dtype for m in made] == [torch.uint8, torch.uint8, torch.bool, torch.uint8]
    assert made[2] is tensors[2]  # 1 byte: as it is, as theirs
    assert made[3].shape == (0,) and cast_to_byte_tensor(torch.zeros(3, 0)).dtype == torch.uint8
    assert cast_to_byte_tensor(tuple(tensors[:1]))[0].nbytes == 12


def test_cast_of_what_does_not_lie_in_one_piece_is_refused():
    with pytest.raises(ValueError, match=r"tensor\.contiguous\(\)"):
        cast_to_byte_tensor(torch.arange(8)[::2])
    with pytest.raises(TypeError, match="src_tensor"):
        cast_to_byte_tensor(bytearray(5))


def test_cast_of_what_holds_no_bytes_of_its_own_is_refused():
    complex_ones = torch.ones(4, dtype=torch.complex64)
    for tensor in (
        complex_ones.conj(),
        complex_ones.conj().imag,
        torch.eye(4).to_sparse(),
        torch.eye(4).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ):
        for asked in (tensor, [tensor]):
            with pytest.raises(ValueError, match=r"src_tensor: .*give "):
                cast_to_byte_tensor(asked)


def test_memcpy_of_what_holds_no_bytes_of_its_own():
    dest = torch.zeros(4, dtype=torch.complex64)
    src = torch.full((4,), 1 + 2j)
    assert deepspeed_memcpy(dest, src.conj()) == 0 and torch.equal(dest, src.conj().resolve_conj())
    with pytest.raises(ValueError, match=r"src: .*resolve_conj"):
        deepspeed_memcpy(torch.zeros(8), src.conj())
    for sparse in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()):
        with pytest.raises(ValueError, match="src: .*to_dense"):
            deepspeed_memcpy(torch.zeros(2, 2), sparse)
        with pytest.raises(ValueError, match="dest: .*to_dense"):
            deepspeed_memcpy(sparse, torch.zeros(2, 2))
