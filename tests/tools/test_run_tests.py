# SPDX-License-Identifier: Apache-2.0
"""The runner counts exactly, fails what is over budget or dies, and leaves no child behind when it is stopped."""

import collections
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import run_tests
import test_counts
import test_parts
from sources import ROOT, files
from test_parts import Part, Step

TOOLS = Path(run_tests.__file__).parent

GTEST_XML = """<?xml version="1.0"?><testsuites><testsuite name="A">
<testcase name="good" status="run" result="completed" classname="A"/>
<testcase name="off" status="notrun" result="suppressed" classname="A"/>
<testcase name="bad" status="run" result="completed" classname="A"><failure message="m">1 is not 2</failure></testcase>
<testcase name="away" status="run" result="skipped" classname="A">
<skipped message="a_test.cpp:7&#x0A;needs root&#x0A;"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture(autouse=True)
def logs_here(tmp_path, monkeypatch):
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)


def run(*steps, budget_s=1000):
    runner = run_tests.Runner(budget_scale=1.0)
    runner.run_part(Part("part", budget_s, list(steps)))
    return runner.total


def shell(text, **more):
    return Step("step", ["bash", "-c", text], **more)


def test_googletest_is_counted_from_its_xml(tmp_path):
    xml = tmp_path / "x.xml"
    xml.write_text(GTEST_XML)
    counts = test_counts.count_gtest(xml, tmp_path / "x.log", "a_test")
    assert str(counts) == "1 passed, 1 failed, 1 skipped"
    assert counts.skipped == [("a_test: A.away", "needs root")]
    assert "1 is not 2" in counts.failed[0].text


def test_a_program_that_dies_fails_the_test_it_was_in(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("[ RUN      ] A.good\n[       OK ] A.good (0 ms)\n[ RUN      ] A.deadly\nSegmentation fault\n")
    counts = test_counts.count_gtest(tmp_path / "none.xml", log, "a_test")
    assert (counts.passed, [failure.name for failure in counts.failed]) == (1, ["a_test: A.deadly"])


def test_a_pytest_that_dies_fails_the_test_it_was_in(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("t/test_a.py::test_b PASSED  [ 3%]\nt/test_a.py::TestC::test_d[a b] Fatal Python error: Aborted\n")
    counts = test_counts.count_junit(tmp_path / "none.xml", log, "pytest")
    names = [failure.name for failure in counts.failed]
    assert (counts.passed, names) == (1, ["pytest: t/test_a.py::TestC::test_d[a b]"])


def test_pytest_is_counted_from_its_xml(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\n"
        "@pytest.mark.skip(reason='no gpu')\ndef test_c(): pass\n"
    )
    step = Step("step", test_parts.pytest(str(tmp_path / "test_it.py")), count="junit")
    total = run(step)
    assert str(total) == "1 passed, 1 failed, 1 skipped"
    assert total.skipped[0][1] == "no gpu"


def test_the_files_of_a_folder_are_shared_out_once_each(tmp_path, monkeypatch):
    monkeypatch.setattr(test_parts, "ROOT", tmp_path)
    for i in range(5):
        (tmp_path / f"test_{i}.py").write_text("def test_it(): pass\n" + "# more\n" * i)
    step = test_parts.pytest_shares(".", shares=2)
    assert str(run(step)) == "5 passed, 0 failed, 0 skipped"
    shares = [{Path(word).name for word in argv if str(word).endswith(".py")} for _, argv in step.argv()]
    assert [len(share) for share in shares] == [3, 2]
    assert shares[0].isdisjoint(shares[1])


def test_more_minutes_than_promised_are_a_warning():
    assert run_tests.minutes_line("test", 719) == "12.0 minutes, set-up included"
    assert run_tests.minutes_line("test", 721).startswith("warning: 12.0 minutes")
    assert run_tests.minutes_line("ci", 3000) == "50.0 minutes, set-up included"


def test_a_command_is_one_test_and_77_is_a_skip():
    assert str(run(shell("exit 0"))) == "1 passed, 0 failed, 0 skipped"
    assert str(run(shell("exit 3"))) == "0 passed, 1 failed, 0 skipped"
    total = run(shell("echo no root; exit 77"))
    assert total.skipped == [("part.step", "no root")]


def test_a_pytest_that_collects_nothing_fails(tmp_path):
    (tmp_path / "test_none.py").write_text("")
    step = Step("step", test_parts.pytest(str(tmp_path / "test_none.py")), count="junit")
    assert len(run(step).failed) == 1


def test_a_failed_gate_ends_its_part(tmp_path):
    run(shell("exit 1", gate=True), shell(f"touch {tmp_path}/ran"))
    assert not (tmp_path / "ran").exists()


def test_a_part_over_its_budget_is_named_and_fails_nothing(capsys):
    runner = run_tests.Runner(budget_scale=1.0)
    runner.run_part(Part("part", 0.1, [shell("sleep 0.3")]))
    assert str(runner.total) == "1 passed, 0 failed, 0 skipped"
    run_tests.report(runner.total, "1.0 minutes", runner.late)
    late, minutes, counts = capsys.readouterr().out.splitlines()[-3:]
    assert late.startswith("over budget: part took ") and (minutes, counts) == ("1.0 minutes", str(runner.total))


def test_what_a_step_leaves_running_is_stopped(tmp_path):
    run(shell(f"sleep 1000 & echo $! > {tmp_path}/pid"))
    assert gone(int((tmp_path / "pid").read_text()))


def gone(pid):
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_the_runner_lets_its_children_clean_up(tmp_path, number):
    program = tmp_path / "runner.py"
    program.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(TOOLS)!r})\n"
        "import pathlib, run_tests\n"
        "from test_parts import Part, Step\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "run_tests.LOGS = here\n"
        "work = f\"trap 'touch {here}/cleaned; exit' TERM; sleep 1000 & echo $! > {here}/pid; wait\"\n"
        "run_tests.parts = lambda level: [Part('p', 100, [Step('s', ['bash', '-c', work])])]\n"
        "sys.argv = ['run_tests']\n"
        "run_tests.main()\n"
    )
    child = subprocess.Popen([sys.executable, program], stdout=subprocess.DEVNULL)
    for _ in range(200):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip():
            break
        time.sleep(0.05)
    os.kill(child.pid, number)
    assert child.wait(timeout=20) == 128 + number
    assert (tmp_path / "cleaned").exists()
    assert gone(int((tmp_path / "pid").read_text()))


def test_every_part_is_named_once_and_has_a_budget():
    names = [part.name for part in test_parts.parts()]
    assert len(names) == len(set(names))
    # Budgets leave room for a shared machine.
    assert sum(part.budget_s for part in test_parts.parts("test")) <= 45 * 60
    assert sum(part.budget_s for part in test_parts.parts("ci")) <= 85 * 60


def test_a_level_runs_what_the_levels_before_it_run():
    every = {part.name: part for part in test_parts.parts()}
    levels = [[part.name for part in test_parts.parts(level)] for level in test_parts.LEVELS]
    for before, after, level in zip(levels, levels[1:], test_parts.LEVELS):
        still = [name for name in before if every[name].until != level]
        assert after[: len(still)] == still
        assert len(after) > len(still)
    # The hostile tests of a level have those of the level before it in them.
    assert [[name for name in level if "hostile" in name] for level in levels] == [
        [], ["hostile"], ["hostile-long"],
    ]  # fmt: skip


def test_all_python_tests_can_run_in_one_call_of_pytest():
    """It imports modules by their names alone."""
    tests = [
        path for path in files() if path.name.startswith("test_") and path.suffix == ".py" and "tests" in path.parts
    ]
    assert len(tests) > 50
    twice = {name: n for name, n in collections.Counter(path.name for path in tests).items() if n > 1}
    assert not twice, "give each file of tests a name of its own"
    folders = {path.parent for path in tests}
    for path in (path for path in files() if path.suffix == ".py" and path.parent in folders):
        text = (ROOT / path).read_text()
        assert "\nfrom conftest " not in text and "\nimport conftest" not in text, f"{path}: which conftest is meant?"


def test_ci_says_what_failed_before_it_is_stopped_from_outside(tmp_path):
    text = (ROOT / ".ci" / "run").read_text()
    assert "--within 5100 " in text and "timeout --kill-after=30 2400 " in text  # of the 5,400 s that it has
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text(text)
    done = subprocess.run(["bash", tmp_path / ".ci" / "run"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
