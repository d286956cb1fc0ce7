# SPDX-License-Identifier: Apache-2.0
"""The steps of tools/test_gpu.py, and what tools/make_gpu_kit.py refuses."""

import subprocess
import sys
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


def test_the_counts_of_googletest_are_read():
    text = "[  PASSED  ] 80 tests.\n[  SKIPPED ] 9 tests, listed below:\n"
    assert test_gpu.counted(subprocess.CompletedProcess([], 0, text, "")) == {"passed": 80, "skipped": 9}
    assert test_gpu.counted(None) == {}


def test_a_kit_of_a_build_without_its_programs_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="device_conformance_test is not there"):
        make_gpu_kit.fill(tmp_path / "kit", tmp_path, None)
