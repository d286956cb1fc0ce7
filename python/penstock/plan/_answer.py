# SPDX-License-Identifier: Apache-2.0
"""Answers: figures with their formula, their inputs and the source of each constant."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock import _core
from penstock._base.arguments import got, whole


@dataclass(frozen=True)
class Input:
    """A number in a formula. source: "given", "default", "computed above", or the publication."""

    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True)
class Figure:
    """A number of an answer.

    unit: "B", "B/s", "s", "samples/s", "share" (0 to 1), a noun that is counted, or "" for a plain number.
    formula: an expression with the names of the inputs, which Python can evaluate, or a text in square brackets."""

    name: str
    label: str
    value: float
    unit: str
    formula: str
    inputs: tuple[Input, ...]


@dataclass(frozen=True)
class Column:
    """A column of a table. wide: omitted in text(), which has 80 columns."""

    name: str
    label: str
    unit: str
    wide: bool


@dataclass(frozen=True)
class Table:
    """A table. rows: texts and numbers, the numbers in the unit of their column."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str | float, ...], ...]


@dataclass(frozen=True)
class Series:
    """A curve: x ascends, and y has the same length."""

    name: str
    label: str
    x_label: str
    x_unit: str
    y_label: str
    y_unit: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Answer:
    """The result of a function of penstock.plan. answer["read_bytes_per_second"] is the Figure of that name; iteration
    gives the names. Immutable; thread-safe."""

    verb: str
    title: str
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    series: tuple[Series, ...]
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> Figure:
        for figure in self.figures:
            if figure.name == name:
                return figure
        names = [figure.name for figure in self.figures]
        near = _core.nearest(name, names) if isinstance(name, str) else ""
        hint = f"did you mean {near!r}?" if near else f"expected one of {', '.join(names)}"
        raise KeyError(f"plan.{self.verb}: there is no figure {got(name)}; {hint}")

    def __contains__(self, name: object) -> bool:
        return any(figure.name == name for figure in self.figures)

    def __iter__(self) -> Iterator[str]:
        return (figure.name for figure in self.figures)

    def text(self, columns: int = 80) -> str:
        """The answer as `penstock plan` prints it."""
        return _core.plan_show(self.json(), "text", whole("text", "columns", columns, 1, 10_000))

    def explain(self, columns: int = 80) -> str:
        """The derivation, line by line: formulas, inputs, sources."""
        return _core.plan_show(self.json(), "explain", whole("explain", "columns", columns, 1, 10_000))

    def markdown(self) -> str:
        return _core.plan_show(self.json(), "markdown", 80)

    def json(self) -> str:
        """The whole answer as JSON; Answer.from_json() and `penstock report` read it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Answer:
        """Reads the JSON of json() or `penstock plan --json`. ValueError for anything else."""
        if not isinstance(text, str):
            raise TypeError(f"from_json: text: expected a str, got {got(text)}")
        try:
            found = json.loads(text)
            return cls(
                found["verb"],
                found["title"],
                tuple(
                    Figure(**{**one, "inputs": tuple(Input(**each) for each in one["inputs"])})
                    for one in _floats(found["figures"])
                ),
                tuple(
                    Table(
                        one["name"],
                        one["title"],
                        tuple(Column(**each) for each in one["columns"]),
                        tuple(
                            tuple(cell if isinstance(cell, str) else float(cell) for cell in row) for row in one["rows"]
                        ),
                    )
                    for one in found["tables"]
                ),
                tuple(
                    Series(**{**one, "x": tuple(map(float, one["x"])), "y": tuple(map(float, one["y"]))})
                    for one in found["series"]
                ),
                tuple(found["notes"]),
            )
        except (KeyError, TypeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"from_json: expected the JSON of an answer of penstock.plan: {error}") from error


def _floats(value: Any) -> Any:
    """Converts numbers to floats, because JSON has whole numbers as int."""
    if isinstance(value, Mapping):
        return {key: _floats(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_floats(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
