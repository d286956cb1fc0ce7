# SPDX-License-Identifier: Apache-2.0
"""An index of shards: saves that are killed, meet, or find no room; links to it; what is no name of one."""

import contextlib
import errno
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import penstock
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

INDEX = "model.safetensors.index.json"


def weights(value=0.0):
    return {f"layer.{i}": torch.full((1000,), value + i) for i in range(6)}


def same(path, value):
    found = penstock.load(path)
    assert all(torch.equal(found[name], tensor) for name, tensor in weights(value).items())


def save(path, value, **options):
    penstock.save(weights(value), path, shard_bytes=8000, **options)


def shards_of(path):
    return set(json.loads(path.read_text())["weight_map"].values())


def only(path, *others):
    """The folder has the index, its shards, and nothing else but `others`."""
    assert sorted(os.listdir(path.parent)) == sorted({path.name, *shards_of(path), *others})


# ---- killed


PRELUDE = """
    import os, signal, sys
    import penstock, torch

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def save(value, **options):
        state = {f"layer.{i}": torch.full((1000,), value + i) for i in range(6)}
        penstock.save(state, "model.safetensors.index.json", shard_bytes=8000, **options)
"""

# At every operation, the commit among them: tests/state/crash_index_test.cpp and tests/hostile/test_killed.py.
DEATHS = {
    "in the first shard": "save(50.0, progress=die)",
    "in the last shard": "save(50.0, progress=lambda done, total: die() if done == total else None)",
}


def killed(folder, how):
    text = textwrap.dedent(PRELUDE) + textwrap.dedent(DEATHS[how])
    made = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=120)
    assert made.returncode == -signal.SIGKILL, made.stderr


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("how", DEATHS)
def test_what_a_killed_save_left_goes_with_the_next(tmp_path, how, before):
    path = tmp_path / INDEX
    mine = {"model-00001-of-00009.safetensors", "model.0123abcd-00001-of-00003.safetensors", "notes.safetensors"}
    for name in mine:
        safetensors.save_file({"x": torch.ones(1)}, tmp_path / name)
    if before:
        save(path, 1.0)
    for _ in range(2):
        killed(tmp_path, how)
    if before:
        same(path, 1.0)
    assert len(os.listdir(tmp_path)) > (len(mine) + 4 if before else len(mine)), "something was left"
    save(path, 2.0)
    same(path, 2.0)
    only(path, *mine)


def test_shards_that_another_index_names_stay(tmp_path):
    path, other = tmp_path / INDEX, tmp_path / "best.safetensors.index.json"
    save(path, 1.0)
    other.write_bytes(path.read_bytes())
    save(path, 2.0)
    same(other, 1.0)
    same(path, 2.0)


def test_shards_of_another_program_stay_and_are_named_once(tmp_path):
    path = tmp_path / INDEX
    theirs = {"a-1.safetensors": {"a": torch.ones(9)}, "b-2.safetensors": {"b": torch.ones(9)}}
    for name, tensors in theirs.items():
        safetensors.save_file(tensors, tmp_path / name)
    path.write_text(json.dumps({"weight_map": {key: name for name, tensors in theirs.items() for key in tensors}}))
    with pytest.warns(RuntimeWarning, match="a-1.safetensors' and 1 more shards of the earlier index .* were left"):
        save(path, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(path, 2.0)
    same(path, 2.0)
    path.write_text(json.dumps({"weight_map": {"a": "a-1.safetensors"}}))
    with pytest.warns(RuntimeWarning, match="a-1.safetensors' of the earlier index .* was left"):
        penstock.save(iter([("x", torch.zeros(3))]), path)
    assert {*theirs} <= {*os.listdir(tmp_path)}


def test_indexes_whose_names_begin_alike_keep_their_shards(tmp_path):
    names = ["my.safetensors.index.json", "my.model.safetensors.index.json", "my.models.safetensors.index.json"]
    for value in (1.0, 2.0, 3.0):
        for i, name in enumerate(names):
            save(tmp_path / name, value + 10 * i)
    for i, name in enumerate(names):
        same(tmp_path / name, 3.0 + 10 * i)
    expected = {shard for name in names for shard in shards_of(tmp_path / name)}
    assert sorted(os.listdir(tmp_path)) == sorted({*names, *expected})


# ---- together


@pytest.mark.parametrize("before", [True, False])
def test_a_living_save_keeps_its_shards(tmp_path, before):
    """Another one begins and ends while it is in the middle of its own; the last to end is what is there."""
    path = tmp_path / INDEX
    if before:
        save(path, 1.0)
    waits = 'save(50.0, progress=lambda done, total: (print("in", flush=True), sys.stdin.readline()) if done else None)'
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PRELUDE) + waits],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout.readline() == "in\n"
        save(path, 2.0)
        save(path, 3.0)
        same(path, 3.0)
        child.communicate("\n" * 1000, timeout=60)
        assert child.returncode == 0
    finally:
        child.kill()
    same(path, 50.0)
    only(path)


