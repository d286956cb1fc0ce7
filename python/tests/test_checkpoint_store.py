# SPDX-License-Identifier: Apache-2.0
"""CheckpointStore from Python: states, slices, saves in the background, and errors."""

import collections
import gc
import os
import random
import shutil
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import penstock
import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")


def rich_state(seed=1):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.BatchNorm1d(128), torch.nn.Linear(128, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    base = torch.arange(100.0)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "view": base[10:20],
        "base": base,
        "strided": torch.randn(6, 4).t(),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "numpy": numpy.arange(12, dtype="int16").reshape(3, 4),
        "random": {"python": random.Random(seed).getstate(), "torch": torch.get_rng_state()},
        "counts": collections.defaultdict(int, {"a": 1}),
        "half": torch.randn(5).to(torch.bfloat16),
        "dtype": torch.float16,
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "misc": (1, 2.5, None, True, "text", b"bytes", [1, {2, 3}], 1 << 80),
    }


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad and torch.equal(a, b)
    elif isinstance(a, numpy.ndarray):
        assert a.dtype == b.dtype and numpy.array_equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
        same(getattr(a, "__dict__", None), getattr(b, "__dict__", None))
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


# ---- states


def test_a_state_comes_back_as_it_was(store):
    state = rich_state()
    info = store.save(state, step=5)
    assert (info.generation, info.step, info.problem) == (1, 5, "")
    loaded = store.load()
    same(loaded, state)
    assert loaded["view"].untyped_storage()._cdata == loaded["base"].untyped_storage()._cdata
    assert store.latest().generation == 1


def test_a_model_goes_on_where_it_was(store):
    torch.manual_seed(3)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters())

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.randn(4, 16)).square().sum().backward()
            optimizer.step()

    steps(3)
    store.save({"model": model.state_dict(), "opt": optimizer.state_dict(), "random": torch.get_rng_state()}, step=3)
    steps(3)
    expected = [p.clone() for p in model.parameters()]
    state = store.load()
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["opt"])
    torch.set_rng_state(state["random"])
    steps(3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected, strict=True))


