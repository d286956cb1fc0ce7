# SPDX-License-Identifier: Apache-2.0
"""What test_mounts.py runs in namespaces of its own: on_a_mount.py read_only|io_error FOLDER"""

import contextlib
import errno
import gc
import os
import subprocess
import sys
import time

import penstock
import torch

MIB = 1 << 20
SMALL = {"a": torch.arange(1000.0)}
LARGE = {str(i): torch.full((16 * MIB,), i + 1, dtype=torch.uint8) for i in range(8)}
DISK_BYTES = 512 * MIB
BACKED_BYTES = 80 * MIB  # of it, while the device fails: more than ext4 needs for itself, less than LARGE


def run(*command, may_fail=False):
    done = subprocess.run(command, capture_output=True, text=True)
    assert may_fail or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


def link(path):
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def fails_as_expected(error, how):
    allowed = {"read_only": (errno.EROFS, errno.EIO), "io_error": (errno.EIO, errno.EROFS, errno.ENOSPC)}[how]
    assert isinstance(error, OSError) and error.errno in allowed, repr(error)


def main():
    how, folder = sys.argv[1:]
    backing, image, mounted = (os.path.join(folder, name) for name in ("backing", "backing/image", "mounted"))
    os.mkdir(backing)
    os.mkdir(mounted)
    run("mount", "-t", "tmpfs", "-o", f"size={BACKED_BYTES if how == 'io_error' else 2 * DISK_BYTES}", "none", backing)
    with open(image, "wb") as file:
        file.truncate(DISK_BYTES)
    run("mkfs.ext4", "-q", "-E", "nodiscard", image)
    run("mount", "-o", "loop", image, mounted)
    path = os.path.join(mounted, "store")
    store = penstock.CheckpointStore(path)
    store.save(SMALL, 1)
    assert torch.equal(store.load()["a"], SMALL["a"])

    pending = store.save_async(LARGE, 2)
    end = time.monotonic() + 20
    while pending.done_bytes == 0 and not pending.done() and time.monotonic() < end:
        time.sleep(0.001)
    if how == "read_only":
        run("mount", "-o", "remount,abort", mounted, may_fail=True)
    pending.exception(60)
    error = pending.exception()
    if error is None:
        # The save was faster; the next one meets it.
        assert how == "read_only"
    else:
        fails_as_expected(error, how)
    try:
        store.save(LARGE, 3)
    except OSError as refused:
        fails_as_expected(refused, how)
    else:
        raise AssertionError("a save succeeds on a file system that has given way")
    assert [info.step for info in store.list() if not info.problem][0] == 1
    assert penstock.default_engine().drain(20)
    store.close()
    del pending, error
    # Nothing is left open: it can be unmounted.
    gc.collect()
    mounts = [name for fd in os.listdir("/proc/self/fd") if mounted in (name := link(f"/proc/self/fd/{fd}"))]
    assert not mounts, mounts
    run("umount", mounted)

    if how == "io_error":
        run("mount", "-o", f"remount,size={2 * DISK_BYTES}", backing)
    checked = run("e2fsck", "-fy", image, may_fail=True)
    assert checked.returncode < 4, checked.stdout + checked.stderr
    run("mount", "-o", "loop", image, mounted)
    with penstock.CheckpointStore(path) as store:
        sound = [info for info in store.list() if not info.problem]
        assert sound and sound[0].step == 1
        for info in sound:
            found = store.load(generation=info.generation)
            expected = SMALL if info.step == 1 else LARGE
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        store.save(LARGE, 4)
        assert store.latest().step == 4
        assert not [name for name in os.listdir(path) if name.startswith((".unfinished", ".removed"))]


if __name__ == "__main__":
    main()
