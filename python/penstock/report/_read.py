# SPDX-License-Identifier: Apache-2.0
"""Reads the JSON files of a report. Every value is checked before its use. An error has the file, the place in it, what
was expected and what was found."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE_BYTES_MAX = 256 << 20
_TEXT_MAX = 4000
KINDS = {
    "bench": "penstock bench --json",
    "tune": "penstock tune --json",
    "bars": "python -m benchmarks --json",
    "ds_io": "penstock ds_io --json",
    "ds_nvme_tune": "penstock ds_nvme_tune --json",
    "checkpoint bench": "penstock checkpoint bench --json",
    "bench --shapes": "penstock bench --shapes --json",
    "bench gnn": "penstock bench gnn --json",
    "plan": "penstock plan --json",
}


class ReportError(Exception):
    """A report cannot be made; the text names the file and says what to do."""


@dataclass(frozen=True)
class Field:
    """A value of a JSON file together with its place in it."""

    file: str
    where: str
    value: Any

    def _expected(self, what: str) -> ReportError:
        came = json.dumps(self.value)
        came = came if len(came) <= 60 else came[:57] + "..."
        return ReportError(f"{self.file}: {self.where or 'the file'}: {what} was expected, and {came} came")

    def get(self, key: str) -> Field | None:
        """The value of a key; None if it is absent or null."""
        if not isinstance(self.value, dict):
            raise self._expected("an object")
        value = self.value.get(key)
        return None if value is None else Field(self.file, f"{self.where}.{key}".lstrip("."), value)

    def need(self, key: str) -> Field:
        found = self.get(key)
        if found is None:
            raise ReportError(f"{self.file}: {self.where or 'the file'} has no {key!r}, which every such file has")
        return found

    def items(self) -> Iterator[Field]:
        if not isinstance(self.value, list):
            raise self._expected("a list")
        for index, value in enumerate(self.value):
            yield Field(self.file, f"{self.where}[{index}]", value)

    def some(self) -> list[Field]:
        """A list with at least one element."""
        found = list(self.items())
        if not found:
            raise self._expected("a list of one or more")
        return found

    def pairs(self) -> Iterator[tuple[str, Field]]:
        if not isinstance(self.value, dict):
            raise self._expected("an object")
        for key, value in self.value.items():
            yield key, Field(self.file, f"{self.where}.{key}".lstrip("."), value)

    def pair(self) -> tuple[float, float]:
        """A list of two numbers."""
        found = list(self.items())
        if len(found) != 2:
            raise self._expected("a list of two numbers")
        return found[0].number(), found[1].number()

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self._expected("a text")
        return self.value if len(self.value) <= _TEXT_MAX else self.value[:_TEXT_MAX] + " ..."

    def one_of(self, words: Iterable[str]) -> str:
        text = self.text()
        if text not in words:
            raise self._expected(f"one of {', '.join(words)}")
        return text

    def number(self, least: float = 0) -> float:
        """A finite number."""
        value = self.any_number()
        if not math.isfinite(value) or value < least:
            raise self._expected(f"a number from {least:g} up")
        return value

    def any_number(self) -> float:
        """A number, which may be infinite."""
        if not isinstance(self.value, int | float) or isinstance(self.value, bool):
            raise self._expected("a number")
        try:
            return float(self.value)
        except OverflowError as error:
            raise self._expected("a number below 1e308") from error

    def whole(self, least: int = 0) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not least <= self.value < 1 << 62:
            raise self._expected(f"a whole number from {least} up")
        return self.value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self._expected("true or false")
        return self.value

    def shown(self) -> str:
        """Any value as text, for tables that only show it."""
        text = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return text if len(text) <= 300 else text[:297] + "..."


@dataclass(frozen=True)
class Document:
    """A file, and the program that made it."""

    path: str
    kind: str
    root: Field


def load(path: str) -> Document:
    """Reads a file and detects the program that made it. ReportError if no known program did."""
    data = _parse(path)
    root = Field(path, "", data)
    expected = f"{path}: a report is made of the JSON of " + ", ".join(KINDS.values())
    if not isinstance(data, dict):
        raise ReportError(f"{expected}; this file holds no object")
    if isinstance(data.get("bars"), list):
        return Document(path, "bars", root)
    for kind in ("checkpoint bench", "bench --shapes", "bench gnn"):
        if data.get("program") == f"penstock {kind}":
            return Document(path, kind, root)
    command = data.get("command")
    if isinstance(command, list) and len(command) > 1 and isinstance(command[1], str) and command[1] in KINDS:
        return Document(path, command[1], root)
    raise ReportError(f"{expected}; this is the JSON of something else")


def _parse(path: str) -> Any:
    try:
        if Path(path).stat().st_size > FILE_BYTES_MAX:
            raise ReportError(f"{path}: more than {FILE_BYTES_MAX >> 20} MiB; no run writes that much")
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}; name a file that --json wrote") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"{path}: expected JSON as UTF-8 text; byte {error.start} is not UTF-8") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        end = "" if text.rstrip().endswith(("}", "]")) else " (the file ends too early: was the run cut off?)"
        raise ReportError(f"{path}: line {error.lineno}, column {error.colno}: {error.msg}{end}") from error
    except (RecursionError, ValueError) as error:
        raise ReportError(f"{path}: no JSON that any of the tools writes ({type(error).__name__})") from error
