# SPDX-License-Identifier: Apache-2.0
"""The steps of tools/test_gpu.py, and what tools/make_gpu_kit.py refuses."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import make_gpu_kit  # noqa: E402
import test_gpu  # noqa: E402


def states(run):
    return [step["state"] for step in run.steps]


def test_a_step_passes_fails_is_missing_or_is_cut():
    run = test_gpu.Run({"PATH": "/usr/bin:/bin"}, 60)
    assert run.step("one", ["true"]).returncode == 0
    assert run.step("two", ["sh", "-c", "echo why; exit 3"]).returncode == 3
    assert run.step("allowed", ["sh", "-c", "exit 77"], good=(0, 77)) is not None
    assert run.step("absent", ["/nonexistent/program"]) is None
    assert states(run) == ["passed", "failed (3)", "passed", "not built"]
    assert "why" in run.steps[1]["words"]


def test_what_comes_after_the_time_is_named_and_not_run(tmp_path):
    run = test_gpu.Run({"PATH": "/usr/bin:/bin"}, 0)
    assert run.step("late", ["touch", str(tmp_path / "made")]) is None
    assert states(run) == ["not run"] and not (tmp_path / "made").exists()


def test_what_is_past_its_time_is_asked_to_clean_up_with_all_that_it_started(tmp_path):
    run = test_gpu.Run({"PATH": "/usr/bin:/bin"}, 60)
    tidy = f"trap 'touch {tmp_path}/tidy; exit 0' TERM; sleep 60 & wait"
    assert run.step("slow", ["sh", "-c", f"sh -c '{tidy.replace(chr(39), chr(34))}' & wait"], seconds=2) is None
    assert states(run) == ["cut"]
    for _ in range(100):
        if (tmp_path / "tidy").exists():
            break
        time.sleep(0.05)
    assert (tmp_path / "tidy").exists()


@pytest.fixture
def folders(tmp_path):
    """A build, as far as a kit takes something of it, and a package."""
    build = tmp_path / "build"
    for name in (*make_gpu_kit.PROGRAMS, "src/libpenstock.so", *(f"tests/fake_gpu/{n}" for n in make_gpu_kit.FAKES)):
        (build / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", build / name)
    package = tmp_path / "penstock"
    package.mkdir()
    (package / "__init__.py").touch()
    return build, package


def test_a_kit_has_the_tests_and_what_they_need(tmp_path, folders, monkeypatch):
    build, package = folders
    monkeypatch.setattr(make_gpu_kit, "soname_of", lambda _: "libpenstock.so.0")
    kit = tmp_path / "kit"
    make_gpu_kit.fill(kit, build, package)
    for name in ("device_conformance", "suite", "device", "features"):
        assert (kit / "build" / "tests" / f"{name}_test").exists()
    assert {path.name for path in (kit / "fake").iterdir()} == set(make_gpu_kit.FAKES)
    cases = {path.name for path in (ROOT / "python" / "tests" / "gpu").glob("*.py")}
    assert {path.name for path in (kit / "python" / "tests" / "gpu").glob("*.py")} == cases
    env = {"PYTHONPATH": str(kit / "python"), "PATH": "/usr/bin:/bin"}
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--version"], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "pytest" in listed.stdout + listed.stderr
    found = subprocess.run(
        [sys.executable, "-c", "import pytest; print(pytest.__file__)"], env=env, capture_output=True, text=True
    )
    assert found.stdout.startswith(str(kit)), found.stdout + found.stderr


def test_the_tests_of_python_name_what_they_lack(monkeypatch):
    run = test_gpu.Run({"PATH": "/usr/bin:/bin", "PYTHONPATH": "/nonexistent"}, 60)
    monkeypatch.setattr(test_gpu.sys, "executable", "/bin/false")
    assert test_gpu.python_tests(run, "") == {}
    assert states(run) == ["not run"]


def test_the_counts_of_googletest_are_read():
    text = "[  PASSED  ] 80 tests.\n[  SKIPPED ] 9 tests, listed below:\n"
    assert test_gpu.counted(subprocess.CompletedProcess([], 0, text, "")) == {"passed": 80, "skipped": 9}
    assert test_gpu.counted(None) == {}


def test_a_kit_of_a_build_without_its_programs_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="device_conformance_test is not there"):
        make_gpu_kit.fill(tmp_path / "kit", tmp_path, None)
