# SPDX-License-Identifier: Apache-2.0
"""Saves of one checkpoint at a path: a store of its own for each save, and ranks of each process group, made once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch.distributed as dist

from penstock import _core
from penstock._base import log as _log
from penstock._store.ranks import Ranks
from penstock._store.store import CheckpointStore

_LOCK_WAIT_MS = 60_000  # for another process that saves to the same path
_RANK_WAIT_MS = 300_000

_groups: list[tuple[Any, Ranks]] = []
_in_flight: dict[str, Any] = {}
_mutex = threading.Lock()


class PathStore(CheckpointStore):
    """A store of the one checkpoint at a path."""

    def __init__(self, path: str, ranks: Ranks | None) -> None:
        self._store = _core._checkpoint.Store(
            [path],
            keep=0, keep_every=0, keep_every_steps=0, keep_best=0, metric="", greater_is_better=False,
            shard_bytes=256 << 20, checksums=True, incremental=False, read_back=False,
            host_memory=_core._async.default_host_memory(), lock_wait_ms=_LOCK_WAIT_MS, cache="auto",
            ranks=None if ranks is None else ranks._ranks, rank_wait_ms=_RANK_WAIT_MS, at_path=True,
        )  # fmt: skip
        self._folders, self._metric = [path], None
        self._ranks = 1 if ranks is None else ranks.count

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """What is raised inside ends the save on the other ranks, too."""
        try:
            _check_path(self.folders[0])
            yield
        except BaseException as error:
            self._store.refuse_save(f"{type(error).__name__}: {error}")
            self.close()
            raise


def real_path(path: str | os.PathLike[str]) -> str:
    """Without symbolic links: os.path.abspath() takes "link/.." for another folder than the system does."""
    return os.path.realpath(os.fspath(path))


def _check_path(path: str) -> None:
    """A folder that is replaced would leave this process in one that has no name."""
    if os.path.isdir(path) and os.path.samefile(path, os.curdir):
        raise ValueError(f"save: '{path}': it is the working folder of this process; give a folder in it, or another")


def ranks_of(group: Any, no_dist: bool) -> Ranks | None:
    """The ranks of a process group; None for a process alone. The first call for a group is one broadcast."""
    if no_dist or not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return None
    key = dist.group.WORLD if group is None else group
    for known, ranks in _groups:
        if known is key:
            return ranks
    ranks = Ranks.torch(group)
    _groups.append((key, ranks))
    return ranks


def store_at(path: Any, group: Any, no_dist: bool) -> PathStore:
    """After the save to this path that is under way, if there is one."""
    path = real_path(path)
    ranks = ranks_of(group, no_dist)
    with _mutex:
        before = _in_flight.pop(path, None)
    if before is not None:
        before.exception()  # its own future reports it
    return PathStore(path, ranks)


def save(store: PathStore, state: Any, default: Any, metadata: dict[str, Any] | None = None) -> None:
    with store:
        _warn(store.save(state, default=default, metadata=metadata, replicas="first"))


def begin(store: PathStore, state: Any, default: Any, copy: bool, result: Any) -> Future[Any]:
    """A save in the background, as a future of `result`."""
    try:
        pending = store.save_async(state, default=default, copy=copy, replicas="first")
    except BaseException:
        store.close()
        raise

    def ended() -> Any:
        with store:
            _warn(pending.result())
        return result

    return _on_a_thread(store, ended)


def begin_when(store: PathStore, staged: Future[Any], default: Any, result: Any) -> Future[Any]:
    """The same of a state that is still being copied."""

    def ended() -> Any:
        with store.refusing():
            state = staged.result()
        save(store, state, default)
        return result

    return _on_a_thread(store, ended)


def _on_a_thread(store: PathStore, work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    with _mutex:
        _in_flight[store.folders[0]] = future
    threading.Thread(target=run, name="penstock.dcp").start()
    return future


def _warn(info: Any) -> None:
    """Of ranks whose values differ."""
    if "that of the first was saved" in info.note:
        _log.warn(f"save: '{info.path}': {info.note}")
