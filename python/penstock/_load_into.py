# SPDX-License-Identifier: Apache-2.0
"""load_into(): reads the tensors of a file directly into a torch module, with the result of load_state_dict()."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import _arguments, _state
from penstock._arguments import got, shown

if TYPE_CHECKING:
    import torch

    from penstock._types import Dtype, Path, Readable


class IncompatibleKeys(NamedTuple):
    """Names of tensors that only the model has (missing), and that only the file has (unexpected)."""

    missing_keys: list[str]
    unexpected_keys: list[str]


@_arguments.named
def load_into(
    model: torch.nn.Module,
    f: Path | Readable,
    *,
    names: str | None = None,
    strict: bool = True,
    dtype: Dtype | None = None,
) -> IncompatibleKeys:
    """Reads the tensors of a file into the parameters and buffers of a torch.nn.Module. The result is that of
    `model.load_state_dict(penstock.load(f, names=names))`, without a second copy of the tensors.

    f: the path of a `.pt`, a `.safetensors` or an index of shards.
    names: the name of the module's state in the file ("model"); None: the file has only that state.
    strict: True: names that only the file or only the module has are a RuntimeError. False: they are returned, and the
        others are read. A missing name that is tied to one that is read does not count.
    dtype: the module's floats become this type (model.to(dtype)) before anything is read; None: they stay.

    A tensor of float64, float32, float16 or bfloat16 is converted to the type of the module's tensor, through a copy of
    that one tensor. Any other difference of type is a RuntimeError, and so is a difference of shape, whatever `strict`
    says. All RuntimeErrors are those of load_state_dict(), list all problems, and come before the module is changed.
    After an error while data is read, the contents of the module's tensors are undefined. Hooks of load_state_dict()
    are not called. Errors of the file are raised as by load(). TypeError for a module with an extra state that is not a
    tensor. Not thread-safe: nothing else may use the module during the call."""
    torch = _state._torch()
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"load_into: model: expected a torch.nn.Module, got {got(model)}")
    if names is not None and not isinstance(names, str):
        raise TypeError(f"load_into: names: expected the name of a part of the state, got {got(names)}")
    kind = _state.float_name("load_into", dtype, None)
    state = _tensors_of(model)
    prefix = "" if names is None else f"{names}."
    there = {row.name.removeprefix(prefix): row for row in _state.inspect(f) if row.name.startswith(prefix)}
    if names is not None and not there:
        _state.load(f, names=names)  # raises with the nearest name
        raise KeyError(f"load_into: '{f}': {shown(names)} has no tensors below it")
    keys, problems = _compared(state, there, torch)
    if strict and keys.unexpected_keys:
        problems.insert(0, f"Unexpected key(s) in state_dict: {_quoted(keys.unexpected_keys)}. ")
    if strict and keys.missing_keys:
        problems.insert(0, f"Missing key(s) in state_dict: {_quoted(keys.missing_keys)}. ")
    if problems:
        raise RuntimeError(
            "Error(s) in loading state_dict for {}:\n\t{}".format(type(model).__name__, "\n\t".join(problems))
        )
    if kind is not None:
        model.to(getattr(torch, kind))
        state = _tensors_of(model)
    _read(f, prefix, {name: tensor for name, tensor in state.items() if name in there}, there, torch)
    return keys


def _tensors_of(model: Any) -> dict[str, Any]:
    state: dict[str, Any] = dict(model.state_dict())
    for name, value in state.items():
        if not hasattr(value, "untyped_storage"):
            raise TypeError(
                f"load_into: {shown(name)} of the module is a {type(value).__name__}, and only tensors are read in "
                "place; use model.load_state_dict(penstock.load(...))"
            )
        if value.device.type == "meta":
            raise ValueError(
                f"load_into: {shown(name)} is on the meta device and has no memory; give it some: "
                "model.to_empty(device='cpu')"
            )
    return state


def _compared(state: dict[str, Any], there: dict[str, Any], torch: Any) -> tuple[IncompatibleKeys, list[str]]:
    """Names that only one side has, and the problems of the others."""
    read = {_memory(tensor) for name, tensor in state.items() if name in there}
    missing = [name for name, tensor in state.items() if name not in there and _memory(tensor) not in read]
    problems = []
    for name, tensor in state.items():
        if name not in there:
            continue
        row = there[name]
        own = str(tensor.dtype).removeprefix("torch.")
        if tuple(tensor.shape) != row.shape:
            problems.append(
                f"size mismatch for {name}: copying a param with shape {torch.Size(row.shape)} from checkpoint, the "
                f"shape in current model is {tensor.shape}."
            )
        elif row.dtype != own and not {row.dtype, own} <= set(_state.FLOATS):
            problems.append(f"type mismatch for {name}: {row.dtype} in the file, {own} in the current model.")
    return IncompatibleKeys(missing, [name for name in there if name not in state]), problems


def _memory(tensor: Any) -> tuple[Any, ...]:
    """Identifies the memory of a tensor. Tensors without elements are never tied."""
    return (tensor.data_ptr() or id(tensor), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _read(f: Any, prefix: str, targets: dict[str, Any], there: dict[str, Any], torch: Any) -> None:
    straight, other = {}, {}
    for name, tensor in targets.items():
        same = str(tensor.dtype) == f"torch.{there[name].dtype}"
        (straight if same else other)[prefix + name] = tensor
    if straight:
        _state.load(f, names=list(straight), into=straight)
    with torch.no_grad():
        for name, tensor in other.items():
            tensor.copy_(_state.load(f, names=[name])[name])


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
