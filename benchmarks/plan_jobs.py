# SPDX-License-Identifier: Apache-2.0
"""Runs of plan.seconds and plan.measure; plan_rows.py has plan.rows."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.job_tools import figures, skip

ROOT = Path(__file__).resolve().parent.parent


def _program():
    """The program, without Python."""
    for name in ("release", "bench", "program", "fast"):
        program = ROOT / "build" / name / "bin" / "penstock"
        if program.is_file():
            return str(program)
    return shutil.which("penstock") or skip("the program penstock is not built: make bench IDS=plan.seconds")


def seconds(arguments):
    """Seconds of 20 runs of `penstock --way`, start to end. Handicap `torch`: as if it imported torch."""
    words = {"train": ["plan", "train", "--model", "resnet50", "--accelerators", "8"], "version": ["--version"]}
    command = [_program(), *words[arguments["way"]]]
    if arguments.get("handicap") == "torch":
        command = [sys.executable, "-c", f"import torch, subprocess; subprocess.run({command!r})"]
    start = time.perf_counter()
    runs = 1 if arguments.get("handicap") else 20
    for _ in range(runs):
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    spent = (time.perf_counter() - start) / runs
    return figures(seconds=spent)


def measured(arguments):
    """Bytes a second of reads in sequence that `penstock plan measure` reports. Handicap `warm`: a figure of the page
    cache, as a probe that reads through it would give."""
    folder = arguments["dir"]
    if arguments.get("handicap") == "warm":
        return _warm(folder)
    with tempfile.TemporaryDirectory() as out:
        report = os.path.join(out, "measure.json")
        words = ["plan", "measure", folder, "--model", "unet3d", "--size", "512MiB", "--json", report]
        done = subprocess.run([_program(), *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"penstock plan measure: exit {done.returncode}: {done.stderr[-500:]}")
        figures = {one["name"]: one["value"] for one in json.loads(Path(report).read_text())["figures"]}
    rate = figures["files_bytes_per_second"]
    return figures(seconds=1.0, bytes=int(rate))


def _warm(folder):
    path = Path(folder, "warm")
    path.write_bytes(bytes(256 << 20))
    try:
        path.read_bytes()
        start = time.perf_counter()
        size = len(path.read_bytes())
        return figures(seconds=time.perf_counter() - start, bytes=size)
    finally:
        path.unlink()
