# SPDX-License-Identifier: Apache-2.0
"""Training and generation in memory, on DeepSpeed's own op, built here, and on ours: equal in all three."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "deepnvme"
BUILD_S = 1000
SIDES = {"memory": ("--store=memory",), "theirs": ("--store=nvme",), "ours": ("--store=nvme",)}


@pytest.fixture(scope="module", autouse=True)
def their_op():
    probe = "from deepspeed.ops.op_builder import AsyncIOBuilder as B; raise SystemExit(not B().is_compatible())"
    if subprocess.run([sys.executable, "-c", probe], env=environment(), capture_output=True).returncode:
        pytest.skip("their op cannot be built here: it wants g++ and libaio-dev")


def environment():
    return {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "2",
        "TORCH_EXTENSIONS_DIR": str(ROOT / "build" / "torch-extensions"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *arguments], env=environment(), capture_output=True, text=True, timeout=BUILD_S
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize(
    "example, what, options",
    [
        ("zero_infinity", "losses", ("--offload=optimizer", "--steps=8")),
        ("zero_infinity", "losses", ("--offload=optimizer", "--pipeline", "--steps=8")),
        ("zero_infinity", "losses", ("--offload=parameters", "--steps=8")),
        ("zero_infinity", "losses", ("--offload=both", "--steps=8")),
        ("zero_inference", "tokens", ("--tokens=16",)),
    ],
)
def test_equal_on_both_engines(example, what, options):
    script = str(EXAMPLES / f"{example}.py")
    found = {}
    for side, store in SIDES.items():
        before = ("-m", "penstock.deepnvme") if side == "ours" else ()
        result = json.loads(run(*before, script, *store, *options).splitlines()[-1])
        found[side] = result[what]
        assert (result["moved"] is not None) == (side == "ours")
    assert found["ours"] == found["theirs"] == found["memory"]


def test_the_examples_own_comparison():
    said = run(str(EXAMPLES / "zero_inference.py"), "--compare", "--tokens=4")
    assert said.splitlines()[-1] == "tokens of in memory, DeepSpeed's op, Penstock: equal"
