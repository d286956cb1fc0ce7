# SPDX-License-Identifier: Apache-2.0
"""States as torch.distributed.checkpoint has them: Stateful objects, flat keys, and the Metadata of a checkpoint."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils._pytree import tree_map

from penstock import _core
from penstock._base.arguments import shown
from penstock._state import load as _load
from penstock._state.slices import is_part
from penstock._store.checkpoint import Checkpoint

BLOBS = "penstock.dcp.blobs"  # in the metadata of a checkpoint whose values are pickles of torch.save()


def of_statefuls(state: dict[str, Any]) -> dict[str, Any]:
    """A shallow copy with the state_dict() of each Stateful in its place."""
    return {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()}


def shape_of(value: Any) -> tuple[int, ...]:
    """Of the whole tensor."""
    return tuple(value.shape if not callable(getattr(value, "size", None)) else value.size())


def metadata_of(flat: dict[str, Any], mappings: dict[str, Any]) -> Metadata:
    """torch's Metadata of a state. Each tensor is one chunk: where its parts lie is in our manifest."""
    rows: dict[str, Any] = {}
    for name, value in flat.items():
        if isinstance(value, torch.Tensor) or is_part(value):
            size = torch.Size(shape_of(value))
            dtype = value.tensor.dtype if not hasattr(value, "dtype") else value.dtype
            chunk = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
            rows[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), size, [chunk])
        else:
            rows[name] = BytesStorageMetadata()
    return Metadata(state_dict_metadata=rows, planner_data=mappings)


def metadata_of_state(state: dict[str, Any]) -> Metadata:
    return metadata_of(*flatten_state_dict(state))


def fill(path: str, state: dict[str, Any], partial: bool, pickled: bool) -> None:
    """Loads into a state: its tensors in place, its other values replaced. Only what it names is read.

    partial: what the checkpoint lacks is left as it is; else it is a KeyError, before anything is read."""
    flat, places = flatten_state_dict(state)
    with Checkpoint(path) as checkpoint:
        saved, blobs = saved_values(checkpoint, pickled), bool(checkpoint.metadata.get(BLOBS))
        missing = [name for name in flat if name not in saved]
        if missing and not partial:
            raise KeyError(
                f"load: '{path}' has {_core._format.lacking(missing[0], list(saved))}; {len(missing)} keys of the "
                "state are not there, and nothing was read. DefaultLoadPlanner(allow_partial_load=True) leaves them as "
                "they are"
            )
        there = {name: value for name, value in flat.items() if name in saved}
        for name, value in there.items():
            if _is_tensor(value) != _is_tensor(saved[name]):
                here, other = ("a tensor", "none") if _is_tensor(value) else (f"a {type(value).__name__}", "a tensor")
                raise ValueError(f"load: {shown(name)} is {here}, and in '{path}' it is {other}; nothing was read")
        tensors = {name: value for name, value in there.items() if _is_tensor(value)}
        # A tensor of another type is read as it was saved, and converted, as torch does it.
        others = {n: t for n, t in tensors.items() if isinstance(t, torch.Tensor) and t.dtype != saved[n].dtype}
        made = {name: torch.empty_like(one, dtype=saved[name].dtype) for name, one in others.items()}
        values = {name: with_memory(saved[name]) for name in there if name not in tensors}
        if tensors or values:
            source = checkpoint._core.source(*_load.asked_for(None), False)
            _load.fill(source, {**tensors, **made, **values}, None, False, None, only=True)
        with torch.no_grad():
            for name, one in others.items():
                one.copy_(made[name])
    for name, value in values.items():
        _set(state, places[name], of_blob(name, value, pickled) if blobs and type(value) is bytes else value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or is_part(value)


def saved_state(checkpoint: Checkpoint, pickled: bool) -> dict[str, Any]:
    """The state of a checkpoint, with its tensors on the meta device."""
    state, _ = _load.without_data(checkpoint._core.source(*_load.asked_for(None), False), pickled)
    return state if isinstance(state, dict) else {}


def saved_values(checkpoint: Checkpoint, pickled: bool) -> dict[str, Any]:
    """The same, flat."""
    return flatten_state_dict(saved_state(checkpoint, pickled))[0]


def with_memory(value: Any) -> Any:
    """The same with memory for the tensors in it: those of a tuple have no names of their own in a flat state."""

    def made(one: Any) -> Any:
        return _load.as_saved(torch.empty_like(one, device="cpu"), one) if isinstance(one, torch.Tensor) else one

    return tree_map(made, value, is_leaf=lambda one: isinstance(one, torch.Size))


def of_blob(name: str, blob: bytes, pickled: bool) -> Any:
    """The value in a pickle of torch.save(). pickled: which may run any code."""
    try:
        return torch.load(io.BytesIO(blob), weights_only=not pickled)
    except pickle.UnpicklingError as error:
        raise pickle.UnpicklingError(
            f"load: {shown(name)} is a pickle that could run any code; pickle=True runs it, only where the files are "
            f"trusted: {error}"
        ) from error


def _set(state: Any, place: tuple[Any, ...], value: Any) -> None:
    """Puts a value at a place of a state, whose keys may be no strings."""
    at = state
    for number, step in enumerate(place):
        key = step
        if isinstance(at, dict) and step not in at:
            key = next(key for key in at if str(key) == step)
        if number + 1 == len(place):
            at[key] = value
        else:
            at = at[key]
