# SPDX-License-Identifier: Apache-2.0
"""Rows of tables that are larger than memory, and the graphs whose nodes they belong to (docs/features.md).

_store         penstock.FeatureStore
_writing       tables and iterators of rows on their way to a feature file
_prefetch      look-ahead: batches sampled, hinted and read before they are asked for
_graph         graphs, and the sampling of neighbourhoods
_simulation    what a cache of rows would save
pyg            PyTorch Geometric's FeatureStore, GraphStore and BaseSampler; imports torch_geometric
gids           the class of the GIDS project over a feature file; imports torch
graphbolt      a table as a feature of DGL's GraphBolt; imports torch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import _arguments, _core
from penstock._progress import Progress, reporter
from penstock.features._graph import Graph, NeighborSampler, Sample, hot_rows, zipf_rows
from penstock.features._prefetch import Prefetch
from penstock.features._simulation import RowSimulation, simulate
from penstock.features._store import FeatureStats, FeatureStore, FeatureTable

__all__ = [
    "FeatureProblem",
    "FeatureStats",
    "FeatureStore",
    "FeatureTable",
    "Graph",
    "NeighborSampler",
    "Prefetch",
    "RowSimulation",
    "Sample",
    "hot_rows",
    "simulate",
    "verify",
    "zipf_rows",
]


@dataclass(frozen=True)
class FeatureProblem:
    """Bytes of a table that do not match their checksum, or could not be read.

    table: its name. path: of the file. offset, nbytes: of the chunk in the file. row: the first one with bytes in it.
    message: what is wrong."""

    table: str
    path: str
    offset: int
    nbytes: int
    row: int
    message: str


@_arguments.named
def verify(path: Any, *, progress: Progress = True) -> list[FeatureProblem]:
    """Reads all rows of a feature file from the device and compares them with their checksums. Gives all problems, in
    the order of the tables: an empty list for a sound file.

    progress: True (a line on stderr where it takes over two seconds), None, or a function of (done, total) in bytes.
    Raises penstock.Damaged where the header or the checksums themselves are damaged, penstock.Unsupported for a `.npy`,
    which has none. Blocks; thread-safe; Ctrl-C stops it."""
    return [FeatureProblem(*one) for one in _core.verify_features(path, reporter(progress, "features verify"))]
