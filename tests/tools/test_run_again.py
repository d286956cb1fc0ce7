# SPDX-License-Identifier: Apache-2.0
"""What the runner does with a test that fails: again alone, unless the failure is a finding; and with what hangs."""

import re
import subprocess
import textwrap
import time

import pytest
import run_tests
import test_again
import test_parts
from test_parts import Part, Step

UNEQUAL = "Expected equality of these values:"
# A program that takes GoogleTest's options. TESTS says what each of its tests does, by the number of its run.
PROGRAM = """
import os, re, signal, sys, time
from pathlib import Path
TESTS = {tests!r}
HERE = Path({here!r})
options = dict(a[2:].split("=", 1) if "=" in a else (a[2:], "") for a in sys.argv[1:])
wanted, _, unwanted = options.get("gtest_filter", "*").partition("-")
def matches(name, patterns):
    return any(re.fullmatch(re.escape(p).replace(r"\\*", ".*"), name) for p in patterns.split(":") if p)
chosen = [n for n in TESTS if matches(n, wanted or "*") and not matches(n, unwanted)]
if "gtest_list_tests" in options:
    print("".join(n.split(".")[0] + ".\\n  " + n.split(".")[1] + "\\n" for n in chosen))
    sys.exit(0)
(HERE / "runs").open("a").write(" ".join(chosen) + f" | {{len(os.listdir(HERE / 'busy'))}}\\n")
busy = HERE / "busy" / str(os.getpid())
busy.touch()
cases, bad, at_end = "", False, ""
for name in chosen:
    print("[ RUN      ] " + name, flush=True)
    ran = HERE / name.replace('/', '_')
    run = len(ran.read_text()) if ran.exists() else 0
    ran.write_text("x" * (run + 1))
    what = TESTS[name][min(run, len(TESTS[name]) - 1)]
    if what == "crash": os.kill(os.getpid(), signal.SIGSEGV)
    if what == "hang": time.sleep(1000)
    if what == "talk":
        while True: print("still here", flush=True); time.sleep(0.05)
    if what.startswith("end "): at_end = what[4:]
    if what.startswith("say "): print(what[4:], flush=True)
    suite, case = name.split(".")
    inside = ""
    if what.startswith("fail"):
        bad = True
        text = what[5:] or "Expected: (took) < (2), actual: 3 vs 2"
        inside = "<failure message='m'><![CDATA[" + text + "]]></failure>"
    cases += f"<testcase name='{{case}}' classname='{{suite}}' status='run'>{{inside}}</testcase>"
    print("[" + ("  FAILED  " if inside else "       OK ") + "] " + name, flush=True)
busy.unlink()
Path(options["gtest_output"][4:]).write_text("<testsuites><testsuite>" + cases + "</testsuite></testsuites>")
if at_end == "crash": os.kill(os.getpid(), signal.SIGSEGV)
if at_end == "hang": time.sleep(1000)
sys.exit(bad)
"""


@pytest.fixture(autouse=True)
def logs_here(tmp_path, monkeypatch):
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "busy").mkdir()
    monkeypatch.setattr(run_tests, "LOGS", logs)
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "GRACE_S", 1)


@pytest.fixture
def soon(monkeypatch):
    """A hang is known after some seconds: longer than Python takes to begin on a busy machine."""
    monkeypatch.setattr(run_tests, "HANG_S", 4.0)


@pytest.fixture
def program(tmp_path):
    """A step that runs a program with the tests {name: [what it does in each run]}."""

    def make(tests, name="a_test", **more):
        path = tmp_path / f"{name}.py"
        path.write_text(
            PROGRAM.format(tests={n: [w] if isinstance(w, str) else w for n, w in tests.items()}, here=str(tmp_path))
        )
        return Step("step", lambda: [(name, [test_parts.PYTHON, path])], count="gtest", **more)

    return make


def run(*steps, deadline=float("inf"), **part):
    runner = run_tests.Runner(1.0, deadline)
    runner.run_part(Part("part", 1000, list(steps), **part))
    runner.finish()
    return runner.total


def runs(tmp_path):
    return [line.split(" | ")[0] for line in (tmp_path / "runs").read_text().splitlines()]


