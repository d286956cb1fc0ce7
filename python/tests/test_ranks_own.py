# SPDX-License-Identifier: Apache-2.0
"""States that are not the same on all ranks: keys that some ranks have, and what each has for itself (PerRank)."""

import random
import subprocess
import sys

import penstock
import pytest
from test_ranks import good, on_ranks, save_all

torch = pytest.importorskip("torch")


def same(a, b):
    """Equal, types and order of keys included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def value_of(dice, depth=0):
    kind = dice.randrange(7 if depth < 3 else 4)
    if kind == 0:
        return torch.randint(0, 100, [dice.randint(0, 4) for _ in range(dice.randint(0, 3))])
    if kind == 1:
        return torch.full((dice.choice([3, 400_000]),), dice.random())
    if kind == 2:
        return dice.choice([None, True, 1.5, "text", b"bytes", 2**70, {"a", "b"}])
    if kind == 3:
        return dice.randint(-9, 9)
    if kind == 4:
        return [value_of(dice, depth + 1) for _ in range(dice.randint(0, 3))]
    if kind == 5:
        return tuple(value_of(dice, depth + 1) for _ in range(dice.randint(0, 3)))
    return {dice.choice(["x", "y", 7, "z"]): value_of(dice, depth + 1) for _ in range(3)}


def states_of(dice, count, depth=0):
    """A random dict of each rank, that of all of them, and what each of them loads."""
    own = [{} for _ in range(count)]
    loaded, listed = [{} for _ in range(count)], {}
    for key in dice.sample(["a", "b", "c", 5, "e", "f"], dice.randint(2, 5)):
        some = [r for r in range(count) if dice.random() < 0.7] or [dice.randrange(count)]
        kind = dice.randrange(4 if depth < 2 else 3)
        if kind == 0:
            values = {r: value_of(dice) for r in some}
            for r in some:
                own[r][key] = penstock.PerRank(values[r])
                loaded[r][key] = values[r]
            listed[key] = [values.get(r) for r in range(count)]
        elif kind < 3:
            value = value_of(dice)
            for r in some:
                own[r][key] = value
            for r in range(count):
                loaded[r][key] = value
            listed[key] = value
        else:
            theirs, theirs_loaded, theirs_listed = states_of(dice, count, depth + 1)
            for r in range(count):  # dicts are on all: an empty one is a dict, too
                own[r][key] = theirs[r]
                loaded[r][key] = theirs_loaded[r]
            listed[key] = theirs_listed
    for state in own:
        entries = list(state.items())
        dice.shuffle(entries)
        state.clear()
        state.update(entries)
    return own, loaded, listed


@pytest.mark.parametrize("seed", range(24))
def test_dicts_are_joined_and_each_rank_has_its_own(tmp_path, seed):
    dice = random.Random(seed)
    torch.manual_seed(seed)
    count = dice.randint(2, 4)
    own, loaded, listed = states_of(dice, count)
    folder = tmp_path / "store"

    def run(number, ranks):
        with penstock.CheckpointStore(folder, ranks=ranks, rank_wait_s=20, shard_bytes=1_000_000) as store:
            store.save(own[number], step=1)
            again = store.save_async(own[number], step=2).result(20)
            return again, store.load()

    for number, (info, found) in enumerate(good(on_ranks(count, run))):
        assert info.ranks == count
        assert same(found, loaded[number]), f"rank {number}"
    store = penstock.CheckpointStore(folder)
    assert same(store.load(per_rank="list"), listed)
    assert not store.open(2).verify()
    written = store.latest().written_bytes
    assert written == 0 or written < store.latest().tensor_bytes or not store.latest().tensors, "unchanged is linked"


def test_what_a_rank_has_fills_its_tensors(tmp_path):
    def state(number):
        return {"rng": penstock.PerRank({"t": torch.full((4,), number)}), f"only{number}": torch.full((2,), number)}

    good(save_all(tmp_path, [state(0), state(1), state(2)]))

    def run(number, ranks):
        into = {"rng": penstock.PerRank({"t": torch.zeros(4, dtype=torch.int64)})}
        with penstock.CheckpointStore(tmp_path, ranks=ranks) as store:
            found = store.load(into=into)
        assert found["rng"]["t"] is into["rng"].value["t"]
        return found["rng"]["t"]

    found = good(on_ranks(3, run))
    assert [t.tolist() for t in found] == [[r] * 4 for r in range(3)]


def test_another_number_of_ranks_asks_for_what_it_wants(tmp_path):
    good(save_all(tmp_path, [{"w": torch.ones(2), "rng": penstock.PerRank(torch.full((1,), r))} for r in range(2)]))
    store = penstock.CheckpointStore(tmp_path)
    with pytest.raises(ValueError, match=r"state\['rng'\].*: 2 saved, and 1 load; per_rank='list'"):
        store.load()
    with pytest.raises(ValueError, match=r"state\['rng'\]"):
        store.load(into={"w": torch.zeros(2), "rng": penstock.PerRank(torch.zeros(1))})
    with pytest.raises(ValueError, match="per_rank: expected 'own' or 'list'"):
        store.load(per_rank="mine")
    assert store.load(names="w").tolist() == [1, 1]
    assert store.load(names=["rng.1"])["rng.1"].tolist() == [1]
    w = torch.zeros(2)
    assert store.load(into={"w": w}).keys() == {"w"} and w.tolist() == [1, 1]
    assert [t.tolist() for t in store.load(per_rank="list")["rng"]] == [[0], [1]]
    results = on_ranks(3, lambda _, ranks: penstock.CheckpointStore(tmp_path, ranks=ranks).load())
    assert all(isinstance(result, ValueError) for result in results)


def test_one_process_is_one_rank(tmp_path):
    store = penstock.CheckpointStore(tmp_path)
    store.save({"a": penstock.PerRank([1, torch.ones(1)])}, step=1)
    assert same(store.load(), {"a": [1, torch.ones(1)]})
    with pytest.raises(TypeError, match=r"state\['a'\]: a PerRank is saved by a CheckpointStore"):
        penstock.save({"a": penstock.PerRank(1)}, tmp_path / "x.pt")


t = torch.ones(3)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({"a": 1}, {"a": 2}, r"state\['a'\]: another value on rank 1 .* than on rank 0"),
        ({"a": 1}, {"a": 1.0}, r"state\['a'\]: a value of another type"),
        ({1: "x"}, {1.0: "x"}, r"state\[...\]: a value of another type"),
        ({"a": [1, 2]}, {"a": [1]}, r"state\['a'\]: 1 items, and not 2"),
        ({"a": {"x", "y"}}, {"a": {"x", "z"}}, r"state\['a'\]: other elements"),
        ({"a": torch.ones(3)}, {"a": torch.ones(4)}, r"tensor 'a' is F32 \[3\] on rank 0 .*, and F32 \[4\] on rank 1"),
        ({"a": torch.ones(3)}, {"a": torch.nn.Parameter(torch.ones(3))}, r"state\['a'\]: a tensor of another"),
        ({"a": t}, {"a": penstock.PerRank(t)}, r"state\['a'\]: a value of another type"),
        ({"a": {"b": t}}, {"a.b": t}, r"tensor 'a.b' is at another place on rank 1"),
        ({"b": t.clone()}, {"a": t, "b": t}, r"state\['b'\]: kept as tensor 'a', and not as 'b',"),
        ({"a": t}, {"a": penstock.Slice(t, (3,), (0,))}, "tensor 'a' is F32 .* a part of F32"),
    ],
)
def test_what_is_not_the_same_is_named_on_all_ranks(tmp_path, first, second, reason):
    for result in save_all(tmp_path, [first, second]):
        assert isinstance(result, ValueError), result
        with pytest.raises(ValueError, match=reason):
            raise result
    good(save_all(tmp_path, [{"a": 1}, {"b": 2}]))
    assert penstock.CheckpointStore(tmp_path).load() == {"a": 1, "b": 2}


def test_replicas_that_differ_are_named_or_the_first_is_saved(tmp_path):
    model = torch.nn.BatchNorm1d(4)

    def state(number):
        own = {key: value.clone() for key, value in model.state_dict().items()}
        own["running_mean"] += number
        return {"model": own, "seed": number, "sizes": [1] * (number + 1)}

    def moved(number):
        return {"model": state(number)["model"]}

    for result in save_all(tmp_path, [moved(r) for r in range(3)]):
        assert isinstance(result, ValueError)
        assert "tensor 'model.running_mean' is not the same on rank 0 of 3" in str(result)
    for replicas, saved in (("first", [state(r) for r in range(3)]), ("equal", [moved(1)] * 3)):
        good(save_all(tmp_path, saved, replicas=replicas))
        assert same(dict(penstock.CheckpointStore(tmp_path).load()["model"]), saved[0]["model"])
    assert penstock.CheckpointStore(tmp_path).load(generation=1)["sizes"] == [1]
    with pytest.raises(ValueError, match="replicas: expected 'equal' or 'first', got 'last'"):
        penstock.CheckpointStore(tmp_path / "other").save({"a": 1}, step=1, replicas="last")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"p": penstock.PerRank([penstock.PerRank(1)])}, "PerRank in another PerRank"),
        ({"w": t, "p": penstock.PerRank(t[1:])}, "shares memory with one outside"),
        ({"p": penstock.PerRank(penstock.Slice(t, (6,), (0,)))}, "a part of a tensor in a PerRank"),
    ],
)
def test_a_value_of_a_rank_has_limits(tmp_path, state, reason):
    with pytest.raises((ValueError, TypeError), match=reason):
        penstock.CheckpointStore(tmp_path).save(state, step=1)


def test_sets_of_processes_with_other_hashes_are_equal(tmp_path):
    """The order of a set of texts is another one in each process; a mailbox of files joins two of them."""
    program = """
