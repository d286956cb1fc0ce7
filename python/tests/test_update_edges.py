# SPDX-License-Identifier: Apache-2.0
"""update() at its edges: what lies next to a file and is not a store's, names that are too long for a log, CRCs that
are 0, shards of torch.save, indexes that share a folder, and files that are replaced at the last moment."""

import json
import os
import shutil
import stat
import subprocess
import sys
import time
import zipfile
import zlib

import penstock
import pytest
from test_state_shards import save_bin
from test_update import INDEX, LOG, WRITERS, same, stock

torch = pytest.importorskip("torch")

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")


def contents(folder):
    return {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}


# ---- a manifest.json that is no store's


@pytest.mark.parametrize("text", ['{"name": "web app", "start_url": "/"}', "", "[1, 2]", '{"penstock": 1}', None])
def test_any_manifest_beside_the_file_is_no_store(tmp_path, text):
    beside = tmp_path / "manifest.json"
    beside.mkdir() if text is None else beside.write_text(text)
    path = tmp_path / "s.safetensors"
    penstock.save({"a": torch.ones(3)}, path)
    penstock.update(path, {"a": torch.zeros(3)})
    same(penstock.load(path), {"a": torch.zeros(3)})
    index = tmp_path / ("m" + INDEX)
    penstock.save({"a": torch.ones(3), "b": torch.ones(3)}, index, shard_bytes=12)
    penstock.update(index, {"a": torch.zeros(3), "b": torch.zeros(3)})
    same(penstock.load(index), {"a": torch.zeros(3), "b": torch.zeros(3)})


@pytest.mark.parametrize("damage", [lambda text: text, lambda text: text[:40], lambda text: b"\0" * 30 + text[30:]])
def test_a_checkpoint_with_a_damaged_manifest_stays_as_it_is(tmp_path, damage):
    with penstock.CheckpointStore(tmp_path / "store", shard_bytes=40) as store:
        store.save({"w": torch.ones(12), "x": torch.ones(12)}, step=1)
    manifest = next((tmp_path / "store").glob("*/manifest.json"))
    manifest.write_bytes(damage(manifest.read_bytes()))
    before = contents(tmp_path)
    index = manifest.with_name("model.safetensors.index.json")
    for path in (next(manifest.parent.glob("*.safetensors")), index):
        with pytest.raises(ValueError, match="belongs to a CheckpointStore"):
            penstock.update(path, {"w": torch.zeros(12)})
    with pytest.raises(ValueError, match="checkpoint of a store"):
        penstock.save({"w": torch.zeros(12)}, index, shard_bytes=40)
    assert contents(tmp_path) == before


# ---- long names


LONG = "n" * 300


@pytest.mark.parametrize("end, size", [(".pt", 240), (".safetensors", 255), ("Ü.pt", 240)])
def test_a_name_that_is_too_long_for_a_log(tmp_path, end, size):
    path = tmp_path / (LONG[: size - len(end.encode())] + end)
    penstock.save({"a": torch.ones(3)}, path)
    before = contents(tmp_path)
    message = f"name of its log, '.*{LOG}', has {size + 16} bytes.*at most 239.*nothing was written"
    with pytest.raises(penstock.Error, match=message):
        penstock.update(path, {"a": torch.zeros(3)})
    assert contents(tmp_path) == before
    short = tmp_path / (LONG[: 239 - len(end.encode())] + end)
    path.rename(short)
    penstock.update(short, {"a": torch.zeros(3)})
    same(stock(short), {"a": torch.zeros(3)})
    assert os.listdir(tmp_path) == [short.name]


def test_an_index_whose_name_is_too_long_for_a_log(tmp_path):
    state = {"a": torch.ones(3), "b": torch.ones(3)}
    penstock.save(state, tmp_path / ("m" + INDEX), shard_bytes=12)
    index = tmp_path / (LONG[: 240 - len(INDEX)] + INDEX)
    (tmp_path / ("m" + INDEX)).rename(index)
    before = contents(tmp_path)
    with pytest.raises(penstock.Error, match=f"{LOG}', has 256 bytes.*at most 239.*nothing was written"):
        penstock.update(index, {name: torch.zeros(3) for name in state})
    assert contents(tmp_path) == before
    penstock.update(index, {"b": torch.zeros(3)})  # one shard needs no such log
    same(penstock.load(index), {"a": torch.ones(3), "b": torch.zeros(3)})


