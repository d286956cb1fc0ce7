# SPDX-License-Identifier: Apache-2.0
"""StepOverlap: saves in every step."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock import _core
from penstock._base import arguments as _arguments, log as _log
from penstock._base.arrays import torch_for_states as _torch

if TYPE_CHECKING:
    from penstock._store.store import CheckpointStore


def _extent_of(tensor: Any) -> tuple[int, int] | None:
    """(address, bytes) of a dense tensor of the host, or None for any other."""
    bytes_ = tensor.numel() * tensor.element_size()
    if tensor.device.type != "cpu" or tensor.layout is not _torch().strided or not bytes_:
        return None
    sizes = sorted((step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1)
    dense = 1
    for step, size in sizes:  # no gaps between its elements, and none twice
        if step != dense:
            return None
        dense *= size
    address = tensor.data_ptr()  # what wraps other tensors (DTensor) has none
    return (address, bytes_) if address else None


def _own_memory(optimizers: Iterable[Any]) -> list[tuple[int, int]]:
    """(address, bytes) of the host memory that is wholly of the tensors that only the optimizers' step() changes: the
    rest of a storage is the caller's. Ranges that adjoin are one: together they may be a whole storage."""
    found: list[tuple[int, int]] = []
    for optimizer in optimizers:
        tensors = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for values in optimizer.state.values():
            tensors += [value for value in values.values() if hasattr(value, "untyped_storage")]
        found += [extent for extent in map(_extent_of, tensors) if extent is not None]
    joined: list[tuple[int, int]] = []
    for address, size in sorted(found):
        if joined and address <= sum(joined[-1]):
            begin = joined[-1][0]
            joined[-1] = (begin, max(sum(joined[-1]), address + size) - begin)
        else:
            joined.append((address, size))
    return joined


class StepOverlap:
    """Saves a training state in every step. The write runs concurrently with forward and backward.

        overlap = penstock.StepOverlap(store, optimizer, lambda: {"model": model.state_dict(), ...})
        for batch in data:                 # the loop needs no change
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()               # waits until the save of the previous step has read the tensors,
            optimizer.zero_grad()          # changes them, and begins the next save
        overlap.close()

    Tensors that only the optimizer's step() changes (parameters, and its own state) are written without a copy.
    Everything else in the state (buffers that forward changes, random states, a flat buffer that holds more than
    parameters) is copied first. So nothing but optimizer.step() may change the parameters: if they change while they
    are written (an EMA that is swapped in), that save fails with penstock.Changed, and older checkpoints stay.

    store: a CheckpointStore (with keep=..., or it fills the disk).
    optimizer: a torch optimizer, or several: the save begins after the step of the last one.
    get_state: called without arguments after a step; returns the state.
    every: save every N steps.
    step: the number of steps that were done before.
    on_error: "warn": a failed save is a RuntimeWarning and training continues; "raise": the next step raises it.
        close() and the end of a `with` block raise the error of the last save in both cases.

    Tensors of a GPU are copied into pinned memory by the call; that copy delays the step. A context manager, not
    thread-safe."""

    @_arguments.named
    def __init__(
        self,
        store: CheckpointStore,
        optimizer: Any | Sequence[Any],
        get_state: Callable[[], Any],
        *,
        every: int = 1,
        step: int = 0,
        on_error: Literal["warn", "raise"] = "warn",
    ) -> None:
        if on_error not in ("warn", "raise"):
            raise ValueError(f"StepOverlap: on_error: expected 'warn' or 'raise', got {_arguments.got(on_error)}")
        every = _arguments.whole("StepOverlap", "every", every, 1)
        step = _arguments.whole("StepOverlap", "step", step)
        if not hasattr(store, "_begin"):
            raise TypeError(f"StepOverlap: store: got {type(store).__name__}; give a CheckpointStore")
        optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        for one in optimizers or [None]:
            if not hasattr(one, "register_step_post_hook"):
                raise TypeError(f"StepOverlap: optimizer: got {type(one).__name__}; give a torch optimizer, or several")
        self.store = store
        self.step = step
        self.saves = 0
        self.failures = 0
        self.stall_s = 0.0  # of all steps together
        self.last_stall_s = 0.0
        self._optimizers = optimizers
        self._get_state = _arguments.function("StepOverlap", "get_state", get_state)
        self._every = every
        self._raise = on_error == "raise"
        self._pending: _core.PendingSave[_core.CheckpointInfo] | None = None
        self._waited_s = 0.0
        self._hooks = [o.register_step_pre_hook(self._before) for o in self._optimizers]
        self._hooks.append(self._optimizers[-1].register_step_post_hook(self._after))

    def __repr__(self) -> str:
        return f"<penstock.StepOverlap step={self.step} saves={self.saves} failures={self.failures}>"

    @property
    def pending(self) -> _core.PendingSave[_core.CheckpointInfo] | None:
        """The save of the newest step, or None."""
        return self._pending

    def _before(self, *_: Any) -> None:
        began = time.perf_counter()
        if self._pending is not None:
            self._pending.wait_before_update()
        self._waited_s += time.perf_counter() - began

    def _after(self, *_: Any) -> None:
        self.step += 1
        began = time.perf_counter()
        try:
            if self.step % self._every == 0:
                self._save()
        finally:
            self.last_stall_s = self._waited_s + time.perf_counter() - began
            self.stall_s += self.last_stall_s
            self._waited_s = 0.0

    def _save(self) -> None:
        self._ask()
        try:
            self._pending = self.store._begin(self._get_state(), self.step, _own_memory(self._optimizers))
        except (OSError, MemoryError) as error:  # of an earlier save, or of this one
            self.store.wait(raise_errors=False)  # of several ranks this one may have begun all the same
            self._failed(error)
        else:
            self.saves += 1

    def _ask(self) -> None:
        """Handles the error of the previous save, if that save has ended."""
        if self._pending is not None and self._pending.done():
            error = self._pending.exception()
            self._pending = None
            if error is not None:
                self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self.failures += 1
        if self._raise:
            raise error
        warnings.warn(
            f"penstock: a save of StepOverlap failed, and training goes on: {error}", RuntimeWarning, stacklevel=5
        )

    def close(self) -> None:
        """Removes the hooks and waits for the last save. Raises its error, if it failed."""
        error = self._end()
        if error is not None:
            self.failures += 1
            raise error

    def _end(self) -> BaseException | None:
        """Removes the hooks, and returns the error of the last save."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        pending, self._pending = self._pending, None
        return None if pending is None else pending.exception()

    def __enter__(self) -> StepOverlap:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.close()
        elif (error := self._end()) is not None:
            self.failures += 1
            _log.warn(f"the last save of StepOverlap failed: {error}")
