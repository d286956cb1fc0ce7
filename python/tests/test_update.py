# SPDX-License-Identifier: Apache-2.0
"""update(): tensors of a saved file are changed in place, by any writer's file, and other programs accept it. What is
refused is refused before a byte is written; logs that are not of the file are reported and left; a process that is
killed, and readers next to one, see all of the old or all of the new tensors."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import zipfile

import numpy as np
import penstock
import pytest
from penstock.safetensors import safe_open

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

INDEX = ".safetensors.index.json"
LOG = ".penstock-update"


def state():
    torch.manual_seed(1)
    return {
        "big": torch.randn(300, 1000),
        "small": torch.randn(7),
        "half": torch.randn(5, 3).to(torch.bfloat16),
        "flags": torch.arange(77_001) % 3 == 0,
        "none": torch.zeros(0, 4),
        "scalar": torch.tensor(7),
        "kept": torch.randn(70_000),
    }


def changed(old, names):
    made = {}
    for i, name in enumerate(names):
        tensor = old[name]
        bits = torch.randint(0, 2, tensor.shape, generator=torch.Generator().manual_seed(i + 5))
        made[name] = bits.bool() if tensor.dtype == torch.bool else (bits * 3 + i).to(tensor.dtype)
    return made


def legacy(tensors, path):
    torch.save(tensors, path, _use_new_zipfile_serialization=False)


def with_python_zip(tensors, path):
    """Written again by Python's zipfile: no data descriptors, other headers."""
    torch.save(tensors, f"{path}.0")
    with zipfile.ZipFile(f"{path}.0") as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    os.remove(f"{path}.0")


