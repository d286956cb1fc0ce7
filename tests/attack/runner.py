# SPDX-License-Identifier: Apache-2.0
"""Runs attacks, each in a child with a folder of its own, and says what came of them."""

import contextlib
import importlib.util
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack.catalogue import ATTACKS
from tests.attack.run import PROGRESS

ROOT = Path(__file__).resolve().parent.parent.parent
# It has transformers in it, and takes Penstock from the other environment.
OTHER_PYTHON = ROOT / ".venv-deepspeed" / "bin" / "python"
HANG_S = 60  # after its time a child that has not ended hangs
SHRINK_S = 40
OUTPUT_LINES = 60
QUIET_S = 2


class Stopped(Exception):
    """By a signal."""


@dataclass
class Result:
    name: str
    seed: int
    verdict: str  # passed, skipped; wrong, error, crash, hang
    text: str = ""
    round: int = -1
    step: int = -1
    counts: dict = field(default_factory=dict)
    log: list = field(default_factory=list)
    rounds: int = 0
    round_s: float = 0
    seconds: float = 0
    suite: str = "attack"

    @property
    def failed(self):
        return self.verdict not in ("passed", "skipped")


def python_for(name):
    """(Python, None), or (None, what is missing)."""
    missing = [module for module in ATTACKS[name].needs if importlib.util.find_spec(module) is None]
    if not missing:
        return sys.executable, None
    if OTHER_PYTHON.exists() and Path(sys.executable) != OTHER_PYTHON:
        probe = [OTHER_PYTHON, "-c", f"import {', '.join(ATTACKS[name].needs)}"]
        if subprocess.run(probe, capture_output=True, cwd=ROOT).returncode == 0:
            return str(OTHER_PYTHON), None
    return None, f"needs {' and '.join(missing)}"


