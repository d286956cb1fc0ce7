# SPDX-License-Identifier: Apache-2.0
"""The file system gives way in the midst of a save: it becomes read-only, or its device fails. ext4 on a loop device in
a mount and process namespace of its own, which takes all of it away at its end, however that comes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("on_a_mount.py")


def reason_not():
    if os.geteuid() != 0:
        return "needs root, to mount"
    for tool in ("unshare", "mkfs.ext4", "e2fsck", "mount"):
        if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            return f"needs {tool}"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode:
        return "needs mount and process namespaces"
    return None


@pytest.mark.parametrize("how", ["read_only", "io_error"])
def test_a_save_whose_file_system_gives_way(how, tmp_path):
    why = reason_not()
    if why is not None:
        pytest.skip(why)
    namespace = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
    run = subprocess.run(
        [*namespace, sys.executable, PROGRAM, how, tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )
    assert run.returncode == 0, run.stdout + run.stderr
