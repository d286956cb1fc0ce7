# SPDX-License-Identifier: Apache-2.0
"""Look-ahead: batches are sampled, hinted and read before they are requested.

A run (one iteration) has two stages.
1. A thread samples: it takes batches from the loader, and hints the rows of each to the store.
2. Batches are started in order: the first thread that finds room starts to gather their rows. The limits on started
   batches are their bytes, and their number: two, or for small batches as many as fill the engine's queue. More would
   cost reads: a row that is being read for one batch is not in memory yet, so the next batch reads it again.
A batch is started when a whole window has been sampled after it, so that the store knows the next rows. It is also
started when no other batch is being read, so that the loop does not wait for a slow loader."""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from penstock import _core
from penstock._base import arguments as _arguments

_WINDOW_MAX = 30  # one more hint of the store is used for the batch that is gathered next
_STARTED = 2
_CLOSE_S = 5.0


class Prefetch:
    """Batches of a loader with their rows, read ahead: `for batch, rows in Prefetch(loader, store): ...`

    loader: any iterable of batches: PyTorch Geometric's NeighborLoader, torch's DataLoader, a list, a generator. It is
    iterated in a thread. store: a FeatureStore or one of its tables. window: batches that are sampled ahead of the one
    that is read, 0 to 30; their rows are hinted, so that the store keeps the next rows in memory.
    key: a function that returns the ids of a batch, or a dict of tables and ids; by default the ids are batch.n_id, or
    the batch itself if it is an array, tensor or list. memory: limit ("256MiB") on rows that are read ahead; the next
    batch is read even if it is larger. device, stream: as in gather(), for rows in the memory of a GPU; the default
    stream is that of the thread that iterates. `rows` is the result of store.gather().

        loader = NeighborLoader(data, [10, 5, 5], batch_size=1024, filter_per_worker=False)
        for batch, rows in penstock.features.Prefetch(loader, store["paper"], window=8):
            loss = step(model(rows, batch.edge_index))

    As many small batches are read concurrently as fill the device's queue. Each iteration begins from the start, and
    ends with the loop, however that ends: rows that were read ahead are dropped, and so are hints. An exception of the
    loader is raised after the batches before it. Raises TypeError for a batch without ids, and errors of gather() at
    the batch that they are about. At the end, a loader that does not return is waited for at most 5 s.
    An iteration belongs to one thread and to the process that began it."""

    @_arguments.named
    def __init__(
        self,
        loader: Iterable[Any],
        store: Any,
        window: int = 8,
        *,
        key: Callable[[Any], Any] | None = None,
        memory: int | str = "256MiB",
        device: Any = None,
        stream: Any = None,
    ) -> None:
        if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
            raise TypeError(f"Prefetch: loader: expected an iterable of batches, got {_arguments.got(loader)}")
        if not callable(getattr(store, "gather_async", None)):
            raise TypeError(
                f"Prefetch: store: expected a FeatureStore or one of its tables, got {_arguments.got(store)}"
            )
        if isinstance(window, bool) or not hasattr(type(window), "__index__"):
            raise TypeError(f"Prefetch: window: expected a number of batches, got {_arguments.got(window)}")
        if not 0 <= window <= _WINDOW_MAX:
            raise ValueError(f"Prefetch: window: expected 0 to {_WINDOW_MAX}, got {window}")
        if key is not None and not callable(key):
            raise TypeError(f"Prefetch: key: expected a function of a batch, got {_arguments.got(key)}")
        self._loader = loader
        self._store = store
        self._window = int(window)
        self._key = ids_of if key is None else key
        self._memory = _arguments.size("Prefetch", "memory", memory)
        self._where = {name: value for name, value in (("device", device), ("stream", stream)) if value is not None}

    def __len__(self) -> int:
        """The length of the loader, if it has one."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._batches()

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        run = _Run(iter(self._loader), self._store, self._window, self._key, self._memory, self._where_now())
        try:
            while (started := run.take()) is not None:
                rows = started.future.result()
                run.taken()
                yield started.batch, rows
                del started, rows
        finally:
            run.close()

    def _where_now(self) -> dict[str, Any]:
        """The arguments of gathers. They begin in another thread, whose stream is not that of this one."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if "device" not in self._where or "stream" in self._where or cuda is None or not cuda.is_available():
            return self._where
        return {**self._where, "stream": cuda.current_stream(self._where["device"])}

    def __repr__(self) -> str:
        return f"Prefetch({self._loader!r}, {self._store!r}, window={self._window})"


def ids_of(batch: Any) -> Any:
    """The ids of a batch: its n_id, or the batch."""
    ids = getattr(batch, "n_id", None)
    if ids is None and (hasattr(batch, "__dlpack__") or hasattr(batch, "__array_interface__")):
        ids = batch
    if ids is None and isinstance(batch, (list, tuple, range)) and all(hasattr(one, "__index__") for one in batch):
        ids = batch
    if ids is None:
        raise TypeError(
            f"Prefetch: expected a batch with n_id, or ids alone, got {_arguments.got(batch)}; give a function as key= "
            "that finds the ids in a batch"
        )
    return ids


def _count(ids: Any) -> int:
    """The number of ids. Of nested lists it counts only the outer list, which is enough for a budget."""
    size = getattr(ids, "numel", None)
    if callable(size):
        return int(size())
    size = getattr(ids, "size", None)
    return int(size) if isinstance(size, int) else len(ids)


