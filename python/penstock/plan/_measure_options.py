# SPDX-License-Identifier: Apache-2.0
"""Options of a measurement: the paths, and the time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock import _core
from penstock._base.arguments import got, size

SECONDS = 20.0


@dataclass(frozen=True)
class MeasureStep:
    """A report during the measurement of folders. step: from 1 to steps; 0 while scratch files are made. seconds_left:
    of the whole measurement, approximately. bytes_per_second: of this step so far."""

    doing: str
    step: int
    steps: int
    seconds_left: float
    bytes_per_second: float


@dataclass(frozen=True)
class Measure:
    """Paths to measure for train(), checkpoint(), restore() and stream(), with the options of measure()."""

    paths: Any
    seconds: float | str = SECONDS
    size: int | str | None = None
    progress: Callable[[MeasureStep], object] | None = None


def measure_of(verb: str, value: Any) -> tuple[list[bytes], float, int, Any]:
    """Returns paths, seconds, bytes of a scratch file (0: the default), and a function that is called with the members
    of a MeasureStep, or None."""
    one = value if isinstance(value, Measure) else Measure(value)
    seconds = one.seconds
    if isinstance(seconds, str):
        seconds = _core.parse_seconds(seconds, f"plan {verb}: seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        raise (TypeError if not isinstance(seconds, float) else ValueError)(
            f"plan {verb}: seconds: expected 0.1 to 3600, got {got(seconds)}"
        )
    if one.progress is not None and not callable(one.progress):
        raise TypeError(f"plan {verb}: progress: expected a function, got {got(one.progress)}")
    progress = one.progress
    return (
        _paths(verb, one.paths),
        float(seconds),
        0 if one.size is None else size(f"plan {verb}", "size", one.size, 4 << 20, 1 << 60),
        None if progress is None else lambda *members: progress(MeasureStep(*members)),
    )


def _paths(verb: str, value: Any) -> list[bytes]:
    paths = [value] if isinstance(value, (str, bytes, os.PathLike)) else value
    if not isinstance(paths, Iterable):
        raise TypeError(f"plan {verb}: paths: expected a path or several, got {got(value)}")
    out = []
    for path in paths:
        try:
            out.append(os.fsencode(path))
        except (TypeError, UnicodeEncodeError):
            raise TypeError(f"plan {verb}: paths: expected paths, got {got(path)}") from None
    return out
