# SPDX-License-Identifier: Apache-2.0
"""The statistics of a streamed model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_GIB = 1 << 30


@dataclass
class FolderStats:
    """bytes_per_second: measured when the stream was made; 0 if no file has a copy. bytes_read: without the weights
    that stay. buffered_bytes: those of files without direct I/O, for the reason buffered_because; they pass through the
    page cache, which takes a copy by the CPU and memory beyond the budget."""

    path: str
    bytes_per_second: float
    bytes_read: int
    buffered_bytes: int
    buffered_because: str


@dataclass
class StreamStats:
    """Counts since stream(). bytes_read: of units, without weights that stay. stall_s: seconds that each unit waited
    for its bytes; "experts" for all experts. plan: bytes that stay and that are read in a pass. folders: those with the
    files. expert_hits: chosen experts that were in memory; expert_misses: chosen experts that had to be read.
    expert_likely_reads: experts that were read before a layer needed them, because they were likely.
    expert_likely_hits: those of them that the layer then used; they are hits too. seconds: in passes, without the time
    between two. bytes_per_second: the rate of reading while one unit after the other was waited for; 0 if none was.
    share_of_bound: of the time that reading alone or computing alone takes, whichever is longer, by `seconds`; 1 is the
    most. None for experts, which are read when the router has chosen them. On a GPU, reading waits for its computation,
    so that the rate and the share are what both together reach.
    """

    passes: int
    bytes_read: int
    rows_bytes_read: int
    ready: int
    acquired: int
    on_demand: int
    stall_s: dict[str, float]
    plan: dict[str, Any]
    folders: list[FolderStats]
    expert_hits: int = 0
    expert_misses: int = 0
    expert_bytes_read: int = 0
    expert_likely_reads: int = 0
    expert_likely_hits: int = 0
    seconds: float = 0
    bytes_per_second: float = 0
    share_of_bound: float | None = None

    def __str__(self) -> str:
        waited = sum(self.stall_s.values())
        read = self.bytes_read + self.rows_bytes_read + self.expert_bytes_read
        parts = [f"{self.passes} passes", f"{read / _GIB:.2f} GiB read", f"{waited:.2f} s waited"]
        if self.seconds:
            parts[-1] += f" of {self.seconds:.2f} s"
        if self.share_of_bound is not None:
            parts.append(f"{100 * self.share_of_bound:.0f} % of the bound")
        if chosen := self.expert_hits + self.expert_misses:
            parts.append(f"{100 * self.expert_hits / chosen:.0f} % of the experts in memory")
        return ", ".join(parts)


def stats_of(
    names: list[str], paths: list[str], rows_bytes: int, of_units: dict[str, Any], plan: Any, of_experts: dict[str, Any]
) -> StreamStats:
    """From what the core counts for units and for experts; without experts that is empty."""
    stall_s = dict(zip(names, of_units["stall_s"], strict=True))
    folders = [FolderStats(path, *one) for path, one in zip(paths, of_units["folders"], strict=True)]
    if of_experts:
        stall_s["experts"] = of_experts["stall_s"]
        plan["experts"] = {"slots": of_experts["slots"], "slot_bytes": of_experts["slot_bytes"]}
        for folder, (_, bytes_read, buffered_bytes, _) in zip(folders, of_experts["folders"], strict=True):
            folder.bytes_read += bytes_read
            folder.buffered_bytes += buffered_bytes
    return StreamStats(
        of_units["passes"],
        of_units["bytes_read"],
        rows_bytes,
        of_units["ready"],
        of_units["acquired"],
        of_units["on_demand"],
        stall_s,
        plan,
        folders,
        *(of_experts.get(name, 0) for name in ("hits", "misses", "bytes_read", "likely_reads", "likely_hits")),
        of_units.get("running_s", 0.0),
        of_units.get("bytes_per_second", 0.0),
        None if of_experts else of_units.get("share_of_bound"),
    )
