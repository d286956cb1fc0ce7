# SPDX-License-Identifier: Apache-2.0
"""Tensors that a load fills in place: which tensor of the file each one gets, and whether it can be filled.

A place is the path to a tensor in Python syntax ("['model']['0.weight']"). No two tensors have the same place. A name
is the keys joined by dots. It is shorter, and may stand for several places: {"a": {"b": ..}, "a.b": ..}.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock import _core
from penstock._base import log as _log
from penstock._base.arguments import shown
from penstock._base.arrays import torch_for_states as _torch, torch_or_none
from penstock._base.errors import Unsupported
from penstock._state.per_rank import PerRank
from penstock._state.pickled import Pickled
from penstock._state.slices import FlatSlice, Slice

Unread = _core.Unread

Row = tuple[str, str, Any]  # name, place, tensor


def tensors(obj: Any) -> Iterator[Row]:
    """The tensors of a state, and parts of tensors. A container that occurs twice is visited once. Without torch there
    are none."""
    torch = torch_or_none()
    if torch is not None:
        yield from _of_type((torch.Tensor, Slice, FlatSlice), obj, "", "", set())


def _of_type(kind: Any, obj: Any, name: str, place: str, seen: set[int]) -> Iterator[Row]:
    if isinstance(obj, kind):
        yield name, place, obj
    elif type(obj) is PerRank:
        yield from _of_type(kind, obj.value, name, place, seen)
    elif type(obj) is Unread:
        for own, step, tensor in obj._rows:
            yield from _of_type(kind, tensor, f"{name}.{own}" if name else own, place + step, seen)
    elif isinstance(obj, (dict, list, tuple)) and id(obj) not in seen:
        seen.add(id(obj))
        for key, step, value in _entries(obj):
            own_name = "(...)" if isinstance(key, Pickled) else key
            yield from _of_type(kind, value, f"{name}.{own_name}" if name else str(own_name), place + step, seen)
        own = getattr(obj, "__dict__", None) if type(obj) is OrderedDict else None
        if own:
            yield from _of_type(kind, own, f"{name}.__dict__" if name else "__dict__", f"{place}.__dict__", seen)


def _entries(obj: Any) -> Iterator[tuple[Any, str, Any]]:
    """Key, step of the place, and value of each entry. If several keys have the same repr(), their steps contain id(),
    so that they match nothing in another state."""
    if not isinstance(obj, dict):
        yield from ((i, f"[{i}]", value) for i, value in enumerate(obj))
        return
    steps = [f"[{_written(key)}]" for key in obj]
    if len(set(steps)) < len(steps):
        times = Counter(steps)
        steps = [step if times[step] == 1 else f"{step}@{id(key)}" for key, step in zip(obj, steps, strict=True)]
    for (key, value), step in zip(list(obj.items()), steps, strict=True):
        yield key, step, value


def _written(key: Any) -> str:
    """A key in Python syntax. The repr() of a Pickled is not enough: it has only its type and length."""
    if isinstance(key, Pickled):
        return f"Pickled({key.data!r})"
    if type(key) is tuple:
        return f"({''.join(f'{_written(one)}, ' for one in key)})"
    return repr(key)


def replaced(obj: Any, by: dict[str, Any], done: dict[int, Any], place: str = "") -> Any:
    """The state with other objects at some places. by: the new tensors and arrays, by place. done: results by the id of
    the old object, at first of the tensors; for objects that occur in a second place."""
    if place in by:
        return by[place]
    if id(obj) in done:
        return done[id(obj)]
    if type(obj) is Unread:
        obj._rows[:] = [(own, step, replaced(one, by, done, place + step)) for own, step, one in obj._rows]
    elif isinstance(obj, dict):
        done[id(obj)] = obj
        for key, step, value in _entries(obj):
            obj[key] = replaced(value, by, done, place + step)
        if type(obj) is OrderedDict and obj.__dict__:
            replaced(obj.__dict__, by, done, f"{place}.__dict__")
    elif isinstance(obj, list):
        done[id(obj)] = obj
        obj[:] = [replaced(item, by, done, f"{place}[{i}]") for i, item in enumerate(obj)]
    elif type(obj) is tuple:
        made = tuple(replaced(item, by, done, f"{place}[{i}]") for i, item in enumerate(obj))
        done[id(obj)] = obj = obj if all(a is b for a, b in zip(made, obj, strict=True)) else made
    return obj


def _only(rows: list[Row]) -> dict[str, int]:
    """Names that have only one place, and the numbers of their rows."""
    out: dict[str, int] = {}
    several = set()
    for i, (name, _, _) in enumerate(rows):
        if out.setdefault(name, i) != i:
            several.add(name)
    return {name: i for name, i in out.items() if name not in several}


def labels(rows: list[Row]) -> list[str]:
    """For messages: the name, or the place if the name has several places."""
    only = _only(rows)
    return [name if name in only else f"state{place}" for name, place, _ in rows]


def matched(found: list[Row], into: list[Row]) -> list[int | None]:
    """For each tensor of `into` the number of the matching tensor in the file. By place; or by name if the name has one
    place on both sides, so that a list matches a dict with numbers as keys."""
    places = {place: i for i, (_, place, _) in enumerate(found)}
    theirs, own = _only(found), _only(into)
    return [places.get(place, theirs.get(name) if name in own else None) for name, place, _ in into]


# ---- whether they can be filled


def check_kind(into: Any) -> None:
    torch = torch_or_none()
    kinds = () if torch is None else (torch.Tensor, Slice, FlatSlice)
    if not isinstance(into, (Mapping, list, tuple, *kinds)):
        raise TypeError(
            f"load: into: got {type(into).__name__}; give a state like the one that was saved "
            "(a module's state_dict() is one)"
        )


def number_of(view: Any, numbers: Mapping[int, int], name: str, path: str) -> int:
    """The number of the storage of a tensor of the file."""
    if (number := numbers.get(view.untyped_storage()._cdata)) is None:
        why = "it is loaded whole, by its name or with the state, and not into a tensor or by an index"
        raise Unsupported(f"load: '{path}': {shown(name)} is no dense tensor: {why}", path=path)
    return number


def check_dense(name: str, tensor: Any) -> None:
    torch = _torch()
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_nested:
        raise TypeError(
            f"load: into[{shown(name)}]: got {type(tensor).__name__}; give dense tensors: others are loaded whole, by "
            "their names, and their parts are filled, by the names that inspect() gives"
        )


def check_like(path: str, name: str, tensor: Any, own_shape: Iterable[int], dtype: Any, shape: Iterable[int]) -> None:
    """own_shape: of the tensor, or of that of which it is a part."""
    if tensor.device.type == "meta":
        raise ValueError(
            f"load: into[{shown(name)}] is on the meta device and has no memory; give it some (to_empty())"
        )
    if tensor.dtype != dtype or tuple(own_shape) != tuple(shape):
        raise ValueError(
            f"load: into[{shown(name)}] is {tensor.dtype} of {list(own_shape)}, and in '{path}' it is {dtype} of "
            f"{list(shape)}; nothing was read"
        )


def check_missing(path: str, missing: list[str], lacking: Iterable[str] = ()) -> None:
    """lacking: names that only the file has."""
    if missing:
        hint = _core._match.prefix_hint("load", list(map(str, missing)), sorted(lacking))
        raise KeyError(
            f"load: into: '{path}' has no tensor {shown(missing[0])} ({len(missing)} such); "
            f"{hint + '; ' if hint else ''}nothing was read"
        )


def check_lacking(path: str, lacking: list[str]) -> None:
    if lacking:
        raise KeyError(
            f"load: into has no tensor {shown(min(lacking))}, which is in '{path}' ({len(lacking)} such); name in "
            "`names` what is wanted; nothing was read"
        )


def check_others(path: str, found: list[Row], taken: list[int]) -> None:
    """Names the tensors that `into` lacks next to others that it has: an error for a scale of one of those."""
    called, above = labels(found), {found[i][1].rpartition("[")[0] for i in taken}
    for scale, owner in _core._match.lost_scales(called, [row[2] for row in found], [called[i] for i in taken]):
        raise KeyError(
            f"load: into has no tensor {shown(scale)}, which is in '{path}', and is a scale, zero point or table of "
            f"{shown(owner)}; nothing was read"
        )
    others = [i for i in range(len(found)) if i not in set(taken) and found[i][1].rpartition("[")[0] in above]
    if others:
        names = ", ".join(called[i] for i in others[:5]) + (", ..." if len(others) > 5 else "")
        _log.warn(f"load: into has no tensor {names}, which is in '{path}'; only the result of the load has it")


# ---- NumPy's arrays, whose data is in the structure of the file


def arrays(found: Any, path: str, into: Any) -> list[tuple[str, Any, Any]]:
    """(place, target, source) of each array of `into`. found: the state of the file, without the data of tensors."""
    numpy = sys.modules.get("numpy")  # without the import there are no arrays
    if numpy is None:
        return []
    own = list(_of_type(numpy.ndarray, into, "", "", set()))
    theirs = {place: array for _, place, array in _of_type(numpy.ndarray, found if own else None, "", "", set())}
    out = []
    for name, place, target in own:
        if place not in theirs:
            raise KeyError(f"load: into: '{path}' has no NumPy array {shown(name)}; nothing was read")
        source = theirs[place]
        if (target.dtype, target.shape) != (source.dtype, source.shape):
            raise ValueError(
                f"load: into[{shown(name)}] is {target.dtype} of {list(target.shape)}, and in '{path}' it is "
                f"{source.dtype} of {list(source.shape)}; nothing was read"
            )
        if not target.flags.writeable:
            raise ValueError(
                f"load: into[{shown(name)}] is a read-only array; give one that can be filled; nothing was read"
            )
        out.append((place, target, source))
    return out


def filled(state: Any, rows: list[tuple[str, Any, Any]], by: dict[str, Any], done: dict[int, Any]) -> Any:
    """Fills the arrays of arrays() and puts them into the state, with the other objects in `by` and `done`."""
    for place, target, source in rows:
        target[...] = source
        by[place] = target
    return replaced(state, by, done) if by or done else state


# ---- memory that is filled


def touched(filled: Iterable[Any]) -> None:
    """Reports to autograd that tensors were written, as an in-place operation does. A backward pass that saved one of
    them then gets an error instead of a wrong gradient."""
    bump = _torch().autograd.graph.increment_version
    for tensor in filled:
        if not tensor.is_inference():
            bump(tensor)


def memory_at(address: int, size: int, keep: Any) -> memoryview:
    memory = (ctypes.c_ubyte * size).from_address(address)
    memory.keep = keep  # type: ignore[attr-defined]
    return memoryview(memory)
