# SPDX-License-Identifier: Apache-2.0
"""save_async() and the stores of iterators: each tensor is copied when it comes, and what goes wrong writes nothing."""

import itertools
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


def state(count=9):
    generator = torch.Generator().manual_seed(3)
    made = {f"layer.{i}.weight": torch.randn(i + 1, 777, generator=generator) for i in range(count)}
    made["big"] = torch.randn(3_000_000, generator=generator)
    made["half"] = torch.randn(5, 3, generator=generator).to(torch.bfloat16)
    made["none"] = torch.zeros(0, 4)
    made["scalar"] = torch.tensor(7)
    made["t"] = torch.randn(40, 30, generator=generator).t()
    return made


def same(a, b):
    assert sorted(a) == sorted(b)
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        assert torch.equal(a[name], b[name]), name


def in_one_memory(tensors):
    """Each tensor in the same memory, which is other bytes before and after."""
    memory = torch.empty(16 << 20, dtype=torch.uint8)
    for name, tensor in tensors.items():
        memory.fill_(0xEE)
        here = memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        here.copy_(tensor)
        yield name, here
    memory.fill_(0xEE)


@pytest.mark.parametrize("name", ["s.pt", "s.safetensors"])
def test_a_file_has_what_came(tmp_path, name):
    tensors, path = state(), tmp_path / name
    pending = penstock.save_async(in_one_memory(tensors), path)
    assert pending.state in ("staged", "durable")
    pending.wait_before_update()
    pending.result()
    same(penstock.load(path), tensors)
    stock = safetensors_torch.load_file(path) if name.endswith("safetensors") else torch.load(path, weights_only=True)
    same({key: stock[key] for key in tensors}, tensors)
    several = [
        penstock.save_async(in_one_memory({"i": torch.full((9_000_000,), i, dtype=torch.uint8)}), path)
        for i in range(4)
    ]
    for one in several:
        one.result()
    assert penstock.load(path)["i"].unique().tolist() == [3]


def test_a_store_has_what_came(tmp_path):
    tensors = state()
    with penstock.CheckpointStore(tmp_path / "store") as store:
        store.save(in_one_memory(tensors), step=1, metadata={"loss": 0.5})
        pending = store.save_async(in_one_memory(tensors), step=2)
        assert pending.result().step == 2
        for step in (1, 2):
            same(store.load(step=step), tensors)
        assert store.latest().linked_shards > 0  # as of a dict of the same tensors
        assert not store.open(2).verify()


def test_arrays_and_all_types_of_torch(tmp_path):
    given = {"c": torch.randn(3, dtype=torch.complex128), "h": torch.randn(3, dtype=torch.complex64).conj()}
    arrays = {"a": np.arange(12, dtype=np.int16).reshape(3, 4).T, "b": np.float64(2) * np.ones(3)}
    penstock.save_async(iter((given | arrays).items()), tmp_path / "s.pt").result()
    found = torch.load(tmp_path / "s.pt", weights_only=True)
    assert torch.equal(found["c"], given["c"]) and torch.equal(found["h"], given["h"].resolve_conj())
    assert np.array_equal(found["a"].numpy(), arrays["a"]) and found["b"].tolist() == [2, 2, 2]
    with penstock.CheckpointStore(tmp_path / "store") as store:
        store.save(iter((given | arrays).items()))
        assert torch.equal(store.load()["c"], given["c"])
    with pytest.raises(TypeError, match="complex128"):
        penstock.save_async(iter(given.items()), tmp_path / "s.safetensors")
    penstock.save_async(iter([]), tmp_path / "none.pt").result()
    assert penstock.load(tmp_path / "none.pt") == {}


@pytest.mark.parametrize("name", ["s.pt", "s.safetensors"])
def test_names_do_not_depend_on_the_locale(tmp_path, name):
    code = (
        "import sys, numpy, penstock\n"
        "assert sys.getfilesystemencoding() == 'ascii'\n"
        "penstock.save_async(iter([('\\xe9', numpy.ones(2))]), sys.argv[1]).result()"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code, tmp_path / name], env=os.environ | plain, check=True)
    assert penstock.load(tmp_path / name)["\xe9"].tolist() == [1, 1]


def raising():
    yield "a", torch.ones(3)
    raise LookupError("the source failed")


