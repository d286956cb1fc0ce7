# SPDX-License-Identifier: Apache-2.0
"""The read rate of a training job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import _core
from penstock._base.arguments import named
from penstock.plan._answer import Answer
from penstock.plan._ask import ask


@dataclass(frozen=True)
class Preset:
    """A published throughput of one accelerator. batch, utilisation (the minimum to pass): 0 if the source has
    none."""

    preset: str
    model: str
    accelerator: str
    samples_per_second: float
    bytes_per_sample: float
    batch: float
    utilisation: float
    samples_per_file: float
    source: str
    bytes_source: str


def presets() -> tuple[Preset, ...]:
    """All published throughputs for train() and size(), with their sources."""
    return tuple(Preset(*row) for row in _core.plan_presets())


@named
def train(
    model: str | None = None,
    *,
    preset: str | None = None,
    accelerator: str | None = None,
    accelerators: float | str = 1,
    utilisation: float | str = 1,
    samples_per_second: float | str | None = None,
    bytes_per_sample: float | str | None = None,
    storage: float | str | None = None,
    storage_low: float | str | None = None,
    storage_high: float | str | None = None,
    measure: Any = None,
) -> Answer:
    """The read rate of a training job in which no accelerator waits: samples/s of an accelerator x bytes of a sample x
    accelerators x the share of time in which they compute.

        penstock.plan.train("resnet50", accelerators=8)["read_bytes_per_second"].value     # 6.097e9

    model: "resnet50", "unet3d", ...: presets() lists them. None if samples_per_second and bytes_per_sample are given.
    preset: the source of the figures: "snia-2024", "training-3.1", "training-5.1" (logged throughputs), "storage-1.0",
        "-2.0", "-3.0", "dlio" (computing times); by default the first that has the model.
    accelerator: "h100", ...; by default the first of the preset.
    utilisation: 0.9 or "90%".
    samples_per_second: of one accelerator. bytes_per_sample: bytes or "150KB". Both instead of those of the preset.
    storage: bytes/s that the storage reads; the answer then says whether that is enough. storage_low, storage_high: the
        ends of its interval. measure: instead, folders to measure first: a path, a list of paths, or a Measure.
    Raises ValueError for a number that is not above 0 or does not match the others, and for an unknown name, with the
    nearest one; with `measure` also the errors of measure(). Thread-safe."""
    return ask("train", locals())
