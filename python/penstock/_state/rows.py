# SPDX-License-Identifier: Apache-2.0
"""Tensors and metadata as the compiled part takes them: the names of types, rows, and the files that rows go to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from penstock import _core
from penstock._base.arguments import shown, strings
from penstock._base.arrays import torch_for_states as _torch

_format = _core._format

TORCH = dict(_format.torch_types())  # name in safetensors: name in torch
SAFETENSORS = {name: ours for ours, name in TORCH.items()}
ALL = {torch: ours for ours, torch in _format.torch_types(True)}  # what a .pt has
F4 = "float4_e2m1fn_x2"
Row = tuple[tuple[str, str, list[int], int, Any], tuple[Any, int, int]]  # see torch_row()

FLOATS = ("float64", "float32", "float16", "bfloat16")  # types that a load converts, and converts to

INDEX = ".safetensors.index.json"


def float_name(verb: str, dtype: Any, into: Any) -> str | None:
    """The name of the type to convert tensors to, or None."""
    if dtype is None:
        return None
    if into is not None:
        raise ValueError(f"{verb}: into: the tensors say their types; leave out dtype")
    name = str(dtype).removeprefix("torch.")
    if name not in FLOATS:
        raise ValueError(f"{verb}: dtype: expected {', '.join(FLOATS[:-1])} or {FLOATS[-1]}, got {shown(name)}")
    return name


def metadata_rows(metadata: dict[str, str] | None) -> list[tuple[str, str]]:
    """Those of a .safetensors."""
    return [("format", "pt")] if metadata is None else strings("save", "metadata", metadata)


def safetensors_rows(obj: Any) -> list[tuple[str, str, list[int], int, Any]]:
    if type(obj) is _core._async.Collected:
        return obj.rows()
    if not isinstance(obj, Mapping):
        raise TypeError(f"save: a .safetensors holds a dict of tensors, got {type(obj).__name__}")
    torch = sys.modules.get("torch")  # without the import there are no tensors of torch
    rows, ranges = [], []
    for name, tensor in obj.items():
        is_torch = torch is not None and isinstance(tensor, torch.Tensor)
        if not isinstance(name, str) or not (is_torch or hasattr(tensor, "__dlpack__")):
            raise TypeError(
                f"save: state[{shown(name)}]: a .safetensors holds named tensors and arrays, got "
                f"{type(tensor).__name__}; save it as .pt"
            )
        row, extent = (torch_row if is_torch else array_row)(name, tensor)
        rows.append(row)
        ranges.append((*extent, name))
    ranges = sorted((r for r in ranges if r[2]), key=lambda r: (str(r[0]), r[1]))
    for (device, begin, size, first), (other, at, _, second) in zip(ranges, ranges[1:], strict=False):
        if device == other and at < begin + size:
            raise ValueError(
                f"save: state[{shown(first)}] and state[{shown(second)}] share memory, which a .safetensors cannot "
                "say; save one of them, or a clone, or a .pt"
            )
    return rows


def torch_row(name: str, tensor: Any, types: Mapping[str, str] = SAFETENSORS, verb: str = "save") -> Row:
    """A row (name, type, shape, address and owner of the bytes) and an extent (device, address and size of memory)."""
    torch = _torch()
    if tensor.is_nested:
        do = "save its parts (what its unbind() gives), or a dict of it to a .pt"
        do = do if verb == "save" else f"give its parts, by the names that inspect() gives ({shown(name + '.values')})"
        raise TypeError(f"{verb}: state[{shown(name)}]: a nested tensor has no form here; {do}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if types is SAFETENSORS and tensor.layout is torch.strided and dtype == F4 and tensor.ndim:
        (_, _, shape, *data), extent = torch_row(name, tensor.view(torch.uint8), types, verb)  # of two F4 each
        return (name, "F4", [*shape[:-1], 2 * shape[-1]], *data), extent
    if tensor.layout is not torch.strided or dtype not in types:
        one_by_one = "a .pt whose tensors come one after another; save a dict of them"
        where = ".safetensors; save it as .pt" if types is SAFETENSORS else one_by_one
        raise TypeError(f"{verb}: state[{shown(name)}]: a tensor of {dtype} ({tensor.layout}) has no form in {where}")
    if tensor.device.type == "meta":
        raise TypeError(f"{verb}: state[{shown(name)}]: the tensor is on the meta device and has no data")
    data = _core.in_its_storage(tensor, f"{verb}: state[{shown(name)}]").detach()
    if not (data.device.type == "cuda" and data.is_contiguous() and not data.is_conj() and not data.is_neg()):
        data = data.resolve_conj().resolve_neg().cpu().contiguous()
    row = (name, types[dtype], list(data.shape), data.data_ptr(), data)
    return row, (tensor.device, tensor.data_ptr(), tensor.nbytes)


def of_torch(kind: str, shape: list[int]) -> tuple[str, list[int]]:
    """The type and shape in torch of what a .safetensors has; "": torch has no such type."""
    if kind == "F4" and shape and shape[-1] % 2 == 0:
        return F4, [*shape[:-1], shape[-1] // 2]
    return TORCH.get(kind, ""), shape


def array_row(name: str, array: Any, verb: str = "save") -> Row:
    """The same for an array of NumPy, or an object that NumPy converts: an array of JAX, a Buffer."""
    import numpy

    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError(f"{verb}: state[{shown(name)}]: a masked array, whose mask would be lost; give array.filled()")
    host = array.numpy() if isinstance(array, _core.Buffer) else numpy.asarray(array)
    if host.dtype.name not in SAFETENSORS or not host.dtype.isnative:
        raise TypeError(f"{verb}: state[{shown(name)}]: no .safetensors has {host.dtype}; give another dtype")
    extent = ("cpu", host.ctypes.data, host.nbytes)
    host = host if host.flags.c_contiguous else numpy.array(host, order="C")
    return (name, SAFETENSORS[host.dtype.name], list(host.shape), host.ctypes.data, host), extent
