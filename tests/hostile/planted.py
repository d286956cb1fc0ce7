# SPDX-License-Identifier: Apache-2.0
"""Symbolic links at each name that Penstock's own code deletes, writes, renames or changes the mode of, by feature.

A row plants links to a decoy, a folder and a file that nobody gave to Penstock, and then does what would meet them. The
decoy is whole afterwards: names, kinds, bytes, modes, inodes and times. A name that the user gives as the target is
followed, as documented, and is no row. A new place that works by name is a new row.
"""

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

import penstock
import penstock.__main__ as program
import torch

SMALL = {"a": torch.arange(2000.0), "b": torch.ones(500)}
HEX = "0123456789abcdef"
# Names that a removal might take for its own, and an unrelated diary.
DECOY = {
    "diary": "the only copy",
    "manifest.json": "{}",
    "model-00001-of-00002.safetensors": "a shard of somebody's",
    "shard-00001.safetensors": "a shard of somebody's",
    "inner/diary": "more of it",
    "read_block_overlap_ftd1_d32_bs1M_p1.txt": "a log of somebody's",
}
ROWS = {}


def row(function):
    ROWS[function.__name__] = function
    return function


class Scene:
    """A folder to work in, and the decoy next to it."""

    def __init__(self, folder):
        self.work = Path(folder) / "work"
        self.decoy = Path(folder) / "decoy"
        self.planted = []
        for path in (self.work, self.decoy, self.decoy / "inner"):
            path.mkdir()
        for name, text in DECOY.items():
            (self.decoy / name).write_text(text)
        for path in (self.decoy / "diary", self.decoy / "inner"):
            path.chmod(0o700)
        self.before = self.look()

    def plant(self, name, to="", folder=None):
        """A link to the decoy, or to something in it that may not be there."""
        path = Path(folder or self.work) / name
        path.symlink_to(self.decoy / to)
        self.planted.append(path)

    def look(self):
        """What must not change."""
        found = {}
        for path in [self.decoy, *sorted(self.decoy.rglob("*"))]:
            s = path.lstat()
            text = path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(self.decoy))] = (s.st_mode, s.st_ino, s.st_nlink, s.st_mtime_ns, text)
        return found

    def command(self, *words):
        """A command of the program; its output is not what is tested."""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                sys.argv = ["penstock", *words]
                return program.main()
            except SystemExit as end:
                return end.code


def store_of(scene, folder="store", **options):
    return penstock.CheckpointStore(scene.work / folder, lock_wait_s=0.2, **options)


# ---- stores


@row
def retention(scene):
    """Links named like the oldest checkpoints; one leads to what looks like one."""
    store = scene.work / "store"
    store.mkdir()
    scene.plant("00000000-step-0", folder=store)
    scene.plant("00000000-step-1", "diary", folder=store)
    with store_of(scene, keep=1, read_back=False) as opened:
        for step in range(4):
            opened.save(SMALL, step=step)
        assert [info.step for info in opened.list() if not info.problem and info.generation] == [3]
    assert (store / "00000000-step-0").is_symlink()


@row
def collecting(scene):
    """Links named like what killed saves and removals leave."""
    store = scene.work / "store"
    store.mkdir()
    for name in (f".unfinished-00000001-{HEX}", ".removed-00000001-step-1", ".removed-00000001-step-1-2"):
        scene.plant(name, folder=store)
    scene.plant(f".unfinished-00000002-{HEX}", "diary", folder=store)
    with store_of(scene) as opened:
        opened.save(SMALL)
        opened.collect()


@row
def remove(scene):
    """Links inside a checkpoint that goes, and one in its place."""
    with store_of(scene) as opened:
        first, second, _ = (Path(opened.save(SMALL, step=step).path) for step in range(3))
        scene.plant("folder", folder=first)
        scene.plant("file", "diary", folder=first)
        scene.plant("shard-00077.safetensors", "shard-00001.safetensors", folder=first)
        opened.remove(1)
        assert not first.exists()
        shutil.rmtree(second)
        scene.plant(second.name, folder=second.parent)
        with contextlib.suppress(ValueError):
            opened.remove(2)


@row
def parts(scene):
    """A store of two folders: links named like folders of shards, and links that say where shards are."""
    folders = [scene.work / "one", scene.work / "two"]
    with penstock.CheckpointStore(folders, keep=1, shard_bytes=1000) as opened:
        first = Path(opened.save({str(i): torch.ones(400) * i for i in range(6)}).path)
        ours = next(path for path in folders[1].iterdir() if path.is_dir())
        digits = ours.name.rsplit(".", 1)[1]
        scene.plant(f"00000000-step-0.{digits}", folder=folders[1])
        trap = scene.decoy / f"00000001-step-0.{digits}"
        trap.mkdir()
        (trap / "shard-00099.safetensors").write_text("a shard of somebody's")
        scene.plant("shard-00099.safetensors", f"{trap.name}/shard-00099.safetensors", folder=first)
        scene.before = scene.look()
        opened.save(SMALL)
        opened.collect()
        assert not first.exists()