@pytest.mark.parametrize("end", [".pt", ".safetensors"])
def test_a_save_under_a_name_as_long_as_names_may_be(tmp_path, end):
    path = tmp_path / (LONG[: 255 - len(end)] + end)
    for value in (1, 2):
        penstock.save({"a": torch.full((3,), value)}, path)
    same(stock(path), {"a": torch.full((3,), 2)})
    assert os.listdir(tmp_path) == [path.name]
    with pytest.raises(penstock.Error, match="256 bytes.*at most 255"):
        penstock.save({"a": torch.ones(3)}, tmp_path / (LONG[: 256 - len(end)] + end))
    assert os.listdir(tmp_path) == [path.name]


def test_a_save_of_an_index_whose_shards_have_too_long_names(tmp_path):
    with pytest.raises(penstock.Error, match="256 bytes.*at most 255.*shorter name"):
        penstock.save({"a": torch.ones(3)}, tmp_path / ("n" * 220 + INDEX), shard_bytes=12)
    assert os.listdir(tmp_path) == []
    path = tmp_path / ("n" * 219 + INDEX)
    penstock.save({"a": torch.ones(3)}, path, shard_bytes=12)
    same(penstock.load(path), {"a": torch.ones(3)})


# ---- CRCs that are 0


def with_crc_0(count):
    """Bytes whose CRC-32 is 0: the last four undo the CRC of the others."""
    table = [zlib.crc32(bytes([i ^ 0xFF])) ^ 0xFF000000 for i in range(256)]
    by_top = {row >> 24: i for i, row in enumerate(table)}
    data = bytes(i % 251 for i in range(count - 4))
    register, wanted = zlib.crc32(data) ^ 0xFFFFFFFF, 0xFFFFFFFF
    rows = []
    for _ in range(4):
        rows.insert(0, by_top[wanted >> 24])
        wanted = ((wanted ^ table[rows[0]]) << 8) & 0xFFFFFFFF
    for row in rows:
        data += bytes([(register ^ row) & 0xFF])
        register = (register >> 8) ^ table[row]
    assert zlib.crc32(data) == 0
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@pytest.mark.parametrize("name", ["torch.pt", "zipfile.pt", "ours.pt"])
def test_a_crc_that_is_0(tmp_path, name):
    path, zero = tmp_path / name, with_crc_0(5000)
    other = torch.arange(5000).to(torch.uint8)
    WRITERS[name]({"a": zero, "b": torch.ones(3)}, path)
    for value in (other, zero, zero.flip(0), zero, other):
        penstock.update(path, {"a": value})
        assert zipfile.ZipFile(path).testzip() is None
        same(stock(path), {"a": value, "b": torch.ones(3)})
        same(penstock.load(path), {"a": value, "b": torch.ones(3)})
        crc = next(i.CRC for i in zipfile.ZipFile(path).infolist() if i.file_size == 5000)
        assert crc == zlib.crc32(value.numpy().tobytes())


# ---- an index of shards of torch.save


def bin_state():
    base = torch.arange(6000.0)
    return {
        "a": torch.ones(3000),
        "b": torch.full((7,), 2.0),
        "part": base[1000:1010],
        "tied": base[1000:1010],
        "c": torch.full((3000,), 3.0),
        "d": torch.full((5,), 4.0),
        "alone": torch.arange(9.0)[3:6],
        "owner": torch.nn.Parameter(torch.ones(3)),
    }


def crcs_fit(folder):
    return all(zipfile.ZipFile(f).testzip() is None for f in folder.glob("*.bin"))


