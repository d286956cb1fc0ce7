# SPDX-License-Identifier: Apache-2.0
"""CheckpointStore.load() when it is the machine that cannot, not the checkpoint; arguments; what cannot be saved."""

import errno
import os
import threading
import warnings

import penstock
import pytest

torch = pytest.importorskip("torch")


# ---- the machine's trouble

MANY = """
    import errno, resource, sys, warnings
    import penstock, torch

    warnings.simplefilter("error")
    state = {f"w{i}": torch.full((1000,), float(i)) for i in range(100)}
    with penstock.CheckpointStore(sys.argv[1], shard_bytes=4000) as store:
        assert store.save(state).shards == 100
    store = penstock.CheckpointStore(sys.argv[1])
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open("/proc/self/stat") as first:
        least = first.fileno()
    for more in (1, 2, 3, 5, 8, 12, 30, 60):
        resource.setrlimit(resource.RLIMIT_NOFILE, (least + more, old[1]))
        for call in (store.load, store.latest, store.list):
            try:
                found = call()
            except OSError as error:
                print(more, call.__name__, errno.errorcode[error.errno])
            else:
                print(more, call.__name__, "None" if found is None else "found")
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
    assert len(store.load()) == 100
"""


def test_a_limit_on_open_files_is_no_missing_checkpoint(tmp_path, run_script):
    """A job that starts over on FileNotFoundError would lose its training."""
    out = run_script(MANY, tmp_path / "c", timeout_s=120)
    lines = [line.split() for line in out.splitlines()]
    assert len(lines) == 24 and {said for _, _, said in lines} <= {"EMFILE", "found"}, out
    assert ["30", "load", "EMFILE"] in lines, out


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.EACCES, errno.ESTALE]
)
def test_what_the_machine_lacks_is_raised_as_it_is(store, monkeypatch, number):
    from penstock._base import errors as _errors

    store.save({"a": torch.ones(3)}, step=1)
    store.save({"a": torch.ones(3)}, step=2)

    def refuse(*_, **__):
        raise _errors.from_core(2, "the machine cannot", number, "read", "shard", None)

    monkeypatch.setattr(penstock.Checkpoint, "_load", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(penstock.Error, match="the machine cannot") as caught:
            store.load()
    assert caught.value.errno == number


def test_memory_that_cannot_be_had_is_raised_as_it_is(tmp_path, run_script):
    """In a process of its own, which keeps no memory of earlier loads."""
    with penstock.CheckpointStore(tmp_path / "c") as store:
        store.save({"a": torch.ones(5 << 20, dtype=torch.uint8)}, step=1)
        store.save({"a": torch.ones(64 << 20, dtype=torch.uint8)}, step=2)
    run_script(
        """
        import resource, sys
        import penstock, torch
        store = penstock.CheckpointStore(sys.argv[1])
        store.load(step=1)  # starts the threads
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), resource.RLIM_INFINITY))
        try:
            store.load()
        except MemoryError:
            sys.exit(0)
        sys.exit("it has the memory")
        """,
        tmp_path / "c",
    )


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODATA, errno.EUCLEAN])
def test_what_the_disk_lost_is_passed_over(store, monkeypatch, number):
    from penstock._base import errors as _errors

    store.save({"a": torch.ones(3)}, step=1)
    store.save({"a": torch.ones(3)}, step=2)
    load = penstock.Checkpoint._load

    def refuse(self, *arguments, **options):
        if self.info.step == 2:
            raise _errors.from_core(2, "the disk cannot", number, "read", "shard", None)
        return load(self, *arguments, **options)

    monkeypatch.setattr(penstock.Checkpoint, "_load", refuse)
    with pytest.warns(RuntimeWarning, match="the disk cannot"):
        assert store.load()["a"].tolist() == [1, 1, 1]


