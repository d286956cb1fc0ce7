# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments raise at the call, before any I/O, and name the argument, what came and what is allowed."""

import ctypes
import mmap
import os

import numpy
import penstock
import pytest


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "file"
    made.write_bytes(bytes(4096))
    return made


@pytest.mark.parametrize("verb", ["read", "read_async"])
@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"into": b"abc"}, ValueError, ["into", "read-only", "bytes"]),
        ({"into": numpy.zeros((4, 4)).T}, ValueError, ["into", "not contiguous", "(4, 4)", "strides"]),
        ({"into": numpy.zeros(16)[::2]}, ValueError, ["into", "not contiguous", "ascontiguousarray"]),
        ({"into": 5}, TypeError, ["into", "int", "DLPack"]),
        ({"into": bytearray(4), "offset": -1}, ValueError, ["offset", "-1"]),
        ({"into": bytearray(4), "offset": 1 << 64}, ValueError, ["offset"]),
        ({"into": bytearray(4), "offset": (1 << 63) - 2}, ValueError, ["offset", "largest"]),
        ({"into": bytearray(4), "offset": 1.5}, TypeError, ["offset", "float"]),
        ({"into": bytearray(4), "offset": None}, TypeError, ["offset", "NoneType"]),
        ({"into": bytearray(4), "offset": True}, TypeError, ["offset", "bool", "bytes from the start"]),
        ({"into": [bytearray(4)] * 2, "offset": [0, False]}, TypeError, ["offset[1]", "bool"]),
        ({"into": bytearray(4), "file": 3}, TypeError, ["file", "int", "path"]),
        ({"into": bytearray(4), "file": "a\0b"}, ValueError, ["null"]),
        ({"into": bytearray(4), "stream": 7}, ValueError, ["stream", "host memory"]),
        ({"into": bytearray(4), "priority": "high"}, ValueError, ["priority", "high", "urgent"]),
        ({"into": bytearray(4), "priority": None}, ValueError, ["priority", "None"]),
        ({"into": bytearray(4), "block_bytes": 0}, ValueError, ["block_bytes", "0"]),
        ({"into": bytearray(4), "block_bytes": [1]}, TypeError, ["block_bytes", "list"]),
        ({"into": bytearray(4), "depth_limit": 4}, TypeError, ["depth_limit", "int", "DepthLimit"]),
        ({"into": [bytearray(4)] * 2}, ValueError, ["offset", "2"]),
        ({"into": [bytearray(4)] * 2, "offset": [0]}, ValueError, ["offset", "1", "2"]),
        ({"into": [bytearray(4)] * 2, "offset": [0, "x"]}, TypeError, ["offset[1]", "str"]),
        ({"into": [bytearray(4), b"1234"], "offset": [0, 4]}, ValueError, ["into[1]", "read-only"]),
        ({"into": bytearray(4), "file": ["a"]}, ValueError, ["file", "several"]),
    ],
)
def test_reads(engine, path, verb, kwargs, error, words):
    kwargs = {"file": path, **kwargs}
    with pytest.raises(error) as caught:
        getattr(engine, verb)(kwargs.pop("file"), kwargs.pop("into"), **kwargs)
    for word in words:
        assert word in str(caught.value)
    assert engine.stats().requests == 0


def test_sequences_of_files(engine, path, tmp_path):
    into = [bytearray(4), bytearray(4)]
    with pytest.raises(ValueError, match=r"file: got 1 element for 2"):
        engine.read([path], into, [0, 0])
    with pytest.raises(ValueError, match=r"offset: got one for 2"):
        engine.read([path, path], into, 8)
    with penstock.File(path) as file, pytest.raises(ValueError, match="do not mix"):
        engine.read([file, path], into, [0, 0])
    with pytest.raises(TypeError, match=r"file\[1\]"):
        engine.read([path, None], into, [0, 0])


