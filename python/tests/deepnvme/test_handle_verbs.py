# SPDX-License-Identifier: Apache-2.0
"""aio_handle by a table: every verb, its keywords, what it returns, the files and tensors that it takes and refuses."""

import ast
import errno
import gc
import inspect
import os
import weakref
from pathlib import Path

import penstock
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from penstock.deepnvme import AsyncIOBuilder, aio_handle  # noqa: E402

ASYNC = {"async": True}
SYNC = {"async": False}

# verb: (call, what it returns, what wait() returns then)
READS = {
    "read": (lambda h, t, f, o: h.read(t, f, False, o), 0, 0),
    "read_named": (lambda h, t, f, o: h.read(buffer=t, filename=f, validate=True, file_offset=o), 0, 0),
    "pread_sync": (lambda h, t, f, o: h.pread(t, f, False, False, o), 1, 0),
    "pread_async": (lambda h, t, f, o: h.pread(t, f, False, True, o), 0, 1),
    "pread_sync_named": (
        lambda h, t, f, o: h.pread(buffer=t, filename=f, validate=True, file_offset=o, **SYNC),
        1,
        0,
    ),
    "pread_async_named": (
        lambda h, t, f, o: h.pread(buffer=t, filename=f, validate=True, file_offset=o, **ASYNC),
        0,
        1,
    ),
    "sync_pread": (lambda h, t, f, o: h.sync_pread(t, f, o), 1, 0),
    "sync_pread_named": (lambda h, t, f, o: h.sync_pread(buffer=t, filename=f, file_offset=o), 1, 0),
    "async_pread": (lambda h, t, f, o: h.async_pread(t, f, o), 0, 1),
    "async_pread_named": (lambda h, t, f, o: h.async_pread(buffer=t, filename=f, file_offset=o), 0, 1),
}
WRITES = {
    "write": (lambda h, t, f, o: h.write(t, f, False, o), 0, 0),
    "write_named": (lambda h, t, f, o: h.write(buffer=t, filename=f, validate=True, file_offset=o), 0, 0),
    "pwrite_sync": (lambda h, t, f, o: h.pwrite(t, f, False, False, o), 1, 0),
    "pwrite_async": (lambda h, t, f, o: h.pwrite(t, f, False, True, o), 0, 1),
    "pwrite_sync_named": (
        lambda h, t, f, o: h.pwrite(buffer=t, filename=f, validate=True, file_offset=o, **SYNC),
        1,
        0,
    ),
    "pwrite_async_named": (
        lambda h, t, f, o: h.pwrite(buffer=t, filename=f, validate=True, file_offset=o, **ASYNC),
        0,
        1,
    ),
    "sync_pwrite": (lambda h, t, f, o: h.sync_pwrite(t, f, o), 1, 0),
    "sync_pwrite_named": (lambda h, t, f, o: h.sync_pwrite(buffer=t, filename=f, file_offset=o), 1, 0),
    "async_pwrite": (lambda h, t, f, o: h.async_pwrite(t, f, o), 0, 1),
    "async_pwrite_named": (lambda h, t, f, o: h.async_pwrite(buffer=t, filename=f, file_offset=o), 0, 1),
}
BY_DESCRIPTOR = {
    "sync_pread": lambda h, t, fd: h.sync_pread(buffer=t, fd=fd, file_offset=3),
    "async_pread": lambda h, t, fd: h.async_pread(t, fd=fd, file_offset=3),
    "pread": lambda h, t, fd: h.pread(t, fd=fd, validate=False, file_offset=3, **ASYNC),
    "sync_pwrite": lambda h, t, fd: h.sync_pwrite(buffer=t, fd=fd, file_offset=3),
    "async_pwrite": lambda h, t, fd: h.async_pwrite(buffer=t, fd=fd, file_offset=3),
    "pwrite": lambda h, t, fd: h.pwrite(t, fd=fd, validate=False, file_offset=3, **ASYNC),
}


