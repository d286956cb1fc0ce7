# SPDX-License-Identifier: Apache-2.0
"""One more save when the process gets SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock import _arguments

if TYPE_CHECKING:
    from penstock._store import CheckpointStore


class SaveOnSigterm:
    """The guard of CheckpointStore.save_on_sigterm(). Main thread only; restores the old handler at its end."""

    def __init__(self, store: CheckpointStore, get_state: Callable[[], Any], exit_code: int, pinned: bool) -> None:
        # Checked now, so that a wrong argument is not found only at SIGTERM.
        self._get_state = _arguments.function("save_on_sigterm", "get_state", get_state)
        self._exit_code = _arguments.whole("save_on_sigterm", "exit_code", exit_code, 0, 255)
        self._store = store
        self._pinned = bool(_arguments.flag("save_on_sigterm", "pinned", pinned))
        self._old: Any = None
        self._step = 0
        self._leaving = False
        self.arrived = False

    def _handler(self, *_: object) -> None:
        self.arrived = True

    def __enter__(self) -> SaveOnSigterm:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("save_on_sigterm: signals come to the main thread; use it there")
        self._old = signal.signal(signal.SIGTERM, self._handler)
        return self

    def step_end(self, step: int) -> None:
        """Call it when the state is consistent. After SIGTERM it saves the state as `step`, and raises SystemExit."""
        self._step = _arguments.whole("step_end", "step", step)
        if self.arrived:
            self._leave()

    def _leave(self) -> None:
        try:
            self._store._store.raise_failure()
        except (OSError, MemoryError, ValueError) as error:
            warnings.warn(f"penstock: {error}", RuntimeWarning, stacklevel=4)
        self._leaving = True  # a second signal changes nothing
        self._store.save(self._get_state(), self._step, pinned=self._pinned)
        raise SystemExit(self._exit_code)

    def __exit__(self, kind: Any, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._old if self._old is not None else signal.SIG_DFL)
        if self._leaving or not self.arrived:
            return
        if kind is None:
            self._leave()
        else:
            # Another exception ends the training: the signal goes to the next handler.
            os.kill(os.getpid(), signal.SIGTERM)
