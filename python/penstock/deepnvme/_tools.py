# SPDX-License-Identifier: Apache-2.0
"""Code that `penstock ds_io` and `penstock ds_nvme_tune` share, in addition to that of all measuring commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import _core

BYTES_PER_GB = 1 << 30  # DeepSpeed's "GB/sec"
COUNT_MAX = (1 << 31) - 1  # limit of a handle on depth and threads


def why_no_gpu(devices: list[int] | None = None) -> str:
    """The reason why transfers of these GPUs (or of any GPU) cannot be measured on this machine; empty if they can."""
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
    """The environment variables that allow an engine such blocks and depth; none if the defaults allow them."""
    wanted = {"block_bytes": block_bytes, "queue_depth": depth, "in_flight_bytes": block_bytes * depth}
    found = {}
    for name, value in wanted.items():
        default, most, step = _core.engine_option(name)
        if value > default:
            found[f"PENSTOCK_{name.upper()}"] = min(-(-value // step) * step, most)
    return found


@contextmanager
def engine_lets_through(block_bytes: int, depth: int) -> Iterator[None]:
    """A context in which new engines of this process and its children allow these; the user's settings stay."""
    ours = {name: str(v) for name, v in engine_settings(block_bytes, depth).items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def write_fixed(path: str | Path, text: str) -> None:
    """Writes a file whose name the tool chose, over that of an earlier run. Raises OSError (ELOOP) if the name is a
    symbolic link: the tool must not write to its target."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
