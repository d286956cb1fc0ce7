# SPDX-License-Identifier: Apache-2.0
"""The section of `python -m benchmarks --json`: ratios and their bars, every run, the verdicts."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from dataclasses import dataclass

from penstock.report import _figures as figures
from penstock.report._common import environment_table
from penstock.report._model import Cell, Chart, Part, Section, Table, Text
from penstock.report._read import Document, Field
from penstock.report._units import figure_text


@dataclass
class Bar:
    id: str
    what: str
    peer: str
    metric: str
    limit: str
    place: str
    verdict: str
    reason: str
    line: str
    handicap: str
    figure: tuple[float, float, float] | None
    ours: list[float]  # bytes a second
    peers: list[float]
    sides: list[float]  # medians of ours and of the peer's runs in the unit of the metric; empty: no unit, or no peer
    ceiling: float | None  # limit of the place, in bytes a second
    devices: int  # number of concurrent devices; else 0

    @property
    def limits(self) -> list[float]:
        """The limits of the ratio; none for limits with a unit."""
        if found := re.fullmatch(r"(?:>=|<=)\s*([\d.]+)", self.limit):
            return [float(found[1])]
        if found := re.fullmatch(r"=1\+-([\d.]+)%", self.limit):
            return [1 - float(found[1]) / 100, 1 + float(found[1]) / 100]
        return []

    @property
    def name(self) -> str:
        return self.id + (" (handicapped)" if self.handicap else "")


def _rates(found: Field) -> list[float]:
    rates = []
    for sample in found.items():
        size, seconds = sample.get("bytes"), sample.get("seconds")
        if size and seconds and seconds.number() > 0:
            rates.append(size.number() / seconds.number())
    return rates


# Unit, scale and keys (the second divides) of the metrics that have a unit.
_UNITS = {
    "bandwidth": ("GB/s", 1e-9, "bytes", "seconds"),
    "iops": ("thousand a second", 1e-3, "operations", "seconds"),
    "seconds": ("seconds, less is better", 1.0, "seconds", ""),
    "cpu": ("seconds, less is better", 1.0, "cpu_s", ""),
}


def _median(found: Field, metric: str) -> float | None:
    _, scale, key, by = _UNITS[metric]
    values = []
    for sample in found.items():
        value, divisor = sample.get(key), sample.get(by) if by else None
        if value and (not by or (divisor and divisor.number() > 0)):
            values.append(value.number() * scale / (divisor.number() if divisor else 1))
    return statistics.median(values) if values else None


def _bar(found: Field) -> Bar:
    figure = found.get("figure")
    ends = tuple(figure.need(key).any_number() for key in ("mean", "low", "high")) if figure else None
    if ends and not math.isfinite(ends[0]):
        ends = None  # it cannot be drawn
    place = found.need("place")
    rate = place.get("rate")
    ceiling = rate.get("bps") if rate else None
    devices = place.get("devices")
    metric = found.need("metric").text()
    medians = [_median(found.need(key), metric) for key in ("ours", "peers")] if metric in _UNITS else [None]
    texts = {key: (value.text() if (value := found.get(key)) else "") for key in ("peer", "reason", "line", "handicap")}
    return Bar(
        id=found.need("id").text(),
        what=found.need("what").text(),
        metric=metric,
        limit=found.need("bar").text(),
        place=place.need("name").text(),
        verdict=found.need("verdict").text(),
        figure=ends,  # type: ignore[arg-type]
        ours=_rates(found.need("ours")),
        peers=_rates(found.need("peers")),
        sides=[] if None in medians else medians,  # type: ignore[arg-type]
        ceiling=ceiling.number() if ceiling else None,
        devices=devices.whole() if devices else 0,
        **texts,
    )


def _ratios(bars: list[Bar]) -> Chart | None:
    rows = [
        figures.Ratio(
            bar.name, *bar.figure, limits=bar.limits, verdict=bar.verdict, hover=f"{bar.what}; bar {bar.limit}"
        )
        for bar in bars
        if bar.figure and bar.limits and bar.figure[0] > 0 and min(bar.limits) > 0
    ]
    if not rows:
        return None
    return Chart(
        "Ratios and their bars",
        "The dot is the ratio to the peer, the whisker its 95 % interval, the tall mark the bar. Green: the whole "
        "interval clears the bar. Red: none of it does. Amber: the machine was too restless to say. Which side of "
        "the mark is the good one the table below tells (>= or <=).",
        figures.ratios(rows, "ratio (logarithmic)"),
        height=150 + 30 * len(rows),
    )


def _runs(bars: list[Bar]) -> Chart | None:
    groups = [
        (bar.name, [("penstock", [rate / 1e9 for rate in bar.ours]), ("peer", [rate / 1e9 for rate in bar.peers])])
        for bar in bars
        if bar.metric == "bandwidth" and bar.ours
    ]
    if not groups:
        return None
    limits = [bar.ceiling for bar in bars if bar.metric == "bandwidth" and bar.ours]
    ceiling = figures.Line("rate that the place lets through", [None if v is None else v / 1e9 for v in limits])
    return Chart(
        "Every run",
        "A dot a run: dots of one side far apart mean a device that swings, and then small differences mean nothing. "
        "The dark mark is the ceiling of a place whose rate is set.",
        figures.runs(groups, "GB/s", ceiling if any(v is not None for v in limits) else None),
        height=460,
    )


def _cpu(bars: list[Bar]) -> Chart | None:
    mine = [bar for bar in bars if bar.metric == "cpu" and bar.figure and bar.limits]
    if not mine:
        return None
    lines = [figures.Line("bar: at most", [bar.limits[0] for bar in mine])]
    series = [figures.Series("ratio to the peer", [bar.figure[0] if bar.figure else None for bar in mine])]
    return Chart(
        "CPU seconds, ours by the peer's",
        "Less is better: 0.3 means three tenths of the peer's processor time for the same bytes. The mark is the bar.",
        figures.bars([bar.name for bar in mine], series, "ratio", lines),
    )


def _scaling(bars: list[Bar]) -> Chart | None:
    found: dict[str, dict[int, float]] = {}
    for bar in bars:
        if bar.devices and bar.ours and not bar.handicap:
            points = found.setdefault(re.sub(r"_?\d+$", "", bar.id), {})
            points[bar.devices] = statistics.fmean(bar.ours)
            if bar.peers:  # the peer is Penstock on one of the devices
                points[1] = statistics.fmean(bar.peers)
    lines = [(name, list(points.items())) for name, points in found.items() if len(points) > 1]
    if not lines:
        return None
    return Chart(
        "Bandwidth by number of devices",
        "Solid: measured, all devices at once. Dashed: so many times the smallest number. The nearer, the better.",
        figures.scaling(lines, "devices"),
    )


def _both_sides(bar: Bar) -> Chart:
    """One bar for each of the two sides."""
    peer = re.split(r", | \(", bar.peer)[0]
    ours, theirs = bar.sides
    series = [figures.Series("penstock", [ours, None]), figures.Series("peer", [None, theirs], colour=figures.PEER)]
    figure = figures.bars(["Penstock", peer], series, _UNITS[bar.metric][0])
    figure["layout"]["barmode"] = "overlay"
    return Chart(bar.what, "", figure)


def _table(bars: list[Bar]) -> Table:
    rows = []
    for bar in bars:
        told = re.search(r" (?:ratio|diff|value)=(\S+)", bar.line)
        value = told[1] if told else "-"
        interval = "-"
        if bar.figure and all(math.isfinite(end) for end in bar.figure) and bar.figure[1] != bar.figure[2]:
            interval = f"{figure_text(bar.figure[1])} to {figure_text(bar.figure[2])}"
        rows.append(
            [
                Cell(bar.name),
                Cell(bar.what),
                Cell(bar.peer),
                Cell(bar.place),
                Cell(value),
                Cell(interval),
                Cell(bar.limit),
                Cell(bar.verdict, bar.verdict),
                Cell(bar.reason),
            ]
        )
    head = ["bar", "what", "against", "place", "figure", "95 % interval", "bar", "verdict", "reason"]
    return Table("Verdicts", head, rows, numbers_from=99)


def section(document: Document) -> Section:
    """The section of one file. ReportError."""
    bars = [_bar(bar) for bar in document.root.need("bars").items()]
    counts = Counter(bar.verdict for bar in bars)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) or "no bar was measured"
    parts: list[Part] = [Text(f"{len(bars)} bars: {told}.")]
    parts += [part for part in (_ratios(bars), _scaling(bars), _runs(bars), _cpu(bars)) if part]
    parts.append(_table(bars))
    parts.append(environment_table(document.root.need("environment")))
    pictures = [_both_sides(bar) for bar in bars if bar.sides]
    return Section("benchmarks against their bars", document.path, parts, pictures)
