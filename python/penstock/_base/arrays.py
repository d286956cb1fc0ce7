# SPDX-License-Identifier: Apache-2.0
"""NumPy and torch, which are imported only when they are needed, and a Buffer as an array of either."""

from __future__ import annotations

from typing import Any

from penstock import _core


def numpy_dtype(name: str) -> Any:
    """The NumPy dtype of this name, which may be one of ml_dtypes; None if neither package has it."""
    import numpy

    try:
        return numpy.dtype(name)
    except TypeError:
        try:
            import ml_dtypes

            return numpy.dtype(getattr(ml_dtypes, name))
        except (ImportError, AttributeError):
            return None


def to_numpy(buffer: _core.Buffer) -> Any:
    import numpy

    dtype = numpy_dtype(buffer.dtype)
    if dtype is None:
        raise TypeError(
            f"numpy: NumPy has no {buffer.dtype}; install ml_dtypes, or take the bytes: "
            "numpy.asarray(penstock.as_bytes(buffer))"
        )
    return numpy.asarray(_core.as_bytes(buffer)).view(dtype).reshape(buffer.shape)


def to_torch(buffer: _core.Buffer) -> Any:
    import torch

    if buffer.readonly:
        raise ValueError(
            "torch: this Buffer is a view of read-only memory, and torch has no tensors that are read-only; "
            "copy it: torch.tensor(buffer.numpy())"
        )
    # Converts bytes, which every version of torch accepts: its DLPack may not support the type.
    dtype = getattr(torch, buffer.dtype, None)
    if dtype is None:
        raise TypeError(f"torch: torch {torch.__version__} has no {buffer.dtype}")
    return torch.from_dlpack(_core.as_bytes(buffer)).view(dtype).reshape(buffer.shape)


def torch_or_none() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def torch_for_states() -> Any:
    torch = torch_or_none()
    if torch is None:
        raise ImportError("penstock: tensors of a state are torch's; install torch")
    return torch
