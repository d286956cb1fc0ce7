# SPDX-License-Identifier: Apache-2.0
"""load(into=...): which tensor stands for which, in files and in stores; tensors that share memory."""

import collections
import ctypes
import functools
import io
import itertools
import os
import random
import struct
import sys
import types

import penstock
import pytest

torch = pytest.importorskip("torch")


def one_name(order=None):
    """Tensors of which several have one name, in some order of insertion."""
    state = {
        "a": {"b": torch.full((4,), 1.0)},
        "a.b": torch.full((4,), 2.0),
        1: torch.full((4,), 3.0),
        "1": torch.full((4,), 4.0),
        (1, 2): [torch.full((4,), 5.0)],
        (3, 4): [torch.full((4,), 6.0)],
    }
    return {key: state[key] for key in (order or state)}


def zeros(state):
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return {key: zeros(value) for key, value in state.items()}
    return [zeros(item) for item in state]


def flat(state):
    yield from (
        [state]
        if isinstance(state, torch.Tensor)
        else itertools.chain.from_iterable(map(flat, state.values() if isinstance(state, dict) else state))
    )


def same(a, b):
    if isinstance(a, torch.Tensor):
        assert a.device.type == "cpu" and torch.equal(a, b)
        return
    assert len(a) == len(b)
    for key in a if isinstance(a, dict) else range(len(a)):
        same(a[key], b[key])


class File:
    """A .pt with the verbs of a store."""

    def __init__(self, path):
        self.path = path

    def save(self, state):
        penstock.save(state, self.path)

    def load(self, **arguments):
        return penstock.load(self.path, **arguments)


@pytest.fixture(params=["file", "store"])
def kept(request, tmp_path):
    if request.param == "file":
        yield File(tmp_path / "state.pt")
        return
    with penstock.CheckpointStore(tmp_path / "c") as store:
        yield store


# ---- which is which


@pytest.mark.parametrize("seed", range(8))
def test_places_of_one_name_are_told_apart_in_any_order(kept, seed):
    kept.save(one_name())
    order = list(one_name())
    random.Random(seed).shuffle(order)
    into = zeros(one_name(order))
    found = kept.load(into=into)
    same(one_name(), into)
    same(one_name(), found)
    assert found["a.b"].data_ptr() == into["a.b"].data_ptr()


def test_a_name_of_several_places_is_no_choice(tmp_path):
    path = tmp_path / "state.pt"
    penstock.save(one_name(), path)
    for names in ("a.b", "*", ["1"], {"1": None}):
        with pytest.raises(ValueError, match=r"2 tensors of the name.*state\["):
            penstock.load(path, names=names)
    with pytest.raises(ValueError, match=r"state\['a'\]\['b'\], state\['a.b'\]"):
        penstock.load(path, names="a.b", into=zeros(one_name()))


def test_a_place_that_is_not_there_is_an_error(kept):
    kept.save(one_name())
    with pytest.raises(KeyError, match="has no tensor"):
        kept.load(into={"a": {"b": torch.zeros(4)}, "a.b": torch.zeros(4), "1": torch.zeros(4), 2: torch.zeros(4)})


def test_lists_stand_for_dicts_of_numbers(kept):
    kept.save({"a": [torch.ones(2), torch.zeros(2)]})
    into = {"a": {"0": torch.zeros(2), "1": torch.ones(2)}}
    found = kept.load(into=into)
    same({"a": [torch.ones(2), torch.zeros(2)]}, found)
    assert into["a"]["0"].tolist() == [1, 1] and into["a"]["1"].tolist() == [0, 0]


def test_tensors_that_stand_on_an_ordered_dict_are_filled_too(kept):
    def state(value):
        made = collections.OrderedDict(a=torch.full((3,), value))
        made._metadata = {"scale": torch.full((2,), value)}
        return {"model": made}

    kept.save(state(5.0))
    into = state(0.0)
    found = kept.load(into=into)
    assert found["model"]._metadata["scale"].tolist() == [5, 5]
    assert into["model"]._metadata["scale"].tolist() == [5, 5]


