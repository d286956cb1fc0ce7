# SPDX-License-Identifier: Apache-2.0
"""fio as a peer: direct I/O, and the figures of its job.

CPU seconds are those of fio's job (`usr_cpu`, `sys_cpu` of `job_runtime`). Its process needs four times as much for a
short job.
"""

from __future__ import annotations

import json
from typing import Any


def command(way: str, **options: object) -> list[str]:
    """fio's command line for a job of `read`, `write`, `randread` or `randwrite`."""
    words = ["fio", "--name=job", f"--rw={way}", "--direct=1", "--output-format=json", "--eta=never"]
    return words + [f"--{key}={value}" for key, value in options.items()]


def filename(path: str) -> str:
    """A path for fio, escaped because fio separates several files by colons."""
    return path.replace("\\", "\\\\").replace(":", "\\:")


def figures(text: str, way: str) -> dict[str, Any]:
    """The figures of a job's reads or writes in fio's JSON (warnings may precede it). ValueError."""
    try:
        job = json.loads(text[text.index("{") :])["jobs"][0]
        done, error = job["read" if "read" in way else "write"], job.get("error")
        found = {
            "seconds": done["runtime"] / 1000,
            "bytes": done["io_bytes"],
            "operations": done["total_ios"],
            "cpu_s": (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000,
            "p50_us": done["clat_ns"].get("percentile", {}).get("50.000000", 0) / 1000 or None,
        }
    except (ValueError, KeyError, IndexError) as wrong:
        raise ValueError(f"not fio's JSON ({wrong!r}): {text[-300:]!r}") from wrong
    if error:
        raise ValueError(f"fio's job ended with error {error}")
    return found