def test_shards_of_torch_save_keep_their_crcs(tmp_path):
    state = bin_state()
    index = save_bin(tmp_path, state)
    new = {"a": torch.zeros(3000), "d": torch.zeros(5), "owner": torch.zeros(3)}
    penstock.update(index, new)
    assert crcs_fit(tmp_path)
    same(penstock.load(index), {**state, **new})
    same({k: v for f in tmp_path.glob("*.bin") for k, v in torch.load(f).items()}, {**state, **new})
    assert sorted(os.listdir(tmp_path)) == sorted(f.name for f in [*tmp_path.glob("*.bin"), index])


@pytest.mark.parametrize("name, error", [("part", ValueError), ("tied", ValueError), ("alone", penstock.Unsupported)])
def test_a_part_of_a_storage_in_a_shard_of_torch_save_is_refused(tmp_path, name, error):
    state = bin_state()
    index = save_bin(tmp_path, state)
    before = contents(tmp_path)
    with pytest.raises(error, match=f"{name}.*nothing was written"):
        penstock.update(index, {name: torch.zeros(state[name].shape)})
    assert contents(tmp_path) == before


_NEW = """
import sys
import numpy, penstock
shapes = dict(row.split("=") for row in sys.argv[2:])
penstock.update(sys.argv[1], {name: numpy.full(int(count), 9, "f4") for name, count in shapes.items()})
"""


def killed(call, times, path, **shapes):
    """A process that updates a file, and is killed at the call number `times` of a kind."""
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={times}"]
    rows = [f"{name}={count}" for name, count in shapes.items()]
    return subprocess.run([*strace, sys.executable, "-c", _NEW, path, *rows], capture_output=True).returncode != 0


@needs_strace
def test_a_killed_update_of_shards_of_torch_save(tmp_path):
    state = bin_state()
    index = save_bin(tmp_path, state)
    new = {"a": torch.full((3000,), 9.0), "d": torch.full((5,), 9.0)}
    assert killed("fdatasync", 4, index, a=3000, d=5)  # both logs, the leader, and one shard
    with pytest.warns(RuntimeWarning, match="did not come to its end"):
        same(penstock.load(index), {**state, **new})
    penstock.update(index, {})
    assert crcs_fit(tmp_path) and not [f for f in os.listdir(tmp_path) if LOG in f]
    same({k: v for f in tmp_path.glob("*.bin") for k, v in torch.load(f).items()}, {**state, **new})


# ---- the log that is named after an index


def two_indexes(tmp_path):
    """Two indexes of one name in two folders, with links to shards in a third."""
    shards = tmp_path / "shards"
    shards.mkdir()
    indexes = []
    for i, place in enumerate(("one", "two")):
        folder = tmp_path / place
        folder.mkdir()
        rows = {}
        for name in ("a", "b"):
            shard = f"{place}-{name}.safetensors"
            penstock.save({name: torch.full((3000,), float(i))}, shards / shard)
            (folder / shard).symlink_to(shards / shard)
            rows[name] = shard
        indexes.append(folder / ("m" + INDEX))
        indexes[-1].write_text(json.dumps({"metadata": {}, "weight_map": rows}))
    return indexes


@needs_strace
def test_indexes_of_one_name_whose_shards_share_a_folder(tmp_path):
    one, two = two_indexes(tmp_path)
    assert killed("fdatasync", 4, one, a=3000, b=3000)
    new = {"a": torch.full((3000,), 5.0), "b": torch.full((3000,), 5.0)}
    penstock.update(two, new)
    same(penstock.load(two), new)
    nines = {name: torch.full((3000,), 9.0) for name in new}
    with pytest.warns(RuntimeWarning, match="did not come to its end"):
        same(penstock.load(one), nines)
    penstock.update(one, {})
    same({name: stock(tmp_path / "shards" / f"one-{name}.safetensors")[name] for name in new}, nines)
    assert not [f for f in os.listdir(tmp_path / "shards") if LOG in f]


def test_an_index_that_has_a_file_by_two_names(tmp_path):
    shard, link = tmp_path / "x.safetensors", tmp_path / "y.safetensors"
    penstock.save({"a": torch.ones(3000), "b": torch.ones(3000)}, shard)
    link.symlink_to(shard.name)
    index = tmp_path / ("m" + INDEX)
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": shard.name, "b": link.name}}))
    before = contents(tmp_path)
    with pytest.raises(penstock.Unsupported, match="x.safetensors.*two names.*nothing was written"):
        penstock.update(index, {"a": torch.zeros(3000), "b": torch.zeros(3000)})
    assert contents(tmp_path) == before
    for name in ("a", "b"):
        penstock.update(index, {name: torch.zeros(3000)})
    same(penstock.load(index), {"a": torch.zeros(3000), "b": torch.zeros(3000)})