@row
def locks(scene):
    """The lock file of a store, written to by the process that takes the lock, and the file of its identity."""
    for i, (name, to) in enumerate((name, to) for name in (".lock", ".store") for to in ("diary", "made", "")):
        store = scene.work / f"store{i}"
        store.mkdir()
        scene.plant(name, to, folder=store)
        with store_of(scene, store.name) as opened, contextlib.suppress(OSError):
            opened.save(SMALL)


@row
def pins(scene):
    with store_of(scene) as opened:
        info = opened.save(SMALL)
        scene.plant("pinned", "made", folder=info.path)
        with contextlib.suppress(OSError):
            opened.pin(info.generation)
        opened.pin(info.generation, False)


# ---- files


@row
def temporary_files(scene):
    """What a killed save leaves next to its file: each of it a link."""
    for name in ("state.pt", "state.safetensors", "model.safetensors.index.json"):
        scene.plant(f".{name}.{HEX}.tmp", "diary")
        scene.plant(f".{name}.{HEX[::-1]}.tmp")
        scene.plant(f".{name}.{HEX[:8] * 2}.tmp", "made")
        for _ in range(2):
            penstock.save(SMALL, scene.work / name)
    scene.plant(f".written.bin.{HEX}.tmp", "diary")
    with penstock.FileWriter(scene.work / "written.bin") as file:
        file.write(b"bytes")


@row
def shards_of_an_index(scene):
    """An index is a file that others write: what it names may be anything."""
    index = scene.work / "model.safetensors.index.json"
    (scene.work / "diary").write_text("not a shard")
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "diary"]
    scene.plant(names[0], names[0])
    scene.plant(names[1])
    index.write_text(json.dumps({"weight_map": {str(i): name for i, name in enumerate(names)}}))
    with contextlib.suppress(OSError, ValueError):
        penstock.save(SMALL, index)
    with contextlib.suppress(OSError, ValueError):
        penstock.save(SMALL, index, shard_bytes=3000)
    assert (scene.work / "diary").read_text() == "not a shard"


# ---- commands


def scratch(scene, command, *words):
    """A scratch file is called after the process."""
    scene.plant(f"penstock-{command}-{os.getpid()}.tmp", "diary")
    scene.command(command, *words, str(scene.work))


@row
def bench(scene):
    scratch(scene, "bench", "--size", "1MiB", "--seconds", "0.1")


@row
def doctor(scene):
    scratch(scene, "doctor")


@row
def plan_measure(scene):
    """A scratch file has a name for a moment; the number in it is that of the call."""
    for number in range(1, 20):
        scene.plant(f"penstock-plan-{os.getpid()}-{number}.tmp", "diary")
    scene.command("plan", "measure", "--seconds", "0.1", "--size", "4MiB", str(scene.work))


@row
def report(scene):
    """report -o writes next to its target first."""
    measured = scene.work / "bench.json"
    scene.command("bench", "--size", "1MiB", "--seconds", "0.1", "--json", str(measured), str(scene.work))
    scene.plant(f".page.html.{os.getpid()}.tmp", "diary")
    scene.command("report", str(measured), "-o", str(scene.work / "page.html"))


@row
def ds_io(scene):
    for kind in ("read", "write"):
        for name in ("0", "0_0", "0_1"):
            scene.plant(f"_aio_{kind}_65536.pt.{name}", "diary")
    for words in ((), ("--read",)):
        scene.command("ds_io", "--folder", str(scene.work), "--io_size", "64K", "--loops", "1", *words)


@row
def ds_nvme_tune(scene):
    """Its logs, its configuration, and the folders of its logs have names of their own."""
    disk = scene.work / "disk"
    disk.mkdir()
    sweep = scene.work / "sweep.json"
    sweep.write_text(json.dumps({"block_size": ["64K"], "queue_depth": [4]}))
    words = ["ds_nvme_tune", "--nvme_dir", str(disk), "--sweep_config", str(sweep), "--io_size", "64K", "--loops", "1"]
    for i in range(2):
        logs = scene.work / f"logs{i}"
        logs.mkdir()
        if i == 0:
            scene.plant("_aio_bench_read_logs", folder=logs)
            scene.plant("_aio_bench_write_logs", folder=logs)
        scene.plant("ds_config_aio.json", "diary", folder=logs)
        scene.command(*words, "--log_dir", str(logs))


def changed(before, after):
    """What became of a decoy, for people."""
    return [
        f"{name}: {str(before.get(name, 'was not there'))[:120]} -> {str(after.get(name, 'gone'))[:120]}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def planted_links(progress, row, folder):
    """The scene of one row."""
    os.dup2(2, 1)  # what commands print is for nobody
    scene = Scene(folder)
    os.chdir(scene.work)
    ROWS[row](scene)
    progress("planted", len(scene.planted))
    for difference in changed(scene.before, scene.look()):
        progress("defect", difference)
