# SPDX-License-Identifier: Apache-2.0
"""The two sides of a bar, made from the words of `ours_run` and `peer_run`.

    program ARG...    our benchmark program (built with PENSTOCK_BENCHMARKS=ON), over the public API
    model ARG...      our program over the inside of the engine: the simulator
    callgrind SMALL LARGE ARG...
                      user instructions of that program, an operation: run with --count=SMALL and --count=LARGE under
                      callgrind, the difference divided, so that start-up cancels
    python ARG...     `python -m benchmarks.python_side ARG...` in a fresh interpreter
    checkpoint ARG... `python -m benchmarks.checkpoint_jobs ARG...`, the same
    deepnvme ARG...   `python -m benchmarks.deepnvme_jobs ARG...` in the interpreter that has DeepSpeed
    weights ARG...    `python -m benchmarks.weight_jobs ARG...` there too, for transformers
    gpu ARG...        `python -m benchmarks.gpu_jobs ARG...`: memory of a GPU from Python
    kvikio ARG...     the same in the interpreter that has KvikIO (tools/gpu_peers.py makes it)
    fio KIND KEY=VALUE...    fio; see fio.py

Each prints one JSON object with the fields of a Sample. A handicap is passed on as `--handicap=NAME` (to fio as options
of its own). `--key=a|b` lists settings to choose from: warm-up runs settle which is the peer. {fake_gpu} is the fake
CUDA driver of the build, or that in the folder $PENSTOCK_FAKE_GPU.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Protocol

from benchmarks import processes, tracing
from benchmarks.fio import Fio
from benchmarks.places import CannotRun, Place
from benchmarks.samples import Sample

ROOT = Path(__file__).resolve().parent.parent
_FIELDS = set(Sample.__dataclass_fields__) - {"command", "details"}


class Side(Protocol):
    variants: list[dict[str, str]]
    variant: dict[str, str]

    @property
    def name(self) -> str: ...
    def version(self) -> str: ...
    def run(self, place: Place) -> Sample: ...


def parse_sample(text: str, command: list[str], peak_memory_kib: int) -> Sample:
    """The last line of `text` is a JSON object; fields a Sample has no name for go to its details."""
    lines = text.strip().splitlines()
    try:
        figures = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError) as error:
        raise processes.RunFailed(f"{' '.join(command)}: no JSON in its last line: {text[-300:]!r}") from error
    sample = Sample(command=command, **{key: value for key, value in figures.items() if key in _FIELDS})
    sample.details = {key: value for key, value in figures.items() if key not in _FIELDS}
    if sample.peak_memory_kib is None:
        sample.peak_memory_kib = peak_memory_kib
    return sample


class Program:
    """A program of ours. The last sample's `version` is its version."""

    def __init__(self, command: list[str], words: list[str], handicap: str, build: Path | None = None) -> None:
        self._command = command
        self._words = words + ([f"--handicap={handicap}"] if handicap else [])
        if any("{fake_gpu}" in word for word in self._words):
            fake = find_fake_gpu(build)
            self._words = [word.replace("{fake_gpu}", fake) for word in self._words]
        self._version = "unknown"
        choices = {word.partition("=")[0]: word.partition("=")[2].split("|") for word in self._words if "|" in word}
        self.variants = [dict(zip(choices, values)) for values in itertools.product(*choices.values())]
        self.variant = self.variants[0]

    @property
    def name(self) -> str:
        return " ".join([Path(self._command[0]).name, *self._chosen()])

    def _chosen(self) -> list[str]:
        """The words, with the variant's value where there is a choice."""
        keys = {word: word.partition("=")[0] for word in self._words}
        return [
            f"{keys[word]}={self.variant[keys[word]]}" if keys[word] in self.variant else word for word in self._words
        ]

    def version(self) -> str:
        return self._version

    def run(self, place: Place) -> Sample:
        command = self._command + [place.fill(word) for word in self._chosen()]
        if any("{syscalls}" in word for word in command):
            number = str(tracing.syscall_tracepoint())
            command = [word.replace("{syscalls}", number) for word in command]
        try:
            done = processes.run(command, cgroup=place.cgroup)
        finally:
            place.remove_new()
        sample = parse_sample(done.stdout, command, done.peak_memory_kib)
        self._version = str(sample.details.get("version", self._version))
        return sample


