# SPDX-License-Identifier: Apache-2.0
"""Tensors that change, or are freed, while they are saved: the save fails and names them, or saves what it finds."""

import io
import multiprocessing
import pathlib
import threading
import time

import numpy
import penstock
import penstock.safetensors
import pytest
import safetensors.torch
import torch

FILES = ("f.pt", "f.safetensors")


class Writer:
    """A thread that writes to memory as long as the block lasts."""

    def __init__(self, memory):
        self._memory = torch.as_tensor(memory)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        turn = 0.0
        while not self._stop.is_set():
            turn += 1
            self._memory.fill_(turn)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def state_of(megabytes=24):
    return {"first": torch.zeros(1000), "weight": torch.zeros(megabytes << 18), "last": torch.ones(3)}


def names_in(folder):
    return sorted(path.name for path in pathlib.Path(folder).iterdir())


def read_whole(path):
    """What stock readers say: they check the CRC of a .pt."""
    return torch.load(path) if str(path).endswith(".pt") else safetensors.torch.load_file(path)


def fails(save):
    """Tries until the thread was caught: a machine that is busy may not let it run meanwhile."""
    for _ in range(20):
        try:
            save()
        except penstock.Changed as error:
            return error
    raise AssertionError("no save failed in 20")


@pytest.mark.parametrize("name", FILES)
def test_a_tensor_that_a_thread_changes_is_named(tmp_path, name):
    state = state_of()
    penstock.save(state, tmp_path / name)
    with Writer(state["weight"]):
        error = fails(lambda: penstock.save(state, tmp_path / name))
    assert "weight" in str(error) and isinstance(error, OSError)
    assert names_in(tmp_path) == [name]
    penstock.load(tmp_path / name)
    read_whole(tmp_path / name)


@pytest.mark.parametrize("name", FILES)
def test_torn_is_sound_for_stock_readers_and_ours(tmp_path, name):
    state = state_of()
    with Writer(state["weight"]):
        for _ in range(5):
            penstock.save(state, tmp_path / name, changing="torn", sync=False)
            ours, stock = penstock.load(tmp_path / name), read_whole(tmp_path / name)
            assert ours.keys() == stock.keys() == state.keys()
            assert all(torch.equal(ours[key], stock[key]) for key in state)


def test_torn_to_a_binary_file_and_to_an_index(tmp_path):
    state = state_of()
    with Writer(state["weight"]):
        fails(lambda: penstock.save(state, io.BytesIO()))
        for _ in range(3):
            made = io.BytesIO()
            penstock.save(state, made, changing="torn")
            made.seek(0)
            stock = torch.load(made)
            made.seek(0)
            assert torch.equal(penstock.load(made)["weight"], stock["weight"])
            index = tmp_path / "m.safetensors.index.json"
            penstock.save(state, index, changing="torn", sync=False, shard_bytes="50MB")
            assert penstock.load(index).keys() == state.keys()
        fails(lambda: penstock.save(state, index, sync=False))
    penstock.load(index)


def test_a_store_keeps_what_it_has(tmp_path):
    state = state_of()
    with penstock.CheckpointStore(tmp_path / "c", keep=1) as store:
        store.save(state, step=1)
        with Writer(state["weight"]):
            assert "weight" in str(fails(lambda: store.save(state, step=2)))
            pending = store.save_async(state, step=3, copy=False)
            failed = pending.exception()
            if failed is not None:
                assert isinstance(failed, penstock.Changed)
            pending = store.save_async(state, step=4)  # a copy
            assert pending.exception() is None
            info = store.save_async(state, step=5, copy=False, changing="torn").result()
        for info in store.list():
            assert store.open(info.generation).verify() == []
        assert store.latest().step == 5
        assert store.load()["last"].tolist() == [1, 1, 1]


def test_a_file_in_the_background(tmp_path):
    state = state_of()
    path = tmp_path / "f.pt"

    def save():
        path.unlink(missing_ok=True)  # of a try in which the thread did not run
        penstock.save_async(state, path, copy=False).result()

    with Writer(state["weight"]):
        fails(save)
        assert not path.exists()
        penstock.save_async(state, path, copy=False, changing="torn").result()
        torch.load(path)
        penstock.save_async(state, path).result()
    torch.load(path)
    penstock.load(path)


def _work(tensor, stop):
    while not stop.is_set():
        tensor.add_(1)


