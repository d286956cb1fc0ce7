# SPDX-License-Identifier: Apache-2.0
"""Simulates a cache of rows: the reads that it would save for the rows of given batches."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock import _core
from penstock._base import arguments as _arguments, gathered as _gathered


@dataclass(frozen=True)
class RowSimulation:
    """The reads of a policy. A row that is repeated in a batch counts once.

    batches: the number of counted batches. rows: the rows that they use. rows_read: of these, those that were not in
    memory. preloaded: hot rows that were read before the first batch."""

    batches: int
    rows: int
    rows_read: int
    preloaded: int

    @property
    def hit_rate(self) -> float:
        """The share of rows that were in memory: 0 to 1."""
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
    """Simulates the memory of a FeatureStore with room for `slots` rows, for the rows of these batches. It reads no
    table. Returns a dict by policy.

        found = penstock.features.simulate(batches, 100_000, ["window", "belady"])
        print(found["window"].hit_rate)

    trace: batches, each with ids as for gather(). Or a path: a `.npy` of ids (in two dimensions a row is a batch; in
    one dimension `batch` ids are a batch), or a file that `penstock features simulate` reads. policies: those of
    FeatureStore, "static", "clock", "s3fifo" and "window", by its own code. Or bounds, in which any row can be in any
    slot: "fifo", "lru", "s3fifo_whole", and "belady", which knows all batches. None: all of them. window: batches that
    are hinted ahead, 0 to 30, only for "window". warm_up: batches at the beginning that are not counted. hot: ids that
    are in memory before the first batch. ValueError for an unknown policy or an invalid trace. Blocks; thread-safe."""
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