class Callgrind(Program):
    """Counts user instructions: the same work twice, LARGE and SMALL, the difference an operation."""

    def __init__(self, command: list[str], words: list[str], handicap: str) -> None:
        super().__init__(command, words[2:], handicap)
        self._small, self._large = int(words[0]), int(words[1])

    def _count(self, place: Place, operations: int) -> int:
        if not shutil.which("valgrind"):
            raise CannotRun("instructions are counted by valgrind: apt-get install valgrind")
        words = [place.fill(word) for word in self._words]
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *self._command]
        command += [*words, f"--count={operations}"]
        done = processes.run(command, cgroup=place.cgroup)
        self._version = str(parse_sample(done.stdout, command, 0).details.get("version", self._version))
        match = re.search(r"Collected : (\d+)", done.stderr)
        if not match:
            raise processes.RunFailed(f"{' '.join(command)}: no count in {done.stderr[-500:]!r}")
        return int(match[1])

    def run(self, place: Place) -> Sample:
        small, large = self._count(place, self._small), self._count(place, self._large)
        value = (large - small) / (self._large - self._small)
        details = {"small": small, "large": large}
        return Sample(value=value, operations=self._large - self._small, command=self._words, details=details)


def find_program(name: str, build: Path | None) -> list[str]:
    """The program in `build`, else in the usual build folders."""
    folders = [build] if build else [ROOT / "build" / "release", ROOT / "build" / "bench"]
    for folder in folders:
        for below in ("benchmarks", "bin", "."):
            if (path := folder / below / name).is_file():
                return [str(path)]
    told = " or ".join(str(folder) for folder in folders)
    raise CannotRun(
        f"{name} is not built in {told}: run `make bench IDS=...`, or build it with -DPENSTOCK_BENCHMARKS=ON and name"
        " the build folder by --build"
    )


def find_fake_gpu(build: Path | None) -> str:
    """The fake CUDA driver: of the folder $PENSTOCK_FAKE_GPU, else of `build`, else of the usual build folders."""
    given = os.environ.get("PENSTOCK_FAKE_GPU")
    folders = [build] if build else [ROOT / "build" / "release", ROOT / "build" / "bench"]
    places = [Path(given)] if given else [folder / "tests" / "fake_gpu" for folder in folders]
    for place in places:
        if (path := place / "libcuda.so.1").is_file():
            return str(path.resolve().parent / "libcuda.so.1")
    told = " or ".join(str(place) for place in places)
    raise CannotRun(
        f"the fake CUDA driver is not in {told}: `make bench` builds it (target fake_cuda); or name its folder by"
        " PENSTOCK_FAKE_GPU"
    )


def kvikio_python() -> str:
    """An interpreter that has KvikIO: $PENSTOCK_KVIKIO_PYTHON, else that of tools/gpu_peers.py."""
    python = Path(os.environ.get("PENSTOCK_KVIKIO_PYTHON") or ROOT / "build" / "gpu-peers" / "bin" / "python")
    if not python.exists():
        raise CannotRun(
            f"KvikIO is not set up ({python} is not there): run tools/gpu_peers.py, or name an interpreter that has it"
            " by PENSTOCK_KVIKIO_PYTHON"
        )
    return str(python)


def deepspeed_python() -> str:
    """An interpreter that has DeepSpeed: $PENSTOCK_DEEPSPEED_PYTHON, that of tools/setup.sh, or this one."""
    python = Path(os.environ.get("PENSTOCK_DEEPSPEED_PYTHON") or ROOT / ".venv-deepspeed" / "bin" / "python")
    if python.exists():
        return str(python)
    if importlib.util.find_spec("deepspeed"):
        return sys.executable
    raise CannotRun(
        f"DeepSpeed is not set up ({python} is not there): tools/setup.sh bench, or name an interpreter that has it by"
        " PENSTOCK_DEEPSPEED_PYTHON"
    )


def make_side(text: str, *, build: Path | None, handicap: str = "") -> Side:
    kind, *words = shlex.split(text)
    if kind == "fio":
        return Fio(words + shlex.split(handicap))
    if kind == "python":
        return Program([sys.executable, "-m", "benchmarks.python_side"], words, handicap)
    if kind == "checkpoint":
        return Program([sys.executable, "-m", "benchmarks.checkpoint_jobs"], words, handicap)
    if kind == "deepnvme":
        return Program([deepspeed_python(), "-m", "benchmarks.deepnvme_jobs"], words, handicap)
    if kind == "weights":
        return Program([deepspeed_python(), "-m", "benchmarks.weight_jobs"], words, handicap)
    if kind in ("gpu", "kvikio"):
        python = sys.executable if kind == "gpu" else kvikio_python()
        return Program([python, "-m", "benchmarks.gpu_jobs"], words, handicap, build)
    if kind in ("program", "model"):
        name = "penstock_bench_ours" if kind == "program" else "penstock_bench_model"
        return Program(find_program(name, build), words, handicap, build)
    if kind == "callgrind":
        return Callgrind(find_program("penstock_bench_model", build), words, handicap)
    kinds = "program, model, callgrind, python, checkpoint, deepnvme, weights, gpu, kvikio, fio"
    raise ValueError(f"{text!r}: starts with none of {kinds}")
