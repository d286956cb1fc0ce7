# SPDX-License-Identifier: Apache-2.0
"""The functions that DeepNVMe's modules have besides their handles."""

from __future__ import annotations

from typing import Any

from penstock.deepnvme._handle import aio_handle
from penstock.deepnvme._memory import check_writable
from penstock.deepnvme._torch import is_tensor, torch, why_lazy, why_not_plain


def aio_read(
    buffer: Any,
    filename: Any,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Fills `buffer` from the start of the file; blocks. Returns 0. Errors as in aio_handle.read()."""
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).read(buffer, filename, validate)


def aio_write(
    buffer: Any,
    filename: Any,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Writes `buffer` to the start of the file; blocks. Returns 0. Errors as in aio_handle.write()."""
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).write(buffer, filename, validate)


def deepspeed_memcpy(dest: Any, src: Any) -> int:
    """Copies `src` to `dest`, CPU tensors of any dtype, shape and stride. Returns 0.

    With one dtype, both need the same number of elements, which are copied in order. With two dtypes, both must be
    contiguous, with the same number of bytes, which are copied unchanged. Otherwise ValueError. Releases the GIL; works
    on leaves that require grad."""
    for name, tensor in (("dest", dest), ("src", src)):
        if not is_tensor(tensor):
            raise TypeError(f"{name}: got {type(tensor).__name__}; give a torch tensor")
        if not tensor.is_cpu:
            raise ValueError(f"{name}: this tensor is on {tensor.device}; deepspeed_memcpy is for the CPU, use copy_()")
        if why := why_not_plain(tensor):
            raise ValueError(f"{name}: this tensor cannot be copied: {why}")
    check_writable("dest", dest)
    with torch().no_grad():
        if dest.dtype == src.dtype and dest.numel() == src.numel():
            dest.copy_(src.reshape(dest.shape))
        elif dest.nbytes == src.nbytes and dest.is_contiguous() and src.is_contiguous():
            for name, tensor in (("dest", dest), ("src", src)):
                if why := why_lazy(tensor):
                    raise ValueError(f"{name}: the bytes of this tensor cannot be copied: {why}")
            _bytes_of(dest).copy_(_bytes_of(src))
        else:
            raise ValueError(
                f"dest has {dest.numel()} elements of {dest.dtype} ({dest.nbytes} bytes), and src {src.numel()} of "
                f"{src.dtype} ({src.nbytes} bytes); give tensors of one size (contiguous ones where the dtypes "
                "differ), or parts that are"
            )
    return 0


def _bytes_of(tensor: Any) -> Any:
    return tensor.detach().reshape(-1).view(torch().uint8)


def _cast(tensor: Any) -> Any:
    if not is_tensor(tensor):
        raise TypeError(f"src_tensor: got {type(tensor).__name__}; give a torch tensor or a sequence of them")
    if why := why_not_plain(tensor) or why_lazy(tensor):
        raise ValueError(f"src_tensor: the bytes of this tensor do not lie in one piece of memory: {why}")
    if tensor.nbytes == 1:
        return tensor
    if not tensor.is_contiguous():
        raise ValueError(
            f"src_tensor: the bytes of this tensor (shape {tuple(tensor.shape)}, strides {tensor.stride()}) do not lie "
            "in one piece; give tensor.contiguous()"
        )
    return _bytes_of(tensor)


def cast_to_byte_tensor(src_tensor: Any) -> Any:
    """The bytes of a contiguous tensor as a 1-D uint8 tensor on the same memory, on any device; of a sequence, a list.

    The result shares the memory and keeps it alive. As in DeepNVMe, a tensor of 1 byte is returned unchanged.
    """
    if isinstance(src_tensor, (list, tuple)):
        return [_cast(tensor) for tensor in src_tensor]
    return _cast(src_tensor)
