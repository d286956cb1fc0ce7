# SPDX-License-Identifier: Apache-2.0
"""A FeatureStore in the workers of a torch DataLoader, however they are started and however they end."""

import os
import signal

import numpy as np
import penstock
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

ROWS = np.random.default_rng(4).standard_normal((400, 128)).astype("f4")


class Rows(Dataset):
    """The rows of a table by number, with their numbers. The worker that is asked for row `last` kills itself."""

    def __init__(self, table, last=None):
        self.table, self.last, self.parent = table, last, os.getpid()

    def __len__(self):
        return len(self.table)

    def __getitems__(self, ids):
        if self.last in ids and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return list(zip(ids, self.table.gather(torch.tensor(ids)), strict=True))


@pytest.fixture
def store(tmp_path):
    penstock.FeatureStore.write(tmp_path / "x.features", {"paper": ROWS}, progress=None)
    with penstock.FeatureStore.open(tmp_path / "x.features", ram="64KiB", policy="clock") as opened:
        opened["paper"].gather(range(100))  # threads of the engine run, and rows are in memory
        yield opened


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_give_the_rows_of_their_ids(store, start):
    loader = DataLoader(
        Rows(store["paper"]),
        batch_size=32,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=start,
        persistent_workers=True,
    )
    for _ in range(2):
        seen = []
        for ids, rows in loader:
            assert np.array_equal(rows.numpy(), ROWS[ids])
            seen += ids.tolist()
        assert sorted(seen) == list(range(len(ROWS)))
    assert np.array_equal(store["paper"].gather([7, 399]), ROWS[[7, 399]])


def test_a_worker_that_dies_costs_the_others_nothing(store, monkeypatch):
    # torch's handler of SIGCHLD raises wherever this thread is, several times.
    monkeypatch.setattr(torch.utils.data._utils.signal_handling, "_set_SIGCHLD_handler", lambda: None)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        dying = Rows(store["paper"], last=390)
        loader = DataLoader(dying, batch_size=16, num_workers=2, multiprocessing_context="fork")
        with pytest.raises((RuntimeError, EOFError, ConnectionError)):
            for ids, rows in loader:
                assert np.array_equal(rows.numpy(), ROWS[ids])
        assert np.array_equal(store["paper"].gather([390]), ROWS[[390]])
    finally:
        signal.signal(signal.SIGCHLD, handler)
