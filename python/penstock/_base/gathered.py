# SPDX-License-Identifier: Apache-2.0
"""Arguments of gathers: row numbers in any shape, and memory for the result."""

from __future__ import annotations

import array
import sys
from typing import Any

from penstock._base import arguments as _arguments, arrays as _arrays, devices as _devices


def numbers(ids: Any, named: str = "ids") -> Any:
    """Contiguous integers of the host; what is elsewhere, strided, or a list of lists or arrays, is copied."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(ids, torch.Tensor):
        if ids.dtype == torch.bool:
            raise TypeError(f"{named}: this tensor is a mask; give the numbers of its rows: mask.nonzero().view(-1)")
        if ids.is_meta or ids.layout != torch.strided or ids.is_floating_point() or ids.is_complex():
            kind = f"{ids.dtype} on {ids.device} ({ids.layout})"
            raise TypeError(f"{named}: expected integers in memory, got a tensor of {kind}")
        return ids.cpu().contiguous()
    if isinstance(ids, range):  # numbers of more than 64 bits are refused as those of a list
        return [end for end in (*ids[:1], *ids[-1:]) if not -(1 << 63) <= end < 1 << 63] or array.array("q", ids)
    if isinstance(ids, (list, tuple)):
        if not any(isinstance(one, (list, tuple)) or getattr(one, "shape", ()) for one in ids):
            return ids
        import numpy as np

        try:
            found = np.asarray(ids)
        except ValueError:
            raise ValueError(f"{named}: expected lists of the same length inside a list") from None
        return found if found.size else found.astype(np.int64)
    if hasattr(ids, "__dlpack__") and not hasattr(ids, "dtype"):
        import numpy as np

        ids = np.from_dlpack(ids)
    dtype = getattr(ids, "dtype", None)
    kind = getattr(dtype, "kind", None)
    if kind == "b":
        raise TypeError(f"{named}: this array is a mask; give the numbers of its rows: numpy.flatnonzero(mask)")
    if kind in ("i", "u") and not getattr(dtype, "isnative", True):
        return ids.astype(dtype.newbyteorder("="), order="C")
    return ids if getattr(getattr(ids, "flags", None), "c_contiguous", True) else ids.copy(order="C")


def shape_of(ids: Any) -> tuple[int, ...]:
    """The shape of a result of numbers()."""
    shape = getattr(ids, "shape", None)
    if shape is None and not hasattr(ids, "__len__"):
        raise TypeError(f"gather: ids: expected a tensor, an array or a list of integers, got {_arguments.got(ids)}")
    return (len(ids),) if shape is None else tuple(shape)


def made_for(ids: Any, row_shape: tuple[int, ...], dtype: str, device: Any = None) -> Any:
    """New memory for the rows: a torch tensor if `ids` is one or a device is given, else a NumPy array. dtype: a name
    of torch."""
    torch = sys.modules.get("torch")
    shape = (*shape_of(ids), *row_shape)
    if torch is None and device is not None:
        try:
            import torch
        except ImportError:
            raise ImportError("gather: device: makes a tensor of torch, which is not installed; give `out`") from None
    if torch is not None and (device is not None or isinstance(ids, torch.Tensor)):
        kind = getattr(torch, dtype, None)
        if kind is None:
            raise TypeError(f"gather: torch has no {dtype}; give `out`: a bytearray, for example")
        if device is not None:
            device = _devices.device_of("gather", "device", device)
            _devices.check_here("gather", "device", device)
        return torch.empty(shape, dtype=kind, device=device)
    import numpy as np

    wanted = _arrays.numpy_dtype(dtype)
    if wanted is None:
        raise TypeError(f"gather: NumPy has no {dtype}; give `out`, or `ids` as a torch tensor, or install ml_dtypes")
    return np.empty(shape, wanted)


def as_torch_counts(dtype: str, row_shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The dtype and shape of a row in torch, where an element of float4_e2m1fn_x2 holds two F4 elements."""
    if dtype == "F4" and row_shape and row_shape[-1] % 2 == 0:
        return "float4_e2m1fn_x2", (*row_shape[:-1], row_shape[-1] // 2)
    return dtype, row_shape


def checked(out: Any, ids: Any, row_shape: tuple[int, ...], dtype: str) -> Any:
    """`out`, if it has the rows' dtype and shape. Memory without them is checked later, by its number of bytes."""
    if not hasattr(out, "dtype") or not hasattr(out, "shape"):
        return out
    found = str(out.dtype).removeprefix("torch.")
    if found != dtype:
        raise TypeError(f"gather: out: expected elements of {dtype}, got {found}; give an empty tensor of it")
    shape = (*shape_of(ids), *row_shape)
    if tuple(out.shape) != shape:
        raise ValueError(f"gather: out: expected shape {shape}, got {tuple(out.shape)}")
    return out
