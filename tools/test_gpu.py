#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tests and bars that need a GPU, in one command of at most 8 minutes; fetches nothing.

    tools/test_gpu.py [--fake] [--build DIR] [--minutes N]      in a checkout that is built
    python3 test_gpu.py [--fake] [--minutes N]                  in an unpacked kit (make gpu-kit)

The statements on the driver (device_conformance_test), the suite's transfers of GPU memory compared with a model, and
the bars of place gpu. The result goes to benchmarks/results/gpu-<time>.json. Without a GPU it says so and ends with 0.
--fake runs it all on the fake driver: every line says FAKE, and no figure means anything.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
KIT = (HERE / "kit.json").exists()
ROOT = HERE if KIT else HERE.parent
MINUTES = 8
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
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(ROOT / "lib"), env.get("LD_LIBRARY_PATH")]))
        env["PENSTOCK_FAKE_GPU"] = str(ROOT / "fake")
    if fake:
        folder = ROOT / "fake" if KIT else build / "tests" / "fake_gpu"
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(folder.resolve()), env.get("LD_LIBRARY_PATH")]))
    return env


class Run:
    """Steps in a row until the time is over; each keeps its last words."""

    def __init__(self, env, seconds):
        self.env = env
        self.end = time.monotonic() + seconds
        self.steps = []

    def left_s(self):
        return self.end - time.monotonic()

    def step(self, name, command, good=(0,), **more):
        if self.left_s() < 5:
            self._note(name, "not run", 0, "the time is over")
            return None
        start = time.monotonic()
        env = self.env | more
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=self.left_s(), check=False
            )
        except FileNotFoundError:
            self._note(name, "not built", 0, f"{command[0]} is not there: build it, or use a kit (make gpu-kit)")
            return None
        except subprocess.TimeoutExpired:
            self._note(name, "cut", time.monotonic() - start, "it ran past the time")
            return None
        state = "passed" if done.returncode in good else f"failed ({done.returncode})"
        words = (done.stdout + done.stderr).strip().splitlines()
        self._note(name, state, time.monotonic() - start, "" if state == "passed" else "\n".join(words[-25:]))
        return done

    def _note(self, name, state, seconds, words):
        self.steps.append({"name": name, "state": state, "seconds": round(seconds, 2), "words": words})
        print(f"{name}: {state}{f' ({seconds:.0f} s)' if seconds else ''}{': ' + words if words else ''}", flush=True)


def counted(done):
    """What a GoogleTest program says of its tests."""
    found = {} if done is None else dict(re.findall(r"\[  (PASSED|SKIPPED|FAILED) +\] (\d+) tests?", done.stdout))
    return {key.lower(): int(value) for key, value in found.items()}


def bars(run, build, folder):
    """The rows of place gpu, one command each, so that the time can end between them."""
    listed = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"],
        cwd=ROOT,
        env=run.env,
        capture_output=True,
        text=True,
        check=True,
    )
    results = []
    for line in listed.stdout.splitlines():
        name, place = line.split()[:2]
        if place != "gpu":
            continue
        kept = folder / f"{name}.json"
        command = [sys.executable, "-m", "benchmarks", name, "--build", str(build), "--dir", str(folder)]
        done = run.step(f"bar {name}", [*command, "--json", str(kept)], good=(0, 1, 2, 77))
        if done is None:
            continue
        print("  " + done.stdout.strip().splitlines()[-1], flush=True)
        if kept.exists():
            results += json.loads(kept.read_text())["bars"]
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", action="store_true", help="on the fake driver")
    parser.add_argument("--build", type=Path, help="build folder (default: build/release; a kit has its own)")
    parser.add_argument("--dir", type=Path, help="folder on the disk that bars measure (default: here)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="ends by then (default: 8)")
    arguments = parser.parse_args()
    build = ROOT / "build" if KIT else (arguments.build or first_build()).resolve()
    run = Run(environment(build, arguments.fake), arguments.minutes * 60)
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
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-", dir=arguments.dir or ROOT) as folder:
        measured = bars(run, build, Path(folder))
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    path = ROOT / "benchmarks" / "results" / f"gpu-{'FAKE-' if fake else ''}{now}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "gpu": gpu | {"fake": fake},
        "steps": run.steps,
        "conformance": counted(conformance),
        "suite": counted(suite),
        "bars": measured,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    bad = [step["name"] for step in run.steps if step["state"].startswith("failed")]
    bad += [bar["id"] for bar in measured if bar["verdict"] in ("missed", "failed")]
    print(f"{mark}kept in {path.relative_to(ROOT)}; {'failed: ' + ', '.join(bad) if bad else 'nothing failed'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
