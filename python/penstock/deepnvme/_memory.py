# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors, looked at before it is used: whether it can be written, and copies of it."""

from __future__ import annotations

import ctypes
from typing import Any

from penstock import _core
from penstock.deepnvme._torch import is_tensor, why_not_plain

_OFFSET_MAX = (1 << 63) - 1  # where a file can end at most


def check_writable(name: str, buffer: Any) -> None:
    """ValueError where the first page of a CPU tensor cannot be written: a file that was mapped to be read."""
    if not is_tensor(buffer) or not buffer.is_cpu or why_not_plain(buffer):
        return
    reason = _core.why_not_writable(buffer.data_ptr())
    if not reason:
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


def on_host(buffer: Any) -> Any:
    """The same values in host memory: itself, or a copy of a tensor on a GPU."""
    return buffer.detach().cpu() if is_tensor(buffer) and not buffer.is_cpu else buffer


def check_end(offset: int, num_bytes: int) -> None:
    """ValueError where no file can hold bytes."""
    if offset > _OFFSET_MAX - num_bytes:
        raise ValueError(
            f"file_offset: {num_bytes} bytes at {offset} would end after byte {_OFFSET_MAX}, and no file is so long; "
            "give a smaller one"
        )