def test_numpy_only_states_need_no_torch(tmp_path):
    code = f"""
import sys
sys.modules["torch"] = None  # an import of it fails
import numpy, penstock
state = {{"weights": numpy.arange(1000.0), "step": 3, "names": ["a"]}}
with penstock.CheckpointStore({str(tmp_path / "c")!r}) as store:
    store.save(state, step=3)
    pending = store.save_async(state, step=4)
    state["weights"][:] = 0
    assert pending.result().step == 4
    back = store.load()
assert back["step"] == 3 and back["weights"][999] == 999 and back["names"] == ["a"]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_cannot_be_saved_is_named_and_nothing_is_left(store):
    with pytest.raises(TypeError, match=r"state\['model'\]\[1\]"):
        store.save({"model": [1, object()]})
    with pytest.raises(TypeError, match=r"state\['model'\]\[1\]"):
        store.save_async({"model": [1, object()]})
    assert store.list() == [] and store.latest() is None


def test_stock_safetensors_reads_the_shards(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    with penstock.CheckpointStore(tmp_path / "c", shard_bytes=1 << 20) as store:
        state = {f"w{i}": torch.randn(100_000) for i in range(10)}
        info = store.save(state)
    shards = [n for n in os.listdir(info.path) if n.endswith(".safetensors")]
    assert len(shards) > 1 and len(shards) == info.shards
    found = {}
    for shard in shards:
        found.update(safetensors.load_file(os.path.join(info.path, shard)))
    assert all(torch.equal(found[k], v) for k, v in state.items())


def test_wrong_arguments_are_named(tmp_path):
    for arguments in (
        {"keep": 0},
        {"keep_every": -1},
        {"keep_every_steps": 0},
        {"keep_best": 0},
        {"shard_bytes": 0},
        {"host_memory": 0},
        {"lock_wait_s": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            penstock.CheckpointStore(tmp_path / "c", **arguments)
    with pytest.raises(ValueError, match="folder"):
        penstock.CheckpointStore([])


# ---- loading


def test_into_fills_the_tensors_that_are_there(store):
    state = rich_state(1)
    store.save(state)
    mine = rich_state(2)
    weight, moment = mine["model"]["0.weight"], mine["optimizer"]["state"][0]["exp_avg"]
    loaded = store.load(into=mine)
    same(loaded, state)
    assert torch.equal(weight, state["model"]["0.weight"]) and torch.equal(
        moment, loaded["optimizer"]["state"][0]["exp_avg"]
    )
    assert loaded["model"]["0.weight"].data_ptr() == weight.data_ptr()
    del mine, weight, moment
    gc.collect()
    same(loaded, state)  # its memory is still there


def test_into_on_a_device_is_refused(store):
    store.save({"a": [torch.ones(4)]})
    with pytest.raises(ValueError, match=r"into\['a.0'\] is on the meta device"):
        store.load(into={"a": [torch.ones(4, device="meta")]})


def test_into_that_does_not_fit_is_named(store):
    store.save({"a": torch.zeros(3), "b": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"into\['a'\] is torch.float32 of \[4\].*torch.float32 of \[3\]"):
        store.load(into={"a": torch.zeros(4), "b": torch.zeros(2)})
    with pytest.raises(KeyError, match="'c'"):
        store.load(into={"c": torch.zeros(4)})


def test_names_and_patterns(store):
    store.save({"model": {"a.w": torch.ones(3), "a.b": torch.zeros(2)}, "x": torch.ones(1)})
    assert sorted(store.load(names="model.*")) == ["model.a.b", "model.a.w"]
    assert torch.equal(store.load(names=["x"])["x"], torch.ones(1))
    both = store.load(names={"model.a.w": slice(1, 3), "x": None})
    assert both["model.a.w"].shape == (2,) and torch.equal(both["x"], torch.ones(1))
    with pytest.raises(KeyError, match="nope"):
        store.load(names="nope")


def test_map_location(store):
    store.save({"a": torch.ones(3)})
    assert store.load(map_location="meta")["a"].device.type == "meta"
    assert store.load(map_location="meta", names="a").device.type == "meta"
    assert torch.equal(store.load(map_location="cpu")["a"], torch.ones(3))


def test_slices_read_only_what_is_asked_for(store):
    whole = torch.arange(2_000_000, dtype=torch.float32).reshape(2000, 1000)
    info = store.save({"w": whole, "s": torch.tensor(5), "e": torch.empty(0, 4)})
    checkpoint = store.open(info.generation)
    w = checkpoint["w"]
    assert (w.shape, w.dtype, w.nbytes, len(w)) == ((2000, 1000), "float32", 8_000_000, 2000)
    for index in (
        slice(10, 20), 3, -1, ..., (slice(None), 7), (slice(5, 9), slice(100, 200)), (-3, -4), slice(0, 100, 7),
        (..., slice(990, None)), slice(5, 5), slice(1990, 5000), (slice(None, None, 500), 3), numpy.int64(4),
    ):  # fmt: skip
        got = w[index]
        assert got.shape == whole[index].shape and torch.equal(got, whole[index]), index
    assert checkpoint["s"][...] == 5 and checkpoint["e"][:].shape == (0, 4)
    with pytest.raises(IndexError, match="2000"):
        w[2000]
    with pytest.raises(IndexError):
        w[1, 2, 3]
    with pytest.raises(ValueError, match="step"):
        w[::-1]
    with pytest.raises(TypeError, match="str"):
        w["a"]
    with pytest.raises(KeyError, match="nope"):
        checkpoint["nope"]
    assert "w" in checkpoint and "nope" not in checkpoint and sorted(checkpoint) == ["e", "s", "w"]


def test_a_slice_is_little_of_the_file(store):
    info = store.save({"w": torch.zeros(16 << 20, dtype=torch.uint8).reshape(1024, -1)})
    checkpoint = store.open(info.generation)
    target = torch.empty(10, 16384, dtype=torch.uint8)
    read = checkpoint._core.read("w", target, [100, 0], [110, 16384])
    assert read <= target.nbytes + 2 * (256 << 10)


def test_progress(store):
    reports = []
    state = {"a": torch.zeros(8 << 20, dtype=torch.uint8)}
    info = store.save(state, progress=lambda done, total: reports.append((done, total)))
    store.open(info.generation).verify(progress=lambda done, total: reports.append((done, total)))
    assert all(0 <= d <= t for d, t in reports)
    with pytest.raises(TypeError, match="progress"):
        store.save(state, progress=3)


# ---- numbering, keeping


def test_latest_goes_by_generation_and_load_by_step(store):
    for step, value in ((100, 1), (200, 2), (100, 3)):
        store.save({"v": value}, step=step)
    assert [(i.generation, i.step) for i in store.list()] == [(1, 100), (2, 200), (3, 100)]
    assert store.latest().generation == 3
    assert store.load()["v"] == 3 and store.load(generation=1)["v"] == 1
    assert store.load(step=200)["v"] == 2 and store.load(step=100)["v"] == 3
    with pytest.raises(FileNotFoundError, match="step 7"):
        store.load(step=7)


def test_an_empty_store_says_so(store):
    assert store.latest() is None
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        store.load()


def test_keep_keep_every_pin_remove(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c", keep=2, keep_every=4) as store:
        store.save({"v": 1}, pinned=True)
        for value in range(2, 8):
            store.save({"v": value})
        assert [i.generation for i in store.list()] == [1, 4, 6, 7]
        assert [i.pinned for i in store.list()] == [True, False, False, False]
        store.pin(6)
        store.pin(1, pinned=False)
        store.save({"v": 8})
        assert [i.generation for i in store.list()] == [4, 6, 7, 8]
        store.remove(7)
        with pytest.raises(ValueError, match="newest"):
            store.remove(8)
        assert [i.generation for i in store.list()] == [4, 6, 8]


def test_unchanged_shards_are_linked(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c", shard_bytes=1 << 20) as store:
        state = {f"w{i}": torch.randn(250_000) for i in range(10)}
        first = store.save(state)
        state["w3"] += 1
        second = store.save(state)
        assert second.linked_shards == first.shards - 1
        assert second.written_bytes <= 0.11 * first.written_bytes
        same(store.load(generation=2), state)


def test_several_folders(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    with penstock.CheckpointStore(folders, shard_bytes=1 << 20) as store:
        state = {f"w{i}": torch.randn(250_000) for i in range(8)}
        info = store.save(state)
        same(store.load(), state)
        assert store.folders == [str(f) for f in folders]
    linked = [n for n in os.listdir(info.path) if os.path.islink(os.path.join(info.path, n))]
    assert linked and all(str(folders[1]) in os.path.realpath(os.path.join(info.path, n)) for n in linked)


# ---- in the background


def test_what_is_durable_is_what_was_at_the_call(tmp_path):
    """Promise P10."""
    with penstock.CheckpointStore(tmp_path / "c", keep=3) as store:
        torch.manual_seed(1)
        weights, base = torch.randn(2_000_000), torch.randn(1000)
        notes = ["as it was"]
        for step in range(5):
            expected = weights.clone(), base.clone()
            array = numpy.full(1000, step)
            pending = store.save_async(
                {"w": weights, "v": base[5:9], "b": base, "n": notes, "a": array, "s": step}, step
            )
            assert pending.staged()
            weights.mul_(-2), base.zero_(), notes.append("changed"), array.fill(-1)
            info = pending.result()
            assert info.step == step and pending.durable()
            loaded = store.load(generation=info.generation)
            assert torch.equal(loaded["w"], expected[0]) and torch.equal(loaded["b"], expected[1])
            assert torch.equal(loaded["v"], expected[1][5:9]) and loaded["s"] == step and loaded["a"][0] == step
            assert loaded["n"] == notes[: step + 1]
            assert store.open(info.generation).verify() == []


def test_several_in_flight_are_done_in_order(store):
    pendings = [store.save_async({"w": torch.full((500_000,), float(i))}, step=i) for i in range(6)]
    infos = [p.result() for p in pendings]
    assert [i.generation for i in infos] == list(range(1, 7)) and [i.step for i in infos] == list(range(6))
    assert store.load()["w"][0] == 5
    assert store.wait(0) is True


def test_save_comes_after_those_in_flight(store):
    pending = store.save_async({"w": torch.zeros(4_000_000)}, step=1)
    assert store.save({"w": torch.ones(3)}, step=2).generation == 2
    assert pending.durable()


def test_without_a_copy(store):
    state = {"w": torch.randn(1_000_000)}
    expected = state["w"].clone()
    pending = store.save_async(state, copy=False)
    assert pending.wait_before_update()
    state["w"].zero_()
    pending.result()
    assert torch.equal(store.load()["w"], expected)


def test_close_finishes_what_is_in_flight(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c") as store:
        for i in range(4):
            store.save_async({"w": torch.full((500_000,), float(i))}, step=i)
    assert len(penstock.CheckpointStore(tmp_path / "c").list()) == 4
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.save({})


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_memory_after_200_saves_is_that_after_10(memory_folder):
    """The quick form of the bar ckpt.leak."""
    seen = {}
    with penstock.CheckpointStore(memory_folder + "/c", keep=2, host_memory=64 << 20) as store:
        state = {"w": torch.zeros(4 << 20, dtype=torch.uint8), **{f"t{i}": torch.zeros(64) for i in range(100)}}
        for i in range(1, 201):
            state["w"].fill_(i % 256)
            store.save_async(state, step=i).result()
            if i in (10, 200):
                gc.collect()
                seen[i] = resident_bytes()
    assert seen[200] <= seen[10] * 1.02 + (1 << 20), seen


# ---- when things go wrong


def test_a_full_disk_leaves_the_previous_checkpoint(store, full_disk):
    store.save({"w": torch.ones(1000)}, step=1)
    big = {"w": torch.ones(1_000_000)}
    with pytest.raises(OSError):
        store.save(big, step=2)
    pending = store.save_async(big, step=3)
    with pytest.raises(OSError):
        pending.result()
    assert pending.state == "failed"
    assert [i.step for i in store.list()] == [1] and store.load()["w"].shape == (1000,)
    names = os.listdir(store.folders[0])
    assert not [n for n in names if n.startswith((".unfinished", ".removed"))], names
    store.save({"w": torch.ones(10)}, step=4)  # it was reported, and training continues


def ended(pending):
    """Waits for the end of a save, and leaves its error to others."""
    while not pending.done():
        time.sleep(0.01)


def test_a_failure_that_nobody_asked_for_is_raised_by_the_next_save(store, full_disk):
    ended(store.save_async({"w": torch.ones(1_000_000)}, step=1))
    with pytest.raises(OSError, match=r"earlier save of step 1 failed, and step 2 was not begun"):
        store.save({"w": torch.ones(10)}, step=2)
    ended(store.save_async({"w": torch.ones(1_000_000)}, step=3))
    with pytest.raises(OSError, match=r"earlier save of step 3 failed, and step 4 was not begun"):
        store.save_async({"w": torch.ones(10)}, step=4)
    assert store.save({"w": torch.ones(10)}, step=5).generation >= 1


def test_two_stores_on_one_folder(tmp_path, script):
    other = script(
        """
        import penstock, sys
        store = penstock.CheckpointStore(sys.argv[1])
        store.save({"a": 1})
        print("saved", flush=True)
        sys.stdin.readline()
        """,
        tmp_path / "c",
        stdin=subprocess.PIPE,
    )
    assert other.stdout.readline() == "saved\n"
    mine = penstock.CheckpointStore(tmp_path / "c", lock_wait_s=0.2)
    with pytest.raises(OSError, match=str(other.pid)):  # who has it
        mine.save({"a": 2})
    assert mine.load() == {"a": 1}  # readers take no lock
    other.communicate("go\n", timeout=60)
    assert mine.save({"a": 2}).generation == 2
    mine.close()


@pytest.mark.timed
def test_who_waits_for_host_memory_is_told(tmp_path, script):
    """The first save waits for a lock that another process has, and holds the memory that the second one needs."""
    other = script(
        """
        import penstock, sys
        store = penstock.CheckpointStore(sys.argv[1])
        store.save({"a": 1})
        print("saved", flush=True)
        sys.stdin.readline()
        """,
        tmp_path / "c",
        stdin=subprocess.PIPE,
    )
    assert other.stdout.readline() == "saved\n"
    state = {"w": torch.ones(16 << 20, dtype=torch.uint8)}
    with penstock.CheckpointStore(tmp_path / "c", lock_wait_s=2, host_memory=24 << 20) as mine:
        first = mine.save_async(state, step=1)
        with pytest.warns(RuntimeWarning, match=r"waited .* s for host memory: 24 MiB are the budget"):
            second = mine.save_async(state, step=2)
        assert second.waited_s > 1
        assert isinstance(first.exception(), OSError)
        other.communicate("go\n", timeout=60)
        assert second.result().step == 2


def test_what_progress_raises_stops_the_save_and_leaves_nothing(store):
    store.save({"a": 1})

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for _ in range(20):
            store.save({"w": torch.randint(0, 200, (64 << 20,), dtype=torch.uint8)}, progress=stop)
    assert not [n for n in os.listdir(store.folders[0]) if n.startswith((".unfinished", ".removed"))]
    assert store.save({"a": 2}).generation > 1 and store.load() == {"a": 2}


def test_what_a_killed_process_left_is_collected(tmp_path, script):
    child = script(
        """
        import penstock, sys, torch
        store = penstock.CheckpointStore(sys.argv[1], keep=2)
        i = 0
        while True:
            i += 1
            store.save_async({"w": torch.full((2_000_000,), float(i)), "i": i}, step=i)
            if i == 3:
                print("three", flush=True)
        """,
        tmp_path / "c",
    )
    assert child.stdout.readline() == "three\n"
    time.sleep(0.2)
    child.kill()
    child.communicate()
    with penstock.CheckpointStore(tmp_path / "c", keep=2) as store:
        state = store.load() if store.latest() else {"w": torch.zeros(1), "i": 0}
        assert (state["w"] == state["i"]).all()
        store.collect()
        assert not [n for n in os.listdir(tmp_path / "c") if n.startswith((".unfinished", ".removed"))]
        store.save({"i": state["i"] + 1})


def damage(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_load_falls_back_and_says_why(store):
    infos = [store.save({"w": torch.full((100_000,), float(i))}, step=i) for i in range(4)]
    shard = next(n for n in os.listdir(infos[3].path) if n.endswith(".safetensors"))
    damage(os.path.join(infos[3].path, shard), 200_000)  # a flipped bit in the data
    os.remove(os.path.join(infos[2].path, shard))  # a lost file
    with pytest.raises(penstock.Damaged, match="'w'|w") as error:
        store.load(generation=infos[3].generation)
    assert shard in str(error.value)
    with pytest.warns(RuntimeWarning) as warned:
        assert store.load()["w"][0] == 1
    text = " ".join(str(w.message) for w in warned)
    assert infos[3].path in text and infos[2].path in text and shard in text
    damage(os.path.join(infos[1].path, "manifest.json"), 40)
    with pytest.warns(RuntimeWarning, match="manifest"):
        assert store.load()["w"][0] == 0
    assert [bool(i.problem) for i in store.list()] == [False, True, True, False]
    found = store.open(infos[3].generation).verify()
    assert len(found) == 1 and found[0].tensor == "w" and shard in found[0].path and found[0].offset is not None


def test_nothing_that_can_be_used(store):
    info = store.save({"a": 1})
    damage(os.path.join(info.path, "manifest.json"), 40)
    with pytest.warns(RuntimeWarning), pytest.raises(FileNotFoundError, match="can be used, but"):
        store.load()


def test_an_open_checkpoint_stays_readable_when_it_is_deleted(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c", keep=1) as store:
        first = store.save({"w": torch.arange(100_000)})
        checkpoint = store.open(first.generation)
        store.save({"w": torch.zeros(3)})
        assert not os.path.exists(first.path)
        assert torch.equal(checkpoint["w"][50_000:50_010], torch.arange(50_000, 50_010))


def test_a_lost_folder(tmp_path):
    store = penstock.CheckpointStore(tmp_path / "c")
    store.save({"a": 1})
    shutil.rmtree(tmp_path / "c")
    with pytest.raises(OSError):
        store.save({"a": 2})
    store.close()


def test_fork_with_pending_saves(tmp_path):
    store = penstock.CheckpointStore(tmp_path / "c")
    pending = store.save_async({"w": torch.ones(8_000_000)}, step=1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours = pending.exception(5) is None or (pending.durable() or "belongs to" in str(pending.exception()))
                with pytest.raises(ValueError, match="forked from"):
                    store.save({"a": 2})
                with penstock.CheckpointStore(tmp_path / "child") as mine:
                    mine.save_async({"w": torch.zeros(10)}).result(20)
            status = 0 if ours else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert pending.result().step == 1
    assert store.save({"a": 1}, step=2).generation == 2
    store.close()


def test_threads_share_a_store(store):
    def work(first):
        for i in range(5):
            store.save_async({"w": torch.full((1000,), float(first))}, step=first + i).result()
            store.latest()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, (0, 100, 200)))
    assert [i.generation for i in store.list()] == list(range(1, 16))
