# SPDX-License-Identifier: Apache-2.0
"""A line on stderr about the passes of a streamed model: redrawn on a terminal, else printed every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from penstock._base.progress import _LOG_S, _SHOWN_AFTER_S, _TERMINAL_S


class Live:
    def __init__(self) -> None:
        self._next = 0.0  # time of the next line
        self._drawn = False

    def show(self, text: Callable[[], str]) -> None:
        """Called after each unit. text() is called only where it is printed."""
        now = time.monotonic()
        if now < self._next or sys.stderr is None:
            return
        if self._next == 0:
            self._next = now + _SHOWN_AFTER_S
            return
        terminal = sys.stderr.isatty()
        self._next = now + (_TERMINAL_S if terminal else _LOG_S)
        self._drawn = terminal
        line = f"penstock stream: {text()}"
        print(f"\r{line}\x1b[K" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the line, so that what comes next has its own."""
        if self._drawn:
            self._drawn = False
            print(file=sys.stderr, flush=True)