class Session:
    """A folder, the children that work in it, and the end of both, also by SIGTERM and Ctrl-C."""

    def __init__(self, folder=None, environment=None):
        self._folder = folder
        self.environment = environment or {}
        self._children = set()
        self._lock = threading.Lock()
        self._talk = threading.Lock()
        self._stopped = False

    def __enter__(self):
        self._before = {}
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-attack-", dir=self._folder))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_):
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        with self._lock:
            for child in self._children:
                self._end(child)
        shutil.rmtree(self.folder, ignore_errors=True)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number, _frame):
        """Threads that wait for a child see it, end the child, and raise it, too."""
        self._stopped = True
        raise Stopped(signal.Signals(number).name)

    @staticmethod
    def _end(child):
        """A child leads a process group; what it has forked is in it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def say(self, *words):
        with self._talk:
            print(*words, flush=True)

    def run(self, name, seed, seconds, round=None, steps=None, environment=None, show=True):
        """One attack. Result."""
        python, missing = python_for(name)
        if python is None:
            return Result(name, seed, "skipped", missing)
        seconds = max(seconds, ATTACKS[name].least_s)
        spec = {"do": "attack", "name": name, "seed": seed, "seconds": seconds, "round": round, "steps": steps}
        began = time.monotonic()
        with self._place() as place:
            status, output = self._child(python, spec, place, seconds + HANG_S, environment, show)
            result = self._result(spec, place, status, output)
        result.seconds = time.monotonic() - began
        return result

    def shrink(self, result, environment=None):
        """The fewest steps that still fail in the same way, or None when they do not fail again."""
        python, _ = python_for(result.name)
        spec = {
            "do": "shrink",
            "name": result.name,
            "seed": result.seed,
            "seconds": SHRINK_S,
            "round": result.round,
            "last": result.step,
            "round_s": result.round_s,
            "verdict": result.verdict,
        }
        with self._place() as place:
            self._child(python, spec, place, SHRINK_S + 6 * result.round_s + HANG_S, environment, False)
            found = self._answer(place)
        return found["steps"] if found and found["again"] else None

    @contextlib.contextmanager
    def _place(self):
        place = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            (place / "work").mkdir()
            (place / "progress").write_bytes(PROGRESS.pack(-1, -1, 0))
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _child(self, python, spec, place, limit_s, environment, show):
        """(exit status, or None when it hung; what it printed)."""
        spec |= {key: str(place / key) for key in ("progress", "result")} | {"folder": str(place / "work")}
        command = [python, "-X", "faulthandler", "-m", "tests.attack.child", json.dumps(spec)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **self.environment, **(environment or {})}
        with open(place / "output", "wb") as output, self._lock:
            if self._stopped:
                raise Stopped
            child = subprocess.Popen(
                command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
            self._children.add(child)
        try:
            status = self._watch(child, spec, place, limit_s, show)
        finally:
            with self._lock:
                self._end(child)
                child.wait()
                self._children.discard(child)
        text = (place / "output").read_text(errors="replace")
        return status, "\n".join(text.splitlines()[-OUTPUT_LINES:])

    def _watch(self, child, spec, place, limit_s, show):
        began = told = time.monotonic()
        with open(place / "progress", "r+b") as file, mmap.mmap(file.fileno(), PROGRESS.size) as progress:
            while child.poll() is None:
                if self._stopped:
                    raise Stopped
                now = time.monotonic()
                if now - began > limit_s:
                    os.kill(child.pid, signal.SIGUSR1)  # its stacks
                    time.sleep(1)
                    return None
                if show and now - told >= QUIET_S:
                    told = now
                    number, _, operations = PROGRESS.unpack(progress[: PROGRESS.size])
                    self._tell(f"{spec['name']}: {now - began:.0f} s of {spec['seconds']:.0f}, round {number}, "
                               f"{operations:,} operations")  # fmt: skip
                time.sleep(0.02)
        return child.returncode

    def _tell(self, text):
        """Progress is for a person who waits: one line that is written over, or lines where nobody is."""
        with self._talk:
            if sys.stderr.isatty():
                print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
            else:
                print(text, file=sys.stderr, flush=True)

    @staticmethod
    def _answer(place):
        path = place / "result"
        return json.loads(path.read_text()) if path.exists() else None

    def _result(self, spec, place, status, output):
        answer = self._answer(place)
        if answer and status == 0:
            return Result(spec["name"], spec["seed"], **answer)
        number, step, _ = PROGRESS.unpack((place / "progress").read_bytes())
        if status is None:
            verdict, text = "hang", f"it did not end {HANG_S} s after its time"
        elif status < 0:
            verdict, text = "crash", f"ended by {signal.Signals(-status).name}"
        else:
            verdict, text = "error", f"ended with status {status}"
        return Result(spec["name"], spec["seed"], verdict, f"{text}\n{output}".strip(), number, step)


def report(session, result, shrink=True, environment=None):
    """Prints what came of an attack."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if result.verdict == "skipped":
        session.say(f"skipped  {result.name}: {result.text}")
        return
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(result.counts.items()))
    if not result.failed:
        session.say(f"passed   {result.name}: {result.rounds} rounds, {counts} ({result.seconds:.0f} s)")
        return
    again = f"python -m tests.attack {result.name} --seed {result.seed}"
    again += f" --round {result.round}" if result.round >= 0 else ""  # else it did not come so far
    lines = [f"FAILED   {result.name} ({result.verdict}): seed {result.seed}, round {result.round}, step {result.step}"]
    lines += [f"    {line}" for line in result.text.splitlines()]
    lines += [f"    | {line}" for line in result.log]
    if shrink and result.round >= 0:
        steps = session.shrink(result, environment)
        if steps is None:
            lines.append("    the round alone does not fail again: it depends on the moment, or on the rounds before")
        elif steps:
            again += f" --steps {','.join(map(str, steps))}"
    session.say("\n".join([*lines, f"    again: {again}"]))
