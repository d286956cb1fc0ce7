# SPDX-License-Identifier: Apache-2.0
"""`penstock ds_io`: DeepSpeed's I/O benchmark on Penstock's engine.

Flags, file names and closing lines are those of DeepSpeed's `ds_io`, so scripts that read its output still work.

    Task Read Latency = 0.0268 sec         the largest sum of call times of a process
    Task Read Speed = 1.1645 GB/sec        (2^30 bytes)
    E2E Read Latency = 0.0269 sec          includes the time that the processes wait for each other
    E2E Read Speed = 1.1613 GB/sec

Each folder of --folder_to_device_mapping has one process; each folder of --folder has --multi_process of them. A single
one runs in this process. All loops begin together (a barrier). _ds_io_engines.py has the work of a process.

In addition to DeepSpeed's tool: several folders by --folder, each folder's figure and the sum, --fsync, --keep_files,
--json. Files that this run made are removed at its end, also after Ctrl-C. Wrong arguments and failures end with a
status that is not 0.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import penstock
from penstock._measure import tool
from penstock._measure.tool import Progress, ToolError, WrongArguments
from penstock.deepnvme._ds_io_engines import ENGINES, Task, TaskResult, run_task
from penstock.deepnvme._gds import WAY
from penstock.deepnvme._tools import BYTES_PER_GB, COUNT_MAX, engine_lets_through, why_no_gpu

_EPILOG = """
GB/sec is 2^30 bytes a second, as DeepSpeed's ds_io counts. --single_submit, --sequential_requests and --io_parallel are
taken and checked, and change nothing: Penstock keeps the depth full by itself.

examples:
  penstock ds_io --folder /mnt/nvme --io_size 1G --read
  penstock ds_io --folder /mnt/nvme0 /mnt/nvme1 --io_size 1G --fsync       two devices at once: each and the sum
  penstock ds_io --folder_to_device_mapping /mnt/nvme0:0 /mnt/nvme1:1 --io_size 400M --queue_depth 128
"""


# The values that a handle accepts, and limits for one machine.
_RANGES = {
    "multi_process": (1, 4096),
    "queue_depth": (1, COUNT_MAX),
    "loops": (1, 1_000_000),
    "warmup_loops": (0, 1_000_000),
    "io_parallel": (1, COUNT_MAX),
}


def make_parser(prog: str = "penstock ds_io") -> argparse.ArgumentParser:
    """The flags of DeepSpeed's ds_io, and the additional ones."""
    parser = tool.parser(
        prog, "Times reads or writes of one tensor a process, as DeepSpeed's ds_io does, on Penstock's engine.", _EPILOG
    )
    add = parser.add_argument
    add("--folder", nargs="+", action="extend", metavar="F", help="folder for the files; several: all at once")
    add(
        "--folder_to_device_mapping",
        nargs="+",
        action="extend",
        default=[],
        metavar="F:DEV",
        help="a process each folder, with the number of its GPU (which matters with --gpu only)",
    )
    add("--io_size", required=True, metavar="SIZE", help="bytes to read or write; K, M and G are powers of 1024")
    add("--fast_io_size", default="64M", metavar="SIZE", help="bytes of torch_fastio's pinned buffer (default 64M)")
    add("--read", action="store_true", help="read (default: write)")
    add("--multi_process", type=int, default=1, metavar="N", help="processes a folder of --folder (default 1)")
    add("--block_size", default="1M", metavar="SIZE", help="bytes of a block (default 1M)")
    add("--queue_depth", type=int, default=32, metavar="N", help="blocks at the device at once (default 32)")
    add("--single_submit", action="store_true", help="accepted; changes nothing here")
    add("--sequential_requests", action="store_true", help="accepted; changes nothing here")
    add("--validate", action="store_true", help="compare what was moved with the file; in the timed part")
    add("--engine", default="aio_handle", metavar="E", help=f"{', '.join(ENGINES)} (default aio_handle)")
    add("--loops", type=int, default=3, metavar="N", help="timed repetitions (default 3)")
    add("--io_parallel", type=int, default=None, metavar="N", help="accepted; changes nothing here")
    add("--gpu", action="store_true", help="to or from the memory of a GPU: that of the process's number")
    add("--use_gds", action="store_true", help="gds_handle instead of aio_handle; needs --gpu")
    add("--slow_bounce_buffer", action="store_true", help="accepted; changes nothing here")
    add("--torch_legacy_save", action="store_true", help="torch engines: the format before zip files")
    add("--use_accelerator_pin_memory", action="store_true", help="tensors from PinMemoryBuilder, not the handle")
    add("--warmup_loops", type=int, default=1, metavar="N", help="repetitions before the timed ones (default 1)")
    add("--include_warmup_time", action="store_true", help="count the warm-up too")
    add("--different_file_each_iteration", action="store_true", help="a file each repetition")
    ours = parser.add_argument_group("Penstock's own")
    ours.add_argument("--fsync", action="store_true", help="writes: fsync in the timed part")
    ours.add_argument("--keep_files", action="store_true", help="leave the files that this run makes")
    ours.add_argument("--json", metavar="FILE", help="every repetition and the environment as JSON (- for stdout)")
    return parser


