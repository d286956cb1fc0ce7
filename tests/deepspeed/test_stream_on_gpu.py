# SPDX-License-Identifier: Apache-2.0
"""Models of transformers streamed to a GPU, on the fake driver: cases of python/tests/gpu that need transformers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from penstock import _core

ROOT = Path(__file__).parents[2]
BUILDS = (Path(_core.__file__).resolve().parents[1], ROOT / "build" / "release")
FAKE = next((path for build in BUILDS if (path := build / "tests" / "fake_gpu").is_dir()), None)


@pytest.mark.skipif(FAKE is None, reason="the fake CUDA driver is not built (cmake --build --preset release)")
def test_experts_are_read_one_by_one(tmp_path):
    env = {**os.environ, "LD_LIBRARY_PATH": f"{FAKE}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    words = ["-q", "-p", "no:cacheprovider", "-k", "experts", "--basetemp", tmp_path / "cases"]
    cases = ROOT / "python" / "tests" / "gpu" / "weights_cases.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, words), str(cases)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
