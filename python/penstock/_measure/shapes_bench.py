# SPDX-License-Identifier: Apache-2.0
"""The command line of `penstock bench --shapes`."""

from __future__ import annotations

import argparse
import errno
import functools
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from penstock import _core
from penstock._measure import shapes, storage, tool
from penstock._measure.tool import ToolError

_COMMAND = "penstock bench --shapes"
_SECONDS = 90
_ROUNDS_MIN, _ROUNDS_MAX = 3, 50
# A row is level if the medians differ by no more than this, or if a fifth of the rounds show the opposite.
_LEVEL = 0.05

_EPILOG = f"""
Each row is one thing that programs do, by Penstock with its defaults and by the stock ways (os.preadv, readinto,
numpy.memmap, torch.load, safetensors), in turns, in one process. Cold: not in the page cache; warm: all in it; dirty:
just written and not synced; new: the files do not exist. Cold and warm are checked, and each side's bytes are compared
with the others', outside the clock. Ratio: Penstock's time divided by that of the best stock way, medians; below 1
Penstock is faster.

It makes a folder penstock-shapes-* with up to {shapes.DISK_BYTES >> 20} MiB in DIR, and removes it at the end, also
after Ctrl-C.

shapes: {", ".join(shapes.SHAPES)}

examples:
  penstock bench --shapes /mnt/nvme                            the whole table, {_SECONDS} seconds or more
  penstock bench --shapes /data --only sequence,files_each     two of them
  penstock bench --shapes /data --json shapes.json             every run and the environment
  penstock report shapes.json                                  draws it
"""


@dataclass
class Row:
    """One shape from one state: the seconds of each side, one for each round."""

    name: str
    shape: shapes.Shape
    state: str
    skipped: str = ""
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def median(self, side: str) -> float:
        return statistics.median(self.seconds[side])

    @property
    def best_stock(self) -> str:
        return min((side for side in self.seconds if side != "penstock"), key=self.median)

    @property
    def ratio(self) -> float:
        return self.median("penstock") / self.median(self.best_stock)

    @property
    def ratios(self) -> list[float]:
        """The ratio of each round."""
        return [ours / theirs for ours, theirs in zip(self.seconds["penstock"], self.seconds[self.best_stock])]

    @property
    def verdict(self) -> str:
        """faster, slower or level."""
        same_side = sum((one < 1) == (self.ratio < 1) for one in self.ratios)
        if abs(self.ratio - 1) <= _LEVEL or same_side < 0.8 * len(self.ratios):
            return "level"
        return "faster" if self.ratio < 1 else "slower"

    def as_json(self) -> dict[str, Any]:
        found = {"shape": self.name, "what": self.shape.what, "state": self.state}
        if self.skipped:
            return found | {"skipped": self.skipped}
        return found | {
            "operations": self.shape.operations,
            "bytes": self.shape.nbytes,
            "sides": [{"side": side, "seconds": seconds} for side, seconds in self.seconds.items()],
            "best_stock": self.best_stock,
            "ratio": {"median": self.ratio, "min": min(self.ratios), "max": max(self.ratios)},
            "verdict": self.verdict,
        }


def _parser() -> argparse.ArgumentParser:
    parser = tool.parser(
        _COMMAND, "What programs do with files, on this disk, by Penstock and by the stock ways.", _EPILOG
    )
    add = parser.add_argument
    add("folder", nargs="?", default=".", metavar="DIR", help="folder on the disk to measure (default: this one)")
    add("--only", default="", metavar="S", help="these shapes, with commas between (default: all that can run)")
    add(
        "--seconds",
        type=tool.time_word(1, 86_400),
        default=_SECONDS,
        metavar="TIME",
        help=f"of measuring, about (default {_SECONDS})",
    )
    add("--scale", type=int, default=1, help=argparse.SUPPRESS)  # for tests
    add("--json", metavar="FILE", help="every run and the environment as JSON (- for stdout)")
    return parser


def _refine(args: argparse.Namespace) -> list[str]:
    """The names of the shapes to run. Checks all arguments before any work. ToolError."""
    names = tool.list_of("--only", args.only, shapes.SHAPES) or list(shapes.SHAPES)
    tool.check_folder(args.folder)
    tool.check_json_path(args.json)
    free = shutil.disk_usage(args.folder).free
    if free < shapes.DISK_BYTES:
        raise ToolError(
            f"{args.folder}: {free >> 20} MiB are free, and {shapes.DISK_BYTES >> 20} MiB are needed; free some, or "
            "name a folder on another disk"
        )
    memory = _core.available_memory_bytes()
    if memory < shapes.MEMORY_BYTES:
        raise ToolError(
            f"{memory >> 20} MiB of memory are free; expected {shapes.MEMORY_BYTES >> 20} MiB: end other programs"
        )
    return names


