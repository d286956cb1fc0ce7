# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are kept by their steps, and two of one generation."""

import os
import shutil

import penstock
import pytest

torch = pytest.importorskip("torch")


def test_steps_that_are_multiples_are_kept(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c", keep=1, keep_every_steps=300, read_back=False) as store:
        for step in range(100, 1001, 100):
            store.save({"step": step}, step)
        assert [info.step for info in store.list()] == [300, 600, 900, 1000]
    with penstock.CheckpointStore(tmp_path / "d", keep=1, keep_every_steps=300, read_back=False) as store:
        for _ in range(4):
            store.save({"step": 0})  # of one step, the newest
        assert [info.generation for info in store.list()] == [4]


def test_a_generation_that_two_have(tmp_path):
    """A checkpoint was copied by hand under another step: both are listed, and the number names neither."""
    with penstock.CheckpointStore(tmp_path) as store:
        store.save({"a": torch.zeros(1000)}, step=5)
        shutil.copytree(tmp_path / "00000001-step-5", tmp_path / "00000001-step-9")
        assert [info.step for info in store.list() if info.generation == 1] == [5, 9]
        for call in (store.open, store.pin, store.remove, lambda generation: store.load(generation=generation)):
            with pytest.raises(ValueError, match="'00000001-step-5', '00000001-step-9'.*move all but one"):
                call(1)
        with pytest.warns(RuntimeWarning, match="step-9' was passed over"):
            assert store.latest().step == 5
        with open(tmp_path / "00000001-step-5" / "shard-00001.safetensors", "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        with pytest.raises(penstock.Damaged, match="step-5"), pytest.warns(RuntimeWarning):
            store.load(step=5)