@pytest.fixture
def handle():
    return aio_handle(1024, 2, False, True, 2)


def pattern(size, seed=1):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def file_bytes(path):
    return torch.frombuffer(bytearray(Path(path).read_bytes() or b"\0"), dtype=torch.uint8)


def test_a_handle_tells_what_it_was_made_with():
    made = AsyncIOBuilder().load().aio_handle()
    assert (made.get_block_size(), made.get_queue_depth()) == (1048576, 128)
    assert (made.get_single_submit(), made.get_overlap_events(), made.get_intra_op_parallelism()) == (False, False, 1)
    assert made.get_alignment() == 512
    by_position = aio_handle(4096, 7, True, True, 8)
    by_name = aio_handle(
        intra_op_parallelism=8, overlap_events=True, single_submit=True, queue_depth=7, block_size=4096
    )
    for made in (by_position, by_name):
        assert (made.get_block_size(), made.get_queue_depth(), made.get_intra_op_parallelism()) == (4096, 7, 8)
        assert made.get_single_submit() is True and made.get_overlap_events() is True
        assert made.get_alignment() == 8 * 512


@pytest.mark.parametrize("name", ["block_size", "queue_depth", "intra_op_parallelism"])
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_that_cannot_be_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        aio_handle(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("block_size", 1.5), ("queue_depth", "8"), ("single_submit", "false"), ("overlap_events", None)]
)
def test_arguments_of_other_types_are_refused(name, value):
    if value is None:  # None has a truth value, and pybind takes it for False as well
        assert aio_handle(**{name: value}).get_overlap_events() is False
        return
    with pytest.raises(TypeError, match=name):
        aio_handle(**{name: value})


@pytest.mark.parametrize("place", [str, Path])
@pytest.mark.parametrize("verb", READS)
def test_every_read_verb(handle, tmp_path, verb, place):
    data = pattern(70_001)
    (tmp_path / "f").write_bytes(data.numpy().tobytes())
    call, returned, waited = READS[verb]
    into = torch.zeros(65_000, dtype=torch.uint8)
    assert call(handle, into, place(tmp_path / "f"), 777) == returned
    assert handle.wait() == waited
    assert torch.equal(into, data[777 : 777 + 65_000])


@pytest.mark.parametrize("place", [str, Path])
@pytest.mark.parametrize("verb", WRITES)
def test_every_write_verb(handle, tmp_path, verb, place):
    (tmp_path / "f").write_bytes(bytes(80_001))
    data = pattern(65_000)
    call, returned, waited = WRITES[verb]
    assert call(handle, data, place(tmp_path / "f"), 777) == returned
    assert handle.wait() == waited
    got = file_bytes(tmp_path / "f")
    assert len(got) == 80_001
    assert torch.equal(got[777 : 777 + 65_000], data)
    assert not got[:777].any() and not got[777 + 65_000 :].any()


@pytest.mark.parametrize("direct", [0, os.O_DIRECT], ids=["buffered", "direct"])
@pytest.mark.parametrize("verb", BY_DESCRIPTOR)
def test_every_verb_by_descriptor(handle, tmp_path, verb, direct):
    data = pattern(20_000)
    (tmp_path / "f").write_bytes(data.numpy().tobytes())
    fd = os.open(tmp_path / "f", os.O_RDWR | direct)
    os.lseek(fd, 11, os.SEEK_SET)
    tensor = torch.zeros(9_999, dtype=torch.uint8)
    done = BY_DESCRIPTOR[verb](handle, tensor, fd)
    assert os.lseek(fd, 0, os.SEEK_CUR) == 11
    os.close(fd)  # theirs has to stay open until wait(); ours need not
    assert done + handle.wait() == 1
    if "read" in verb:
        assert torch.equal(tensor, data[3:10_002])
    else:
        data[3:10_002] = 0
        assert torch.equal(file_bytes(tmp_path / "f"), data)