def test_workers_of_hogwild(tmp_path):
    state = {"weight": torch.zeros(4 << 18).share_memory_(), "step": 3}
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    workers = [context.Process(target=_work, args=(state["weight"], stop)) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        while not state["weight"].any():
            time.sleep(0.01)
        with penstock.CheckpointStore(tmp_path / "c", keep=2) as store:
            for step in range(4):
                store.save(state, step=step, changing="torn")
            fails(lambda: store.save(state, step=9))
            assert store.load()["step"] == 3
            assert all(store.open(info.generation).verify() == [] for info in store)
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def test_a_numpy_array_that_a_thread_changes(tmp_path):
    state = {"a": numpy.zeros(6 << 20, numpy.float32), "b": numpy.ones(3)}
    path = tmp_path / "f.safetensors"
    with Writer(state["a"]):
        assert "'a'" in str(fails(lambda: penstock.save(state, path)))
        penstock.save(state, path, changing="torn")
        safetensors.torch.load_file(path)
        penstock.load(path)


@pytest.mark.parametrize("name", FILES)
def test_a_storage_that_is_freed_by_the_progress(tmp_path, name):
    """In the call itself: the storage is gone when the save looks at it."""
    state = state_of()
    if name.endswith("pt"):

        class Last:
            pass

        def free(_):
            state["weight"].untyped_storage().resize_(0)
            return 1

        with pytest.raises(penstock.Changed, match="weight.*freed, resized or changed"):
            penstock.save({**state, "object": Last()}, tmp_path / name, default=free)
        assert names_in(tmp_path) == []
    else:
        rows = penstock._state.rows.safetensors_rows(state)
        image = penstock._core._format.image_of_tensors(rows, [])
        state["weight"].untyped_storage().resize_(0)
        with pytest.raises(penstock.Changed, match="weight.*freed, resized or changed"):
            image.save(str(tmp_path / name))
        assert names_in(tmp_path) == []


def test_a_storage_that_is_freed_under_a_save_of_a_store(tmp_path):
    """The first save holds the second one back until the storage is gone."""
    state = state_of(8)
    with penstock.CheckpointStore(tmp_path / "c") as store:
        gate, reached = threading.Event(), threading.Event()

        def hold(*_):
            reached.set()
            gate.wait()

        other = {"x": torch.zeros(1000)}
        first = threading.Thread(target=lambda: store.save(other, step=1, progress=hold))
        first.start()
        reached.wait()
        pending = store.save_async(state, step=2, copy=False)
        state["weight"].untyped_storage().resize_(0)
        gate.set()
        with pytest.raises(penstock.Changed, match="weight.*freed, resized or changed"):
            pending.result()
        first.join()
        assert [info.step for info in store.list()] == [1]


def test_what_is_dropped_or_replaced_is_saved_as_it_was(tmp_path):
    model = torch.nn.Linear(2048, 2048)
    before = model.weight.detach().clone()
    with penstock.CheckpointStore(tmp_path / "c") as store:
        pending = store.save_async(model.state_dict(), copy=False)
        model.weight.data = torch.zeros(2048, 2048)
        pending.result()
        assert torch.equal(store.load()["weight"], before)


def test_a_wrong_word_is_refused(tmp_path):
    with pytest.raises(ValueError, match="changing: got 'fast'"):
        penstock.save({"a": torch.zeros(1)}, tmp_path / "f.pt", changing="fast")
    with pytest.raises(TypeError, match="changing"):
        penstock.save({"a": torch.zeros(1)}, tmp_path / "f.pt", changing=True)


def test_an_error_comes_back_from_a_pickle():
    import pickle

    error = penstock.Changed("x", None, "save", "/p", None)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is penstock.Changed and again.path == "/p"


# ---- StepOverlap


class Flat(torch.nn.Module):
    """Parameters and statistics in one buffer, as apex and Megatron have them."""

    def __init__(self):
        super().__init__()
        flat = torch.zeros(1 << 16)
        self.weight = torch.nn.Parameter(flat[: 1 << 15])
        self.register_buffer("seen", flat[1 << 15 :])

    def forward(self, x):
        self.seen += 1
        return (self.weight * x).sum()


def test_step_overlap_copies_statistics_of_a_flat_buffer(tmp_path):
    model = Flat()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        penstock.CheckpointStore(tmp_path / "c") as store,
        penstock.StepOverlap(store, optimizer, model.state_dict) as overlap,
    ):
        for step in range(6):
            model(torch.ones(1)).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert step + 1 == overlap.step
    assert overlap.failures == 0
    with penstock.CheckpointStore(tmp_path / "c") as store:
        for info in store.list():
            seen = store.load(generation=info.generation)["seen"]
            assert seen.min() == seen.max() == info.step


def test_step_overlap_has_ranges_of_whole_tensors():
    flat = torch.zeros(100)
    first, second = torch.nn.Parameter(flat[:40]), torch.nn.Parameter(flat[40:60])
    column = torch.nn.Parameter(torch.zeros(8, 8)[:, :4])
    optimizer = torch.optim.SGD([first, second, column], lr=0.1)
    assert penstock._store.step_overlap._own_memory([optimizer]) == [(flat.data_ptr(), 60 * 4)]


