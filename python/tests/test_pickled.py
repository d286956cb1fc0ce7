# SPDX-License-Identifier: Apache-2.0
"""save(default=penstock.Pickled), and what it takes to have the objects back."""

import argparse
import dataclasses
import datetime
import enum
import logging
import pathlib
import pickle
import sys
import types
import warnings

import penstock
import pytest

torch = pytest.importorskip("torch")


@dataclasses.dataclass
class Config:
    path: pathlib.Path
    rate: float = 0.1


class Touch:
    """Writes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def state_of():
    shared = Config(pathlib.Path("/data"))
    return {
        "model": {"w": torch.arange(3.0)},
        "config": shared,
        "again": [shared, ({"when": datetime.date(2026, 1, 2)},)],
        "args": argparse.Namespace(lr=1),
        "step": 7,
    }


PLACES = [
    "state['config'] (test_pickled.Config)",
    "state['again'][1][0]['when'] (datetime.date)",
    "state['args'] (argparse.Namespace)",
]


@pytest.fixture(params=["pt", "stream", "pt_async", "store", "store_async"])
def faces(request, tmp_path):
    """save(state, **how) and load(**how) of a kind of file."""
    path = tmp_path / "s.pt"
    kind = request.param
    if kind.startswith("store"):
        with penstock.CheckpointStore(tmp_path / "store") as store:
            waits = kind == "store_async"
            yield (lambda s, **how: store.save_async(s, **how).result()) if waits else store.save, store.load
        return
    saves = {
        "pt": lambda state, **how: penstock.save(state, path, **how),
        "pt_async": lambda state, **how: penstock.save_async(state, path, **how).result(),
    }

    def to_stream(state, **how):
        with open(path, "wb") as file:
            penstock.save(state, file, **how)

    yield saves.get(kind, to_stream), lambda **how: penstock.load(path, **how)


def same_tensors(found):
    assert torch.equal(found["model"]["w"], torch.arange(3.0)) and found["step"] == 7


def test_they_come_back_where_that_is_allowed(faces):
    save, load = faces
    state = state_of()
    save(state, default=penstock.Pickled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = load(pickle=True)
        assert load(names="args", pickle=True) == state["args"]
        assert torch.equal(load(names="model")["w"], torch.arange(3.0))  # has nothing pickled in it
    same_tensors(found)
    assert found["config"] == state["config"] and found["args"] == state["args"]
    assert found["again"][0] is found["config"]
    assert found["again"][1] == state["again"][1]
    into = {"model": {"w": torch.zeros(3)}}
    filled = load(into=into, pickle=True)
    assert filled["model"]["w"] is into["model"]["w"] and filled["config"] == state["config"]
    same_tensors(filled)


def test_all_else_comes_where_it_is_not(faces):
    save, load = faces
    save(state_of(), default=penstock.Pickled)
    with pytest.warns(RuntimeWarning) as caught:
        found = load()
    (warning,) = caught
    assert warning.filename == __file__
    assert all(place in str(warning.message) for place in [*PLACES, "pickle=True"])
    same_tensors(found)
    assert found["again"][0] is found["config"]
    held = found["config"]
    assert isinstance(held, penstock.Pickled) and held.type == "test_pickled.Config"
    assert held.load() == state_of()["config"]
    assert repr(held) == f"<penstock.Pickled test_pickled.Config, {len(held.data)} bytes>"
    # Saved again, nothing has to be made of it, or allowed.
    save(found)
    assert load(pickle=True)["config"] == state_of()["config"]


def test_nothing_in_it_runs_unless_that_is_allowed(faces, tmp_path):
    save, load = faces
    made = tmp_path / "touched"
    save({"bad": Touch(made), "good": torch.ones(2)}, default=penstock.Pickled)
    made.unlink()  # the save has loaded the pickle of its caller's own object once
    with pytest.warns(RuntimeWarning, match=r"state\['bad'\] \(.*Path.*\)|state\['bad'\] \(object\)"):
        assert torch.equal(load()["good"], torch.ones(2))
    with pytest.warns(RuntimeWarning):
        load(into={"good": torch.zeros(2)})
    load(names="good")
    assert not made.exists()
    load(pickle=True)
    assert made.exists()


def test_torch_reads_the_file(tmp_path):
    path = tmp_path / "s.pt"
    penstock.save(state_of(), path, default=penstock.Pickled)
    found = torch.load(path, weights_only=False)
    assert found["config"] == state_of()["config"] and found["again"][0] is found["config"]
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)


def test_some_are_pickled_and_some_have_a_plain_form(tmp_path):
    def default(value):
        return str(value) if isinstance(value, pathlib.Path) else penstock.Pickled(value)

    penstock.save({"p": pathlib.Path("a"), "d": datetime.date(2026, 1, 2), "own": penstock.Pickled({3})},
                  tmp_path / "s.pt", default=default)  # fmt: skip
    found = penstock.load(tmp_path / "s.pt", pickle=True)
    assert found == {"p": "a", "d": datetime.date(2026, 1, 2), "own": {3}}


def test_it_is_reported(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="penstock")
    path = tmp_path / "s.pt"
    penstock.save(state_of(), path, default=penstock.Pickled)
    assert any(all(place in record.getMessage() for place in PLACES) for record in caplog.records)
    assert sorted(penstock.inspect(path).pickled) == sorted(PLACES)
    penstock.save({"a": 1}, path)
    assert penstock.inspect(path).pickled == []
    penstock.save({"a": torch.ones(1)}, tmp_path / "s.safetensors")
    assert penstock.inspect(tmp_path / "s.safetensors").pickled == []


def test_an_object_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    module = types.ModuleType("gone_module")
    module.Gone = type("Gone", (), {"__module__": "gone_module"})
    monkeypatch.setitem(sys.modules, "gone_module", module)
    penstock.save({"x": module.Gone(), "y": 1}, tmp_path / "s.pt", default=penstock.Pickled)
    monkeypatch.delitem(sys.modules, "gone_module")
    with pytest.raises(
        pickle.UnpicklingError, match=r"a pickled gone_module\.Gone cannot be made: ModuleNotFoundError"
    ):
        penstock.load(tmp_path / "s.pt", pickle=True)
    with pytest.warns(RuntimeWarning, match="gone_module.Gone"):
        assert penstock.load(tmp_path / "s.pt")["y"] == 1


def test_what_cannot_be_pickled_ends_the_save(faces):
    save, _ = faces
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        save({"x": lambda: 0}, default=penstock.Pickled)
    with pytest.raises(TypeError, match="default=penstock.Pickled pickles it"):
        save({"x": pathlib.Path("a")})
    with pytest.raises(TypeError, match="pickle: expected True"):
        penstock.load("x.pt", pickle=1)


# ---- as keys


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Alike:
    """Keys that look the same."""

    def __init__(self, number):
        self.number = number

    def __repr__(self):
        return "Alike()"

    def __hash__(self):
        return self.number

    def __eq__(self, other):
        return isinstance(other, Alike) and self.number == other.number


def keyed():
    return {
        Mode.FAST: torch.arange(3.0),
        Mode.SLOW: {"w": torch.arange(4.0)},
        (Mode.FAST, "lr"): torch.ones(3),
        (Mode.SLOW, "lr"): torch.zeros(3),
        "paths": {pathlib.Path("/a"), pathlib.Path("/b")},
        "step": 7,
    }


def same_keyed(found, state):
    assert list(found) == list(state)
    assert all(torch.equal(found[key], state[key]) for key in (Mode.FAST, (Mode.FAST, "lr"), (Mode.SLOW, "lr")))
    assert torch.equal(found[Mode.SLOW]["w"], state[Mode.SLOW]["w"])
    assert found["paths"] == state["paths"] and found["step"] == 7


def test_a_key_may_be_one(faces):
    save, load = faces
    state = keyed()
    save(state, default=penstock.Pickled)
    same_keyed(load(pickle=True), state)
    with pytest.warns(RuntimeWarning, match=r"state\[\.\.\.\] \(.*PosixPath"):
        held = load()
    assert [type(key) for key in held][:2] == [penstock.Pickled] * 2
    assert torch.equal(held[penstock.Pickled(Mode.FAST)], state[Mode.FAST])
    assert {one.load() for one in held["paths"]} == state["paths"]
    save(held)  # nothing has to be made of it, or allowed
    same_keyed(load(pickle=True), state)


def test_tensors_under_such_keys_are_filled(faces):
    save, load = faces
    state = keyed()
    save(state, default=penstock.Pickled)
    keys = [Mode.FAST, (Mode.SLOW, "lr"), (Mode.FAST, "lr")]
    into = {key: torch.full((3,), -1.0) for key in keys} | {Mode.SLOW: {"w": torch.full((4,), -1.0)}}
    found = load(into=into, pickle=True)
    same_keyed(found, state)
    assert all(found[key] is into[key] for key in keys) and found[Mode.SLOW]["w"] is into[Mode.SLOW]["w"]
    # The keys of the file are pickles where they are not made.
    held = {penstock.Pickled(Mode.FAST): torch.zeros(3), penstock.Pickled(Mode.SLOW): {"w": torch.zeros(4)}}
    held |= {(penstock.Pickled(mode), "lr"): torch.full((3,), -1.0) for mode in Mode}
    with pytest.warns(RuntimeWarning):
        filled = load(into=held)
    assert all(filled[key] is held[key] for key in held if torch.is_tensor(held[key]))
    assert torch.equal(held[penstock.Pickled(Mode.FAST)], state[Mode.FAST])
    assert torch.equal(held[(penstock.Pickled(Mode.FAST), "lr")], state[(Mode.FAST, "lr")])


def test_keys_that_look_the_same_are_not_taken_for_each_other(faces):
    save, load = faces
    state = {Alike(1): torch.zeros(2), Alike(2): torch.ones(2), "a": torch.full((2,), 5.0)}
    save(state, default=penstock.Pickled)
    found = load(pickle=True)
    assert list(found) == list(state)
    assert torch.equal(found[Alike(2)], state[Alike(2)])
    into = {Alike(2): torch.full((2,), -1.0), Alike(1): torch.full((2,), -1.0), "a": torch.zeros(2)}
    with pytest.raises(KeyError, match="nothing was read"):
        load(into=into, pickle=True)
    assert into[Alike(1)][0] == -1


def test_an_object_that_cannot_be_a_key_any_more_is_named(faces, monkeypatch):
    save, load = faces
    save({Mode.FAST: torch.zeros(1)}, default=penstock.Pickled)
    monkeypatch.setattr(pickle, "loads", lambda data: [])
    with pytest.raises(penstock.Error, match="unhashable type: 'list'"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a store passes the checkpoint over
        load(pickle=True)
    assert torch.equal(load(names="(...)"), torch.zeros(1))


class Half:
    """Can be pickled, and not unpickled."""

    def __reduce__(self):
        return int, ("no number",)


def test_an_object_whose_pickle_cannot_be_loaded_is_refused_by_the_save(faces):
    save, _ = faces
    with pytest.raises(pickle.PicklingError, match="can be pickled, and its pickle cannot be loaded"):
        save({"good": 2, "bad": [Half()]}, default=penstock.Pickled)
