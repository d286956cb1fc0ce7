#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The main job of `make demo`: two minutes that show what this disk can do and what Penstock gets out of it.

    .venv/bin/python tools/demo.py [--dir FOLDER]

 1. `penstock bench --against fio`: large blocks and random 4 KiB reads, in turns with fio on the same file.
 2. `penstock checkpoint bench --model gpt2`: GPT-2 small (124 M parameters, values made on the spot) saved and loaded,
    in turns with torch.save and torch.load, safetensors and fio; what comes back is compared bit for bit.
 3. `penstock doctor`: what is in the way of speed here.

Everything that is written lies in a folder under --dir and goes at the end, also after Ctrl-C.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GIB = 1 << 30
SPACE = 5 * GIB // 2
GPT2_PASS_S = 1.6  # seconds that one save or load may take: a slower disk gets as much of the model as it can


def run(title, words, folder):
    """Shows the command and its output; what it measured, from its JSON."""
    print(f"\n{title}\n$ penstock {shlex.join(words)}\n", flush=True)
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "penstock", *words, "--json", str(report)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as child:
        try:
            status = child.wait()
        except BaseException:
            child.send_signal(signal.SIGTERM)  # it removes what it made
            raise
    if status not in (0, 1) or not report.exists():  # 1: doctor found something
        raise SystemExit(f"demo: penstock {words[0]} ended with {status}")
    return json.loads(report.read_text())


def speed_text(job, key, unit, scale):
    median = statistics.median(sample[key] for sample in job["samples"] if sample["side"] == "penstock")
    text = f"{median / scale:.2f} {unit}" if scale > 1 else f"{median:.0f} {unit}"
    if "ratio" in job:
        low, high = job["ratio"]["ci95"]
        text += f", {job['ratio']['mean']:.2f}x (95 % {low:.2f} to {high:.2f}) of fio's"
    return text


def summary(bench, gpt2, began):
    jobs = {(job["rw"], job["depth"]): job for job in bench["jobs"]}
    print("\nIn short")
    print(f"  reading  {speed_text(jobs['read', 16], 'bytes_per_s', 'GB/s', 1e9)}")
    print(f"  writing  {speed_text(jobs['write', 16], 'bytes_per_s', 'GB/s', 1e9)}")
    print(f"  4 KiB    {speed_text(jobs['randread', 128], 'operations_per_s', 'random reads a second', 1)}")
    seconds = {(figures["side"], figures["verb"]): figures["median_seconds"] for figures in gpt2["figures"]}
    part = "" if not gpt2["left_out"] else f" ({gpt2['left_out']})"
    print(
        f"  GPT-2    {gpt2['bytes'] / 4e6:.1f} M parameters{part} saved in {seconds['penstock .pt', 'save']:.2f} s "
        f"(torch.save + fsync: {seconds['torch.save + fsync', 'save']:.2f} s),\n"
        f"           loaded in {seconds['penstock .pt', 'load']:.2f} s "
        f"(torch.load: {seconds['torch.load', 'load']:.2f} s), bit for bit"
    )
    print(
        "\n  How to read this: Penstock and fio go past the page cache, if the file system allows it; torch writes\n"
        "  through it. All saves end durable, all loads start cold, into memory that the host has backed before.\n"
        "  Other load on the machine changes every figure."
    )
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > 1.5 * cpus + 2:  # the demo is some of it
        print(f"  This machine was busy with other things (load {load:.0f} on {cpus} processors): run it again later.")
    print(f"  It took {time.monotonic() - began:.0f} s. More: .venv/bin/python -m penstock bench --help")


def show(folder, began):
    fio = ["--against", "fio"] if shutil.which("fio") else []
    words = ["bench", str(folder), "--rw", "read,write,randread", "--seconds", "1", *fio]
    bench = run("1. This disk", words, folder)
    if not fio:
        print("(fio is not installed, so there is nothing to compare with: apt-get install fio)")
    samples = [s["bytes_per_s"] for job in bench["jobs"] if job["rw"] == "write" for s in job["samples"]]
    fits = int(statistics.median(samples) * GPT2_PASS_S) >> 20
    words = ["checkpoint", "bench", str(folder), "--model", "gpt2", "--state", "weights", "--weights", "fp32"]
    words += ["--what", "save,load", *(["--max-bytes", f"{max(fits, 64)}MiB"] if fits < 600 else [])]
    gpt2 = run("2. GPT-2 small, there and back", words, folder)
    run("3. What is in the way of speed here", ["doctor", str(folder)], folder)
    summary(bench, gpt2, began)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=ROOT / "build" / "demo", help="a folder on the disk to be shown")
    args = parser.parse_args()
    began, came = time.monotonic(), []

    def on_signal(number, _frame):
        came.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    args.dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(args.dir).free
    if free < SPACE:
        raise SystemExit(
            f"demo: {args.dir} has {free / GIB:.1f} GiB free, and {SPACE / GIB:.1f} GiB are needed for a while (all of "
            "it is given back). Free some, or name a folder on another disk: tools/demo.py --dir FOLDER"
        )
    print(f"Two minutes; files in {args.dir} while this runs.")
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-", dir=args.dir) as folder:
            show(Path(folder), began)
        return 0
    except KeyboardInterrupt:
        print("\ndemo: ended early; its files are removed")
        return 128 + came[0]


if __name__ == "__main__":
    sys.exit(main())
