# SPDX-License-Identifier: Apache-2.0
"""torch's StorageWriter and StorageReader over checkpoints of Penstock, for planners of a program's own.

A planner decides which rank writes which box of a tensor. Boxes are slices of our store. What has no box (a value, a
tensor without dimensions) is on one rank, and goes to all of them through the mailbox of the ranks before the save.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle as _pickle
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, SavePlan, WriteItemType
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.storage import (
    StorageReader as TorchReader,
    StorageWriter as TorchWriter,
    WriteResult,
)
from torch.futures import Future

from penstock._base.arguments import shown
from penstock._state import load as _load
from penstock._state.slices import Slice
from penstock._store.checkpoint import Checkpoint
from penstock._store.ranks import Ranks
from penstock.dcp import _hand_over, _saves, _states

_GATHER_S = 300.0
_exchanges = itertools.count()


def _done(result: Any) -> Any:
    future: Any = Future()
    future.set_result(result)
    return future


class StorageWriter(TorchWriter, BlockingAsyncStager):
    """Writes a checkpoint of Penstock at a path, for torch.distributed.checkpoint.save(storage_writer=).

    path: None: that of checkpoint_id. process_group: the group of the save; None: the default one.

    Other arguments of torch's FileSystemWriter have no meaning here."""

    def __init__(self, path: str | os.PathLike[str] | None = None, *, process_group: Any = None) -> None:
        BlockingAsyncStager.__init__(self)
        self._path = path
        self._group = process_group
        self._count = 1

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        if not self._path:
            raise ValueError("StorageWriter: no path was given; give it one, or checkpoint_id= to the save")
        return self._path

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._path = checkpoint_id or self._path

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        for plan in plans:  # a plan that was cached has it from before
            object.__setattr__(plan, "storage_data", len(plans))
        return plans

    def write_data(self, plan: SavePlan, planner: Any) -> Any:
        self._count = plan.storage_data or self._count
        ranks = None if self._count == 1 else _saves.ranks_of(self._group, False)
        if (1 if ranks is None else ranks.count) != self._count:
            raise ValueError(
                f"StorageWriter: the save is of {self._count} ranks, and its process group has "
                f"{1 if ranks is None else ranks.count}; give StorageWriter(process_group=) that of the save"
            )
        store = _saves.PathStore(_saves.real_path(self.checkpoint_id), ranks)
        with store.refusing():
            own = _Own(plan, planner)
            state = own.whole() if ranks is None else own.among(ranks)
        _saves.save(store, state, None, {_states.BLOBS: True})
        return _done([WriteResult(index=item.index, size_in_bytes=0, storage_data=None) for item in plan.items])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.storage_data = {}

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _hand_over.is_local(checkpoint_id)


class _Own:
    """What one rank writes by its plan."""

    def __init__(self, plan: SavePlan, planner: Any) -> None:
        self.small: dict[str, Any] = {}  # values as pickles of torch.save(), and tensors without dimensions
        self.boxes: dict[str, Slice] = {}
        self.places: dict[str, Any] = dict(plan.planner_data or {})
        for item in plan.items:
            name, data = item.index.fqn, planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                self.small[name] = data.getvalue()
                continue
            whole = item.tensor_data
            if not whole.size:
                self.small[name] = data.detach()
                continue
            if name in self.boxes:
                raise ValueError(
                    f"StorageWriter: {shown(name)}: the planner gives this rank several parts of it, and one can be "
                    "saved; make one of them"
                )
            self.boxes[name] = Slice(data.detach(), tuple(whole.size), tuple(whole.chunk.offsets))

    def _nested(self, flat: dict[str, Any]) -> dict[str, Any]:
        return unflatten_state_dict(flat, {name: self.places.get(name, (name,)) for name in flat})

    def whole(self) -> dict[str, Any]:
        return self._nested({**self.boxes, **self.small})

    def among(self, ranks: Ranks) -> dict[str, Any]:
        """The state of this rank among those of all: they have the same keys, and small ones are on each of them."""
        tensors = {name: (box.tensor.dtype, box.shape) for name, box in self.boxes.items()}
        small = {name: one.cpu() if isinstance(one, torch.Tensor) else one for name, one in self.small.items()}
        flat: dict[str, Any] = {}
        for others, values, places in _gathered(ranks, (tensors, small, self.places)):
            self.places = {**places, **self.places}
            for name, (dtype, shape) in others.items():
                nothing = (0,) * len(shape)
                flat.setdefault(name, Slice(torch.empty(nothing, dtype=dtype), shape, nothing))
            flat.update(values)
        return self._nested({name: self.boxes.get(name, flat[name]) for name in sorted(flat)})