def test_a_read_only_map_is_refused(engine, path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        with pytest.raises(ValueError, match="read-only"):
            engine.read(path, view)
        assert engine.write(path, view) == 4096


def test_files_are_open_for_what_is_asked(engine, path):
    with penstock.File(path, "r") as file, pytest.raises(ValueError, match="open for reading only"):
        engine.write(file, b"abc")
    with penstock.File(path, "w") as file, pytest.raises(ValueError, match="open for writing only"):
        engine.read(file, bytearray(3))
    with pytest.raises(ValueError, match="closed"):
        engine.read(file, bytearray(3))


def test_unknown_keywords(engine, path):
    with pytest.raises(TypeError):
        engine.read(path, bytearray(1), sync=True)
    with pytest.raises(TypeError):
        engine.write(path, bytearray(1), allow_short=True)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"backend": "nvme"}, "backend"),
        ({"block_bytes": 1000}, "block_bytes"),
        ({"queue_depth": 0}, "queue_depth"),
        ({"channels": 0}, "channels"),
    ],
)
def test_engine_options(options, word):
    with pytest.raises(ValueError, match=word):
        penstock.Engine(**options)


def test_file_options(tmp_path):
    with pytest.raises(ValueError, match="mode"):
        penstock.File(tmp_path / "f", "ab")
    with pytest.raises(ValueError, match="cache: got 'yes'; expected 'auto', 'cached'"):
        penstock.File(tmp_path / "f", "w", cache="yes")
    with pytest.raises(ValueError, match="truncate"):
        penstock.File(tmp_path / "f", "r", truncate=True)
    with pytest.raises(TypeError, match="path"):
        penstock.File(7)
    assert not (tmp_path / "f").exists()


def words_of(error):
    """What a user reads; nothing of C++ or of a binding is in it."""
    text = str(error)
    assert text and "incompatible function arguments" not in text and "std::" not in text
    return text


@pytest.mark.parametrize("wrong", [-1, 1.5, "four", True, 1 << 70])
@pytest.mark.parametrize(
    "name",
    ["block_bytes", "queue_depth", "in_flight_bytes", "channels", "copy_threads", "transfers_max", "background_bytes"],
)
def test_numbers_of_an_engine(name, wrong):
    with pytest.raises((TypeError, ValueError), match=f"^{name}: ") as caught:
        penstock.Engine(**{name: wrong})
    assert any(word in words_of(caught.value) for word in ("int", "from 0 to", "expected bytes"))


def test_an_engine_says_what_it_was_asked_for():
    with penstock.Engine(backend="aio", queue_depth=numpy.uint32(8), block_bytes=numpy.int64(1 << 16)) as made:
        options = made.options
        assert (options.backend, options.queue_depth, options.block_bytes) == ("libaio", 8, 1 << 16)
    with pytest.raises(TypeError, match="backend: got int"):
        penstock.Engine(backend=3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda file: file.truncate(-1), ["size", "-1"]),
        (lambda file: file.truncate(1.0), ["size", "float"]),
        (lambda file: file.truncate(1 << 63), ["size", "9223372036854775807"]),
        (lambda file: file.preallocate(-1, 1), ["offset", "-1"]),
        (lambda file: file.preallocate((1 << 63) - 10, 11), ["size", "11"]),
        (lambda file: penstock.File(file.path, mode=None), ["mode", "NoneType"]),
        (lambda file: penstock.File(file.path, "rw", truncate=1), ["truncate", "int", "True or False"]),
        (lambda file: penstock.DepthLimit(-1), ["requests", "-1"]),
        (lambda file: penstock.DepthLimit("2"), ["requests", "str"]),
        (lambda file: penstock.read(file, bytearray(1), allow_short=1), ["allow_short", "int"]),
        (lambda file: penstock.write(file, b"1", sync="no"), ["sync", "str"]),
        (lambda file: penstock.read(file, bytearray(1), block_bytes=True), ["block_bytes", "bool"]),
        (lambda file: penstock.empty(1.5), ["shape", "float"]),
        (lambda file: penstock.empty(1 << 63), ["shape", str(1 << 63)]),
        (lambda file: penstock.empty((2, -1)), ["shape", "-1"]),
        (lambda file: penstock.empty(2, pinned=None), ["pinned", "NoneType"]),
        (lambda file: penstock.empty(2, numpy.dtype(">f4")), ["dtype", ">f4", "order"]),
        (lambda file: penstock.empty(2, "é" * 60), ["dtype", "éé", "..."]),
        (lambda file: penstock.empty(2, "\ud800"), ["dtype"]),
        (lambda file: penstock.read(file, bytearray(1), priority="é" * 60), ["priority", "éé", "urgent"]),
        (lambda file: penstock.read_async(file, bytearray(1)).notify("x"), ["eventfd", "str"]),
        (lambda file: penstock.read_async(file, bytearray(1)).notify(-1), ["eventfd", "-1"]),
        (lambda file: penstock.read_async(file, bytearray(1)).notify(1 << 20), ["not an open eventfd"]),
    ],
)
def test_what_came_is_named(path, call, words):
    with penstock.File(path, "rw") as file:
        with pytest.raises((TypeError, ValueError)) as caught:
            call(file)
        assert file.size == 4096
    for word in words:
        assert word in words_of(caught.value)


