# SPDX-License-Identifier: Apache-2.0
"""What the runner makes outside its own memory, under one name, and how it goes away again.

Everything (folders, mounts, control groups) is called `penstock-bench-<pid>-<start time of that pid>`. So a run that
was killed can be told from one that is alive, and whatever bears the name of a dead one is removed by the next run.
Loop devices need no care of their own: `mount -o loop` frees them with the mount.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "penstock-bench-"
_NAME = re.compile(re.escape(PREFIX) + r"(\d+)-(\d+)")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived; not an Exception, so that nothing on the way swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


def raise_on_signals() -> None:
    """From now on a signal unwinds the stack, so that context managers clean up."""

    def handler(number: int, _frame: object) -> None:
        raise Interrupted(number)

    for number in _SIGNALS:
        signal.signal(number, handler)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Signals wait until the block is over: a second Ctrl-C does not stop the cleaning."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def own_name() -> str:
    return f"{PREFIX}{os.getpid()}-{_start_time(os.getpid())}"


def is_left_over(name: str) -> bool:
    """Whether a thing of this name is ours and its owner is dead."""
    match = _NAME.fullmatch(name)
    return bool(match) and _start_time(int(match[1])) != int(match[2])


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def mounts() -> list[dict[str, str]]:
    """The mounts of this process, in the order they were made."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        found.append(
            {
                "device": fields[2],
                "at": _unescape(fields[4]),
                "type": tail[0],
                "source": _unescape(tail[1]),
                "options": tail[2] if len(tail) > 2 else "",
            }
        )
    return found


def _mounts_below(folder: Path) -> list[str]:
    inside = str(folder) + "/"
    return [mount["at"] for mount in mounts() if mount["at"] == str(folder) or mount["at"].startswith(inside)]


def _unmount(at: str) -> None:
    for _ in range(20):
        if subprocess.run(["umount", at], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)  # a process that was just killed may hold a file for a moment
    subprocess.run(["umount", "--lazy", at], capture_output=True, check=False)


def remove_folder(folder: Path) -> None:
    """Unmounts what is mounted below `folder`, then removes it; what stays mounted stays whole."""
    with signals_held():
        for at in reversed(_mounts_below(folder)):
            _unmount(at)
        if not _mounts_below(folder):
            shutil.rmtree(folder, ignore_errors=True)


def remove_cgroup(group: Path) -> None:
    """Ends what still runs in a control group of ours and removes the group."""
    with signals_held():
        for _ in range(50):
            try:
                group.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                with contextlib.suppress(OSError):
                    for pid in (group / "cgroup.procs").read_text(encoding="ascii").split():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.1)


def cgroup_roots() -> list[Path]:
    """Where control groups that can limit block I/O may be: version 1's blkio, version 2's tree."""
    roots = []
    for mount in mounts():
        if mount["type"] == "cgroup" and "blkio" in mount["options"].split(","):
            roots.append(Path(mount["at"]))
        elif mount["type"] == "cgroup2":
            roots.append(Path(mount["at"]))
    return roots


def _named(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir() and _NAME.fullmatch(entry.name)]
    except OSError:
        return []


def sweep(folders: list[Path]) -> list[Path]:
    """Removes what dead runs left in `folders` and among the control groups; returns what it removed."""
    removed = []
    for root in cgroup_roots():
        for group in _named(root):
            if is_left_over(group.name):
                remove_cgroup(group)
                removed.append(group)
    for parent in folders:
        for folder in _named(parent):
            if is_left_over(folder.name):
                remove_folder(folder)
                removed.append(folder)
    return removed


def remove_own(folders: list[Path]) -> None:
    """The last thing a run does: whatever bears its own name goes, however the run ended."""
    for root in cgroup_roots():
        if (group := root / own_name()).is_dir():
            remove_cgroup(group)
    for parent in folders:
        if (folder := parent / own_name()).is_dir():
            remove_folder(folder)
