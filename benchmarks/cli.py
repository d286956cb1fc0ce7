# SPDX-License-Identifier: Apache-2.0
"""The command line of the runner."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks import cleanup, report
from benchmarks.bars import Bar, BarError, load_bars, select
from benchmarks.places import Places, tmpfs_parents
from benchmarks.runner import Options, Outcome, Progress, measure

MET, MISSED, UNDECIDED, FAILED, CANNOT_RUN = 0, 1, 2, 70, 77

_TEACHES = """
examples:
  python -m benchmarks --list                     every bar, its place and its limit
  python -m benchmarks engine.read_1g             one bar (an id is that bar alone, another word all that begin so)
  python -m benchmarks engine --json out.json     all of a part, with every sample kept
  python -m benchmarks yardstick                  fio against fio: is this machine fit to measure on?
  python -m benchmarks engine.read --handicap     ours crippled: the verdict must be `missed`

The line of a bar:
  BAR engine.read_1g ratio=1.003 ci95=[0.996,1.011] aa=[0.990,1.010] bar>=0.98 pairs=9 place=throttled verdict=met
  ratio  ours to the peer (diff= ours less the peer; value= a figure of ours alone)
  ci95   its 95 % interval over the pairs: `met` when all of it clears the bar, `missed` when none does
  aa     the peer against itself in the same run; where that strays too far, the verdict is `undecided`

exit status: 0 all met, 1 one missed, 2 one undecided, 77 one cannot run here (it says why), 70 a program failed,
64 wrong arguments.
Places `throttled` and `loop` need root. See benchmarks/README.md.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures the bars of benchmarks/bars.toml: ours against its peer, in turns, on this machine.",
        epilog=_TEACHES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("ids", nargs="*", metavar="ID", help="a bar's id or the beginning of some; none means all")
    add("--pairs", type=int, default=0, help="pairs of runs a bar (default: 7, or what the row says; at least 5)")
    add("--budget-s", type=float, default=60, help="seconds a bar may take (default: 60)")
    add("--dir", type=Path, help="folder on the disk that place `disk` measures (default: build/ of the project)")
    add("--build", type=Path, help="build folder with our programs (default: build/release, then build/bench)")
    add("--json", type=Path, metavar="FILE", help="keep every sample and the environment in FILE")
    add("--list", action="store_true", help="list the bars and end")
    add("--handicap", action="store_true", help="run ours with the handicap of each row")
    add("--check-handicaps", action="store_true", help="run each row with its handicap; fail unless all are missed")
    return parser


def _list(bars: list[Bar]) -> None:
    for bar in bars:
        told = f"{bar.metric} {bar.limit.text}"
        print(f"{bar.id:28} {bar.place:10} {told:22} {bar.what} | against: {bar.peer} | handicap: {bar.handicap}")


def exit_status(outcomes: list[Outcome], check_handicaps: bool = False) -> int:
    """The worst of the outcomes; with `check_handicaps` every one of them has to be missed."""
    verdicts = {outcome.verdict for outcome in outcomes}
    if "failed" in verdicts:
        return FAILED
    if check_handicaps:
        if verdicts & {"met", "undecided"}:
            return MISSED
        return CANNOT_RUN if "cannot-run" in verdicts else MET
    for verdict, status in (("missed", MISSED), ("undecided", UNDECIDED), ("cannot-run", CANNOT_RUN)):
        if verdict in verdicts:
            return status
    return MET


def _write_json(path: Path, environment: dict[str, object], outcomes: list[Outcome]) -> None:
    document = {"environment": environment, "bars": [report.as_json(outcome) for outcome in outcomes]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _disk_folder(given: Path | None) -> Path:
    if given:
        return given.resolve()
    folder = Path(__file__).resolve().parent.parent / "build"
    folder.mkdir(exist_ok=True)
    return folder


def _measure_all(bars: list[Bar], arguments: argparse.Namespace, disk: Path) -> int:
    options = Options(
        pairs=arguments.pairs,
        budget_s=arguments.budget_s,
        handicap=arguments.handicap or arguments.check_handicaps,
        build=arguments.build,
    )
    scratch = Path(tempfile.gettempdir()).resolve()
    folders = list(dict.fromkeys([scratch, disk, *tmpfs_parents()]))
    cleanup.raise_on_signals()
    for path in cleanup.sweep(folders):
        print(f"removed {path}, left by a run that was killed", file=sys.stderr)
    environment = report.environment()
    outcomes: list[Outcome] = []
    try:
        with Places(scratch, disk) as places:
            for bar in bars:
                outcomes.append(measure(bar, places, options, Progress()))
                print(report.line(outcomes[-1]), flush=True)
    except cleanup.Interrupted as error:
        print(f"{error}; {len(outcomes)} of {len(bars)} bars were measured", file=sys.stderr)
        return 128 + error.number
    finally:
        with cleanup.signals_held():
            cleanup.remove_own(folders)
            if arguments.json:
                _write_json(arguments.json, environment, outcomes)
    status = exit_status(outcomes, arguments.check_handicaps)
    if arguments.check_handicaps:
        for outcome in outcomes:
            if outcome.verdict in ("met", "undecided"):
                print(f"{outcome.bar.id}: {outcome.verdict} with handicap {outcome.handicap}", file=sys.stderr)
    return status


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.pairs and parsed.pairs < 5:
        parser.error(f"--pairs {parsed.pairs}: fewer than 5 pairs decide nothing")
    try:
        bars = select(load_bars(), parsed.ids)
    except BarError as error:
        print(f"python -m benchmarks: {error}", file=sys.stderr)
        return 64
    if parsed.list:
        _list(bars)
        return MET
    if not bars:
        print("python -m benchmarks: bars.toml has no row", file=sys.stderr)
        return 64
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return _measure_all(bars, parsed, _disk_folder(parsed.dir))
