# SPDX-License-Identifier: Apache-2.0
"""The section of `penstock bench gnn --json`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.report import _figures as figures
from penstock.report._common import environment_table
from penstock.report._model import Chart, Part, Section, Table, Text, row
from penstock.report._read import Document, Field
from penstock.report._units import count_text, size_text, time_text

_PENSTOCK = ("ahead", "penstock")


@dataclass
class _Run:
    """One side of one trace."""

    trace: str
    side: str
    rate: float  # in rows a second
    busy_s: float
    exposed_s: float
    step_s: float
    cpu_us: float  # for each row
    core_rate: float  # in rows a second of CPU
    read: float  # bytes from the device divided by requested bytes
    cores: float  # needed for 1.7 million rows a second
    cores_more: float  # for 6.3 million


def _run(found: Field) -> _Run:
    core_rate = found.get("rows_per_core_second")
    return _Run(
        found.need("trace").text(),
        found.need("side").text(),
        found.need("rows_per_second").number(),
        sum(one.number() for one in found.need("busy_s").some()),
        sum(one.number() for one in found.need("exposed_s").some()),
        sum(one.number() for one in found.need("step_s").items()),
        found.need("cpu_us_per_row").number(),
        core_rate.number() if core_rate else 0.0,
        found.need("read_by_wanted").number(),
        found.need("cores_for_1_7_million_rows_per_second").number(),
        found.need("cores_for_6_3_million_rows_per_second").number(),
    )


def _colour(side: str, number: int) -> str:
    return figures.COLOURS[_PENSTOCK.index(side)] if side in _PENSTOCK else figures.COLOURS[2 + number % 6]


def _chart(runs: list[_Run], title: str, note: str, axis: str, value: str, scale: float = 1) -> Chart:
    """A bar for each side, by trace."""
    traces = list(dict.fromkeys(one.trace for one in runs))
    sides = list(dict.fromkeys(one.side for one in runs))
    found = {(one.trace, one.side): getattr(one, value) * scale for one in runs}
    series = [
        figures.Series(side, [found.get((trace, side)) for trace in traces], colour=_colour(side, number))
        for number, side in enumerate(sides)
    ]
    return Chart(title, note, figures.bars(traces, series, axis))


def _figures_table(runs: list[_Run]) -> Table:
    columns = [
        "trace",
        "side",
        "rows/s",
        "busy",
        "exposed",
        "step",
        "CPU a row",
        "rows/s a core",
        "read by wanted",
        "cores for 1.7 M rows/s",
        "for 6.3 M",
    ]
    lines = [
        row(
            one.trace,
            one.side,
            count_text(one.rate),
            time_text(one.busy_s * 1e9),
            time_text(one.exposed_s * 1e9),
            time_text(one.step_s * 1e9),
            time_text(one.cpu_us * 1e3),
            count_text(one.core_rate),
            f"{one.read:.2f}",
            f"{one.cores:.1f}",
            f"{one.cores_more:.1f}",
        )
        for one in runs
    ]
    return Table("Figures", columns, lines, numbers_from=2)


def _published(root: Field) -> list[Part]:
    found = root.get("not_measured_here")
    if found is None:
        return []
    lines = [
        row(name, one.need("iterations").shown(), time_text(one.need("seconds").number() * 1e9))
        for name, one in found.need("published").pairs()
    ]
    return [
        Table("Published, not measured here", ["what", "batches", "gather"], lines, numbers_from=1),
        Text(found.need("command").text(), "The command for such a machine", code=True),
    ]


def section(document: Document) -> Section:
    """Rows a second, CPU and bytes of every side, the figures, and published figures of others. ReportError."""
    root = document.root
    runs = [_run(found) for found in root.need("runs").some()]
    ahead = root.get("read_ahead_kb")
    note = root.need("memory_note").text() if root.get("memory_note") else ""
    memory = root.get("memory")
    kept = f"{size_text(memory.number())} of the table" if memory else note or "no limit"
    told = (
        f"{1 << min(root.need('scale').whole(1), 62):,} rows of {size_text(root.need('row_bytes').number())}, "
        f"{root.need('iterations').whole(1)} batches. Memory: {kept}. The device reads ahead: "
        + (f"{ahead.number():.0f} KiB." if ahead else "unknown.")
    )
    parts: list[Part] = [
        Text(told),
        _chart(
            runs,
            "Rows a second",
            "Rows by the seconds that the loop waits for them: reads during the step are not in it. Every byte was "
            "checked, but fio's.",
            "million rows/s",
            "rate",
            1e-6,
        ),
        _chart(
            runs,
            "Busy seconds",
            "Rows are read or copied in them. The loop waits for all of them, but with `ahead`.",
            "seconds",
            "busy_s",
        ),
        _chart(runs, "Exposed seconds", "The loop waits for rows in them.", "seconds", "exposed_s"),
        _chart(runs, "CPU of a row", "Of the process, without the checks.", "microseconds", "cpu_us"),
        _chart(
            runs,
            "Bytes read by bytes wanted",
            "Below 1: rows came from memory. Above 1: a mapping read ahead, or gaps between rows were read.",
            "bytes from the device by bytes wanted",
            "read",
        ),
        _figures_table(runs),
        *_published(root),
        environment_table(root.get("environment")),
    ]
    return Section("rows of sampled batches", document.path, parts)
