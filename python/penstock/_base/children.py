# SPDX-License-Identifier: Apache-2.0
"""The end of a child of multiprocessing: it leaves with os._exit(), so neither atexit nor C's exit() runs there. Its
finalizers do, and they finish the saves in the background, as at the end of other processes."""

import os
import sys

from penstock import _core

_AFTER_OTHERS = -100  # after the finalizers of queues and pools
_watched = 0  # the process


def at_exit() -> None:
    """Finishes the saves. The exit status becomes 1 where a failure was not heard and it would be 0."""
    unheard = _core._async.at_exit()
    error = sys.exc_info()[1]  # that ends the child
    if unheard and (error is None or (isinstance(error, SystemExit) and error.code in (None, 0))):
        raise SystemExit(1)


def watch() -> None:
    """Before a save in the background begins. It does not import multiprocessing: a program that runs others as
    `__main__` has to come first, and a child of multiprocessing has it."""
    global _watched
    if _watched == os.getpid():
        return
    _watched = os.getpid()
    if "multiprocessing" in sys.modules:
        import multiprocessing.util

        if multiprocessing.parent_process() is not None:
            multiprocessing.util.Finalize(None, at_exit, exitpriority=_AFTER_OTHERS)