def test_an_ema_that_is_swapped_in_costs_its_save(tmp_path):
    model = torch.nn.Linear(1024, 4096)
    average = [p.detach().clone() + 1 for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    failures = 0
    with (
        penstock.CheckpointStore(tmp_path / "c", keep=2, incremental=False) as store,
        penstock.StepOverlap(store, optimizer, model.state_dict) as overlap,
    ):
        with pytest.warns(RuntimeWarning, match="a save of StepOverlap failed.*changed while it was saved"):
            for attempt in range(40):
                model(torch.ones(1, 1024)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                kept = [p.detach().clone() for p in model.parameters()]
                for parameter, value in zip(model.parameters(), average, strict=True):
                    parameter.data.copy_(value)
                time.sleep(0.02 * (attempt + 1))  # on a busy machine a save takes long
                for parameter, value in zip(model.parameters(), kept, strict=True):
                    parameter.data.copy_(value)
                overlap._ask()
                if overlap.failures:
                    break
            overlap.close()
        failures = overlap.failures
    assert failures >= 1
    with penstock.CheckpointStore(tmp_path / "c") as store:
        assert all(store.open(info.generation).verify() == [] for info in store)
        for info in store:
            assert not torch.equal(store.load(generation=info.generation)["weight"], average[0])


def _behind_another(save):
    """A save that stays until the event is set, so that the next one waits."""
    go = threading.Event()
    return go, save(progress=lambda *_: go.wait(60))


@pytest.mark.parametrize("change", ["all of it", "all of it, by .data", "one element"])
@pytest.mark.parametrize("where", ["store", *FILES])
def test_what_changes_between_the_call_and_the_first_read_is_seen(tmp_path, where, change):
    tensor = torch.arange(1 << 20, dtype=torch.float32)
    state = {"first": torch.ones(3), "w": tensor}
    with penstock.CheckpointStore(tmp_path / "c", keep=None) as store:
        if where == "store":
            go, first = _behind_another(lambda **kw: store.save_async({"x": torch.ones(9)}, step=1, **kw))
            pending = store.save_async(state, step=2, copy=False)
        else:
            go, first = _behind_another(lambda **kw: penstock.save_async({"x": torch.ones(9)}, tmp_path / "x.pt", **kw))
            pending = penstock.save_async(state, tmp_path / where, copy=False)
        if change == "one element":
            tensor[77] += 1
        else:
            (tensor.data if "data" in change else tensor).neg_().sub_(1)
        go.set()
        first.result()
        with pytest.raises(penstock.Changed, match="changed while it was saved"):
            pending.result()
        assert [info.step for info in store] == [1] * (where == "store")
    assert not (tmp_path / where).exists()


def test_a_change_that_is_undone_before_the_first_read_is_none(tmp_path):
    tensor = torch.arange(1 << 20, dtype=torch.float32)
    with penstock.CheckpointStore(tmp_path / "c", keep=None) as store:
        go, first = _behind_another(lambda **kw: store.save_async({"x": torch.ones(9)}, step=1, **kw))
        pending = store.save_async({"w": tensor}, step=2, copy=False)
        tensor.data.neg_()
        tensor.data.neg_()
        go.set()
        first.result()
        pending.result()
        assert torch.equal(store.load()["w"], tensor)


def test_what_is_found_torn_may_have_changed_since_the_call(tmp_path):
    tensor = torch.zeros(1 << 20)
    with penstock.CheckpointStore(tmp_path / "c", keep=None) as store:
        go, first = _behind_another(lambda **kw: store.save_async({"x": torch.ones(9)}, step=1, **kw))
        pending = store.save_async({"w": tensor}, step=2, copy=False, changing="torn")
        tensor.fill_(1)
        go.set()
        first.result()
        pending.result()
        assert bool((store.load()["w"] == 1).all())


def test_tensors_of_inference_mode_are_saved_without_a_copy(tmp_path):
    with torch.inference_mode():
        tensor = torch.arange(1000)
    with penstock.CheckpointStore(tmp_path / "c") as store:
        store.save_async({"w": tensor}, copy=False).result()
        assert torch.equal(store.load()["w"], tensor)


def test_a_change_to_what_the_last_checkpoint_has_is_seen(tmp_path):
    """It has the sum of a shard that is there, which would be linked in place of what was saved."""
    with penstock.CheckpointStore(tmp_path / "store", keep=1, shard_bytes=4096) as store:
        for _ in range(5):
            weight, big = torch.full((2000,), 1.0), torch.randn(1 << 22)
            store.save_async({"w": torch.full((2000,), 2.0), "big": big}, copy=False)
            later = store.save_async({"w": weight, "big": big}, copy=False)
            weight.data.fill_(2.0)
            with pytest.raises(penstock.Changed, match="'w'"):
                later.result()


def test_memory_that_is_freed_before_it_is_compared_with_the_last_checkpoint(tmp_path, run_script):
    """In a process of its own: to read it would end the process."""
    run_script(
        """
        import sys, threading
        import penstock, torch
        with penstock.CheckpointStore(sys.argv[1], keep=None) as store:
            w, other = torch.ones(1 << 22), torch.ones(9)
            go = threading.Event()
            first = store.save_async({"w": w.clone(), "other": other}, progress=lambda *_: go.wait(60))
            second = store.save_async({"w": w, "other": other}, copy=False)
            w.untyped_storage().resize_(0)
            go.set()
            first.result()
            try:
                second.result()
            except penstock.Changed as error:
                assert "tensor 'w'" in str(error), error
                sys.exit(0)
        sys.exit("it was saved")
        """,
        tmp_path / "c",
    )
