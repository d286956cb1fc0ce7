# SPDX-License-Identifier: Apache-2.0
"""The functions of safetensors.torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from penstock import _arguments, _state
from penstock.safetensors._open import OpenFile, all_of, bytes_of, type_named
from penstock.safetensors._write import to_bytes, to_file


def tensors_of(file: OpenFile, names: list[str]) -> list[Any]:
    out = []
    for name, (memory, at) in zip(names, file.read(names), strict=True):
        kind, shape = file.row(name)
        dtype = getattr(torch, type_named(kind, file.path, name))
        count = bytes_of(kind, shape) // dtype.itemsize
        # Its storage is of exactly these bytes.
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=at) if count else torch.empty(0, dtype=dtype)
        out.append(flat.view(shape))
    return out


def tensors_on(verb: str, device: Any) -> Callable[[OpenFile, list[str]], list[Any]]:
    """The tensors_of() that makes them on a device. ValueError, TypeError."""
    if device == "cpu":
        return tensors_of
    try:
        where = torch.device(device)
    except TypeError:
        raise TypeError(f"{verb}: device: expected a device of torch, got {_arguments.got(device)}") from None
    except RuntimeError as error:
        raise ValueError(f"{verb}: device: {str(error).splitlines()[0]}") from None
    gpu = _state.gpu_of("cpu", where)

    def made(file: OpenFile, names: list[str]) -> list[Any]:
        if gpu is None:
            return [_moved(verb, tensor, where) for tensor in tensors_of(file, names)]
        out = []
        for name in names:
            kind, shape = file.row(name)
            out.append(torch.empty(shape, dtype=getattr(torch, type_named(kind, file.path, name)), device=gpu))
        rest = file.fill(names, out)
        for i, tensor in zip(rest, tensors_of(file, [names[i] for i in rest]), strict=True):
            out[i] = tensor.to(gpu)
        return out

    return tensors_of if where.type == "cpu" else made


@_arguments.named
def load_file(filename: str | os.PathLike[str], device: Any = "cpu") -> dict[str, torch.Tensor]:
    """Loads the tensors of a file. device: any device of torch, as a string, a torch.device or the number of a GPU;
    tensors are read straight to a CUDA GPU. Raises SafetensorError if it is not a .safetensors."""
    return all_of(filename, tensors_on("load_file", device))


def _moved(verb: str, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    try:
        return tensor.to(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch without that device
        raise ValueError(f"{verb}: device: torch cannot put a tensor on {str(device)!r}: {error}") from error


@_arguments.named
def load(data: bytes) -> dict[str, torch.Tensor]:
    """Loads the tensors from the bytes of a file."""
    return all_of(data, tensors_of)


@_arguments.named
def save_file(
    tensors: dict[str, torch.Tensor], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Writes a file, complete and durable when it returns. Raises ValueError for a tensor that is not dense and
    contiguous, RuntimeError for tensors that share memory."""
    to_file(_rows(tensors), filename, metadata)


@_arguments.named
def save(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of a file."""
    return to_bytes(_rows(tensors), metadata)


def _rows(tensors: dict[str, torch.Tensor]) -> list[Any]:
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
        if tensor.layout != torch.strided:
            raise ValueError(f"Key `{name}` is a sparse tensor; make it dense before saving it")
        if not tensor.is_contiguous():
            raise ValueError(f"Key `{name}` is not contiguous; save tensor.contiguous()")
    try:
        return _state._safetensors_rows(tensors)
    except ValueError as error:
        raise RuntimeError(str(error)) from error
