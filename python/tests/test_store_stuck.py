# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that is stuck (damaged, unreadable, not removable) costs only itself, as users of Python see it. The
table of ways to be stuck is larger in tests/store/stuck_test.cpp."""

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import penstock
import pytest

torch = pytest.importorskip("torch")


def replaced(name, make):
    def stick(folder):
        path = next(folder.glob(name)) if "*" in name else folder / name if name else folder
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.is_symlink() or path.exists():
            path.unlink()
        make(path)

    return stick


KINDS = {
    "manifest fifo": replaced("manifest.json", os.mkfifo),
    "manifest loop": replaced("manifest.json", lambda path: path.symlink_to(path.name)),
    "manifest folder": replaced("manifest.json", os.mkdir),
    "manifest garbage": replaced("manifest.json", lambda path: path.write_text("{]")),
    "shard fifo": replaced("shard-*", os.mkfifo),
    "shard dangling": replaced("shard-*", lambda path: path.symlink_to("/no/such")),
    "loop": replaced("", lambda path: path.symlink_to(path.name)),
    "dangling": replaced("", lambda path: path.symlink_to("/no/such")),
    "file": replaced("", lambda path: path.write_text("")),
    "pin loop": replaced("pinned", lambda path: path.symlink_to(path.name)),
}
READABLE = ("pin loop",)


def state_of(step):
    return {"w": torch.full((1000,), step), "fixed": torch.arange(1000)}


def save(store, step):
    return store.save(state_of(step), step, metadata={"loss": step})


def steps(store):
    return [info.step for info in store.list()]


@pytest.fixture
def stuck(request):
    """A folder with checkpoints of the steps 1 to 5, one of which is stuck. In memory: syncs of a disk take seconds."""
    kind, step = request.param
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as place:
        folder = Path(place, "c")
        with penstock.CheckpointStore(folder, shard_bytes=4096) as store:
            for i in range(1, 6):
                save(store, i)
        KINDS[kind](folder / f"{step:08}-step-{step}")
        yield folder, kind, step


@pytest.mark.parametrize("stuck", [(kind, step) for kind in KINDS for step in (2, 5)], indirect=True, ids=str)
def test_every_call_goes_on_for_the_others(stuck):
    folder, kind, step = stuck
    usable = [i for i in range(1, 6) if i != step or kind in READABLE]
    with warnings.catch_warnings(record=True) as warned, penstock.CheckpointStore(folder) as store:
        warnings.simplefilter("always")
        assert steps(store) == [1, 2, 3, 4, 5]
        assert [info.step for info in store.list() if not info.problem] == usable
        assert store.latest().step == usable[-1]
        assert store.best("loss").step == 1 and store.best("loss", mode="max").step == usable[-1]
        for i in usable:
            assert (store.load(step=i)["w"] == i).all()
            assert (store.load(generation=i)["w"] == i).all()
        assert (store.load()["w"] == usable[-1]).all()
        store.pin(1)
        store.pin(1, False)
        store.remove(3)
        assert store.collect() == 0
    assert all(f"{step:08}-step-{step}" in str(one.message) for one in warned)
    assert warned or step == 2 or kind in READABLE


@pytest.mark.parametrize("stuck", [("manifest garbage", 2), ("loop", 5), ("pin loop", 2)], indirect=True, ids=str)
def test_the_commands_go_on_for_the_others(stuck):
    folder, kind, step = stuck
    whole = 5 if kind in READABLE else 4
    command = [sys.executable, "-m", "penstock", "checkpoint"]
    listed = subprocess.run([*command, "ls", folder], capture_output=True, text=True)
    assert listed.returncode == 0 and len(listed.stdout.splitlines()) == 6, listed.stdout + listed.stderr
    verified = subprocess.run([*command, "verify", folder, "--all"], capture_output=True, text=True)
    assert verified.stdout.count("  ok: ") == whole, verified.stdout + verified.stderr
    assert verified.returncode == (0 if whole == 5 else 1)


@pytest.mark.parametrize("stuck", [(kind, step) for kind in KINDS for step in (2, 5)], indirect=True, ids=str)
def test_saves_and_retention_go_on(stuck):
    folder, kind, step = stuck
    name = f"{step:08}-step-{step}"
    with penstock.CheckpointStore(folder, keep=2, read_back=False) as store:
        notes = [save(store, i).note for i in range(6, 12)]
        notes += [store.save_async(state_of(12), 12).result().note]
        assert sum(name in note for note in notes) <= 1
        assert [i for i in steps(store) if i != step] == [11, 12]
        assert (store.load()["w"] == 12).all()


def test_one_that_cannot_be_removed(tmp_path):
    """Immutable, which root cannot remove either."""
    folder = tmp_path / "c"
    with penstock.CheckpointStore(folder, keep=1, shard_bytes=4096, read_back=False) as store:
        save(store, 1)
        shard = next((folder / "00000001-step-1").glob("shard-*"))
        if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", shard], capture_output=True).returncode:
            pytest.skip("needs chattr +i: root, and a file system that has it")
        try:
            notes = [save(store, i).note for i in range(2, 8)]
            assert "could not be removed and still takes" in notes[0] and notes[1:] == [""] * 5
            assert steps(store) == [7]
            left = list(folder.glob(".removed-*/*"))
            assert sorted(path.name for path in left) == ["manifest.json", shard.name]
        finally:
            for path in folder.rglob(shard.name):
                subprocess.run(["chattr", "-i", path], capture_output=True)
        assert store.collect() > 0
        assert not list(folder.glob(".removed-*"))
