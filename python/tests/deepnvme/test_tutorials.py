# SPDX-License-Identifier: Apache-2.0
"""The programs of DeepNVMe's tutorials, as docs/deepnvme.md names them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = Path(__file__).parents[3] / "examples" / "deepnvme"
# The others in the folder need DeepSpeed, and run where it is installed.
PROGRAMS = ["file_write.py", "load_and_store.py", "save_checkpoint.py"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_tutorial(program, tmp_path):
    run = subprocess.run(
        [sys.executable, EXAMPLES / program, "8"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout and not run.stderr
    assert os.listdir(tmp_path) == []
