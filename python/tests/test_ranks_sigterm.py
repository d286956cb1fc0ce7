# SPDX-License-Identifier: Apache-2.0
"""SIGTERM to some of several ranks that train together: all save at the same step and leave."""

import itertools
import os
import signal
import threading
import time
import warnings

import penstock
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed")
from rank_processes import Failed, RankProcesses, run_ranks  # noqa: E402

ALL = (0, 1, 2)


def train(rank, folder, how):
    """Sums a gradient over all ranks in each step. How it ended, and after how many steps."""
    import torch.distributed as dist

    ranks = penstock.Ranks.torch()
    weight = torch.zeros(1000)
    done = 0
    with penstock.CheckpointStore(folder, ranks=ranks, rank_wait_s=30, keep=2) as store:
        try:
            with store.save_on_sigterm(lambda: {"w": weight, "step": done}, exit_code=7) as guard:
                for step in range(how["steps"]):
                    gradient = torch.ones(1000)
                    dist.all_reduce(gradient)
                    weight += gradient
                    done = step + 1
                    if how.get("slow") == rank:
                        time.sleep(0.05)
                    time.sleep(how.get("pause", 0.002))
                    for _ in range(how.get("self_at", {}).get((rank, step), 0)):
                        os.kill(os.getpid(), signal.SIGTERM)
                    if step == 5:
                        with open(f"{folder}-{rank}", "w"):
                            pass
                    guard.step_end(step)
        except SystemExit as leaving:
            return leaving.code, done
        except OSError as error:
            return str(error), done
    return "ended", done


def started(folder, count=3):
    end = time.monotonic() + 60
    while not all(os.path.exists(f"{folder}-{rank}") for rank in range(count)):
        assert time.monotonic() < end
        time.sleep(0.01)


def check(folder, results, steps=None):
    """All left after the same step, and saved it."""
    assert not any(isinstance(one, Failed) for one in results), results
    assert len(set(results)) == 1 and results[0][0] == 7, results
    store = penstock.CheckpointStore(folder)
    state, (_, done) = store.load(), results[0]
    assert state["step"] == done and (state["w"] == 3 * done).all()
    assert store.latest().step == done - 1
    assert steps is None or done in steps, done


@pytest.mark.parametrize(
    ("victims", "times", "slow"),
    [((0,), 1, None), ((1,), 1, None), ((2,), 2, None), (ALL, 1, None), (ALL, 3, 1), ((1,), 1, 1), ((2,), 1, 0)],
)
def test_sigterm_makes_all_save_at_one_step_and_leave(tmp_path, victims, times, slow):
    folder = str(tmp_path / "s")
    with RankProcesses(3, tmp_path / "r", train, folder, {"steps": 100_000, "slow": slow}) as ranks:
        started(folder)
        for _, victim in itertools.product(range(times), victims):
            ranks.send(victim, signal.SIGTERM)
            time.sleep(0.01)
        results = ranks.results()
    check(folder, results)


@pytest.mark.parametrize("pause", [0.0, 0.06])
def test_the_step_is_soon(tmp_path, pause):
    folder = str(tmp_path / "s")
    how = {"steps": 10_000, "self_at": {(1, 20): 1}, "pause": pause}
    with RankProcesses(3, tmp_path / "r", train, folder, how) as ranks:
        check(folder, ranks.results(), range(21, 25 if pause else 21 + 3 * 17))


@pytest.mark.parametrize(("victim", "before"), itertools.product(ALL, (0, 1, 2)))
def test_just_before_the_last_step_the_end_of_the_block_saves_or_nobody_does(tmp_path, victim, before):
    folder = str(tmp_path / "s")
    how = {"steps": 30, "self_at": {(victim, 29 - before): 1}, "pause": 0.05}
    with RankProcesses(3, tmp_path / "r", train, folder, how) as ranks:
        results = ranks.results()
    if victim == 0 or before > 0 or results[0][0] == 7:
        check(folder, results, range(30 - before, 31))
    else:  # rank 0 was at its end; who got the signal said so, and left by it
        assert results[0] == ("ended", 30), results
        assert results[victim] is None, results
        assert penstock.CheckpointStore(folder).latest() is None


def test_without_sigterm_nothing_is_saved_and_the_loop_goes_on(tmp_path):
    folder = str(tmp_path / "s")
    with RankProcesses(3, tmp_path / "r", train, folder, {"steps": 200, "pause": 0}) as ranks:
        assert ranks.results() == [("ended", 200)] * 3
    assert penstock.CheckpointStore(folder).latest() is None


