# SPDX-License-Identifier: Apache-2.0
"""`penstock checkpoint diff` compares the tensors of the states, whatever a store or a file made of their storages."""

import json
import subprocess
import sys

import penstock
import pytest

torch = pytest.importorskip("torch")


def diff(a, b, *more):
    words = [sys.executable, "-m", "penstock", "checkpoint", "diff", str(a), str(b), "--json", "-", *more]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def views():
    """Views that overlap, one with strides, one of a part, one conjugated: what a store keeps as bytes of storages."""
    flat = torch.arange(20.0)
    return {
        "left": flat[:10],
        "right": flat[5:15],
        "model": {"turned": torch.arange(6.0).reshape(2, 3).t(), "part": torch.arange(8)[2:5]},
        "conjugated": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "step": 3,
    }


def copies(change=0.0):
    """The same values, each with memory of its own."""

    def copy(value):
        if isinstance(value, dict):
            return {key: copy(inner) for key, inner in value.items()}
        return value.resolve_conj().clone(memory_format=torch.contiguous_format) if torch.is_tensor(value) else value

    made = copy(views())
    made["right"] += change
    return made


def saved(folder, name, state):
    if name.endswith(".safetensors"):
        rows = {k: v for k, v in state.items() if torch.is_tensor(v)}
        rows |= {f"model.{k}": v for k, v in state["model"].items()}
        penstock.save(rows, folder / name)
    elif name.endswith(".pt"):
        penstock.save(state, folder / name)
    else:
        with penstock.CheckpointStore(folder / name) as store:
            store.save(state)
    return folder / name


@pytest.mark.parametrize("one", ["store", "a.pt"])
@pytest.mark.parametrize("other", ["copies", "copies.pt", "copies.safetensors"])
def test_the_same_tensors_are_the_same_however_they_are_stored(tmp_path, one, other):
    a, b = saved(tmp_path, one, views()), saved(tmp_path, other, copies())
    for x, y in ((a, b), (b, a)):
        status, report = diff(x, y)
        assert (status, report["different"], report["same"], report["structure_differs"]) == (0, [], 5, False)


@pytest.mark.parametrize("other", ["copies", "copies.pt"])
def test_the_tensor_that_differs_has_its_name_in_the_state(tmp_path, other):
    a, b = saved(tmp_path, "store", views()), saved(tmp_path, other, copies(change=0.5))
    status, report = diff(a, b)
    (row,) = report["different"]
    assert (status, row["name"], row["difference"], row["largest_distance"]) == (1, "right", "content", 0.5)
    assert diff(a, b, "--name", "model.*")[0] == 0


def test_what_is_around_the_tensors_is_compared(tmp_path):
    a, b = saved(tmp_path, "store", views()), saved(tmp_path, "other", {**copies(), "step": 4})
    status, report = diff(a, b)
    assert (status, report["different"], report["structure_differs"]) == (1, [], True)


def test_tensors_of_one_name_are_compared_in_their_order(tmp_path):
    one, zero = torch.ones(2), torch.zeros(2)
    a = saved(tmp_path, "a.pt", {"a": {"b": one}, "a.b": zero})
    changed = {"first": {"a": {"b": zero}, "a.b": zero}, "second": {"a": {"b": one}, "a.b": one}}
    for name in ("same", "same.pt"):
        other = saved(tmp_path, name, {"a": {"b": one}, "a.b": zero})
        status, report = diff(a, other)
        assert (status, report["different"], report["same"]) == (0, [], 2)
    for name, state in changed.items():
        status, report = diff(a, saved(tmp_path, f"{name}.pt", state))
        (row,) = report["different"]
        assert (status, row["name"], row["difference"], report["same"]) == (1, "a.b", "content", 1)
    fewer = saved(tmp_path, "fewer.pt", {"a": {"b": one}})
    assert [row["difference"] for row in diff(a, fewer)[1]["different"]] == ["only in A"]
    assert [row["difference"] for row in diff(fewer, a)[1]["different"]] == ["only in B"]
