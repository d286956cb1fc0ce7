# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint on Penstock: the same calls, a durable checkpoint, and no collective operation.

    import penstock.dcp as dcp

    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id="out/step-100")
    future = dcp.async_save(state, checkpoint_id="out/step-200")
    dcp.load(state, checkpoint_id="out/step-100")

The folder is a checkpoint of Penstock: penstock.Checkpoint(path) opens it, and torch's HuggingFaceStorageReader(path)
loads it. docs/dcp.md has all of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.stateful import Stateful

from penstock.dcp import _hand_over, _saves, _states
from penstock.dcp._storage import StorageReader, StorageWriter

__all__ = ["StorageReader", "StorageWriter", "async_save", "install", "load", "save", "uninstall"]

_NO_PATH = "`checkpoint_id` must be specified if storage_reader/storage_writer is None."  # as torch says it


def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
    default: Callable[[Any], Any] | None = None,
) -> Metadata:
    """Saves a state at a path, in place of torch.distributed.checkpoint.save().

    When it returns, on any rank, the checkpoint survives a power failure. An older one at that path is there until
    then, and the new one from then on. What else lies in the folder stays.

    state_dict, checkpoint_id, process_group, no_dist: as torch's. Stateful objects give their state_dict().
    storage_writer, planner: with one of your own, torch's save() does all of it.
    use_collectives: has no effect: none are used, but for one broadcast at the first save of a process group.
    default: called with each object that a checkpoint cannot hold, as in penstock.save(): penstock.Pickled pickles it.

    Raises TypeError with the key for another object, and an error on all ranks if one of them fails."""
    path = _path_of(checkpoint_id, storage_writer, StorageWriter, _hand_over.is_plain_save(planner))
    if path is None:
        return _hand_over.call(
            _hand_over.save, state_dict, checkpoint_id=checkpoint_id, storage_writer=storage_writer, planner=planner,
            process_group=process_group, no_dist=no_dist, use_collectives=use_collectives,
        )  # fmt: skip
    store = _saves.store_at(path, process_group, no_dist)
    with store.refusing():
        state = _states.of_statefuls(state_dict)
        metadata = _states.metadata_of_state(state)
    _saves.save(store, state, default)
    return metadata


def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    async_checkpointer_type: Any = None,
    async_stager: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
    default: Callable[[Any], Any] | None = None,
) -> Any:
    """A save() that returns when the tensors have been copied. Gives a Future of its result.

    async_checkpointer_type: has no effect: a thread of the compiled part saves, without Python.
    async_stager: its stage() makes the copy. If that gives a Future, the result is torch's AsyncSaveResponse."""
    path = _path_of(checkpoint_id, storage_writer, StorageWriter, _hand_over.is_plain_save(planner))
    if path is None:
        kind = {} if async_checkpointer_type is None else {"async_checkpointer_type": async_checkpointer_type}
        return _hand_over.call(
            _hand_over.async_save, state_dict, checkpoint_id=checkpoint_id, storage_writer=storage_writer,
            planner=planner, process_group=process_group, async_stager=async_stager, no_dist=no_dist,
            use_collectives=use_collectives, **kind,
        )  # fmt: skip
    store = _saves.store_at(path, process_group, no_dist)
    with store.refusing():
        state = _states.of_statefuls(state_dict)
        metadata = _states.metadata_of_state(state)
        staged = None if async_stager is None else async_stager.stage(state)
    if staged is None:
        return _saves.begin(store, state, default, True, metadata)
    if isinstance(staged, Future):
        from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse

        saved = _saves.begin_when(store, staged, default, metadata)
        return AsyncSaveResponse(staging_completion=staged, upload_completion=saved)
    future = _saves.begin(store, staged, default, False, metadata)
    if async_stager.should_synchronize_after_execute:
        async_stager.synchronize_staging()
    return future


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_reader: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    pickle: bool = False,
) -> None:
    """Loads into a state, in place of torch.distributed.checkpoint.load(). Each rank reads what its state names, alone:
    it may have any layout, and there may be any number of ranks.

    state_dict: its tensors are filled, and its other values replaced. Stateful objects get their load_state_dict().
    checkpoint_id: a path. A checkpoint of torch's own is read by torch.
    storage_reader, planner: with one of your own, torch's load() does all of it. DefaultLoadPlanner is known.
    pickle: makes the objects that were saved with default=penstock.Pickled. This can run any code.

    Raises KeyError for a key that the checkpoint lacks, ValueError for a tensor of another shape, and penstock.Damaged.
    """
    path = _path_of(checkpoint_id, storage_reader, StorageReader, _hand_over.is_plain_load(planner))
    if path is None or not _hand_over.is_ours(path):
        _hand_over.call(
            _hand_over.load, state_dict, checkpoint_id=checkpoint_id, storage_reader=storage_reader, planner=planner,
            process_group=process_group, no_dist=no_dist,
        )  # fmt: skip
        return
    state = _states.of_statefuls(dict(sorted(state_dict.items())))
    partial = planner is not None and planner.allow_partial_load
    _states.fill(path, state, partial, pickle or getattr(storage_reader, "pickle", False))
    for key, value in state.items():
        if isinstance(state_dict[key], Stateful):
            state_dict[key].load_state_dict(value)
        else:
            state_dict[key] = value


def _path_of(checkpoint_id: Any, storage: Any, own: type, plain: bool) -> str | None:
    """The path of what Penstock does itself; None: torch does it, with the storage and planner that were given."""
    if storage is None and not checkpoint_id:
        raise RuntimeError(_NO_PATH)
    if not plain or not (storage is None or type(storage) is own):
        return None
    if storage is not None and checkpoint_id:
        storage.reset(checkpoint_id)
    path = checkpoint_id if storage is None else storage.checkpoint_id
    return os.fspath(path) if _hand_over.is_local(path) else None


# ---- in torch's place


def install() -> None:
    """Puts save, async_save, load, FileSystemWriter and FileSystemReader of this module into the place of those of
    torch.distributed.checkpoint. Programs that imported torch's functions by name before keep those. May be called
    again."""
    _hand_over.put(
        save=save,
        async_save=async_save,
        load=load,
        FileSystemWriter=_hand_over.standing_for(_hand_over.FileSystemWriter, StorageWriter),
        FileSystemReader=_hand_over.standing_for(_hand_over.FileSystemReader, StorageReader),
    )


def uninstall() -> None:
    """Puts torch's own back. May be called again."""
    _hand_over.put_back()
