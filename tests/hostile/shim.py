# SPDX-License-Identifier: Apache-2.0
"""The Python side of shim.c, in a process that has it in LD_PRELOAD."""

import ctypes
import os

from penstock import _core

_lib = ctypes.CDLL(None)  # a preloaded library is among the global names


def _kinds():
    _lib.hostile_name.restype = ctypes.c_char_p
    found = []
    while (name := _lib.hostile_name(len(found))) is not None:
        found.append(name.decode())
    return found


KINDS = _kinds() if hasattr(_lib, "hostile_name") else []
if KINDS and not _lib.hostile_watch(os.path.basename(_core.__file__).encode()):
    raise RuntimeError(f"{_core.__file__} is not loaded")


def arm(kind=None, n=0, number=0, persist=False):
    """The n-th call of a kind (from 1), and with persist all later ones, fail with errno `number`; None: count only."""
    _lib.hostile_arm(-1 if kind is None else KINDS.index(kind), n, number, int(persist))


def disarm():
    """Calls that were failed."""
    return _lib.hostile_disarm()


def seen():
    """Calls of each kind since arm()."""
    return {name: count for i, name in enumerate(KINDS) if (count := _lib.hostile_seen(i))}


def move_clock(seconds):
    """The wall clock is that much ahead; negative: behind."""
    _lib.hostile_move_clock(ctypes.c_longlong(round(seconds * 1e9)))


def stop_exits():
    """A thread that Python ends when its interpreter does stops instead, as from Python 3.14 on."""
    _lib.hostile_stop_exits()


def take_locks_away():
    """flock() succeeds for everybody from now on, in this process and its children."""
    _lib.hostile_take_locks_away(1)


def trace(pid, k):
    """(wait status, calls that change files) of a stopped child, killed as it enters the k-th of these; 0: never."""
    calls = ctypes.c_int(0)
    status = _lib.hostile_trace(pid, k, ctypes.byref(calls))
    return status, calls.value
