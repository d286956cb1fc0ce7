# SPDX-License-Identifier: Apache-2.0
"""read, write and their asynchronous forms against plain Python I/O."""

import os
import stat
from pathlib import Path

import numpy
import penstock
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

PROPERTY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
DTYPES = ("uint8", "int16", "float32", "complex128", "bool")


def test_there_and_back(tmp_path, pattern):
    data = pattern((1 << 20) + 13)
    path = tmp_path / "file"
    assert penstock.write(path, data) == data.nbytes
    assert path.read_bytes() == data.tobytes()
    back = numpy.zeros_like(data)
    assert penstock.read(str(path), back) == data.nbytes
    assert numpy.array_equal(data, back)


@PROPERTY
@given(
    size=st.one_of(st.integers(0, 70_000), st.sampled_from([0, 1, 511, 512, 4095, 4096, 4097, 1 << 20, (3 << 20) + 5])),
    offset=st.one_of(st.integers(0, 20_000), st.sampled_from([0, 512, 4096, (1 << 20) - 1])),
    shift=st.integers(0, 64),
    seed=st.integers(0, 1000),
)
def test_any_size_offset_and_address(engine, tmp_path, pattern, size, offset, shift, seed):
    path = tmp_path / "any"
    before = pattern(offset + size + 4096, seed + 1)
    path.write_bytes(before.tobytes())
    data = pattern(size + shift, seed)[shift:]
    assert engine.write(path, data, offset) == size
    expected = before.copy()
    expected[offset : offset + size] = data
    assert path.read_bytes() == expected.tobytes()
    room = numpy.full(size + shift + 64, 0xAA, dtype=numpy.uint8)
    assert engine.read(path, room[shift : shift + size], offset) == size
    assert numpy.array_equal(room[shift : shift + size], data)
    assert (room[:shift] == 0xAA).all() and (room[shift + size :] == 0xAA).all()


@PROPERTY
@given(
    sizes=st.lists(st.integers(0, 20_000), max_size=12),
    files=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES),
    use_async=st.booleans(),
)
def test_many_tensors_over_files(engine, tmp_path, pattern, sizes, files, dtype, use_async):
    tensors = [pattern(n * numpy.dtype(dtype).itemsize, n).view(dtype) for n in sizes]
    names = [str(tmp_path / f"f{i % files}") for i in range(len(sizes))]
    for name in names:
        Path(name).unlink(missing_ok=True)
    ends = dict.fromkeys(names, 0)
    offsets = []
    for name, tensor in zip(names, tensors, strict=True):
        offsets.append(ends[name])
        ends[name] += tensor.nbytes
    total = sum(t.nbytes for t in tensors)
    back = [numpy.zeros_like(t) for t in tensors]
    if use_async:
        assert engine.write_async(names, tensors, offsets).result() == total
        assert engine.read_async(names, back, offsets).result() == total
    else:
        assert engine.write(names, tensors, offsets) == total
        assert engine.read(names, back, offsets) == total
    for tensor, copy in zip(tensors, back, strict=True):
        assert tensor.tobytes() == copy.tobytes()


def test_one_file_serves_all_tensors(engine, tmp_path, pattern):
    pieces = [pattern(1000, i) for i in range(50)]
    offsets = [i * 1000 for i in range(50)]
    with penstock.File(tmp_path / "one", "rw") as file:
        assert engine.write(file, pieces, offsets) == 50_000
        back = [bytearray(1000) for _ in pieces]
        assert engine.read(file, tuple(back), numpy.array(offsets)) == 50_000
    assert b"".join(back) == b"".join(p.tobytes() for p in pieces)


def test_files_without_offsets_start_at_zero(engine, tmp_path, pattern):
    pieces = [pattern(100, i) for i in range(3)]
    names = [tmp_path / str(i) for i in range(3)]
    assert engine.write(names, pieces) == 300
    assert [n.read_bytes() for n in names] == [p.tobytes() for p in pieces]