def test_a_descriptor_may_be_any_integer(handle, tmp_path):
    numpy = pytest.importorskip("numpy")
    data = pattern(100)
    with open(tmp_path / "f", "wb+") as file:
        for kind in (numpy.int64, numpy.int32, numpy.uint8):
            assert handle.async_pwrite(data, kind(file.fileno()), 3) == 0 and handle.wait() == 1
            into = torch.zeros_like(data)
            assert handle.sync_pread(into, kind(file.fileno()), 3) == 1
            assert torch.equal(into, data)
        for no_descriptor in (True, numpy.bool_(True), numpy.float64(3)):
            with pytest.raises(TypeError, match="filename"):
                handle.async_pwrite(data, no_descriptor)


def test_the_offset_is_zero_where_it_is_left_out(handle, tmp_path):
    data = pattern(5000)
    assert handle.async_pwrite(data, str(tmp_path / "f")) == 0
    assert handle.wait() == 1
    into = torch.zeros_like(data)
    assert handle.sync_pread(into, str(tmp_path / "f")) == 1
    assert torch.equal(into, data)


def test_wait_counts_each_operation_once(handle, tmp_path):
    data = pattern(10_000)
    assert handle.wait() == 0
    for i in range(3):
        assert handle.async_pwrite(data, str(tmp_path / f"f{i}")) == 0
    assert handle.wait() == 3
    assert handle.wait() == 0
    into = [torch.zeros_like(data) for _ in range(4)]
    for i in range(3):
        handle.async_pread(into[i], str(tmp_path / f"f{i}"))
    assert handle.sync_pread(into[3], str(tmp_path / "f0")) == 4
    assert handle.wait() == 0
    assert all(torch.equal(one, data) for one in into)


@pytest.mark.parametrize(
    "dtype",
    ["uint8", "bool", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "uint16"],
)
def test_every_dtype(handle, tmp_path, dtype):
    data = pattern(8 * 600) if dtype != "bool" else pattern(8 * 600) % 2
    data = data.view(getattr(torch, dtype))
    assert handle.sync_pwrite(data, str(tmp_path / "f")) == 1
    into = torch.zeros(8 * 600, dtype=torch.uint8).view(getattr(torch, dtype))
    assert handle.sync_pread(into, str(tmp_path / "f")) == 1
    assert torch.equal(into.view(torch.uint8), data.view(torch.uint8))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 11, 13), (1024, 1024)], ids=str)
def test_every_shape_also_of_no_bytes(handle, tmp_path, shape):
    data = torch.randn(shape)
    assert handle.async_pwrite(data, str(tmp_path / "f"), 5) == 0
    assert handle.wait() == 1
    assert os.path.getsize(tmp_path / "f") == (5 + data.nbytes if data.nbytes else 0)
    into = torch.zeros(shape)
    assert handle.sync_pread(into, str(tmp_path / "f"), 5) == 1
    assert torch.equal(into, data)


def test_views_at_any_address(handle, tmp_path):
    memory = pattern(300_000)
    for begin, size in ((1, 512), (100, 4096), (513, 200_001)):
        assert handle.sync_pwrite(memory[begin : begin + size], str(tmp_path / "f"), begin) == 1
        into = torch.zeros(300_000, dtype=torch.uint8)
        assert handle.sync_pread(into[7 : 7 + size], str(tmp_path / "f"), begin) == 1
        assert torch.equal(into[7 : 7 + size], memory[begin : begin + size])
        assert not into[:7].any() and not into[7 + size :].any()


def test_past_4_gib(handle, tmp_path):
    data = pattern(10_000)
    offset = (5 << 30) + 12_345
    assert handle.sync_pwrite(data, str(tmp_path / "f"), offset) == 1
    assert os.path.getsize(tmp_path / "f") == offset + 10_000
    into = torch.zeros_like(data)
    assert handle.pread(into, str(tmp_path / "f"), True, False, offset) == 1
    assert torch.equal(into, data)