@pytest.mark.parametrize("into", [5, "text", torch.nn.Linear(2, 2)])
def test_into_that_is_no_state_is_named(kept, tmp_path, into):
    kept.save({"weight": torch.ones(2, 2), "bias": torch.ones(2)})
    with pytest.raises(TypeError, match="load: into: got (int|str|Linear); give a state"):
        kept.load(into=into)
    penstock.save({"weight": torch.ones(2, 2)}, tmp_path / "m.safetensors")
    with pytest.raises(TypeError, match="load: into: got (int|str|Linear); give a state"):
        penstock.load(tmp_path / "m.safetensors", into=into)


# ---- memory that they share


def overlapping():
    """(what is saved, into, the two that share memory)."""
    one, many = torch.zeros(4), torch.zeros(10)
    table = torch.zeros(6, 6)
    yield {"a": torch.ones(4), "b": torch.zeros(4)}, {"a": one, "b": one}
    yield {"a": torch.ones(4), "b": torch.zeros(6)}, {"a": many[:4], "b": many[3:9]}
    yield {"a": torch.ones(6, 3), "b": torch.zeros(6, 4)}, {"a": table[:, :3], "b": table[:, 2:]}
    yield {"a": torch.ones(5), "b": torch.zeros(4)}, {"a": many[::2], "b": many[4:8]}


