# SPDX-License-Identifier: Apache-2.0
"""Checkpoint: one checkpoint, opened for reading. The compiled part has the bytes and their checksums. This module has
torch, NumPy and indices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from penstock import _core
from penstock._base import arguments as _arguments, modes as _modes
from penstock._base.arrays import torch_for_states as _torch, torch_or_none
from penstock._base.devices import gpus_of, placing, relocated
from penstock._base.errors import Unsupported
from penstock._base.progress import Progress, reporter
from penstock._state import into as _into, load as _load, pickled as _pickled
from penstock._state.rows import TORCH, float_name

if TYPE_CHECKING:
    import torch

    from penstock._base.types import Cache, Device, Dtype, Index, Into, MapLocation, Names

# Name, memory, begin and end of the wanted box (None: all), strides of the memory in bytes or None.
_ReadRow = tuple[str, Any, Any, Any, Any]


def _read(core: Any, rows: list[_ReadRow], progress: Any = None) -> int:
    read: int = core.read([row for row in rows if isinstance(row[1], tuple) or row[1].nbytes], True, progress)
    return read


class CheckpointTensor:
    """A tensor of a checkpoint. It is read only when it is indexed:

        checkpoint["layer.0.weight"][10:20]     # reads these rows, and at most one chunk (256 KiB) at each end
        checkpoint["layer.0.weight"][...]       # reads all of it

    The result is a torch tensor if torch is installed, else a NumPy array, in its own memory. Indices are integers,
    slices and `...`. A slice of another dimension than the first also reads the bytes between its elements."""

    def __init__(self, core: Any, row: tuple[str, str, list[int], int, int]) -> None:
        self._core = core  # not the Checkpoint, which refers to this tensor: files must close with their last user
        self.name, self._type, shape, self.nbytes, self.changed_generation = row
        self.shape = tuple(shape)
        self.dtype: str = TORCH.get(self._type, self._type)

    def __repr__(self) -> str:
        return f"<penstock.CheckpointTensor {self.name!r} {self.dtype} {self.shape}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    @_modes.plain
    def __getitem__(self, index: Index) -> torch.Tensor:
        made, row, after = self._plan(index)
        _read(self._core, [row])
        return made[after] if after else made

    def _plan(self, index: Any) -> tuple[Any, _ReadRow, tuple[Any, ...]]:
        """Memory for the result, the row to read, and the index to apply to the result."""
        begin, end, after = self._box(index if isinstance(index, tuple) else (index,))
        made = _new_array([e - b for b, e in zip(begin, end, strict=True)], self.dtype, self.name)
        return made, (self.name, made, begin, end, None), after

    def _box(self, index: tuple[Any, ...]) -> tuple[list[int], list[int], tuple[Any, ...]]:
        """The smallest box that contains the index (begin, end), and the index to apply to the box."""
        index = self._spread(index)
        begin, end, after = [], [], []
        for dimension, (extent, wanted) in enumerate(zip(self.shape, index, strict=True)):
            if isinstance(wanted, slice):
                first, last, step = wanted.indices(extent)
                if step < 1:
                    raise ValueError(f"{self.name}: dimension {dimension}: expected a step of 1 or more, got {step}")
                begin.append(min(first, max(first, last)))
                end.append(max(first, last))
                after.append(slice(None, None, step))
                continue
            try:
                place = wanted.__index__()
            except AttributeError:
                came = _arguments.got(wanted)
                raise TypeError(
                    f"{self.name}: dimension {dimension}: expected an integer, a slice or ..., got {came}"
                ) from None
            if not -extent <= place < extent:
                raise IndexError(f"{self.name}: dimension {dimension}: expected {-extent} to {extent - 1}, got {place}")
            begin.append(place % extent)
            end.append(place % extent + 1)
            after.append(0)
        return begin, end, tuple(after)

    def _spread(self, index: tuple[Any, ...]) -> tuple[Any, ...]:
        dots = [i for i, wanted in enumerate(index) if wanted is Ellipsis]
        if len(dots) > 1:
            raise IndexError(f"{self.name}: more than one '...'")
        missing = len(self.shape) - (len(index) - len(dots))
        if missing < 0:
            raise IndexError(f"{self.name}: {len(index) - len(dots)} indices, and it has {len(self.shape)} dimensions")
        at = dots[0] if dots else len(index)
        return (*index[:at], *[slice(None)] * missing, *index[at + 1 :])


def _new_array(shape: Sequence[int], dtype: str, name: str) -> Any:
    torch = torch_or_none()
    if torch is not None:
        if not hasattr(torch, dtype):
            raise Unsupported(f"{name}: torch {torch.__version__} has no {dtype}")
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype))
    return _core.empty(tuple(shape), dtype=dtype, pinned=False).numpy()


def _fresh(sizes: list[int]) -> list[Any]:
    """Storages of these sizes, in huge pages. Large ones begin at a page, as in their files."""
    stretches, at = [], 0
    for size in sizes:
        align = 4096 if size >= 4096 else 64
        at = -(-at // align) * align
        stretches.append((at, size))
        at += size
    memory = _core._format.FreshMemory(stretches)
    return [_load.storage_over(*memory.part(i), size) for i, size in enumerate(sizes)]


@dataclass(frozen=True)
class CheckpointProblem:
    """A problem found by verify(). path: the file. tensor: its name, or "". offset: bytes into the file, or None."""

    path: str
    tensor: str
    offset: int | None
    message: str


class Checkpoint(Mapping[str, CheckpointTensor]):
    """One checkpoint, opened for reading: a mapping of names to CheckpointTensors. It stays readable if a store deletes
    it meanwhile. Safe to use from several threads.

    Its files are open until close(), until the end of a `with` block, or until the last reference to it and its
    CheckpointTensors is gone. Results of load() and indexing have their own memory.

    path: its folder; a store is not needed. cache: as in penstock.load(). Raises penstock.Damaged for an invalid
    manifest."""

    @_arguments.named
    def __init__(self, path: str | os.PathLike[str], *, cache: Cache = "auto") -> None:
        self._take(_core._checkpoint.Checkpoint(os.fsdecode(path), cache))

    @classmethod
    def _of(cls, opened: Any) -> Checkpoint:
        made = cls.__new__(cls)
        made._take(opened)
        return made

    def _take(self, opened: Any) -> None:
        self._core = opened
        self._tensors = {row[0]: CheckpointTensor(opened, row) for row in opened.tensors()}

    def __repr__(self) -> str:
        return f"<penstock.Checkpoint of {self.info.path!r}, {len(self)} tensors>"

    @property
    def info(self) -> _core.CheckpointInfo:
        return self._core.info

    @property
    def metadata(self) -> dict[str, str | float | bool | None]:
        return self.info.metadata

    def __getitem__(self, name: str) -> CheckpointTensor:
        try:
            return self._tensors[name]
        except KeyError:
            lacking = _core._format.lacking(name, list(self._tensors))
            raise KeyError(f"'{self.info.path}' has {lacking}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _penstock_save(self, path: str, rows: list[tuple[str, str]], shard_bytes: int, report: Any, sync: bool) -> None:
        """penstock.save() of it."""
        self._core.save(path, rows, shard_bytes, report, sync)

    def close(self) -> None:
        """Closes its files. Calls that need them (load(), verify(), indexing a tensor) then raise ValueError; names,
        shapes, info and metadata stay available. May be called again."""
        self._core.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @_arguments.named
    def verify(self, progress: Progress = False) -> list[CheckpointProblem]:
        """Reads everything from the device, not from the page cache, and checks all checksums. Returns problems."""
        return [CheckpointProblem(*row) for row in self._core.verify(reporter(progress, "verify"))]

    # fmt: off
    @overload
    def load(
        self, map_location: None = None, *, into: Into,
        names: Iterable[str] | None = None, device: Device | None = None, dtype: None = None,
        pickle: bool = False, progress: Progress = False,
    ) -> Into: ...
    @overload
    def load(
        self, map_location: MapLocation | None = None, *, into: None = None,
        names: Mapping[str, Index | None], device: Device | None = None, dtype: Dtype | None = None,
        pickle: bool = False, progress: Progress = False,
    ) -> dict[str, torch.Tensor]: ...
    @overload
    def load(
        self, map_location: MapLocation | None = None, *, into: None = None,
        names: str, device: Device | None = None, dtype: Dtype | None = None,
        pickle: bool = False, progress: Progress = False,
    ) -> Any: ...
    @overload
    def load(
        self, map_location: MapLocation | None = None, *, into: None = None,
        names: Names | None = None, device: Device | None = None, dtype: Dtype | None = None,
        pickle: bool = False, progress: Progress = False,
    ) -> dict[str, Any]: ...
    # fmt: on

    @_arguments.named
    def load(
        self,
        map_location: Any = None,
        *,
        into: Any = None,
        names: str | Iterable[str] | Mapping[str, Any] | None = None,
        device: Any = None,
        dtype: Any = None,
        pickle: bool = False,
        progress: Progress = False,
    ) -> Any:
        """Loads the state as it was saved; every chunk is checked. See CheckpointStore.load()."""
        pickle = bool(_arguments.flag("load", "pickle", pickle))
        report = reporter(progress, "load")
        map_location = placing("load", map_location, device, into)
        dtype = float_name("load", dtype, into)
        skeleton = self._core.skeleton()
        if names is not None:
            names = _arguments.texts("load", "names", names)
            asked, one = ([names], True) if isinstance(names, str) else (list(names), False)
            part = None if isinstance(names, Mapping) else skeleton.part(asked, one, self.info.path)
            if part is None or one and names in self._tensors:  # part() has refused a name of several values
                if into is not None:
                    raise ValueError(
                        "load: into: names: expected the name of a part of the state, got those of tensors"
                    )
                found = self._load_names(names, map_location, dtype, report)
                return found.get(names, found) if isinstance(names, str) else found
            skeleton = part
        made = self._made_of(skeleton, map_location, into, dtype, pickle, report)
        if not pickle:
            _pickled.warn(skeleton, self.info.path)
        return made

    def _made_of(
        self, skeleton: Any, map_location: Any, into: Any, dtype: str | None, pickle: bool, report: Any
    ) -> Any:
        kinds = None if dtype is None else skeleton.set_types(dtype)
        sources = skeleton.sources
        # A state with only NumPy data needs no torch.
        if into is not None and (sources or torch_or_none()):
            return self._fill(skeleton, into, pickle, report)
        arrays = [] if into is None else _into.arrays(self._without_data(skeleton, pickle)[0], self.info.path, into)
        if not sources:
            return _into.filled(skeleton.objects([], pickle, self.info.path), arrays, {}, {})
        devices = gpus_of((location for _, _, location in sources), map_location, self.info.path)
        storages = self._storages(skeleton, [], report, devices=devices)
        made = _load.storages_as(kinds or [None] * len(sources), storages, dtype)
        located = [
            relocated(storage, location, map_location, self.info.path)
            for storage, (_, _, location) in zip(made, sources, strict=True)
        ]
        return skeleton.objects(located, pickle, self.info.path)

    def _storages(
        self,
        skeleton: Any,
        rows: list[_ReadRow],
        report: Any,
        there: Mapping[int, Any] = {},
        devices: Sequence[Any] = (),
    ) -> list[Any]:
        """The storages of the state, in new memory except those in `there`. rows: other reads to do in the same call.
        devices: the GPU for each storage, or None; empty if all go to the host."""
        sources = skeleton.sources
        torch = _torch()
        on_gpus = {
            i: torch.empty(sources[i][1], dtype=torch.uint8, device=device)
            for i, device in enumerate(devices)
            if device is not None
        }
        fresh = _fresh([0 if i in there or i in on_gpus else size for i, (_, size, _) in enumerate(sources)])
        storages = []
        for i, (name, _, _) in enumerate(sources):
            if i in on_gpus:
                storages.append(on_gpus[i].untyped_storage())
                rows.append((name, on_gpus[i], None, None, None))
                continue
            storages.append(there[i] if i in there else fresh[i])
            if i not in there:
                rows.append((name, torch.empty(0, dtype=torch.uint8).set_(storages[i]), None, None, None))
        _read(self._core, rows, report)
        return storages

    def _fill(self, skeleton: Any, into: Any, pickle: bool, report: Any) -> Any:
        """load() into existing tensors: only their elements are written."""
        state, numbers = self._without_data(skeleton, pickle)
        stored = {name: (tensor.dtype, tensor.shape) for name, tensor in self._tensors.items()}
        plan = _into.Plan(into, self.info.path, skeleton, state, numbers, stored)
        arrays = _into.arrays(state, self.info.path, into)
        try:
            storages = self._storages(skeleton, plan.rows, report, plan.there)
        finally:
            _into.touched(plan.filled)
        state = skeleton.objects(storages, pickle, self.info.path)
        by_place, done = plan.finish(state)
        return _into.filled(state, arrays, by_place, done)

    def _load_names(self, names: Any, map_location: Any, dtype: str | None, report: Any) -> dict[str, Any]:
        """Loads tensors by their names in the state, or by names that only the shards have. For a strided tensor the
        whole storage is read."""
        skeleton, found = self._views()
        asked = [names] if isinstance(names, str) else list(names)
        there = {name for name, _, _ in found}
        found += [(name, f"[{name!r}]", None) for name in asked if name in self._tensors and name not in there]
        out, rows, after, views = {}, [], {}, {}
        for i, index in _load.chosen(found, names, self.info.path).items():
            name, _, view = found[i]
            stored = name if view is None else self._stored_as(skeleton, view)
            if stored is not None:
                out[name], row, after[name] = self[stored]._plan(... if index is None else index)
            else:
                source, size, _ = skeleton.sources[_into.number_of(view, skeleton.numbers, "a tensor", self.info.path)]
                views[name] = _load.sliced(view, index, name)
                out[name] = _new_array([size], "uint8", name)
                row = (source, out[name], None, None, None)
            rows.append(row)
        _read(self._core, rows, report)
        for name, made in out.items():
            if name in views:
                out[name] = _load.view_of(made.untyped_storage(), views[name]).clone()
            elif after[name]:
                out[name] = made[after[name]]
            if dtype is not None:
                out[name] = _load.converted(out[name], dtype)
        for name, tensor in out.items() if map_location is not None else ():
            storage = relocated(tensor.untyped_storage(), "cpu", map_location, self.info.path)
            out[name] = _load.view_of(storage, tensor)
        saved = {name: view for name, _, view in found if view is not None}
        return {name: _load.as_saved(tensor, saved[name]) if name in saved else tensor for name, tensor in out.items()}

    def _views(self) -> tuple[_Skeleton, list[_into.Row]]:
        """The tensors of the state, without their data."""
        skeleton = self._core.skeleton()
        if not skeleton.sources:
            return _Skeleton([], {}), []
        state, numbers = self._without_data(skeleton)
        return _Skeleton(skeleton.sources, numbers), list(_into.tensors(state))

    def _without_data(self, skeleton: Any, pickle: bool = False) -> tuple[Any, dict[int, int]]:
        return _load.without_data(skeleton, (size for _, size, _ in skeleton.sources), self.info.path, pickle)

    def _stored_as(self, skeleton: _Skeleton, view: Any) -> str | None:
        """The name of the tensor of a shard that equals this one, if there is one."""
        name, size, _ = skeleton.sources[_into.number_of(view, skeleton.numbers, "a tensor", self.info.path)]
        stored = self._tensors.get(name)
        is_all = view.is_contiguous() and view.nbytes == size and not view.is_conj() and not view.is_neg()
        alike = stored is not None and (f"torch.{stored.dtype}", stored.shape) == (str(view.dtype), tuple(view.shape))
        return name if is_all and alike else None


@dataclass(frozen=True)
class _Skeleton:
    """sources: name in the shards, bytes and device of each storage. numbers: the numbers of the state's storages."""

    sources: list[tuple[str, int, str]]
    numbers: dict[int, int]
