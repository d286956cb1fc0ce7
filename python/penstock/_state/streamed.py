# SPDX-License-Identifier: Apache-2.0
"""save() of tensors that are not in memory together: from an iterator, a lazy mapping, or a Checkpoint. Each is
written, or copied, before the next one is asked for. The compiled part has the order, the files and the checks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from penstock import _core
from penstock._base.arguments import got, path as path_of, shown, utf8
from penstock._state.rows import ALL, INDEX, SAFETENSORS, array_row, metadata_rows, torch_row


def _is_tensor(value: Any) -> bool:
    return hasattr(type(value), "__dlpack__") or issubclass(type(value), _core.Buffer)


def _is_lazy(value: Any) -> bool:
    """Whether it has a shape and a type, and is a tensor only when it is indexed: of h5py, zarr, a Checkpoint."""
    kind = type(value)
    is_array = _is_tensor(value) or hasattr(kind, "__array_interface__")
    return not is_array and hasattr(kind, "__getitem__") and hasattr(value, "shape") and hasattr(value, "dtype")


def takes(obj: Any, like: Any) -> bool:
    """Whether save() takes it tensor by tensor."""
    if like is not None and not isinstance(like, Mapping):
        raise TypeError(f"save: like: expected a mapping of names to tensors without data (on meta), got {got(like)}")
    if isinstance(obj, Iterator):
        return True
    if not isinstance(obj, Mapping):
        if like is not None:
            raise TypeError(
                f"save: like: is for an iterator of (name, tensor), or a mapping of tensors; got {got(obj)}"
            )
        return False
    if like is not None:
        return True
    if isinstance(obj, dict):
        return any(_is_lazy(value) for value in {type(value): value for value in obj.values()}.values())
    for name in obj:
        value = obj[name]
        return _is_lazy(value) or (_is_tensor(value) and obj[name] is not value)  # made when it is asked for
    return False


def collected(verb: str, obj: Any, saver: Any, path: str, copy: bool, changing: str) -> Any:
    """The tensors of an iterator, each copied when it came, for a save that writes them later. Another state is given
    back as it is. saver: of files, or a store. path: of a file, or ""."""
    if not isinstance(obj, Iterator):
        return obj
    if not copy:
        raise ValueError(f"{verb}: copy: the tensors of an iterator are copied one after another; leave out copy=False")
    types = SAFETENSORS if path.endswith(".safetensors") else ALL
    return saver.collect(obj, lambda n, item: _row(n, item, types), changing)


def save(obj: Any, f: Any, like: Any, metadata: Any, shard_bytes: int, report: Any, sync: bool, changing: str) -> None:
    if not isinstance(f, (str, bytes, os.PathLike)):
        raise TypeError(
            "save: f: tensors that come one after another are saved to a path, because parts of the file are written "
            f"when later ones are known; got {type(f).__name__}"
        )
    path = path_of("save", f)
    is_safetensors = path.endswith((".safetensors", INDEX))
    if path.endswith("/"):
        raise ValueError(f"save: '{path}': it ends as a folder does; give the path of a file, '{path.rstrip('/')}'")
    if metadata is not None and not is_safetensors:
        raise ValueError("save: metadata: a .pt has none; save to a .safetensors")
    rows = metadata_rows(metadata) if is_safetensors else []
    shard_bytes = min(shard_bytes, 2**63)
    if like is None and hasattr(type(obj), "_penstock_save"):  # a Checkpoint: its files are copied, checked
        obj._penstock_save(path, rows, shard_bytes, report, sync)
        return
    types = SAFETENSORS if is_safetensors else ALL
    announced = (
        like if like is not None else obj if isinstance(obj, Mapping) and path.endswith(".safetensors") else None
    )
    described = None if announced is None else [_described(name, announced[name], types) for name in announced]
    items = obj if isinstance(obj, Iterator) else ((name, obj[name]) for name in obj)
    _core._format.save_stream(
        path, items, lambda n, item: _row(n, item, types), described, rows, shard_bytes, report, sync, changing
    )


def _described(name: Any, value: Any, types: Mapping[str, str]) -> tuple[str, str, list[int]]:
    if not isinstance(name, str) or not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise TypeError(f"save: {shown(name)}: expected a name, and something with shape and dtype, got {got(value)}")
    utf8("save", "like", name)
    return name, types.get(dtype := str(value.dtype).removeprefix("torch."), dtype), list(value.shape)


def _row(number: int, item: Any, types: Mapping[str, str]) -> Any:
    name, value = item if isinstance(item, (tuple, list)) and len(item) == 2 else (None, None)
    if not isinstance(name, str):
        raise TypeError(f"save: item {number}: expected (name, tensor), got {shown(item)}")
    utf8("save", f"item {number}", name)
    value = value[...] if _is_lazy(value) else value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return torch_row(name, value, types)[0]
    if not _is_tensor(value):
        raise TypeError(f"save: item {number}, {shown(name)}: expected a tensor or an array, got {got(value)}")
    return array_row(name, value)[0]
