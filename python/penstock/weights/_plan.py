# SPDX-License-Identifier: Apache-2.0
"""What a budget of memory keeps and reads, before anything is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock import _core
from penstock._arguments import got, seconds, size, whole
from penstock.weights._folders import paths_of


@dataclass(frozen=True)
class PlannedUnit:
    """A layer, or a module outside of layers. bytes: of its tensors. read_bytes: of them, for each token."""

    name: str
    bytes: int
    read_bytes: int


@dataclass(frozen=True)
class Plan:
    """What stream() would do with a budget. All sizes are bytes.

    memory_bytes: the budget; used_bytes of it are taken: resident_bytes by what stays, slots * slot_bytes by what
        passes through.
    read_bytes: in each pass, which is a token when decoding.
    weight_bytes: of all tensors of the files.
    least_memory_bytes: the smallest budget that works; the size of least_tensor sets it.
    rows: embeddings that are read by row, and are in no unit.
    rate: bytes a second, given or measured, or None. seconds: of a pass at that rate, or None."""

    memory_bytes: int
    used_bytes: int
    resident_bytes: int
    slots: int
    slot_bytes: int
    read_bytes: int
    weight_bytes: int
    least_memory_bytes: int
    least_tensor: str
    rows: tuple[str, ...]
    units: tuple[PlannedUnit, ...]
    rate: float | None
    seconds: float | None


def plan(
    folder: Any | Sequence[Any],
    memory: int | str,
    *,
    rate: float | str | None = None,
    compute_s: float = 0.0,
    slots: int = 2,
) -> Plan:
    """What stream(model, folder, memory=memory) keeps in memory and reads for each token, by the names and shapes in
    the files alone: no model is made, and no tensor is read.

    folder: as for stream(); a list for several devices.
    memory: bytes, or "8GiB".
    rate: of the device, bytes a second, or "3GB/s"; "measured" reads the files for a second. Without it there are no
        seconds.
    compute_s: seconds of a token with all weights in memory. With 0 the seconds are the bound of the device.
    Raises MemoryError for a budget that is too small, with the least that works and the tensor that sets it."""
    if rate is None or rate == "measured":
        number = 0.0 if rate is None else -1.0
    elif isinstance(rate, str):
        number = float(size("plan", "rate", rate.removesuffix("/s"), 1))
    else:
        number = _rate(rate)
    found = _core.forecast_weights(
        [str(path) for path in paths_of(folder, "plan")],
        size("plan", "memory", memory),
        whole("plan", "slots", slots, 2, 1024),
        number,
        seconds("plan", "compute_s", compute_s),
    )
    found["units"] = tuple(PlannedUnit(*unit) for unit in found["units"])
    if rate is None:
        found["rate"] = found["seconds"] = None
    return Plan(**found)


def _rate(value: Any) -> float:
    if isinstance(value, (bytes, bool)) or not hasattr(value, "__float__"):
        raise TypeError(f'plan: rate: expected bytes a second, "3GB/s" or "measured", got {got(value)}')
    if not float(value) > 0:
        raise ValueError(f"plan: rate: expected more than 0 bytes a second, got {value}")
    return float(value)
