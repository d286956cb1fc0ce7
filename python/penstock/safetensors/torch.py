# SPDX-License-Identifier: Apache-2.0
"""The functions of safetensors.torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from penstock._base import arguments as _arguments, devices as _devices
from penstock._state import save as _state
from penstock.safetensors._open import OpenFile, all_of, bytes_of, type_named
from penstock.safetensors._write import to_bytes, to_file


def _like(file: OpenFile, name: str) -> tuple[torch.dtype, list[int], int]:
    """Type, shape and bytes of a tensor."""
    kind, shape = file.row(name)
    named, of_torch = _state.of_torch(kind, shape)
    return getattr(torch, named or type_named(kind, file.path, name)), of_torch, bytes_of(kind, shape)


def tensors_of(file: OpenFile, names: list[str]) -> list[Any]:
    out = []
    for name, (memory, at) in zip(names, file.read(names), strict=True):
        dtype, shape, size = _like(file, name)
        # Its storage is of exactly these bytes.
        count = size // dtype.itemsize
        flat = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=at) if count else torch.empty(0)
        out.append(flat.view(dtype).view(shape))
    return out


def tensors_on(verb: str, device: Any) -> Callable[[OpenFile, list[str]], list[Any]]:
    """The tensors_of() that makes them on a device. ValueError, TypeError."""
    if device == "cpu":
        return tensors_of
    where = _devices.device_of(verb, "device", device)
    _devices.check_here(verb, "device", where)
    gpu = _state.gpu_of("cpu", where)

    def made(file: OpenFile, names: list[str]) -> list[Any]:
        if gpu is None:
            return [tensor.to(where) for tensor in tensors_of(file, names)]
        out = []
        for name in names:
            dtype, shape, _ = _like(file, name)
            out.append(torch.empty(shape, dtype=dtype, device=gpu))
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


from penstock.safetensors._model import load_model, save_model  # noqa: E402  after what it uses

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]