def damage(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_damaged_checkpoint_of_a_step_is_damaged_as_its_generation_is(store):
    shard = "shard-00001.safetensors"
    harms = [
        lambda path: damage(os.path.join(path, shard), 10_000),
        lambda path: os.truncate(os.path.join(path, shard), 100),
        lambda path: os.unlink(os.path.join(path, shard)),
        lambda path: damage(os.path.join(path, "manifest.json"), 40),
    ]
    infos = [store.save({"w": torch.full((5000,), float(step))}, step=10 + step) for step in range(len(harms))]
    for info, harm in zip(infos, harms, strict=True):
        harm(info.path)
        with pytest.raises(penstock.Damaged) as by_step:
            store.load(step=info.step)
        with pytest.raises(penstock.Damaged) as by_generation:
            store.load(generation=info.generation)
        assert str(by_step.value) == str(by_generation.value)
        assert (by_step.value.path, by_step.value.offset) == (by_generation.value.path, by_generation.value.offset)
        if info is infos[0]:
            assert "tensor 'w'" in str(by_step.value) and by_step.value.offset is not None
    store.save({"w": torch.ones(3)}, step=10)  # of several with one step, an older one may be valid
    damage(os.path.join(store.save({"w": torch.zeros(3)}, step=10).path, "manifest.json"), 40)
    assert store.load(step=10)["w"].tolist() == [1, 1, 1]
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 77; there are .*; list\(\) names"):
        store.load(step=77)


# ---- arguments


@pytest.mark.parametrize("step", [-1, 1.0, "3", None, 1 << 64])
def test_a_step_that_is_none_is_named(store, step):
    state = {"a": 1}
    calls = [lambda: store.save(state, step=step), lambda: store.save_async(state, step=step)]
    if step is not None:
        calls.append(lambda: store.load(step=step))
        calls.append(lambda: store.load(generation=step))
        calls.append(lambda: store.open(step))
        calls.append(lambda: store.pin(step))
        calls.append(lambda: store.remove(step))
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=r"^[a-z_]+: (step|generation): expected .*got") as caught:
            call()
        assert "nanobind" not in str(caught.value) and "std::" not in str(caught.value)
    assert store.list() == []


def test_whatever_is_an_integer_is_a_step(store):
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="step: expected an integer, got True"):
        store.save({"a": 1}, step=True)
    for step in (numpy.int64(7), torch.tensor(9), (1 << 64) - 1):
        assert store.save({"a": 1}, step=step).step == int(step)
        assert store.load(step=step) == {"a": 1}


@pytest.mark.parametrize("name", ["keep", "keep_every", "shard_bytes", "host_memory"])
def test_numbers_of_a_store_are_whole(tmp_path, name):
    for value in (1.5, "two", 1 << 64):
        with pytest.raises((TypeError, ValueError), match=f"^CheckpointStore: {name}: .*expected"):
            penstock.CheckpointStore(tmp_path / "c", **{name: value})


# ---- what cannot be saved


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_data_is_named(tmp_path, store):
    state = {"a": [torch.ones(1), {"b": torch.ones(2, device="meta")}]}
    for call in (
        lambda: store.save(state),
        lambda: store.save_async(state),
        lambda: penstock.save(state, tmp_path / "m.pt"),
        lambda: penstock.save_async(state, tmp_path / "m.pt"),
    ):
        with pytest.raises(TypeError, match=r"state\['a'\]\[1\]\['b'\]: the tensor is on the meta device"):
            call()
    with (
        open(tmp_path / "open.pt", "wb") as file,
        pytest.raises(TypeError, match=r"state\['a'\]\[1\]\['b'\]: the tensor is on the meta device"),
    ):
        penstock.save(state, file)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"state\['n'\]: a nested tensor"):
        penstock.save({"n": nested}, tmp_path / "m.safetensors")
    assert store.list() == [] and not list(tmp_path.glob("m.*"))


# ---- names of the state, whatever the shards have


def odd_state():
    weight, base = torch.randn(6, 4), torch.arange(24.0).reshape(4, 6)
    return {
        "plain": torch.randn(8, 4),
        "model": {"embed.weight": weight, "lm_head.weight": weight},  # tied
        "conv": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "turned": base.t(),
        "window": base[1:3, 2:],
        "conj": torch.randn(5, dtype=torch.complex64).conj(),
        "none": torch.empty(0, 3).t(),
    }


