# SPDX-License-Identifier: Apache-2.0
"""The model of a report's page, without HTML: sections of texts, tables and charts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Chart:
    """A picture: `figure` is plotly's {data, layout}; `reading` explains it."""

    title: str
    reading: str
    figure: dict[str, Any]
    height: int = 420


@dataclass
class Cell:
    """Text of a table's cell; `verdict` (met, missed, undecided, ...) colours it."""

    text: str
    verdict: str = ""


@dataclass
class Table:
    title: str
    head: list[str]
    rows: list[list[Cell]]
    reading: str = ""
    folded: bool = False
    numbers_from: int = 1  # columns from this one on are numbers, aligned to the right


@dataclass
class Text:
    """A paragraph, or (`code`) text to paste."""

    text: str
    title: str = ""
    code: bool = False


Part = Chart | Table | Text


@dataclass
class Section:
    """The section of one file, or a comparison of several."""

    title: str
    source: str
    parts: list[Part] = field(default_factory=list)
    bars: list[Chart] = field(default_factory=list)  # drawn by --svg in place of the charts of `parts`


@dataclass
class Page:
    title: str
    sections: list[Section]

    def charts(self) -> list[Chart]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Chart)]


def row(*texts: str) -> list[Cell]:
    """Cells without a verdict."""
    return [Cell(text) for text in texts]