def _gathered(ranks: Ranks, own: Any) -> list[Any]:
    """What each rank gave, through their mailbox."""
    box, number, key = ranks._mailbox, ranks.number, f"dcp/{next(_exchanges)}"
    everyone = range(ranks.count)
    if number == 0:
        parts = [own, *(_pickle.loads(_get(box, f"{key}/from/{rank}", rank)) for rank in everyone[1:])]
        text = _pickle.dumps(parts)
        for rank in everyone[1:]:
            box.erase(f"{key}/from/{rank}")
            box.put(f"{key}/to/{rank}", text)
        return parts
    box.put(f"{key}/from/{number}", _pickle.dumps(own))
    parts = _pickle.loads(_get(box, f"{key}/to/{number}", 0))
    box.erase(f"{key}/to/{number}")
    return parts


def _get(box: Any, key: str, rank: int) -> bytes:
    found = box.get(key, _GATHER_S)
    if found is None:
        raise TimeoutError(f"StorageWriter: rank {rank} did not say in {_GATHER_S:.0f} s what it saves")
    return found


class StorageReader(TorchReader):
    """Reads a checkpoint of Penstock at a path, for torch.distributed.checkpoint.load(storage_reader=). A checkpoint of
    torch's own is read by torch's FileSystemReader.

    path: None: that of checkpoint_id. pickle: lets a planner make objects from pickles, which can run any code; else
    pickles of plain values alone are given to it."""

    def __init__(self, path: str | os.PathLike[str] | None = None, *, pickle: bool = False) -> None:
        super().__init__()
        self._path = path
        self.pickle = pickle
        self._torch: Any = None

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        if not self._path:
            raise ValueError("StorageReader: no path was given; give it one, or checkpoint_id= to the load")
        return self._path

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._path = checkpoint_id or self._path

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = self.checkpoint_id
        self._torch = None if _hand_over.is_ours(path) else _hand_over.FileSystemReader(path)
        if self._torch is not None:
            return self._torch.read_metadata(*args, **kwargs)
        with Checkpoint(path) as checkpoint:
            state = _states.saved_state(checkpoint, False)
        metadata = _states.metadata_of(*flatten_state_dict(state))
        metadata.storage_data = {}
        metadata.storage_meta = StorageMeta(checkpoint_id=path)
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._torch is not None:
            self._torch.set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: Any) -> Any:
        if self._torch is not None:
            return self._torch.read_data(plan, planner)
        with Checkpoint(self.checkpoint_id) as checkpoint:
            saved, blobs = _states.saved_values(checkpoint, False), bool(checkpoint.metadata.get(_states.BLOBS))
            rounds: list[dict[str, Any]] = []
            for item in plan.items:
                name = item.storage_index.fqn
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, self._bytes_of(checkpoint, name, saved[name], blobs))
                    continue
                target = planner.resolve_tensor(item).detach()
                free = next((one for one in rounds if name not in one), None)
                if free is None:
                    rounds.append(free := {})
                free[name] = (item, target)
            for one in rounds:
                self._read(checkpoint, saved, one, planner)
        return _done(None)

    def _read(self, checkpoint: Checkpoint, saved: dict[str, Any], wanted: dict[str, Any], planner: Any) -> None:
        into, made = {}, {}
        for name, (item, target) in wanted.items():
            whole = saved[name]
            local = target
            if target.dtype != whole.dtype:
                local = made[name] = torch.empty_like(target, dtype=whole.dtype)
            into[name] = Slice(local, tuple(whole.shape), tuple(item.storage_offsets)) if whole.dim() else local
        _load.fill(checkpoint._core.source(*_load.asked_for(None), False), into, None, False, None, only=True)
        for name, (item, target) in wanted.items():
            if name in made:
                target.copy_(made[name])
            planner.commit_tensor(item, target)

    def _bytes_of(self, checkpoint: Checkpoint, name: str, value: Any, blobs: bool) -> io.BytesIO:
        if blobs and type(value) is bytes:
            if not self.pickle:
                _states.of_blob(name, value, False)
            return io.BytesIO(value)
        values = {name: _states.with_memory(value)}
        _load.fill(checkpoint._core.source(*_load.asked_for(None), False), values, None, False, None, only=True)
        out = io.BytesIO()
        torch.save(values[name], out)
        out.seek(0)
        return out

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _hand_over.is_local(checkpoint_id)
