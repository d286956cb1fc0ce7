#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tests and bars that need a GPU, in one command of at most 8 minutes; fetches nothing.

    tools/test_gpu.py [--fake] [--build DIR] [--minutes N]      in a checkout that is built
    python3 test_gpu.py [--fake] [--minutes N]                  in an unpacked kit (make gpu-kit)

The statements on the driver (device_conformance_test), the suite's transfers of GPU memory compared with a model, the
tests of python/tests/gpu, the bars of place gpu, and what is about the fake driver wherever it runs: device_test and
the GPU's part of features_test. The result goes to benchmarks/results/gpu-<time>.json. Without a GPU it says so and
ends with 0. --fake runs it all on the fake driver: every line says FAKE, and no figure means anything.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
KIT = (HERE / "kit.json").exists()
ROOT = HERE if KIT else HERE.parent
MINUTES = 8
PYTHON_TESTS = ROOT / "python" / "tests" / "gpu"
PYTHON_SECONDS_MAX = 120
BAR_SECONDS = 60
CLEAN_UP_SECONDS = 10
ON_THE_FAKE = {"device": "*", "features": "DeviceGathers*:RowServer*:RowRing*"}
ASK = """
import json, penstock
report = penstock.gpus()
print(json.dumps({"ok": bool(report), "reason": report.reason, "library": report.library,
                  "names": [gpu.name for gpu in report.gpus], "version": penstock.__version__}))
"""


def first_build():
    found = [ROOT / "build" / name for name in ("release", "bench") if (ROOT / "build" / name).exists()]
    return found[0] if found else ROOT / "build" / "release"


def environment(build, fake):
    env = dict(os.environ)
    if KIT:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), str(ROOT), env.get("PYTHONPATH")]))
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(ROOT / "lib"), env.get("LD_LIBRARY_PATH")]))
        env["PENSTOCK_FAKE_GPU"] = str(ROOT / "fake")
    if fake:
        folder = ROOT / "fake" if KIT else build / "tests" / "fake_gpu"
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(folder.resolve()), env.get("LD_LIBRARY_PATH")]))
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # those of the machine
    return env


