# SPDX-License-Identifier: Apache-2.0
"""Calls of streamed modules: one thread at a time, and each gives back what it took, also after Ctrl-C."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

from penstock._base.errors import Unsupported

_STANDS_S = 60.0  # longer than a layer takes to arrive


class Turns:
    def __init__(self, path: str) -> None:
        """`path`: the files, for messages."""
        self._lock: Any = threading.RLock()
        self._process, self._path = os.getpid(), path
        self._steps = 0  # of all passes: rises when a call begins and ends
        self._taken: list[Callable[[], None]] = []  # a function for each call that runs, which gives back what it took

    def turn(self) -> AbstractContextManager[Any]:
        """The lock. Only the process that owns the memory gets it: in a child of fork(), locks may be held by threads
        that do not exist there. It is entered in C, so Ctrl-C cannot come between that and the block."""
        if os.getpid() != self._process:
            raise Unsupported(
                "stream: the weights of this model are streamed by the parent of this process, into its own memory; "
                "call penstock.stream() after fork()",
                operation="stream",
                path=self._path,
            )
        if not self._lock._is_owned():  # as threading.Condition asks
            self._wait()
            with self._lock:
                while self._taken:  # Ctrl-C came while a call of an earlier pass took something, or gave it back
                    self._taken[-1]()
                    self._taken.pop()
        return cast("AbstractContextManager[Any]", self._lock)

    def _wait(self) -> None:
        """Waits for passes of other threads. A pass that waits for this thread, because its forward() calls layers in
        threads of its own, would wait for ever. Ctrl-C comes to the main thread, which therefore takes no lock here."""
        if threading.current_thread() is threading.main_thread():
            return
        steps, since = self._steps, time.monotonic()
        while not self._lock.acquire(timeout=1):
            if steps != self._steps:
                steps, since = self._steps, time.monotonic()
            elif time.monotonic() - since > _STANDS_S:
                raise RuntimeError(
                    "stream: a pass of another thread has this model, and no layer of it began or ended for "
                    f"{_STANDS_S:g} s. One thread at a time calls a streamed model and its layers: a forward() that "
                    "waits for threads which call its layers never ends"
                )
        self._lock.release()

    def run(self, take: Callable[[], None], give_back: Callable[[], None], call: Callable[[], Any]) -> Any:
        """Runs a call with what take() takes. give_back() may run several times, and after a take() that failed."""
        with self.turn():
            self._taken.append(give_back)
            self._steps += 1
            try:
                take()
                return call()
            finally:
                self._steps += 1
                give_back()
                self._taken.remove(give_back)
