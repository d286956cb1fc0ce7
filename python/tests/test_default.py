# SPDX-License-Identifier: Apache-2.0
"""save(default=): what is saved for objects that a state cannot hold."""

import dataclasses
import datetime
import enum
import pathlib
import re
from collections import OrderedDict, namedtuple

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")

Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Config:
    path: pathlib.Path
    weight: torch.Tensor


def plain(value):
    if dataclasses.is_dataclass(value):
        return vars(value)
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Point):
        return {"x": value.x, "y": value.y}
    raise TypeError(f"a {type(value).__name__} has no plain form")


def saves(tmp_path):
    """save(state, default=) and what is loaded then, of a .pt and of a store, blocking or not."""
    store = penstock.CheckpointStore(tmp_path / "store")
    path = tmp_path / "s.pt"

    def to_stream(state, **how):
        with open(path, "wb") as file:
            penstock.save(state, file, **how)

    return [
        (lambda state, **how: penstock.save(state, path, **how), lambda: penstock.load(path)),
        (to_stream, lambda: penstock.load(path)),
        (lambda state, **how: penstock.save_async(state, path, **how).result(), lambda: penstock.load(path)),
        (store.save, store.load),
        (lambda state, **how: store.save_async(state, **how).result(), store.load),
    ]


def test_what_it_gives_is_saved(tmp_path):
    shared = Config(pathlib.Path("/data"), torch.arange(3.0))
    state = {"config": shared, "again": shared, "list": [Colour.RED, Point(1, shared.weight)], pathlib.Path("key"): 2}
    for save, load in saves(tmp_path):
        save(state, default=plain)
        found = load()
        assert found["config"]["path"] == "/data" and found["list"][0] == "RED" and found["key"] == 2
        assert found["again"] is found["config"]
        assert found["list"][1]["y"] is found["config"]["weight"]
        assert torch.equal(found["config"]["weight"], shared.weight)


def test_it_is_called_for_nothing_else(tmp_path):
    called = []
    state = {"a": torch.ones(2), "b": [1, 2.0, "x", None, b"y", (1,), {3}], "p": pathlib.Path("q")}
    for save, _ in saves(tmp_path):
        called.clear()
        save(state, default=lambda value: called.append(value) or "p")
        assert called == [pathlib.Path("q")]


@pytest.mark.filterwarnings("ignore")
def test_it_is_called_for_tensors_and_arrays_that_a_state_cannot_hold(tmp_path):
    found = [
        torch.empty(2, device="meta"),
        torch.ones(2).untyped_storage(),
        np.array([1, None], dtype=object),
        np.zeros(2, dtype=[("a", "i4")]),
        np.array(["2020"], dtype="M8[D]"),
    ]
    for save, load in saves(tmp_path):
        for one in found:
            with pytest.raises(TypeError, match=r"state\['a'\]\[0\]: .*, or give default="):
                save({"a": [one]})
            called = []
            save({"a": [one]}, default=lambda value, called=called: called.append(value) or 7)
            assert called[0] is one and load() == {"a": [7]}


def test_what_it_raises_ends_the_call(tmp_path):
    for save, _ in saves(tmp_path):
        with pytest.raises(TypeError, match="a date has no plain form"):
            save({"a": datetime.date(2020, 1, 1)}, default=plain)
        with pytest.raises(TypeError, match=r"state\['a'\]: default gave back the .*PosixPath that it was given"):
            save({"a": pathlib.Path("p")}, default=lambda value: value)
        with pytest.raises(TypeError, match="nested deeper than 500 levels"):
            save({"a": pathlib.Path("p")}, default=lambda value: value / "q")
        with pytest.raises(TypeError, match="default: expected a function, got 3"):
            save({}, default=3)
        with pytest.raises(TypeError, match="or give default="):
            save({"a": pathlib.Path("p")})


def test_keys_that_it_makes_equal_are_refused(tmp_path):
    path, other = pathlib.Path("a"), pathlib.Path("b")
    lost = [
        ({"a": 1, path: 2}, "state: "),
        ({path: 1, "a": 2}, "state: "),
        ({"x": [OrderedDict({("a", 1): 1, (path, 1): 2})]}, "state['x'][0]: "),
        ({"s": {"a", path}}, "state['s']: "),
        ({"s": [{frozenset({"a"}), frozenset({path})}]}, "state['s'][0]: "),
        ([path, {"a": 1, path: 2}], "state[1]: "),
    ]
    for save, load in saves(tmp_path):
        for state, place in lost:
            with pytest.raises(TypeError, match=re.escape(place) + ".*'a'.*would be lost; let default give another"):
                save(state, default=str)
        with pytest.raises(TypeError, match="two of its keys or elements are None"):
            save({path: 1, other: 2}, default=lambda value: None)
        save({path: 1, other: 2, "s": {path, other}}, default=str)
        assert load() == {"a": 1, "b": 2, "s": {"a", "b"}}