def test_names_are_those_of_the_state(store):
    state = odd_state()
    store.save(state)
    flat = {**state, **{f"model.{name}": tensor for name, tensor in state["model"].items()}}
    del flat["model"]
    assert list(store.load(names="*")) == [n for n, _, _ in penstock._state.into.tensors(state)]
    for name, tensor in flat.items():
        made = store.load(names=name)
        assert made.dtype == tensor.dtype and torch.equal(made, tensor)
        assert made.untyped_storage().nbytes() == made.nbytes
    for index in (slice(1, 3), (..., slice(0, 1)), 1):
        for name in ("plain", "model.lm_head.weight", "conv", "turned"):
            assert torch.equal(store.load(names={name: index})[name], flat[name][index])
    some = store.load(names=["model.*", "conv"])
    assert list(some) == ["model.embed.weight", "model.lm_head.weight", "conv"]
    latest = store.open(store.latest().generation)
    assert "conv.storage" in list(latest)  # as the shards have it, for who asks for that
    assert latest.load(names="conv.storage").nbytes == state["conv"].nbytes
    with pytest.raises(KeyError, match="nowhere"):
        store.load(names="nowhere")


def test_a_name_of_several_values_is_refused_as_of_a_file(store, tmp_path):
    state = {"a": {"b": torch.ones(2)}, "a.b": 1.5, 0: torch.zeros(1), "0": "text"}
    store.save(state)
    penstock.save(state, tmp_path / "s.pt")
    for load in (store.load, store.open(1).load, lambda names: penstock.load(tmp_path / "s.pt", names=names)):
        for name in ("a.b", "0"):
            for names in (name, [name]):
                with pytest.raises(ValueError, match=f"the state has 2 values of the name '{name}'"):
                    load(names=names)


def test_a_name_of_a_tied_tensor_reads_its_slice_only(store):
    big = torch.arange(4 << 20, dtype=torch.float32).reshape(1024, -1)
    store.save({"a": big, "z": big})
    before = penstock.default_engine().stats().bytes_read
    assert torch.equal(store.load(names={"z": slice(5, 6)})["z"], big[5:6])
    assert penstock.default_engine().stats().bytes_read - before < 2 << 20


# ---- trouble that passes, and trouble that does not


def trouble(monkeypatch, step, number, times):
    """Checkpoints of that step cannot be loaded a few times."""
    from penstock._base import errors as _errors

    load = penstock.Checkpoint._load
    left = [times]

    def refuse(self, *arguments, **options):
        if self.info.step == step and left[0] > 0:
            left[0] -= 1
            raise _errors.from_core(2, "open: no", number, "open", "manifest", None)
        return load(self, *arguments, **options)

    monkeypatch.setattr(penstock.Checkpoint, "_load", refuse)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_what_the_machine_lacks_is_no_reason_for_an_older_one(store, monkeypatch, number):
    for step in (1, 2):
        store.save({"step": step}, step=step)
    trouble(monkeypatch, 2, number, 1)
    with pytest.raises(penstock.Error) as caught:
        store.load()
    assert caught.value.errno == number
    assert store.load() == {"step": 2}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODATA])
def test_where_none_can_be_read_the_reason_is_raised(store, monkeypatch, number):
    """And not that no checkpoint is there, which would be a reason to start over."""
    store.save({"step": 1}, step=1)
    trouble(monkeypatch, 1, number, 100)
    with pytest.warns(RuntimeWarning, match="passed over") as warned, pytest.raises(penstock.Error) as caught:
        store.load()
    assert caught.value.errno == number and not isinstance(caught.value, FileNotFoundError)
    assert str(caught.value) == "open: no" and warned[0].filename == __file__


def test_an_older_one_is_taken_where_the_newest_cannot_be_read(store, monkeypatch):
    for step in (1, 2):
        store.save({"step": step}, step=step)
    trouble(monkeypatch, 2, errno.EIO, 100)
    with pytest.warns(RuntimeWarning, match="passed over") as warned:
        assert store.load() == {"step": 1}
    assert warned[0].filename == __file__


def test_what_is_wrong_with_the_call_is_raised_and_nothing_passed_over(store):
    store.save({"a": torch.ones(3)}, step=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError, match="nowhere"):
            store.load(names="nowhere")


# ---- NumPy's arrays


