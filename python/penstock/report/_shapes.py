# SPDX-License-Identifier: Apache-2.0
"""The section of `penstock bench --shapes --json`."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from penstock.report import _figures as figures
from penstock.report._common import command_text, environment_table
from penstock.report._model import Cell, Chart, Part, Section, Table, Text, row
from penstock.report._read import Document, Field
from penstock.report._units import time_text

_VERDICTS = ("faster", "level", "slower")


@dataclass
class _Row:
    """One shape from one state."""

    name: str
    sides: dict[str, float]  # medians, in seconds
    best_stock: str
    ratio: tuple[float, float, float]  # median, minimum and maximum of the rounds
    verdict: str


def _row(found: Field) -> _Row:
    sides = {}
    for side in found.need("sides").some():
        sides[side.need("side").text()] = statistics.median(s.number() for s in side.need("seconds").some())
    ratio = found.need("ratio")
    return _Row(
        f"{found.need('what').text()}, {found.need('state').text()}",
        sides,
        found.need("best_stock").one_of(sides),
        (ratio.need("median").number(), ratio.need("min").number(), ratio.need("max").number()),
        found.need("verdict").one_of(_VERDICTS),
    )


def _chart(rows: list[_Row]) -> Chart:
    dots = [
        figures.Ratio(one.name, *one.ratio, [], one.verdict, f"best stock way: {one.best_stock}")
        for one in rows
        if one.ratio[0] > 0
    ]
    return Chart(
        "Time of Penstock / time of the best stock way",
        "A dot left of 1: Penstock is faster. The whisker goes from the least to the most of the rounds. Cold: not in "
        "the page cache; warm: all in it; dirty: just written, not synced; new: the files do not exist before.",
        figures.ratios(dots, "Penstock / best stock way, time (logarithmic)"),
        height=140 + 24 * len(dots),
    )


def _table(rows: list[_Row]) -> Table:
    lines = []
    for one in rows:
        others = ", ".join(
            f"{side} {time_text(s * 1e9)}" for side, s in one.sides.items() if side not in ("penstock", one.best_stock)
        )
        ours, best = (
            time_text(one.sides[side] * 1e9) if side in one.sides else "" for side in ("penstock", one.best_stock)
        )
        texts = row(one.name, ours, f"{one.best_stock} {best}", others, f"{one.ratio[0]:.2f}")
        lines.append([*texts, Cell(one.verdict, one.verdict)])
    return Table("Figures", ["what", "Penstock", "best stock way", "other ways", "ratio", "verdict"], lines)


def verdict(rows: list[Field]) -> str:
    """The counts, in a sentence."""
    words = [found.need("verdict").one_of(_VERDICTS) for found in rows]
    told = ", ".join(f"{words.count(word)} {word}" for word in _VERDICTS)
    return f"Compared with the best stock way, Penstock is, of {len(words)} rows: {told}."


def section(document: Document) -> Section:
    """The ratios, the figures, and the rows that could not be measured. ReportError."""
    root = document.root
    fields = root.need("rows").some()
    measured = [found for found in fields if not found.get("skipped")]
    rows = [_row(found) for found in measured]
    parts: list[Part] = [Text(verdict(measured))]
    if command_text(root):
        parts.append(Text(command_text(root), "Command", code=True))
    if rows:
        parts += [_chart(rows), _table(rows)]
    skipped = [f for f in fields if f.get("skipped")]
    if skipped:
        lines = [row(f.need("what").text(), f.need("state").text(), f.need("skipped").text()) for f in skipped]
        parts.append(Table("Not measured", ["what", "state", "reason"], lines, numbers_from=3))
    parts.append(environment_table(root.need("environment")))
    return Section(f"shapes in {root.need('folder').text()}", document.path, parts)
