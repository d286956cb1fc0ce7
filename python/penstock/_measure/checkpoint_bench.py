# SPDX-License-Identifier: Apache-2.0
"""The command line of `penstock checkpoint bench`."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from penstock import _core
from penstock._measure import models, tool
from penstock._measure.tool import ToolError, WrongArguments

if TYPE_CHECKING:
    from penstock._measure.turns import Bench

_EPILOG = """
The state has the true names, shapes and element types of the model; its numbers are made on the spot. `full` is what a
training run has to save: bf16 weights, their fp32 master copy, Adam's two moments (14 bytes a parameter). What does not
fit in memory (a third of what is free) or on the disk (half of it) is made smaller by leaving out whole blocks, and the
first line says so.

Every save ends durable on every side: data, file and folder are synced before its clock stops. Loads are cold and go
to fresh tensors; what a side loads first is compared with what was saved, bit for bit. The sides take turns, in another
order each round; figures are medians, with the least and the most. Before each turn the host of a virtual machine has
backed the memory that the turn takes: its page faults count for no side.
fio writes and reads the same number of bytes in blocks of 1 MiB, 16 at once, past the page cache: what the disk gives.

examples:
  penstock checkpoint bench /mnt/nvme --model gpt2                       GPT-2 with its optimizer, 1.7 GB
  penstock checkpoint bench --model llama3-8b --max-bytes 32G            as many blocks of it as 32 GiB hold
  penstock checkpoint bench --model phi3-mini --state weights --against torch,safetensors
  penstock checkpoint bench --model gpt2-xl --json bench.json            every round and the environment
