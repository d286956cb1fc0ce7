# SPDX-License-Identifier: Apache-2.0
"""Conditions for comparable figures: durable when the clock stops, no I/O before it starts, a cold page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager


class NotInState(Exception):
    """Files cannot be put into the initial state of a run; the text says why."""


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_durable(path: str) -> None:
    """Syncs the file, then its folder, for peers that leave this to their callers."""
    for one in (path, os.path.dirname(path) or "."):
        with _opened(one) as descriptor:
            os.fsync(descriptor)


def settle(folder: str) -> None:
    """Waits for the write-back of this file system, so that it does not fall into the time of the next side."""
    with _opened(folder) as descriptor:
        ctypes.CDLL(None).syncfs(descriptor)


def make_cold(path: str) -> None:
    """Removes a file, or the files of a folder, from the page cache."""
    below = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    for file in below or [path]:
        with _opened(file) as descriptor:
            os.fsync(descriptor)  # only clean pages can be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def bring_in(path: str) -> None:
    """Reads a file into the page cache."""
    memory = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(memory):
            pass


def cached_bytes(path: str) -> int:
    """Bytes of a file in the page cache, in whole pages. The kernel reports this only to users who own or may write the
    file; for others it reports all bytes. OSError."""
    size = os.path.getsize(path)
    if size == 0:
        return 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        begin = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(size), pages)
        del begin  # it refers to the mapping, which is closed next
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore(2): {os.strerror(ctypes.get_errno())}", path)
    return bytes(pages).count(1) * mmap.PAGESIZE


def remove(path: str) -> None:
    """Removes a file or a folder, if it exists."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
