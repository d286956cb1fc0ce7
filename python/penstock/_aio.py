# SPDX-License-Identifier: Apache-2.0
"""`await transfer` in asyncio: one eventfd a loop, which transfers add to when they are done.

A transfer writes to the descriptor that it was given, so the descriptor stays open until all of them have, even when
the loop is closed before. Cancelling the task that awaits leaves the transfer running, as the time limit of wait()
does.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import Any

from penstock import _core


class _Watch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = os.getpid()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.waiting: dict[_core.Transfer, asyncio.Future[None]] = {}
        loop.add_reader(self.fd, self._on_ready)

    def future_of(self, loop: asyncio.AbstractEventLoop, transfer: _core.Transfer) -> asyncio.Future[None]:
        future = self.waiting.get(transfer)
        if future is None or future.cancelled():
            known = transfer in self.waiting
            future = self.waiting[transfer] = loop.create_future()
            if not known:
                transfer.notify(self.fd)
        return future

    def _on_ready(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return
        for transfer in [t for t in self.waiting if t.done]:
            future = self.waiting.pop(transfer)
            if not future.done():
                future.set_result(None)

    def closable(self) -> bool:
        return all(transfer.done for transfer in self.waiting)


_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Watch] = weakref.WeakKeyDictionary()
_all: list[tuple[weakref.ref[asyncio.AbstractEventLoop], _Watch]] = []


def _close_old() -> None:
    """Descriptors of loops that are closed or gone, as far as nobody writes to them any more."""
    for entry in list(_all):
        loop, watch = entry[0](), entry[1]
        if (loop is None or loop.is_closed()) and (watch.pid != os.getpid() or watch.closable()):
            _all.remove(entry)
            os.close(watch.fd)


def _watch_of(loop: asyncio.AbstractEventLoop) -> _Watch:
    watch = _watches.get(loop)
    if watch is None or watch.pid != os.getpid():
        _close_old()
        watch = _watches[loop] = _Watch(loop)
        _all.append((weakref.ref(loop), watch))
    return watch


async def wait(transfer: _core.Transfer) -> Any:
    if not transfer.done:
        loop = asyncio.get_running_loop()
        # Shielded: several tasks may await one transfer, and one that gives up is not the others' affair.
        await asyncio.shield(_watch_of(loop).future_of(loop, transfer))
    return transfer.wait()


async def wait_for_save(pending: _core.PendingSave) -> Any:
    """Saves are few and long: a thread of the loop's waits, in slices, so that a cancelled task releases it."""
    while not pending.done():
        await asyncio.get_running_loop().run_in_executor(None, pending.wait, 0.2)
    return pending.result()
