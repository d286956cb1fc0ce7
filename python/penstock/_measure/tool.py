# SPDX-License-Identifier: Apache-2.0
"""The frame of a measuring command: its end, its output, sizes with units, its environment, its JSON."""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import itertools
import json
import os
import platform
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

from penstock import _core

_Number = TypeVar("_Number", int, float)

Print = Callable[[str], None]


class ToolError(Exception):
    """The request cannot be done; the text says why and what to do."""


class WrongArguments(ToolError):
    """Wrong arguments, found before any work; one line for each error."""


class OutputLost(Exception):
    """The output cannot be written (any more): the reader of a pipe has exited, or a disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"what is printed cannot be written: {error.strerror}; the files that it made are removed")
        self.reader_left = isinstance(error, BrokenPipeError)


class Ended(KeyboardInterrupt):
    """SIGTERM or SIGHUP as an exception, so that both clean up as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def run(command: str, json_path: str | None, work: Callable[[Print], None]) -> int:
    """Runs `work` with a function that prints for people (to stderr if the JSON goes to stdout). Returns the exit
    status: 0, 1 after an error, 2 for wrong arguments, 128 + the signal that ended it."""

    def tell(*lines: object) -> None:
        print(f"{command}: {lines[0]}", *lines[1:], sep="\n  ", file=sys.stderr)

    try:
        with _signals_raise():
            work(printer(sys.stderr if json_path == "-" else sys.stdout))
        return 0
    except WrongArguments as error:
        tell("wrong arguments:", *str(error).splitlines(), f"Try: {command} --help")
        return 2
    except (ToolError, OSError, ImportError, MemoryError) as error:
        tell(error if str(error) else "out of memory: take a smaller size")
        return 1
    except OutputLost as error:
        if error.reader_left:  # the reader needs no more (`| head`), so nothing is printed, as in other programs
            return 128 + signal.SIGPIPE
        tell(error)
        return 1
    except KeyboardInterrupt as error:
        tell("ended; the files that it made are removed")
        return 128 + getattr(error, "number", signal.SIGINT)


@contextmanager
def _signals_raise() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP raise `Ended` in the main thread."""

    def end(number: int, _frame: object) -> None:
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def printer(stream: TextIO | None) -> Print:
    """A function that prints lines and flushes each. OutputLost; names that are not text are printed with escapes."""

    def out(text: str) -> None:
        try:
            try:
                print(text, file=stream, flush=True)
            except UnicodeEncodeError:
                code = getattr(stream, "encoding", None) or "ascii"
                print(text.encode(code, "backslashreplace").decode(code), file=stream, flush=True)
        except OSError as error:
            # The interpreter would flush the unwritten output again at its end, and fail.
            with suppress(OSError, ValueError, AttributeError), open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), stream.fileno())  # type: ignore[union-attr]
            raise OutputLost(error) from error

    return out


class Progress:
    """Progress on stderr: on a terminal one line that is rewritten, else a line every five seconds."""

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


class Colour:
    """Colours of a terminal; none if the stream is not a terminal, TERM is dumb, or NO_COLOR is set to anything."""

    _CODES = {"green": "32", "red": "31", "yellow": "33", "bold": "1"}

    def __init__(self, stream: TextIO | None) -> None:
        terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._on = terminal and not os.environ.get("NO_COLOR")

    def __call__(self, name: str, text: str) -> str:
        return f"\033[{self._CODES[name]}m{text}\033[0m" if self._on and name else text


def bar(share: float, width: int) -> str:
    """A bar of `width` columns that is filled to `share` (0 to 1), in eighths of a column; padded."""
    whole, eighths = divmod(round(max(0.0, min(1.0, share)) * 8 * width), 8)
    return ("█" * whole + " ▏▎▍▌▋▊▉"[eighths]).ljust(width)[:width]


class HelpText(argparse.RawDescriptionHelpFormatter):
    """Keeps lists and examples of a description unchanged if they fit the terminal; text is filled."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for indented, group in itertools.groupby(text.strip("\n").splitlines(), lambda line: line[:1] in ("", " ")):
            if indented:
                lines += [fitted for line in group for fitted in _fitted(line, width)]
            else:
                lines += textwrap.wrap(" ".join(group), width, break_long_words=False, break_on_hyphens=False)
        return "\n".join(indent + line for line in lines) + "\n"


