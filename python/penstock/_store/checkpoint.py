# SPDX-License-Identifier: Apache-2.0
"""Checkpoint: one checkpoint, opened for reading. The compiled part has the bytes and their checksums. This module has
torch, NumPy and indices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from penstock import _core
from penstock._base import arguments as _arguments, modes as _modes
from penstock._base.arrays import torch_or_none
from penstock._base.devices import placing
from penstock._base.errors import Unsupported
from penstock._base.progress import Progress, reporter
from penstock._state import load as _load
from penstock._state.boxes import box
from penstock._state.per_rank import as_list, has_per_rank
from penstock._state.rows import TORCH, float_name

if TYPE_CHECKING:
    import torch

    from penstock._base.types import Cache, Device, Dtype, Index, Into, MapLocation, Names


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
        begin, end, after = box(index, self.shape, f"{self.name}: ")
        made = _new_array([e - b for b, e in zip(begin, end, strict=True)], self.dtype, self.name)
        if made.nbytes:
            self._core.read(self.name, made, begin, end)
        return made[after] if after else made


def _new_array(shape: Sequence[int], dtype: str, name: str) -> Any:
    torch = torch_or_none()
    if torch is not None:
        if not hasattr(torch, dtype):
            raise Unsupported(f"{name}: torch {torch.__version__} has no {dtype}")
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype))
    return _core.empty(tuple(shape), dtype=dtype, pinned=False).numpy()


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
        per_rank: Literal["own", "list"] = "own",
    ) -> Into: ...
    @overload
    def load(
        self, map_location: MapLocation | None = None, *, into: None = None,
        names: Mapping[str, Index | None], device: Device | None = None, dtype: Dtype | None = None,
        pickle: bool = False, progress: Progress = False,
        per_rank: Literal["own", "list"] = "own",
    ) -> dict[str, torch.Tensor]: ...
    @overload
    def load(
        self, map_location: MapLocation | None = None, *, into: None = None,
        names: str, device: Device | None = None, dtype: Dtype | None = None,
        pickle: bool = False, progress: Progress = False,
        per_rank: Literal["own", "list"] = "own",
    ) -> Any: ...
    @overload
    def load(
        self, map_location: MapLocation | None = None, *, into: None = None,
        names: Names | None = None, device: Device | None = None, dtype: Dtype | None = None,
        pickle: bool = False, progress: Progress = False,
        per_rank: Literal["own", "list"] = "own",
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
        per_rank: Literal["own", "list"] = "own",
    ) -> Any:
        """Loads the state as it was saved; every chunk is checked. See CheckpointStore.load()."""
        return self._load((map_location, into, names, device, dtype, pickle, progress, per_rank))

    def _load(self, how: tuple[Any, ...], of: Any = ()) -> Any:
        """how: the arguments of load(). of: (ready, moved), of a load by several ranks. ready() returns when all can
        load it. moved(done, total) shows them that this one goes on."""
        map_location, into, names, device, dtype, pickle, progress, per_rank = how
        pickle = bool(_arguments.flag("load", "pickle", pickle))
        report = reporter(progress, "load")
        map_location = placing("load", map_location, device, into)
        dtype = float_name("load", dtype, into)
        names = names if names is None else _arguments.texts("load", "names", names)
        source = self._core.source(*_load.asked_for(names), as_list(per_rank))
        if into is not None and names is not None and not source.is_part:
            raise ValueError("load: into: names: expected the name of a part of the state, got those of tensors")
        self._check_per_rank(source, into, names)
        if not of:
            return _load.load_from(source, map_location, into, names, False, dtype, pickle, report)

        ready, moved = of

        def shown(done: int, total: int) -> None:
            moved(done, total)
            if report is not None:
                report(done, total)

        return _load.load_from(source, map_location, into, names, False, dtype, pickle, shown, ready)

    def _check_per_rank(self, source: Any, into: Any, names: Any) -> None:
        """What each rank has for itself is left in the source where other numbers of ranks saved and load."""
        place = source.per_rank_place
        if place is None:
            return
        if into is not None and not has_per_rank(into):
            source.drop_per_rank()
        elif into is not None or names is None or source.is_part:
            raise ValueError(
                f"load: {place} is what each rank has for itself: {self.info.ranks} saved, and "
                f"{self._core.ranks} load; per_rank='list' gives a list of what they had, "
                "and names= or into= loads the rest"
            )
