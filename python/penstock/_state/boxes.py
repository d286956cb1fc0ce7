# SPDX-License-Identifier: Apache-2.0
"""An index of Python as a box of a tensor: the one place where one becomes the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock._base.arguments import got

_ALL = slice(None, None, 1)


def box(index: Any, shape: Sequence[int], before: str = "") -> tuple[list[int], list[int], tuple[Any, ...]]:
    """The smallest box that contains what an index selects (begin, end), and the index to apply to the box; () if it
    selects all of that. Indices are integers, slices with steps of 1 or more, `...`, and None for a new dimension.
    before: of messages. IndexError, TypeError, ValueError."""
    begin: list[int] = []
    end: list[int] = []
    after: list[Any] = []
    for wanted in _spread(index if isinstance(index, tuple) else (index,), len(shape), before):
        if wanted is None:
            after.append(None)
            continue
        dimension, extent = len(begin), shape[len(begin)]
        if isinstance(wanted, slice):
            first, last, step = wanted.indices(extent)
            if step < 1:
                raise ValueError(f"{before}dimension {dimension}: expected a step of 1 or more, got {step}")
            last = max(first, last)
            after.append(slice(None, None, step))
        else:
            if isinstance(wanted, bool) or not hasattr(wanted, "__index__") or getattr(wanted, "shape", ()) != ():
                raise TypeError(
                    f"{before}dimension {dimension}: expected an integer, a slice or ..., got {got(wanted)}"
                )
            place = wanted.__index__()
            if not -extent <= place < extent:
                wants = f"expected {-extent} to {extent - 1}" if extent else "it is empty"
                raise IndexError(f"{before}dimension {dimension}: {wants}, got {place}")
            first, last = place % extent, place % extent + 1
            after.append(0)
        begin.append(first)
        end.append(last)
    return begin, end, tuple(after) if any(one != _ALL for one in after) else ()


def _spread(index: tuple[Any, ...], dimensions: int, before: str) -> tuple[Any, ...]:
    """The index with slices in the place of `...`."""
    dots = [i for i, wanted in enumerate(index) if wanted is Ellipsis]
    if len(dots) > 1:
        raise IndexError(f"{before}more than one '...'")
    taken = sum(wanted is not None for wanted in index) - len(dots)
    if taken > dimensions:
        raise IndexError(f"{before}{taken} indices, and it has {dimensions} dimensions")
    at = dots[0] if dots else len(index)
    return (*index[:at], *[slice(None)] * (dimensions - taken), *index[at + 1 :])