def test_a_new_file_is_its_owners_alone_and_an_old_one_keeps_its_mode(handle, tmp_path):
    before = os.umask(0)
    try:
        handle.sync_pwrite(pattern(100), str(tmp_path / "new"))
        handle.async_pwrite(pattern(100), str(tmp_path / "new2"))
    finally:
        os.umask(before)
    (tmp_path / "old").write_bytes(b"x")
    (tmp_path / "old").chmod(0o644)
    handle.async_pwrite(pattern(100), str(tmp_path / "old"))
    assert handle.wait() == 2
    modes = [os.stat(tmp_path / name).st_mode & 0o777 for name in ("new", "new2", "old")]
    assert modes == [0o600, 0o600, 0o644]


# ---- what is refused, and how


@pytest.mark.parametrize("verb", READS)
def test_a_missing_file_is_an_error_at_the_call(handle, tmp_path, verb):
    with pytest.raises(FileNotFoundError) as caught:
        READS[verb][0](handle, torch.zeros(10), str(tmp_path / "none"), 0)
    assert caught.value.errno == errno.ENOENT and caught.value.filename == str(tmp_path / "none")
    assert handle.wait() == 0


@pytest.mark.parametrize("verb", WRITES)
def test_a_missing_folder_is_an_error_at_the_call(handle, tmp_path, verb):
    with pytest.raises(FileNotFoundError):
        WRITES[verb][0](handle, torch.zeros(10), str(tmp_path / "none" / "f"), 0)
    assert handle.wait() == 0


def test_a_folder_is_an_error_at_the_call(handle, tmp_path):
    with pytest.raises(IsADirectoryError):
        handle.async_pread(torch.zeros(10), str(tmp_path))


@pytest.mark.parametrize("verb", {**READS, **WRITES})
def test_tensors_that_cannot_be_moved(handle, tmp_path, verb):
    call = {**READS, **WRITES}[verb][0]
    (tmp_path / "f").write_bytes(bytes(10_000))
    with pytest.raises(ValueError, match=r"empty_like\(tensor, device='cpu'\)"):
        call(handle, torch.zeros(10, device="meta"), str(tmp_path / "f"), 0)
    with pytest.raises(ValueError, match="to_dense"):
        call(handle, torch.zeros(10).to_sparse(), str(tmp_path / "f"), 0)
    for sparse in (torch.eye(4).to_sparse_csr(), torch.eye(4).to_sparse_csc(), torch.eye(4).to_sparse_bsr((2, 2))):
        with pytest.raises(ValueError, match="layout torch.sparse"):
            call(handle, sparse, str(tmp_path / "f"), 0)
    with pytest.raises(ValueError, match="resolve_conj"):
        call(handle, torch.ones(3, dtype=torch.complex64).conj(), str(tmp_path / "f"), 0)
    for no_tensor in ([torch.zeros(3)], None, "text"):
        with pytest.raises(TypeError):
            call(handle, no_tensor, str(tmp_path / "f"), 0)
    if verb in READS:
        with pytest.raises(ValueError, match=r"tensor\.contiguous\(\)"):
            call(handle, torch.zeros(10, 10).t(), str(tmp_path / "f"), 0)
        numpy = pytest.importorskip("numpy")
        read_only = numpy.zeros(10)
        read_only.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            call(handle, read_only, str(tmp_path / "f"), 0)
    assert handle.wait() == 0
    assert (tmp_path / "f").read_bytes() == bytes(10_000)


def test_a_strided_tensor_is_written_by_its_values(handle, tmp_path):
    table = torch.arange(600.0).reshape(20, 30)
    for i, tensor in enumerate((table.t(), table[:, ::2], torch.arange(5.0).expand(4, 5))):
        assert handle.sync_pwrite(tensor, str(tmp_path / f"f{i}")) == 1
        assert handle.pwrite(tensor, str(tmp_path / f"g{i}"), True, True) == 0
        assert handle.wait() == 1
        for name in "fg":
            got = torch.frombuffer(bytearray((tmp_path / f"{name}{i}").read_bytes()), dtype=torch.float32)
            assert torch.equal(got, tensor.flatten())


