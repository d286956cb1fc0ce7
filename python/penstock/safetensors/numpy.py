# SPDX-License-Identifier: Apache-2.0
"""The functions of safetensors.numpy."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._base import arguments as _arguments, arrays as _arrays
from penstock._state.rows import array_row
from penstock.safetensors._file import OpenFile, SafetensorError, all_of, bytes_of, type_named
from penstock.safetensors._write import to_bytes, to_file


def _dtype(name: str) -> np.dtype[Any]:
    dtype = _arrays.numpy_dtype(name)
    if dtype is None:
        raise SafetensorError(f"load: NumPy has no {name}; install ml_dtypes, or read it with torch")
    return dtype


def arrays_of(file: OpenFile, names: list[str]) -> list[NDArray[Any]]:
    out = []
    for name, (memory, at) in zip(names, file.read(names), strict=True):
        kind, shape = file.row(name)
        dtype = _dtype(type_named(kind, file.path, name))
        size = bytes_of(kind, shape)
        whole = np.asarray(memory)[at : at + size] if size else np.empty(0, np.uint8)
        out.append(whole.view(dtype).reshape(shape))
    return out


@_arguments.named
def load_file(filename: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Loads the arrays of a file. Raises SafetensorError if it is not a .safetensors."""
    return all_of(filename, arrays_of)


@_arguments.named
def load(data: bytes) -> dict[str, NDArray[Any]]:
    """Loads the arrays from the bytes of a file."""
    return all_of(data, arrays_of)


@_arguments.named
def save_file(
    tensor_dict: dict[str, NDArray[Any]], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Writes a file, complete and durable when it returns."""
    to_file(_rows(tensor_dict), filename, metadata)


@_arguments.named
def save(tensor_dict: dict[str, NDArray[Any]], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of a file."""
    return to_bytes(_rows(tensor_dict), metadata)


def _rows(arrays: dict[str, NDArray[Any]]) -> list[Any]:
    if not isinstance(arrays, dict):
        raise ValueError(f"Expected a dict of [str, numpy.ndarray] but received {type(arrays)}")
    rows = []
    for name, array in arrays.items():
        if not isinstance(array, (np.ndarray, np.generic)):
            raise ValueError(f"Key `{name}` is invalid, expected numpy.ndarray but received {type(array)}")
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        rows.append(array_row(name, array)[0])
    return rows