def _mapping(args: argparse.Namespace) -> list[tuple[str, str]]:
    """(device or number of the process, folder), one for each process."""
    if args.folder is not None:
        folders = [folder for folder in args.folder for _ in range(args.multi_process)]
        return [(str(number), folder) for number, folder in enumerate(folders)]
    pairs = [mapping.rpartition(":") for mapping in args.folder_to_device_mapping]
    return [(device, folder) for folder, _, device in pairs]


def _problems(args: argparse.Namespace) -> list[str]:
    """All errors in the arguments, a sentence each."""
    found = []
    if (args.folder is None) == (not args.folder_to_device_mapping):
        found.append("give either --folder or --folder_to_device_mapping: the folders to measure in")
    if args.engine not in ENGINES:
        found.append(f"--engine {args.engine}: choose one of {', '.join(ENGINES)}")
    for flag, (least, most) in _RANGES.items():
        value = getattr(args, flag)
        if value is not None and not least <= value <= most:
            found.append(f"--{flag} {value}: at least {least}, at most {most}")
    for mapping in args.folder_to_device_mapping:
        folder, _, device = mapping.rpartition(":")
        if not folder or not device.isdigit():
            found.append(f"--folder_to_device_mapping {mapping}: FOLDER:NUMBER is expected, such as /mnt/nvme0:0")
    found += _gpu_problems(args, not found)
    if not found:
        folders = dict.fromkeys(folder for _, folder in _mapping(args))
        found += tool.wrong_among([(tool.check_folder, (folder,)) for folder in folders])
    return found


def _gpu_problems(args: argparse.Namespace, mapping_is_right: bool) -> list[str]:
    if not args.gpu:
        return ["--use_gds needs --gpu: it is about the memory of a GPU"] if args.use_gds else []
    if args.engine in ENGINES and not args.engine.startswith("aio"):
        return [f"--gpu: --engine {args.engine} measures tensors on the CPU; choose aio_handle or aio_basic"]
    if args.use_gds and args.engine == "aio_basic":
        return ["--use_gds: --engine aio_basic has no handle; choose aio_handle"]
    devices = [int(device) for device, _ in _mapping(args)] if mapping_is_right else []
    reason = why_no_gpu(devices)
    return [reason] if reason else []


def refine(args: argparse.Namespace) -> argparse.Namespace:
    """Converts texts to numbers and checks everything. WrongArguments lists all errors."""

    def size(flag: str) -> None:
        setattr(args, flag, tool.parse_size(f"--{flag}", str(getattr(args, flag))))

    found = _problems(args)
    sizes = [(size, (flag,)) for flag in ("io_size", "block_size", "fast_io_size")]
    found += tool.wrong_among([*sizes, (tool.check_json_path, (args.json,))])
    if args.engine == "torch_fastio" and args.fast_io_size == 1:
        found.append("--fast_io_size 1: at least 2, for torch_fastio fills one half while the other is written")
    if found:
        raise WrongArguments("\n".join(found))
    args.total_loops = args.warmup_loops + args.loops
    args.mapping_list = _mapping(args)
    return args


def _tasks(args: argparse.Namespace) -> list[Task]:
    """The work of each process. Raises ToolError if a file is in the way or the space does not suffice."""
    tasks = []
    kind = "read" if args.read else "write"
    for tid, (device, folder) in enumerate(args.mapping_list):
        stem = os.path.join(folder, f"_aio_{kind}_{args.io_size}.pt.{tid}")
        if args.different_file_each_iteration:
            files = [f"{stem}_{loop}" for loop in range(args.total_loops)]
        else:
            files = [f"{stem}_0" if args.engine == "aio_handle" else stem] * args.total_loops
        tasks.append(Task(tid=tid, device=device, folder=folder, files=files, options=args))
    _check_files(tasks)
    return tasks