def test_what_cannot_be_written_makes_no_file(handle, tmp_path):
    with pytest.raises(ValueError):
        handle.async_pwrite(torch.zeros(3, device="meta"), str(tmp_path / "f"))
    with pytest.raises(ValueError, match="file_offset"):
        handle.async_pwrite(torch.zeros(3), str(tmp_path / "f"), -1)
    for offset in (2**63 - 12, 2**63 - 1, 2**63, 2**64):
        for call in (handle.sync_pwrite, handle.async_pwrite):
            with pytest.raises(ValueError, match="file_offset"):
                call(torch.zeros(4), str(tmp_path / "f"), offset)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", [3.5, None, True, [b"x"]], ids=repr)
def test_what_is_no_file(handle, name):
    with pytest.raises(TypeError, match="filename"):
        handle.async_pread(torch.zeros(3), name)


@pytest.mark.parametrize("verb", BY_DESCRIPTOR)
def test_a_descriptor_that_is_closed_or_open_for_something_else(handle, tmp_path, verb):
    (tmp_path / "f").write_bytes(bytes(100))
    wrong = os.O_WRONLY if "read" in verb else os.O_RDONLY
    fds = [os.open(tmp_path / "f", wrong), os.open(tmp_path / "f", os.O_PATH), os.open(tmp_path / "f", os.O_RDWR)]
    os.close(fds[2])
    for fd in (*fds, -1, 1 << 40):
        with pytest.raises(OSError, match=f"descriptor {fd}: .*; ") as caught:
            BY_DESCRIPTOR[verb](handle, torch.zeros(3), fd)
        assert caught.value.errno == errno.EBADF
    for fd in fds[:2]:
        os.close(fd)
    assert handle.wait() == 0


def test_a_pipe_is_no_file(handle):
    ends = os.pipe()
    with pytest.raises(penstock.Unsupported, match="pipe"):
        handle.async_pread(torch.zeros(3), ends[0])
    for end in ends:
        os.close(end)


def test_errors_by_descriptor_name_the_file(handle, tmp_path):
    (tmp_path / "f").write_bytes(bytes(100))
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    handle.async_pread(torch.zeros(1000), fd)
    with pytest.raises(penstock.EndOfFile, match=str(tmp_path / "f")):
        handle.wait()
    with pytest.raises(penstock.EndOfFile, match=str(tmp_path / "f")):
        handle.sync_pread(torch.zeros(1000), fd)
    os.close(fd)


def test_arguments_of_pread_and_pwrite_are_all_asked_for(handle):
    for verb in (handle.pread, handle.pwrite):
        with pytest.raises(TypeError, match="lacks validate, async"):
            verb(torch.zeros(3), "f")
        with pytest.raises(TypeError, match="no argument 'sync'"):
            verb(torch.zeros(3), "f", False, False, sync=1)
        with pytest.raises(TypeError, match="'async' twice"):
            verb(torch.zeros(3), "f", False, False, **ASYNC)
        with pytest.raises(TypeError, match="at most"):
            verb(torch.zeros(3), "f", False, False, 0, 0)
    with pytest.raises(TypeError, match="filename"):
        handle.async_pread(torch.zeros(3))
    with pytest.raises(TypeError, match="one of them"):
        handle.async_pwrite(torch.zeros(3), "f", fd=3)


# ---- validate


