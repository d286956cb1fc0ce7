# SPDX-License-Identifier: Apache-2.0
"""The logger "penstock": records of saves and loads. Silent unless the program configures logging."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from penstock import _core

logger = logging.getLogger("penstock")
logger.addHandler(logging.NullHandler())


def _rate(size: int, began: float) -> str:
    seconds = time.perf_counter() - began
    return f"{size / 1e9:.3f} GB in {seconds:.3f} s, {size / max(seconds, 1e-9) / 1e9:.2f} GB/s"


def _harmless(log: Callable[..., None]) -> Callable[..., None]:
    """Drops errors of logging, such as lack of memory: they must not fail a save that is done."""

    @functools.wraps(log)
    def call(*arguments: Any) -> None:
        with contextlib.suppress(Exception):
            log(*arguments)

    return call


def warn(message: str) -> None:
    """A RuntimeWarning at the line that called the package."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "penstock":
        level, frame = level + 1, frame.f_back
    warnings.warn(f"penstock: {message}", RuntimeWarning, stacklevel=level)


@contextlib.contextmanager
def timed(what: str, size: int) -> Iterator[None]:
    """INFO when the block ends without an error."""
    began = time.perf_counter()
    yield
    _harmless(logger.info)("%s: %s", what, _rate(size, began))


@_harmless
def saved(info: _core.CheckpointInfo, began: float, background: str = "") -> None:
    """INFO, and a WARNING for anything unusual, such as I/O that is not direct."""
    size = info.written_bytes
    linked = f" ({(info.tensor_bytes - size) / 1e9:.3f} GB more linked)" if info.linked_shards else ""
    logger.info("saved '%s'%s: %s%s", info.path, background, _rate(size, began), linked)
    if info.note:
        logger.warning("saved '%s': %s", info.path, info.note)


@_harmless
def pickled(places: str) -> None:
    """INFO with the objects that a save pickles."""
    logger.info("save: pickled, and made again by load(pickle=True) alone: %s", places)


@_harmless
def waits(whom: str) -> None:
    """INFO with the rank that a save waits for."""
    logger.info("%s", whom)


@_harmless
def watch(pending: _core.PendingSave[Any], what: str) -> None:
    """Logs the end of a background save. It does not count as reporting the error: result() still raises that."""
    if not logger.isEnabledFor(logging.WARNING):
        return
    began = time.perf_counter()

    def ended(future: Any) -> None:
        if not future.durable():
            state = "was cancelled" if future.cancelled() else "failed; result() has the reason"
            logger.warning("the background save of %s %s", what, state)
            return
        info = future.result()
        if info is not None:
            saved(info, began, " in the background")
        else:
            logger.info("saved %s in the background: %s", what, _rate(future.total_bytes, began))

    pending.add_done_callback(ended)