@pytest.mark.parametrize("form", ["store", "pt"])
def test_arrays_of_numpy_are_filled_in_place(store, tmp_path, form):
    np = pytest.importorskip("numpy")
    saved = {"a": np.arange(4.0), "deep": [np.ones((2, 3), "i4"), 5], "t": torch.arange(3.0)}

    def load(into):
        return store.load(into=into) if form == "store" else penstock.load(tmp_path / "s.pt", into=into)

    store.save(saved) if form == "store" else penstock.save(saved, tmp_path / "s.pt")
    into = {"a": np.zeros(4), "deep": [np.zeros((2, 3), "i4"), 0], "t": torch.zeros(3)}
    got = load(into)
    assert got["a"] is into["a"] and got["deep"][0] is into["deep"][0] and got["deep"][1] == 5
    assert (into["a"] == saved["a"]).all() and (into["deep"][0] == 1).all() and into["t"].tolist() == [0, 1, 2]
    for wrong, error, words in (
        ({**into, "a": np.zeros(7)}, ValueError, r"into\['a'\] is float64 of \[7\]"),
        ({**into, "a": np.zeros(4, "f4")}, ValueError, "float32"),
        ({**into, "zzz": np.zeros(4)}, KeyError, "zzz"),
        ({**into, "a": np.broadcast_to(np.zeros(1), (4,))}, ValueError, "read-only"),
    ):
        into["t"].zero_()
        with pytest.raises(error, match=words):
            load(wrong)
        assert into["t"].sum() == 0


# ---- arguments


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda store: penstock.CheckpointStore(5), "CheckpointStore: folder"),
        (lambda store: penstock.CheckpointStore("x", lock_wait_s="1"), "CheckpointStore: lock_wait_s"),
        (lambda store: store.load(names=5), "load: names"),
        (lambda store: store.load(names=[5]), "load: names: expected str in it, got 5"),
        (lambda store: store.save({}, metadata=5), "save: metadata"),
        (lambda store: store.save({}, metadata={1: "x"}), "save: metadata"),
        (lambda store: store.wait("x"), "wait: timeout"),
        (lambda store: store.save_on_sigterm(5), "save_on_sigterm: get_state"),
        (lambda store: store.save_on_sigterm(dict, exit_code="x"), "save_on_sigterm: exit_code"),
        (lambda store: penstock.StepOverlap(store, [], dict), "StepOverlap: optimizer"),
        (lambda store: penstock.StepOverlap(store, None, dict), "StepOverlap: optimizer"),
        (lambda store: penstock.StepOverlap(5, sgd(), dict), "StepOverlap: store"),
        (lambda store: penstock.StepOverlap(store, sgd(), 5), "StepOverlap: get_state"),
        (lambda store: penstock.StepOverlap(store, sgd(), dict, every=1.5), "StepOverlap: every"),
        (lambda store: penstock.save({}, "x.pt", shard_bytes=1.5), "save: shard_bytes"),
        (lambda store: penstock.load("x.pt", mmap=5), "load: mmap"),
        (lambda store: penstock.load("x.pt", weights_only="no"), "load: weights_only"),
        (lambda store: penstock.load("x.pt", names=5), "load: names"),
    ],
)
def test_what_is_wrong_with_an_argument_is_told_at_the_call(store, call, words):
    with pytest.raises(TypeError, match=words):
        call(store)


def sgd():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


def test_a_checkpoint_that_opens_is_open_whole(tmp_path):
    """It is removed at any moment: then open() says so, and no later read."""
    state = {f"l{i}": torch.full((2000,), float(i)) for i in range(16)}
    stop = threading.Event()

    def save():
        with penstock.CheckpointStore(tmp_path, keep=1, shard_bytes=1, incremental=False) as store:
            while not stop.is_set():
                store.save(state)

    writer = threading.Thread(target=save)
    writer.start()
    try:
        reader = penstock.CheckpointStore(tmp_path)
        opened = 0
        while opened < 300:
            try:
                checkpoint = reader.open(reader.latest().generation)
            except (AttributeError, FileNotFoundError, ValueError):  # none yet, or gone already
                continue
            with checkpoint:
                assert all(torch.equal(checkpoint[name][:], tensor) for name, tensor in state.items())
            opened += 1
    finally:
        stop.set()
        writer.join()
