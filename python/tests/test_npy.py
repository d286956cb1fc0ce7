# SPDX-License-Identifier: Apache-2.0
"""read_npy(): the same array as numpy.load() and numpy.stack() make, or an error that names the file."""

import os
import resource
import struct

import numpy as np
import penstock
import pytest

DTYPES = ["b1", "i1", "u1", "<i2", "<u4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16", "S3", "<U4"]
SHAPES = [(), (1,), (7,), (3, 5), (0, 4), (2, 3, 4), (40_000,)]


def made(folder, dtype, shape, count):
    random = np.random.default_rng(1)
    arrays, paths = [], []
    for i in range(count):
        array = random.integers(0, 100, size=shape).astype(dtype)
        paths.append(folder / f"{i}.npy")
        np.save(paths[-1], array)
        arrays.append(array)
    return paths, arrays


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_as_numpy(tmp_path, dtype):
    for number, shape in enumerate(SHAPES):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths, arrays = made(folder, dtype, shape, 5)
        want = np.stack(arrays)
        got = penstock.read_npy(paths)
        assert got.dtype == want.dtype and got.shape == want.shape
        assert np.array_equal(got, want)
        out = np.zeros_like(want)
        assert penstock.read_npy([os.fsencode(path) for path in paths], out, cache="direct") is out
        assert np.array_equal(out, want)


def test_headers_of_other_lengths_and_versions(tmp_path):
    paths, arrays = made(tmp_path, "<f4", (10,), 4)
    text = b"{'shape': (10,), 'fortran_order': True, 'descr': '<f4'}" + b" " * 3000 + b"\n"
    paths[2].write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + arrays[2].tobytes())
    paths[3].write_bytes(paths[3].read_bytes() + b"what follows is nobody's")
    assert np.array_equal(penstock.read_npy(paths), np.stack(arrays))
    assert np.array_equal(penstock.read_npy(paths[::-1]), np.stack(arrays[::-1]))


def test_more_files_than_descriptors(tmp_path):
    paths, arrays = made(tmp_path, "<i8", (16,), 3000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        done = []
        got = penstock.read_npy(iter(paths), progress=lambda *so_far: done.append(so_far))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert np.array_equal(got, np.stack(arrays))
    assert done[-1] == (got.nbytes, got.nbytes)


def test_the_first_that_differs_is_named(tmp_path):
    paths, _ = made(tmp_path, "<f4", (4,), 1500)
    np.save(paths[1200], np.zeros(5, "<f4"))
    np.save(paths[1300], np.zeros(4, "<f8"))
    with pytest.raises(ValueError, match=r"1200\.npy.*<f4 of shape \(5,\).*<f4 of shape \(4,\)"):
        penstock.read_npy(paths)
    with pytest.raises(ValueError, match=r"1300\.npy.*<f8 of shape"):
        penstock.read_npy(paths[1201:1301][::-1][1:] + [paths[1300]])


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.asfortranarray(np.zeros((2, 3))), "Fortran"),
        (np.array([{}, None], object), "Python objects"),
        (np.zeros(2, [("a", "<f4"), ("b", "<i4")]), "structured"),
        (np.zeros(2, "M8[s]"), "neither plain"),
    ],
)
def test_what_is_refused_and_why(tmp_path, array, reason):
    paths, _ = made(tmp_path, "<f4", (2,), 2)
    np.save(tmp_path / "odd.npy", array, allow_pickle=True)
    for names in ([tmp_path / "odd.npy"], [*paths, tmp_path / "odd.npy"]):
        with pytest.raises(penstock.Unsupported, match=reason) as caught:
            penstock.read_npy(names)
        assert "odd.npy" in str(caught.value)


def test_what_is_no_such_file_or_cut(tmp_path):
    paths, _ = made(tmp_path, "<f4", (1000,), 3)
    whole = paths[1].read_bytes()
    for length, error in ((0, ValueError), (5, ValueError), (100, ValueError), (200, penstock.EndOfFile)):
        paths[1].write_bytes(whole[:length])
        with pytest.raises(error, match="1.npy"):
            penstock.read_npy(paths)
    paths[1].write_bytes(b"PK\x03\x04" + bytes(200))
    with pytest.raises(ValueError, match=r"1\.npy.*not a \.npy file"):
        penstock.read_npy(paths)
    paths[1].unlink()
    with pytest.raises(FileNotFoundError, match="1.npy"):
        penstock.read_npy(paths)


def test_arguments(tmp_path):
    paths, _ = made(tmp_path, "<f4", (4, 2), 3)
    with pytest.raises(TypeError, match="one path"):
        penstock.read_npy(paths[0])
    with pytest.raises(ValueError, match="at least one"):
        penstock.read_npy([])
    with pytest.raises(TypeError, match=r"paths\[1\]"):
        penstock.read_npy([paths[0], 5])
    with pytest.raises(TypeError, match=r"numpy\.ndarray of shape \(3, 4, 2\)"):
        penstock.read_npy(paths, bytearray(96))
    for wrong in (np.zeros((3, 2, 4), "<f4"), np.zeros((3, 4, 2), "<f8"), np.zeros((3, 4, 2), "<f4", order="F")):
        with pytest.raises(ValueError, match="out"):
            penstock.read_npy(paths, wrong)
    with pytest.raises(ValueError, match="cache"):
        penstock.read_npy(paths, cache="no")


def test_a_progress_that_raises_stops_it(tmp_path):
    paths, _ = made(tmp_path, "<f4", (4,), 3)

    def stop(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        penstock.read_npy(paths, progress=stop)
