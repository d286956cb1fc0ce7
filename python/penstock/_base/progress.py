# SPDX-License-Identifier: Apache-2.0
"""`progress=`: nothing, a line on stderr, or a function of the caller."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = bool | Callable[[int, int], object] | None

_SHOWN_AFTER_S = 2.0
_TERMINAL_S = 0.2
_LOG_S = 10.0
_GIB = 1 << 30


class _Line:
    """Prints progress after two seconds: on a terminal one line that is redrawn, else a line every ten seconds."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._start = self._shown = time.monotonic()
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        terminal = sys.stderr is not None and sys.stderr.isatty()
        last = 0 < total <= done
        if sys.stderr is None or (last and not self._drawn):
            return
        if not last and now - self._start < _SHOWN_AFTER_S:
            return
        if not last and self._drawn and now - self._shown < (_TERMINAL_S if terminal else _LOG_S):
            return
        self._shown, self._drawn = now, True
        rate = done / max(now - self._start, 1e-9)
        left = f", {(total - done) / rate:.0f} s left" if rate and total and not last else ""
        of = f" of {total / _GIB:.2f} GiB ({100 * done // total} %)" if total else " GiB"
        text = f"penstock {self._verb}: {done / _GIB:.2f}{of}, {rate / _GIB:.2f} GiB/s{left}"
        end = "\n" if last or not terminal else ""
        print(f"\r{text}\x1b[K" if terminal else text, end=end, file=sys.stderr, flush=True)


def reporter(progress: Progress, verb: str) -> Callable[[int, int], object] | None:
    """The callback for the compiled part, called with (done, total) in bytes."""
    if progress is None or progress is False:
        return None
    if progress is True:
        return _Line(verb)
    if callable(progress):
        return progress
    raise TypeError(
        f"{verb}: progress: got {type(progress).__name__}; give True, or a function of (done, total) in bytes"
    )