def test_what_passes_alone_is_flaky_and_counts_as_passed(program, tmp_path, capsys):
    total = run(
        program({"A.good": "pass", "A.once": ["fail", "pass"], "A.twice": ["fail seed 17: late", "fail", "pass"]})
    )
    assert str(total) == "3 passed, 0 failed, 0 skipped"
    assert runs(tmp_path) == ["A.good A.once A.twice", "A.once", "A.twice", "A.twice"]
    run_tests.report(total, "1.0 minutes")
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == str(total)
    assert [line for line in told[-5:] if line.startswith("flaky: ")] == [
        "flaky: part.a_test: A.once: none named; the seeds of a program are fixed; passed at run 2, alone; "
        "logs/part.a_test.log",
        "flaky: part.a_test: A.twice: seed 17; passed at run 3, alone; logs/part.a_test.log",
    ]
    assert "2 flaky; more than 3 fail a run" in told[-5:]


def test_what_fails_three_times_has_failed(program, tmp_path):
    total = run(program({"A.good": "pass", "A.bad": "fail"}))
    assert str(total) == "1 passed, 1 failed, 0 skipped"
    assert runs(tmp_path) == ["A.good A.bad", "A.bad", "A.bad"]
    assert "it failed each time" in total.failed[0].text


def test_nothing_runs_beside_a_test_that_is_run_again(program, tmp_path):
    (tmp_path / "beside").mkdir()
    one = program({"A.once": ["fail", "pass"]}, name="one_test").argv()
    two = program({"B.long": ["say 1"] * 1, "B.once": ["fail", "pass"]}, name="two_test").argv()
    assert str(run(Step("step", lambda: one + two, count="gtest", parallel=2))) == "3 passed, 0 failed, 0 skipped"
    again = [
        line for line in (tmp_path / "runs").read_text().splitlines() if line.split(" | ")[0] in ("A.once", "B.once")
    ]
    assert again[-2:] == ["A.once | 0", "B.once | 0"]


def test_more_than_three_flaky_tests_fail_the_run(program):
    three = {f"A.t{i}": ["fail", "pass"] for i in range(3)}
    assert not run(program(three)).failed
    total = run(program({f"B.t{i}": ["fail", "pass"] for i in range(4)}))
    assert [failure.name for failure in total.failed] == ["run.flaky"]


def test_many_failures_are_not_all_run_again(program, tmp_path):
    total = run(program({f"A.t{i}": "fail" for i in range(20)}))
    assert len(total.failed) == 20
    assert len(runs(tmp_path)) == 1 + test_again.AGAIN_MAX * test_again.RERUNS_MAX


@pytest.mark.parametrize(
    "tests, told",
    [
        ({"A.late": ["fail", "pass"], "A.deadly": ["crash", "pass"]}, "a crash"),
        ({"A.late": ["fail", "pass"], "A.stuck": ["hang", "pass"]}, "a hang"),
        ({"A.late": ["fail", "pass"], "A.ends": ["end crash", "pass"]}, "a crash"),
        ({"A.late": ["fail", "pass"], "A.ends": ["end hang", "pass"]}, "a hang"),
        ({"A.late": ["fail", "pass"], "A.race": ["say WARNING: ThreadSanitizer: x", "pass"]}, "a sanitizer's report"),
        ({"A.x": ["fail Expected: (fds) <= (before), actual: 9 vs 8\n3 descriptors leaked", "pass"]}, "a leak"),
        ({"A.x": ["fail a child ended with exit status -11", "pass"]}, "a crash"),
        ({"SimulationOfAll.x": ["fail", "pass"]}, "a test that searches for rare failures"),
        ({"A.x": [f"fail {UNEQUAL}\n  x\n    Which is: {{ 1 }}\n  y\n    Which is: {{ 2 }}", "pass"]}, "wrong bytes"),
        ({"A.x": ["fail Value of: back == whole\n  Actual: false\nExpected: true", "pass"]}, "wrong bytes"),
    ],
)  # fmt: skip
def test_a_finding_is_not_run_again(program, tmp_path, soon, tests, told):
    total = run(program(tests))
    assert len(runs(tmp_path)) == 1
    assert total.failed and not total.flaky
    assert any(told in failure.text for failure in total.failed) or told in ("a crash", "a hang")
    if "A.deadly" in tests or "A.stuck" in tests:
        assert total.failed[-1].name == f"a_test: {list(tests)[-1]}"