import os, sys, time, penstock

class Files:
    def __init__(self, folder): self.folder = folder
    def path(self, key): return os.path.join(self.folder, key.replace("/", "_"))
    def put(self, key, value):
        with open(self.path(key) + ".new" + sys.argv[1], "wb") as file: file.write(value)
        os.rename(self.path(key) + ".new" + sys.argv[1], self.path(key))
    def get(self, key, timeout):
        end = time.monotonic() + timeout
        while True:
            try:
                with open(self.path(key), "rb") as file: return file.read()
            except FileNotFoundError:
                if time.monotonic() >= end: return None
                time.sleep(0.002)
    def erase(self, key):
        try: os.remove(self.path(key))
        except FileNotFoundError: pass

ranks = penstock.Ranks(int(sys.argv[1]), 2, Files(sys.argv[2]))
with penstock.CheckpointStore(sys.argv[3], ranks=ranks, rank_wait_s=30) as store:
    store.save({"s": {"one", "two", "three", "four", "five"}}, step=1)
"""
    (tmp_path / "mail").mkdir()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(r), tmp_path / "mail", tmp_path / "store"],
            env={"PYTHONHASHSEED": str(r + 1), "PATH": ""},
        )
        for r in range(2)
    ]
    assert [child.wait(60) for child in children] == [0, 0]
    assert penstock.CheckpointStore(tmp_path / "store").load() == {"s": {"one", "two", "three", "four", "five"}}