def _check_files(tasks: list[Task]) -> None:
    needed: dict[int, int] = {}
    folders: dict[int, str] = {}
    for task in tasks:
        device = os.stat(task.folder).st_dev
        folders[device] = task.folder
        for file in dict.fromkeys(task.files):
            size = 0
            if os.path.lexists(file):
                status = os.lstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise ToolError(f"{file} is in the way and no ordinary file: remove it or take another folder")
                size = status.st_size
                if task.options.read and task.options.engine.startswith("aio") and size == task.options.io_size:
                    task.ready.add(file)
            needed[device] = needed.get(device, 0) + max(0, task.options.io_size - size)
    for device, bytes_needed in needed.items():
        free = shutil.disk_usage(folders[device]).free
        if bytes_needed > free:
            raise ToolError(
                f"{folders[device]}: {bytes_needed} bytes are needed and {free} are free; take a smaller --io_size"
            )


@dataclass
class Outcome:
    """The result of one run of ds_io. Rates in bytes a second."""

    args: argparse.Namespace
    tasks: list[Task]
    results: list[TaskResult] = field(default_factory=list)

    def _counted(self, seconds: list[float]) -> float:
        return sum(seconds if self.args.include_warmup_time else seconds[self.args.warmup_loops :])

    @property
    def bytes_a_process(self) -> int:
        loops = self.args.total_loops if self.args.include_warmup_time else self.args.loops
        return self.args.io_size * loops

    @property
    def bytes(self) -> int:
        return self.bytes_a_process * len(self.results)

    @property
    def task_seconds(self) -> float:
        return max(self._counted(result.call_seconds) for result in self.results)

    @property
    def e2e_seconds(self) -> float:
        return max(self._counted(result.loop_seconds) for result in self.results)

    @property
    def cpu_seconds(self) -> float:
        return sum(self._counted(result.cpu_seconds) for result in self.results)

    def rate(self, seconds: float) -> float:
        return self.bytes / seconds if seconds > 0 else 0.0

    def folders(self) -> dict[str, float]:
        """Bytes a second of each folder, over the time of its own processes."""
        slowest: dict[str, float] = {}
        processes: dict[str, int] = {}
        for task, result in zip(self.tasks, self.results):
            processes[task.folder] = processes.get(task.folder, 0) + 1
            slowest[task.folder] = max(slowest.get(task.folder, 0.0), self._counted(result.call_seconds))
        return {f: processes[f] * self.bytes_a_process / slowest[f] if slowest[f] > 0 else 0.0 for f in processes}

    def as_json(self, command: list[str]) -> dict[str, Any]:
        args = self.args
        rates = self.folders()
        return {
            "command": command,
            "environment": tool.environment(),
            "engine": {"backend": penstock.default_engine().describe().backend},
            "ds_io": {
                "op": "read" if args.read else "write",
                "engine": args.engine,
                "gpu": args.gpu,
                "use_gds": args.use_gds,
                "io_bytes": args.io_size,
                "block_bytes": args.block_size,
                "depth": args.queue_depth,
                "loops": args.loops,
                "warmup_loops": args.warmup_loops,
                "fsync": args.fsync,
                "validate": args.validate,
                "bytes": self.bytes,
                "task_seconds": self.task_seconds,
                "e2e_seconds": self.e2e_seconds,
                "bytes_per_s": self.rate(self.e2e_seconds),
                "cpu_s_per_gib": self.cpu_seconds / self.bytes * BYTES_PER_GB,
                "folders": [{"path": path, "bytes_per_s": rate} for path, rate in rates.items()],
                "processes": [
                    {
                        "folder": task.folder,
                        "file_system": result.file_system,
                        "direct": result.direct,
                        "reason": result.reason,
                        "seconds": result.call_seconds,
                        "cpu_s": result.cpu_seconds,
                    }
                    for task, result in zip(self.tasks, self.results)
                ],
            },
        }


class _Alone:
    """A barrier for one process."""

    def wait(self) -> int:
        return 0

    def abort(self) -> None:
        pass


Tell = Callable[[int, str], None]


def _child(task: Task, barrier: Any, pipe: Any) -> None:
    """Runs a task in a separate process: sends messages, then its result or its error."""
    try:
        pipe.send(("done", run_task(task, barrier, lambda tid, text: pipe.send(("tell", tid, text)))))
    except threading.BrokenBarrierError:
        pipe.send(("stopped",))
    except KeyboardInterrupt:
        barrier.abort()
        pipe.send(("stopped",))
    except BaseException as error:
        barrier.abort()
        pipe.send(("failed", f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)))