def ended(command, env, seconds):
    """Runs a command and all that it starts to their end. Past its time they are asked to end, and clean up."""
    group = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said = group.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(group.pid, signal.SIGTERM)
        try:
            group.communicate(timeout=CLEAN_UP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(group.pid, signal.SIGKILL)
            group.communicate()
        raise
    return subprocess.CompletedProcess(command, group.returncode, *said)


class Run:
    """Steps in a row until the time is over; each keeps its last words."""

    def __init__(self, env, seconds):
        self.env = env
        self.end = time.monotonic() + seconds
        self.steps = []

    def left_s(self):
        return self.end - time.monotonic()

    def step(self, name, command, good=(0,), seconds=float("inf"), **more):
        """Runs a command for so many seconds at most, and as long as the time is not over."""
        if self.left_s() < 5:
            self.note(name, "not run", 0, "the time is over")
            return None
        start = time.monotonic()
        env = self.env | more
        try:
            done = ended(command, env, min(seconds, self.left_s()))
        except FileNotFoundError:
            self.note(name, "not built", 0, f"{command[0]} is not there: build it, or use a kit (make gpu-kit)")
            return None
        except subprocess.TimeoutExpired:
            self.note(name, "cut", time.monotonic() - start, "it ran past the time")
            return None
        state = "passed" if done.returncode in good else f"failed ({done.returncode})"
        words = (done.stdout + done.stderr).strip().splitlines()
        self.note(name, state, time.monotonic() - start, "" if state == "passed" else "\n".join(words[-25:]))
        return done

    def note(self, name, state, seconds, words):
        self.steps.append({"name": name, "state": state, "seconds": round(seconds, 2), "words": words})
        print(f"{name}: {state}{f' ({seconds:.0f} s)' if seconds else ''}{': ' + words if words else ''}", flush=True)


def counted(done):
    """What a GoogleTest program says of its tests."""
    found = {} if done is None else dict(re.findall(r"\[  (PASSED|SKIPPED|FAILED) +\] (\d+) tests?", done.stdout))
    return {key.lower(): int(value) for key, value in found.items()}


def python_tests(run, mark):
    """The files of cases, each in a process of its own, as one is left in what a broken GPU makes of it. Where pytest,
    torch or NumPy is not there, they do not run."""
    ask = "import numpy, pytest, torch"
    asked = subprocess.run([sys.executable, "-c", ask], env=run.env, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        words = asked.stderr.strip().splitlines() or [f"{sys.executable} cannot import numpy, pytest and torch"]
        run.note(f"{mark}python", "not run", 0, words[-1])
        return {}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60"]

    def run_file(path):
        with tempfile.TemporaryDirectory(prefix="penstock-gpu-") as folder:
            command = [*words, "--basetemp", f"{folder}/cases", str(path)]
            return run.step(f"{mark}python {path.stem}", command, seconds=PYTHON_SECONDS_MAX, FAKE_GPU_DEVICES="2")

    counts = {}
    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as together:
        for done in together.map(run_file, sorted(PYTHON_TESTS.glob("*_cases.py"))):
            for count, what in re.findall(
                r"(\d+) (passed|failed|skipped|errors?)\b", done.stdout[-300:] if done else ""
            ):
                counts[what] = counts.get(what, 0) + int(count)
    return counts


def bars(run, build, folder):
    """The rows of place gpu, one command each, so that the time can end between them; and where they were run."""
    listed = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"],
        cwd=ROOT,
        env=run.env,
        capture_output=True,
        text=True,
        check=True,
    )
    results, machine = [], {}
    for line in listed.stdout.splitlines():
        name, place = line.split()[:2]
        if place != "gpu":
            continue
        kept = folder / f"{name}.json"
        command = [sys.executable, "-m", "benchmarks", name, "--build", str(build), "--dir", str(folder)]
        command += ["--budget-s", str(BAR_SECONDS)]
        done = run.step(f"bar {name}", [*command, "--json", str(kept)], good=(0, 1, 2, 77))
        if done is None:
            continue
        print("  " + done.stdout.strip().splitlines()[-1], flush=True)
        if kept.exists():
            found = json.loads(kept.read_text())
            results += found["bars"]
            machine = machine or found["environment"]
    return results, machine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", action="store_true", help="on the fake driver")
    parser.add_argument("--build", type=Path, help="build folder (default: build/release; a kit has its own)")
    parser.add_argument("--dir", type=Path, help="folder on the disk that bars measure (default: here)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="ends by then (default: 8)")
    arguments = parser.parse_args()
    build = ROOT / "build" if KIT else (arguments.build or first_build()).resolve()
    run = Run(environment(build, arguments.fake), arguments.minutes * 60 - CLEAN_UP_SECONDS)
    asked = subprocess.run(
        [sys.executable, "-c", ASK], cwd=ROOT, env=run.env, capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        print(f"penstock cannot be imported by {sys.executable}: {asked.stderr.strip()[-800:]}", file=sys.stderr)
        return 1
    gpu = json.loads(asked.stdout)
    if not gpu["ok"]:
        print(f"SKIPPED gpu: {gpu['reason']}")
        return 0
    fake = any("fake" in name.lower() for name in gpu["names"])
    mark = "FAKE: " if fake else ""
    print(f"{mark}{', '.join(gpu['names'])}; driver {gpu['library']}", flush=True)
    tests = build / "tests"
    conformance = run.step(
        f"{mark}conformance", [str(tests / "device_conformance_test")], CONFORMANCE_LIBCUDA=gpu["library"]
    )
    suite = run.step(
        f"{mark}suite",
        [str(tests / "suite_test"), "--gtest_filter=*RandomShapes.OfTheHostAndTwoGpus*:*DeviceLife*"],
        PENSTOCK_TEST_REAL_GPU="1",
    )
    python = python_tests(run, mark)
    on_the_fake = {
        name: run.step(f"FAKE: {name}", [str(tests / f"{name}_test"), f"--gtest_filter={which}"])
        for name, which in ON_THE_FAKE.items()
    }
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-", dir=arguments.dir or ROOT) as folder:
        measured, machine = bars(run, build, Path(folder))
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    path = ROOT / "benchmarks" / "results" / f"gpu-{'FAKE-' if fake else ''}{now}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "gpu": gpu | {"fake": fake},
        "steps": run.steps,
        "conformance": counted(conformance),
        "suite": counted(suite),
        "python": python,
        **{f"{name} on the fake": counted(done) for name, done in on_the_fake.items()},
        "environment": machine,
        "bars": measured,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    bad = [step["name"] for step in run.steps if step["state"].startswith("failed")]
    bad += [bar["id"] for bar in measured if bar["verdict"] == "missed" and not fake]
    print(f"{mark}kept in {path.relative_to(ROOT)}; {'failed: ' + ', '.join(bad) if bad else 'nothing failed'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