SUFFIXES = ["pt", "safetensors", "safetensors.index.json"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("case", range(4))
def test_targets_that_share_what_the_file_does_not_are_refused(tmp_path, suffix, case):
    state, into = list(overlapping())[case]
    path = tmp_path / f"m.{suffix}"
    penstock.save(state, path, shard_bytes=1)
    with pytest.raises(ValueError, match=r"into\['(a|b)'\] and into\['(a|b)'\] share memory") as caught:
        penstock.load(path, into=into)
    assert not isinstance(caught.value, penstock.Damaged)
    assert all(not tensor.any() for tensor in into.values()), "nothing was read"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_expanded_target_is_refused(tmp_path, suffix):
    path = tmp_path / f"m.{suffix}"
    penstock.save({"a": torch.arange(12.0).reshape(3, 4)}, path)
    for target in (torch.zeros(1, 4).expand(3, 4), torch.zeros(8).as_strided((3, 4), (2, 1))):
        with pytest.raises(ValueError, match=r"into\['a'\]: several of its elements are one"):
            penstock.load(path, into={"a": target})
        assert not target.any()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_targets_that_lie_among_each_other_are_filled(tmp_path, suffix):
    """Columns of one matrix, every other element: their bytes are mixed, and none is in two of them."""
    path = tmp_path / f"m.{suffix}"
    state = {"q": torch.randn(6, 2), "k": torch.randn(6, 4), "odd": torch.randn(5), "even": torch.randn(5)}
    penstock.save(state, path)
    fused, line = torch.zeros(6, 6), torch.zeros(10)
    penstock.load(path, into={"q": fused[:, :2], "k": fused[:, 2:], "odd": line[1::2], "even": line[::2]})
    assert torch.equal(fused, torch.cat([state["q"], state["k"]], 1))
    assert torch.equal(line[1::2], state["odd"]) and torch.equal(line[::2], state["even"])


def tied():
    weight = torch.arange(20.0).reshape(4, 5)
    return {"embedding": weight, "head": weight.view(4, 5), "turned": weight.t(), "row": weight[2], "other": weight + 1}


def test_targets_that_share_what_the_file_shares_too_are_filled(kept):
    kept.save(tied())
    into = tied()
    into["embedding"].zero_()
    into["other"].zero_()
    kept.load(into=into)
    same(tied(), into)


def test_targets_that_share_otherwise_than_the_file_are_refused(kept):
    kept.save(tied())
    into = tied()
    into["row"] = into["embedding"][1]
    with pytest.raises(ValueError, match="share memory"):
        kept.load(into=into)
    into = tied()
    into["other"] = into["embedding"]
    with pytest.raises(ValueError, match="share memory"):
        kept.load(into=into)


@pytest.mark.parametrize("view", [False, True])
def test_untied_targets_are_filled_each(kept, view):
    weight = torch.arange(3.0)
    state = {"a": weight, "b": weight.view(3) if view else weight, "part": weight[1:]}
    kept.save(state)
    into = {"a": torch.zeros(3), "b": torch.zeros(3), "part": torch.zeros(2)}
    found = kept.load(into=into)
    same(state, into)
    assert all(found[name] is into[name] for name in state)


def test_overlapping_targets_of_a_store_are_refused(store):
    store.save({"a": torch.ones(4), "b": torch.zeros(4)})
    one = torch.full((4,), 7.0)
    with pytest.raises(ValueError, match="share memory"):
        store.load(into={"a": one, "b": one})
    assert one.tolist() == [7] * 4


def test_targets_that_lie_otherwise_than_in_the_store_are_filled(store):
    state = {"a": torch.arange(6.0).reshape(2, 3).t(), "view": torch.arange(10.0)[2:5], "c": torch.zeros(2)}
    store.save(state)
    into = {"a": torch.zeros(3, 2), "c": torch.ones(100)[50:52], "view": torch.ones(10)[2:5]}
    found = store.load(into=into)
    same(state, into)
    assert found["c"].data_ptr() == into["c"].data_ptr()


def random_view(draw, storage):
    """A view of a storage whose elements all differ."""
    rows, columns = draw.randint(1, 5), draw.randint(1, 5)
    steps = draw.choice([(columns, 1), (1, rows), (columns + 2, 1), (2 * columns + 1, 2), (1, rows + 1)])
    reach = (rows - 1) * steps[0] + (columns - 1) * steps[1]
    return storage.as_strided((rows, columns), steps, draw.randint(0, len(storage) - 1 - reach))


@pytest.mark.parametrize("seed", range(4))
def test_views_of_any_storages_fill_their_own_elements_and_no_others(kept, seed):
    """States whose tensors are views of few storages, into views of one memory, all of them or some."""
    draw = random.Random(seed)
    for _ in range(25):
        storages = [torch.randn(draw.choice([60, 100])) for _ in range(2)]
        state = {f"t{i}": random_view(draw, draw.choice(storages)) for i in range(draw.randint(1, 5))}
        if draw.random() < 0.5:
            state["all"] = storages[0]
        kept.save(state)
        names = sorted(draw.sample(sorted(state), draw.randint(1, len(state))))
        memory, expected, at, into = torch.full((2000,), 7.0), torch.full((2000,), 7.0), 3, {}
        for name in names:
            shape = tuple(state[name].shape)
            own = draw.choice(
                [
                    state[name].stride(),
                    state[name].contiguous().stride(),
                    [3 * s for s in state[name].contiguous().stride()],
                ]
            )
            into[name] = memory.as_strided(shape, own, at)
            expected.as_strided(shape, own, at).copy_(state[name])
            at += 5 + sum((n - 1) * step for n, step in zip(shape, own, strict=True))
        found = kept.load(into=into, **({"names": names} if isinstance(kept, File) else {}))
        assert torch.equal(memory, expected), (names, state)
        for name in found:
            assert torch.equal(found[name], state[name])
            assert name not in into or found[name] is into[name]


def test_random_matrices_are_refused_exactly_where_they_share_memory(tmp_path):
    """Pairs of strided views of one buffer: refused, or filled and right."""
    draw = random.Random(4)
    refused = filled = 0
    for round in range(100):
        buffer = torch.zeros(70)
        marks = torch.arange(70)
        views = {}
        for name in "abc"[: draw.choice([2, 3])]:
            shape = (draw.randint(1, 4), draw.randint(1, 4))
            steps = draw.choice([(10, 1), (1, 10), (10, 2), (12, 3)])
            views[name] = shape, steps, draw.randint(0, 20)
        into = {name: buffer.as_strided(*view) for name, view in views.items()}
        used = [set(marks.as_strided(*view).flatten().tolist()) for view in views.values()]
        shared = any(a & b for a, b in itertools.combinations(used, 2))
        state = {name: torch.randn(view[0]) for name, view in views.items()}
        path = tmp_path / f"m.{draw.choice(['pt', 'safetensors'])}"
        penstock.save(state, path)
        if shared:
            refused += 1
            with pytest.raises(ValueError, match="share memory"):
                penstock.load(path, into=into)
        else:
            filled += 1
            penstock.load(path, into=into)
            assert all(torch.equal(into[name], tensor) for name, tensor in state.items()), (round, views)
    assert refused > 20 and filled > 20


# ---- what torch and the system know of their memory


@pytest.fixture(params=[*SUFFIXES, "store"])
def form(request, tmp_path):
    """save(state), load(into) of each form."""
    path = tmp_path / f"m.{request.param}"
    if request.param != "store":
        yield lambda state: penstock.save(state, path, shard_bytes=1), lambda into: penstock.load(path, into=into)
        return
    with penstock.CheckpointStore(path) as store:
        yield store.save, lambda into: store.load(into=into)


@pytest.mark.parametrize("of", ["all of it", "a view", "its data"])
def test_autograd_knows_of_what_was_filled(form, of):
    save, load = form
    save({"w": torch.zeros(3), "v": torch.ones(2), "unused": torch.zeros(1)})
    w, v, unused = (torch.full((n,), 5.0, requires_grad=True) for n in (3, 2, 1))
    wrong, right = (w * w).sum(), (unused + 1).sum()
    filled = {"all of it": w, "a view": w.detach().view(3), "its data": w[:]}[of]
    load({"w": filled, "v": v, "unused": unused})
    assert w.tolist() == [0, 0, 0] and v.tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        wrong.backward()
    right.backward()
    (w * w + v.sum()).sum().backward()
    assert w.grad.tolist() == [0, 0, 0] and v.grad.tolist() == [3, 3]


def test_two_ways_to_one_memory_are_both_known_to_autograd(tmp_path):
    weight = torch.ones(3)
    penstock.save({"a": weight, "b": weight}, tmp_path / "m.pt")
    a = torch.full((3,), 5.0, requires_grad=True)
    b = torch.empty(0).set_(a.detach().untyped_storage(), 0, (3,), (1,)).requires_grad_()
    of = {name: (tensor * tensor).sum() for name, tensor in (("a", a), ("b", b))}
    penstock.load(tmp_path / "m.pt", into={"a": a, "b": b})
    for loss in of.values():
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_tensors_of_inference_are_filled(form):
    save, load = form
    save({"w": torch.ones(3)})
    with torch.inference_mode():
        w = torch.zeros(3)
    load({"w": w})
    assert w.tolist() == [1, 1, 1]


READ_ONLY = """
    import mmap, sys
    import numpy, penstock, torch

    form = sys.argv[1]
    size = 3 * mmap.PAGESIZE
    numpy.arange(size, dtype=numpy.uint8).tofile("data")
    for how in sys.argv[2:]:
        mapped = torch.from_numpy(numpy.memmap("data", dtype=numpy.uint8, mode="c" if how == "private" else "r"))
        state = {"good": torch.ones(7), "bad": torch.full((size,), 9, dtype=torch.uint8)}
        if how == "columns":
            state["bad"], mapped = torch.full((16, 3), 9, dtype=torch.uint8), mapped[:64].view(16, 4)[:, :3]
        into = {"good": torch.zeros(7), "bad": mapped}
        if form == "store":
            store = penstock.CheckpointStore("of " + how)
            store.save(state)
            load = store.load
        else:
            penstock.save(state, how + "." + form)
            load = lambda into: penstock.load(how + "." + form, into=into)
        try:
            load(into=into)
        except ValueError as error:
            assert not into["good"].any(), "something was read"
            print(how, error)
        else:
            assert torch.equal(into["bad"], state["bad"])
            print(how, "filled")
"""


@pytest.mark.parametrize("suffix", [*SUFFIXES, "store"])
def test_memory_that_cannot_be_written_is_refused(script, suffix):
    pytest.importorskip("numpy")
    # A store fills what lies as it was saved.
    refused = ["whole"] if suffix == "store" else ["whole", "columns"]
    child = script(READ_ONLY, suffix, *refused, "private")
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == [*refused, "private"]
    for line in lines[:-1]:
        assert "into['bad'] cannot be written: its memory is read-only" in line and "nothing was read" in line
    assert lines[-1] == "private filled"


# ---- how often Python and the compiled part meet


class Counted:
    """What stands for the compiled part, or for an object of it, and notes the names that are asked of it."""

    def __init__(self, real, asked):
        self._real, self._asked = real, asked

    def __getattr__(self, name):
        found = getattr(self._real, name)
        if isinstance(found, types.ModuleType):
            return Counted(found, self._asked)
        self._asked.append(name)
        return functools.partial(self._call, found) if callable(found) and not isinstance(found, type) else found

    def _call(self, real, *arguments, **named):
        found = real(*(getattr(one, "_real", one) for one in arguments), **named)
        return tuple(map(self._seen, found)) if isinstance(found, tuple) else self._seen(found)

    def _seen(self, found):
        return Counted(found, self._asked) if type(found).__module__.startswith("penstock._core") else found


@pytest.fixture
def asked(monkeypatch):
    """The names that are asked of the compiled part, in their order."""
    names = []
    for module in [
        m for name, m in sys.modules.items() if name.startswith("penstock.") and isinstance(m, types.ModuleType)
    ]:
        for attribute in ("_core", "_format"):
            real = vars(module).get(attribute)
            if isinstance(real, types.ModuleType):
                monkeypatch.setattr(module, attribute, Counted(real, names))
    return names


class Opens:
    """Counts how often a file is opened, by whomever in this process; openings with nothing between them are one."""

    OPEN, READ, CLOSE = 0x20, 0x01, 0x18  # of inotify

    def __init__(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert libc.inotify_add_watch(self._fd, os.fsencode(path), self.OPEN | self.READ | self.CLOSE) >= 0

    def count(self):
        events = os.read(self._fd, 1 << 20)
        os.close(self._fd)
        return sum(1 for _, mask, _, _ in struct.iter_unpack("iIII", events) if mask & self.OPEN)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_load_in_place_meets_the_compiled_part_as_often_for_many_tensors_as_for_few(tmp_path, asked, suffix):
    calls = []
    for count in (10, 1000):
        path = tmp_path / f"{count}.{suffix}"
        state = {f"layer.{i}": torch.full((32,), float(i)) for i in range(count)}
        penstock.save(state, path)
        into = {name: torch.zeros(32) for name in state}
        opens = Opens(path)
        asked.clear()
        penstock.load(path, into=into)
        calls.append(list(asked))
        assert asked[0] == "open_source" and "File" not in asked
        assert opens.count() == 1
        assert all(torch.equal(into[name], tensor) for name, tensor in state.items())
    assert calls[0] == calls[1] and len(calls[0]) < 20, calls[0]


def test_a_load_in_place_meets_a_checkpoint_as_often_for_many_tensors_as_for_few(tmp_path, asked, monkeypatch):
    """Lists of all storages for each storage made 10,000 tensors take 26 s."""
    from penstock._state import load as _load

    load_from = _load.load_from
    monkeypatch.setattr(_load, "load_from", lambda source, *more: load_from(Counted(source, asked), *more))
    calls = []
    for count in (10, 300):
        state = {f"t{i}": torch.full((2,), float(i)) for i in range(count)}
        with penstock.CheckpointStore(tmp_path / str(count)) as store:
            store.save(state)
            into = {name: torch.zeros(2) for name in state if name != "t3"}
            asked.clear()
            with pytest.warns(RuntimeWarning, match="t3"):
                found = store.load(into=into)
        calls.append(list(asked))
        assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
        assert all(found[name] is tensor for name, tensor in into.items())
    assert calls[0] == calls[1] and "plan_fill" in calls[0], calls[0]


def test_a_file_is_what_its_content_says(tmp_path):
    state = {"a": torch.arange(5), "b": torch.ones(3)}
    penstock.save(state, tmp_path / "m.safetensors")
    (tmp_path / "index").write_text('{"weight_map": {"b": "m.safetensors"}}')
    assert [info.name for info in penstock.inspect(tmp_path / "index")] == ["b"]
    for mapped in (False, True):
        found = penstock.load(tmp_path / "index", mmap=mapped)
        assert list(found) == ["b"] and torch.equal(found["b"], state["b"])
    with pytest.raises(penstock.Unsupported, match="give its path"):
        penstock.load(io.BytesIO((tmp_path / "index").read_bytes()))