def _fitted(line: str, width: int) -> list[str]:
    """Fits an indented line: a command is not broken; its description goes below it if it does not fit next to it."""
    if len(line) <= width:
        return [line]
    start = len(line) - len(line.lstrip())
    first, gap, rest = line.strip().partition("  ")
    if first.startswith("penstock "):
        more = " " * (start + 4)
        return [line[:start] + first, *textwrap.wrap(rest.strip(), width, initial_indent=more, subsequent_indent=more)]
    hanging = start + len(first) + len(gap) + len(rest) - len(rest.lstrip()) if gap else start
    return textwrap.wrap(line, width, subsequent_indent=" " * hanging, drop_whitespace=True)


def parser(prog: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser whose epilog keeps its lines."""
    return argparse.ArgumentParser(prog=prog, description=description, epilog=epilog, formatter_class=HelpText)


def list_of(flag: str, text: str, known: Iterable[str]) -> list[str]:
    """The words of `a,b`. WrongArguments names an unknown word, and the known ones."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            near = difflib.get_close_matches(word, known, 1)
            told = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
            raise WrongArguments(f"{flag} {word}: {told}")
    return words


def parse_size(flag: str, word: str) -> int:
    """Bytes of `400M`, `1.5GiB`, `2GB`. A bare K, M or G is a power of 1024, as in DeepSpeed's tools, which take only
    those, and in all other sizes of Penstock. WrongArguments names the flag."""
    try:
        return _in_range(_core.parse_bytes(word), word, 1, (1 << 60) - 1)
    except ValueError as error:
        raise WrongArguments(f"{flag}: {error}") from None


def size_word(word: str) -> int:
    """The bytes of an option, for add_argument(type=, metavar="SIZE")."""
    return _of_option(lambda: _in_range(_core.parse_bytes(word), word, 1, (1 << 60) - 1))


def time_word(least: float, most: float) -> Callable[[str], float]:
    """Reads the seconds of an option, for add_argument(type=, metavar="TIME")."""
    return lambda word: _of_option(lambda: _in_range(_core.parse_seconds(word), word, least, most))


def _in_range(value: _Number, word: str, least: float, most: float) -> _Number:
    if not least <= value <= most:
        raise ValueError(f"got {word!r}; expected {least:,} to {most:,}")
    return value


def _of_option(read: Callable[[], _Number]) -> _Number:
    try:
        return read()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def check_folder(folder: str, flag: str = "") -> None:
    """Raises WrongArguments unless files can be made in the folder."""
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise WrongArguments(f"{flag}{folder}: no folder that can be written is there; name one on the disk to measure")


def check_json_path(path: str | None) -> None:
    """Checks --json before the work, so that a wrong path costs no time. WrongArguments."""
    if path is None or path == "-":
        return
    file, folder = Path(path), Path(path).resolve().parent
    wrong = ""
    if not path or file.is_dir():
        wrong = f"--json {path!r}: that is no file; name a file"
    elif not file.exists() and not folder.is_dir():
        wrong = f"--json {path}: its folder is not there; name a file in a folder that is"
    elif not (os.access(file, os.W_OK) if file.exists() else os.access(folder, os.W_OK | os.X_OK)):
        wrong = f"--json {path}: it cannot be written; name a file that can be"
    elif file.is_block_device() or (file.is_file() and file.stat().st_size and not _core.is_json_of_ours(path)):
        wrong = f"--json {path}: it is there, and is no earlier output of penstock; give another name, or remove it"
    if wrong:
        raise WrongArguments(f"{wrong}, or - for stdout")


def wrong_among(checks: list[tuple[Callable[..., object], tuple[Any, ...]]]) -> list[str]:
    """All errors of the given checks, called with their arguments."""
    found = []
    for check, words in checks:
        try:
            check(*words)
        except WrongArguments as error:
            found.append(str(error))
    return found


def environment() -> dict[str, Any]:
    """The environment of a measurement: that of `penstock bench --json`, and the versions of Python packages."""
    found: dict[str, Any] = json.loads(_core.environment_json()) | {"python": platform.python_version()}
    for name in ("numpy", "torch"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def write_json(path: str | None, document: dict[str, Any]) -> None:
    """Writes to a file, to stdout for `-`, nowhere for None. ToolError with the system's reason, OutputLost."""
    text = json.dumps(document, indent=2, allow_nan=False)
    if path == "-":
        printer(sys.stdout)(text)
    elif path is not None:
        code = _core.write_output(path, text + "\n")
        if code:
            raise ToolError(f"--json {path}: {os.strerror(code)}; name a file in a folder that can be written")
