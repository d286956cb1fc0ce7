# SPDX-License-Identifier: Apache-2.0
"""Rows of tables that are larger than memory, and the graphs whose nodes they belong to (docs/features.md).

_store         penstock.FeatureStore
_table         a table of one
_writing       writes tables and iterators of rows to a feature file
_prefetch      look-ahead: samples, hints and reads batches before they are requested
_graph         graphs, and the sampling of neighbourhoods
_simulation    simulates a cache of rows
pyg            PyTorch Geometric's FeatureStore, GraphStore and BaseSampler; imports torch_geometric
gids           the class of the GIDS project over a feature file; imports torch
graphbolt      a table as a feature of DGL's GraphBolt; imports torch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import _core
from penstock._base import arguments as _arguments
from penstock._base.progress import Progress, reporter
from penstock.features._graph import Graph, NeighborSampler, Sample, hot_rows, zipf_rows
from penstock.features._prefetch import Prefetch
from penstock.features._simulation import RowSimulation, simulate
from penstock.features._store import FeatureStats, FeatureStore
from penstock.features._table import FeatureTable

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

    table: its name. path: of the file. offset, nbytes: of the chunk in the file. row: the first row in the chunk.
    message: describes the problem."""

    table: str
    path: str
    offset: int
    nbytes: int
    row: int
    message: str


@_arguments.named
def verify(path: Any, *, progress: Progress = True) -> list[FeatureProblem]:
    """Reads all rows of a feature file from the device and compares them with their checksums. Returns all problems, in
    the order of the tables: an empty list for a valid file.

    progress: True (a line on stderr if it takes more than two seconds), None, or a function of (done, total) in bytes.
    Raises penstock.Damaged if the header or the checksums themselves are damaged, penstock.Unsupported for a `.npy`,
    which has no checksums. Blocks; thread-safe; Ctrl-C stops it."""
    return [FeatureProblem(*one) for one in _core.verify_features(path, reporter(progress, "features verify"))]
