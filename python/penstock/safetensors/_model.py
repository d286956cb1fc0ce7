# SPDX-License-Identifier: Apache-2.0
"""save_model() and load_model() of safetensors.torch: modules whose parameters share memory."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import torch

from penstock._base import arguments as _arguments
from penstock.safetensors._file import all_of
from penstock.safetensors._torch_tensors import rows_of, tensors_on
from penstock.safetensors._write import to_file

# A file holds each memory once, under one of its names: one that covers all of it. The others are in the metadata
# (name: the name that was kept), which no reader needs: a model whose tensors are tied gets them with the first.


def _end(tensor: torch.Tensor) -> int:
    """The address behind the last element."""
    if not tensor.numel():
        return tensor.data_ptr()
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _overlapping(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Names of tensors that have memory in common; of one that shares nothing, its own."""
    storages: dict[Any, list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if tensor.device.type != "meta" and tensor.numel():
            places = storages.setdefault((tensor.device, storage.data_ptr()), [])
            places.append((tensor.data_ptr(), _end(tensor), name))
    groups: list[list[str]] = []
    for places in storages.values():
        reached = -1
        for begin, end, name in sorted(places):
            if begin >= reached:
                groups.append([])
            groups[-1].append(name)
            reached = max(reached, end)
    return groups


def _doubles(tensors: Mapping[str, torch.Tensor], preferred: Collection[str] = ()) -> dict[str, list[str]]:
    """The names that a file does not have, by the one that it has in place of them. preferred: those of a file."""
    out = {}
    for group in _overlapping(tensors):
        whole = sorted(name for name in group if tensors[name].nbytes == tensors[name].untyped_storage().nbytes())
        if not whole:
            raise RuntimeError(
                f"none of {', '.join(sorted(group))} covers all of its memory, so a loaded model would not share it; "
                "save clones of them, or a .pt with penstock.save()"
            )
        kept = next((name for name in whole if name in preferred), whole[0])
        out[kept] = sorted(name for name in group if name != kept)
    return out


@_arguments.named
def save_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
) -> None:
    """Saves the state_dict() of a model, also where tensors share memory: each memory once, under the first name that
    covers all of it. The metadata has the other names. Raises RuntimeError if no name covers a memory that is shared,
    ValueError for a tensor that is not contiguous with force_contiguous=False."""
    tensors = dict(model.state_dict())
    doubles: dict[str, str] = {}
    for kept, names in _doubles(tensors).items():
        for name in names:
            doubles[name] = kept
            del tensors[name]
    if force_contiguous:
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        noted = {**doubles, **(metadata or {})} if doubles or metadata is not None else None
        to_file(rows_of(tensors), filename, noted)
    except ValueError as error:
        raise ValueError(f"{error}. Or use save_model(..., force_contiguous=True)") from error


@_arguments.named
def load_model(
    model: torch.nn.Module, filename: str | os.PathLike[str], strict: bool = True, device: Any = "cpu"
) -> tuple[set[str], list[str]]:
    """Loads a file into a model. Returns the names that only the model has, and those that only the file has. A name
    whose memory the file has under another name of the model is not missing. strict: RuntimeError if there are any."""
    tensors = all_of(filename, tensors_on("load_file", device))
    doubles = _doubles(model.state_dict(), tensors.keys())
    result = model.load_state_dict(tensors, strict=False)
    missing, unexpected = set(result.missing_keys), list(result.unexpected_keys)
    for names in doubles.values():
        for name in names:
            if name in missing:
                missing.remove(name)
            else:
                unexpected.append(name)  # the file has this memory twice
    if strict and (missing or unexpected):
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(model).__name__}:"
            + "".join(
                f"\n    {what} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names))
                for what, names in (("Missing", missing), ("Unexpected", unexpected))
                if names
            )
        )
    return missing, unexpected
