# SPDX-License-Identifier: Apache-2.0
"""What a cache of rows would save, by the rows that batches ask for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock import _arguments, _core, _gathered


@dataclass(frozen=True)
class RowSimulation:
    """What a policy would have read. A row that a batch has several times counts once.

    batches: that were counted. rows: that they wanted. rows_read: of these, those that were not in memory. preloaded:
    hot rows that were read before the first batch."""

    batches: int
    rows: int
    rows_read: int
    preloaded: int

    @property
    def hit_rate(self) -> float:
        """Of the rows, those that were in memory: 0 to 1."""
        return 1 - self.rows_read / self.rows if self.rows else 0.0


@_arguments.named
def simulate(
    trace: Any,
    slots: int,
    policies: Iterable[str] | None = None,
    *,
    window: int = 8,
    warm_up: int = 0,
    hot: Any = None,
    batch: int = 0,
) -> dict[str, RowSimulation]:
    """Runs policies over the rows that batches ask for, and reads no table: what FeatureStore's memory for `slots` rows
    would save. A dict by policy.

        found = penstock.features.simulate(batches, 100_000, ["window", "belady"])
        print(found["window"].hit_rate)

    trace: batches, each with ids as gather() takes them; or a path: a `.npy` of ids (in two dimensions a batch a row,
    in one `batch` ids a batch), or what `penstock features simulate` reads. policies: of FeatureStore, "static",
    "clock", "s3fifo" and "window", by its own code; bounds, with any row in any slot, "fifo", "lru", "s3fifo_whole" and
    "belady", which knows all batches; None: all of them. window: batches that are hinted ahead, 0 to 30, for "window"
    alone. warm_up: batches at the beginning that are not counted. hot: ids that are in memory before the first batch.
    Raises ValueError for a policy that is not known, and for what is no trace. Blocks; thread-safe."""
    if isinstance(policies, str):
        raise TypeError(f"simulate: policies: expected a list of names, got {_arguments.got(policies)}; give [name]")
    is_path = isinstance(trace, (str, bytes, os.PathLike))
    if not is_path and not hasattr(trace, "__iter__"):
        raise TypeError(f"simulate: trace: expected batches of ids, or a path, got {_arguments.got(trace)}")
    batches = trace if is_path else [_gathered.numbers(ids) for ids in trace]
    if hot is not None:
        hot = _gathered.numbers(hot)
    runs = _core.simulate_rows(batches, is_path, batch, slots, policies, window, warm_up, hot)
    return {name: RowSimulation(*figures) for name, *figures in runs}
