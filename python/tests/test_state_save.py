# SPDX-License-Identifier: Apache-2.0
"""save(): to files, shards, through FileWriter; progress, Ctrl-C, a full disk; the arguments of torch.save."""

import gc
import io
import json
import os
import pickle
import random
import signal
import stat
import subprocess
import sys
import textwrap
import time
import warnings

import penstock
import pytest
from penstock import _core

torch = pytest.importorskip("torch")


def state():
    torch.manual_seed(5)
    return {
        "a": torch.randn(700, 1000),
        "b": [torch.arange(7), "text"],
        "c": {"d": torch.ones(3, dtype=torch.bfloat16)},
    }


def same(a, b):
    assert torch.equal(a["a"], b["a"]) and torch.equal(a["b"][0], b["b"][0]) and a["b"][1] == b["b"][1]
    assert torch.equal(a["c"]["d"], b["c"]["d"])


# ---- as torch.save


def test_torchs_own_arguments(tmp_path):
    path = tmp_path / "state.pt"
    penstock.save(state(), path, pickle, 2, True, False)
    penstock.save(obj=state(), f=path, pickle_module=pickle, pickle_protocol=4)
    same(state(), torch.load(path))
    for arguments, text in [
        ({"pickle_module": json}, "pickle_module"),
        ({"pickle_protocol": 1}, "pickle_protocol"),
        ({"_use_new_zipfile_serialization": False}, "legacy"),
        ({"metadata": {"a": "b"}}, "metadata"),
    ]:
        with pytest.raises(ValueError, match=text):
            penstock.save(state(), path, **arguments)
    with pytest.raises(TypeError, match="strings"):
        penstock.save({}, tmp_path / "m.safetensors", metadata={"a": 1})
    same(state(), torch.load(path))


def test_sync_is_asked_for_unless_it_is_off(tmp_path):
    """One file and an index, with and without."""
    with pytest.raises(TypeError, match="sync: expected True or False"):
        penstock.save(state(), tmp_path / "state.pt", sync=0)
    try:
        subprocess.run(["strace", "-V"], stdout=subprocess.DEVNULL, check=True)
    except OSError:
        pytest.skip("strace is not installed")
    for sync in (True, False):
        calls = tmp_path / f"calls-{sync}"
        program = (
            "import penstock, sys, torch\n"
            f"penstock.save({{'a': torch.ones(9)}}, sys.argv[1] + '/state.pt', sync={sync})\n"
            f"penstock.save({{'a': torch.ones(9)}}, sys.argv[1] + '/m.safetensors.index.json', sync={sync})\n"
        )
        trace = ["strace", "-f", "--seccomp-bpf", "-e", "trace=fsync,fdatasync,syncfs,sync", "-o", calls]
        subprocess.run([*trace, sys.executable, "-c", program, tmp_path], check=True)
        assert ("sync(" in calls.read_text()) == sync
        assert torch.equal(penstock.load(tmp_path / "state.pt")["a"], torch.ones(9))
        assert torch.equal(penstock.load(tmp_path / "m.safetensors.index.json")["a"], torch.ones(9))


class Short(io.RawIOBase):
    """A raw file that takes little at a time."""

    def __init__(self):
        self.data = b""

    def writable(self):
        return True

    def write(self, piece):
        taken = bytes(piece[:70_001])
        self.data += taken
        return len(taken)


def test_files_are_written_from_where_they_stand(tmp_path):
    stream = io.BytesIO()
    stream.write(b"head")
    penstock.save(state(), stream)
    stream.seek(4)
    same(state(), penstock.load(stream))
    assert stream.read() == b""
    short = Short()
    penstock.save(state(), short)
    same(state(), torch.load(io.BytesIO(short.data)))
    with open(tmp_path / "a.pt", "wb") as file:
        penstock.save(state(), file)
        assert file.tell() == os.path.getsize(file.name) or file.flush() is None
    same(state(), torch.load(tmp_path / "a.pt"))
    with pytest.raises(TypeError, match="text file"):
        penstock.save(state(), io.StringIO())

    class Full(io.BytesIO):
        def write(self, piece):
            raise OSError(28, "no room")

    with pytest.raises(OSError, match="no room"):
        penstock.save(state(), Full())


@pytest.mark.parametrize("taken", [None, 0])
def test_a_raw_file_that_takes_nothing_ends_the_save(taken):
    calls = []

    class Full(Short):
        def write(self, piece):
            calls.append(len(piece))
            assert len(calls) < 10
            return taken

    with pytest.raises(BlockingIOError, match=f"save: f: write.. gave {taken}; use a file that blocks, or save to"):
        penstock.save(state(), Full())
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["a.pt/", "a.safetensors/", "a/", "a.safetensors.index.json/"])
def test_a_path_that_ends_as_a_folder_does_is_refused(tmp_path, name):
    given = f"{tmp_path}/{name}"
    for save in (penstock.save, penstock.save_async):
        with pytest.raises(ValueError, match=f"'{given}': it ends as a folder does; .* '{given[:-1]}'"):
            save({"a": torch.ones(2)}, given)
    assert not list(tmp_path.iterdir())


