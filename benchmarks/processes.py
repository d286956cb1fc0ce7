# SPDX-License-Identifier: Apache-2.0
"""Runs a measured program: in its control group, ended with the runner, its output and peak memory kept."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.cleanup import signals_held
from benchmarks.job_tools import SKIP
from benchmarks.places import CannotRun

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class RunFailed(Exception):
    """A measured program failed; the text carries its command line and the end of what it said."""


@dataclass(frozen=True)
class Finished:
    stdout: str
    stderr: str
    peak_memory_kib: int


def _wait(pid: int, pidfd: int, patience_s: float) -> tuple[int, int] | None:
    """(exit status, peak memory in KiB), or None when the time is over. Sleeps, never polls."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(patience_s * 1000):
        return None
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss


def _end(pid: int, pidfd: int) -> None:
    """Ends the program and whatever it forked: it leads a process group of its own."""
    with signals_held(), contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.killpg(pid, signal.SIGTERM)
        ended = _wait(pid, pidfd, 2.0)
        os.killpg(pid, signal.SIGKILL)  # also when the leader has ended: those that it forked may not have
        if ended is None:
            _wait(pid, pidfd, 10.0)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def run(command: list[str], *, cgroup: Path | None = None, timeout_s: float = 600) -> Finished:
    """Runs `command` to its end. Exit 77 raises CannotRun with what it said, any other failure RunFailed."""
    procs = cgroup / "cgroup.procs" if cgroup else None

    def enter() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if procs:
            procs.write_text(str(os.getpid()), encoding="ascii")

    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=enter,
            )
        except FileNotFoundError as error:
            raise CannotRun(f"{command[0]} is not there") from error
        pidfd = os.pidfd_open(process.pid)
        try:
            ended = _wait(process.pid, pidfd, timeout_s)
            if ended is None:
                raise RunFailed(f"{' '.join(command)}: no end after {timeout_s:g} s")
        except BaseException:
            _end(process.pid, pidfd)
            raise
        finally:
            os.close(pidfd)
            process.returncode = 0  # reaped above, by wait4
        code, peak_memory_kib = ended
        said, complained = _text(stdout), _text(stderr)
    if code == SKIP:
        raise CannotRun((complained or said).strip() or f"{command[0]} says that it cannot run here")
    if code != 0:
        raise RunFailed(f"{' '.join(command)}: exit {code}: {(complained or said).strip()[-2000:]}")
    return Finished(said, complained, peak_memory_kib)
