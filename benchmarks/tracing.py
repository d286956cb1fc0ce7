# SPDX-License-Identifier: Apache-2.0
"""The kernel's number of the tracepoint `raw_syscalls:sys_enter`, by which a program counts its own system calls."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from benchmarks import cleanup
from benchmarks.places import CannotRun

_POINT = "events/raw_syscalls/sys_enter/id"
_KNOWN = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")


@functools.cache
def syscall_tracepoint() -> int:
    """Reads it from tracefs, mounted for the moment where it is not; needs root."""
    for root in _KNOWN:
        try:
            return int(Path(root, _POINT).read_text(encoding="ascii"))
        except OSError:
            continue
    folder = Path(tempfile.gettempdir()) / cleanup.own_name() / "tracing"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tracefs", "penstock-bench", str(folder)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotRun(f"system calls are counted through tracefs, as root: {done.stderr.strip()}")
        return int((folder / _POINT).read_text(encoding="ascii"))
    except OSError as error:
        raise CannotRun(f"this kernel has no tracepoint for system calls: {error}") from error
    finally:
        cleanup.remove_folder(folder)
