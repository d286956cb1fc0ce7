# SPDX-License-Identifier: Apache-2.0
"""The bytes that a memory budget keeps and reads, computed before anything is run."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock import _core
from penstock._base import arguments as _arguments
from penstock._base.arguments import got, seconds, size, whole
from penstock.weights._folders import Folders, paths_of, shards_named

_PRODUCTS_S = 0.3
_PRODUCTS_BYTES = 256 << 20  # weights that are used in turn: too many for a cache
_PRODUCT_BYTES_MAX = 64 << 20  # weights of one product


@dataclass(frozen=True)
class PlannedUnit:
    """A layer, or a module outside of layers. bytes: of its tensors. read_bytes: bytes of them read for each token."""

    name: str
    bytes: int
    read_bytes: int


@dataclass(frozen=True)
class PlannedExperts:
    """The experts of a mixture, which are read when a router has chosen them. Sizes are bytes.

    layers, experts: their numbers in the model. chosen: experts that a token uses, in all layers.
    bytes: of all experts. memory_bytes: their share of the budget: `slots` slots of slot_bytes.
    hits: the expected share of chosen experts that are in memory: slots / experts, as if the router chose each equally
        often. With a router that prefers some, the share is higher.
    read_bytes: expected bytes of the other chosen experts, for each token."""

    layers: int
    experts: int
    chosen: int
    bytes: int
    memory_bytes: int
    slots: int
    slot_bytes: int
    hits: float
    read_bytes: int


@dataclass(frozen=True)
class Plan:
    """The effect of a budget in stream(). All sizes are bytes.

    memory_bytes: the budget. used_bytes: the used part of it: resident_bytes for weights that stay, and
        slots * slot_bytes for weights that are read in each pass.
    read_bytes: in each pass, which is one token in decoding; for experts the expected value.
    token_bytes: weights that compute a token, without embeddings (it uses a row) and experts that it does not use.
    weight_bytes: of all tensors of the files.
    least_memory_bytes: the smallest budget that works; the size of least_tensor determines it.
    rows: embeddings that are read by row, and are in no unit. Small tensors that always stay are in none either.
    experts: None if no expert is read by itself: the units then contain them; otherwise they do not.
    rate: bytes a second, given or measured, or None. compute_s: seconds of a token with all weights in memory, given or
        measured. seconds: of a pass at that rate, or None."""

    memory_bytes: int
    used_bytes: int
    resident_bytes: int
    slots: int
    slot_bytes: int
    read_bytes: int
    token_bytes: int
    weight_bytes: int
    least_memory_bytes: int
    least_tensor: str
    rows: tuple[str, ...]
    units: tuple[PlannedUnit, ...]
    experts: PlannedExperts | None
    rate: float | None
    compute_s: float
    seconds: float | None


@_arguments.named
def plan(
    folder: Any | Sequence[Any],
    memory: int | str,
    *,
    rate: float | str | None = None,
    compute_s: float | str = 0.0,
    slots: int = 2,
    experts: int | None = None,
) -> Plan:
    """Computes what stream(model, folder, memory=memory) keeps in memory and reads for each token, from the names and
    shapes in the files alone: no model is made, and no tensor is read.

    folder: as for stream(); a list for several devices.
    memory: bytes, or "8GiB".
    rate: of the device, bytes a second, "3GB/s" or "100Gbit/s"; "measured" reads the files for a second. Without it
        `seconds` is None.
    compute_s: seconds of a token with all weights in memory. With 0, `seconds` is the bound of the device.
        "measured": token_bytes at a measured rate. torch multiplies one row with weights, of the width and element type
        of most of the bytes, for 0.3 s with its present number of threads. Without torch, the rate of reading memory is
        measured. The rest of a pass (attention, calls of modules) is not included.
    experts: the number that a token uses in each layer. None: from config.json, or all.
    Raises MemoryError for a budget that is too small, with the minimum and the tensor that determines it."""
    if rate is None or rate == "measured":
        number = 0.0 if rate is None else -1.0
    else:
        number = _rate(_core.parse_rate(rate, "plan: rate") if isinstance(rate, str) else rate)
    paths = paths_of(folder, "plan")
    memory, slots = size("plan", "memory", memory), whole("plan", "slots", slots, 2, 1024)
    if experts is not None:
        experts = whole("plan", "experts", experts, 1, 1 << 32)
    compute_rate = 0.0
    if isinstance(compute_s, str):
        if compute_s != "measured":
            raise ValueError(f'plan: compute_s: expected seconds or "measured", got {got(compute_s)}')
        compute_s, compute_rate = 0.0, _compute_rate(Folders(paths, "plan"))
    given, compute_s = [str(path) for path in paths], seconds("plan", "compute_s", compute_s)
    with shards_named("plan"):
        found = _core.forecast_weights(given, memory, slots, number, compute_s, compute_rate, experts)
    found["units"] = tuple(PlannedUnit(*unit) for unit in found["units"])
    found["experts"] = None if found["experts"] is None else PlannedExperts(*found["experts"])
    if rate is None:
        found["rate"] = found["seconds"] = None
    return Plan(**found)


def _compute_rate(files: Folders) -> float:
    """Bytes of weights a second that torch multiplies with one row; -1: measure the memory instead."""
    by_kind: dict[tuple[str, tuple[int, ...]], int] = {}
    for info in files.infos.values():
        if len(info.shape) == 2:
            kind = info.dtype, tuple(info.shape)
            by_kind[kind] = by_kind.get(kind, 0) + info.nbytes
    if not by_kind or importlib.util.find_spec("torch") is None:
        return -1.0
    import torch

    name, (rows, columns) = max(by_kind, key=lambda kind: by_kind[kind])
    dtype = getattr(torch, name, None)
    if dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64) or not rows * columns:
        return -1.0
    rows = max(1, min(rows, _PRODUCT_BYTES_MAX // (columns * dtype.itemsize)))
    nbytes = rows * columns * dtype.itemsize
    with torch.no_grad():
        count = max(1, _PRODUCTS_BYTES // max(nbytes, _PRODUCTS_BYTES // 4096))
        weights = [torch.full((rows, columns), 0.01, dtype=dtype) for _ in range(count)]
        row = torch.full((1, columns), 0.01, dtype=dtype)
        torch.nn.functional.linear(row, weights[0])
        done, begin = 0, time.perf_counter()
        while (passed := time.perf_counter() - begin) < _PRODUCTS_S or done < count:
            torch.nn.functional.linear(row, weights[done % count])
            done += 1
    return done * nbytes / passed


def _rate(value: Any) -> float:
    if isinstance(value, (bytes, bool)) or not hasattr(value, "__float__"):
        raise TypeError(f'plan: rate: expected bytes a second, "3GB/s" or "measured", got {got(value)}')
    if not float(value) > 0:
        raise ValueError(f"plan: rate: expected more than 0 bytes a second, got {value}")
    return float(value)
