# SPDX-License-Identifier: Apache-2.0
"""The section of `penstock plan --json`: figures with their derivation, tables, curves, sentences."""

from __future__ import annotations

from penstock import _core
from penstock.report import _figures as figures
from penstock.report._common import command_text, environment_table
from penstock.report._model import Cell, Chart, Part, Section, Table, Text, row
from penstock.report._read import Document, Field

_POINTS_MAX = 10_000


def _shown(value: float, unit: str) -> str:
    return _core.plan_shown(value, unit)


def _signed(found: Field) -> float:
    """A finite number, which may be below 0."""
    return found.number(least=-1e308)


def _figures(root: Field) -> list[Part]:
    rows, derivation = [], []
    for found in root.need("figures").items():
        unit = found.need("unit").text()
        value = _shown(_signed(found.need("value")), unit)
        name = found.need("name").text()
        rows.append(row(found.need("label").text(), value))
        derivation.append(row(f"{name} = {found.need('formula').text()}", value, ""))
        for one in found.need("inputs").items():
            shown = _shown(_signed(one.need("value")), one.need("unit").text())
            derivation.append(row(f"\u2003{one.need('name').text()}", shown, one.need("source").text()))
    if not rows:
        return []
    head = ["formula", "value", "source"]
    return [
        Table("Figures", ["figure", "value"], rows),
        Table("Where they come from", head, derivation, folded=True, numbers_from=3),
    ]


def _table(found: Field) -> Table:
    columns = found.need("columns").some()
    rows, kinds = [], []
    for one in found.need("rows").items():
        cells = list(one.items())
        if len(cells) != len(columns):
            raise one._expected(f"a list of {len(columns)}")
        rows.append([_cell(cell, column) for cell, column in zip(cells, columns)])
        kinds.append([not isinstance(cell.value, str) for cell in cells])
    numbers = [place for place in range(len(columns)) if all(is_number[place] for is_number in kinds)]
    first = numbers[0] if numbers else len(columns)
    return Table(found.need("title").text(), [one.need("label").text() for one in columns], rows, numbers_from=first)


def _cell(cell: Field, column: Field) -> Cell:
    if isinstance(cell.value, str):
        return Cell(cell.text())
    unit = column.need("unit").text()
    return Cell(_shown(_signed(cell), unit if unit.startswith("B") or unit in ("s", "share") else ""))


def _chart(found: Field) -> Chart:
    points = [[_signed(one) for one in found.need(axis).items()] for axis in ("x", "y")]
    if len(points[0]) != len(points[1]) or len(points[0]) > _POINTS_MAX:
        raise found._expected(f"as many x as y, at most {_POINTS_MAX}")
    units = [found.need(f"{axis}_unit").text() for axis in ("x", "y")]
    scales = [(3600, "h") if units[0] == "s" else (1, units[0]), (1e9, "GB/s") if units[1] == "B/s" else (1, units[1])]
    title = found.need("label").text()
    figure = figures.steps(
        title,
        [value / scales[0][0] for value in points[0]],
        [value / scales[1][0] for value in points[1]],
        f"{found.need('x_label').text()}, {scales[0][1]}",
        f"{found.need('y_label').text()}, {scales[1][1]}",
    )
    return Chart(title[:1].upper() + title[1:], "Each step is the largest value in its stretch.", figure)


def _rates(root: Field) -> list[Chart]:
    """All figures that are rates, as bars, for --svg."""
    found = [one for one in root.need("figures").items() if one.need("unit").text() == "B/s"]
    if not found:
        return []
    rates = [_signed(one.need("value")) / 1e9 for one in found]
    bars = figures.Series("penstock", list(rates))
    title = f"plan {root.need('verb').text()}"
    return [Chart(title, "", figures.bars([one.need("label").text() for one in found], [bars], "GB/s"))]


def section(document: Document) -> Section:
    root = document.root
    parts: list[Part] = _figures(root)
    parts += [_chart(found) for found in root.need("series").items() if found.need("x").value]
    parts += [_table(found) for found in root.need("tables").items()]
    parts += [Text(found.text()) for found in root.need("notes").items()]
    if environment := root.get("environment"):
        parts.append(environment_table(environment))
    parts.append(Text(command_text(root), "Command", code=True))
    return Section(f"plan {root.need('verb').text()}: {root.need('title').text()}", document.path, parts, _rates(root))
