# SPDX-License-Identifier: Apache-2.0
"""Locked tensors: CPU memory on separate pages, locked into RAM, known to every handle of the process.

A tensor shares the ownership of its memory with its views. Freeing the tensor removes the lock and the record of it.
The memory is returned to the system with the last view, so a remaining view never reads memory of another object.
Dropping a tensor without freeing it also removes its lock.
"""

from __future__ import annotations

import operator
import os
import weakref
from _thread import RLock
from bisect import bisect_right
from collections import deque
from typing import Any

from penstock import _core
from penstock.deepnvme._torch import is_tensor, torch, why_not_plain


class _Region(weakref.ref):  # type: ignore[type-arg]
    """The addresses of a live Buffer of locked memory: [base, end)."""

    __slots__ = ("base", "end")
    base: int
    end: int


class _Regions:
    """The regions in use, by address. Thread-safe and reentrant.

    A Buffer may be destroyed at any time, and the garbage collector may run a finalizer that frees a locked tensor at
    any time, also while this thread runs a method of this class. So the lock is reentrant, one structure holds all
    regions, each change is one operation, and the sorted addresses are computed from it on demand. The destruction of a
    Buffer is only recorded; the next call handles it.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._by_base: dict[int, _Region] = {}
        self._changes = 0
        self._order: tuple[int, list[int]] = (0, [])  # the number of changes so far, and the order after them
        self._gone: deque[_Region] = deque()

    def add(self, buffer: _core.Buffer, base: int) -> None:
        region = _Region(buffer, self._gone.append)  # type: ignore[arg-type]
        region.base = base
        region.end = base + buffer.nbytes
        with self._lock:
            self._sweep()
            self._by_base[base] = region
            self._changes += 1

    def take(self, base: int) -> _core.Buffer | None:
        """Removes the region that begins at `base`, and returns its Buffer; None if no region begins there."""
        with self._lock:
            self._sweep()
            region = self._by_base.pop(base, None)
            self._changes += 1
        return None if region is None else region()

    def covers(self, begin: int, end: int) -> bool:
        """Whether [begin, end) is in one region."""
        with self._lock:
            self._sweep()
            changes, order = self._order
            if changes != self._changes:
                changes = self._changes
                order = sorted(self._by_base)
                self._order = (changes, order)
            at = bisect_right(order, begin) - 1
            region = self._by_base.get(order[at]) if at >= 0 else None
            return region is not None and end <= region.end

    def after_fork_in_child(self) -> None:
        self._lock = RLock()  # a thread of the parent may have held it

    def _sweep(self) -> None:
        while self._gone:
            region = self._gone.popleft()
            there = self._by_base.pop(region.base, None)
            self._changes += 1
            if there is not None and there is not region:
                self._by_base[region.base] = there  # the address is in use again


_regions = _Regions()
os.register_at_fork(after_in_child=_regions.after_fork_in_child)
_told = False


def _tell_once(reason: str) -> None:
    global _told
    if not _told:
        _told = True
        import logging

        logging.getLogger("penstock.deepnvme").warning(
            "a locked tensor was requested and works unlocked: %s (reported once; `penstock doctor` has the limit)",
            reason,
        )


def new_locked_tensor(num_elem: int, example: Any) -> Any:
    """A 1-D CPU tensor of `num_elem` elements of the dtype of `example`: page-aligned, zero, locked if possible."""
    if not is_tensor(example):
        raise TypeError(f"example: got {type(example).__name__}; give a torch tensor, whose dtype is taken")
    count = operator.index(num_elem)
    if count < 0:
        raise ValueError(f"num_elem: got {count}; expected 0 or more")
    if count == 0:
        return torch().empty(0, dtype=example.dtype)
    num_bytes = count * example.element_size()
    if num_bytes >= 1 << 62:
        raise MemoryError(f"num_elem: {count} elements ({num_bytes} bytes) are more than any machine has; ask for less")
    buffer = _core.locked_memory(num_bytes)
    tensor = torch().frombuffer(buffer, dtype=example.dtype)  # the storage keeps `buffer`
    _regions.add(buffer, tensor.data_ptr())
    if not buffer.pinned:
        _tell_once(buffer.pinned_reason)
    return tensor


def free_by_address(address: int) -> bool:
    """Frees the locked tensor at this address. Returns False if no locked tensor begins there."""
    buffer = _regions.take(operator.index(address))
    if buffer is None:
        return False
    _core.unlock(buffer)
    return True


def free(tensor: Any) -> bool:
    if not is_tensor(tensor):
        raise TypeError(f"free: got {type(tensor).__name__}; give the tensor of new_cpu_locked_tensor()")
    return free_by_address(tensor.data_ptr())


def is_pinned(buffer: Any) -> bool:
    """Whether torch pinned it, or all of it is in one locked tensor that was not freed."""
    if not is_tensor(buffer):
        raise TypeError(f"is_pinned: got {type(buffer).__name__}; give a torch tensor")
    if not buffer.is_cpu:
        return False
    if why_not_plain(buffer):
        return _torch_pinned(buffer)
    begin = buffer.data_ptr()
    if begin != 0:
        last = sum((extent - 1) * stride for extent, stride in zip(buffer.shape, buffer.stride()))
        if _regions.covers(begin, begin + (last + 1) * buffer.element_size()):
            return True
    return _torch_pinned(buffer)


def _torch_pinned(tensor: Any) -> bool:
    try:
        return bool(tensor.is_pinned())
    except RuntimeError:
        return False  # tensors of this kind cannot be pinned


class pin_handle:  # noqa: N801 (DeepNVMe's name)
    """Locked CPU tensors without a handle for I/O. Thread-safe; all handles know the tensors of all."""

    __slots__ = ("__weakref__",)

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: Any) -> Any:
        """A 1-D CPU tensor of `num_elem` elements of the dtype of `example_tensor`, page-aligned and locked into RAM.

        If the limit on locked memory forbids the lock, the tensor still works, and the reason is logged once.
        Raises MemoryError if there is not enough memory.
        """
        return new_locked_tensor(num_elem, example_tensor)

    def free_cpu_locked_tensor(self, locked_tensor: Any) -> bool:
        """Removes the lock. Returns False for a foreign or freed tensor, or for a view with another address."""
        return free(locked_tensor)

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        """The same by the address of its first element (`tensor.data_ptr()`)."""
        return free_by_address(address)

    def is_pinned(self, buffer: Any) -> bool:
        """Whether torch pinned it, or it is in a locked tensor (of any handle) that was not freed."""
        return is_pinned(buffer)
