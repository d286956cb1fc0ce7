# SPDX-License-Identifier: Apache-2.0
"""load_into(): reads the tensors of a file directly into a torch module, with the result of load_state_dict()."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import _core
from penstock._base import arguments as _arguments, log as _log
from penstock._base.arguments import got, shown
from penstock._base.arrays import torch_for_states as _torch
from penstock._base.errors import Unsupported
from penstock._state import into as _into, load as _load
from penstock._state.load_call import TensorInfo, inspect, load
from penstock._state.rows import FLOATS, float_name

if TYPE_CHECKING:
    import torch

    from penstock._base.types import Dtype, Path, Readable

_match = _core._match


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
    dtype: the module's float64, float32, float16 and bfloat16 become this type before anything is read; None: they
        stay.

    A tensor of float64, float32, float16 or bfloat16 is converted to the type of the module's tensor, through a copy of
    that one tensor. Any other difference of type is a RuntimeError, whatever `strict` says. So are a difference of
    shape, and a scale, zero point or table of a quantized tensor that is read, if the module does not take it. All
    RuntimeErrors are those of load_state_dict(), list all problems, and come before the module is changed. After an
    error while data is read, the contents of the module's tensors are undefined.
    Of names of the module that share memory, the last one counts, with a RuntimeWarning if the file has other values.

    If a module has code of its own for load_state_dict() or state_dict() (hooks, `_load_from_state_dict`, an extra
    state, lazy parameters; a BatchNorm with other names in the file than in the module), the whole state is loaded and
    given to load_state_dict(). That takes a second copy of all tensors, and errors are those of load_state_dict().

    Errors of the file are raised as by load(). Not thread-safe: nothing else may use the module during the call."""
    torch = _torch()
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"load_into: model: expected a torch.nn.Module, got {got(model)}")
    if names is not None and not isinstance(names, str):
        raise TypeError(f"load_into: names: expected the name of a part of the state, got {got(names)}")
    kind = float_name("load_into", dtype, None)
    _check_memory(model)
    under, file = "" if names is None else f"{names}.", _from_its_place(f)
    rows = [row for row in inspect(file()) if row.name.startswith(under)]
    rows += other_scales(file(), under, rows)
    if names is not None and not rows:
        load(file(), names=names)  # raises with the nearest name
        raise KeyError(f"load_into: '{f}': {shown(names)} has no tensors below it")
    if _has_own_loading(model, [row.name.removeprefix(under) for row in rows], torch):
        _cast(model, kind, torch)
        return _by_torch(model, load(file(), names=names, unread="keep"), strict, rows, under)
    given = [row.name for row in rows]
    *keys, problems, hint = _match.compared(dict(model.state_dict()), given, rows, names or "", strict)
    if problems:
        raise _refusal(model, problems)
    _cast(model, kind, torch)
    there = dict(zip(given, rows, strict=True))
    own = [(under + name, one) for name, one in model.state_dict().items()]
    targets = {name: (one, there[name]) for name, one in own if name in there}
    if hint and not targets:
        _log.warn(f"load_into: nothing was read: {hint}")
    _read(file, targets, torch)
    return IncompatibleKeys(*keys)


def other_scales(f: Any, under: str, rows: list[Any]) -> list[Any]:
    """Scales of these tensors that a .pt has as numbers, or as objects that are not read: inspect() lists tensors."""
    with _load.opened(f, "load_into") as source, contextlib.suppress(Unsupported):
        state = _load.without_data(source)[0] if source.kind == "pt" else None
        found = _into._of_type((int, float, _core.Unread), state, "", "", set())
        numbers = [TensorInfo(name, type(one).__name__, (), 0, 0) for name, _, one in found]
        every = [*rows, *(one for one in numbers if one.name.startswith(under))]
        lost = dict(_match.lost_scales([row.name for row in every], every, [row.name for row in rows]))
        return [row for row in every[len(rows) :] if row.name in lost]
    return []


def _refusal(model: Any, problems: list[str]) -> RuntimeError:
    joined = "\n\t".join(problems)
    return RuntimeError(f"Error(s) in loading state_dict for {type(model).__name__}:\n\t{joined}")


def _cast(model: Any, kind: str | None, torch: Any) -> None:
    """model.to(dtype), but for what is not converted: complex numbers and types of 8 bits."""
    if kind is not None:
        model._apply(lambda one: one.to(getattr(torch, kind)) if str(one.dtype)[6:] in FLOATS else one)


def _check_memory(model: Any) -> None:
    state = model.state_dict()
    buffers = [name for name, one in model.named_buffers() if one.is_meta and name not in state]
    advice = (
        f"make the model outside torch.device('meta'): no file has the values of its buffer {shown(buffers[0])}"
        if buffers
        else "give it some: model.to_empty(device='cpu')"
    )
    for name in buffers + [name for name, value in state.items() if getattr(value, "is_meta", False)]:
        raise ValueError(f"load_into: {shown(name)} is on the meta device and has no memory; {advice}")


