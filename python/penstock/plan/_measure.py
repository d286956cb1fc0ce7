# SPDX-License-Identifier: Apache-2.0
"""Measures the rates of folders, and the number of accelerators that they feed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock._base.arguments import named
from penstock.plan._answer import Answer
from penstock.plan._ask import ask, text
from penstock.plan._measure_options import SECONDS, Measure, MeasureStep


@named
def measure(
    paths: Any,
    *,
    seconds: float | str = SECONDS,
    size: int | str | None = None,
    progress: Callable[[MeasureStep], object] | None = None,
    model: str | None = None,
    preset: str | None = None,
    accelerator: str | None = None,
    samples_per_second: float | str | None = None,
    bytes_per_sample: float | str | None = None,
    checkpoint_bytes: float | str | None = None,
    within: float | str = 360,
) -> Answer:
    """Reads and writes scratch files in folders, all concurrently, and says how many accelerators they feed.

        answer = penstock.plan.measure(["/mnt/a", "/mnt/b"], model="unet3d")
        answer["files_bytes_per_second"].value, answer["accelerators_low"].value

    paths: a folder, a file or a block device, or several. Files and devices are only read.
    seconds: the total time, 0.1 to 3600. size: of a scratch file, 4 MiB or more: bytes or "1GiB"; by default 1 GiB, or
        as much as is written in five seconds.
    progress: called with a MeasureStep about ten times a second. Its exceptions stop the measurement and are raised;
        Ctrl-C stops it too. Scratch files have no name: nothing is left, however the process ends.
    The others as for feeds(), which computes the answer from the rates. Only direct I/O is used: no figure comes from
    the page cache of this host.
    Raises ValueError as feeds() does, for numbers out of range, and for a repeated path; penstock.Unsupported for a
    file system without direct I/O; OSError for a path that is missing, full, or may not be written. Thread-safe; other
    Python threads run meanwhile."""
    options = {name: value for name, value in locals().items() if name not in ("paths", "seconds", "size", "progress")}
    for name in ("model", "preset", "accelerator"):
        text("measure", name, options[name])
    return ask("feeds", {**options, "measure": Measure(paths, seconds, size, progress)})