def _turn(row: Row, checksums: dict[str, int], order: list[str]) -> None:
    """One run of each side, each from the initial state. ToolError if a side moved other bytes than the first."""
    for side in order:
        row.shape.begin(row.state)
        start = time.perf_counter()
        try:
            row.shape.sides[side]()
        except OSError as error:
            if side != "O_DIRECT" or error.errno != errno.EINVAL:
                raise
            del row.shape.sides[side]  # the file system has no direct I/O
            continue
        seconds = time.perf_counter() - start
        if side not in checksums:
            checksums[side] = row.shape.checksum()
            if len(set(checksums.values())) > 1:
                raise ToolError(f"{row.shape.what}, {row.state}: {side} moved other bytes: do not trust this disk")
        row.seconds.setdefault(side, []).append(seconds)


def _measure(row: Row, budget_s: float) -> None:
    """Runs rounds of turns, with the order reversed each time, until the time is over."""
    checksums: dict[str, int] = {}
    start = time.monotonic()
    for turn in range(_ROUNDS_MAX):
        if turn >= _ROUNDS_MIN and (time.monotonic() - start) * (turn + 1) / turn > budget_s:
            break
        order = list(row.shape.sides)
        _turn(row, checksums, order if turn % 2 == 0 else order[::-1])


def _rows_of(names: list[str], files: shapes.Files, args: argparse.Namespace) -> list[Row]:
    """Measures all; files that only one shape needs are removed before the next one."""
    progress, found, began = tool.Progress(), [], time.monotonic()
    try:
        for number, name in enumerate(names):
            share = number / len(names)
            left_s = max(args.seconds * (1 - share), (time.monotonic() - began) * (1 / share - 1) if number else 0)
            progress.show(f"[{number + 1}/{len(names)}] about {left_s:.0f} s left: {name}, making its files")
            missing = [module for module in shapes.NEEDS.get(name, ()) if not shapes.has(module)]
            if missing:
                none = shapes.Shape(name.replace("_", " "), {}, 0, 0, int)
                found.append(Row(name, none, "", f"pip install {' '.join(missing)}"))
                continue
            shape = shapes.SHAPES[name](files)
            storage.settle(args.folder)
            for state in shape.states:
                progress.show(f"[{number + 1}/{len(names)}] about {left_s:.0f} s left: {shape.what}, {state}")
                row = Row(name, shape, state)
                found.append(row)
                try:
                    _measure(row, args.seconds / len(names) / len(shape.states))
                except storage.NotInState as error:
                    row.skipped, row.seconds = str(error), {}
            files.remove_own()
    finally:
        progress.clear()
    args.took_s = time.monotonic() - began
    return found


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{_figure(seconds * scale)} {unit}"
    return f"{_figure(seconds * 1e6)} us"


def _table(rows: list[Row], colour: tool.Colour) -> list[str]:
    """At most 80 columns."""
    lines = [f"{'':38}{'from':6}{'Penstock':>8}  {'best stock way':18}  ratio"]
    for row in rows:
        begin = f"{row.shape.what:37.37} {row.state:6}"
        if row.skipped:
            lines.append(f"{begin}not measured: {row.skipped}")
            continue
        best, shade = row.best_stock, {"faster": "green", "slower": "red"}.get(row.verdict, "")
        ours, theirs = _time(row.median("penstock")), _time(row.median(best))
        lines.append(
            f"{begin}{ours:>8}  {theirs:>7} {best:11}"
            + colour(shade, f"{row.ratio:6.2f}" if row.ratio < 100 else f"{row.ratio:6.0f}")
        )
    return lines


def _run(args: argparse.Namespace, out: tool.Print) -> None:
    names = _refine(args)
    out(f"{len(names)} shapes in {os.path.abspath(args.folder)}: about {args.seconds:.0f} s, and more on a slow disk")
    folder = tempfile.mkdtemp(prefix="penstock-shapes-", dir=args.folder)
    try:
        rows = _rows_of(names, shapes.Files(folder, args.scale), args)
        environment = tool.environment()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    out("\n".join(["", *_table(rows, tool.Colour(sys.stderr if args.json == "-" else sys.stdout))]))
    counts = {verdict: sum(row.verdict == verdict for row in rows if not row.skipped) for verdict in _VERDICTS}
    out("\nPenstock, compared with the best stock way: " + ", ".join(f"{n} {word}" for word, n in counts.items()))
    out("Ratio: Penstock / the best stock way, time, medians; below 1 Penstock is faster.")
    out(f"It took {args.took_s:.0f} s.")
    document = {
        "program": _COMMAND,
        "command": ["penstock", "bench", "--shapes", args.folder],
        "environment": environment,
        "folder": os.path.abspath(args.folder),
        "rows": [row.as_json() for row in rows],
    }
    tool.write_json(args.json, document)


_VERDICTS = ("faster", "level", "slower")


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit status, as tool.run() does."""
    words = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args([word for word in words if word != "--shapes"])
    return tool.run(_COMMAND, args.json, functools.partial(_run, args))


if __name__ == "__main__":
    sys.exit(main())