_HOOKS = ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_state_dict_hooks", "_state_dict_pre_hooks")
_METHODS = ("_save_to_state_dict", "get_extra_state", "set_extra_state", "state_dict")


def _has_own_loading(model: Any, there: list[str], torch: Any) -> bool:
    """Whether a module may get other values from load_state_dict() than those of the file under its names."""
    plain, norms = torch.nn.Module, torch.nn.modules.batchnorm._NormBase
    if type(model).load_state_dict is not plain.load_state_dict:
        return True
    below: dict[str, set[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        kind = type(module)
        if any(getattr(module, hooks, None) for hooks in _HOOKS) or "_load_from_state_dict" in vars(module):
            return True
        if any(getattr(kind, method) is not getattr(plain, method) for method in _METHODS):
            return True
        if kind._load_from_state_dict is plain._load_from_state_dict:
            continue
        if not isinstance(module, norms) or not kind._load_from_state_dict.__module__.startswith("torch.nn."):
            return True
        if not below:
            for name in there:
                below.setdefault(name.rpartition(".")[0], set()).add(name.rpartition(".")[2])
        own = {name for name, one in (module._parameters | module._buffers).items() if one is not None}
        if below.get(path, set()) != own:  # of old files, whose names these modules change
            return True
    return False


def _by_torch(model: Any, state: Any, strict: bool, rows: list[Any], under: str) -> IncompatibleKeys:
    torch = _torch()

    class Copies(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        """Refuses to convert types that are converted nowhere else."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.Tensor.copy_ and len(args) > 1:
                own, given = (str(getattr(one, "dtype", "")).removeprefix("torch.") for one in args[:2])
                if not _match.is_converted(given, own) and args[1].untyped_storage()._cdata in known:
                    raise RuntimeError(f"type mismatch: {given} in the file, {own} in the current model.")
            return function(*args, **(kwargs or {}))

    known = {one.untyped_storage()._cdata for one in state.values() if isinstance(one, torch.Tensor)}
    with Copies():
        result = model.load_state_dict(state, strict=strict)
    keys = IncompatibleKeys(*(list(getattr(result, name, ())) for name in IncompatibleKeys._fields))
    names, unused = [row.name for row in rows], {under + name for name in keys.unexpected_keys}
    lost = _match.lost_scales(names, rows, [name for name in names if name not in unused])
    if lost:
        raise _refusal(model, [f"{one} is a scale, zero point or table of {of}, and is not taken." for one, of in lost])
    return keys


def _from_its_place(f: Any) -> Callable[[], Any]:
    """A function that returns the file. If it is a file object, each call begins where this one does."""
    if not hasattr(f, "read"):
        return lambda: f
    again = f if getattr(f, "seekable", bool)() else io.BytesIO(f.read())
    begin = again.tell()

    def file() -> Any:
        again.seek(begin)
        return again

    return file


def _read(file: Callable[[], Any], targets: dict[str, Any], torch: Any) -> None:
    """targets: {name in the file: (tensor to fill, row of the file)}, in the order of the module."""
    own = {name: one for name, (one, _) in targets.items()}
    straight = {
        name: one
        for name, (one, row) in targets.items()
        if (str(one.dtype), tuple(one.shape)) == (f"torch.{row.dtype}", row.shape)
    }
    sharing = [list(own)[i] for i in _match.sharing(list(own.values()))]
    if sharing and set(sharing) <= straight.keys():
        with contextlib.suppress(ValueError):  # they share no memory in the file
            load(file(), names=list(straight), into=straight)
            straight, sharing, own = {}, [], {name: one for name, one in own.items() if name not in straight}
    alone = {name: one for name, one in straight.items() if name not in sharing}
    if alone:
        load(file(), names=list(alone), into=alone)
    for name in [name for name in own if name not in alone]:
        if name in straight:
            load(file(), names=[name], into={name: own[name]})
        else:
            with torch.no_grad():
                own[name].copy_(_loaded(file(), name, own[name]))
    lost = [name for name in sharing if not _has(own[name], _loaded(file(), name, own[name]), torch)]
    if lost:
        _log.warn(
            f"load_into: {', '.join(lost)} share memory with other names of the model, for which the file has other "
            "values: the last name counts, as in load_state_dict()"
        )


def _loaded(f: Any, name: str, like: Any) -> Any:
    return load(f, names=[name])[name].reshape(like.shape).to(like.dtype)


def _has(tensor: Any, values: Any, torch: Any) -> bool:
    """Whether the bits are the same."""
    one, other = (each.detach().cpu().reshape(-1).view(torch.uint8) for each in (tensor, values))
    return bool(torch.equal(one, other))