def test_saves_that_meet_leave_one_of_them_and_nothing_else(tmp_path):
    path = tmp_path / INDEX

    def work(first):
        for i in range(6):
            save(path, first + 10.0 * i)

    threads = [threading.Thread(target=work, args=(100.0 * k,)) for k in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(path, float(penstock.load(path)["layer.0"][0]))
    only(path)


# ---- links


def test_an_index_that_is_saved_through_a_link_loads_through_it(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    link, real = tmp_path / "here" / INDEX, tmp_path / "there" / INDEX
    save(link, 7.0)  # shards of the same names next to the link, which are not its own then
    stale = shards_of(link)
    link.unlink()
    link.symlink_to(real)
    save(link, 1.0)
    assert link.is_symlink() and os.path.isfile(real)
    same(link, 1.0)
    same(real, 1.0)
    assert [info.name for info in penstock.inspect(link)] == list(weights())
    assert all(os.path.exists(info.path) for info in penstock.inspect(link))
    assert stale.isdisjoint(shards_of(real))


def test_links_to_files_of_other_names_are_followed_one_by_one(tmp_path):
    """As the cache of Hugging Face has them."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    path = tmp_path / INDEX
    save(path, 3.0)
    for i, name in enumerate(sorted({INDEX, *shards_of(path)})):
        os.rename(tmp_path / name, tmp_path / "blobs" / f"{i:064x}")
        (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / f"{i:064x}")
    same(tmp_path / "snapshot" / INDEX, 3.0)
    assert len(penstock.inspect(tmp_path / "snapshot" / INDEX)) == 6


def test_the_form_goes_by_the_name_that_was_given(tmp_path):
    link = tmp_path / "model.safetensors"
    link.symlink_to(tmp_path / "blob")
    penstock.save(weights(), link)
    assert sorted(safetensors.load_file(tmp_path / "blob")) == sorted(weights())


# ---- names, room, and what is not there


def test_what_load_would_take_for_an_index_is_refused(tmp_path):
    for name in ("x.json", "pytorch_model.bin.index.json", "m.index.json"):
        for verb in (penstock.save, penstock.save_async):
            with pytest.raises(ValueError, match=r"\.safetensors\.index\.json"):
                verb(weights(), tmp_path / name)
    with pytest.raises(ValueError, match=r"save_async: .*written by save\(\) alone"):
        penstock.save_async(weights(), tmp_path / INDEX)
    assert os.listdir(tmp_path) == []


def test_an_index_that_names_what_a_shard_lacks_is_damaged_to_inspect_too(tmp_path):
    path = tmp_path / INDEX
    save(path, 1.0)
    index = json.loads(path.read_text())
    shard = index["weight_map"]["layer.0"]
    index["weight_map"]["more"] = shard
    path.write_text(json.dumps(index))
    with pytest.raises(penstock.Damaged, match=f"{shard}': .*'more' is in this file"):
        penstock.inspect(path)


def test_room_for_all_shards_is_asked_for_first(tmp_path):
    path = tmp_path / INDEX
    save(path, 1.0)
    before = sorted(os.listdir(tmp_path))
    size = 1 << 42
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(size)
    large = torch.from_file(str(tmp_path / "sparse"), shared=True, size=size, dtype=torch.uint8)
    os.unlink(tmp_path / "sparse")
    with pytest.raises(OSError, match=r"(\d+) bytes and \d+ are free: \d+ bytes are missing; nothing") as caught:
        penstock.save({"a": large, **weights()}, path, progress=lambda *_: pytest.fail("something was written"))
    assert caught.value.errno == 28 and caught.value.filename == str(path)
    need, free, missing = (int(n) for n in re.findall(r"(\d+) (?:bytes|are)", str(caught.value)))
    assert need > size and missing == need - free
    assert sorted(os.listdir(tmp_path)) == before
    same(path, 1.0)


# ---- loaded while it is saved


def seen(info):
    data = pathlib.Path(info.path).read_bytes()[info.offset : info.offset + info.nbytes]
    return torch.frombuffer(bytearray(data), dtype=torch.float32)


VERBS = {
    "load": lambda path: penstock.load(path),
    "mmap": lambda path: penstock.load(path, mmap=True),
    "names": lambda path: penstock.load(path, names={"layer.*": slice(1, 5)}),
    "into": lambda path: penstock.load(path, into=weights(-1.0)),
    "inspect": lambda path: {info.name: seen(info) for info in penstock.inspect(path)},
}


def saved_as(found):
    """Which save all of it is of."""
    values = {float((tensor - i)[k]) for i, tensor in enumerate(found.values()) for k in (0, -1)}
    assert list(found) == list(weights()) and len(values) == 1, f"of several saves: {values}"
    return values.pop()


@contextlib.contextmanager
def descriptors(few, shards=3):
    """few: not enough to keep all shards open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if few:
        soft_now = len(os.listdir("/proc/self/fd")) + 4 * shards - 2
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_now, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def writing(save_one):
    """save_one(number) again and again, on another thread."""
    stop = threading.Event()

    def write():
        number = 0
        while not stop.wait(0.02):
            number += 1
            try:
                save_one(number)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


# Before, between and after the openings of the shards, one by one: tests/state/index_shards_test.cpp.
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "inspect"])
def test_loads_beside_a_writer_have_a_state_each(tmp_path, verb, few):
    path = tmp_path / INDEX
    split = {"shard_bytes": 4000}
    penstock.save(weights(), path, **split)
    found = []
    with descriptors(few, 6), writing(lambda number: penstock.save(weights(10.0 * number), path, **split)):
        while len(found) < 20 or len(set(found)) < 2:
            try:
                found.append(saved_as(VERBS[verb](path)))
            except OSError as error:  # EMFILE: the writer has the others
                assert few and (error.errno == errno.EMFILE or "saved again each of the 3 times" in str(error))
    assert found == sorted(found)


