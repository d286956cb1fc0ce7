# SPDX-License-Identifier: Apache-2.0
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL

import penstock
import pytest

# A shorter run of examples that take a minute.
ARGUMENTS = {"train_and_kill": ["--kills", "3", "--steps", "60"], "resumable_training": ["--steps", "30"]}
FOLDER = Path(__file__).parents[2] / "examples" / "python"
EXAMPLES = sorted({*FOLDER.glob("*.py")} - {FOLDER / "train_ranks.py"})


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda p: p.stem)
def test_example(program, tmp_path):
    words = [sys.executable, program, *ARGUMENTS.get(program.stem, [])]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout


def start_ranks(count, folder, steps):
    pytest.importorskip("torch.distributed.fsdp")
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    words += [FOLDER / "train_ranks.py", folder, f"--steps={steps}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_ranks_of_which_one_is_killed_go_on_with_fewer(tmp_path):
    losses = {}

    def read(line):
        if found := re.search(r"step (\d+): loss (\S+)", line):
            step = int(found[1])
            assert losses.setdefault(step, found[2]) == found[2], "a step that is done again has another loss"
            return step
        return 0

    with start_ranks(3, tmp_path / "c", 10_000) as first:
        for line in first.stdout:
            if read(line) > 20 and penstock.CheckpointStore(tmp_path / "c").latest():
                os.kill(int(Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()[-1]), SIGKILL)
                break
        for line in first.stdout:
            read(line)
    assert first.returncode != 0 and max(losses) < 1000
    newest = penstock.CheckpointStore(tmp_path / "c").latest()
    assert newest.step % 5 == 0
    with start_ranks(2, tmp_path / "c", newest.step + 13) as second:
        lines = list(second.stdout)
    assert second.returncode == 0, "".join(lines)
    assert f"rank 1 of 2 goes on at step {newest.step}\n" in lines
    assert [step for step in map(read, lines) if step] == list(range(newest.step + 1, newest.step + 14))
    assert "-step-" in lines[-1]


def test_a_kill_changes_no_loss_and_the_comparison_sees_one_bit(tmp_path, monkeypatch):
    """train_and_kill.py passes above; here its comparison is given a loss that is one bit off."""
    monkeypatch.syspath_prepend(str(EXAMPLES[0].parent))
    import train_and_kill

    log = tmp_path / "losses.jsonl"
    right = 1.5
    log.write_text(f'\n{{"from": 0}}\n{{"step": 1, "loss": "{right.hex()}"}}\n{{"step": 2, "lo\n\n{{"from": 0}}\n')
    losses, runs = train_and_kill.read_log(log)
    assert losses == {1: right} and runs == [(0, [(1, right)]), (0, [])]
    assert train_and_kill.compare({1: right}, runs) == []
    off = math.nextafter(right, 2)
    assert train_and_kill.compare({1: off}, runs) == [(1, right, off)]


# A training that has all steps done at once, and then sleeps: a kill comes after the last step.
ALL_AT_ONCE = """
import json, sys, time
log, steps = sys.argv[1], int(sys.argv[2])
done = sum(1 for line in open(log)) > 1 if __import__("os").path.exists(log) else False
with open(log, "a") as file:
    file.write(json.dumps({"from": steps if done else 0}) + "\\n")
    for step in range(1, steps + 1) if not done else ():
        file.write(json.dumps({"step": step, "loss": (1.5).hex()}) + "\\n")
time.sleep(0 if done else 60)
"""


def test_a_kill_after_the_last_step_does_not_count(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES[0].parent))
    import train_and_kill

    def command(folder, name, arguments):
        log = folder / f"{name}.jsonl"
        return [sys.executable, "-c", ALL_AT_ONCE if name == "killed" else ALL_AT_ONCE.replace("60", "0"),
                str(log), str(arguments.steps)]  # fmt: skip

    monkeypatch.setattr(train_and_kill, "command", command)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train_and_kill.py", "--kills", "1", "--steps", "4", "--keep", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        train_and_kill.main()
    assert caught.value.code == "only 0 of 1 kills left a step to do again; give more --steps"
    assert "does not count" in capsys.readouterr().out