MISTAKES = {
    "raises": (raising, LookupError, "the source failed"),
    "twice": (lambda: iter([("a", torch.ones(3)), ("a", torch.ones(3))]), ValueError, "'a': it comes twice"),
    "no pair": (lambda: iter([("a", torch.ones(3)), 5]), TypeError, r"item 1: expected \(name, tensor\), got 5"),
    "no tensor": (lambda: iter([("a", "text")]), TypeError, "item 0, 'a': expected a tensor"),
    "sparse": (lambda: iter([("a", torch.eye(3).to_sparse())]), TypeError, "'a'"),
    "meta": (lambda: iter([("a", torch.ones(3, device="meta"))]), TypeError, "meta"),
    "half a character": (lambda: iter([("a\ud800", torch.ones(3))]), ValueError, r"item 0: 'a.*not UTF-8"),
    "masked": (lambda: iter([("a", np.ma.array([1, 2], mask=[0, 1]))]), TypeError, r"'a'.*mask.*filled\(\)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_goes_wrong_writes_nothing(tmp_path, mistake):
    make, error, text = MISTAKES[mistake]
    path = tmp_path / "s.pt"
    with penstock.CheckpointStore(tmp_path / "store") as store:
        store.save({"old": torch.arange(5)}, step=1)
        penstock.save({"old": torch.arange(5)}, path)
        before = sorted(os.listdir(tmp_path / "store"))
        for call in (
            lambda: penstock.save_async(make(), path),
            lambda: store.save(make(), step=2),
            lambda: store.save_async(make(), step=2),
        ):
            with pytest.raises(error, match=text):
                call()
        assert sorted(os.listdir(tmp_path / "store")) == before and len(store) == 1
        store.save(iter([("new", torch.ones(3))]), step=2)
        assert store.load()["new"].tolist() == [1, 1, 1]
    assert penstock.load(path)["old"].tolist() == [0, 1, 2, 3, 4]
    assert sorted(os.listdir(tmp_path)) == ["s.pt", "store"]


def test_arguments_are_checked_before_the_first_tensor(tmp_path):
    asked = []

    def given():
        asked.append(1)
        yield "a", torch.ones(3)

    with penstock.CheckpointStore(tmp_path / "store") as store:
        for call, error, text in [
            (lambda: penstock.save_async(given(), tmp_path / "s.json"), ValueError, "index of shards"),
            (lambda: penstock.save_async(given(), str(tmp_path) + "/s/"), ValueError, "folder"),
            (lambda: penstock.save_async(given(), tmp_path / "s.pt", metadata={"a": "b"}), ValueError, "metadata"),
            (lambda: penstock.save_async(given(), tmp_path / "s.pt", copy=False), ValueError, "copy"),
            (lambda: penstock.save_async(given(), tmp_path / "s.pt", changing="no"), ValueError, "changing"),
            (lambda: penstock.save_async(given(), tmp_path / "s.pt", progress=3), TypeError, "progress"),
            (lambda: store.save_async(given(), copy=False), ValueError, "copy"),
            (lambda: store.save(given(), changing="no"), ValueError, "changing"),
        ]:
            with pytest.raises(error, match=text):
                call()
    with pytest.raises(ValueError, match="closed"):
        store.save(given())
    assert not asked and not os.listdir(tmp_path)


def endless(bytes_each):
    for i in itertools.count():
        yield str(i), torch.zeros(bytes_each, dtype=torch.uint8)


@pytest.mark.parametrize("bytes_each", [0, 100, 1 << 20, 9 << 20])
def test_an_endless_iterator_ends_at_the_budget(tmp_path, bytes_each):
    with penstock.CheckpointStore(tmp_path / "store", host_memory="64MiB") as store:
        for call in (store.save, store.save_async):
            with pytest.raises(MemoryError, match=r"tensor '\d+', number \d+ of the iterator: .*penstock\.save\(\)"):
                call(endless(bytes_each))
        assert not len(store)
        store.save(iter([("a", torch.ones(3))]))  # what was copied is free again
        store.save(iter([("a", torch.ones(7 << 20, dtype=torch.uint8))]))
        assert store.load()["a"].sum() == 7 << 20


def test_the_budget_is_one_with_that_of_saves_in_flight(tmp_path):
    tensors = {str(i): torch.full((10 << 20,), i, dtype=torch.uint8) for i in range(4)}
    with penstock.CheckpointStore(tmp_path / "store", host_memory="64MiB") as store:
        for step in range(4):
            pending = store.save_async(iter(tensors.items()), step=step)
            assert store._store.host_memory()[1] <= 64 << 20
        pending.result()
        assert [info.step for info in store] == [0, 1, 2, 3]
        same(store.load(), tensors)


def test_two_threads_that_hold_the_budget_do_not_wait_for_each_other(tmp_path):
    both, ended = threading.Barrier(2), []

    def given():
        yield "a", torch.zeros(40 << 20, dtype=torch.uint8)
        both.wait(30)
        yield "b", torch.zeros(40 << 20, dtype=torch.uint8)

    with penstock.CheckpointStore(tmp_path / "store", host_memory="110MiB") as store:

        def run():
            try:
                store.save_async(given()).result()
                ended.append("saved")
            except MemoryError as error:
                ended.append("let them end first" in str(error))

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert len(ended) == 2 and all(ended) and len(store) == ended.count("saved")


def ends(work):
    """What it gives: a wait without end fails the test."""
    out = []
    thread = threading.Thread(target=lambda: out.append(work()), daemon=True)
    thread.start()
    thread.join(60)
    assert out, "it waits without end, or failed"
    return out[0]


@pytest.mark.filterwarnings("ignore:.*host memory:RuntimeWarning")
@pytest.mark.parametrize("place", ["store", "file"])
def test_a_dict_waits_for_the_room_that_a_saved_iterator_held(tmp_path, place):
    tensor = torch.arange(40 << 18, dtype=torch.int32)
    with penstock.CheckpointStore(tmp_path / "store", host_memory="64MiB") as store:
        saver = store._store if place == "store" else penstock._core._async.FileSaver(64 << 20)

        def save(i):
            state = iter([("a", tensor + i)]) if i % 2 == 0 else {"a": tensor + i}
            if place == "store":
                return store.save_async(state, step=i)
            if i % 2 == 0:
                state = penstock._state.streamed.collected("save_async", state, saver, "m.pt", True, "raise")
            image = penstock._state.save._image_of(state, tmp_path / f"{i}.pt", None, None)[1]
            return saver.save(image, str(tmp_path / f"{i}.pt"), True, None)

        pending = ends(lambda: [save(i) for i in range(4)])
        for i, one in enumerate(pending):
            one.result()
            found = store.load(step=i) if place == "store" else penstock.load(tmp_path / f"{i}.pt")
            assert torch.equal(found["a"], tensor + i)


@pytest.mark.parametrize("copied", [True, False])
def test_an_iterator_that_holds_the_room_may_save(tmp_path, copied):
    """No save is in flight whose end would give room: the save is waited for, without a copy."""
    tensor = torch.arange(40 << 18, dtype=torch.int32)
    with penstock.CheckpointStore(tmp_path / "store", host_memory="64MiB") as store:

        def given():
            yield "a", tensor
            if copied:
                with pytest.warns(RuntimeWarning, match="iterators that are read hold"):
                    assert store.save_async({"x": tensor + 1}, step=1).state == "durable"
            else:
                store.save_async({"x": tensor + 1}, step=1, copy=False).result()
            yield "b", tensor[:3]

        ends(lambda: store.save_async(given(), step=2).result())
        assert torch.equal(store.load(step=1)["x"], tensor + 1)
        assert torch.equal(store.load(step=2)["a"], tensor)


def test_ctrl_c_and_an_earlier_failure(tmp_path):
    def given():
        for i in itertools.count():
            if i == 3:
                signal.raise_signal(signal.SIGINT)
            yield str(i), torch.zeros(1000)

    with penstock.CheckpointStore(tmp_path / "store") as store:
        for call in (store.save, store.save_async, lambda items: penstock.save_async(items, tmp_path / "s.pt")):
            with pytest.raises(KeyboardInterrupt):
                call(given())
        assert not len(store) and not (tmp_path / "s.pt").exists()
    asked = []
    (tmp_path / "folder").mkdir()
    failed = penstock.save_async({"a": torch.ones(2)}, tmp_path / "folder")
    while not failed.done():
        pass
    with pytest.raises(ValueError, match="the save of an iterator was not begun"):
        penstock.save_async((asked.append(1) for _ in range(2)), tmp_path / "s.pt")
    assert not asked


@pytest.mark.parametrize("size", [7 << 20, 12 << 20])
def test_a_tensor_that_changes_while_it_is_copied_is_named(tmp_path, size):
    tensor, stop = torch.zeros(size, dtype=torch.uint8), threading.Event()
    array = tensor.numpy()

    def change():
        while not stop.is_set():
            array[:] += 1

    def given():
        for i in range(2000):
            yield str(i % 2) + "x" * i, tensor

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with penstock.CheckpointStore(tmp_path / "store", host_memory="4GiB") as store:
            with pytest.raises(penstock.Changed, match="changed while it was copied"):
                store.save(given())
            assert not len(store)
            items = itertools.islice(given(), 3)
            assert store.save(items, changing="torn").tensors == 3
    finally:
        stop.set()
        thread.join()


def test_an_iterator_may_save_itself(tmp_path):
    with penstock.CheckpointStore(tmp_path / "store") as store:

        def given():
            for i in range(3):
                store.save(iter([("inner", torch.full((3,), i))]), step=i)
                yield str(i), torch.full((2,), i)

        store.save_async(given(), step=9).result()
        assert [info.step for info in store] == [0, 1, 2, 9]
        assert store.load()["2"].tolist() == [2, 2]


FORK = """
import os, sys, torch, penstock
def given(child):
    yield "a", torch.ones(3)
    pid = os.fork()
    if pid == 0 and not child:
        os._exit(0)
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
    yield "b", torch.ones(5)
path = sys.argv[1]
penstock.save_async(given(False), path + "/a.pt").result()
assert penstock.load(path + "/a.pt")["b"].sum() == 5
try:
    penstock.save_async(given(True), path + "/b.pt").result()
except ValueError as error:
    assert "forked" in str(error)
    os._exit(0)
assert penstock.load(path + "/b.pt")["b"].sum() == 5
print("parent")
"""


@pytest.mark.filterwarnings("ignore:This process")
def test_forks_of_an_iterator(tmp_path):
    run = subprocess.run([sys.executable, "-c", FORK, tmp_path], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and run.stdout == "parent\n", run.stderr
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "b.pt"]


def test_each_step_may_be_an_iterator(tmp_path):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        penstock.CheckpointStore(tmp_path / "store") as store,
        penstock.StepOverlap(store, optimizer, lambda: model.named_parameters()) as overlap,
    ):
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        overlap.pending.result()
        model.load_state_dict(store.load())
        assert overlap.failures == 0 and overlap.saves == 3
