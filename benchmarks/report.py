# SPDX-License-Identifier: Apache-2.0
"""What a run says: the line of a bar, and the JSON that keeps everything."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Any

from penstock._measure import tool

from benchmarks.runner import Outcome
from benchmarks.stats import Interval


def _figure(value: float, unit: str) -> str:
    if unit or abs(value) >= 100:
        return f"{value:.4g}{unit}" if abs(value) < 1e4 else f"{value:.0f}{unit}"
    return f"{value:.3f}"


def _range(interval: Interval | None, unit: str) -> str:
    if interval is None:
        return "none"
    return f"[{_figure(interval.low, unit)},{_figure(interval.high, unit)}]"


def line(outcome: Outcome) -> str:
    """`BAR engine.read_1g ratio=1.003 ci95=[0.996,1.011] aa=[0.99,1.01] bar>=0.98 pairs=9 place=throttled verdict=met`

    The figure is `ratio=` (of ours to the peer, or a number without a unit), `diff=` (ours less the peer) or `value=`.
    """
    bar = outcome.bar
    place = f"{bar.place}(FAKE)" if outcome.place.get("fake_gpu") else bar.place
    tail = f" handicap={outcome.handicap.replace(' ', ',')}" if outcome.handicap else ""
    one_line = " ".join(outcome.reason.split()).replace('"', "'")
    reason = f' reason="{one_line}"' if outcome.reason else ""
    if outcome.interval is None or outcome.verdict in ("cannot-run", "failed"):
        return f"BAR {bar.id} bar{bar.limit.text} place={place} verdict={outcome.verdict}{tail}{reason}"
    if outcome.verdict == "undecided":
        tail = f' side="{bar.limit.side(outcome.interval.mean)}"{tail}'
    unit = bar.limit.unit
    name = "diff" if bar.kind == "diff" else "value" if bar.kind == "value" and unit else "ratio"
    control_unit = unit if bar.kind == "diff" else ""
    return (
        f"BAR {bar.id} {name}={_figure(outcome.interval.mean, unit)} ci95={_range(outcome.interval, unit)}"
        f" aa={_range(outcome.control, control_unit)} bar{bar.limit.text} pairs={outcome.pairs} place={place}"
        f" verdict={outcome.verdict}{tail}{reason}"
    )


def environment() -> dict[str, Any]:
    return tool.environment() | {"load": os.getloadavg(), "command_line": sys.argv}


def as_json(outcome: Outcome) -> dict[str, Any]:
    bar = outcome.bar
    return {
        "id": bar.id,
        "what": bar.what,
        "peer": bar.peer,
        "metric": bar.metric,
        "bar": bar.limit.text,
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "handicap": outcome.handicap,
        "figure": asdict(outcome.interval) if outcome.interval else None,
        "control": asdict(outcome.control) if outcome.control else None,
        "pairs": outcome.pairs,
        "place": {"name": bar.place, **outcome.place},
        "peer_run": outcome.peer,
        "versions": outcome.versions,
        "seconds": outcome.seconds,
        "line": line(outcome),
        "ours": [asdict(sample) for sample in outcome.ours],
        "peers": [asdict(sample) for sample in outcome.peers],
    }
