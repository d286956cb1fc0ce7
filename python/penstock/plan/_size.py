# SPDX-License-Identifier: Apache-2.0
"""The size that a data set needs."""

from __future__ import annotations

from penstock._base.arguments import named
from penstock.plan._answer import Answer
from penstock.plan._ask import ask


@named
def size(
    model: str | None = None,
    *,
    memory_bytes: float | str,
    preset: str | None = None,
    accelerator: str | None = None,
    accelerators: float | str = 1,
    hosts: float | str = 1,
    batch: float | str | None = None,
    bytes_per_sample: float | str | None = None,
    samples_per_file: float | str | None = None,
    steps: float | str = 500,
    memory_factor: float | str = 5,
) -> Answer:
    """The size that a data set needs so that a benchmark measures storage and not the page cache: 5 x the memory of all
    hosts, and 500 steps of all accelerators (the rule of MLPerf Storage).

        penstock.plan.size("unet3d", accelerators=8, memory_bytes="512GiB")["data_bytes"].value

    model: as for train(); None if batch and bytes_per_sample are given.
    memory_bytes: of one host: bytes or "512GiB".
    batch, bytes_per_sample, samples_per_file: instead of those of the preset.
    Raises ValueError as train() does. Thread-safe."""
    return ask("size", locals())
