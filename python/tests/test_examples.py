# SPDX-License-Identifier: Apache-2.0
import math
import subprocess
import sys
from pathlib import Path

import pytest

# A shorter run of examples that take a minute.
ARGUMENTS = {"train_and_kill": ["--kills", "3", "--steps", "60"], "resumable_training": ["--steps", "30"]}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "python").glob("*.py"))


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda p: p.stem)
def test_example(program, tmp_path):
    words = [sys.executable, program, *ARGUMENTS.get(program.stem, [])]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout


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
