# SPDX-License-Identifier: Apache-2.0
"""`penstock ds_nvme_tune`: DeepSpeed's tuner on Penstock's engine, with its flags, log files and closing lines.

    Best performance (GB/sec): read =  1.91, write =  4.91
    {"aio": {"single_submit": "false", ..., "num_threads": 1, "queue_depth": 32, "block_size": 1048576}}

That JSON is exactly DeepSpeed's, but a DeepSpeed configuration does not accept it: its booleans are strings, and one of
its keys does not exist there. So the same choice is also printed to stderr as a section of a DeepSpeed configuration,
and written to <log_dir>/ds_config_aio.json.

Each setting is a run of `ds_io`, with its output in <log_dir>/_aio_bench_{read,write}_logs under DeepSpeed's names. Two
things differ. Single submission, sequential requests and io_parallel change nothing in Penstock. So settings that
differ only in these are measured once: 4 of the 64 of the default sweep remain. The saved time is used for rounds
(--rounds): every setting in turn, then all again. The medians decide. If their spread is wider than their distance, the
tool says that there is no difference to find. `penstock tune` searches more settings, in less time."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import _core
from penstock._measure import tool
from penstock._measure.tool import Progress, ToolError, WrongArguments
from penstock.deepnvme import _tools, ds_io
from penstock.deepnvme._tools import BYTES_PER_GB, COUNT_MAX

LOG_DIR = "_aio_bench_logs"
CONFIG_NAME = "ds_config_aio.json"
DEFAULT_SWEEP: dict[str, list[Any]] = {
    "block_size": ["1M", "8M"],
    "queue_depth": [32, 128],
    "sequential_requests": [True, False],
    "single_submit": [False, True],
    "io_parallel": [1, 2, 4, 8],
}
_REPEATED_MAX = 1_000_000
_OPERATIONS = ("read", "write")
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_LOG_NAME = re.compile(r"(read|write)_(single|block)_(sequential|overlap)_ftd\d+_d\d+_bs\w+_p\d+\.txt")


@dataclass
class Setting:
    """A row of the sweep; `block_size` as given."""

    block_size: str
    queue_depth: int
    sequential_requests: bool
    single_submit: bool
    io_parallel: int
    rates: dict[str, list[float]] = field(default_factory=dict)  # operation -> bytes a second of each round
    logs: dict[str, list[str]] = field(default_factory=dict)
    use_gds: bool = False

    def words(self) -> list[str]:
        words = ["--block_size", self.block_size, "--queue_depth", str(self.queue_depth)]
        words += ["--io_parallel", str(self.io_parallel)]
        words += ["--sequential_requests"] if self.sequential_requests else []
        return words + (["--single_submit"] if self.single_submit else [])

    def log_name(self, operation: str, folders: int) -> str:
        submit = "single" if self.single_submit else "block"
        order = "sequential" if self.sequential_requests else "overlap"
        tail = f"ftd{folders}_d{self.queue_depth}_bs{self.block_size}_p{self.io_parallel}.txt"
        return f"{operation}_{submit}_{order}_{tail}"

    def add(self, operation: str, rate: float, log: str) -> None:
        self.rates.setdefault(operation, []).append(rate)
        self.logs.setdefault(operation, []).append(log)

    def median(self, operation: str) -> float:
        return statistics.median(self.rates[operation])

    def median_log(self, operation: str) -> str:
        """The output of the median run, so that the file holds one run, and not an extreme one."""
        rates = self.rates[operation]
        return self.logs[operation][rates.index(statistics.median_low(rates))]

    def theirs(self) -> dict[str, Any]:
        """The setting as DeepSpeed's tuner prints it."""
        return {
            "single_submit": str(self.single_submit).lower(),
            "overlap_events": str(not self.sequential_requests).lower(),
            "num_threads": self.io_parallel,
            "queue_depth": self.queue_depth,
            "block_size": tool.parse_size("block_size", self.block_size),
        }

    def ours(self) -> dict[str, Any]:
        """The setting as a DeepSpeed configuration accepts it."""
        return {
            "block_size": tool.parse_size("block_size", self.block_size),
            "queue_depth": self.queue_depth,
            "intra_op_parallelism": self.io_parallel,
            "single_submit": self.single_submit,
            "overlap_events": not self.sequential_requests,
            "use_gds": self.use_gds,
        }


