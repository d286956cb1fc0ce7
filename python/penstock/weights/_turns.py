# SPDX-License-Identifier: Apache-2.0
"""Calls of streamed modules: one thread at a time, and each gives back what it took, also after Ctrl-C."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import penstock


class Turns:
    def __init__(self, path: str) -> None:
        """`path`: the files, for messages."""
        self._lock: Any = threading.RLock()
        self._process, self._path = os.getpid(), path
        self._taken: list[Callable[[], None]] = []  # a function for each call that runs, which gives back what it took

    def turn(self) -> AbstractContextManager[Any]:
        """The lock. Only the process that owns the memory gets it: in a child of fork(), locks may be held by threads
        that do not exist there. It is entered in C, so Ctrl-C cannot come between that and the block."""
        if os.getpid() != self._process:
            raise penstock.Unsupported(
                "stream: the weights of this model are streamed by the parent of this process, into its own memory; "
                "call penstock.stream() after fork()",
                operation="stream",
                path=self._path,
            )
        if not self._lock._is_owned():  # as threading.Condition asks
            with self._lock:
                while self._taken:  # Ctrl-C came while a call of an earlier pass took something, or gave it back
                    self._taken[-1]()
                    self._taken.pop()
        return self._lock

    def run(self, take: Callable[[], None], give_back: Callable[[], None], call: Callable[[], Any]) -> Any:
        """Runs a call with what take() takes. give_back() may run several times, and after a take() that failed."""
        with self.turn():
            self._taken.append(give_back)
            try:
                take()
                return call()
            finally:
                give_back()
                self._taken.remove(give_back)
