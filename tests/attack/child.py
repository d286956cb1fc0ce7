# SPDX-License-Identifier: Apache-2.0
"""The process of one attack: `python -m tests.attack.child SPEC`, which runner.py starts. Not for use by hand."""

import contextlib
import faulthandler
import importlib
import json
import mmap
import os
import shutil
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

from tests.attack.crowd import die_with_parent
from tests.attack.run import PROGRESS, Run, Wrong

TRIAL_S = 20  # for which a round may run again, at least, when the fewest steps are looked for


def verdict_of(attack, run, number):
    """(verdict, text) of a round."""
    try:
        run.begin(number)
        attack(run)
    except Wrong as error:
        return "wrong", str(error)
    except Exception as error:
        return "error", "".join(traceback.format_exception(error)).strip()
    return "passed", ""


def rounds(attack, spec, progress):
    """Rounds until the time is over, or the one that is asked for; at least one."""
    replayed = spec["round"] is not None
    run = Run(spec["seed"], spec["folder"], None if replayed else spec["seconds"], spec["steps"], progress)
    number = spec["round"] if replayed else 0
    while True:
        began = time.monotonic()
        verdict, text = verdict_of(attack, run, number)
        if verdict != "passed" or replayed or run.over():
            break
        number += 1
        emptied(spec["folder"])
    return {
        "verdict": verdict,
        "text": text,
        "round": run.round,
        "round_s": time.monotonic() - began,
        "step": run.step,
        "rounds": number + 1,
        "counts": dict(run.counts),
        "log": list(run.log) if verdict != "passed" else [],
    }


def emptied(folder):
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


# ---- the fewest steps


def trial(attack, spec, steps):
    """The verdict of the round with these steps alone, in a process of its own."""
    folder = Path(spec["folder"]) / "trial"
    folder.mkdir()
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        verdict, _ = verdict_of(attack, Run(spec["seed"], str(folder), None, steps), spec["round"])
        os._exit({"passed": 0, "wrong": 3, "error": 4}[verdict])
    end = time.monotonic() + max(TRIAL_S, 3 * spec["round_s"])
    status = None
    while status is None and time.monotonic() < end:
        done, raw = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(raw) if done else time.sleep(0.002)
    if status is None:
        os.kill(pid, signal.SIGKILL)  # what it has forked goes with this process
        os.waitpid(pid, 0)
    shutil.rmtree(folder, ignore_errors=True)
    return "hang" if status is None else {0: "passed", 3: "wrong", 4: "error"}.get(status, "crash")


def fewest(attack, spec):
    """Steps of the round that fail in the same way: halves, quarters and so on are left out as long as it does."""
    steps = list(range(spec["last"] + 1))
    if not any(trial(attack, spec, steps) == spec["verdict"] for _ in range(2)):
        return {"again": False}
    end = time.monotonic() + spec["seconds"]
    size = (len(steps) + 1) // 2
    while size and len(steps) > 1 and time.monotonic() < end:
        kept = list(steps)
        for begin in range(0, len(steps), size):
            without = [step for step in kept if step not in steps[begin : begin + size]]
            if without != kept and time.monotonic() < end and trial(attack, spec, without) == spec["verdict"]:
                kept = without
        if kept == steps:
            size = size // 2 if size > 1 else 0
        steps = kept
        size = min(size, (len(steps) + 1) // 2)
    return {"again": True, "steps": steps}


def main():
    spec = json.loads(sys.argv[1])
    die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    warnings.simplefilter("ignore")
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(1)
    attack = importlib.import_module(f"tests.attack.{spec['name']}").attack
    if spec["do"] == "shrink":
        result = fewest(attack, spec)
    else:
        with open(spec["progress"], "r+b") as file, mmap.mmap(file.fileno(), PROGRESS.size) as progress:
            result = rounds(attack, spec, progress)
    made = Path(spec["result"] + ".tmp")
    made.write_text(json.dumps(result))
    made.rename(spec["result"])


if __name__ == "__main__":
    main()
