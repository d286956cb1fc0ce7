# SPDX-License-Identifier: Apache-2.0
"""Lengths past what a pickle has bytes for: 4 GiB. An error of the save with its place; the file from before stays."""

import numpy as np
import penstock
import pytest

GIB = 1 << 30


def available_gib():
    with open("/proc/meminfo") as info:
        rows = dict(line.split(":") for line in info)
    return int(rows["MemAvailable"].split()[0]) >> 20


@pytest.mark.parametrize(
    ("make", "gib"),
    [
        (lambda: np.zeros(4 * GIB, np.uint8), 14),
        (lambda: np.full(2 * GIB, 0x80, np.uint8), 8),  # two bytes each in the pickle
        (lambda: bytearray(4 * GIB), 14),
        (lambda: bytes(4 * GIB), 14),
        (lambda: b"\x80" * (2 * GIB), 8),
        (lambda: "a" * (4 * GIB), 14),
        (lambda: [np.zeros(GIB, np.uint8) for _ in range(4)], 26),  # together past what is read
    ],
    ids=["array", "array_of_high_bytes", "bytearray", "bytes", "high_bytes", "str", "together"],
)
def test_a_length_that_a_pickle_cannot_say_is_an_error_of_the_save(make, gib, tmp_path):
    if available_gib() < gib:
        pytest.skip(f"needs {gib} GiB of free memory, and {available_gib()} are free")
    path = tmp_path / "state.pt"
    penstock.save({"good": 1}, path)
    with pytest.raises(ValueError, match="state\\['opt'\\]|takes [0-9]+ bytes"):
        penstock.save({"opt": make()}, path)
    assert penstock.load(path) == {"good": 1}
