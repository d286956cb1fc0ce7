# SPDX-License-Identifier: Apache-2.0
"""The section of `penstock checkpoint bench --json`."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from penstock.report import _figures as figures
from penstock.report._common import command_text, environment_table
from penstock.report._model import Chart, Part, Section, Table, Text, row
from penstock.report._read import Document, Field
from penstock.report._units import figure_text, rate_text, size_text

_OURS = "penstock"
_HIGHER = "10⁹ bytes of the state a second. Higher is better."
_VERBS = {
    "save": ("Durable save", "GB/s", _HIGHER),
    "load": ("Cold load", "GB/s", _HIGHER),
    "stall": (
        "Training stands still",
        "seconds",
        "Until a save in the background lets training go on. Lower is better.",
    ),
}


@dataclass
class _Side:
    """The times of one side for a verb, one per round."""

    name: str
    verb: str
    seconds: list[float]
    cpu_s: list[float]


def _side(found: Field) -> _Side:
    seconds = [second.number() for second in found.need("seconds").some()]
    cpu_s = [second.number() for second in found.need("cpu_seconds").some()]
    return _Side(found.need("side").text(), found.need("verb").one_of(_VERBS), seconds, cpu_s)


def _chart(title: str, unit: str, reading: str, sides: list[_Side], shown: Callable[[float], float]) -> Chart:
    series = []
    for ours in (True, False):
        values = [[shown(s) for s in side.seconds] if side.name.startswith(_OURS) is ours else [] for side in sides]
        if any(values):
            series.append(
                figures.Series(
                    _OURS if ours else "others",
                    [statistics.median(v) if v else None for v in values],
                    [min(v) if v else None for v in values],
                    [max(v) if v else None for v in values],
                    figures.OURS if ours else figures.PEER,
                )
            )
    made = figures.bars([side.name for side in sides], series, unit)
    made["layout"]["barmode"] = "overlay"  # a category has one bar
    return Chart(title, f"{reading} The bar is the median, the whisker goes from the least to the most.", made)


def _row(side: _Side, size: int, ours_s: float | None) -> list:
    median = statistics.median(side.seconds)
    return row(
        _VERBS[side.verb][0],
        side.name,
        f"{median:.3f}",
        f"{min(side.seconds):.3f} - {max(side.seconds):.3f}",
        rate_text(size / median) if median > 0 else "",
        figure_text(statistics.median(side.cpu_s)),
        f"{median / ours_s:.2f}" if ours_s else "",
    )


def verdict(sides: list[_Side]) -> str:
    """The speed as a multiple of each peer's, in a sentence."""

    def median(name: str, verb: str) -> float:
        return next((statistics.median(s.seconds) for s in sides if (s.name, s.verb) == (name, verb)), 0.0)

    told = []
    for verb, what, peer in (("save", "saves durably", "torch.save + fsync"), ("load", "loads", "torch.load")):
        ours, theirs = median("penstock .pt", verb), median(peer, verb)
        if ours > 0 and theirs > 0:
            told.append(f"{what} {figure_text(theirs / ours)} times as fast as {peer}")
    return f"A .pt by Penstock {', and '.join(told)}." if told else "No peer was measured."


def section(document: Document) -> Section:
    """Each verb with all its sides, and the figures. ReportError."""
    root = document.root
    size = root.need("bytes").whole(1)
    sides = [_side(found) for found in root.need("figures").some()]
    model = root.need("model").text()
    parts: list[Part] = [Text(verdict(sides))]
    if command_text(root):
        parts.append(Text(command_text(root), "Command", code=True))
    left_out = root.get("left_out")
    told = f"State of {model}: {size_text(size)} in {root.need('tensors').whole()} tensors"
    told += f", {root.need('rounds').whole(1)} rounds in turns"
    parts.append(Text(told + (f"; {left_out.text()}." if left_out and left_out.text() else ".")))
    rows = []
    for verb, (title, unit, reading) in _VERBS.items():
        mine = [side for side in sides if side.verb == verb]
        if not mine:
            continue
        rate = unit == "GB/s"
        parts.append(
            _chart(title, unit, reading, mine, (lambda s: size / s / 1e9 if s > 0 else 0.0) if rate else float)
        )
        ours_s = next((statistics.median(s.seconds) for s in mine if s.name == "penstock .pt"), None)
        rows += [_row(side, size, ours_s) for side in mine]
    head = ["what", "with", "seconds", "least - most", "rate", "CPU seconds", "to penstock .pt"]
    parts.append(Table("Figures", head, rows, numbers_from=2))
    parts.append(environment_table(root.need("environment")))
    return Section(f"checkpoint bench of {model}", document.path, parts)
