# SPDX-License-Identifier: Apache-2.0
"""`penstock checkpoint convert --names`: what load(names=) gives, as a file of its own."""

import subprocess
import sys

import penstock
import pytest

torch = pytest.importorskip("torch")


def convert(*words):
    command = [sys.executable, "-m", "penstock", "checkpoint", "convert", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def training_state():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    flat, weight = torch.arange(100.0), model[0].weight
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": 3,
        "views": {"a": flat[10:20], "b": flat[50:60].clone()},
        "flat": flat,
        "tied": {"x": weight, "y": weight},
    }


@pytest.mark.parametrize("source", ["ours.pt", "torch.pt", "legacy.pt", "store"])
def test_a_part_of_a_state_is_converted(tmp_path, source):
    state, path = training_state(), tmp_path / source
    if source == "store":
        with penstock.CheckpointStore(path) as store:
            store.save(state, step=7)
    elif source == "ours.pt":
        penstock.save(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=source == "torch.pt")
    for target in (tmp_path / "part.safetensors", tmp_path / "part.pt"):
        for name in ("model", "views"):
            for memory in ((), ("--memory", "1")):  # in memory, and from mapped files
                done = convert(path, target, "--names", name, "--force", *memory)
                assert done.returncode == 0, done.stderr
                found = penstock.load(target)
                assert found.keys() == state[name].keys()
                assert all(torch.equal(found[key], value) for key, value in state[name].items())
    stock = torch.load(tmp_path / "part.pt")
    assert torch.equal(stock["a"], state["views"]["a"])
    several, tied, copy = tmp_path / "several.pt", tmp_path / "tied.pt", tmp_path / "copy"
    assert convert(path, several, "--names", "optimizer", "--names", "step").returncode == 0
    found = penstock.load(several)
    assert list(found) == ["optimizer", "step"] and found["step"] == 3
    assert torch.equal(found["optimizer"]["state"][0]["exp_avg"], state["optimizer"]["state"][0]["exp_avg"])
    assert convert(path, tied, "--names", "tied").returncode == 0
    found = penstock.load(tied)
    assert found["x"].data_ptr() == found["y"].data_ptr()
    assert convert(path, copy, "--names", "model").returncode == 0
    with penstock.CheckpointStore(copy) as store:
        assert store.latest().step == (7 if source == "store" else 0)
    done = convert(path, tmp_path / "none.pt", "--names", "modle")
    assert done.returncode == 2 and "--names: it has no tensor 'modle'; did you mean 'model'?" in done.stderr
