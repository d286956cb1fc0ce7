# SPDX-License-Identifier: Apache-2.0
"""read_rows(): rows of files by number."""

import gc
import tracemalloc

import numpy
import penstock
import pytest

ROWS, WIDTH = 5000, 25  # float32: 100 bytes


@pytest.fixture(scope="module")
def table():
    return numpy.random.default_rng(1).random((ROWS, WIDTH), dtype=numpy.float32)


@pytest.fixture
def path(tmp_path, table):
    made = tmp_path / "table"
    made.write_bytes(b"header!" + table.tobytes())
    return made


def kinds_of(ids):
    torch = pytest.importorskip("torch")
    yield list(map(int, ids))
    yield tuple(map(int, ids))
    for dtype in ("int64", "uint64", "int32", "uint32", "uint16"):
        yield ids.astype(dtype)
    yield torch.from_numpy(ids.astype("int64"))
    yield torch.from_numpy(ids.astype("int32"))
    yield memoryview(ids.astype("int64"))
    yield numpy.frombuffer(b"\0" + ids.astype("int64").tobytes(), "uint8")[1:].view("int64")  # at an odd address

    class OnlyDlpack:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    yield OnlyDlpack(ids.astype("uint32"))


def test_ids_of_every_kind(path, table):
    ids = numpy.random.default_rng(2).integers(0, ROWS, 300)
    for kind in kinds_of(ids):
        out = numpy.zeros((300, WIDTH), numpy.float32)
        assert penstock.read_rows(path, kind, out, base=7) == out.nbytes
        assert (out == table[ids]).all(), type(kind)


def test_a_tensor_is_filled_and_a_transfer_can_be_awaited(path, table):
    torch = pytest.importorskip("torch")
    out = torch.zeros(3, WIDTH)
    with penstock.File(path) as file:
        transfer = penstock.read_rows_async(file, torch.tensor([4999, 0, 4999]), out, base=7)
        assert transfer.nbytes == 300 and transfer.result() == 300
    assert (out.numpy() == table[[4999, 0, 4999]]).all()


def test_destinations_stride_and_part_of_a_row(path, table, engine):
    out = numpy.zeros((6, WIDTH), numpy.float32)
    places = numpy.array([5, 0, 3])
    engine.read_rows(path, [10, 2499, 0], out, base=7 + 20, stride=200, row_bytes=40, destinations=places)
    expected = numpy.zeros_like(out)
    expected[places, :10] = table[[20, 4998, 0], 5:15]
    assert (out == expected).all()
    flat = bytearray(80)
    engine.read_rows(path, [1, 2], flat, base=7, stride=100, row_bytes=40)
    assert flat == table[[1, 2], :10].tobytes()


def test_several_tables(tmp_path, path, table):
    other = tmp_path / "other"
    other.write_bytes((-table).tobytes())
    tables = [
        penstock.RowTable(path, base=7, rows=100),
        penstock.RowTable(other, rows=ROWS),
        penstock.RowTable(path, base=7, stride=200),
    ]
    out = numpy.zeros((4, WIDTH), numpy.float32)
    penstock.read_rows(tables, [99, 100, 100 + ROWS + 2, 99], out)
    assert (out == [table[99], -table[0], table[4], table[99]]).all()
    penstock.read_rows(tables, [3, 3, 3, 0], out, table_of=numpy.array([0, 1, 2, 1]))
    assert (out == [table[3], -table[3], table[6], -table[0]]).all()


def test_nothing_is_read(path):
    assert penstock.read_rows(path, [], numpy.zeros((0, WIDTH), numpy.float32)) == 0
    assert penstock.read_rows(path, numpy.zeros(0, numpy.int64), numpy.zeros((3, WIDTH), numpy.float32)) == 0


@pytest.mark.parametrize(
    "ids, more, error, words",
    [
        ([0, -1], {}, ValueError, r"ids\[1\]: -1"),
        (numpy.array([0, -5]), {}, ValueError, r"ids\[1\]: -5 is no number of a row"),
        (numpy.array([0.0, 1.0]), {}, TypeError, "ids: the elements of this numpy.ndarray are no integers"),
        (numpy.array([True, False]), {}, TypeError, "no integers"),
        (numpy.arange(4)[::2], {}, ValueError, "ids: .*not contiguous"),
        ([0, "1"], {}, TypeError, r"ids\[1\]"),
        ([0, 1, 2, 3], {}, ValueError, r"ids\[3\] goes to place 3"),
        ([0, 1], {"destinations": [0, 3]}, ValueError, r"ids\[1\] goes to place 3"),
        ([0, 1], {"destinations": [0]}, ValueError, "2 ids came, and 1 destinations"),
        ([0, 1], {"table_of": [0, 1]}, ValueError, r"ids\[1\] is of table 1"),
        ([0, 1], {"stride": -1}, ValueError, "stride: -1"),
        ([0, 1 << 62], {}, ValueError, r"ids\[1\] is row 4611686018427387904"),
        (None, {}, TypeError, "ids: got NoneType"),
    ],
)
def test_what_cannot_be_meant(path, ids, more, error, words):
    with pytest.raises(error, match=words):
        penstock.read_rows(path, ids, numpy.zeros((3, WIDTH), numpy.float32), **more)


def test_wrong_tables(path):
    out = numpy.zeros((3, WIDTH), numpy.float32)
    table = penstock.RowTable(path, base=7, rows=50)
    with pytest.raises(ValueError, match=r"ids\[0\] is row 50 of a table of 50 rows"):
        penstock.read_rows(table, [50], out)
    with pytest.raises(ValueError, match="a RowTable has its own"):
        penstock.read_rows(table, [0], out, base=7)
    with pytest.raises(TypeError, match=r"file\[1\]: got str"):
        penstock.read_rows([table, str(path)], [0], out)
    with pytest.raises(ValueError, match="read-only"):
        penstock.read_rows(table, [0], bytes(100))


def test_a_row_past_the_end_is_named(path):
    with pytest.raises(penstock.EndOfFile, match=r"row 5000\b"):
        penstock.read_rows(path, [1, 5000, 4999], numpy.zeros((3, WIDTH), numpy.float32), base=7)


def test_no_object_a_row(path):
    ids, out = numpy.arange(ROWS), numpy.zeros((ROWS, WIDTH), numpy.float32)
    penstock.read_rows(path, ids, out, base=7)
    gc.collect()
    tracemalloc.start()
    try:
        penstock.read_rows(path, ids, out, base=7)
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()
