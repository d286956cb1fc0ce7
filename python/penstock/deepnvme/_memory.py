# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors, looked at before it is used: whether it can be written, and copies of it."""

from __future__ import annotations

import ctypes
import errno
import mmap
from typing import Any

from penstock import _core
from penstock.deepnvme._torch import is_tensor, why_not_plain

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: faults a page in for writing, and changes none of its bytes
_PAGE_BYTES = mmap.PAGESIZE
_OFFSET_MAX = (1 << 63) - 1  # where a file can end at most

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise.restype = ctypes.c_int


def _populate(address: int) -> int:
    """Faults in the page of an address for writing: 0, or the errno."""
    page = address - address % _PAGE_BYTES
    return ctypes.get_errno() if _madvise(page, _PAGE_BYTES, _POPULATE_WRITE) else 0


def _mapped_writable(address: int) -> bool:
    """By the list of mappings, which takes a hundred times as long."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                span, flags = line.split(maxsplit=2)[:2]
                begin, end = (int(word, 16) for word in span.split("-"))
                if begin <= address < end:
                    return "w" in flags
    except OSError:
        return True  # nobody knows
    return False


def check_writable(name: str, buffer: Any) -> None:
    """ValueError where the first page of a CPU tensor cannot be written: a file that was mapped to be read.

    torch tensors do not say it, and to read into one is a segmentation fault. One system call, about a microsecond.
    Pages that are no ordinary memory (a driver's) are looked up among the mappings. Memory that can be written and
    should not be, such as that of a bytes object, cannot be told from any other.
    """
    if not is_tensor(buffer) or not buffer.is_cpu or why_not_plain(buffer):
        return
    address = buffer.data_ptr()
    found = 0 if address == 0 else _populate(address)
    if found == errno.EFAULT:
        reason = "its memory is a mapped file that has become shorter, or a device that has no space for it"
    elif found in (errno.EINVAL, errno.ENOMEM) and not buffer.is_pinned() and not _mapped_writable(address):
        reason = "its memory is read-only (a file that was mapped to be read?)"
    else:
        return
    raise ValueError(
        f"{name}: this tensor cannot be written: {reason}; give tensor.clone() or torch.empty_like(tensor)"
    )


def copied(buffer: Any) -> Any:
    """The bytes of a contiguous tensor or array as they are now, in memory of the engine's. The GIL is released for a
    tensor. ValueError where they do not lie in host memory."""
    source = _core.as_bytes(buffer)
    if source.nbytes == 0:
        return buffer
    copy = _core.empty(source.nbytes, pinned=False)
    if is_tensor(buffer):
        # torch's copy_() would take threads, which hang in the child of a fork.
        to = ctypes.c_char.from_buffer(copy)  # type: ignore[arg-type]
        ctypes.memmove(ctypes.addressof(to), buffer.data_ptr(), source.nbytes)
    else:
        memoryview(copy)[:] = memoryview(source)  # type: ignore[arg-type]
    return copy


def check_end(offset: int, num_bytes: int) -> None:
    """ValueError where no file can hold bytes."""
    if offset > _OFFSET_MAX - num_bytes:
        raise ValueError(
            f"file_offset: {num_bytes} bytes at {offset} would end behind byte {_OFFSET_MAX}, and no file is so long; "
            "give a smaller one"
        )
