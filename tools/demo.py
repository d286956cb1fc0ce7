#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The main job of `make demo`: two minutes that show what this disk can do and what Penstock gets out of it.

    .venv/bin/python tools/demo.py [--dir FOLDER] [--seconds 120]

 1. Sequential: one large tensor, Penstock beside fio, torch.save and torch.load, in turns on the same disk.
 2. Random 4 KiB reads: `penstock bench --against fio`.
 3. GPT-2 small (124 M parameters, values made here): to the disk in one transfer and back, checked bit for bit.
 4. `penstock doctor`: what is in the way of speed here.

Everything it writes lies in one folder of its own under --dir and goes at the end, also after Ctrl-C.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

signal.signal(signal.SIGINT, signal.SIG_DFL)  # while importing there is nothing to clean up

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import demo_sides as sides  # noqa: E402
from demo_gpt2 import make_gpt2_small  # noqa: E402

from benchmarks.stats import ratio_interval  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
SPACE_LEFT = 512 * MIB  # what the demo leaves to others
ROUNDS_MIN, ROUNDS_MAX = 3, 7
PASS_S = 1.2  # seconds that one reading or writing of the large tensor should take


class Screen:
    """Progress: one line rewritten on a terminal, a line every few seconds elsewhere."""

    def __init__(self):
        self.start = time.monotonic()
        self.terminal = sys.stdout.isatty()
        self.next = 0.0

    def say(self, text=""):
        if self.terminal:
            print("\r\033[K", end="")
        print(text, flush=True)

    def doing(self, text):
        now = time.monotonic()
        if self.terminal:
            line = f"[{now - self.start:4.0f} s] {text}"
            print("\r\033[K" + line[: shutil.get_terminal_size().columns - 1], end="", flush=True)
        elif now >= self.next:
            print(f"[{now - self.start:4.0f} s] {text}", flush=True)
            self.next = now + 5


