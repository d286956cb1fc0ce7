# SPDX-License-Identifier: Apache-2.0
"""From a Buffer to the arrays of others, which are imported only here and only when asked for."""

from __future__ import annotations

from typing import Any

from penstock import _core


def to_numpy(buffer: _core.Buffer) -> Any:
    import numpy

    flat = numpy.asarray(_core.as_bytes(buffer))
    try:
        dtype = numpy.dtype(buffer.dtype)
    except TypeError:
        try:
            import ml_dtypes

            dtype = numpy.dtype(getattr(ml_dtypes, buffer.dtype))
        except (ImportError, AttributeError):
            raise TypeError(
                f"numpy: NumPy has no {buffer.dtype}; install ml_dtypes, or take the bytes: "
                "numpy.asarray(penstock.as_bytes(buffer))"
            ) from None
    return flat.view(dtype).reshape(buffer.shape)


def to_torch(buffer: _core.Buffer) -> Any:
    import torch

    if buffer.readonly:
        raise ValueError(
            "torch: this Buffer is a view of read-only memory, and torch has no tensors that are read-only; "
            "copy it: torch.tensor(buffer.numpy())"
        )
    # By way of bytes, which every version of torch takes; the type need not be one that its DLPack knows.
    dtype = getattr(torch, buffer.dtype, None)
    if dtype is None:
        raise TypeError(f"torch: torch {torch.__version__} has no {buffer.dtype}")
    return torch.from_dlpack(_core.as_bytes(buffer)).view(dtype).reshape(buffer.shape)
