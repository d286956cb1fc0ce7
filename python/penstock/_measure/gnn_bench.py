# SPDX-License-Identifier: Apache-2.0
"""The command line of `penstock bench gnn`."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock._measure import fio, storage, tool
from penstock._measure.tool import ToolError, WrongArguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COMMAND = "penstock bench gnn"
_TRACES = ("rmat", "zipf", "uniform")
_SIDES = ("memmap", "torch", "tuned", "pread", "graphbolt", "fio", "penstock", "ahead")
_FIO_DEPTH = 128
_FIO_BLOCK = 512
_OWN_BYTES = 160 << 20  # memory of a process: Python, NumPy, the engine
# Published for the full IGB graph on an A100 (Micron and GIDS, 2024; docs/features.md), and not measured here.
_PUBLISHED = {
    "np.memmap": {"iterations": 100, "seconds": 1130.0, "rows_per_second": 47_000},
    "GIDS, 1 SSD": {"iterations": 100, "seconds": 31.6, "rows_per_second": 1_700_000},
    "GIDS, 4 SSDs": {"iterations": 100, "seconds": 8.57, "rows_per_second": 6_300_000},
}

_EPILOG = """
Makes a table of rows with known bytes in DIR, and gathers batches of rows from it: the neighbourhoods that a sampler
finds in an R-MAT graph, and as many rows a batch by Zipf's law (0.6) and uniformly, on which a cache gains little.
Every byte of every batch is checked (not of fio's). The check stands for a training step: `ahead` reads during it.

  memmap     np.memmap[ids], one thread: the default of PyTorch Geometric, DGL
  torch      torch.from_numpy(memmap)[ids], as many threads as there are cores
  tuned      the same mapping with MADV_RANDOM, 32 threads
  pread      one preadv for each row, 32 threads, through the page cache
  graphbolt  GraphBolt's loop for arrays on disk, written over Penstock's
             Engine: 512 rows at once, all awaited, copied out of a buffer
  fio        as many random reads of a row, depth 128: what the device can do.
             No batches, and no bytes are checked
  penstock   FeatureStore.gather()
  ahead      FeatureStore.gather_async(), one batch ahead, with hints of eight

Each side has a process of its own, and begins with no page of the table cached. busy: seconds that rows are read or
copied. exposed: seconds that the loop waits for rows; those of `ahead` are fewer than the busy ones. rows/s a core: by
the CPU seconds of the process, without the checks; cores: those that 1.7 and 6.3 million rows/s would take. read: bytes
from the device divided by bytes wanted. --memory limits what each process may keep of the table (for Penstock: ram=;
without a limit that is "auto"), plus 160 MiB and three batches for itself. It needs root, for control groups; otherwise
the output says that there is no limit. The figures of mappings depend on the device's read-ahead, which is printed.

It makes a folder penstock-gnn-* in DIR, and removes it at the end, also after Ctrl-C.

examples:
  penstock bench gnn /mnt/nvme                                    65,536 rows of 4 KiB, 100 batches
  penstock bench gnn /mnt/nvme --scale 21 --batch 1024 --memory 860M
  penstock bench gnn /data --trace rmat --against penstock,ahead --json gnn.json
"""


def _parser() -> argparse.ArgumentParser:
    parser = tool.parser(_COMMAND, "Gathers the feature rows of sampled batches by Penstock and by mappings.", _EPILOG)
    add = parser.add_argument
    add("folder", nargs="?", default=".", metavar="DIR", help="folder on the disk to measure (default: this one)")
    add("--scale", type=int, default=16, metavar="N", help="2^N rows, and nodes of the graph (default 16)")
    add("--edges-per-node", type=int, default=16, metavar="N", help="of the graph (default 16)")
    add("--row-bytes", default=4096, type=tool.size_word, metavar="SIZE", help="a multiple of 8 (default 4096)")
    add("--batch", type=int, default=256, metavar="N", help="seed nodes a batch (default 256)")
    add("--fanout", default="10,5,5", metavar="F", help="edges a node, for each hop (default 10,5,5)")
    add("--iterations", type=int, default=100, metavar="N", help="batches (default 100)")
    add("--trace", default=",".join(_TRACES), metavar="T", help=f"of {','.join(_TRACES)} (default: all)")
    add("--against", default=",".join(_SIDES), metavar="S", help=f"of {','.join(_SIDES)} (default: all)")
    add(
        "--memory",
        type=tool.size_word,
        metavar="SIZE",
        help="of the table that a process may keep, such as 64M (default: no limit)",
    )
    add("--seed", type=int, default=1, metavar="N", help="of the graph and the samples (default 1)")
    add("--json", metavar="FILE", help="every batch and the environment as JSON (- for stdout)")
    return parser


def _refine(args: argparse.Namespace) -> None:
    """Checks all arguments before any work. WrongArguments says what to do."""
    if importlib.util.find_spec("numpy") is None:
        raise WrongArguments("the rows are NumPy arrays, and NumPy is not installed: pip install numpy")
    for flag, value, most in (("--scale", args.scale, 34), ("--batch", args.batch, 1 << 20)):
        if not 1 <= value <= most:
            raise WrongArguments(f"{flag} {value}: expected 1 to {most}")
    for flag, value in (("--iterations", args.iterations), ("--edges-per-node", args.edges_per_node)):
        if value < 1:
            raise WrongArguments(f"{flag} {value}: at least 1")
    if args.seed < 0:
        raise WrongArguments(f"--seed {args.seed}: 0 or more")
    if args.row_bytes % 8 or args.row_bytes > 1 << 20:
        raise WrongArguments(f"--row-bytes {args.row_bytes}: expected a multiple of 8, up to 1 MiB")
    args.traces = tool.list_of("--trace", args.trace, _TRACES) or list(_TRACES)
    args.sides = tool.list_of("--against", args.against, _SIDES) or list(_SIDES)
    reasons = {"fio": _no_fio(args.row_bytes), "torch": _no_torch()}
    args.left_out = {side: reason for side, reason in reasons.items() if reason and side in args.sides}
    for side, reason in args.left_out.items():
        if args.against != ",".join(_SIDES):
            raise WrongArguments(f"--against {side}: {reason}")
        args.sides.remove(side)
    try:
        args.fanouts = [int(word) for word in args.fanout.split(",")]
    except ValueError:
        raise WrongArguments(f"--fanout {args.fanout}: expected numbers with commas, such as 10,5,5") from None
    if min(args.fanouts) < -1:
        raise WrongArguments(f"--fanout {args.fanout}: expected 0 or more, or -1 for all")
    tool.check_folder(args.folder)
    tool.check_json_path(args.json)
    size = args.row_bytes << args.scale
    free = shutil.disk_usage(args.folder).free
    if size > free // 2:
        raise WrongArguments(
            f"--scale {args.scale}: the table has {size / 1e9:.2f} GB, and {args.folder} has {free / 1e9:.2f} GB free; "
            "take a smaller scale, or another folder (half of what is free is used at most)"
        )


def _batches(args: argparse.Namespace, progress: tool.Progress) -> tuple[dict[str, list[Any]], float]:
    """The rows of each batch, by trace, and the seconds to sample a batch."""
    import numpy as np

    from penstock.features import Graph, NeighborSampler, zipf_rows

    progress.show("making the graph")
    graph = Graph.rmat(args.scale, args.edges_per_node, seed=args.seed)
    sampler = NeighborSampler(graph, args.fanouts, seed=args.seed)
    rows = 1 << args.scale
    order = np.random.default_rng(args.seed).permutation(rows)
    start, found = time.perf_counter(), []
    for number in range(args.iterations):
        seeds = order.take(range(number * args.batch, (number + 1) * args.batch), mode="wrap")
        found.append(sampler.sample(seeds, batch=number).nodes)
    seconds = (time.perf_counter() - start) / args.iterations
    traces = {"rmat": found}
    for name, exponent in (("zipf", 0.6), ("uniform", 0.0)):
        traces[name] = [
            np.unique(zipf_rows(rows, exponent, len(ids), seed=args.seed, batch=number))
            for number, ids in enumerate(found)
        ]
    return {name: traces[name] for name in args.traces}, seconds


def read_ahead_kb(path: str) -> int | None:
    """The read-ahead of the device of a file; None if the system does not report it."""
    device = os.stat(path).st_dev
    folder = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for place in ("queue", "../queue"):
        with suppress(OSError, ValueError), open(f"{folder}/{place}/read_ahead_kb") as file:
            return int(file.read())
    return None


@contextmanager
def limited(limit: int | None) -> Iterator[tuple[str | None, str]]:
    """A control group with that memory limit, or the reason why none can be made."""
    if limit is None:
        yield None, "no limit"
        return
    group, reason = None, "no control group of memory is mounted"
    for root, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        path = f"{root}/penstock-gnn-{os.getpid()}"
        try:
            if os.path.isdir(root):
                os.mkdir(path)
                with open(f"{path}/{name}", "w") as file:
                    file.write(str(limit))
                group = path
                break
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            with suppress(OSError):
                os.rmdir(path)
    try:
        yield group, "" if group else f"no limit ({reason})"
    finally:
        if group:
            with suppress(OSError):
                os.rmdir(group)


def _run_side(
    side: str,
    files: dict[str, str],
    limit: int | None,
    memory: int | None = None,
    report: Callable[[int], None] = lambda batches: None,
) -> tuple[dict[str, Any], str]:
    """The figures of a side, and the reason why its memory was not limited. report: of the batches so far."""
    storage.make_cold(files["table"])
    with limited(limit) as (group, reason), tempfile.TemporaryFile("w+") as errors:
        words = json.dumps({"side": side, **files, "group": group, "memory": memory})
        command = [sys.executable, "-m", "penstock._measure.gnn_side", words]
        last = ""
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            try:
                for last in process.stdout or ():
                    if last.strip().isdigit():
                        report(int(last))
            except BaseException:
                process.kill()
                raise
        errors.seek(0)
        if process.returncode != 0:
            ended = f"exit status {process.returncode}"
            raise ToolError(f"{side}: {(errors.read().strip().splitlines() or [ended])[-1]}")
    return json.loads(last), reason


def _no_fio(row_bytes: int) -> str:
    """The reason why fio cannot be used; empty if it can."""
    if not shutil.which("fio"):
        return "fio is not installed: apt-get install fio"
    if row_bytes % _FIO_BLOCK:
        return f"fio reads whole blocks, and rows of {row_bytes} bytes are none: take a multiple of {_FIO_BLOCK}"
    return ""


def _no_torch() -> str:
    """The reason why torch cannot be used; empty if it can."""
    return "" if importlib.util.find_spec("torch") else "torch is not installed: pip install torch"


def _run_fio(table: str, rows: int, args: argparse.Namespace) -> dict[str, Any]:
    """Reads the same number of random rows of the table with fio, with the first of its engines that runs."""
    size = args.row_bytes << args.scale
    report = ""
    for engine in ("io_uring", "libaio"):
        storage.make_cold(table)
        command = fio.command(
            "randread",
            filename=fio.filename(table),
            ioengine=engine,
            iodepth=_FIO_DEPTH,
            bs=args.row_bytes,
            offset=4096,
            size=size,
            io_size=rows * args.row_bytes,
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            found = fio.figures(done.stdout, "randread")
        except ValueError:
            report = (done.stderr.strip() or done.stdout.strip())[-300:]
            continue
        return {
            "side": "fio",
            "busy_s": [found["seconds"]],
            "exposed_s": [found["seconds"]],
            "step_s": [0.0],
            "cpu_s": found["cpu_s"],
            "bytes_read": found["bytes"],
            "major_faults": 0,
            "engine": engine,
        }
    raise ToolError(f"fio: {report}")


def _figures(found: dict[str, Any], rows: int, row_bytes: int) -> dict[str, Any]:
    exposed = sum(found["exposed_s"])
    cpu_us = found["cpu_s"] * 1e6 / rows
    return found | {
        "rows": rows,
        "rows_per_second": rows / exposed,
        "cpu_us_per_row": cpu_us,
        "rows_per_core_second": 1e6 / cpu_us if cpu_us > 0 else None,
        "cores_for_1_7_million_rows_per_second": 1.7 * cpu_us,
        "cores_for_6_3_million_rows_per_second": 6.3 * cpu_us,
        "read_by_wanted": found["bytes_read"] / (rows * row_bytes),
    }


def _table(runs: list[dict[str, Any]], colour: tool.Colour) -> list[str]:
    """At most 80 columns."""
    heads = (
        ("trace", "side", "rows/s", "", "busy", "exposed", "rows/s", "read", "cores", "for"),
        ("", "", "", "", "s", "s", "a core", "", "1.7 M", "6.3 M"),
    )
    head = "{:7} {:9} {:>9} {:5} {:>8} {:>8} {:>9} {:>5} {:>5} {:>5}"
    lines = [colour("bold", head.format(*words)) for words in heads]
    most = max(run["rows_per_second"] for run in runs)
    for run in runs:
        share = tool.bar(run["rows_per_second"] / most, 5)
        lines.append(
            f"{run['trace']:7} {run['side']:9} {run['rows_per_second']:9,.0f} {share} {sum(run['busy_s']):8.2f} "
            f"{sum(run['exposed_s']):8.2f} {run['rows_per_core_second'] or 0:9,.0f} {run['read_by_wanted']:5.2f} "
            f"{run['cores_for_1_7_million_rows_per_second']:5.1f} {run['cores_for_6_3_million_rows_per_second']:5.1f}"
        )
    return lines


def _run(args: argparse.Namespace, out: tool.Print) -> None:
    _refine(args)
    import numpy as np

    from penstock._measure import gnn_side

    progress = tool.Progress()
    folder = tempfile.mkdtemp(prefix="penstock-gnn-", dir=args.folder)
    try:
        files = {name: os.path.join(folder, f"{name}.npy") for name in ("table", "ids", "ends")}
        traces, sample_s = _batches(args, progress)
        told = lambda percent: progress.show(f"making the table: {percent} %")  # noqa: E731
        gnn_side.write_table(files["table"], 1 << args.scale, args.row_bytes // 8, told)
        ahead = read_ahead_kb(files["table"])
        runs, reason = [], ""
        for trace, batches in traces.items():
            np.save(files["ids"], np.concatenate(batches))
            np.save(files["ends"], np.cumsum([len(ids) for ids in batches]))
            largest = max(len(ids) for ids in batches) * args.row_bytes
            limit = None if args.memory is None else args.memory + _OWN_BYTES + 3 * largest
            rows = sum(len(ids) for ids in batches)
            for side in args.sides:

                def report(batches: int, what: str = f"{trace}: {side}") -> None:
                    progress.show(f"{what}, {batches} of {args.iterations} batches")

                report(0)
                if side == "fio":
                    found = _run_fio(files["table"], rows, args)
                else:
                    found, reason = _run_side(side, files, limit, args.memory, report)
                runs.append({"trace": trace} | _figures(found, rows, args.row_bytes))
    finally:
        progress.clear()
        shutil.rmtree(folder, ignore_errors=True)
    size = args.row_bytes << args.scale
    out(f"{1 << args.scale:,} rows of {args.row_bytes} bytes ({size / 1e9:.2f} GB) in {os.path.abspath(args.folder)}")
    known = "unknown" if ahead is None else f"{ahead} KiB"
    out(f"{args.iterations} batches, sampled in {sample_s * 1e3:.1f} ms each; the device's read-ahead: {known}")
    out(f"memory: {reason or f'{args.memory} bytes of the table'}\n")
    out("\n".join(_table(runs, tool.Colour(sys.stderr if args.json == "-" else sys.stdout))))
    for side, reason in args.left_out.items():
        out(f"Without {side}: {reason}")
    out("\nEvery byte of every batch was right. Published, not measured here, 100 batches:")
    out(", ".join(f"{name} {one['seconds']:,.1f} s" for name, one in _PUBLISHED.items()))
    tool.write_json(
        args.json,
        {
            "program": _COMMAND,
            "environment": tool.environment(),
            "scale": args.scale,
            "row_bytes": args.row_bytes,
            "batch": args.batch,
            "fanouts": args.fanouts,
            "iterations": args.iterations,
            "seed": args.seed,
            "memory": None if reason else args.memory,
            "memory_note": reason,
            "left_out": args.left_out,
            "read_ahead_kb": ahead,
            "sample_s_per_batch": sample_s,
            "runs": runs,
            "not_measured_here": {
                "published": _PUBLISHED,
                "command": f"{_COMMAND} DIR --scale 28 --batch 1024",
            },
        },
    )


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit status, as tool.run() does."""
    args = _parser().parse_args(argv)
    return tool.run(_COMMAND, args.json, functools.partial(_run, args))


if __name__ == "__main__":
    sys.exit(main())