def test_what_is_inspected_is_of_one_save_too(tmp_path):
    path = tmp_path / INDEX
    save(path, 1.0)

    def resize(number):
        penstock.save({name: t[: 500 + 500 * (number % 2)] for name, t in weights().items()}, path, shard_bytes=4000)

    seen = set()
    with writing(resize):
        while len(seen) < 2:
            shapes = {info.shape for info in penstock.inspect(path)}
            assert len(shapes) == 1
            seen |= shapes


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("saves", [1, 2, 3])
def test_saves_in_the_middle_of_the_reading_leave_one_state(tmp_path, into, few, saves):
    path = tmp_path / INDEX
    save(path, 1.0)
    done, limits = [], resource.getrlimit(resource.RLIMIT_NOFILE)

    def progress(bytes_done, total):
        if not done and bytes_done > 9000:
            done.append(bytes_done)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for i in range(saves):
                save(path, 2.0 + i)

    with descriptors(few):
        value = saved_as(penstock.load(path, into=weights(-1.0) if into else None, progress=progress))
    assert done and value in (1.0, 1.0 + saves)


def test_an_index_that_is_saved_again_whenever_it_is_read_is_an_error_that_says_so(tmp_path):
    path = tmp_path / INDEX
    save(path, 1.0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def save_again(*_):
        few = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        save(path, 2.0)
        resource.setrlimit(resource.RLIMIT_NOFILE, few)

    with descriptors(True):
        with pytest.raises(penstock.Damaged, match=f"load: '{path}': .*saved again each of.*load it again") as caught:
            penstock.load(path, progress=save_again)
        assert caught.value.path == str(path)
        assert saved_as(penstock.load(path)) == 2.0


@pytest.mark.parametrize("few", [False, True])
def test_a_shard_that_is_lost_is_named(tmp_path, few):
    path = tmp_path / INDEX
    save(path, 1.0)
    lost = sorted(shards_of(path))[1]
    os.unlink(tmp_path / lost)
    for verb in ("load", "mmap", "into", "inspect"):
        with descriptors(few), pytest.raises(FileNotFoundError, match=lost):
            VERBS[verb](path)


def test_more_shards_than_files_may_be_open_are_loaded(tmp_path, script):
    penstock.save({f"t{i}": torch.full((4,), float(i)) for i in range(150)}, tmp_path / INDEX, shard_bytes=1)
    text = f"""
        import os, resource
        import penstock, torch

        open_ones = len(os.listdir("/proc/self/fd"))
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        for room in (30, 60, 155, 170, 310, 590, 610, 700):
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_ones + room, most))
            into = {{f"t{{i}}": torch.zeros(4) for i in range(150)}}
            for found in (penstock.load("{INDEX}"), penstock.load("{INDEX}", into=into)):
                assert [float(t[3]) for t in found.values()] == list(range(150))
            assert len(penstock.inspect("{INDEX}")) == 150
    """
    child = script(text)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 0, err


def test_a_load_leaves_no_file_open(tmp_path):
    path = tmp_path / INDEX
    save(path, 1.0)
    penstock.load(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        penstock.load(path)
    with pytest.raises(KeyError):
        penstock.load(path, into={**weights(), "more": torch.zeros(1)})
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.timed
def test_many_tensors_of_a_shard_cost_no_more_than_those_of_a_file(tmp_path):
    state = {f"t{i}": torch.full((1,), float(i)) for i in range(8000)}
    took = {}
    for name in ("m.safetensors", INDEX):
        penstock.save(state, tmp_path / name)
        start = time.perf_counter()
        found = penstock.load(tmp_path / name)
        took[name] = time.perf_counter() - start
        assert list(found) == list(state)
    assert took[INDEX] < 4 * took["m.safetensors"] + 0.5, took


def save_bin(folder, state=None):
    """As transformers saved before safetensors: shards of torch.save, and an index."""
    state = weights(3.0) if state is None else state
    names, half = list(state), len(state) // 2
    files = {name: f"pytorch_model-0000{1 + (i >= half)}-of-00002.bin" for i, name in enumerate(names)}
    for file in set(files.values()):
        torch.save({name: state[name] for name in names if files[name] == file}, folder / file)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    return index


def test_an_index_of_shards_of_torch_save(tmp_path):
    base = torch.arange(6000.0)
    state = {
        **weights(3.0),
        "half": torch.arange(30).half().reshape(5, 6),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "part": base[1000:1010],
        "tied": base[1000:1010],
        "scalar": torch.tensor(4),
        "empty": torch.empty(0, 3),
        "transposed": torch.ones(4, 5).t(),
    }
    index = save_bin(tmp_path, state)
    plain = [name for name in state if name != "transposed"]
    found = penstock.load(index, names=plain)
    assert found.keys() == set(plain)
    assert all(torch.equal(found[name], state[name]) and found[name].dtype == state[name].dtype for name in plain)
    with pytest.raises(penstock.Unsupported, match="-00002-of-.*'transposed' is not read.*give the path of the shard"):
        penstock.load(index)
    assert penstock.load(tmp_path / "pytorch_model-00002-of-00002.bin")["transposed"].shape == (5, 4)
    del state["transposed"]
    save_bin(tmp_path, state)
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    penstock.load(index, into=into)
    assert all(torch.equal(into[name], tensor) for name, tensor in state.items())
    assert {info.name for info in penstock.inspect(index)} == set(state)


def test_a_damaged_shard_of_torch_save_is_found(tmp_path):
    index = save_bin(tmp_path)
    shard = tmp_path / "pytorch_model-00001-of-00002.bin"
    content = bytearray(shard.read_bytes())
    at = content.index(torch.full((1000,), 4.0).numpy().tobytes())
    content[at + 40] ^= 1
    shard.write_bytes(content)
    with pytest.raises(penstock.Damaged, match="-00001-of-"):
        penstock.load(index)
    shard.write_bytes(content[:3000])
    with pytest.raises(penstock.Damaged, match="-00001-of-"):
        penstock.load(index)
    torch.save({"other": torch.ones(3)}, shard)
    with pytest.raises(penstock.Damaged, match="the index .* says that tensor 'layer.0' is in this file"):
        penstock.load(index)
    torch.save([torch.ones(3)], shard)
    with pytest.raises(penstock.Damaged, match="'layer.0' is in this file"):
        penstock.load(index)
    shard.write_text(json.dumps({"weight_map": {"layer.0": "x"}}))
    with pytest.raises(penstock.Unsupported, match="another index"):
        penstock.load(index)
    shard.unlink()
    with pytest.raises(FileNotFoundError):
        penstock.load(index)


def test_the_advice_for_shards_of_torch_save_converts_all(tmp_path):
    save_bin(tmp_path)
    with pytest.raises(ValueError, match="has no .safetensors file") as error:
        penstock.stream(torch.nn.Linear(1, 1), tmp_path, memory="1MiB")
    command = re.search(r"`penstock ([^`]*)`", str(error.value))[1].split()
    subprocess.run([sys.executable, "-m", "penstock", *command], check=True, capture_output=True)
    same(tmp_path / INDEX, 3.0)
    assert {name for file in tmp_path.glob("*.safetensors") for name in safetensors.load_file(file)} == set(weights())