def test_a_skip_that_names_a_sanitizer_is_no_report(program):
    tests = {"A.skips": "say needs a clock that ThreadSanitizer has not", "A.late": ["fail", "pass"]}
    assert len(run(program(tests)).flaky) == 1


def test_a_finding_in_the_second_run_ends_it(program, tmp_path):
    total = run(program({"A.x": ["fail", "crash", "pass"]}))
    assert len(runs(tmp_path)) == 2
    assert len(total.failed) == 1 and "a crash" in total.failed[0].text


def test_parts_and_steps_that_search_run_nothing_again(program, tmp_path):
    assert len(run(program({"A.x": ["fail", "pass"]}), again=False).failed) == 1
    assert len(run(program({"B.x": ["fail", "pass"]}, again=False)).failed) == 1
    assert runs(tmp_path) == ["A.x", "B.x"]
    never = {part.name for part in test_parts.parts() if not part.again}
    assert {"hostile", "hostile-long", "power-cut", "fuzz", "seeds", "properties"} <= never


def test_of_pytest_the_failed_case_alone_runs_again(tmp_path):
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""\
        import pathlib
        import pytest
        LOG = pathlib.Path(__file__).with_name("ran")

        def ran(name):
            before = LOG.read_text().split() if LOG.exists() else []
            LOG.write_text(" ".join([*before, name]))
            return before.count(name)

        class TestThem:
            @pytest.mark.parametrize("n", [1, 2])
            def test_late(self, n):
                assert ran(f"late{n}") >= n - 1

        def test_wrong():
            found = b"ab" if ran("wrong") else b"aa"
            assert found == b"ab"

        def test_good():
            ran("good")
        """)
    )
    total = run(Step("step", test_parts.pytest(str(tmp_path / "test_it.py")), count="junit"))
    assert str(total) == "3 passed, 1 failed, 0 skipped"
    assert (tmp_path / "ran").read_text() == "late1 late2 wrong good late2"
    assert [one.name for one in total.flaky] == ["part.step: test_it.TestThem.test_late[2]"]
    assert re.fullmatch(r"PYTHONHASHSEED \d+", total.flaky[0].seed)
    assert "wrong bytes" in total.failed[0].text


@pytest.mark.parametrize(
    "text, finding",
    [
        ("E   assert 12 == 13", False),
        (">       assert took < 2\nE   assert 2.3 < 2", False),
        (">       assert rows_seconds < 2 * data_seconds\nE   assert 2.3 < 2", False),
        (">       assert torch.equal(loaded['a'], weights)\nE   assert False", True),
        (">       assert path.read_bytes() == before\nE   AssertionError: assert b'a' == b'b'", True),
        ("    # a deadlock once; a leak, too\n>       assert took < 2\nE   assert 2.3 < 2", False),
        (">       out = child.communicate(timeout=60)\nE   subprocess.TimeoutExpired: ...", True),
        (">   given()\nE   Falsifying example: test(x=1)", True),
        ("Expected equality of these values:\n  calls\n    Which is: 3\n  2", False),
        ("Expected equality of these values:\n  out[3]\n    Which is: 3\n  2", True),
        ("Expected equality of these values:\n  text\n    Which is: \"ab\"\n  \"ac\"", True),
        (UNEQUAL + "\n  handle.status()\n    Which is: 4-byte object <02-00 00-00>\n  kDone\n", False),
        ("Expected: (bytes_now) <= (bytes_before), actual: 9 vs 8", False),
        ("Value of: std::ranges::equal(a, b)\n  Actual: false\nExpected: true", True),
        ("Value of: handle.done()\n  Actual: false\nExpected: true", False),
    ],
)  # fmt: skip
def test_wrong_bytes_are_known_by_what_is_compared(text, finding):
    assert bool(test_again.of_failure("a_test: A.x", text)) == finding


def test_a_hang_ends_and_fails_by_name(program, soon):
    total = run(program({"A.good": "pass", "A.stuck": "hang", "A.after": "pass"}))
    assert (total.passed, [failure.name for failure in total.failed]) == (1, ["a_test: A.stuck"])


def test_slow_is_no_hang(program, soon):
    tests = {f"A.t{i}": "pass" for i in range(5)}
    step = program(tests)
    path = step.argv()[0][1][1]
    path.write_text(path.read_text().replace("for name in chosen:", "for name in chosen:\n    time.sleep(1)"))
    assert str(run(step)) == "5 passed, 0 failed, 0 skipped"


def test_a_hang_of_pytest_fails_by_name(tmp_path, monkeypatch):
    (tmp_path / "test_it.py").write_text("import time\ndef test_a(): pass\ndef test_b(): time.sleep(1000)\n")
    monkeypatch.setattr(run_tests, "HANG_S", 10.0)
    total = run(Step("step", test_parts.pytest(str(tmp_path / "test_it.py")), count="junit"))
    assert (total.passed, [failure.name for failure in total.failed]) == (1, ["step: test_it.py::test_b"])


def test_a_program_that_prints_for_ever_ends_with_the_run(program):
    runner = run_tests.Runner(1.0, time.monotonic() + 4)
    runner.run_part(Part("one", 1000, [program({"A.noise": "talk"}), program({"B.x": "pass"}, name="b_test")]))
    runner.run_part(Part("two", 1000, [program({"C.x": "pass"}, name="c_test")]))
    runner.finish()
    assert [failure.name for failure in runner.total.failed] == ["a_test: A.noise", "one.step", "run.unfinished"]
    assert "before two" in runner.total.failed[-1].text


def test_timed_tests_run_last_and_one_at_a_time(program, tmp_path):
    one = program({"A.x": "pass", "A.yTimed": ["fail", "pass"], "A.zTimed/0": "pass"}, name="one_test").argv()
    two = program({"B.x": "pass", "B.yTimed": "pass"}, name="two_test").argv()
    three = program({"C.x": "pass"}, name="three_test").argv()
    steps = [Step("step", lambda: one + two, count="gtest", parallel=2), Step("more", lambda: three, count="gtest")]
    assert str(run(*steps)) == "6 passed, 0 failed, 0 skipped"
    assert sorted(runs(tmp_path)[:2]) == ["A.x", "B.x"]
    assert (tmp_path / "runs").read_text().splitlines()[2:] == [
        "C.x | 0", "A.yTimed A.zTimed/0 | 0", "B.yTimed | 0", "A.yTimed | 0",
    ]  # fmt: skip


def test_a_filter_of_a_part_holds_for_timed_tests_too(program, tmp_path):
    step = program({"A.x": "pass", "A.offTimed": "fail", "A.onTimed": "pass", "B.off": "fail"})
    assert str(run(step, env={"GTEST_FILTER": "-*off*"})) == "2 passed, 0 failed, 0 skipped"
    assert runs(tmp_path) == ["A.x", "A.onTimed"]


def test_timed_tests_of_pytest_run_last(tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    note = "import pathlib, pytest\ndef note(n): pathlib.Path(__file__).with_name('ran').open('a').write(n + ' ')\n"
    (folder / "test_a.py").write_text(note + "@pytest.mark.timed\ndef test_a(): note('a')\ndef test_b(): note('b')\n")
    (folder / "test_c.py").write_text(note + "def test_c(): note('c')\n")
    assert str(run(test_parts.pytest_step("t"))) == "3 passed, 0 failed, 0 skipped"
    assert (folder / "ran").read_text() == "b c a "


def test_a_file_that_only_speaks_of_timed_tests_is_no_failure(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_a(): assert '@pytest.mark.timed'\n")
    step = Step("step", test_parts.pytest(str(tmp_path / "test_a.py")), count="junit")
    assert run_tests.has_timed_tests(tmp_path / "test_a.py")
    assert str(run(step)) == "1 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize("part", ["attack", "attack-long", "planted"])
def test_an_attack_gets_options_that_it_knows(part):
    step = next(found for found in test_parts.parts() if found.name == part).steps[-1]
    assert run_tests.chosen_tests(step, step.argv, "timed", {}) is None
    argv = run_tests.with_xml(step, run_tests.chosen_tests(step, step.argv, "timeless", {}), "x.xml")
    ended = subprocess.run([*argv, "--list"], cwd=test_parts.ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