def _in_processes(tasks: list[Task], tell: Tell) -> list[TaskResult]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(tasks))
    running: dict[Any, tuple[Task, Any]] = {}
    results: dict[int, TaskResult] = {}
    failures: list[str] = []
    children = []
    try:
        for task in tasks:
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_child, args=(task, barrier, theirs), daemon=True)
            child.start()
            theirs.close()
            children.append(child)
            running[ours] = (task, child)
        while running:
            for pipe in multiprocessing.connection.wait(list(running)):
                task, child = running[pipe]
                try:
                    message = pipe.recv()
                except EOFError:
                    child.join()
                    message = ("failed", f"the process ended with status {child.exitcode}")
                if message[0] == "tell":
                    tell(message[1], message[2])
                    continue
                del running[pipe]
                if message[0] == "done":
                    results[task.tid] = message[1]
                elif message[0] == "failed":
                    barrier.abort()
                    failures.append(f"process {task.tid} ({task.folder}): {message[1]}")
    except BaseException:  # a signal: running repetitions are not waited for
        for child in children:
            child.terminate()
        raise
    finally:
        for child in children:
            child.join(10)
            if child.is_alive():
                child.terminate()
                child.join()
    if failures or len(results) < len(tasks):
        raise ToolError("\n".join(failures) or "a process was stopped")
    return [results[task.tid] for task in tasks]


def _remove_own(tasks: list[Task], keep: bool) -> None:
    """Removes the files that this run made; read files that existed before stay."""
    for task in tasks:
        for file in set(task.files) - task.ready:
            if not keep and os.path.isfile(file) and not os.path.islink(file):
                os.unlink(file)


def measure(args: argparse.Namespace, out: tool.Print, progress: Progress) -> Outcome:
    """Runs the benchmark of `args` (refined). Prints like DeepSpeed's tool, through `out`. ToolError, OSError."""
    out(f"Configuring {len(args.mapping_list)} process to folder mapping")
    for number, (device, folder) in enumerate(args.mapping_list):
        out(f"[{number}]: process {device} <----> {folder}")

    def tell(tid: int, text: str) -> None:
        progress.show(f"ds_io, process {tid}: {text}")
        if tid == 0:
            progress.clear()
            out(f"tid {tid}: {text}")

    tasks = _tasks(args)
    outcome = Outcome(args, tasks)
    finished = False
    try:
        if len(tasks) == 1:
            outcome.results = [run_task(tasks[0], _Alone(), tell)]
        else:
            outcome.results = _in_processes(tasks, tell)
        finished = True
    finally:
        progress.clear()
        _remove_own(tasks, args.keep_files and finished)
    return outcome


def report(outcome: Outcome, out: tool.Print) -> None:
    """Prints the results and how to read them, then the four closing lines."""
    args = outcome.args
    kind = "Read" if args.read else "Write"
    for task, result in zip(outcome.tasks, outcome.results):
        way = "past the page cache" if result.direct else f"through the page cache ({result.reason})"
        out(f"tid {task.tid}: {task.folder}: {result.file_system or 'files'}, {way}")
    if args.gpu:
        out(f"Tensors are on a GPU, and moved {WAY}.")
    if not all(result.direct for result in outcome.results):
        out("The page cache had a part in this: the figures measure memory as much as storage.")
    if not args.read and not args.fsync and args.engine != "torch_fastio":
        out("Not in the figures: fsync (--fsync puts it in); what is still held on the way is not waited for.")
    if args.validate and args.engine.startswith("aio"):
        out("In the figures: --validate, which reads everything once more.")
    rates = outcome.folders()
    for folder, rate in rates.items():
        out(f"Folder {folder}: {kind} Speed = {rate / BYTES_PER_GB} GB/sec")
    if len(rates) > 1:
        out(f"Sum of {len(rates)} folders: {kind} Speed = {sum(rates.values()) / BYTES_PER_GB} GB/sec")
    out(f"Task {kind} Latency = {outcome.task_seconds} sec")
    out(f"Task {kind} Speed = {outcome.rate(outcome.task_seconds) / BYTES_PER_GB} GB/sec")
    out(f"E2E {kind} Latency = {outcome.e2e_seconds} sec")
    out(f"E2E {kind} Speed = {outcome.rate(outcome.e2e_seconds) / BYTES_PER_GB} GB/sec")


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit status, as tool.run() does."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = make_parser().parse_args(words)

    def work(out: tool.Print) -> None:
        out("Testing DeepNVMe python frontend")
        out(f"args = {args}")
        refine(args)
        out("Successful validation of command line arguments")
        with engine_lets_through(args.block_size, args.queue_depth):
            outcome = measure(args, out, Progress())
        report(outcome, out)
        tool.write_json(args.json, outcome.as_json(["penstock", "ds_io", *words]))

    return tool.run("penstock ds_io", args.json, work)


if __name__ == "__main__":
    sys.exit(main())