def test_numbers_flags_and_shapes_of_numpy(path):
    assert penstock.empty(numpy.array([2, 3])).shape == (2, 3)
    assert penstock.empty(numpy.int64(3), pinned=numpy.bool_(False)).shape == (3,)
    into = bytearray(4100)
    assert penstock.read(path, into, allow_short=numpy.True_) == 4096
    assert penstock.read(path, into[:512], numpy.int64(0), block_bytes=numpy.int64(4096)) == 512
    assert penstock.read(path, [bytearray(2)], numpy.array([3])) == 2


def test_no_tensors_are_nothing_to_move(path):
    assert penstock.read(path, []) == 0
    assert penstock.read(path, [], []) == 0
    assert penstock.read(path, [], allow_short=True) == []
    with pytest.raises(ValueError, match=r"offset: got one for 1 tensor in a sequence"):
        penstock.read(path, [bytearray(1)], 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: numpy.array([{}, []], dtype=object),
        lambda: numpy.zeros(2, dtype=[("count", "i4"), ("thing", "O")]),
        lambda: numpy.zeros(2, dtype=[("when", "M8[s]"), ("thing", "O")]),
        lambda: memoryview(numpy.array([None], dtype=object)),
        lambda: (ctypes.py_object * 2)(),
    ],
)
def test_addresses_of_python_objects_are_no_data(path, make):
    for call in (
        lambda memory: penstock.read(path, memory),
        lambda memory: penstock.write(path, memory),
        penstock.as_bytes,
    ):
        with pytest.raises(ValueError, match="Python objects"):
            call(make())
    assert path.read_bytes() == bytes(4096)


def test_types_that_only_look_like_objects_are_data(path):
    for dtype in ([("O", "i4"), ("xOx", "f8")], "M8[s]", "S3", "U2", "c16", "V5"):
        array = numpy.zeros(3, dtype=dtype)
        assert penstock.read(path, array) == array.nbytes
        assert penstock.write(path, array) == array.nbytes


def test_paths_that_are_not_utf8_are_shown_as_python_shows_them(tmp_path):
    name = bytes(tmp_path) + b"/bad\xff.bin"
    file = penstock.File(name, "rw")
    shown = os.fsdecode(name)
    assert file.path == file.info.path == shown
    assert shown in repr(file) and shown in repr(file.info)
    file.close()
    for call in (lambda: file.size, lambda: penstock.read(file, bytearray(1)), lambda: file.truncate(0)):
        with pytest.raises(ValueError, match="closed") as caught:
            call()
        assert shown in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "metadata", "error", "words"),
    [
        (5, [], TypeError, ["shape: ", "int", "give a list"]),
        ([2, "3"], [], TypeError, ["shape[1]: ", "str", "elements"]),
        ([2, -3], [], ValueError, ["shape[1]: ", "-3"]),
        ([], 5, TypeError, ["metadata: ", "int", "give a list"]),
        ([], [("a", "b"), ["c", "d"]], TypeError, ["metadata[1]: ", "list", "tuple"]),
        ([], [("a", "b"), ("c", 4)], TypeError, ["metadata[1]: ", "int", "str"]),
        ([], iter([("a", "b"), ("c",)]), TypeError, ["metadata[1]: ", "tuple of two"]),
    ],
)
def test_a_wrong_item_of_a_list_is_named(shape, metadata, error, words):
    row = ("name", "U8", shape, 0, None)
    with pytest.raises(error) as caught:
        penstock._core._format.image_of_tensors([row], metadata)
    for word in words:
        assert word in str(caught.value)


def test_what_an_iterator_of_a_list_raises_comes_through():
    def items():
        yield ("a", "b")
        raise KeyError("of the iterator")

    with pytest.raises(KeyError, match="of the iterator"):
        penstock._core._format.image_of_tensors([], items())
