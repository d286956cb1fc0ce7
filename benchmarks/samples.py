# SPDX-License-Identifier: Apache-2.0
"""What one run of one side gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

GIB = 1 << 30


@dataclass
class Sample:
    seconds: float | None = None
    bytes: int | None = None
    operations: int | None = None
    cpu_s: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    value: float | None = None
    syscalls: int | None = None
    peak_memory_kib: int | None = None
    command: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def metric(self, name: str) -> float:
        """The figure that a bar's metric asks for; ValueError when this run did not take it."""
        try:
            if name == "bandwidth":
                return self.bytes / self.seconds  # type: ignore[operator]
            if name == "iops":
                return self.operations / self.seconds  # type: ignore[operator]
            if name == "cpu":
                return self.cpu_s / self.bytes * GIB  # type: ignore[operator]
            figure = getattr(self, name)
            return float(figure)
        except (TypeError, ZeroDivisionError) as error:
            raise ValueError(f"{' '.join(self.command)}: gave no {name}: {asdict(self)}") from error
