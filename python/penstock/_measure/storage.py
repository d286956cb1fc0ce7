# SPDX-License-Identifier: Apache-2.0
"""Conditions of comparable figures: durable when the clock stops, nothing under way before it starts, cold."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_durable(path: str) -> None:
    """Does what peers leave to their callers: fsync of the file, then of its folder."""
    for one in (path, os.path.dirname(path) or "."):
        with _opened(one) as descriptor:
            os.fsync(descriptor)


def settle(folder: str) -> None:
    """No write-back of one side in the next one's time: of this file system, not of the whole machine."""
    with _opened(folder) as descriptor:
        ctypes.CDLL(None).syncfs(descriptor)


def make_cold(path: str) -> None:
    """Takes a file, or the files of a folder, out of the page cache."""
    below = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    for file in below or [path]:
        with _opened(file) as descriptor:
            os.fsync(descriptor)  # only what is clean goes
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def remove(path: str) -> None:
    """A file or a folder; nothing where neither is there."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