def make_parser(prog: str = "penstock ds_nvme_tune") -> argparse.ArgumentParser:
    """The flags of DeepSpeed's ds_nvme_tune, and the additional ones."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Finds block size and queue depth for a DeepSpeed `aio` section, as ds_nvme_tune does, on "
        "Penstock's engine. `penstock tune` searches wider in less time.",
    )
    add = parser.add_argument
    add("--nvme_dir", nargs="+", required=True, metavar="D", help="folders to measure in; several: all at once")
    add("--sweep_config", metavar="FILE", help="JSON with the values to try: " + ", ".join(DEFAULT_SWEEP))
    add("--no_read", action="store_true", help="measure no reads")
    add("--no_write", action="store_true", help="measure no writes")
    add("--io_size", default="400M", metavar="SIZE", help="bytes a measurement moves (default 400M)")
    add("--gpu", action="store_true", help="to and from the memory of a GPU; of several the folders take turns")
    add("--gds", action="store_true", help="gds_handle instead of aio_handle; needs --gpu")
    add(
        "--flush_page_cache",
        action="store_true",
        help="empty the page cache before each measurement (root; reads past the page cache do not need it)",
    )
    add("--log_dir", default=LOG_DIR, metavar="D", help=f"folder of the logs (default ./{LOG_DIR})")
    add("--loops", type=int, default=1, metavar="N", help="repetitions in a measurement (default 1)")
    add("--verbose", action="store_true", help="say what is run")
    ours = parser.add_argument_group("Penstock's own")
    ours.add_argument("--rounds", type=int, default=3, metavar="N", help="measurements of each setting (default 3)")
    ours.add_argument("--full_sweep", action="store_true", help="also the settings that change nothing in Penstock")
    ours.add_argument("--json", metavar="FILE", help="every measurement as JSON, for `penstock report` (- for stdout)")
    return parser


def _check(args: argparse.Namespace) -> None:
    found = ["--gds needs --gpu: it is about the memory of a GPU"] if args.gds and not args.gpu else []
    if args.gpu and (reason := _tools.why_no_gpu()):
        found.append(reason)
    if args.no_read and args.no_write:
        found.append("--no_read and --no_write together leave nothing to measure")
    found += [
        f"--{flag} {getattr(args, flag)}: at least 1, at most {_REPEATED_MAX}"
        for flag in ("loops", "rounds")
        if not 1 <= getattr(args, flag) <= _REPEATED_MAX
    ]
    checks = [(tool.check_folder, (folder, "--nvme_dir ")) for folder in args.nvme_dir]
    checks += [(tool.parse_size, ("--io_size", args.io_size)), (tool.check_json_path, (args.json,))]
    found += tool.wrong_among(checks)
    if args.flush_page_cache and not os.access(_DROP_CACHES, os.W_OK):
        found.append("--flush_page_cache needs root; without it reads still go past the page cache where they can")
    if found:
        raise WrongArguments("\n".join(found))


def _mapping(args: argparse.Namespace) -> list[str]:
    """FOLDER:NUMBER of each folder; with --gpu the numbers of the existing GPUs, in turn."""
    count = _core.gpu_count() if args.gpu else len(args.nvme_dir)
    return [f"{folder}:{i % count}" for i, folder in enumerate(args.nvme_dir)]


def _fits(key: str, value: object) -> bool:
    """Whether a value of a sweep file has the type and the range of its key."""
    if key in ("sequential_requests", "single_submit"):
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return False
    if key == "block_size":
        return bool(tool.parse_size(key, str(value)))
    return isinstance(value, int) and 1 <= value <= COUNT_MAX


def _sweep_values(path: str | None) -> dict[str, list[Any]]:
    """The values of each key. ToolError names the error in the file."""
    if path is None:
        return DEFAULT_SWEEP
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WrongArguments(f"--sweep_config {path}: {error}") from error
    except RecursionError as error:
        raise WrongArguments(
            f"--sweep_config {path}: lists in lists in lists; an object with lists is expected"
        ) from error
    known = ", ".join(DEFAULT_SWEEP)
    if not isinstance(given, dict) or not set(given) <= set(DEFAULT_SWEEP):
        raise WrongArguments(f"--sweep_config {path}: an object with keys of {known} is expected")
    for key, values in given.items():
        if not isinstance(values, list) or not values or not all(_fits(key, value) for value in values):
            like = json.dumps(DEFAULT_SWEEP[key])
            raise WrongArguments(f"--sweep_config {path}: {key}: {values!r} came; a list such as {like} is expected")
    # Uses the defaults of ds_io for options that the file omits.
    missing = {"block_size": ["1M"], "queue_depth": [32], "io_parallel": [1]}
    return {key: given.get(key, missing.get(key, [False])) for key in DEFAULT_SWEEP}


def _settings(values: dict[str, list[Any]], full: bool) -> list[Setting]:
    """The rows to measure; unless `full`, one for all settings that are the same for Penstock."""
    rows = [
        Setting(str(block), depth, sequential, single, parallel)
        for block, depth, sequential, single, parallel in itertools.product(*(values[key] for key in DEFAULT_SWEEP))
    ]
    if full:
        return rows
    rows.sort(key=lambda row: (row.sequential_requests, row.single_submit, row.io_parallel))
    first: dict[tuple[str, int], Setting] = {}
    for row in rows:
        first.setdefault((row.block_size, row.queue_depth), row)
    return list(first.values())


def _log_folders(log_dir: str, operations: list[str]) -> dict[str, Path]:
    """The folders of the logs for these operations. Log folders of an earlier run are removed, for all operations."""
    folders = {operation: Path(log_dir) / f"_aio_bench_{operation}_logs" for operation in _OPERATIONS}
    try:
        for operation, folder in folders.items():
            if folder.is_symlink():
                raise WrongArguments(
                    f"--log_dir {log_dir}: {folder} is a symbolic link; name another folder, or remove it"
                )
            if operation in operations:
                folder.mkdir(parents=True, exist_ok=True)
            for old in folder.iterdir() if folder.is_dir() else ():
                if _LOG_NAME.fullmatch(old.name):
                    old.unlink()
    except OSError as error:
        raise WrongArguments(f"--log_dir {log_dir}: {error}; name a folder that can be written") from error
    return folders


class _Sweep:
    def __init__(self, args: argparse.Namespace, say: Any) -> None:
        self._args = args
        self._say = say
        self.operations = [o for o, off in (("read", args.no_read), ("write", args.no_write)) if not off]
        self.settings = _settings(_sweep_values(args.sweep_config), args.full_sweep)
        for setting in self.settings:
            setting.use_gds = args.gds
        self._folders = _log_folders(args.log_dir, self.operations)
        self._progress = Progress()
        self._made: list[str] = []

    def run(self) -> None:
        total = len(self.settings) * len(self.operations) * self._args.rounds
        done = 0
        try:
            for operation in self.operations:
                for _ in range(self._args.rounds):
                    for setting in self.settings:
                        done += 1
                        told = f"{operation}, blocks of {setting.block_size}, depth {setting.queue_depth}"
                        self._progress.show(f"[{done}/{total}] {told}")
                        self._measure(operation, setting)
        finally:
            self._progress.clear()
            for file in self._made:
                if os.path.isfile(file):
                    os.unlink(file)

    def _measure(self, operation: str, setting: Setting) -> None:
        args = self._args
        words = ["--io_size", args.io_size, "--loops", str(args.loops), *setting.words()]
        words += ["--folder_to_device_mapping", *_mapping(args)]
        words += [flag for flag, wanted in (("--gpu", args.gpu), ("--use_gds", args.gds)) if wanted]
        words += ["--read", "--keep_files"] if operation == "read" else []
        if args.verbose:
            self._say(f"args = {['ds_io', *words]}")
        if args.flush_page_cache:
            os.sync()
            _DROP_CACHES.write_text("1")
        refined = ds_io.refine(ds_io.make_parser().parse_args(words))
        lines = [f"args = {refined}"]
        quiet = Progress(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        outcome = ds_io.measure(refined, lines.append, quiet)
        # The files to read serve all settings and are removed at the end; files that existed before stay.
        self._made += [f for task in outcome.tasks for f in set(task.files) - task.ready if operation == "read"]
        ds_io.report(outcome, lines.append)
        setting.add(operation, outcome.rate(outcome.e2e_seconds), "\n".join(lines) + "\n")
        name = setting.log_name(operation, len(args.nvme_dir))
        _tools.write_fixed(self._folders[operation] / name, setting.median_log(operation))

    def largest(self) -> tuple[int, int]:
        """The block bytes and depth that the engine has to allow for all settings."""
        found = [setting.ours() for setting in self.settings]
        return max(one["block_size"] for one in found), max(one["queue_depth"] for one in found)

    def best(self) -> Setting:
        """The setting with the largest sum of medians. Of all settings that are not clearly slower it is the first, so
        that the choice is not random."""
        fastest = self._fastest()
        return next(setting for setting in self.settings if not self._slower(setting, fastest))

    def _fastest(self) -> Setting:
        return max(self.settings, key=lambda setting: sum(setting.median(o) for o in self.operations))

    def _slower(self, setting: Setting, fastest: Setting) -> bool:
        """Whether every run of the fastest beat every run of this one, in reads or in writes."""
        return any(max(setting.rates[o]) < min(fastest.rates[o]) for o in self.operations)

    def spread(self) -> float:
        """The largest spread of the runs of one setting: half the range divided by the median."""
        return max(
            (max(rates) - min(rates)) / 2 / statistics.median(rates)
            for setting in self.settings
            for rates in setting.rates.values()
        )

    def verdict(self) -> str:
        """How sure the choice is."""
        if len(self.settings) == 1:
            return "one setting was measured: there was no choice"
        if self._args.rounds < 2:
            return "each setting was measured once: nothing says how sure this is (--rounds 3)"
        fastest = self._fastest()
        equals = [s for s in self.settings if not self._slower(s, fastest)]
        if len(equals) == 1:
            return f"every run of it beat every run of the other {len(self.settings) - 1}, in reads or in writes"
        return (
            f"no difference found among {len(equals)} of {len(self.settings)} settings, of which this is the first: "
            f"runs of one setting lie up to ±{100 * self.spread():.0f} % apart"
        )


def _as_json(command: list[str], args: argparse.Namespace, sweep: _Sweep) -> dict[str, Any]:
    return {
        "command": command,
        "environment": tool.environment(),
        "ds_nvme_tune": {
            "folders": args.nvme_dir,
            "io_bytes": tool.parse_size("--io_size", args.io_size),
            "operations": sweep.operations,
            "settings": [{**setting.ours(), "bytes_per_s": setting.rates} for setting in sweep.settings],
            "best": sweep.best().ours(),
            "verdict": sweep.verdict(),
        },
    }


def _report(args: argparse.Namespace, sweep: _Sweep, out: Any, say: Any) -> None:
    best = sweep.best()
    config = json.dumps({"aio": best.ours()}, indent=3)
    path = Path(args.log_dir) / CONFIG_NAME
    try:
        _tools.write_fixed(path, config + "\n")
    except OSError as error:
        raise ToolError(f"--log_dir {args.log_dir}: {error}; name another folder, or remove the link") from error
    say(f"How sure: {sweep.verdict()}")
    say(f"For a DeepSpeed configuration (also in {path}):\n{config}")
    beyond = _tools.engine_settings(best.ours()["block_size"], best.queue_depth)
    if beyond:
        words = " ".join(f"{name}={value}" for name, value in beyond.items())
        say(f"That is more than Penstock's engine lets through by itself; start the training with\n{words}")
    figures = dict.fromkeys(_OPERATIONS, "not measured")
    figures |= {operation: f"{best.median(operation) / BYTES_PER_GB:5.2f}" for operation in sweep.operations}
    out(f"Best performance (GB/sec): read = {figures['read']}, write = {figures['write']}")
    out(json.dumps({"aio": best.theirs()}, indent=3))


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit status, as tool.run() does."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = make_parser().parse_args(words)

    def work(out: tool.Print) -> None:
        _check(args)
        sweep = _Sweep(args, say)
        out(f"Running DeepNVMe performance tuning on {args.nvme_dir}")
        with _tools.engine_lets_through(*sweep.largest()):
            sweep.run()
        _report(args, sweep, out, say)
        tool.write_json(args.json, _as_json(["penstock", "ds_nvme_tune", *words], args, sweep))

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    return tool.run("penstock ds_nvme_tune", args.json, work)


if __name__ == "__main__":
    sys.exit(main())
