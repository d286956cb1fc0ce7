# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at random moments: what was acknowledged is there, whole, and the next process goes on from it."""

import os
import random
import signal
import time

import penstock
import pytest

numpy = pytest.importorskip("numpy")

KILLS = max(6, min(int(os.environ.get("PENSTOCK_TEST_SEEDS", "12000")) // 1000, 300))

# Says each number when both the store and the file have it.
CHILD = """
    import sys
    import numpy
    import penstock

    folder, first = sys.argv[1], int(sys.argv[2])

    def state(number):
        return {"number": number, "weight": numpy.full(20_000 + number, number), "fixed": numpy.arange(5000)}

    with penstock.CheckpointStore(f"{folder}/store", keep=2) as store:
        print("ready", flush=True)
        for number in range(first, 100_000):
            if number % 2:
                store.save(state(number), step=number)
            else:
                store.save_async(state(number), step=number).result()
            penstock.save(state(number), f"{folder}/state.pt")
            print(number, flush=True)
"""


def is_whole(state, number):
    return (
        state["number"] == number
        and state["weight"].tolist() == [number] * (20_000 + number)
        and state["fixed"].tolist() == list(range(5000))
    )


@pytest.mark.filterwarnings("error")  # latest() would warn of what it passes over
def test_what_was_acknowledged_is_there_after_a_kill(script, tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    newest, acknowledged = 0, 0
    for kills in range(KILLS):
        child = script(CHILD, tmp_path, newest + 1)
        assert child.stdout.readline() == "ready\n", child.stderr.read()
        time.sleep(draw.uniform(0, 0.15 if acknowledged else 0.15 * (kills + 1)))  # a busy machine takes longer
        child.send_signal(signal.SIGKILL)
        said, problem = child.communicate(timeout=60)
        assert child.returncode == -signal.SIGKILL, problem
        acknowledged = max([acknowledged, *(int(line) for line in said.splitlines() if line.isdigit())])
        with penstock.CheckpointStore(tmp_path / "store", keep=2) as store:
            latest = store.latest()
            assert acknowledged == 0 or latest is not None
            newest = latest.step if latest else 0
            assert newest >= acknowledged, f"{acknowledged} was acknowledged, {newest} is there (seed {seed})"
            assert latest is None or is_whole(store.load(), newest)
        if acknowledged:
            state = penstock.load(tmp_path / "state.pt", weights_only=True)
            assert state["number"] >= acknowledged, f"{acknowledged} was acknowledged (seed {seed})"
            assert is_whole(state, state["number"])
    assert acknowledged > 0, "every child was killed before its first save"