# ---- progress, Ctrl-C, a full disk


def test_progress_is_told_and_may_raise(tmp_path):
    path = tmp_path / "state.pt"
    seen = []
    penstock.save(state(), path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    seen.clear()
    penstock.load(path, progress=lambda done, total: seen.append((done, total)))
    assert seen and seen[-1][0] == seen[-1][1] > 2_800_000

    def refuse(done, total):
        raise RuntimeError("enough")

    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="enough"):
        penstock.save({"a": torch.zeros(1 << 20)}, path, progress=refuse)
    with pytest.raises(RuntimeError, match="enough"):
        penstock.load(path, progress=refuse)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["state.pt"]
    with pytest.raises(TypeError, match="progress"):
        penstock.save(state(), path, progress="yes")


def test_the_line_of_progress(capsys, monkeypatch):
    from penstock._base import progress as _progress

    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    line = _progress.reporter(True, "save")
    for second in range(31):
        now[0] = float(second)
        line(second << 30, 30 << 30)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4 and lines[-1].startswith("penstock save: 30.00 of 30.00 GiB (100 %), 1.00 GiB/s")
    quick = _progress.reporter(True, "save")
    quick(5, 5)
    assert capsys.readouterr().err == "" and _progress.reporter(False, "save") is None


def test_ctrl_c_leaves_the_old_file(tmp_path):
    path = tmp_path / "state.pt"
    penstock.save([1], path)
    before = path.read_bytes()

    def interrupt(done, total):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        penstock.save({"a": torch.zeros(40 << 20, dtype=torch.uint8)}, path, progress=interrupt)
        for _ in range(100):
            pass
    assert os.listdir(tmp_path) == ["state.pt"]
    # The signal may come with the last call, when all is written: then the new file is whole.
    assert path.read_bytes() == before or penstock.load(path)["a"].numel() == 40 << 20


KILLED = """
    import sys, penstock, torch
    print("ready", flush=True)
    for i in range(1000000):
        penstock.save({"a": torch.full((3_000_000,), i % 100, dtype=torch.uint8), "i": i}, "state.pt")
"""


def test_a_killed_save_leaves_a_whole_file(tmp_path):
    rng = random.Random(6)
    last = -1
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 20
        while not (tmp_path / "state.pt").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.wait()
        process.stdout.close()
        found = penstock.load(tmp_path / "state.pt")
        assert (found["a"] == found["i"] % 100).all() and found["a"].numel() == 3_000_000
        last = max(last, found["i"])
    assert last > 0
    # Killed processes leave a file or two next to it, never more than one each.
    assert len(os.listdir(tmp_path)) <= 7


MEMORY = """
    import sys, penstock, torch
    state = {f"t{i}": torch.ones(64 << 20, dtype=torch.uint8) for i in range(4)}
    state["odd"] = [torch.ones(10_001, dtype=torch.uint8) for _ in range(500)]

    def of(key):
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024

    penstock.save({"a": torch.ones(3)}, sys.argv[1])
    for name in ("state.pt", "state.safetensors"):
        saved = state if name.endswith("pt") else {key: state[key] for key in state if key != "odd"}
        open("/proc/self/clear_refs", "w").write("5")
        before = of("VmRSS")
        penstock.save(saved, name)
        print((of("VmHWM") - before) >> 20)
"""


