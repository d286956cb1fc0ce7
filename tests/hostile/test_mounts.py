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
FUSE_PROGRAM = Path(__file__).with_name("on_fuse.py")
NAMESPACE = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]


def reason_not(tools=("unshare", "mkfs.ext4", "e2fsck", "mount"), device="/dev/loop-control"):
    if os.geteuid() != 0:
        return "needs root, to mount"
    for tool in tools:
        if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            return f"needs {tool}"
    if not Path(device).exists():
        return f"needs {device}"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode:
        return "needs mount and process namespaces"
    return None


@pytest.mark.parametrize("how", ["read_only", "io_error"])
def test_a_save_whose_file_system_gives_way(how, tmp_path):
    why = reason_not()
    if why is not None:
        pytest.skip(why)
    run = subprocess.run(
        [*NAMESPACE, sys.executable, PROGRAM, how, tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_files_on_fuse(tmp_path):
    """Mounts without rename or sync give an error with a way that works; short reads give right bytes."""
    why = reason_not(("unshare", "umount"), "/dev/fuse")
    if why is not None:
        pytest.skip(why)
    run = subprocess.run(
        [*NAMESPACE, sys.executable, FUSE_PROGRAM, tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )
    assert run.returncode == 0, run.stdout + run.stderr
