# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are kept by their steps."""

import penstock
import pytest

pytest.importorskip("torch")


def test_steps_that_are_multiples_are_kept(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c", keep=1, keep_every_steps=300, read_back=False) as store:
        for step in range(100, 1001, 100):
            store.save({"step": step}, step)
        assert [info.step for info in store.list()] == [300, 600, 900, 1000]
    with penstock.CheckpointStore(tmp_path / "d", keep=1, keep_every_steps=300, read_back=False) as store:
        for _ in range(4):
            store.save({"step": 0})  # of one step, the newest
        assert [info.generation for info in store.list()] == [4]