def test_memory_above_the_state(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(MEMORY), "warm.pt"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert max(map(int, made.stdout.split())) <= 96, made.stdout  # MiB


FULL = """
    import os, penstock, pytest, torch
    penstock.save({"a": torch.ones(100)}, "small.pt")
    with pytest.raises(OSError, match="bytes are missing") as caught:
        penstock.save({"a": torch.zeros(30 << 20, dtype=torch.uint8)}, "small.pt")
    assert caught.value.errno == 28 and os.listdir(".") == ["small.pt"]
    assert penstock.load("small.pt")["a"].sum() == 100
    with pytest.raises(OSError) as caught:
        with penstock.FileWriter("small.pt", buffer_bytes=1 << 20) as file:
            torch.save({"a": torch.zeros(30 << 20, dtype=torch.uint8)}, file)
    assert caught.value.errno == 28 and os.listdir(".") == ["small.pt"]
    assert penstock.load("small.pt")["a"].sum() == 100
"""


def test_a_full_disk(tmp_path):
    if os.getuid() != 0:
        pytest.skip("needs root")
    script = "mount -t tmpfs -o size=8m none . && cd . && cd $PWD && exec " + sys.executable + ' -c "$SCRIPT"'
    environment = {**os.environ, "SCRIPT": textwrap.dedent(FULL)}
    made = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    if "unshare" in made.stderr or "mount:" in made.stderr:
        pytest.skip("needs a mount namespace")
    assert made.returncode == 0, made.stderr


# ---- an index of shards


def weights():
    torch.manual_seed(2)
    return {f"layer.{i}": torch.randn(100, 100) for i in range(7)}


def test_shards(tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    penstock.save(weights(), path, shard_bytes=100_000, metadata={"format": "pt", "by": "us"})
    index = json.loads(path.read_text())
    assert index["metadata"].pop("penstock.index")  # the mark of who wrote it
    assert index["metadata"] == {"total_size": 280_000} and sorted(index["weight_map"]) == sorted(weights())
    assert sorted(set(index["weight_map"].values())) == [f"model-{i:05d}-of-00004.safetensors" for i in range(1, 5)]
    found = penstock.load(path)
    assert all(torch.equal(found[name], tensor) for name, tensor in weights().items())
    assert sorted(os.listdir(tmp_path)) == sorted({*index["weight_map"].values(), path.name})
    assert [info.name for info in penstock.inspect(path)] == list(weights())
    # Again, over it: shards of both are there until the index has changed, and then those of one.
    penstock.save({name: tensor + 1 for name, tensor in weights().items()}, path, shard_bytes=100_000)
    found = penstock.load(path)
    assert all(torch.equal(found[name], tensor + 1) for name, tensor in weights().items())
    shards = set(json.loads(path.read_text())["weight_map"].values())
    assert len(shards) == 4 and sorted(os.listdir(tmp_path)) == sorted({*shards, path.name})
    # A failed save leaves nothing.
    with pytest.raises(TypeError):
        penstock.save({**weights(), "x": 1}, path)

    def refuse(done, total):
        if done > 100_000:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError):
        penstock.save(weights(), path, shard_bytes=100_000, progress=refuse)
    assert sorted(os.listdir(tmp_path)) == sorted({*shards, path.name})
    with pytest.raises(ValueError, match="shard_bytes"):
        penstock.save(weights(), path, shard_bytes=0)


# ---- FileWriter


def test_file_writer_takes_what_torch_save_writes(tmp_path):
    path = tmp_path / "state.pt"
    path.write_bytes(b"old")
    path.chmod(0o640)
    for legacy in (False, True):
        with penstock.FileWriter(path, buffer_bytes=1 << 20) as file:
            torch.save(state(), file, _use_new_zipfile_serialization=not legacy)
            assert not file.closed and file.tell() > 2_800_000
        assert file.closed and stat.S_IMODE(path.stat().st_mode) == 0o640
        same(state(), torch.load(path))
        same(state(), penstock.load(path))
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")
    assert os.listdir(tmp_path) == ["state.pt"]


def test_file_writer_that_fails_or_is_dropped_changes_nothing(tmp_path):
    path = tmp_path / "link.pt"
    (tmp_path / "state.pt").write_bytes(b"old")
    path.symlink_to("state.pt")
    with pytest.raises(ZeroDivisionError), penstock.FileWriter(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    file = penstock.FileWriter(path)
    file.write(b"new")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del file
    assert [w.category for w in caught] == [ResourceWarning]
    assert path.read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["link.pt", "state.pt"]
    file = penstock.FileWriter(path)
    pickle.dump([1, 2], file)
    file.close()
    assert path.is_symlink() and pickle.loads(path.read_bytes()) == [1, 2]
    with pytest.raises(FileNotFoundError):
        penstock.FileWriter(tmp_path / "no" / "file")
    with pytest.raises(TypeError, match="give a path"):
        penstock.FileWriter(5)


def test_a_dict_that_changes_while_it_is_saved_is_an_error(tmp_path, monkeypatch):
    state = {"tensor": torch.ones(3), "other": 2}
    storage = torch.Tensor.untyped_storage

    def growing(self):
        state.update({f"more {i}": i for i in range(1000)})
        return storage(self)

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "untyped_storage", growing)
        with pytest.raises(RuntimeError, match="changed while it was saved"):
            penstock.save(state, tmp_path / "state.pt")

    class Clearing:
        @property
        def __class__(self):
            state.clear()
            return int

    state.clear()
    state.update({("key" + str(i)) * 30: Clearing() for i in range(3)})
    with pytest.raises(TypeError, match="key0key0.*cannot be saved"):
        penstock.save(state, tmp_path / "state.pt")
    assert list(tmp_path.iterdir()) == []


def test_the_collector_of_cycles_stays_out_of_it_and_is_as_it_was(tmp_path):
    state = [torch.zeros(1) for _ in range(20_000)]
    runs = []
    gc.callbacks.append(lambda phase, info: runs.append(phase))
    try:
        gc.collect()
        runs.clear()
        _core._format.image_of_state(state, "archive", None)
        assert len(runs) <= 2, "20,000 objects for storages are nothing to collect"
        gc.disable()
        penstock.save(state[:1], tmp_path / "a.pt")
        assert not gc.isenabled()
        gc.enable()
        with pytest.raises(TypeError):
            penstock.save([state[0], object()], tmp_path / "b.pt")
        assert gc.isenabled()
    finally:
        gc.callbacks.pop()
        gc.enable()
