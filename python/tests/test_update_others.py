# SPDX-License-Identifier: Apache-2.0
"""update() next to programs that know nothing of its lock and its log, and what a killed one leaves: what others write
stays, no file is made, and shards that do not belong together are an error."""

import os
import shutil
import subprocess
import sys
import threading
import time

import penstock
import pytest
from test_update import INDEX, LOG, WRITERS, same, stock, stopped

torch = pytest.importorskip("torch")


# ---- programs that take no lock, at the same time


def saved_in_place(kind, path):
    """Another program gives the file another content while the tensors go to the log."""
    other = {"b": torch.full((5,), 3.0), "a": torch.full((3_000_000,), 3.0)}
    if kind == "appended":
        with open(path, "ab") as file:
            file.write(b"x")
    elif kind == "rows":
        with open(path, "r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(b"\1" * 8)
    else:  # not replaced: written over
        WRITERS[path.name](other, path.with_name("other"))
        path.write_bytes(path.with_name("other").read_bytes())
        path.with_name("other").unlink()


@pytest.mark.parametrize("kind", ["saved", "rows", "appended"])
@pytest.mark.parametrize("name", ["torch.pt", "stock.safetensors"])
def test_what_another_program_writes_meanwhile_stays(tmp_path, name, kind):
    path = tmp_path / name
    WRITERS[name]({"a": torch.ones(3_000_000), "b": torch.ones(5)}, path)
    content = None

    def report(done, total):
        nonlocal content
        if content is None:
            saved_in_place(kind, path)
            content = path.read_bytes()
        return True

    with pytest.raises(penstock.Error, match="another program wrote to the file meanwhile; nothing was written"):
        penstock.update(path, {"a": torch.zeros(3_000_000)}, progress=report)
    assert path.read_bytes() == content and os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("what", [os.remove, lambda path: os.rename(path, f"{path}.away")])
def test_a_file_that_goes_away_is_not_made(tmp_path, what):
    import fcntl

    path = tmp_path / "s.pt"
    torch.save({"a": torch.ones(3)}, path)
    errors = []

    def call():
        try:
            penstock.update(path, {"a": torch.zeros(3)})
        except OSError as error:
            errors.append(error)

    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=call)
        thread.start()
        time.sleep(0.2)  # it waits for the lock
        what(path)
    thread.join()
    assert isinstance(errors[0], FileNotFoundError) and not path.exists()


_HELD = """
import sys
import numpy, penstock
try:
    penstock.update(sys.argv[1], {"a": numpy.full(300_000, 2, "f4")})
except penstock.Error as error:
    print(error)
"""


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@pytest.mark.parametrize("what", ["saved_in_place", "replaced", "replaced_and_updated", "log_moved"])
def test_a_file_that_changes_before_it_is_written(tmp_path, what):
    """The updater waits between the name of its log and the first byte of the file."""
    name = "torch.pt"
    path = tmp_path / name
    old, other = ({"a": torch.full((300_000,), value), "b": torch.ones(5)} for value in (1.0, 3.0))
    WRITERS[name](old, path)
    held = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=rename,renameat,renameat2:delay_exit=800000"]
    updater = subprocess.Popen([*held, sys.executable, "-c", _HELD, path], stdout=subprocess.PIPE, text=True)
    at = tmp_path / (name + LOG)
    while not at.exists() and updater.poll() is None:
        time.sleep(0.002)
    if what == "saved_in_place":
        WRITERS[name](other, tmp_path / "new")
        path.write_bytes((tmp_path / "new").read_bytes())
        os.remove(tmp_path / "new")
    elif what == "log_moved":
        at.rename(tmp_path / "log")
    else:
        WRITERS[name](other, tmp_path / "new")
        os.replace(tmp_path / "new", path)
    if what == "replaced_and_updated":
        at.unlink()  # of the other file
        penstock.update(path, {"b": torch.full((5,), 4.0)})
        other["b"] = torch.full((5,), 4.0)
    content = path.read_bytes()
    said = updater.communicate()[0]
    assert path.read_bytes() == content
    same(stock(path), old if what == "log_moved" else other)
    assert sorted(os.listdir(tmp_path)) == sorted([name] + ["log"] * (what == "log_moved"))
    if what in ("saved_in_place", "log_moved"):
        assert "another program" in said and "nothing was written" in said


# ---- what a killed update leaves


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@pytest.mark.parametrize(
    "name, how", [("stock.safetensors", "update"), ("stock.safetensors", "save"), ("many" + INDEX, "update")]
)
def test_the_unfinished_log_of_a_killed_update_goes(tmp_path, name, how):
    folder = tmp_path / "f"
    folder.mkdir()
    path, old = folder / name, {"a": torch.ones(3000), "b": torch.ones(5), "c": torch.ones(70_000)}
    save = penstock.save if name.endswith(".json") else WRITERS[name]
    save(old, path, **({"shard_bytes": 8000} if name.endswith(".json") else {}))
    files = sorted(os.listdir(folder))
    assert stopped(path, "fdatasync", 1) and any(f.endswith(".tmp") for f in os.listdir(folder))
    if how == "update":
        penstock.update(path, {})
    else:
        penstock.save(old, path)
    assert sorted(os.listdir(folder)) == files


