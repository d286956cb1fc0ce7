# SPDX-License-Identifier: Apache-2.0
"""The examples as a user has them: built against the installed package, and run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_examples_build_against_the_installed_package_and_run():
    done = subprocess.run(
        [sys.executable, "tools/check_examples.py"], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
