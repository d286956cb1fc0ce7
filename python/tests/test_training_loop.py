# SPDX-License-Identifier: Apache-2.0
"""What hooks into a training loop: a last checkpoint on SIGTERM, and StepOverlap's in every step."""

import os
import signal
import time

import penstock
import pytest

torch = pytest.importorskip("torch")


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


# ---- SIGTERM


TRAINING = """
import os, signal, sys, time
import penstock, torch
old = lambda *_: None
signal.signal(signal.SIGTERM, old)
weights = torch.zeros(1000)
with penstock.CheckpointStore(sys.argv[1], keep=2) as store:
    with store.save_on_sigterm(lambda: {"w": weights}) as guard:
        print("ready", flush=True)
        for step in range(100_000):
            weights += 1
            time.sleep(0.01)
            guard.step_end(step)
"""


def test_sigterm_saves_once_more_and_leaves(tmp_path, script):
    child = script(TRAINING, tmp_path / "c")
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 143, err
    with penstock.CheckpointStore(tmp_path / "c") as store:
        info = store.latest()
        assert info is not None and (store.load()["w"] == info.step + 1).all()


def test_the_old_handler_of_sigterm_comes_back(store):
    def mine(*_):
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with store.save_on_sigterm(lambda: {"a": 1}) as guard:
            guard.step_end(1)
            assert signal.getsignal(signal.SIGTERM) is not mine
        assert signal.getsignal(signal.SIGTERM) is mine
        assert store.list() == []
        with pytest.raises(SystemExit) as left, store.save_on_sigterm(lambda: {"a": 2}, exit_code=7):
            os.kill(os.getpid(), signal.SIGTERM)
        assert left.value.code == 7 and store.load() == {"a": 2}
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_again_during_the_last_save_says_nothing_new(run_script):
    out = run_script(
        """
        import os, penstock, signal
        store = penstock.CheckpointStore("c")

        def state():
            os.kill(os.getpid(), signal.SIGTERM)
            return {"x": 1}

        try:
            with store.save_on_sigterm(state, exit_code=0) as guard:
                os.kill(os.getpid(), signal.SIGTERM)
                guard.step_end(3)
        finally:
            print(store.load(), store.latest().step)
        """
    )
    assert out == "{'x': 1} 3\n"


# ---- in every step


def test_step_overlap_goes_on_where_memory_is_short(store, monkeypatch):
    _, optimizer, state, run = loop(3)

    def begin(*_):
        raise MemoryError("no memory")

    monkeypatch.setattr(store, "_begin", begin)
    with (
        pytest.warns(RuntimeWarning, match="training goes on"),
        penstock.StepOverlap(store, optimizer, state) as overlap,
    ):
        run()
    assert (overlap.failures, overlap.saves) == (3, 0)


def loop(steps, *, on_step=None):
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters())

    def state():
        return {"model": model.state_dict(), "opt": optimizer.state_dict()}

    def run():
        for i in range(steps):
            optimizer.zero_grad()
            (model(torch.randn(32, 64)) - 1).square().sum().backward()
            optimizer.step()
            if on_step:
                on_step(i)

    return model, optimizer, state, run


def test_step_overlap_saves_each_step_as_it_was(tmp_path):
    """The state of step n, whatever forward and backward of step n + 1 have changed meanwhile."""
    kept = {}
    model, optimizer, state, run = loop(8, on_step=lambda i: kept.__setitem__(i + 1, clone(state())))
    with penstock.CheckpointStore(tmp_path / "c") as store:
        with penstock.StepOverlap(store, optimizer, state) as overlap:
            run()
        assert (overlap.saves, overlap.failures, overlap.step) == (8, 0, 8)
        assert overlap.stall_s > 0
        assert [i.step for i in store.list()] == list(range(1, 9))
        for step in range(1, 9):
            same(store.load(step=step), kept[step])
            assert store.open(store.list()[step - 1].generation).verify() == []
    run()  # the hooks are gone
    assert overlap.step == 8


def clone(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        made = type(value)((k, clone(v)) for k, v in value.items())
        if hasattr(value, "__dict__"):
            made.__dict__.update(clone(value.__dict__))
        return made
    return type(value)(clone(v) for v in value) if isinstance(value, (list, tuple)) else value


def test_step_overlap_every_and_errors(tmp_path, full_disk):
    model, optimizer, state, run = loop(6)
    with penstock.CheckpointStore(tmp_path / "c") as store:
        with penstock.StepOverlap(store, optimizer, state, every=3, step=10) as overlap:
            run()
        assert [i.step for i in store.list()] == [12, 15] and overlap.step == 16
    big = torch.zeros(1_000_000)
    with penstock.CheckpointStore(tmp_path / "d") as store:
        with pytest.warns(RuntimeWarning, match="training goes on"):
            with penstock.StepOverlap(store, optimizer, lambda: {"big": big}) as overlap:
                run()
        assert overlap.failures == 6 and store.list() == []
    with pytest.raises(ValueError, match="on_error"):
        penstock.StepOverlap(store, optimizer, state, on_error="ignore")
