# SPDX-License-Identifier: Apache-2.0
"""The command line of `penstock weights bench`."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock import _core
from penstock._measure import models, storage, tool, weights_model
from penstock._measure.tool import ToolError, WrongArguments

_EPILOG = """
The model has the true shapes of a known one; its weights are random numbers in bf16, written once. What does not fit
on the disk (half of what is free) is made smaller by leaving out whole layers, and the first line says so.

Each side decodes the same tokens with a batch of 1, in a process of its own, from cold files, and the sides take
turns. --memory is the budget of penstock.stream(); a control group gives every side that much, and what a process needs
without weights. Where no group can be made (that needs root), the other sides may use all memory of the machine, and a
line says so. The words that the sides generate are compared.

examples:
  penstock weights bench /mnt/nvme                                     Llama 3.2 1B, half of it in memory
  penstock weights bench --preset llama3-70b --memory 16GiB --max-bytes 64GB
  penstock weights bench --preset llama3-8b --against map --json weights.json
"""

_COMMAND = "penstock weights bench"
_PEERS = {"map": "transformers", "accelerate": "accelerate"}
_TITLES = {"penstock": "penstock", "map": "from_pretrained, mapped", "accelerate": "accelerate, disk"}
_KERNEL_BYTES = 64 << 20  # for page tables, rings, and pages of files that the process reads
_LOOK_S = 0.2


def _parser() -> argparse.ArgumentParser:
    parser = tool.parser(
        _COMMAND, "Runs a model that is larger than its budget of memory, by Penstock and by other ways.", _EPILOG
    )
    add = parser.add_argument
    presets = ", ".join(weights_model.PRESETS)
    add("--preset", default="llama3.2-1b", metavar="M", help=f"{presets} (default llama3.2-1b)")
    add(
        "--memory",
        type=tool.size_word,
        metavar="SIZE",
        help="budget for weights, such as 8GiB (default: half of the weights, or the least that works)",
    )
    add(
        "--max-bytes",
        type=tool.size_word,
        metavar="SIZE",
        dest="bytes_max",
        help="of the weights at most, such as 16GB; more is made smaller",
    )
    add("folder", nargs="?", metavar="DIR", help="folder on the disk to measure (default: this one)")
    add("--dir", metavar="D", help="the same, by name")
    add("--against", default="", metavar="P", help=f"of {','.join(_PEERS)} (default: those that are installed)")
    add("--tokens", type=int, default=8, metavar="N", help="tokens after the first one (default 8)")
    add("--rounds", type=int, default=3, metavar="N", help="turns of each side (default 3)")
    add("--json", metavar="FILE", help="every round and the environment as JSON (- for stdout)")
    return parser


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _refine(args: argparse.Namespace) -> None:
    """Checks all arguments before any work. WrongArguments says what to do."""
    tool.list_of("--preset", args.preset, weights_model.PRESETS)
    if args.folder and args.dir:
        raise WrongArguments(f"{args.folder} and --dir {args.dir}: one folder is measured; give one")
    args.dir = args.folder or args.dir or "."
    for flag, value in (("--rounds", args.rounds), ("--tokens", args.tokens)):
        if value < 1:
            raise WrongArguments(f"{flag} {value}: at least 1")
    tool.check_folder(args.dir, "--dir ")
    tool.check_json_path(args.json)
    for module in ("torch", "transformers"):
        if not _is_installed(module):
            raise WrongArguments(
                f"the model is one of transformers, and {module} is not installed: pip install {module}"
            )
    args.peers = tool.list_of("--against", args.against, _PEERS) or [
        name for name, module in _PEERS.items() if _is_installed(module)
    ]
    for name in args.peers:
        if not _is_installed(_PEERS[name]):
            raise WrongArguments(f"--against {name}: it is not installed: pip install {_PEERS[name]}")


def _limit(args: argparse.Namespace) -> tuple[int, str]:
    """The limit on the bytes of the weights, and the reason for the limit."""
    limits = [(shutil.disk_usage(args.dir).free // 2, f"half of what is free in {args.dir}")]
    if args.bytes_max:
        limits.append((args.bytes_max, "--max-bytes"))
    return min(limits)


# ---- the memory limit


def _group_root() -> tuple[Path, str] | None:
    """The folder in which control groups with a memory limit can be made, and the file for the limit; or None."""
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    if (old / "memory.limit_in_bytes").exists():
        return old, "memory.limit_in_bytes"
    with contextlib.suppress(OSError):
        if "memory" in (new / "cgroup.subtree_control").read_text().split():
            return new, "memory.max"
    return None


@contextlib.contextmanager
def _group(limit: int) -> Iterator[Path | None]:
    """A control group with that memory limit, or None if none can be made."""
    made, root = None, _group_root() if limit else None
    try:
        if root is not None:
            with contextlib.suppress(OSError):
                made = Path(tempfile.mkdtemp(prefix="penstock-weights-bench-", dir=root[0]))
                (made / root[1]).write_text(str(limit))
        yield made
    finally:
        if made is not None:
            for _ in range(50):  # the group is busy until its last process has ended
                with contextlib.suppress(OSError):
                    made.rmdir()
                if not made.exists():
                    break
                time.sleep(0.1)


class _Bench:
    """The folder with the model, and the figures of each side."""

    def __init__(self, folder: str, memory: int, tokens: int, progress: tool.Progress) -> None:
        self._folder, self._memory, self._tokens, self._progress = folder, memory, tokens, progress
        self._limit = 0
        self.is_limited = False
        self.figures: dict[str, list[dict[str, Any]]] = {}

    def run(self, peers: list[str], rounds: int) -> None:
        self._limit = self._memory + self._side("none", "what a process needs")["own_bytes"] + _KERNEL_BYTES
        sides = ["penstock", *peers]
        for turn in range(rounds):
            order = sides[turn % len(sides) :] + sides[: turn % len(sides)]
            for side in order:
                storage.make_cold(self._folder)
                step = f"round {turn + 1} of {rounds}: {_TITLES[side]}"
                self.figures.setdefault(side, []).append(self._side(side, step))

    def _side(self, side: str, step: str) -> dict[str, Any]:
        """The output of the process of a side. ToolError with the end of its error output."""
        offload = os.path.join(self._folder, "offload")
        words = [sys.executable, "-m", "penstock._measure.weights_side", side, self._folder]
        words += [str(self._memory), str(self._tokens), offload]
        with _group(self._limit) as group, tempfile.TemporaryFile("w+") as errors:
            self.is_limited = group is not None

            def enter() -> None:
                if group is not None:
                    (group / "cgroup.procs").write_text(str(os.getpid()))

            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=enter)
            begin = time.monotonic()
            try:
                while True:
                    self._progress.show(f"{step}, {time.monotonic() - begin:.0f} s")
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        out, _ = process.communicate(timeout=_LOOK_S)
                        break
            finally:
                process.kill()
                process.wait()
                shutil.rmtree(offload, ignore_errors=True)
            if process.returncode == 0:
                found: dict[str, Any] = json.loads(out)
                return found
            errors.seek(0)
            last = ([line for line in errors.read().splitlines() if line.strip()] or ["no message"])[-1]
            if process.returncode == -9 and group is not None:
                last = f"it was killed: it needs more than {_gb(self._limit)}; give more --memory"
            raise ToolError(f"{_TITLES.get(side, 'the process')}: exit {process.returncode}: {last}")

    def seconds(self, side: str) -> float:
        """The median time of a token, over all rounds."""
        return statistics.median([one for found in self.figures[side] for one in found["token_s"]])

    def different(self) -> list[str]:
        """The sides that generated other words than Penstock."""
        ours = self.figures["penstock"][0]["words"]
        return [side for side, found in self.figures.items() if any(one["words"] != ours for one in found)]


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def _table(bench: _Bench, colour: tool.Colour) -> list[str]:
    """At most 80 columns."""
    lines = ["", colour("bold", f"{'':23} {'s a token (least - most)':25} {'first s':>7} {'peak':>9}    to ours")]
    ours, least = bench.seconds("penstock"), min(bench.seconds(side) for side in bench.figures)
    for side, found in bench.figures.items():
        median = bench.seconds(side)
        every = [one for one_round in found for one in one_round["token_s"]]
        spread = f"({min(every):.3f} - {max(every):.3f})"
        first = statistics.median(one["first_token_s"] for one in found)
        peak = max(one["peak_bytes"] for one in found)
        share = tool.bar(least / median, 4)
        lines.append(
            f"{_TITLES[side]:23} {median:7.3f} {spread:18} {first:6.1f} {_gb(peak):>9} {share} {median / ours:5.2f}x"
        )
    return lines


def _run(args: argparse.Namespace, out: tool.Print) -> None:
    _refine(args)
    asked = models.MODELS[args.preset]
    limit, whose = _limit(args)
    try:
        model, cut = models.fit(asked, weights_model.BYTES_A_PARAMETER, limit)
    except ValueError as error:
        raise ToolError(f"--preset {args.preset}: {error} ({whose}): choose a smaller one or another --dir") from None
    total, whole = (one.parameters() * weights_model.BYTES_A_PARAMETER for one in (model, asked))
    size = f"{args.preset} in bf16: {_gb(total)}"
    out(size + (f" of {_gb(whole)}: {cut}, for {whose} is {_gb(limit)}" if cut else ""))
    progress, start = tool.Progress(), time.monotonic()
    folder = tempfile.mkdtemp(prefix="penstock-weights-bench-", dir=args.dir)
    try:
        weights_model.make(args.preset, model, Path(folder), progress.show)
        memory = _memory(args.memory, folder, total)
        plan = _plan(folder, memory)
        out(f"memory for weights: {_gb(memory)}; Penstock reads {_gb(plan['read_bytes'])} for each token")
        bench = _Bench(folder, memory, args.tokens, progress)
        bench.run(args.peers, args.rounds)
    finally:
        progress.clear()
        shutil.rmtree(folder, ignore_errors=True)
    out("\n".join(_table(bench, tool.Colour(sys.stderr if args.json == "-" else sys.stdout))))
    different = bench.different()
    if args.peers:
        out("")
        out(f"other words than ours: {', '.join(different)}" if different else "all sides generated the same words")
    if not bench.is_limited:
        out("no limit of memory could be set for a process: the other sides could use all of the machine")
    out(f"{args.rounds} rounds in turns, {time.monotonic() - start:.0f} s, in {os.path.abspath(args.dir)}")
    document = {
        "program": _COMMAND,
        "environment": tool.environment(),
        "preset": args.preset,
        "left_out": cut,
        "weight_bytes": total,
        "memory_bytes": memory,
        "memory_is_limited": bench.is_limited,
        "read_bytes": plan["read_bytes"],
        "tokens": args.tokens,
        "rounds": args.rounds,
        "same_words": not different,
        "figures": [
            {"side": side, "seconds_a_token": bench.seconds(side), "rounds": found}
            for side, found in bench.figures.items()
        ],
    }
    tool.write_json(args.json, document)


def _plan(folder: str, memory: int) -> dict[str, Any]:
    return _core.forecast_weights([folder], memory, 2, 0.0, 0.0, 0.0, None)


def _memory(asked: int | None, folder: str, total: int) -> int:
    """The budget: the given one, or half of the weights, or a tenth above the minimum if that is more. ToolError if it
    is too small, before any side runs."""
    plan = _plan(folder, 1 << 60)
    least = plan["least_memory_bytes"]
    if asked is not None and asked < least:
        raise ToolError(
            f"--memory {asked}: the least that works for this model is {_gb(least)} ({least} bytes), for its largest "
            "parts; give more"
        )
    return asked or min(total, max(total // 2, least + least // 10))


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit status, as tool.run() does."""
    args = _parser().parse_args(argv)
    return tool.run(_COMMAND, args.json, functools.partial(_run, args))


if __name__ == "__main__":
    sys.exit(main())
