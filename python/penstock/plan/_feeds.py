# SPDX-License-Identifier: Apache-2.0
"""The number of accelerators that a storage feeds."""

from __future__ import annotations

from penstock._base.arguments import named
from penstock.plan._answer import Answer
from penstock.plan._ask import ask


@named
def feeds(
    *,
    files: float | str | None = None,
    samples: float | str | None = None,
    writes: float | str | None = None,
    files_low: float | str | None = None,
    files_high: float | str | None = None,
    samples_low: float | str | None = None,
    samples_high: float | str | None = None,
    writes_low: float | str | None = None,
    writes_high: float | str | None = None,
    model: str | None = None,
    preset: str | None = None,
    accelerator: str | None = None,
    samples_per_second: float | str | None = None,
    bytes_per_sample: float | str | None = None,
    checkpoint_bytes: float | str | None = None,
    within: float | str = 360,
) -> Answer:
    """The number of accelerators that a storage with these rates feeds, and whether a checkpoint is written in time.
    The command `penstock plan measure` measures the rates and gives the same answer.

        penstock.plan.feeds(files="25GB/s", model="unet3d", preset="storage-2.0")["accelerators"].value

    files: bytes a second of sequential reads (large files, shards): a number, or "25GB/s". samples: of random reads of
        128 KiB (one file for each sample). writes: of durable writes. Each with the ends of an interval, _low and
        _high.
    model, preset, accelerator, samples_per_second, bytes_per_sample: as for train(); without them the answer is a table
        of all presets.
    checkpoint_bytes, within: the size of a checkpoint, and the seconds that writing it may take.
    Raises ValueError as train() does. Thread-safe."""
    return ask("feeds", locals())
