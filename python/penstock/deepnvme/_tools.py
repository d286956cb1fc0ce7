# SPDX-License-Identifier: Apache-2.0
"""What `penstock ds_io` and `penstock ds_nvme_tune` share: sizes, progress, where figures were measured, JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from penstock import _core

BYTES_PER_GB = 1 << 30  # DeepSpeed's "GB/sec"
COUNT_MAX = (1 << 31) - 1  # of the depth and the threads that a handle takes

NO_GPU = (
    "{flag} asks for transfers from GPU memory, and this version of Penstock moves host memory only. "
    "Leave {flag} out to measure the storage itself; DeepSpeed's own ds_io measures the GPU path"
)


class ToolError(Exception):
    """What was asked cannot be done; the text says what and what to do."""


class OutputLost(Exception):
    """What is printed reaches nobody (any more): the reader of a pipe has gone, or a disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"what is printed cannot be written: {error.strerror}")
        self._error = error

    def end(self, command: str) -> int:
        """The exit status. A reader that has seen enough (`| head`) is told nothing, as by other programs."""
        if isinstance(self._error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        print(f"{command}: {self}; the files that it made are removed", file=sys.stderr)
        return 1


def printer(stream: TextIO | None) -> Callable[[str], None]:
    """What prints lines, each at once. OutputLost; names that are no text are printed with escapes."""

    def out(text: str) -> None:
        try:
            try:
                print(text, file=stream, flush=True)
            except UnicodeEncodeError:
                code = getattr(stream, "encoding", None) or "ascii"
                print(text.encode(code, "backslashreplace").decode(code), file=stream, flush=True)
        except OSError as error:
            _leave(stream)
            raise OutputLost(error) from error

    return out


def _leave(stream: TextIO | None) -> None:
    """The interpreter flushes at its end what could not be written, and would fail once more."""
    with suppress(OSError, ValueError, AttributeError):
        nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nothing, stream.fileno())  # type: ignore[union-attr]
        os.close(nothing)


def parse_size(flag: str, word: str) -> int:
    """Bytes of `400M`, `1.5GiB`, `2GB`. A bare K, M or G, all that DeepSpeed's tools take, is a power of 1024 there and
    by the rule of every other size here. ToolError names the flag."""
    try:
        size = _core.parse_bytes(word)
    except ValueError:
        size = 0
    if not 1 <= size < 1 << 60:
        raise ToolError(
            f"{flag}: got {word}; expected a number of bytes, such as 4096, 400M, 1.5GiB (binary) or 2GB (decimal)"
        )
    return size


class Progress:
    """One line on stderr while something runs: rewritten on a terminal, else a line each five seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._told = time.monotonic()

    def show(self, text: str) -> None:
        now = time.monotonic()
        if self._terminal:
            self._stream.write(f"\r\033[K{text[:110]}")
        elif now - self._told >= 5:
            self._stream.write(f"{text}\n")
        else:
            return
        self._told = now
        self._stream.flush()

    def clear(self) -> None:
        if self._terminal:
            self._stream.write("\r\033[K")
            self._stream.flush()


class Ended(KeyboardInterrupt):
    """SIGTERM or SIGHUP, so that both clean up as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def signals_raise() -> Iterator[None]:
    """While it lasts SIGTERM and SIGHUP raise `Ended` in the main thread."""

    def end(number: int, _frame: object) -> None:
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def environment() -> dict[str, Any]:
    """Where figures were measured, under the keys of `penstock bench --json`."""
    found: dict[str, Any] = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "time_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    for name in ("penstock", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def check_json_path(path: str | None) -> None:
    """A wrong --json costs no time: it is found before the work. ToolError."""
    if path is None or path == "-":
        return
    file = Path(path)
    if not path or file.is_dir():
        raise ToolError(f"--json {path!r}: that is no file; name a file, or - for stdout")
    if not file.exists() and not file.resolve().parent.is_dir():
        raise ToolError(f"--json {path}: its folder is not there; name a file in a folder that is, or - for stdout")
    if not (os.access(file, os.W_OK) if file.exists() else os.access(file.resolve().parent, os.W_OK | os.X_OK)):
        raise ToolError(f"--json {path}: it cannot be written; name a file that can be, or - for stdout")


def write_fixed(path: str | Path, text: str) -> None:
    """A file whose name the tool chose, over what an earlier run wrote. OSError (ELOOP) where somebody made a symbolic
    link of that name: what it leads to is not the tool's to write."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def write_json(path: str, document: dict[str, Any]) -> None:
    """To a file, or to stdout for `-`. ToolError with the system's reason, OutputLost."""
    text = json.dumps(document, indent=2, allow_nan=False)
    if path == "-":
        printer(sys.stdout)(text)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ToolError(f"--json {path}: {error.strerror}; name a file in a folder that can be written") from error
