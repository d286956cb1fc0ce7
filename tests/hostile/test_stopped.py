# SPDX-License-Identifier: Apache-2.0
"""The tests that are stopped leave nothing: no folder, no process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pool import HERE, LEVEL, Folder

BEGIN_S = 60  # until the first case runs
END_S = 10  # what tools/run_tests.py gives


def of_group(group):
    """Processes of it that live."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state, _, process_group = file.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(process_group) == group and state not in "ZX":
            found.append(int(pid))
    return found


@pytest.mark.timed
@pytest.mark.parametrize("name", ["SIGTERM"] if LEVEL == "quick" else ["SIGTERM", "SIGINT"])
def test_a_signal_leaves_nothing(name, shim_library):
    with Folder() as folder:
        begun = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "test_faults.py", "-k", "save"],
            env={**os.environ, "TMPDIR": folder, "PENSTOCK_HOSTILE": "ci"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + BEGIN_S
            while not list(Path(folder).glob("penstock_hostile_*/*/*")):
                assert begun.poll() is None and time.monotonic() < end, begun.communicate(timeout=5)[0]
                time.sleep(0.01)
            os.killpg(begun.pid, getattr(signal, name))
            said, _ = begun.communicate(timeout=END_S)
            assert begun.returncode != 0, said
            assert not of_group(begun.pid), said
            assert not list(Path(folder).glob("penstock_hostile_*")), said
        finally:
            if begun.poll() is None:
                os.killpg(begun.pid, signal.SIGKILL)