@pytest.mark.parametrize("kind", ["text", "folder", "link", "cut"])
def test_what_has_the_name_of_the_log_of_an_index_stays(tmp_path, kind):
    path = tmp_path / ("m" + INDEX)
    state = {"a": torch.ones(3000), "b": torch.ones(3000)}
    penstock.save(state, path, shard_bytes=12_000)
    there = tmp_path / (path.name + LOG)
    if kind == "text":
        there.write_text("a text of mine\n")
    elif kind == "folder":
        there.mkdir()
    elif kind == "link":
        (tmp_path / "note").write_text("a text of mine\n")
        there.symlink_to("note")
    else:
        there.write_bytes(b"PENSTOCK UPDATE1" + bytes(40))
    before = contents(tmp_path)
    with pytest.raises((ValueError, penstock.Damaged), match=LOG):
        penstock.update(path, {name: torch.zeros(3000) for name in state})
    assert contents(tmp_path) == before and os.path.lexists(there)
    if kind != "cut":  # of one shard, which needs no such log
        penstock.update(path, {"a": torch.zeros(3000)})
        assert os.path.lexists(there)


@needs_strace
def test_the_logs_may_be_read_by_who_may_read_the_files(tmp_path):
    path = tmp_path / ("m" + INDEX)
    penstock.save({"a": torch.ones(3000), "b": torch.ones(3000)}, path, shard_bytes=12_000)
    for file in tmp_path.iterdir():
        file.chmod(0o644)
    old = os.umask(0o077)
    try:
        assert killed("fdatasync", 4, path, a=3000, b=3000)
    finally:
        os.umask(old)
    logs = [f for f in tmp_path.iterdir() if f.name.endswith(LOG)]
    assert len(logs) == 3 and all(stat.S_IMODE(f.stat().st_mode) == 0o644 for f in logs)


# ---- files that are replaced at the last moment


_SAID = """
import sys
import numpy, penstock
try:
    penstock.update(sys.argv[1], {name: numpy.full(300_000, 2, "f4") for name in sys.argv[2:]})
except penstock.Changed as error:
    print("Changed", error)
"""


def held_at(call, path, names, delay_ms=400):
    """A process that updates a file, and waits after each call of a kind."""
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:delay_exit={delay_ms * 1000}"]
    return subprocess.Popen([*strace, sys.executable, "-c", _SAID, path, *names], stdout=subprocess.PIPE, text=True)


def wait_for(there, process):
    while not there() and process.poll() is None:
        time.sleep(0.002)


@needs_strace
@pytest.mark.parametrize("what", ["another", "a copy", "removed", "linked"])
@pytest.mark.parametrize("name", ["torch.pt", "stock.safetensors"])
def test_a_file_that_is_replaced_after_the_log_has_its_name(tmp_path, name, what):
    path, new = tmp_path / name, tmp_path / "new"
    WRITERS[name]({"a": torch.ones(300_000), "b": torch.ones(5)}, path)
    WRITERS[name]({"a": torch.full((300_000,), 3.0), "b": torch.ones(5)}, new)
    if what == "a copy":
        new.write_bytes(path.read_bytes())
    content = path.read_bytes() if what == "linked" else new.read_bytes()
    updater = held_at("rename,renameat,renameat2", path, ["a"])
    wait_for(lambda: (tmp_path / (name + LOG)).exists(), updater)
    if what == "removed":
        path.unlink()
        new.unlink()
    elif what == "linked":  # a snapshot by hard links
        new.unlink()
        os.link(path, new)
    else:
        os.replace(new, path)
    said = updater.communicate()[0]
    assert said.startswith("Changed") and name in said and "nothing was written" in said, said
    assert os.listdir(tmp_path) == {"removed": [], "linked": os.listdir(tmp_path)}.get(what, [name])
    if what != "removed":
        assert path.read_bytes() == content and not (tmp_path / (name + LOG)).exists()


