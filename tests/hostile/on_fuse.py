# SPDX-License-Identifier: Apache-2.0
"""What test_mounts.py runs in namespaces of its own: on_fuse.py FOLDER. Files on mounts that lack a call, or whose
reads come short (fuse_folder.py)."""

import contextlib
import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import penstock
import torch

PROGRAM = Path(__file__).with_name("fuse_folder.py")
STATE = {"w": torch.randn(300, 333), "b": torch.arange(200001)}
OLD = {"old": torch.arange(10)}


@contextlib.contextmanager
def mounted(folder, lacks):
    lower, mount = Path(folder, lacks, "lower"), Path(folder, lacks, "mount")
    lower.mkdir(parents=True)
    mount.mkdir()
    daemon = subprocess.Popen([sys.executable, PROGRAM, lower, mount, lacks])
    end = time.monotonic() + 20
    while not os.path.ismount(mount):
        assert daemon.poll() is None and time.monotonic() < end, "no mount"
        time.sleep(0.01)
    try:
        yield mount, lower
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)
        daemon.kill()
        daemon.wait()


def raised(call, number, *words):
    try:
        call()
    except OSError as error:
        assert error.errno == number, repr(error)
        assert all(word in str(error) for word in words), str(error)
        return error
    raise AssertionError("nothing was raised")


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def backends():
    for name in ("auto", "io_uring", "libaio", "posix"):
        with contextlib.suppress(penstock.Unsupported):
            yield name, penstock.Engine(backend=name)


def short_reads(folder):
    """io_uring of Linux 6.18 goes on with a short read of such a file at its beginning, and past its end."""
    data = np.random.default_rng(0).integers(0, 256, 1_000_000, dtype=np.uint8)
    for lacks in ("shortread", "directio"):
        with mounted(folder, lacks) as (mount, lower):
            for name, engine in backends():
                data.tofile(lower / "x.bin")
                for begin, size in ((0, data.size), (1, 500_000), (4096, 65536), (999_000, 1000)):
                    into = np.zeros(size, np.uint8)
                    engine.read(mount / "x.bin", into, begin)
                    assert (into == data[begin : begin + size]).all(), (lacks, name, begin)
                pieces = [np.zeros(7000, np.uint8) for _ in range(20)]
                engine.read(mount / "x.bin", pieces, [3 + 7000 * i for i in range(20)])
                assert (np.concatenate(pieces) == data[3:140003]).all(), (lacks, name)
                into = np.zeros(1 << 20, np.uint8)
                got = engine.read(mount / "x.bin", into, allow_short=True)
                assert got == data.size and (into[:got] == data).all() and not into[got:].any(), (lacks, name, got)
                engine.write(mount / "y.bin", data)
                assert (np.fromfile(lower / "y.bin", np.uint8) == data).all(), (lacks, name)
                engine.close()
            penstock.save(STATE, mount / "s.pt")
            assert equal(penstock.load(mount / "s.pt"), STATE)


def without_rename(folder):
    with mounted(folder, "norename,nochmod") as (mount, lower):
        path = mount / "s.pt"
        torch.save(OLD, path)
        before = path.read_bytes()
        error = raised(lambda: penstock.save(STATE, path), errno.ENOSYS, "fuse", "cannot replace", "as it was")
        assert path.read_bytes() == before and os.listdir(lower) == ["s.pt"]
        assert 'with open(path, "wb") as file: penstock.save(state, file)' in str(error)
        with open(path, "wb") as file:
            penstock.save(STATE, file)
        assert equal(penstock.load(path), STATE)
        raised(lambda: penstock.save(STATE, mount / "m.safetensors"), errno.ENOSYS, "cannot replace")
        raised(lambda: penstock.save(STATE, mount / "m.safetensors.index.json"), errno.ENOSYS, "cannot replace")
        store = penstock.CheckpointStore(mount / "store")
        raised(lambda: store.save(STATE), errno.ENOSYS, "rename", "copy its checkpoints")
        assert store.list() == []
        assert sorted(n for n in os.listdir(lower) if n.endswith(".tmp")) == []
    with mounted(folder, "norename,sequential") as (mount, lower):
        raised(lambda: penstock.save(STATE, mount / "s.pt"), errno.EINVAL, "cannot replace", "at any place")
        assert os.listdir(lower) == []
        with open(mount / "s.pt", "wb") as file:
            penstock.save(STATE, file)
        assert equal(penstock.load(mount / "s.pt"), STATE)


def without_sync(folder):
    with mounted(folder, "nosync") as (mount, lower):
        penstock.save(OLD, mount / "s.pt", sync=False)
        raised(lambda: penstock.save(STATE, mount / "s.pt"), errno.EINVAL, "no sync", "sync=False")
        assert equal(penstock.load(mount / "s.pt"), OLD) and os.listdir(lower) == ["s.pt"]
        raised(lambda: penstock.write(mount / "x", b"1", sync=True), errno.EINVAL, "sync=False")
        store = penstock.CheckpointStore(mount / "store")
        raised(lambda: store.save(STATE), errno.EINVAL, "no sync")
        assert store.list() == []
    with mounted(folder, "nosyncdir") as (mount, _):
        penstock.save(STATE, mount / "s.pt")
        assert equal(penstock.load(mount / "s.pt"), STATE)
        with penstock.CheckpointStore(mount / "store", keep=1) as store:
            store.save(STATE, 1)
            store.save(STATE, 2)
            assert equal(store.load(), STATE)


if __name__ == "__main__":
    for part in (short_reads, without_rename, without_sync):
        part(sys.argv[1])
