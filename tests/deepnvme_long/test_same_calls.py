# SPDX-License-Identifier: Apache-2.0
"""The same calls on DeepSpeed's own op, built here, and on ours: the results are equal, or differ as is known.

By .venv-deepspeed's Python: tools/run_tests.py --only deepnvme-long. Building their op takes two minutes, once.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD_S = 600
ABORTED = "exit status -6"

# case: (what theirs does, what ours gives). When DeepSpeed fixes one, this says so.
KNOWN = {
    "wait_with_nothing_pending-all": (ABORTED, 0),
    "the_tail_behind_the_last_512_bytes-all": ([1, 1 << 20], [1, (1 << 20) + 100]),
    "a_size_that_the_threads_do_not_divide-all": ([1, False], [1, True]),
    "an_unaligned_offset-all": ([1, False], [1, True]),
    "a_missing_file-all": (-1, "FileNotFoundError"),
    "a_file_that_is_too_short-all": (ABORTED, "EndOfFile"),
    "an_ordinary_tensor_of_two_dimensions-all": ("RuntimeError", [1, True]),
    "write_of_an_ordinary_tensor-all": ([0, False], [0, True]),
    "read_into_an_ordinary_tensor-all": ([0, False], [0, True]),
    "a_path_that_is_no_str-all": ("TypeError", 1),
}


def call(side, folder, *cases):
    env = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(ROOT / "build" / "torch-extensions"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    argv = [sys.executable, HERE / "calls.py", side, *cases]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=BUILD_S)
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    return done, found


@pytest.fixture(scope="session")
def built():
    """Their op; skips where it cannot be built."""
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed (tools/setup.sh long)")
    probe = "from deepspeed.ops.op_builder import AsyncIOBuilder as B; raise SystemExit(not B().is_compatible())"
    env = {**os.environ, "DS_ACCELERATOR": "cpu"}
    if subprocess.run([sys.executable, "-c", probe], env=env, capture_output=True).returncode:
        pytest.skip("their op cannot be built here: it wants g++ and libaio-dev")


@pytest.fixture(scope="session")
def results(built, tmp_path_factory):
    both = {}
    for side in ("theirs", "ours"):
        done, both[side] = call(side, tmp_path_factory.mktemp(side))
        assert done.returncode == 0, f"{side}: exit status {done.returncode}\n{done.stderr[-4000:]}"
    return both


def cases(table):
    spec = importlib.util.spec_from_file_location("calls", HERE / "calls.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(getattr(module, table))


@pytest.mark.parametrize("case", cases("SAME"))
def test_the_same_result(results, case):
    assert results["ours"][case] == results["theirs"][case]


def test_every_difference_is_known():
    assert set(KNOWN) == set(cases("DIFFERENT"))


@pytest.mark.parametrize("case", KNOWN)
def test_a_known_difference(built, tmp_path, case):
    for side, expected in zip(("theirs", "ours"), KNOWN[case]):
        folder = tmp_path / side
        folder.mkdir()
        done, found = call(side, folder, case)
        got = found[case] if case in found else f"exit status {done.returncode}"
        assert got == expected, f"{side}: {done.stderr[-2000:]}"
