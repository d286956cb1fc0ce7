# SPDX-License-Identifier: Apache-2.0
"""Checks of the memory of tensors before its use (whether it is writable), and copies of it."""

from __future__ import annotations

import ctypes
from typing import Any

from penstock import _core
from penstock.deepnvme._torch import is_tensor, why_not_plain

_OFFSET_MAX = (1 << 63) - 1  # the highest possible end of a file


def check_writable(name: str, buffer: Any) -> None:
    """Raises ValueError if the first page of a CPU tensor cannot be written (a file that is mapped read-only)."""
    if not is_tensor(buffer) or not buffer.is_cpu or why_not_plain(buffer):
        return
    reason = _core.why_not_writable(buffer.data_ptr())
    if not reason:
        return
    raise ValueError(
        f"{name}: this tensor cannot be written: {reason}; give tensor.clone() or torch.empty_like(tensor)"
    )


def copied(buffer: Any) -> Any:
    """A copy of the bytes of a contiguous tensor or array, in memory of the engine. The GIL is released for a tensor.
    Raises ValueError if they are not in host memory."""
    source = _core.as_bytes(buffer)
    if source.nbytes == 0:
        return buffer
    copy = _core.empty(source.nbytes, pinned=False)
    if is_tensor(buffer):
        # torch's copy_() would use threads, which hang in the child of a fork.
        to = ctypes.c_char.from_buffer(copy)  # type: ignore[arg-type]
        ctypes.memmove(ctypes.addressof(to), buffer.data_ptr(), source.nbytes)
    else:
        memoryview(copy)[:] = memoryview(source)  # type: ignore[arg-type]
    return copy


def on_host(buffer: Any) -> Any:
    """The buffer itself, or for a tensor on a GPU a copy in host memory."""
    return buffer.detach().cpu() if is_tensor(buffer) and not buffer.is_cpu else buffer


def check_end(offset: int, num_bytes: int) -> None:
    """Raises ValueError for an end beyond the largest possible file."""
    if offset > _OFFSET_MAX - num_bytes:
        raise ValueError(
            f"file_offset: {num_bytes} bytes at {offset} would end after byte {_OFFSET_MAX}, and no file is so long; "
            "give a smaller one"
        )
