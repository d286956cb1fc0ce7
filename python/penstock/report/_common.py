# SPDX-License-Identifier: Apache-2.0
"""Parts that the sections of several tools share."""

from __future__ import annotations

from penstock.report._model import Table, row
from penstock.report._read import Field
from penstock.report._units import size_text

_NAMES = {
    "time": "measured at (UTC)",
    "time_utc": "measured at (UTC)",
    "cpus": "CPUs",
    "cpus_usable": "CPUs usable",
    "cpu": "processor",
    "memory_bytes": "memory",
    "command_line": "command line",
}


def environment_table(*fields: Field | None, title: str = "Where it was measured") -> Table:
    """Everything that the file says of machine, target and engine, a row a fact."""
    rows = []
    for found in fields:
        if found is not None:
            _flatten("", found, rows)
    return Table(title, ["what", "value"], rows, folded=True, numbers_from=2)


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
