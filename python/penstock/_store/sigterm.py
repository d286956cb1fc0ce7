# SPDX-License-Identifier: Apache-2.0
"""One more save when the process gets SIGTERM. Several ranks save it at the same step, whichever of them got the signal
(StopTogether in penstock/ranks.hpp).

Other processes of its group get the signal too (SLURM, `timeout` and terminals send it to all of them). What is forked
inside the block gets back the handler that the process had before. The workers of a DataLoader ignore a SIGTERM that
their parent did not send, while it lives: torch raises in the parent when one of them dies."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock import _core
from penstock._base import arguments as _arguments, log as _log

if TYPE_CHECKING:
    from penstock._store.store import CheckpointStore


_active: list[SaveOnSigterm] = []  # those of this process, the outermost first
_forks = threading.local()
_torch_loop: Any = None  # torch's, while worker_loop() is in its place


class SaveOnSigterm:
    """The guard of CheckpointStore.save_on_sigterm(). Main thread only; restores the old handler at its end. It does
    nothing in a forked child."""

    def __init__(
        self, store: CheckpointStore, get_state: Callable[[], Any], exit_code: int, pinned: bool, wait_ms: int
    ) -> None:
        # Checked now, so that a wrong argument is not found only at SIGTERM.
        self._get_state = _arguments.function("save_on_sigterm", "get_state", get_state)
        self._exit_code = _arguments.whole("save_on_sigterm", "exit_code", exit_code, 0, 255)
        self._store = store
        self._pinned = bool(_arguments.flag("save_on_sigterm", "pinned", pinned))
        self._old: Any = None
        self._process = 0
        self._step = 0
        self._leaving = False
        self._wait_ms = wait_ms
        self._together: Any = None
        self._gone: OSError | None = None  # the mailbox of the ranks
        self.arrived = False

    def _handler(self, *_: object) -> None:
        self.arrived = True

    def __enter__(self) -> SaveOnSigterm:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("save_on_sigterm: signals come to the main thread; use it there")
        self._process = os.getpid()
        ranks = self._store._group
        self._together = _core._checkpoint.StopTogether(None if ranks is None else ranks._ranks, self._wait_ms)
        self._old = signal.signal(signal.SIGTERM, self._handler)
        _active.append(self)
        _wrap_workers()
        return self

    def step_end(self, step: int) -> None:
        """Call it when the state is consistent. After SIGTERM it saves the state as `step`, and raises SystemExit. With
        several ranks each of them calls it for each step, and all save at the same one, some steps after SIGTERM came
        to one of them. Raises OSError if rank 0 stands still, or if SIGTERM came and rank 0 is gone."""
        self._step = _arguments.whole("step_end", "step", step)
        if self._process != os.getpid():
            return
        try:
            stops = self._together.step_end(self.arrived)
        except OSError as gone:
            if gone.errno != errno.ECONNRESET:
                raise
            self._gone, stops = gone, False  # rank 0 may have ended well, after the last step
            _log.logger.info("save_on_sigterm: %s", gone)
        if stops:
            self._leave()
        elif self.arrived and self._gone is not None:
            raise self._gone

    def _leave(self) -> None:
        try:
            self._store._store.raise_failure()
        except (OSError, MemoryError, ValueError) as error:
            warnings.warn(f"penstock: {error}", RuntimeWarning, stacklevel=4)
        self._leaving = True  # a second signal changes nothing
        self._store.save(self._get_state(), self._step, pinned=self._pinned)
        raise SystemExit(self._exit_code)

    def __exit__(self, _kind: Any, error: BaseException | None, *_: object) -> None:
        if self._process != os.getpid():
            return
        stops = False
        try:
            stops = not self._leaving and self._stops_at_end(error)
        finally:
            _active.remove(self)
            if not _active:
                _unwrap_workers()
            signal.signal(signal.SIGTERM, self._old if self._old is not None else signal.SIG_DFL)
        if stops:
            self._leave()
        elif self.arrived and not self._leaving:
            # Another exception ends the training, or the other ranks are done: the signal goes to the next handler.
            os.kill(os.getpid(), signal.SIGTERM)

    def _stops_at_end(self, error: BaseException | None) -> bool:
        """Whether all ranks save once more, at the end of the block."""
        if error is not None:
            if self._together.leave():  # the others are to save, and need not wait for this rank
                self._store._store.refuse_save(f"{type(error).__name__}: {error}")
            return False
        try:
            stops = bool(self._together.end(self.arrived))
        except OSError as gone:
            if gone.errno != errno.ECONNRESET:
                raise
            stops = False  # rank 0 has ended
        if self.arrived and not stops:
            _log.warn(
                "save_on_sigterm: SIGTERM came when the other ranks had ended their steps: nothing was saved for it"
            )
        return stops


# ---- forked children


def _before_fork() -> None:
    """A SIGTERM that comes to the child before it has its own handler waits until then."""
    _forks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]) if _active else None


def _after_fork_in_parent() -> None:
    if _forks.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forks.mask)


def _after_fork_in_child() -> None:
    guards = list(_active)
    _active.clear()
    _unwrap_workers()
    if any(signal.getsignal(signal.SIGTERM) == guard._handler for guard in guards):
        old = guards[0]._old
        signal.signal(signal.SIGTERM, old if old is not None else signal.SIG_DFL)
    _after_fork_in_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


# ---- workers of a DataLoader


def _wrap_workers() -> None:
    """Puts worker_loop() in the place of torch's function: DataLoader gives it to the processes that it starts."""
    global _torch_loop
    worker = sys.modules.get("torch.utils.data._utils.worker")
    if worker is not None and _torch_loop is None and hasattr(worker, "_worker_loop"):
        _torch_loop, worker._worker_loop = worker._worker_loop, worker_loop  # type: ignore[attr-defined]


def _unwrap_workers() -> None:
    global _torch_loop
    worker = sys.modules.get("torch.utils.data._utils.worker")
    if _torch_loop is not None and getattr(worker, "_worker_loop", None) is worker_loop:
        worker._worker_loop = _torch_loop  # type: ignore[union-attr]
    _torch_loop = None


def worker_loop(*arguments: Any) -> Any:
    """The loop of a worker, forked or spawned. torch sets its handler of SIGTERM in it; ours comes after that."""
    import multiprocessing

    from torch.utils.data._utils import signal_handling, worker

    parent = multiprocessing.parent_process()
    set_handlers = getattr(signal_handling, "_set_worker_signal_handlers", None)
    if parent is not None and parent.pid is not None and set_handlers is not None:
        pid = parent.pid

        def set_all() -> None:
            set_handlers()
            _core.obey_sigterm_of(pid)

        signal_handling._set_worker_signal_handlers = set_all  # type: ignore[attr-defined]
    return worker._worker_loop(*arguments)