def without_sums(tensors, path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(tensors, path)
    finally:
        torch.serialization.set_crc32_options(True)


WRITERS = {
    "torch.pt": torch.save,
    "legacy.pt": legacy,
    "zipfile.pt": with_python_zip,
    "crcless.pt": without_sums,
    "ours.pt": penstock.save,
    "stock.safetensors": safetensors_torch.save_file,
    "ours.safetensors": penstock.save,
    "one" + INDEX: penstock.save,
    "many" + INDEX: lambda tensors, path: penstock.save(tensors, path, shard_bytes=200_000),
}


def stock(path):
    if str(path).endswith(".pt"):
        return torch.load(path, weights_only=True)
    shards = [path] if not str(path).endswith(".json") else sorted(path.parent.glob("*.safetensors"))
    return {name: tensor for shard in shards for name, tensor in safetensors_torch.load_file(shard).items()}


def same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def verified(path):
    result = subprocess.run(
        [sys.executable, "-m", "penstock", "checkpoint", "verify", path], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_any_writer(tmp_path, name):
    path, old = tmp_path / name, state()
    WRITERS[name](old, path)
    files = sorted(os.listdir(tmp_path))
    size = path.stat().st_size
    new = changed(old, ["big", "small", "half", "flags", "scalar", "none"])
    penstock.update(path, new)
    assert sorted(os.listdir(tmp_path)) == files and path.stat().st_size == size
    same(stock(path), {**old, **new})
    same(penstock.load(path), {**old, **new})
    same(penstock.load(path, mmap=True), {**old, **new})
    if name.endswith(".pt") and name not in ("legacy.pt", "crcless.pt"):
        assert zipfile.ZipFile(path).testzip() is None
    verified(path)


@pytest.mark.parametrize("name", ["ours.pt", "torch.pt", "stock.safetensors", "ours.safetensors"])
def test_the_bytes_are_those_of_a_fresh_save(tmp_path, name):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    path, fresh, old = tmp_path / "a" / name, tmp_path / "b" / name, state()
    new = changed(old, ["big", "flags"])
    WRITERS[name](old, path)
    WRITERS[name]({**old, **new}, fresh)
    penstock.update(path, new)
    if name == "torch.pt":  # its serialization id is a hash of the CRCs
        with zipfile.ZipFile(path) as ours, zipfile.ZipFile(fresh) as theirs:
            rows = [(i.filename, i.CRC) for i in theirs.infolist() if "serialization_id" not in i.filename]
            assert [(i.filename, i.CRC) for i in ours.infolist() if "serialization_id" not in i.filename] == rows
    else:
        assert path.read_bytes() == fresh.read_bytes()


def test_other_layouts_types_and_owners(tmp_path):
    path = tmp_path / "s.pt"
    old = {
        "turned": torch.randn(50, 60).t(),
        "channels": torch.randn(4, 3, 5, 6).to(memory_format=torch.channels_last),
        "complex": torch.randn(5, dtype=torch.complex128),
        "deep": [{"x": torch.randn(3)}, (torch.arange(5),)],
        "owner": torch.nn.Parameter(torch.randn(3)),
    }
    torch.save(old, path)
    new = {
        "turned": torch.randn(50, 60).t()[:, :],
        "channels": torch.randn(4, 3, 5, 6),
        "complex": torch.randn(10, dtype=torch.complex128)[::2],
        "deep.0.x": torch.nn.Parameter(torch.randn(3)),
        "deep.1.0": np.arange(5) * 2,
        "owner": torch.ones(3),
    }
    penstock.update(path, new)
    found = torch.load(path)
    for name in ("turned", "channels", "complex"):
        assert torch.equal(found[name], new[name]) and found[name].stride() == old[name].stride()
    assert torch.equal(found["deep"][0]["x"], new["deep.0.x"].detach())
    assert found["deep"][1][0].tolist() == [0, 2, 4, 6, 8]
    assert isinstance(found["owner"], torch.nn.Parameter) and found["owner"].tolist() == [1, 1, 1]


def refusals(tmp_path):
    base = torch.randn(10)
    old = {"w": torch.randn(4, 3), "a": base, "b": base[:5], "tied": [torch.ones(2)] * 2, "part": torch.randn(9)[3:6]}
    path = tmp_path / "s.pt"
    torch.save(old, path)
    linked, store = tmp_path / "l.pt", tmp_path / "store"
    torch.save(old, linked)
    os.link(linked, tmp_path / "other_name.pt")
    second = tmp_path / "second"
    with penstock.CheckpointStore([store, second], shard_bytes=40) as saved:
        saved.save({"w": torch.randn(4, 3), "x": torch.randn(4, 3)}, step=1)
    shard, elsewhere = next(store.glob("*/*.safetensors")), next(second.glob("*/*.safetensors"))
    deflated = tmp_path / "d.pt"
    with zipfile.ZipFile(path) as there, zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as packed:
        for info in there.infolist():
            packed.writestr(info.filename, there.read(info))
    guarded = tmp_path / "guarded.pt"
    torch.save(old, guarded)
    guarded.chmod(0o444)
    return [
        (path, {"nobody": base}, KeyError, "nobody"),
        (path, {"w": torch.randn(3, 4)}, ValueError, "'w' is F32 .4, 3."),
        (path, {"w": torch.randn(4, 3).double()}, ValueError, "F64"),
        (path, {"w": torch.randn(4, 3), "a": base}, ValueError, "'a' shares its memory"),
        (path, {"b": base[:5]}, ValueError, "'b' shares its memory"),
        (path, {"tied.0": torch.ones(2)}, ValueError, "shares its memory"),
        (path, {"part": torch.randn(3)}, penstock.Unsupported, "a part of its storage"),
        (path, {"w": torch.empty(4, 3, device="meta")}, TypeError, "update: .*meta"),
        (path, [("w", base)], TypeError, "mapping"),
        (path, {"w": 3}, TypeError, "int"),
        (linked, {"w": old["w"]}, ValueError, "hard links"),
        (shard, {"w": old["w"]}, ValueError, "CheckpointStore"),
        (elsewhere, {"w": old["w"]}, ValueError, "CheckpointStore"),
        (deflated, {"w": old["w"]}, penstock.Unsupported, "compressed"),
        (guarded, {"w": old["w"]}, PermissionError, "read-only"),
        (tmp_path / "missing.pt", {"w": old["w"]}, FileNotFoundError, "missing"),
        (tmp_path, {"w": old["w"]}, IsADirectoryError, "directory"),
    ]


@pytest.mark.parametrize("number", range(17))
def test_what_is_refused_changes_nothing(tmp_path, number):
    path, new, error, message = refusals(tmp_path)[number]
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    with pytest.raises(error, match=message):
        penstock.update(path, new)
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before


def test_a_symbolic_link_is_followed_and_stays(tmp_path):
    (tmp_path / "blobs").mkdir()
    real, link = tmp_path / "blobs" / "0123", tmp_path / "model.safetensors"
    old = {"w": torch.zeros(1000)}
    safetensors_torch.save_file(old, real)
    link.symlink_to("blobs/0123")
    penstock.update(link, {"w": torch.ones(1000)})
    assert link.is_symlink() and bool(penstock.load(real)["w"].eq(1).all())
    assert os.listdir(tmp_path / "blobs") == ["0123"]


# ---- processes that are killed


_UPDATE = """
import sys
import numpy, penstock
penstock.update(sys.argv[1], {"a": numpy.full(3000, 2, "f4"), "b": numpy.full(5, 2, "f4")})
"""


def stopped(path, call, times):
    """Whether a process that updates a file was killed at the call number `times` of a kind."""
    inject = f"inject={call}:signal=KILL:when={times}"
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", inject]
    return subprocess.run([*strace, sys.executable, "-c", _UPDATE, path], capture_output=True).returncode != 0


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@pytest.mark.parametrize("name", ["torch.pt", "stock.safetensors", "many" + INDEX])
def test_a_killed_process_leaves_old_or_new_and_the_next_update_finishes(tmp_path, name):
    folder = tmp_path / "f"
    folder.mkdir()
    path = folder / name
    old = {"a": torch.ones(3000), "b": torch.ones(5), "c": torch.ones(70_000)}
    new = {"a": torch.full((3000,), 2.0), "b": torch.full((5,), 2.0)}
    (penstock.save if name.endswith(".json") else WRITERS[name])(
        old, path, **({"shard_bytes": 8000} if name.endswith(".json") else {})
    )
    seen = set()
    for call, times in (("fdatasync", 1), ("fdatasync", 2), ("renameat", 1), ("unlinkat,unlink", 1)):
        killed = stopped(path, call, times)
        files = {f.name: f.read_bytes() for f in folder.iterdir()}
        found = penstock.load(path)
        is_new = bool((found["b"] == 2).all())
        same(found, {**old, **new} if is_new else old)
        same(penstock.load(path, mmap=True), found)
        assert {f.name: f.read_bytes() for f in folder.iterdir()} == files
        seen.add((killed, is_new))
        penstock.update(path, new)
        same(stock(path), {**old, **new})
        assert not [f for f in os.listdir(folder) if LOG in f]
        penstock.update(path, {"a": old["a"], "b": old["b"]})
    assert (True, False) in seen and (True, True) in seen, seen


# ---- logs that are not of the file


def made_log(tmp_path, name="stock.safetensors"):
    """A file, its old bytes, and the log of an update of it, taken while that waits for its lock to be looked at."""
    path = tmp_path / name
    old = {"a": torch.ones(300_000), "b": torch.ones(5)}
    WRITERS[name](old, path)
    before, log, stop = path.read_bytes(), None, threading.Event()

    def watch():
        nonlocal log
        while not stop.is_set() and log is None:
            try:
                log = (tmp_path / (name + LOG)).read_bytes()
            except FileNotFoundError:
                continue

    for _ in range(50):
        thread = threading.Thread(target=watch)
        thread.start()
        penstock.update(path, {"a": torch.full((300_000,), 2.0)})
        stop.set()
        thread.join()
        if log:
            break
        stop.clear()
        path.write_bytes(before)
    assert log, "no log was seen"
    return path, before, log


def hostile(log, path, tmp_path):
    """Makes a log of each kind."""
    at = path.parent / (path.name + LOG)
    yield "cut", lambda: at.write_bytes(log[:-1]), True
    yield "cut_in_the_head", lambda: at.write_bytes(log[:100]), True
    yield "head_flipped", lambda: at.write_bytes(log[:50] + bytes([log[50] ^ 1]) + log[51:]), True
    yield "longer", lambda: at.write_bytes(log + b"x"), True
    yield "length", lambda: at.write_bytes(log[:24] + b"\xff" * 8 + log[32:]), True
    yield "empty", lambda: at.write_bytes(b""), False
    yield "text", lambda: at.write_text("hello"), False
    yield "zeros", lambda: at.write_bytes(bytes(len(log))), False
    yield "fifo", lambda: os.mkfifo(at), False
    yield "folder", at.mkdir, False
    yield "link", lambda: at.symlink_to(tmp_path / "elsewhere"), False
    yield "huge", lambda: (at.touch(), os.truncate(at, 1 << 40)), False


def test_logs_that_are_no_logs_are_reported_and_left(tmp_path):
    path, before, log = made_log(tmp_path)
    at = tmp_path / (path.name + LOG)
    (tmp_path / "elsewhere").write_bytes(log)
    for kind, make, is_broken in hostile(log, path, tmp_path):
        path.write_bytes(before)
        make()
        looked = os.lstat(at)
        if is_broken:  # of this file, maybe: what is in the file cannot be told
            with pytest.raises(penstock.Damaged, match=LOG):
                penstock.load(path)
        else:
            with pytest.warns(RuntimeWarning, match=LOG):
                found = penstock.load(path)
            assert bool((found["a"] == 1).all()), kind
        with pytest.raises((ValueError, penstock.Damaged), match=LOG):
            penstock.update(path, {"a": torch.zeros(300_000)})
        assert path.read_bytes() == before and os.lstat(at) == looked, kind
        shutil.rmtree(at) if kind == "folder" else os.remove(at)


def test_a_flipped_byte_of_the_new_tensors_is_found(tmp_path):
    path, before, log = made_log(tmp_path)
    path.write_bytes(before)
    flipped = bytearray(log)
    flipped[-1000] ^= 1
    (tmp_path / (path.name + LOG)).write_bytes(flipped)
    with pytest.raises(penstock.Damaged, match="checksum"):
        penstock.load(path)
    with pytest.raises(penstock.Damaged, match="checksum"):
        penstock.update(path, {"b": torch.zeros(5)})
    assert path.read_bytes() == before


@pytest.mark.parametrize("what", ["same_shapes", "other_size", "one_byte_of_another_tensor"])
def test_a_log_of_another_content_is_reported_and_left(tmp_path, what):
    path, before, log = made_log(tmp_path)
    if what == "same_shapes":  # saved again by another program, with what the log knows nothing of
        safetensors_torch.save_file({"a": torch.full((300_000,), 3.0), "b": torch.ones(5)}, path)
    elif what == "other_size":
        safetensors_torch.save_file({"a": torch.ones(300_001), "b": torch.ones(5)}, path)
    else:
        path.write_bytes(before[:-1] + b"\x7f")
    content = path.read_bytes()
    at = tmp_path / (path.name + LOG)
    at.write_bytes(log)
    with pytest.warns(RuntimeWarning, match=LOG):
        found = penstock.load(path)
    assert torch.equal(found["a"], safetensors_torch.load_file(path)["a"])
    for new in ({}, {"b": torch.zeros(5)}):
        with pytest.raises(ValueError, match=f"{LOG}.*another file, or of another content"):
            penstock.update(path, new)
    assert path.read_bytes() == content and at.read_bytes() == log


def test_every_reader_takes_the_log(tmp_path):
    path, before, log = made_log(tmp_path)
    half = bytearray(before)
    half[400_000:800_000] = path.read_bytes()[400_000:800_000]  # a part has reached the file
    path.write_bytes(half)
    at = tmp_path / (path.name + LOG)
    at.write_bytes(log)
    files = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    twos = torch.full((300_000,), 2.0)
    into = {"a": torch.zeros(300_000)}
    penstock.load(path, into=into, names=["a"])
    module = torch.nn.Module()
    module.a, module.b = torch.nn.Parameter(torch.zeros(300_000)), torch.nn.Parameter(torch.zeros(5))
    penstock.load_into(module, path)
    with open(path, "rb") as file:
        from_file = penstock.load(file)
    with safe_open(path, "pt") as opened:
        safe = opened.get_tensor("a")
    for found in (
        penstock.load(path)["a"],
        penstock.load(path, names="a"),
        penstock.load(path, names={"a": slice(10, None)})["a"],
        penstock.load(path, mmap=True)["a"],
        into["a"],
        module.a.detach(),
        from_file["a"],
        safe,
    ):
        assert torch.equal(found, twos[: len(found)])
    rows = penstock.TensorRows(path, "a")
    assert rows.gather([5, 299_999]).tolist() == [2, 2]
    assert [i.name for i in penstock.inspect(path)] == ["a", "b"]
    out = tmp_path / "out"
    run = [sys.executable, "-m", "penstock", "checkpoint"]
    subprocess.run([*run, "convert", path, f"{out}.pt"], check=True, capture_output=True)
    assert torch.equal(torch.load(f"{out}.pt")["a"], twos)
    os.remove(f"{out}.pt")
    verified(path)
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == files
    penstock.update(path, {})
    assert not at.exists() and torch.equal(safetensors_torch.load_file(path)["a"], twos)


@pytest.mark.parametrize("what", ["the_old_state", "another"])
def test_a_save_over_a_log_takes_it_away(tmp_path, what):
    path, before, log = made_log(tmp_path)
    path.write_bytes(before)
    (tmp_path / (path.name + LOG)).write_bytes(log)
    assert bool((penstock.load(path)["a"] == 2).all())
    saved = {"a": torch.ones(300_000) * (1 if what == "the_old_state" else 5), "b": torch.ones(5)}
    penstock.save(saved, path)
    assert os.listdir(tmp_path) == [path.name]
    same(penstock.load(path), saved)


# ---- at the same time


_UPDATES = """
import sys, time
import numpy, penstock
end = time.monotonic() + 1
number = int(sys.argv[2])
while time.monotonic() < end:
    number += 2
    penstock.update(sys.argv[1], {"a": numpy.full(40_000, number, "f4"), "b": numpy.full(9, number, "f4")})
"""


@pytest.mark.filterwarnings("error:.*did not come to its end")
@pytest.mark.parametrize("name", ["stock.safetensors", "torch.pt", "many" + INDEX])
def test_readers_next_to_updaters_never_see_a_mix(tmp_path, name):
    """Two updaters, which wait for each other, and a reader, which gets an error where it meets an update."""
    path = tmp_path / name
    WRITERS[name]({"a": torch.zeros(40_000), "b": torch.zeros(9), "c": torch.ones(50_000)}, path)
    updaters = [subprocess.Popen([sys.executable, "-c", _UPDATES, path, str(first)]) for first in (0, 1)]
    values, errors = set(), 0
    while any(updater.poll() is None for updater in updaters):
        try:
            found = penstock.load(path)
        except (penstock.Damaged, FileNotFoundError):
            errors += 1
            continue
        assert found["a"].unique().numel() == 1 and found["b"].unique().numel() == 1
        assert found["a"][0] == found["b"][0], "half of an update"
        assert bool((found["c"] == 1).all())
        values.add(float(found["a"][0]))
    assert [updater.returncode for updater in updaters] == [0, 0]
    assert len(values) > 2, (values, errors)
    assert not [f for f in os.listdir(tmp_path) if LOG in f]
    verified(path)


def test_a_second_updater_is_refused_while_the_first_is_at_work(tmp_path):
    import fcntl

    path = tmp_path / "s.pt"
    torch.save({"a": torch.ones(3)}, path)
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="another update"):
            penstock.update(path, {"a": torch.zeros(3)})
    penstock.update(path, {"a": torch.zeros(3)})


@pytest.mark.parametrize("name", WRITERS)
def test_random_updates(tmp_path, name):
    """Against a model, by a seed."""
    lot = random.Random(name)
    path = tmp_path / name
    there = {f"t{i}": torch.randn(lot.choice((1, 3, 100, 5000, 65_536, 70_001))) for i in range(6)}
    WRITERS[name](there, path)
    for _ in range(6):
        new = {n: torch.randn(t.shape) for n, t in there.items() if lot.random() < 0.4}
        penstock.update(path, new)
        there.update(new)
        same(penstock.load(path), there)
    same(stock(path), there)


def test_ctrl_c_in_the_progress_leaves_the_old_file(tmp_path):
    path = tmp_path / "s.pt"
    torch.save({"a": torch.ones(3_000_000)}, path)
    before = path.read_bytes()

    def report(done, total):
        os.kill(os.getpid(), signal.SIGINT)
        return True

    with pytest.raises(KeyboardInterrupt):
        penstock.update(path, {"a": torch.zeros(3_000_000)}, progress=report)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["s.pt"]