def test_nothing_is_moved_of_nothing(engine, tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert engine.read(tmp_path / "file", bytearray()) == 0
    assert engine.read(tmp_path / "file", [], []) == 0
    assert engine.read([], [], [], allow_short=True) == []


def test_write_creates_and_never_truncates(tmp_path):
    path = tmp_path / "new"
    old = os.umask(0o027)
    try:
        penstock.write(path, b"0123456789")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    penstock.write(path, b"ab")
    assert path.read_bytes() == b"ab23456789"
    penstock.write(path, b"z", 12, sync=True)
    assert path.read_bytes() == b"ab23456789\0\0z"


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_kinds_of_paths(tmp_path, kind):
    path = kind(str(tmp_path / "näme"))
    penstock.write(path, b"hello")
    into = bytearray(5)
    assert penstock.read(path, into) == 5 and into == b"hello"


def test_short_reads(engine, tmp_path):
    path = tmp_path / "short"
    path.write_bytes(bytes(range(100)))
    into = bytearray(b"\xaa" * 200)
    assert engine.read(path, into, 40, allow_short=True) == 60
    assert into == bytes(range(40, 100)) + b"\xaa" * 140
    assert engine.read(path, into, 1000, allow_short=True) == 0
    parts = [bytearray(60), bytearray(60), bytearray(60)]
    assert engine.read(path, parts, [0, 60, 120], allow_short=True) == [60, 40, 0]
    assert engine.read_async(path, parts, [0, 60, 120], allow_short=True).result() == [60, 40, 0]
    with pytest.raises(penstock.EndOfFile) as caught:
        engine.read(path, into, 40)
    error = caught.value
    assert isinstance(error, OSError) and isinstance(error, EOFError) and isinstance(error, penstock.Error)
    assert error.filename == error.path == str(path)
    assert "100" in str(error) and "200" in str(error)


def test_priorities(engine, tmp_path):
    penstock.write(tmp_path / "f", b"abc")
    for priority in ("urgent", "normal", "background"):
        assert engine.read(tmp_path / "f", bytearray(3), priority=priority) == 3
    transfer = engine.read_async(tmp_path / "f", bytearray(3), priority="background")
    transfer.set_priority("urgent")
    assert transfer.result() == 3


def test_default_engine_is_one():
    assert penstock.default_engine() is penstock.default_engine()
    assert isinstance(penstock.default_engine(), penstock.Engine)


@pytest.mark.parametrize("backend", ["io_uring", "libaio", "posix"])
def test_forced_backends(backend, tmp_path, pattern):
    data = pattern(3 << 20)
    try:
        made = penstock.Engine(backend=backend)
    except penstock.Error as error:
        pytest.skip(f"{backend} cannot be had here: {error}")
    with made as engine:
        assert engine.describe().backend == backend
        assert engine.write(tmp_path / "f", data) == data.nbytes
        back = bytearray(data.nbytes)
        assert engine.read(tmp_path / "f", back) == data.nbytes
        assert back == data.tobytes()


def test_engine_options_stats_and_description(tmp_path):
    with penstock.Engine(block_bytes=64 << 10, queue_depth=7) as engine:
        assert (engine.options.block_bytes, engine.options.queue_depth) == (64 << 10, 7)
        engine.write(tmp_path / "f", bytes(1 << 20))
        engine.read(tmp_path / "f", bytearray(1 << 20))
        stats = engine.stats()
        assert stats.bytes_read == stats.bytes_written == 1 << 20
        assert stats.requests >= 32 and stats.running == 0
        assert stats.latency.p50 <= stats.latency.max
        assert engine.describe().backend in str(engine.describe())
    assert engine.closed
    with pytest.raises(ValueError, match="closed"):
        engine.read(tmp_path / "f", bytearray(1))


def test_environment_gives_the_defaults(run_script):
    out = run_script(
        "import penstock; e = penstock.default_engine(); print(e.describe().backend, e.options.block_bytes)",
        env={"PENSTOCK_BACKEND": "posix", "PENSTOCK_BLOCK_BYTES": "512KiB"},
    )
    assert out.split() == ["posix", str(512 << 10)]


def test_a_limit_on_transfers(slow):
    with penstock.Engine(transfers_max=1) as engine:
        path, into, offsets = slow
        transfer = engine.read_async(path, into, offsets)
        with pytest.raises(penstock.WouldBlock, match="transfers_max") as caught:
            engine.read_async(path, into[0])
        assert isinstance(caught.value, BlockingIOError)
        transfer.cancel()
        with pytest.raises(penstock.Cancelled):
            transfer.result()