@contextmanager
def folder_of_our_own(parent):
    parent.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="penstock-demo-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def size_for(folder, screen):
    """Bytes of the large tensor: a pass of about PASS_S, within what disk and memory have free."""
    screen.doing("looking how fast this disk writes")
    probe = sides.tensor_of(128 * MIB)
    rate = probe.nbytes / sides.write_penstock(folder / "probe", probe)
    (folder / "probe").unlink()
    wanted = int(rate * PASS_S) // (64 * MIB) * 64 * MIB
    room = min((shutil.disk_usage(folder).free - SPACE_LEFT) // 3, sides.free_memory() // 5)
    return max(64 * MIB, min(wanted, GIB, room // (64 * MIB) * 64 * MIB))


def in_turns(screen, what, actions, budget_s):
    """{name: [seconds]} of all actions, round by round, each round starting with another one. Fewer rounds than
    ROUNDS_MIN only where they would take twice the budget."""
    taken = {name: [] for name in actions}
    names = list(actions)
    start = time.monotonic()
    for number in range(ROUNDS_MAX):
        spent = time.monotonic() - start
        if spent > (budget_s if number >= ROUNDS_MIN else 2 * budget_s):
            break
        for name in names[number % len(names) :] + names[: number % len(names)]:
            screen.doing(f"{what}, round {number + 1}: {name}")
            taken[name].append(actions[name]())
    return taken


def middle(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def ratio_text(ours, others):
    interval = ratio_interval([other / our for our, other in zip(ours, others)])
    if len(ours) == 1:
        return f"{interval.mean:5.2f}x  (one round only: this disk or machine is slow)"
    same = interval.low <= 1 <= interval.high
    return f"{interval.mean:5.2f}x  ({interval.low:.2f} to {interval.high:.2f})" + (
        ", no difference shown" if same else ""
    )


def table(screen, title, taken, bytes_moved, ours):
    """Speeds by median, the range of the rounds, and Penstock's speed as a multiple of the other's."""
    screen.say(f"  {title}")
    screen.say(f"    {'':28}{'GB/s':>7}{'GiB/s':>7}   {'range of the rounds':24}Penstock is faster by (95 %)")
    for name, seconds in taken.items():
        speeds = sorted(bytes_moved / s / 1e9 for s in seconds)
        spread = f"{speeds[0]:.2f} to {speeds[-1]:.2f} GB/s"
        against = "" if name == ours else ratio_text(taken[ours], seconds)
        median = bytes_moved / middle(seconds)
        screen.say(f"    {name:28}{median / 1e9:7.2f}{median / GIB:7.2f}   {spread:24}{against}".rstrip())


def swing(taken):
    """The largest relative range of one side's rounds: what the disk does by itself."""
    return max((max(s) - min(s)) / middle(s) / 2 for s in taken.values())


def sequential(screen, folder, budget_s):
    """Part 1. The figures that the summary wants."""
    size = size_for(folder, screen)
    screen.say(f"1. One tensor of {size // MIB} MiB, durable on writing, cold on reading, sides in turns")
    fio = sides.Fio.find()
    tensor, into = sides.tensor_of(size), sides.empty_like_tensor(size)
    raw, saved = folder / "tensor.bin", folder / "tensor.pt"

    writes = {"Penstock": lambda: sides.write_penstock(raw, tensor)}
    if fio:
        writes[fio.name] = lambda: fio.write(folder / "fio.bin", size)
    writes["torch.save, then fsync"] = lambda: sides.save_torch(saved, tensor)
    written = in_turns(screen, "writing", writes, budget_s / 2)
    table(screen, "to the disk", written, size, "Penstock")

    reads = {"Penstock": lambda: sides.read_penstock(raw, into)}
    if fio:
        reads[fio.name] = lambda: fio.read(raw, size)
    reads["torch.load"] = lambda: sides.load_torch(saved)
    read = in_turns(screen, "reading", reads, budget_s / 2)
    table(screen, "from the disk", read, size, "Penstock")
    if not sides.equal_bits(tensor, into):
        raise SystemExit("demo: the tensor that came back is not the one that was written: do not trust this disk")
    if not fio:
        screen.say("    (fio is not installed, so the disk itself was not measured: apt-get install fio)")
    noise = max(swing(written), swing(read))
    screen.say(
        f"    The rounds of one side differ by up to ±{noise * 100:.0f} % on this disk: "
        "smaller differences mean nothing."
    )
    for file in folder.iterdir():
        file.unlink()
    return {"size": size, "written": written, "read": read, "fio": fio and fio.name}


def random_reads(screen, folder):
    """Part 2, by the command line itself."""
    screen.say()
    screen.say("2. Random reads of 4 KiB, 128 at once")
    command = [sys.executable, "-m", "penstock", "bench", str(folder)]
    command += ["--rw", "randread", "--depth", "128", "--size", "512MiB", "--seconds", "1", "--json", "-"]
    if sides.Fio.find():
        command += ["--against", "fio"]
    done = sides.run_watched(command, lambda: screen.doing("random reads: penstock bench"))
    report = json.loads(done)
    job = report["jobs"][0]
    for side in ("penstock", "fio"):
        samples = [s for s in job["samples"] if s["side"] == side]
        if samples:
            speeds = sorted(s["operations_per_s"] for s in samples)
            p50, p99 = (middle([s["latency_ns"][p] for s in samples]) / 1e3 for p in ("p50", "p99"))
            name = "Penstock" if side == "penstock" else f"fio ({job['peer']['ioengine']})"
            screen.say(
                f"    {name:28}{middle(speeds):9.0f} IOPS   {speeds[0]:.0f} to {speeds[-1]:.0f}"
                f"   p50 {p50:.0f} us   p99 {p99:.0f} us"
            )
    if "ratio" in job:
        low, high = job["ratio"]["ci95"]
        screen.say(f"    Penstock / fio: {job['ratio']['mean']:.3f} (95 % interval {low:.2f} to {high:.2f})")
    return job


def gpt2(screen, folder, budget_s):
    """Part 3: the tensors of a real architecture, there and back."""
    screen.say()
    screen.doing("GPT-2 small: making 124 million values")
    model = make_gpt2_small(seed=1)
    parameters = sum(t.numel() for t in model.values())
    size = sum(t.nbytes for t in model.values())
    screen.say(
        f"3. GPT-2 small: {len(model)} tensors, {parameters / 1e6:.1f} M parameters, {size / MIB:.0f} MiB as float32"
    )
    raw, saved = folder / "gpt2.bin", folder / "gpt2.pt"
    into = {name: sides.empty_like(t) for name, t in model.items()}
    written = in_turns(
        screen,
        "GPT-2 to the disk",
        {
            "Penstock, one transfer": lambda: sides.write_penstock_many(raw, list(model.values())),
            "torch.save, then fsync": lambda: sides.save_torch(saved, model),
        },
        budget_s / 2,
    )
    table(screen, "to the disk, durable", written, size, "Penstock, one transfer")
    read = in_turns(
        screen,
        "GPT-2 from the disk",
        {
            "Penstock, one transfer": lambda: sides.read_penstock_many(raw, list(into.values())),
            "torch.load": lambda: sides.load_torch(saved),
        },
        budget_s / 2,
    )
    table(screen, "from the disk, cold", read, size, "Penstock, one transfer")
    screen.doing("comparing every bit")
    wrong = [name for name in model if not sides.equal_bits(model[name], into[name])]
    if wrong:
        raise SystemExit(f"demo: these tensors came back changed: {', '.join(wrong[:5])} ...: do not trust this disk")
    screen.say(f"    All {len(model)} tensors came back bit for bit.")
    return {"tensors": len(model), "parameters": parameters, "written": written, "read": read}


def doctor(screen, folder):
    """Part 4: what is not as good as it could be."""
    screen.say()
    screen.say("4. What is in the way of speed here (penstock doctor)")
    command = [sys.executable, "-m", "penstock", "doctor", str(folder), "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"demo: penstock doctor ended with {done.returncode}: {done.stderr.strip()}")
    findings = json.loads(done.stdout)["findings"]
    for finding in findings:
        if finding["verdict"] != "ok":
            word = "PROBLEM" if finding["verdict"] == "problem" else "better"
            screen.say(f"    {word:8}{finding['topic']}: {finding['what']}")
            if finding["cure"]:
                screen.say(f"    {'':8}mend it: {finding['cure']}")
    fine = [f["topic"] for f in findings if f["verdict"] == "ok"]
    screen.say(f"    ok      {', '.join(fine)}")


def ratio_words(ours, others):
    interval = ratio_interval([other / our for our, other in zip(ours, others)])
    if len(ours) == 1:
        return f"{interval.mean:.2f}x (one round)"
    return f"{interval.mean:.2f}x (95 % {interval.low:.2f} to {interval.high:.2f})"


def summary(screen, large, random, model):
    screen.say()
    screen.say("In short")
    names = {"written": "writing", "read": "reading"}
    for key, word in names.items():
        ours = large[key]["Penstock"]
        speed = large["size"] / middle(ours) / 1e9
        line = f"  {word:8} {speed:.2f} GB/s"
        if large["fio"]:
            line += f", {ratio_words(ours, large[key][large['fio']])} of fio's speed"
        torch_name = "torch.save, then fsync" if key == "written" else "torch.load"
        line += f", {ratio_words(ours, large[key][torch_name])} of {torch_name.split(',')[0]}'s"
        screen.say(line)
    iops = middle([s["operations_per_s"] for s in random["samples"] if s["side"] == "penstock"])
    line = f"  4 KiB    {iops:.0f} random reads a second"
    if "ratio" in random:
        low, high = random["ratio"]["ci95"]
        line += f", {random['ratio']['mean']:.2f}x (95 % {low:.2f} to {high:.2f}) of fio's"
    screen.say(line)
    times = {key: middle(model[key]["Penstock, one transfer"]) for key in names}
    screen.say(
        f"  GPT-2    {model['parameters'] / 1e6:.1f} M parameters to the disk in {times['written']:.2f} s, "
        f"back in {times['read']:.2f} s, bit for bit"
    )
    screen.say()
    screen.say(
        "  How to read this: Penstock and fio pass the page cache by (where the file system lets them) and write"
    )
    screen.say(
        "  plain bytes; torch.save writes a zip file of its own through the page cache, torch.load makes new tensors."
    )
    screen.say("  All writes end durable, all reads start cold. Other load on this machine or disk moves every figure.")
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > 1.5 * cpus:
        screen.say(
            f"  This machine was busy with other things (load {load:.0f} on {cpus} processors): "
            "run it again when it is not."
        )
    screen.say(f"  It took {time.monotonic() - screen.start:.0f} s. More: .venv/bin/python -m penstock bench --help")


def check_space(parent):
    parent.mkdir(parents=True, exist_ok=True)
    usage = shutil.disk_usage(parent)
    needed = 2 * GIB + SPACE_LEFT
    if usage.free < needed:
        raise SystemExit(
            f"demo: {parent} has {usage.free / GIB:.1f} GiB free, and {needed / GIB:.1f} GiB are needed for a while "
            "(all of it is given back). Free some, or name a folder on another disk: tools/demo.py --dir FOLDER"
        )


signals = []  # that came


def on_signal(number, frame):
    signals.append(number)
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=ROOT / "build" / "demo", help="a folder on the disk to be shown")
    parser.add_argument("--seconds", type=float, default=100, help="about how long to measure (default 100)")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    screen = Screen()
    try:
        check_space(args.dir)
        screen.say(f"Penstock {sides.penstock.__version__} on {sides.machine()}")
        screen.say(f"files in {os.path.relpath(args.dir)} while this runs; about {args.seconds + 20:.0f} s\n")
        with folder_of_our_own(args.dir) as folder:
            large = sequential(screen, folder, 0.45 * args.seconds)
            random = random_reads(screen, folder)
            model = gpt2(screen, folder, 0.3 * args.seconds)
            doctor(screen, folder)
        summary(screen, large, random, model)
        return 0
    except (KeyboardInterrupt, Exception) as error:
        if signals:  # whatever it has become on its way up (torch.save makes an error of its own of it)
            screen.say("demo: ended early; its files are removed")
            return 128 + signals[0]
        if not isinstance(error, OSError):
            raise
        screen.say(f"demo: {error}\nIts files are removed.")
        return 1


if __name__ == "__main__":
    sys.exit(main())