@needs_strace
@pytest.mark.parametrize("what", ["another", "a copy", "removed"])
def test_a_file_that_is_replaced_while_it_is_written(tmp_path, what):
    name = "stock.safetensors"
    path, new = tmp_path / name, tmp_path / "new"
    WRITERS[name]({"a": torch.ones(300_000), "b": torch.ones(5)}, path)
    WRITERS[name]({"a": torch.full((300_000,), 3.0), "b": torch.ones(5)}, new)
    if what == "a copy":
        new.write_bytes(path.read_bytes())
    content, began = new.read_bytes(), path.read_bytes()
    updater = held_at("fdatasync", path, ["a"])
    wait_for(lambda: (tmp_path / (name + LOG)).exists() and path.read_bytes() != began, updater)
    path.unlink() if what == "removed" else os.replace(new, path)
    said = updater.communicate()[0]
    assert said.startswith("Changed") and "another program" in said, said
    assert what == "removed" or path.read_bytes() == content
    assert not (tmp_path / (name + LOG)).exists()


@needs_strace
def test_a_shard_that_is_replaced_after_the_logs_have_their_names(tmp_path):
    path = tmp_path / ("m" + INDEX)
    penstock.save({"a": torch.ones(300_000), "b": torch.ones(300_000)}, path, shard_bytes=1_200_000)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    WRITERS["stock.safetensors"]({"b": torch.full((300_000,), 3.0)}, tmp_path / "new")
    content, before = (tmp_path / "new").read_bytes(), first.read_bytes()
    updater = held_at("rename,renameat,renameat2", path, ["a", "b"], 400)
    wait_for(lambda: (tmp_path / (path.name + LOG)).exists(), updater)
    os.replace(tmp_path / "new", second)
    said = updater.communicate()[0]
    assert said.startswith("Changed") and second.name in said and "nothing was written" in said, said
    assert first.read_bytes() == before and second.read_bytes() == content
    assert not [f for f in os.listdir(tmp_path) if LOG in f]


@needs_strace
def test_a_shard_that_is_replaced_while_another_is_written(tmp_path):
    path = tmp_path / ("m" + INDEX)
    penstock.save({"a": torch.ones(300_000), "b": torch.ones(300_000)}, path, shard_bytes=1_200_000)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    WRITERS["stock.safetensors"]({"b": torch.full((300_000,), 3.0)}, tmp_path / "new")
    content, before = (tmp_path / "new").read_bytes(), first.read_bytes()
    updater = held_at("fdatasync", path, ["a", "b"], 400)
    wait_for(lambda: (tmp_path / (path.name + LOG)).exists() and first.read_bytes() != before, updater)
    os.replace(tmp_path / "new", second)
    said = updater.communicate()[0]
    assert said.startswith("Changed") and "finish the others" in said and "nothing was written" not in said, said
    assert second.read_bytes() == content
    with pytest.raises(penstock.Damaged, match="saved again since"):
        penstock.load(path)
    with pytest.raises(ValueError, match=f"{second.name}{LOG}.*Remove it"):
        penstock.update(first, {})
    os.remove(f"{second}{LOG}")
    penstock.update(first, {})
    same(penstock.load(path), {"a": torch.full((300_000,), 2.0), "b": torch.full((300_000,), 3.0)})
    assert not [f for f in os.listdir(tmp_path) if LOG in f]


def test_a_save_over_an_index_leaves_what_only_has_the_name_of_a_log(tmp_path):
    path = tmp_path / ("m" + INDEX)
    penstock.save({"a": torch.ones(3000)}, path, shard_bytes=12_000)
    note = tmp_path / f"{next(tmp_path.glob('*.safetensors')).name}{LOG}"
    note.write_text("a text of mine\n")
    penstock.save({"a": torch.zeros(3000)}, path, shard_bytes=12_000)
    assert note.read_text() == "a text of mine\n" and len(list(tmp_path.glob("*.safetensors"))) == 1
