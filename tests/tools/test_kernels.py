# SPDX-License-Identifier: Apache-2.0
"""tools/kernels.sh without a machine: its options, what it lacks, and how results are told again and counted."""

import shutil
import subprocess

import pytest
import run_tests
import test_parts
from test_parts import ROOT, Part, Step

GOOD_XML = """<testsuites><testsuite name="A">
<testcase name="good" status="run" result="completed" classname="A"/></testsuite></testsuites>"""


def run(script, *args, **more):
    return subprocess.run([str(script), *args], capture_output=True, text=True, **more)


def listed(release):
    return run(ROOT / "tools" / "kernels_guest.sh", "--list", release).stdout.split()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with the scripts alone, in which one machine ran that crashed in its third program."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    results = tmp_path / "build" / "kernels-results" / "some"
    results.mkdir(parents=True)
    for name, text in {
        "a_test.tests": "0\n",
        "a_test.log": "it went well\n",
        "a_test.xml": GOOD_XML,
        "b_test.tests": "139\n",
        "b_test.log": "[ RUN      ] B.deadly\nSegmentation fault\n",
        "c_test.tests": "",
        "doctor.check": "1\n",
        "doctor.log": "and no line of it is: allowed\n",
    }.items():
        (results / name).write_text(text)
    monkeypatch.setattr(test_parts, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    return tmp_path


@pytest.mark.parametrize("script", ["kernels.sh", "fresh.sh"])
def test_an_option_that_is_not_there_is_told_and_changes_nothing(checkout, script):
    done = run(checkout / "tools" / script, "--kep")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"there is no option --kep; the head of tools/{script} says" in done.stderr
    assert (checkout / "build" / "kernels-results" / "some" / "a_test.xml").exists()


def test_where_something_is_missing_it_is_a_skip_and_no_old_result_is_left(checkout):
    few = checkout / "few"
    few.mkdir()
    for name in ("bash", "env", "dirname", "id", "rm", "uname"):
        (few / name).symlink_to(shutil.which(name))
    done = run(checkout / "tools" / "fresh.sh", "--suite", "trixie", env={"PATH": str(few)})
    assert done.returncode == 77 and "tools/fresh.sh needs " in done.stdout
    assert run(checkout / "tools" / "fresh.sh", "--kep", env={"PATH": str(few)}).returncode == 2
    done = run(checkout / "tools" / "kernels.sh", env={"PATH": str(few)})
    assert done.returncode == 77
    assert "tools/kernels.sh needs " in done.stdout or "this is" in done.stdout
    assert not (checkout / "build" / "kernels-results").exists()


def test_a_result_is_told_again(checkout):
    xml = checkout / "told.xml"
    done = run(checkout / "tools" / "kernels.sh", "--show", "some", "a_test", f"--gtest_output=xml:{xml}")
    assert (done.returncode, done.stdout, xml.read_text()) == (0, "it went well\n", GOOD_XML)
    done = run(checkout / "tools" / "kernels.sh", "--show", "some", "d_test")
    assert done.returncode == 1
    assert "d_test has no result of some" in done.stdout


def test_what_crashed_and_what_never_ran_are_failures_by_name(checkout):
    runner = run_tests.Runner(budget_scale=1.0)
    steps = [
        Step("programs", test_parts.kernel_results("tests"), count="gtest", splits=False),
        Step("checks", test_parts.kernel_results("check")),
    ]
    runner.run_part(Part("kernels", 1000, steps))
    assert runner.total.passed == 1
    names = [failure.name for failure in runner.total.failed]
    assert names == ["some.b_test: B.deadly", "some.c_test: the program", "kernels.some.doctor"]


def test_both_sides_take_the_jobs_from_one_list():
    old, new = listed("6.5.13"), listed("6.6.0-1+deb13-cloud-amd64")
    assert "os_test.tests" in old and len(set(new)) == len(new)
    assert "io_uring_forbidden.check" in set(new) - set(old)
    assert set(new) == set(listed("7.0.1"))  # the sysctl came with 6.6
    assert set(old) == set(listed("5.15.0"))
