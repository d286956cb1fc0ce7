# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch from a .safetensors, and for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock._base import devices as _devices
from penstock._state.rows import of_torch, safetensors_rows
from penstock.safetensors._file import OpenFile, bytes_of, type_named


def _like(file: OpenFile, name: str) -> tuple[torch.dtype, list[int], int]:
    """Type, shape and bytes of a tensor."""
    kind, shape = file.row(name)
    named, its_shape = of_torch(kind, shape)
    return getattr(torch, named or type_named(kind, file.path, name)), its_shape, bytes_of(kind, shape)


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
    gpu = _devices.gpu_of("cpu", where)

    def made(file: OpenFile, names: list[str]) -> list[Any]:
        if gpu is None or file.is_cut:
            return [tensor.to(where) for tensor in tensors_of(file, names)]
        out = []
        for name in names:
            dtype, shape, _ = _like(file, name)
            out.append(torch.empty(shape, dtype=dtype, device=gpu))
        file.read(names, out)
        return out

    return tensors_of if where.type == "cpu" else made


def rows_of(tensors: dict[str, torch.Tensor]) -> list[Any]:
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
        return safetensors_rows(tensors)
    except ValueError as error:
        raise RuntimeError(str(error)) from error
