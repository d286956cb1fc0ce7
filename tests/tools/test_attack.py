# SPDX-License-Identifier: Apache-2.0
"""The machinery of tests/attack: rounds repeat, a failure shrinks to its steps, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
from tests.attack import child, planted  # noqa: E402
from tests.attack.__main__ import seconds_each, write_xml  # noqa: E402
from tests.attack.catalogue import ATTACKS  # noqa: E402
from tests.attack.crowd import Process, in_threads  # noqa: E402
from tests.attack.run import Run, Wrong  # noqa: E402
from tests.attack.runner import Result  # noqa: E402


def attack_program(*words, **kw):
    return subprocess.run(
        [sys.executable, "-m", "tests.attack", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, **kw
    )


def drawn(seed, number, only=None):
    run = Run(seed, None, only=only)
    run.begin(number)
    return [run.random.random()] + [(step, run.random.random()) for step in run.steps(5)]


def test_a_round_repeats_and_a_step_draws_the_same_alone():
    assert drawn(1, 2) == drawn(1, 2)
    assert drawn(1, 2) != drawn(1, 3) != drawn(2, 3)
    assert drawn(1, 2, only=[1, 3])[1:] == [drawn(1, 2)[2], drawn(1, 2)[4]]


def fails_on(*wanted):
    def attack(run):
        done = [step for step in run.steps(30)]
        if set(wanted) <= set(done):
            raise Wrong("both")

    return attack


@pytest.mark.parametrize("wanted", [(7,), (3, 17), (0, 11, 29)])
def test_the_fewest_steps_are_found(tmp_path, wanted):
    spec = {"seed": 1, "folder": str(tmp_path), "round": 0, "last": 29, "seconds": 60, "round_s": 1, "verdict": "wrong"}
    assert child.fewest(fails_on(*wanted), spec) == {"again": True, "steps": list(wanted)}
    assert child.fewest(lambda run: None, spec) == {"again": False}
    assert not list(tmp_path.iterdir())


def test_a_crash_is_a_verdict_of_its_own(tmp_path):
    def attack(run):
        for step in run.steps(10):
            if step == 4:
                os.kill(os.getpid(), signal.SIGSEGV)

    spec = {"seed": 1, "folder": str(tmp_path), "round": 0, "last": 9, "seconds": 60, "round_s": 1, "verdict": "crash"}
    assert child.fewest(attack, spec)["steps"] == [4]


def test_errors_of_threads_and_processes_are_raised():
    def broken():
        raise Wrong("broken")

    with pytest.raises(Wrong, match="broken"):
        in_threads([lambda: None, broken])
    with pytest.raises(Wrong, match="broken"):
        Process(broken).end()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        Process(lambda: 1 // 0).end()
    with pytest.raises(Wrong, match="has not ended"):
        Process(lambda: time.sleep(60)).end(0.2)
    assert Process(lambda: 0).end() == "0"


def test_each_attack_is_listed_and_has_a_module_with_a_reason():
    listed = attack_program("--list").stdout
    for name in ATTACKS:
        text = (ROOT / "tests" / "attack" / f"{name}.py").read_text()
        assert "def attack(run):" in text and text.count('"""', 0, 200), name
        assert name in listed
    assert all(defect.attack in ATTACKS for defect in planted.DEFECTS.values())


@pytest.mark.parametrize(
    "words, said",
    [
        (["nothing"], "no attack 'nothing'; --list names them: load_memory, engine"),
        ([], "give an attack, or --ci"),
        (["engine", "--steps", "1"], "give --round too"),
        (["engine", "--round", "1"], "--round needs one NAME and its --seed"),
    ],
)
def test_a_wrong_command_line_is_taught(words, said):
    ended = attack_program(*words)
    assert ended.returncode == 2 and said in ended.stderr


def test_results_are_written_as_pytest_does(tmp_path):
    results = [Result("engine", 1, "passed"), Result("zoo", 1, "skipped", "needs transformers")]
    results.append(Result("rows", 1, "wrong", "bytes \x00"))
    write_xml(tmp_path / "r.xml", results)
    cases = {case.get("name"): case for case in ElementTree.parse(tmp_path / "r.xml").getroot().iter("testcase")}
    assert cases["engine"].get("classname") == "attack" and len(cases["engine"]) == 0
    assert cases["zoo"].find("skipped").get("message") == "needs transformers"
    assert cases["rows"].find("failure").text == "bytes ?"


def test_the_time_of_all_is_shared_among_them():
    assert seconds_each(90, ATTACKS, 2) * len(ATTACKS) / 2 <= 90


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_children_and_removes_the_folder(tmp_path, number):
    """The children hang in `import numpy`, which is a module of the test."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "numpy.py").write_text("import time\ntime.sleep(60)\n")
    work = tmp_path / "work"
    work.mkdir()
    words = [sys.executable, "-m", "tests.attack", "threads", "engine", "--folder", str(work), "--seconds", "30"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "modules")}
    program = subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 30
    while len(list(work.glob("*/*/output"))) < min(2, len(os.sched_getaffinity(0))) and time.monotonic() < end:
        time.sleep(0.02)
    children = children_of(program.pid)
    assert children
    program.send_signal(number)
    _, said = program.communicate(timeout=30)
    assert program.returncode == 1 and f"stopped by {signal.Signals(number).name}" in said
    assert not list(work.iterdir())
    assert not [pid for pid in children if alive(pid)]


def children_of(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def alive(pid):
    try:
        return "tests.attack.child" in Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return False


def test_a_child_says_what_came_of_it(tmp_path):
    """A failure of the interpreter itself is a verdict, too: there is no such attack."""
    (tmp_path / "progress").write_bytes(bytes(24))
    spec = {"do": "attack", "name": "none", "seed": 1, "seconds": 1, "round": None, "steps": None}
    spec |= {key: str(tmp_path / key) for key in ("progress", "result", "folder")}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.attack.child", json.dumps(spec)], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 1 and "No module named 'tests.attack.none'" in ended.stderr
