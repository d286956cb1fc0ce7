# SPDX-License-Identifier: Apache-2.0
"""Parts that the sections of several tools share."""

from __future__ import annotations

import math

from penstock.report._model import Table, row
from penstock.report._read import Field
from penstock.report._units import size_text

_NAMES = {
    "time_utc": "measured at (UTC)",
    "cpus_usable": "CPUs usable",
    "cpu": "processor",
    "memory_bytes": "memory",
    "command_line": "command line",
}


def environment_table(*fields: Field | None, title: str = "Where it was measured") -> Table:
    """All facts of the file about machine, target and engine, one in each row."""
    rows = []
    for found in fields:
        if found is not None:
            _flatten("", found, rows)
    return Table(title, ["what", "value"], rows, folded=True, numbers_from=2)


def where_and_when(environment: Field | None) -> str:
    """`AMD EPYC, 2 CPUs, 2026-11-23`, as far as known: it distinguishes two sections of one command."""
    if environment is None:
        return ""
    words = [found.text() for key in ("host", "cpu") if (found := environment.get(key))]
    if cpus := environment.get("cpus_usable"):
        words.append(f"{cpus.shown()} CPUs")
    if time := environment.get("time_utc"):
        words.append(time.text()[:10])
    return ", ".join(filter(None, words))


def _flatten(prefix: str, found: Field, rows: list, depth: int = 0) -> None:
    for key, value in found.pairs():
        name = f"{prefix} {_NAMES.get(key, key.replace('_', ' '))}".strip()
        if isinstance(value.value, dict) and depth < 3:
            _flatten(name, value, rows, depth + 1)
        elif isinstance(value.value, list) and all(isinstance(item, str | int | float) for item in value.value):
            rows.append(row(name, " ".join(str(item) for item in value.value)[:1000]))
        elif key.endswith("_bytes") and isinstance(value.value, int) and not isinstance(value.value, bool):
            rows.append(row(name.removesuffix(" bytes"), size_text(value.number())))
        elif value.value is not None and value.value != "":
            rows.append(row(name, value.shown()))


def command_text(root: Field) -> str:
    command = root.get("command")
    return " ".join(word.text() for word in command.items()) if command else ""


def interval(ratio: Field) -> tuple[float, float, float]:
    """Mean and ends of a ratio; unknown ends (one run, or null for infinity) are 0 and infinity."""
    mean = ratio.need("mean").number()
    ends = ratio.get("ci95")
    known = [end for end in ends.items() if end.value is not None] if ends else []
    if len(known) != 2:
        return mean, 0.0, math.inf
    return mean, known[0].number(), known[1].any_number()


def interval_text(found: tuple[float, float, float]) -> str:
    """`1.12 (1.05 to 1.19)`, or the mean alone."""
    mean, low, high = found
    return f"{mean:.3g} ({low:.3g} to {high:.3g})" if math.isfinite(high) else f"{mean:.3g}"
