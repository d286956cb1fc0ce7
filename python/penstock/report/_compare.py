# SPDX-License-Identifier: Apache-2.0
"""Comparison of several files: bandwidth by the number of folders, for runs that differ only in that."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from penstock.report import _bench, _figures as figures
from penstock.report._model import Chart, Section
from penstock.report._read import Document
from penstock.report._units import size_text

_LINES_MAX = 8


def _of_bench(document: Document) -> list[tuple[str, int, float]]:
    found = []
    for job in _bench.read(document).jobs:
        rate = job.median("penstock")
        if rate is not None:
            found.append((f"bench {job.name}", len(job.paths), rate))
    return found


def _of_ds_io(document: Document) -> list[tuple[str, int, float]]:
    run = document.root.need("ds_io")
    block = size_text(run.need("block_bytes").whole(1))
    name = f"ds_io {run.need('op').text()} {block} x {run.need('depth').whole(1)}, {run.need('engine').text()}"
    name += "".join(f", {key}" for key in ("fsync", "validate") if run.need(key).flag())
    return [(name, len(list(run.need("folders").items())), run.need("bytes_per_s").number())]


def section(documents: Sequence[Document]) -> Section | None:
    """One chart, or None if no two runs differ only in the number of folders. ReportError."""
    rates: dict[str, dict[int, list[float]]] = {}
    files: dict[str, None] = {}
    for document in documents:
        reader = {"bench": _of_bench, "ds_io": _of_ds_io}.get(document.kind)
        for name, count, rate in reader(document) if reader else []:
            rates.setdefault(name, {}).setdefault(count, []).append(rate)
            files[document.path] = None
    lines = [
        (name, [(count, statistics.fmean(values)) for count, values in sorted(counts.items())])
        for name, counts in rates.items()
        if len(counts) > 1
    ]
    if not lines:
        return None
    chart = Chart(
        "Bandwidth by number of folders",
        "Solid: measured, all folders at once; one folder is the mean of those measured alone. Dashed: so many times "
        "the smallest number. The nearer the two, the less the folders stand in each other's way; folders of one "
        "device share it and stay flat.",
        figures.scaling(lines[:_LINES_MAX], "folders"),
    )
    return Section("Several folders", ", ".join(files), [chart])