def test_a_rank_that_fails_before_that_step_is_named_by_all(tmp_path):
    """It trains alone, so that the others come to the step."""
    folder = str(tmp_path / "s")
    with RankProcesses(2, tmp_path / "r", train_alone, folder) as ranks:
        results = ranks.results()
    assert results[1] == "the loss is NaN"
    assert "rank 1 of 2" in results[0] and "RuntimeError: the loss is NaN" in results[0]


def train_alone(rank, folder):
    store = penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=30)
    try:
        with store.save_on_sigterm(lambda: {"n": 1}) as guard:
            for step in range(3):
                if rank == 0 and step == 0:
                    os.kill(os.getpid(), signal.SIGTERM)
                if rank == 1:
                    time.sleep(1)
                    raise RuntimeError("the loss is NaN")
                guard.step_end(step)
    except (RuntimeError, OSError, ValueError) as error:
        return str(error)
    return "ended"


def train_on(rank, folder):
    """Rank 0 is gone after three steps, and the other one goes on."""
    passed_on = []
    signal.signal(signal.SIGTERM, lambda *_: passed_on.append(True))
    store = penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=30)
    try:
        with store.save_on_sigterm(lambda: {"n": 1}) as guard:
            for step in itertools.count():
                if rank == 0 and step == 3:
                    os._exit(9)
                time.sleep(0.01)
                if step == 100:
                    os.kill(os.getpid(), signal.SIGTERM)
                guard.step_end(step)
    except OSError as error:
        return step, str(error), passed_on
    return step, "ended", passed_on


def test_without_rank_0_training_goes_on_and_sigterm_is_an_error(tmp_path):
    with RankProcesses(2, tmp_path / "r", train_on, str(tmp_path / "s")) as ranks:
        _, (step, error, passed_on) = ranks.results()
    assert step == 100 and "mailbox of the ranks is gone" in error and passed_on == [True]


def test_step_overlap_with_ranks(tmp_path):
    results = run_ranks(3, tmp_path / "r", overlap, str(tmp_path / "s"))
    assert results == [(10, 0)] * 3
    state = penstock.CheckpointStore(tmp_path / "s").load()
    assert state["steps"] == 10 and (state["m"]["weight"] == -10 * 3).all()


def overlap(rank, folder):
    import torch.distributed as dist

    model = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=30, keep=2) as store:
        made = penstock.StepOverlap(
            store, optimizer, lambda: {"m": model.state_dict(), "steps": made.step}, on_error="raise"
        )
        with made:
            for _ in range(10):
                model.weight.grad = torch.ones(4, 4)
                dist.all_reduce(model.weight.grad)
                optimizer.step()
        return made.saves, made.failures


def cost(rank, folder):
    """Microseconds of step_end(), as the mean and of most calls."""
    import torch.distributed as dist

    store = penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=30)
    taken = []
    with store.save_on_sigterm(dict) as guard:
        for step in range(300):
            dist.barrier()
            time.sleep(0.001)
            began = time.perf_counter()
            guard.step_end(step)
            taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2] * 1e6


def test_most_steps_send_nothing(tmp_path):
    assert max(run_ranks(2, tmp_path / "r", cost, str(tmp_path / "s"))) < 200


def test_other_threads_and_one_rank_and_a_rank_0_that_never_comes(tmp_path):
    own = penstock.Ranks.of_threads(2)[1]
    store = penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=0.2)
    failed = []

    def run():
        try:
            with store.save_on_sigterm(dict):
                pass
        except RuntimeError as error:
            failed.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in failed[0]
    alone = penstock.CheckpointStore(tmp_path / "alone", ranks=penstock.Ranks.single())
    with pytest.raises(SystemExit), alone.save_on_sigterm(lambda: {"n": 1}) as guard:
        os.kill(os.getpid(), signal.SIGTERM)
        guard.step_end(4)
    assert alone.latest().step == 4
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(penstock.Error, match="rank 0 of 2 has not ended a step"), store.save_on_sigterm(dict) as guard:
        guard.step_end(0)
        guard.step_end(1)
    assert signal.getsignal(signal.SIGTERM) is before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(penstock.Error, match="rank 0 of 2"), store.save_on_sigterm(dict):
            pass