def interrupted(path, tmp_path):
    """An index of two shards, both with logs; the first shard has its new bytes, and the second its old ones."""
    penstock.save({"a": torch.ones(3000), "b": torch.ones(3000)}, path, shard_bytes=12_000)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    old = second.read_bytes()
    new = '{"a": numpy.full(3000, 2, "f4"), "b": numpy.full(3000, 2, "f4")}'
    code = f"import sys\nimport numpy, penstock\npenstock.update(sys.argv[1], {new})"
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=fdatasync:signal=KILL:when=5"]
    assert subprocess.run([*strace, sys.executable, "-c", code, path], capture_output=True).returncode != 0
    leader = tmp_path / (path.name + LOG)
    second.write_bytes(old)
    assert bool((penstock.load(path)["b"] == 2).all())
    return first, second, leader


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_shards_that_lost_the_log_of_their_index(tmp_path):
    path = tmp_path / ("m" + INDEX)
    first, second, leader = interrupted(path, tmp_path)
    leader.unlink()
    files = {f: f.read_bytes() for f in tmp_path.iterdir()}
    for call in (lambda: penstock.load(path), lambda: penstock.load(first), lambda: penstock.update(path, {})):
        with pytest.raises(penstock.Damaged, match="makes it valid.*is gone"):
            call()
    assert {f: f.read_bytes() for f in tmp_path.iterdir()} == files


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_a_shard_that_was_saved_again_after_a_crash(tmp_path):
    path = tmp_path / ("m" + INDEX)
    first, second, leader = interrupted(path, tmp_path)
    penstock.save({"b": torch.full((3000,), 7.0)}, second)
    with pytest.raises(penstock.Damaged, match=f"'{second}' was saved again since"):
        penstock.load(path)
    penstock.update(first, {})
    same(penstock.load(path), {"a": torch.full((3000,), 2.0), "b": torch.full((3000,), 7.0)})
    assert not [f for f in os.listdir(tmp_path) if LOG in f]


def test_the_folder_of_the_process_may_change_meanwhile(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.ones(300_000)}, "s.pt")

    def report(done, total):
        os.chdir(tmp_path / "elsewhere")
        return True

    penstock.update("s.pt", {"a": torch.zeros(300_000)}, progress=report)
    same(torch.load(tmp_path / "s.pt"), {"a": torch.zeros(300_000)})
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "s.pt"]


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@pytest.mark.parametrize("name", ["torch.pt", "stock.safetensors"])
def test_what_is_read_from_the_log_of_an_interrupted_update_is_said(tmp_path, name):
    """The file may have been restored from a copy since: its bytes are those before the update, and nobody knows."""
    path = tmp_path / name
    old = {"a": torch.ones(3000), "b": torch.ones(5), "c": torch.ones(70_000)}
    WRITERS[name](old, path)
    kept = path.read_bytes()
    assert stopped(path, "fdatasync", 2)
    path.write_bytes(kept)  # the copy
    with pytest.warns(RuntimeWarning, match=f"did not come to its end: .*{name}{LOG}.* restored from a copy since"):
        penstock.load(path)
    os.remove(f"{path}{LOG}")
    same(penstock.load(path), old)


def test_a_file_that_only_has_the_name_of_a_log_stays(tmp_path):
    path, note = tmp_path / "s.pt", tmp_path / f"s.pt{LOG}"
    note.write_text("a text of mine\n")
    penstock.save({"a": torch.ones(3)}, path)
    penstock.save(iter([("a", torch.ones(3))]), path)
    assert note.read_text() == "a text of mine\n"


@pytest.mark.parametrize("name", ["torch.pt", "m" + INDEX])
def test_a_file_that_gets_the_name_of_a_log_meanwhile_stays(tmp_path, name):
    path, note = tmp_path / name, tmp_path / (name + LOG)
    state = {"a": torch.ones(3000), "b": torch.ones(3000)}
    if name == "torch.pt":
        torch.save(state, path)
    else:
        penstock.save(state, path, shard_bytes=12_000)
    there = sorted([*os.listdir(tmp_path), note.name])

    def report(done, total):
        note.write_text("a text of mine\n")
        return True

    with pytest.raises(penstock.Changed, match=f"{LOG}.*made this file.*nothing was written"):
        penstock.update(path, {key: torch.zeros(3000) for key in state}, progress=report)
    assert note.read_text() == "a text of mine\n" and sorted(os.listdir(tmp_path)) == there
    note.unlink()
    same(penstock.load(path), state)


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_a_folder_that_may_not_be_listed(tmp_path):
    path = tmp_path / "s.safetensors"
    WRITERS["stock.safetensors"]({"a": torch.ones(300), "b": torch.ones(5)}, path)
    code = "import sys, numpy, penstock; penstock.update(sys.argv[1], {'a': numpy.zeros(300, 'f4')})"
    refused = ["-P", tmp_path, "-e", "inject=open,openat:error=EACCES"]
    subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", *refused, sys.executable, "-c", code, path], check=True)
    assert os.listdir(tmp_path) == [path.name]
    same(penstock.load(path), {"a": torch.zeros(300), "b": torch.ones(5)})