def _nbytes(store: Any, ids: Any) -> tuple[int, int]:
    """The number of rows of a batch, and their bytes."""
    tables = getattr(store, "tables", None)
    if isinstance(ids, Mapping):
        rows = {name: _count(its) for name, its in ids.items()}
        return sum(rows.values()), sum(n * (tables[name].row_bytes if tables else 0) for name, n in rows.items())
    rows = _count(ids)
    table = next(iter(tables.values())) if tables else store
    return rows, rows * int(getattr(table, "row_bytes", 0))


class _Failed:
    """Replaces the future of a gather that could not be started."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        pass

    def result(self) -> Any:
        raise self._error


class _Started:
    """A batch whose rows are being read."""

    __slots__ = ("batch", "future", "nbytes", "rows")

    def __init__(self, batch: Any, future: Any, rows: int, nbytes: int) -> None:
        self.batch, self.future, self.rows, self.nbytes = batch, future, rows, nbytes


class _Run:
    """One iteration. The lock guards the state of both threads. Of the calls that may wait, only gather_async() is made
    with it held, so that batches are started in order."""

    def __init__(
        self, batches: Iterator[Any], store: Any, window: int, key: Any, memory: int, where: dict[str, Any]
    ) -> None:
        self.process = os.getpid()
        self._batches = batches
        self._store = store
        self._window = window
        self._key = key
        self._memory = memory
        self._where = where
        # Each file of a stripe is on a device of its own.
        self._depth = int(_core.default_engine().options.queue_depth) * max(1, len(getattr(store, "files", ())))
        self._changed = threading.Condition()
        self._sampled: collections.deque[tuple[Any, Any]] = collections.deque()
        self._started: collections.deque[_Started] = collections.deque()
        self._error: BaseException | None = None  # of the loader; raised after the batches that were sampled before it
        self._sampling = True
        self._closed = False
        self._thread = threading.Thread(target=self._sample, name="penstock-prefetch", daemon=True)
        _runs.add(self)
        self._thread.start()

    # ---- the thread

    def _sample(self) -> None:
        error: BaseException | None = None
        try:
            hint = getattr(self._store, "hint", None)
            while self._has_room():
                try:
                    batch = next(self._batches)
                except StopIteration:
                    break
                ids = self._key(batch)
                if hint is not None and self._window and not self._closed:
                    hint(ids)
                with self._changed:
                    self._sampled.append((batch, ids))
                    self._start()
                    self._changed.notify_all()
        except BaseException as caught:  # noqa: BLE001  (whatever ends a loader is raised where it is iterated)
            error = caught
        finally:
            if self._closed:
                close = getattr(self._batches, "close", None)
                if close is not None:
                    with contextlib.suppress(Exception):
                        close()
            with self._changed:
                self._error = error
                self._sampling = False
                self._start()
                self._changed.notify_all()

    def _has_room(self) -> bool:
        """Waits until another batch may be sampled. False: the run is over."""
        with self._changed:
            while not self._closed and len(self._sampled) > self._window:
                self._changed.wait()
            return not self._closed

    # ---- both threads, with the lock held

    def _start(self) -> None:
        while self._sampled and not self._closed:
            is_next = not self._started
            if not is_next and self._sampling and len(self._sampled) <= self._window:
                return
            batch, ids = self._sampled[0]
            rows, nbytes = 0, 0
            try:
                rows, nbytes = _nbytes(self._store, ids)
                if not is_next and not self._fits(nbytes):
                    return
                future = self._store.gather_async(ids, **self._where)
            except Exception as error:
                future = _Failed(error)
            self._sampled.popleft()
            self._started.append(_Started(batch, future, rows, nbytes))

    def _fits(self, nbytes: int) -> bool:
        if sum(one.nbytes for one in self._started) + nbytes > self._memory:
            return False
        under_way = sum(one.rows for one in self._started if not one.future.done())
        return len(self._started) < _STARTED or under_way < self._depth

    # ---- the loop

    def take(self) -> _Started | None:
        """The next batch, or None after the last one. Its rows may not be there yet."""
        if os.getpid() != self.process:
            raise RuntimeError("Prefetch: this iteration began in another process; begin another one in this process")
        with self._changed:
            self._start()
            self._changed.notify_all()
            while not self._started:
                if not self._sampling and not self._sampled:
                    if self._error is not None:
                        raise self._error
                    return None
                self._changed.wait()
                self._start()
            return self._started[0]

    def taken(self) -> None:
        """Removes the first batch: its rows are there, and belong to the caller."""
        with self._changed:
            if self._started:
                self._started.popleft()
            self._start()
            self._changed.notify_all()

    def close(self) -> None:
        if os.getpid() != self.process:
            return
        with self._changed:
            self._closed = True
            self._sampled.clear()
            started = list(self._started)
            self._started.clear()
            self._changed.notify_all()
        for one in started:
            one.future.cancel()
        for one in started:
            with contextlib.suppress(Exception):
                one.future.result()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)
        drop = getattr(self._store, "drop_hints", None)
        if drop is not None and self._window:
            with contextlib.suppress(Exception):
                drop()
        _runs.discard(self)


_runs: weakref.WeakSet[_Run] = weakref.WeakSet()


def _close_all() -> None:
    for run in list(_runs):
        run.close()


atexit.register(_close_all)
