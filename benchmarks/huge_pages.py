# SPDX-License-Identifier: Apache-2.0
"""Huge pages for a program that wants them from the kernel's pool (fio's --iomem=shmhuge).

They are lent as surplus pages: the pool's limit is raised for the length of a run, and what was taken goes back to the
machine when the program lets go. Nothing is reserved, so a run that is killed leaves nothing behind but the limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_LIMIT = Path("/proc/sys/vm/nr_overcommit_hugepages")
_PAGES = 128  # of 2 MiB


@contextlib.contextmanager
def lent(wanted: bool = True) -> Iterator[None]:
    """The pool may grow by 256 MiB meanwhile; nothing happens where it is not `wanted`."""
    if not wanted:
        yield
        return
    before = _LIMIT.read_text(encoding="ascii")
    _LIMIT.write_text(str(max(_PAGES, int(before))), encoding="ascii")
    try:
        yield
    finally:
        _LIMIT.write_text(before, encoding="ascii")


def why_not() -> str:
    """Empty when huge pages can be lent here, else the reason."""
    try:
        with lent():
            return ""
    except OSError as error:
        return f"{_LIMIT}: {error.strerror}"
