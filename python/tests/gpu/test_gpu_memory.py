# SPDX-License-Identifier: Apache-2.0
"""Runs files of cases in a process whose CUDA driver is the fake one; each of their functions is a test here."""

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from penstock import _core

FILES = (
    "gpu_cases.py",
    "gds_cases.py",
    "feature_cases.py",
    "weights_cases.py",
    "checkpoint_cases.py",
    "hostile_cases.py",
    "torch_cases.py",
)
_HERE = Path(__file__).parent
# Built with the extension, or by the build of the project.
_BUILDS = (Path(_core.__file__).resolve().parents[1], _HERE.parents[2] / "build" / "release")
_FAKE = next((path for build in _BUILDS if (path := build / "tests" / "fake_gpu").is_dir()), None)


def _names(file):
    tree = ast.parse((_HERE / file).read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


_outcomes = {}


def _run(file, folder):
    """What became of each function: a list of (kind, text), one for each of its sets of parameters."""
    report = folder / "report.xml"
    path = f"{_FAKE}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    env = {**os.environ, "LD_LIBRARY_PATH": path, "FAKE_GPU_DEVICES": "2"}
    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "faulthandler_timeout=60",
        f"--junitxml={report}",
        "--basetemp",
        folder / "cases",
        _HERE / file,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, words)], env=env, capture_output=True, text=True, timeout=300
    )
    assert report.exists(), f"exit status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        results = [(child.tag, f"{child.get('message')}\n{child.text}") for child in case if child.tag != "properties"]
        outcomes.setdefault(case.get("name").split("[")[0], []).append(results[0] if results else ("passed", ""))
    return outcomes


@pytest.mark.skipif(_FAKE is None, reason="the fake CUDA driver is not built (cmake --build --preset release)")
@pytest.mark.parametrize(("file", "name"), [(file, name) for file in FILES for name in _names(file)])
def test_on_the_fake_driver(file, name, tmp_path_factory):
    if file not in _outcomes:
        _outcomes[file] = None  # unless it ends well
        _outcomes[file] = _run(file, tmp_path_factory.mktemp("fake_gpu"))
    if _outcomes[file] is None:
        pytest.fail(f"{file} did not run to its end; see the first test of it")
    found = _outcomes[file].get(name)
    assert found, f"{file}::{name} did not run"
    failures = [text for kind, text in found if kind in ("failure", "error")]
    assert not failures, failures[0]
    if all(kind == "skipped" for kind, _ in found):
        pytest.skip(found[0][1].splitlines()[0])
