# SPDX-License-Identifier: Apache-2.0
"""`await future` in asyncio, and callbacks of futures: one eventfd a loop, and one for the thread that calls callbacks.

A future keeps a copy of the descriptor. So the descriptor of a closed loop can be closed while futures still run.
Cancelling the awaiting task does not cancel the future, and neither does the time limit of result().
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock import _core
from penstock._base.log import logger

if TYPE_CHECKING:
    import asyncio

_Future = _core.Future
_Call = Callable[[], object]


class _Watch:
    """Futures, and the functions to call when each is done. flags: of the eventfd."""

    def __init__(self, flags: int = 0) -> None:
        self.pid = os.getpid()
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | flags)
        self._waiting: dict[_Future[Any], list[_Call]] = {}
        self._lock = threading.Lock()

    def add(self, future: _Future[Any], call: _Call) -> None:
        with self._lock:
            known = future in self._waiting
            self._waiting.setdefault(future, []).append(call)
        if known:
            return
        try:
            _core.wake(future, self.fd)
        except BaseException:
            with self._lock:
                self._waiting.pop(future, None)
            raise

    def take_done(self) -> list[_Call]:
        with self._lock:
            done = [future for future in self._waiting if future.done()]
            return [call for future in done for call in self._waiting.pop(future)]


# ---- asyncio


class _LoopWatch(_Watch):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(os.EFD_NONBLOCK)
        loop.add_reader(self.fd, self._on_ready)

    def _on_ready(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return
        for call in self.take_done():
            call()


_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWatch] = weakref.WeakKeyDictionary()
_all: list[tuple[weakref.ref[asyncio.AbstractEventLoop], _LoopWatch]] = []


def _close_old() -> None:
    """Closes the descriptors of loops that are closed or no longer exist."""
    for entry in list(_all):
        loop, watch = entry[0](), entry[1]
        if loop is None or loop.is_closed():
            _all.remove(entry)
            os.close(watch.fd)


def _watch_of(loop: asyncio.AbstractEventLoop) -> _LoopWatch:
    watch = _watches.get(loop)
    if watch is None or watch.pid != os.getpid():
        _close_old()
        watch = _watches[loop] = _LoopWatch(loop)
        _all.append((weakref.ref(loop), watch))
    return watch


async def result(future: _Future[Any]) -> Any:
    """Each waiting task has its own asyncio future, so that cancelling one task does not affect the others."""
    if not future.done():
        import asyncio  # imported here because it takes 20 ms

        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        _watch_of(loop).add(future, lambda: woken.done() or woken.set_result(None))
        await woken
    return future.result()


# ---- callbacks

_caller: _Watch | None = None
_caller_lock = threading.Lock()


def call_when_done(future: _Future[Any], function: Callable[[Any], object]) -> None:
    if not callable(function):
        raise TypeError(f"add_done_callback: fn: expected a function of the future, got a {type(function).__name__}")

    def call() -> None:
        try:
            function(future)
        except Exception:
            logger.exception("a callback of %r raised", future)

    if future.done():
        call()
    else:
        _thread_watch().add(future, call)


def notify_when_done(future: _Future[Any], eventfd: int) -> None:
    """Adds 1 to an eventfd after done() has done its part: a gather copies the rows that its store keeps, and the user
    may change them as soon as the eventfd says that it is over."""
    copy = open(os.dup(eventfd), "wb", buffering=0)  # the caller may close the other one

    def tell(_: _Future[Any]) -> None:
        with copy:
            os.eventfd_write(copy.fileno(), 1)

    call_when_done(future, tell)


def _thread_watch() -> _Watch:
    global _caller
    with _caller_lock:
        if _caller is None:
            watch = _Watch()
            try:
                threading.Thread(target=_call_all, args=(watch,), name="penstock callbacks", daemon=True).start()
            except (RuntimeError, MemoryError):
                os.close(watch.fd)
                raise _core.refused_thread() from None
            _caller = watch
        return _caller


def _call_all(watch: _Watch) -> None:
    while True:
        os.eventfd_read(watch.fd)
        for call in watch.take_done():
            call()


def at_exit() -> None:
    """Calls the remaining callbacks, after all futures are done."""
    for call in _caller.take_done() if _caller is not None else []:
        call()


def after_fork_in_child() -> None:
    """Drops the thread and the callbacks: they belong to the parent, which calls them."""
    global _caller, _caller_lock
    _caller, _caller_lock = None, threading.Lock()