"""

_COMMAND = "penstock checkpoint bench"
_VERBS = ("save", "load", "async")


def _parser() -> argparse.ArgumentParser:
    parser = tool.parser(
        _COMMAND, "Saves and loads the state of a model by Penstock, torch, safetensors and fio, in turns.", _EPILOG
    )
    add = parser.add_argument
    add("--model", default="gpt2", metavar="M", help=f"{', '.join(models.MODELS)} (default gpt2)")
    add("--state", choices=("full", "weights"), default="full", help="what is saved (default full)")
    add("--weights", choices=("bf16", "fp32"), default="bf16", help="element type of the weights (default bf16)")
    add(
        "--max-bytes",
        type=tool.size_word,
        metavar="SIZE",
        dest="bytes_max",
        help="of the state at most, such as 4G; more is scaled down (default: what fits)",
    )
    add("folder", nargs="?", metavar="DIR", help="folder on the disk to measure (default: this one)")
    add("--dir", metavar="D", help="the same, by name")
    add("--against", default="", metavar="P", help="of torch,safetensors,fio (default: those that are installed)")
    add("--what", default=",".join(_VERBS), metavar="V", help=f"of {','.join(_VERBS)} (default: all; save always is)")
    add("--rounds", type=int, default=3, metavar="N", help="turns of each side (default 3)")
    add("--json", metavar="FILE", help="every round and the environment as JSON (- for stdout)")
    return parser


def _installed() -> dict[str, str]:
    """The peers; for those that are missing, how to get them (empty: installed)."""
    found = {name: "" if importlib.util.find_spec(name) else f"pip install {name}" for name in ("torch", "safetensors")}
    return found | {"fio": "" if shutil.which("fio") else "apt-get install fio"}


def _refine(args: argparse.Namespace) -> None:
    """Checks all arguments before any work. WrongArguments says what to do."""
    if args.model not in models.MODELS:
        raise WrongArguments(f"--model {args.model}: choose one of {', '.join(models.MODELS)}")
    if args.folder and args.dir:
        raise WrongArguments(f"{args.folder} and --dir {args.dir}: one folder is measured; give one")
    args.dir = args.folder or args.dir or "."
    if args.rounds < 1:
        raise WrongArguments(f"--rounds {args.rounds}: at least 1")
    tool.check_folder(args.dir, "--dir ")
    tool.check_json_path(args.json)
    peers = _installed()
    if peers["torch"]:
        raise WrongArguments(f"the state is made of torch tensors, and torch is not installed: {peers['torch']}")
    args.peers = tool.list_of("--against", args.against, peers) or [name for name in peers if not peers[name]]
    for name in args.peers:
        if peers[name]:
            raise WrongArguments(f"--against {name}: it is not installed: {peers[name]}")
    args.verbs = tool.list_of("--what", args.what, _VERBS)


def _limit(args: argparse.Namespace) -> tuple[int, str]:
    """The limit on the bytes of a state, and the reason for the limit."""
    limits = [
        (_core.available_memory_bytes() // 3, "a third of the free memory"),
        (shutil.disk_usage(args.dir).free // 2, f"half of what is free in {args.dir}"),
    ]
    if args.bytes_max:
        limits.append((args.bytes_max, "--max-bytes"))
    return min(limits)


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def _table(bench: Bench, colour: tool.Colour) -> list[str]:
    """At most 80 columns."""
    lines = []
    for verb, title in (("save", "durable save"), ("load", "cold load"), ("stall", "training stands still")):
        rows = [figures for figures in bench.figures.values() if figures.verb == verb]
        if not rows:
            continue
        lines += ["", colour("bold", f"{title:22} seconds (least - most)    GB/s       CPU s to our .pt")]
        medians = {figures.title: statistics.median(figures.seconds) for figures in rows}
        ours = medians.get("penstock .pt")
        for figures in rows:
            median = medians[figures.title]
            spread = f"({min(figures.seconds):.3f} - {max(figures.seconds):.3f})"
            ratio = f"{median / ours:6.2f}x" if ours else ""
            cpu_s, rate = statistics.median(figures.cpu_s), bench.bytes / median / 1e9
            share = tool.bar(min(medians.values()) / median, 4)
            lines.append(f"{figures.title:22} {median:7.3f} {spread:15} {rate:6.2f} {share} {cpu_s:6.2f} {ratio}")
    return lines


def _run(args: argparse.Namespace, out: tool.Print) -> None:
    from penstock._measure.turns import Bench

    _refine(args)
    asked = models.MODELS[args.model]
    per_parameter = models.bytes_a_parameter(args.state, args.weights)
    limit, whose = _limit(args)
    try:
        model, cut = models.fit(asked, per_parameter, limit)
    except ValueError as error:
        raise ToolError(f"--model {args.model}: {error} ({whose}): choose a smaller model or another --dir") from None
    size, whole = (one.parameters() * per_parameter for one in (model, asked))
    told = f"{args.model}, state {args.state} ({args.weights} weights): {_gb(size)}"
    out(told + (f" of {_gb(whole)}: {cut}, for {whose} is {_gb(limit)}" if cut else ""))
    progress, start = tool.Progress(), time.monotonic()
    progress.show("making the state")
    state = models.make_state(model.shapes(), args.state, args.weights)
    folder = tempfile.mkdtemp(prefix="penstock-checkpoint-bench-", dir=args.dir)
    try:
        bench = Bench(state, folder, args.verbs, args.peers, progress.show)
        bench.run(args.rounds)
    finally:
        progress.clear()
        shutil.rmtree(folder, ignore_errors=True)
    out("\n".join(_table(bench, tool.Colour(sys.stderr if args.json == "-" else sys.stdout))))
    out(f"\n{args.rounds} rounds in turns, {time.monotonic() - start:.0f} s, in {os.path.abspath(args.dir)}")
    document = {
        "program": _COMMAND,
        "environment": tool.environment(),
        "model": args.model,
        "state": args.state,
        "weights": args.weights,
        "left_out": cut,
        "bytes": bench.bytes,
        "tensors": bench.tensors,
        "rounds": args.rounds,
        "figures": [figures.as_json(bench.bytes) for figures in bench.figures.values()],
    }
    tool.write_json(args.json, document)


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit status, as tool.run() does."""
    args = _parser().parse_args(argv)
    return tool.run(_COMMAND, args.json, functools.partial(_run, args))


if __name__ == "__main__":
    sys.exit(main())
