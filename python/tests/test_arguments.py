# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments raise at the call, before any I/O, and name the argument, what came and what is allowed."""

import mmap

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
        ({"into": bytearray(4), "file": 3}, TypeError, ["file", "int", "path"]),
        ({"into": bytearray(4), "file": "a\0b"}, ValueError, ["null"]),
        ({"into": bytearray(4), "stream": 7}, ValueError, ["stream", "host memory"]),
        ({"into": bytearray(4), "priority": "high"}, ValueError, ["priority", "high", "urgent"]),
        ({"into": bytearray(4), "priority": None}, ValueError, ["priority", "None"]),
        ({"into": bytearray(4), "block_bytes": 0}, ValueError, ["block_bytes", "0"]),
        ({"into": bytearray(4), "block_bytes": "1M"}, ValueError, ["block_bytes", "1M"]),
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
    with pytest.raises(ValueError, match=r"file: 1 elements came, and there are 2"):
        engine.read([path], into, [0, 0])
    with pytest.raises(ValueError, match=r"offset: one came for 2"):
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
        penstock.File(tmp_path / "f", "a")
    with pytest.raises(ValueError, match="direct"):
        penstock.File(tmp_path / "f", "w", direct="yes")
    with pytest.raises(ValueError, match="truncate"):
        penstock.File(tmp_path / "f", "r", truncate=True)
    with pytest.raises(TypeError, match="path"):
        penstock.File(7)
    assert not (tmp_path / "f").exists()
