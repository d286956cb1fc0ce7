# SPDX-License-Identifier: Apache-2.0
"""Shared code of `penstock ds_io` and `penstock ds_nvme_tune`, beyond the frame of every measuring command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import _core

BYTES_PER_GB = 1 << 30  # DeepSpeed's "GB/sec"
COUNT_MAX = (1 << 31) - 1  # of the depth and the threads that a handle takes


def why_no_gpu(devices: list[int] | None = None) -> str:
    """Why transfers from the memory of a GPU cannot be measured here, nor from these ones; nothing where they can."""
    report = _core.gpus()
    if not report:
        reason = f"--gpu: no memory of a GPU can be moved here: {report.reason}"
        return f"{reason}. Leave --gpu out to measure the storage itself"
    absent = [device for device in devices or [] if device >= len(report.gpus)]
    if absent:
        return (
            f"--gpu: there is no GPU {absent[0]}, and this process sees {len(report.gpus)}, from 0 on; name one of "
            "them for each folder with --folder_to_device_mapping (CUDA_VISIBLE_DEVICES hides some)"
        )
    return ""


def engine_settings(block_bytes: int, depth: int) -> dict[str, int]:
    """The variables under which an engine lets blocks and depth of this size through; none where it does anyway."""
    wanted = {"block_bytes": block_bytes, "queue_depth": depth, "in_flight_bytes": block_bytes * depth}
    found = {}
    for name, value in wanted.items():
        default, most, step = _core.engine_option(name)
        if value > default:
            found[f"PENSTOCK_{name.upper()}"] = min(-(-value // step) * step, most)
    return found


@contextmanager
def engine_lets_through(block_bytes: int, depth: int) -> Iterator[None]:
    """An engine that this process or a child makes meanwhile has room for these; what the user set stays."""
    ours = {name: str(v) for name, v in engine_settings(block_bytes, depth).items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def write_fixed(path: str | Path, text: str) -> None:
    """A file whose name the tool chose, over what an earlier run wrote. OSError (ELOOP) where somebody made a symbolic
    link of that name: what it leads to is not the tool's to write."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
