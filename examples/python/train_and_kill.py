# SPDX-License-Identifier: Apache-2.0
"""Kills a training ten times and shows that nothing came of it.

    python train_and_kill.py                          # a minute or two; draws loss.html
    python train_and_kill.py --kills 3 --steps 60     # shorter

Runs resumable_training.py once undisturbed. Then runs it again and kills it (SIGKILL: nothing gets to tidy up) at
random moments, and starts it again each time, until it is through. Every loss that any of these runs has written must
be, to the last bit, the one of the undisturbed run, and each kill must have left a step to do again: else this ends
with status 1.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = Path(__file__).with_name("resumable_training.py")


def command(folder, name, arguments):
    words = {"folder": folder / f"{name}-checkpoints", "losses": folder / f"{name}.jsonl", "steps": arguments.steps}
    words |= {"every": arguments.every, "seed": arguments.seed}
    return [sys.executable, str(PROGRAM), *(f"--{key}={value}" for key, value in words.items())]


def read_log(path):
    """({step: loss}, of each run (step that it began from, [(step, loss), ...])); a cut line is left out."""
    runs = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "from" in entry:
            runs.append((entry["from"], []))
        else:
            runs[-1][1].append((entry["step"], float.fromhex(entry["loss"])))
    return {step: loss for _, losses in runs for step, loss in losses}, runs


def begun_from(path, number):
    """The step that run `number` began from; None before it has begun."""
    _, runs = read_log(path)
    return runs[number - 1][0] if len(runs) >= number else None


def last_step(path):
    return max(read_log(path)[0], default=0)


def run_undisturbed(folder, arguments):
    print(f"an undisturbed run of {arguments.steps} steps", flush=True)
    start = time.monotonic()
    subprocess.run(command(folder, "undisturbed", arguments), check=True)
    losses, _ = read_log(folder / "undisturbed.jsonl")
    print(f"  {time.monotonic() - start:.1f} s, loss {losses[1]:.4f} -> {losses[arguments.steps]:.4f}", flush=True)
    return losses


def wait_for(process, wanted):
    """Until it has happened, or the process is over."""
    while process.poll() is None and not wanted():
        time.sleep(0.005)


def run_killed(folder, arguments):
    """Starts it again and again; kills each run but the last when it has done its share, at a moment drawn by lot. A
    kill counts when the run after it had a step to do again: one after the last step, or at a checkpoint, shows
    nothing. The steps that the kills came after."""
    lot = random.Random(arguments.seed if arguments.same_moments else None)
    log = folder / "killed.jsonl"
    kills, killed_after = [], None
    for number in range(1, 4 * arguments.kills + 8):
        process = subprocess.Popen(command(folder, "killed", arguments))
        wait_for(process, lambda number=number: begun_from(log, number) is not None)
        begin = begun_from(log, number) or 0
        if killed_after is not None and begin < killed_after:
            kills.append(killed_after)
            print(f"  kill {len(kills)}: -9 after step {killed_after}, goes on from step {begin}", flush=True)
        elif killed_after is not None:
            print(f"  a kill after step {killed_after} left nothing to do again, and does not count", flush=True)
        if len(kills) < arguments.kills:
            share = max(arguments.steps * (len(kills) + 1) // (arguments.kills + 1), begin + 1)
            start = time.monotonic()
            wait_for(process, lambda share=share: last_step(log) >= share)
            step_s = (time.monotonic() - start) / max(1, last_step(log) - begin)
            time.sleep(lot.random() * min(0.3, 2 * step_s))  # somewhere in the next steps, or in a save
            process.kill()
        status = process.wait()
        if status == 0:
            return kills
        if status != -9:
            sys.exit(f"the training ended with status {status}, which is no kill")
        killed_after = last_step(log)
    sys.exit("the training does not get on between the kills; give it more --steps")


def compare(expected, runs):
    """The steps whose loss is another than in the undisturbed run, in any run that computed them."""
    return [(step, loss, expected[step]) for _, losses in runs for step, loss in losses if loss != expected[step]]


def draw(path, expected, runs, kills):
    try:
        import plotly.graph_objects as plotly
    except ImportError:
        print(f"no {path}: it is drawn by plotly (pip install 'penstock[report]')")
        return
    figure = plotly.Figure()
    figure.add_scatter(
        x=list(expected), y=list(expected.values()), name="undisturbed", line={"width": 7, "color": "#c9d6e8"}
    )
    for index, (begin, losses) in enumerate(runs):
        steps, values = zip(*losses) if losses else ((), ())
        figure.add_scatter(
            x=steps, y=values, mode="lines", name="killed and resumed", legendgroup="killed", showlegend=index == 0,
            line={"width": 1.5, "color": "#1f4e9c"}, hovertemplate=f"run {index + 1}, from step {begin}: %{{y:.6f}}",
        )  # fmt: skip
    for number, step in enumerate(kills, 1):
        figure.add_vline(x=step, line={"width": 1, "dash": "dot", "color": "#c0392b"}, annotation_text=f"kill {number}")
    title = f"{len(kills)} kills, {sum(len(losses) for _, losses in runs)} losses, each the same number"
    figure.update_layout(title=title, xaxis_title="step", yaxis_title="loss (nats a byte)", template="plotly_white")
    figure.write_html(path, include_plotlyjs=True)
    print(f"drawn: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="default: 10")
    parser.add_argument("--steps", type=int, default=200, help="of the training (default: 200)")
    parser.add_argument("--every", type=int, default=5, help="steps from one checkpoint to the next (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="of the training (default: 1)")
    parser.add_argument("--same-moments", action="store_true", help="draw the moments of the kills by the seed too")
    parser.add_argument("--plot", type=Path, default=Path("loss.html"), help="default: loss.html")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave checkpoints and logs in this folder")
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="train-and-kill-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        expected = run_undisturbed(folder, arguments)
        print(f"the same again, with {arguments.kills} kills", flush=True)
        kills = run_killed(folder, arguments)
        _, runs = read_log(folder / "killed.jsonl")
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    wrong = compare(expected, runs)
    losses = sum(len(losses) for _, losses in runs)
    last = max(step for _, losses in runs for step, _ in losses)
    print(f"runs began from steps {', '.join(str(begin) for begin, _ in runs)}")
    draw(arguments.plot, expected, runs, kills)
    for step, loss, right in wrong[:5]:
        print(f"step {step}: loss {loss!r}, undisturbed {right!r}")
    if wrong or last != arguments.steps:
        sys.exit(f"{len(wrong)} of {losses} losses differ; the last step is {last}")
    if len(kills) < arguments.kills:
        sys.exit(f"only {len(kills)} of {arguments.kills} kills left a step to do again; give more --steps")
    print(f"{losses} losses of {len(runs)} runs: every one is, to the last bit, that of the undisturbed run")


if __name__ == "__main__":
    main()
