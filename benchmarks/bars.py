# SPDX-License-Identifier: Apache-2.0
"""The rows of bars.toml, and what a limit says about an interval.

A limit is written as `>= 0.98`, `<= 1.3` (of a ratio or a plain figure), `<= +5us` (of a difference), or `within 0.5%`
(of a ratio of equals). A ratio's limit is never exactly 1: against an equal peer such a bar is decided by chance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

from benchmarks.stats import Interval

BARS_PATH = Path(__file__).with_name("bars.toml")

PLACES = ("throttled", "loop", "disk", "model", "count", "memory", "gpu")
METRICS = {
    # name: (higher is better, what the sample gives)
    "bandwidth": (True, "bytes a second"),
    "iops": (True, "operations a second"),
    "cpu": (False, "CPU seconds a GiB"),
    "seconds": (False, "seconds"),
    "p50_us": (False, "median of one operation, microseconds"),
    "p99_us": (False, "99th percentile of one operation, microseconds"),
    "value": (None, "the figure that the program prints as `value`"),
}

_LIMIT = re.compile(r"(>=|<=)\s*(\+?)([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z%/]*)")
_WITHIN = re.compile(r"within\s+([0-9]+(?:\.[0-9]+)?)%")
# Bars further from 1 than this leave the control an allowance of their own.
_FAR = 0.3
_FAR_ALLOWANCE = 0.15
_DEVICES_MAX = 8


class BarError(ValueError):
    """bars.toml says something that cannot be."""


@dataclass(frozen=True)
class Limit:
    """`>= 0.98`: `sign` is `>=`, `<=` or `within`; `unit` is what the figure counts, `` for a ratio."""

    sign: str
    figure: float
    unit: str = ""
    difference: bool = False
    text: str = ""

    def verdict(self, interval: Interval) -> str:
        """`met` when all of the interval clears the limit, `missed` when none of it does, else `undecided`."""
        if self.sign == ">=":
            low_ok, high_ok = interval.low >= self.figure, interval.high >= self.figure
        elif self.sign == "<=":
            low_ok, high_ok = interval.high <= self.figure, interval.low <= self.figure
        else:
            low, high = 1 - self.figure, 1 + self.figure
            if interval.high < low or interval.low > high:
                return "missed"
            return "met" if low <= interval.low and interval.high <= high else "undecided"
        if low_ok:
            return "met"
        return "undecided" if high_ok else "missed"

    def side(self, mean: float) -> str:
        """On which side of the limit a figure stands, whatever its interval says: "clears the bar", or how it fails."""
        if self.sign == "within":
            return "clears the bar" if abs(mean - 1) <= self.figure else "outside the bar"
        if self.sign == ">=":
            return "clears the bar" if mean >= self.figure else "below the bar"
        return "clears the bar" if mean <= self.figure else "above the bar"

    def control_allowance(self) -> float:
        """How far from 1 (from 0 for a difference) the peer against itself may stray before nothing can be told."""
        if self.difference:
            return self.figure / 2
        if self.sign == "within":  # both sides are the peer; the control of a pair is two runs, the ratio three
            return 2 * self.figure
        distance = abs(1 - self.figure)
        return _FAR_ALLOWANCE if distance >= _FAR else distance / 2

    def control_holds(self, control: Interval) -> bool:
        centre, allowance = (0.0 if self.difference else 1.0), self.control_allowance()
        slack = 1e-9
        return centre - allowance - slack <= control.low and control.high <= centre + allowance + slack


def parse_limit(text: str) -> Limit:
    """`>= 0.98`, `<= +5us`, `within 0.5%` -> Limit."""
    if match := _WITHIN.fullmatch(text.strip()):
        return Limit("within", float(match[1]) / 100, text=f"=1+-{match[1]}%")
    match = _LIMIT.fullmatch(text.strip())
    if not match:
        raise BarError(f"bar {text!r}: expected '>= 0.98', '<= 1.3', '<= +5us', '<= 64MiB' or 'within 0.5%'")
    sign, plus, figure, unit = match.groups()
    return Limit(sign, float(figure.replace("_", "")), unit, bool(plus), f"{sign}{plus}{figure}{unit}")


@dataclass(frozen=True)
class Bar:
    """A row of bars.toml."""

    id: str
    what: str
    peer: str
    metric: str
    limit: Limit
    place: str
    handicap: str
    ours_run: str
    peer_run: str = ""
    pairs: int = 0
    rate: Mapping[str, int] = field(default_factory=dict)
    one_cpu: bool = False
    devices: int = 0
    budget_s: float = 0
    image_gib: int = 0
    file_gib: int = 0
    tmpfs: bool = False

    @property
    def kind(self) -> str:
        """`ratio` of ours to the peer, `diff`erence from it, or a `value` of ours alone."""
        if not self.peer_run:
            return "value"
        return "diff" if self.limit.difference else "ratio"


_REQUIRED = ("id", "what", "peer", "metric", "bar", "place", "handicap", "ours_run")
_OPTIONAL = ("peer_run", "pairs", "rate", "one_cpu", "devices", "budget_s", "image_gib", "file_gib", "tmpfs", "note")
_ID = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")


def _bar(row: Mapping[str, Any]) -> Bar:
    name = row.get("id", "(a row without id)")
    missing = [key for key in _REQUIRED if not row.get(key)]
    unknown = sorted(set(row) - set(_REQUIRED) - set(_OPTIONAL))
    if missing or unknown:
        raise BarError(f"{name}: missing {missing}, unknown {unknown}")
    if not _ID.fullmatch(name):
        raise BarError(f"{name}: an id is 'part.name' in lower case, digits and underscores")
    if row["place"] not in PLACES:
        raise BarError(f"{name}: place {row['place']!r} is not one of {', '.join(PLACES)}")
    if row["metric"] not in METRICS:
        raise BarError(f"{name}: metric {row['metric']!r} is not one of {', '.join(METRICS)}")
    limit = parse_limit(row["bar"])
    if not limit.unit and not limit.difference and limit.figure == 1:
        raise BarError(f"{name}: a bar of exactly 1 is decided by chance")
    if row.get("rate") and row["place"] != "throttled":
        raise BarError(f"{name}: a rate belongs to place 'throttled'")
    if row["place"] == "throttled" and not row.get("rate"):
        raise BarError(f"{name}: place 'throttled' needs a rate: {{bps = 1_000_000_000}} or {{iops = 150_000}}")
    devices = int(row.get("devices", 0))
    if devices and (row["place"] != "throttled" or not 1 <= devices <= _DEVICES_MAX):
        raise BarError(f"{name}: devices belong to place 'throttled', from 1 to {_DEVICES_MAX}")
    image_gib, file_gib = int(row.get("image_gib", 0)), int(row.get("file_gib", 0))
    if image_gib and row["place"] not in ("throttled", "loop", "count"):
        raise BarError(f"{name}: image_gib belongs to places 'throttled', 'loop' and 'count'")
    if row.get("tmpfs") and row["place"] != "gpu":
        raise BarError(f"{name}: tmpfs belongs to place 'gpu'")
    if file_gib and row["place"] != "gpu" and file_gib >= image_gib:
        raise BarError(f"{name}: file_gib = {file_gib} wants a larger image_gib, which is {image_gib}")
    return Bar(
        id=name,
        what=row["what"],
        peer=row["peer"],
        metric=row["metric"],
        limit=limit,
        place=row["place"],
        handicap=row["handicap"],
        ours_run=row["ours_run"],
        peer_run=row.get("peer_run", ""),
        pairs=int(row.get("pairs", 0)),
        rate=dict(row.get("rate", {})),
        one_cpu=bool(row.get("one_cpu", False)),
        devices=devices,
        budget_s=float(row.get("budget_s", 0)),
        image_gib=image_gib,
        file_gib=file_gib,
        tmpfs=bool(row.get("tmpfs", False)),
    )


def parse_bars(text: str) -> list[Bar]:
    """The rows of a TOML text, in their order; BarError says which row is wrong and how."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BarError(f"not TOML: {error}") from error
    bars = [_bar(row) for row in document.get("bar", [])]
    seen: set[str] = set()
    for bar in bars:
        if bar.id in seen:
            raise BarError(f"{bar.id}: there are two rows of this id")
        seen.add(bar.id)
    return bars


def load_bars(path: Path = BARS_PATH) -> list[Bar]:
    return parse_bars(path.read_text(encoding="utf-8"))


def select(bars: list[Bar], wanted: list[str]) -> list[Bar]:
    """The rows that `wanted` names, each by its id or by how some ids begin; no `wanted` means all.

    A word that fits nothing is an error."""
    ids = {bar.id for bar in bars}

    def means(word: str, bar: Bar) -> bool:
        return bar.id == word if word in ids else bar.id.startswith(word)

    for word in wanted:
        if not any(means(word, bar) for bar in bars):
            raise BarError(f"no bar starts with {word!r}; --list shows them")
    return [bar for bar in bars if not wanted or any(means(word, bar) for word in wanted)]