def test_validate_raises_where_the_file_differs(handle, tmp_path):
    path = tmp_path / "f"
    handle.sync_pwrite(pattern(10_000_000), str(path))
    kept = torch.zeros(9_000_000, dtype=torch.uint8)
    assert handle.pread(kept, str(path), True, True, 100) == 0
    handle._pending[0]._transfer.result()
    kept[8_000_001] ^= 1  # what a bad read would have left there
    with pytest.raises(OSError, match="byte 8000001 of the tensor") as caught:
        handle.wait()
    assert caught.value.errno == errno.EIO and caught.value.offset == 8_000_101
    assert handle.wait() == 0


# ---- what it leaves behind


def test_nothing_is_printed(handle, tmp_path, capfd):
    for name, (call, _, _) in {**WRITES, **READS}.items():
        call(handle, pattern(5000), str(tmp_path / "f"), 0)
        assert handle.wait() in (0, 1), name
    assert capfd.readouterr() == ("", "")


def test_no_descriptor_and_no_tensor_is_kept(handle, tmp_path):
    (tmp_path / "f").write_bytes(bytes(100_000))
    tensors = [torch.zeros(100_000, dtype=torch.uint8) for _ in range(20)]
    alive = [weakref.ref(t) for t in tensors]
    for tensor in tensors:
        handle.async_pread(tensor, str(tmp_path / "f"))
    del tensor
    tensors.clear()
    assert handle.wait() == 20
    for _ in range(3):
        with pytest.raises(penstock.EndOfFile):
            handle.sync_pread(torch.zeros(200_000, dtype=torch.uint8), str(tmp_path / "f"))
    gc.collect()
    assert [ref() for ref in alive] == [None] * 20
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    assert str(tmp_path / "f") not in [os.readlink(link) for link in links if os.path.lexists(link)]


def test_many_files_under_a_small_limit_of_descriptors(run_script):
    out = run_script("""
        import os, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        import torch
        from penstock.deepnvme import aio_handle
        handle, most = aio_handle(), 0
        tensors = [torch.full((40_000,), i % 251, dtype=torch.uint8) for i in range(300)]
        for i, tensor in enumerate(tensors):
            assert handle.async_pwrite(tensor, f"f{i}") == 0
            most = max(most, len(os.listdir("/proc/self/fd")))
        print(handle.wait(), most < 48)  # others need some as well
        # Several handles, each with less than its share: the limit itself is met.
        handles = [aio_handle() for _ in range(6)]
        back = [torch.empty_like(t) for t in tensors]
        for i, tensor in enumerate(back):
            assert handles[i % 6].async_pread(tensor, f"f{i}") == 0
        print([h.wait() for h in handles], all(torch.equal(a, b) for a, b in zip(tensors, back)))
        open("short", "w").close()
        handle.async_pread(back[0], "short")
        for i, tensor in enumerate(back):
            assert handle.async_pread(tensor, f"f{i}") == 0
        try:
            handle.wait()
        except EOFError as error:
            print("short" in str(error), handle.wait())
    """)
    assert out == "300 True\n[50, 50, 50, 50, 50, 50] True\nTrue 0\n"


def test_a_limit_on_transfers_makes_the_call_wait(run_script):
    out = run_script(
        """
        import torch
        from penstock.deepnvme import aio_handle
        handle = aio_handle()
        tensor = torch.ones(1 << 20, dtype=torch.uint8)
        for i in range(40):
            handle.async_pwrite(tensor, f"f{i}")
        print(handle.wait())
        """,
        env={"PENSTOCK_TRANSFERS_MAX": "3"},
    )
    assert out == "40\n"


# ---- the package


def test_every_public_thing_says_what_it_does():
    from penstock import deepnvme

    for owner in (aio_handle, deepnvme.pin_handle):
        for name, member in vars(owner).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                assert member.__doc__, f"{owner.__name__}.{name}"


def test_the_stubs_and_sources_of_the_package_parse():
    folder = Path(penstock.__file__).parent
    found = [*folder.rglob("*.py"), *folder.rglob("*.pyi")]
    assert found
    for path in found:
        ast.parse(path.read_text(), str(path))
