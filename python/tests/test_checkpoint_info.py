# SPDX-License-Identifier: Apache-2.0
"""What a store says of its checkpoints, and paths that are no UTF-8."""

import os
import pickle
import tempfile

import numpy as np
import penstock
import pytest
import torch


def test_a_save_says_what_was_out_of_the_ordinary():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, penstock.CheckpointStore(folder) as store:
        state = {"w": torch.ones(1 << 20)}  # what is small is gathered, and goes through the page cache anyway
        info = store.save(state)
        assert "page cache" in info.note and "page cache" in repr(info)
        assert store.latest().note == ""
        state["w"] += 1  # else its shard is linked, and nothing is written
        assert "page cache" in store.save_async(state).result().note
    assert "direct I/O" in penstock.CheckpointInfo.note.__doc__


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_store_may_lie_under_a_path_that_is_no_utf8(tmp_path, as_bytes):
    folder = os.fsencode(tmp_path) + b"/run-\xff\xfe"
    path = folder if as_bytes else os.fsdecode(folder)
    with penstock.CheckpointStore(path) as store:
        info = store.save({"w": torch.arange(4.0)})
        assert os.path.isdir(info.path) and os.fsencode(info.path).startswith(folder)
        assert [os.fsencode(f) for f in store.folders] == [folder]
        assert torch.equal(store.load()["w"], torch.arange(4.0))
        repr(info), repr(store.open(1))
    assert torch.equal(penstock.Checkpoint(info.path).load()["w"], torch.arange(4.0))
    shard = os.path.join(info.path, "shard-00001.safetensors")
    with open(shard, "r+b") as f:
        f.seek(-2, os.SEEK_END)
        f.write(b"\x55\x55")
    (problem,) = penstock.Checkpoint(info.path).verify()
    assert problem.path == shard
    os.remove(shard)
    with penstock.CheckpointStore(path) as store:
        assert "missing" in store.list()[0].problem


def test_files_may_lie_under_a_path_that_is_no_utf8(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(folder)
    state = {"w": torch.arange(6.0)}
    for name in ("a.pt", "a.safetensors", "\udcff.pt"):
        path = os.path.join(folder, name)
        penstock.save(state, path)
        assert torch.equal(penstock.load(path)["w"], state["w"])
        pending = penstock.save_async(state, path)
        assert "save" in repr(pending).lower()
        pending.result()
        assert [info.name for info in penstock.inspect(path)] == ["w"]
        with open(path, "wb"):
            pass
        with pytest.raises(penstock.Damaged) as caught:
            penstock.load(path)
        assert caught.value.filename == path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_numpy_in_a_pt_of_each_protocol(tmp_path, protocol):
    grid = np.arange(24, dtype="<i4").reshape(2, 3, 4)
    state = {
        "random": np.random.RandomState(3).get_state(),
        "rows": grid,
        "columns": np.asfortranarray(grid),
        "turned": grid.transpose(0, 2, 1),
        "none": np.zeros((0, 3), dtype="float16"),
        "one": np.array(5.0),
        "words": np.array(["ab", "c"]),
        "steps": grid[:, ::2],
    }
    path = tmp_path / "state.pt"
    torch.save(state, path, pickle_protocol=protocol)
    back = penstock.load(path)
    for name in set(state) - {"random"}:
        assert back[name].dtype == state[name].dtype and back[name].shape == state[name].shape
        assert np.array_equal(back[name], state[name]), name
    assert np.array_equal(back["random"][1], state["random"][1])
    np.random.RandomState().set_state(back["random"])
    assert pickle.loads(pickle.dumps(back["columns"])).flags.f_contiguous
