# SPDX-License-Identifier: Apache-2.0
"""What hooks into a training loop: a last checkpoint on SIGTERM, and StepOverlap's in every step."""

import os
import signal
import threading
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


def test_sigterm_that_a_forked_child_inherits_ends_it(run_script):
    """Children have the handler from before the block: Pool and Process.terminate() need it."""
    out = run_script(
        """
        import multiprocessing, os, penstock, signal, threading, time
        context = multiprocessing.get_context("fork")

        def nap():
            time.sleep(100)

        store = penstock.CheckpointStore("c")
        with store.save_on_sigterm(lambda: {"x": 1}) as outer, store.save_on_sigterm(lambda: {"x": 2}) as guard:
            child = context.Process(target=nap)
            child.start()
            child.terminate()
            child.join(30)
            print(child.exitcode)
            with context.Pool(2) as pool:
                print(pool.map(abs, [-1, -2]))
            if os.fork() == 0:
                guard.arrived = True
                guard.step_end(1)                 # saves nothing: the store is the parent's
                guard.__exit__(None, None, None)
                os._exit(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
            print(os.waitstatus_to_exitcode(os.wait()[1]))

            def fork():
                if os.fork() == 0:
                    masked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
                    os._exit(2 * masked + (signal.getsignal(signal.SIGTERM) == signal.SIG_DFL))

            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
            print(os.waitstatus_to_exitcode(os.wait()[1]))
            mine = lambda *_: os._exit(9)
            signal.signal(signal.SIGTERM, mine)   # of the program itself: it stays
            child = context.Process(target=nap)
            child.start()
            time.sleep(0.3)
            child.terminate()
            child.join(30)
            print(child.exitcode)
            signal.signal(signal.SIGTERM, guard._handler)
            guard.step_end(1)
            print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []))
        print(store.list(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        """
    )
    assert out.splitlines() == ["-15", "[1, 2]", "1", "1", "9", "False", "[] True"]


GROUP = """
import os, signal, sys, time
import penstock, torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.ones(4)

def train():
    weights = torch.zeros(4)
    how = {"num_workers": 2, "multiprocessing_context": sys.argv[2]}
    with penstock.CheckpointStore(sys.argv[1], keep=2) as store:
        with store.save_on_sigterm(lambda: {"w": weights}) as guard:
            loader = torch.utils.data.DataLoader(Data(), batch_size=4, **how)
            for step, batch in enumerate(loader):
                weights += batch[0]
                if step == 20:
                    print("training", flush=True)
                time.sleep(0.2 if step > 20 else 0)     # workers that die are found before the end of the step
                guard.step_end(step)

if __name__ == "__main__":
    train()
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_sigterm_for_the_process_group_saves_where_a_loader_has_workers(tmp_path, script, context):
    child = script(GROUP, tmp_path / "c", context, start_new_session=True, env={"OMP_NUM_THREADS": "1"})
    try:
        assert child.stdout.readline() == "training\n"
        os.killpg(child.pid, signal.SIGTERM)
        _, err = child.communicate(timeout=60)
        assert child.returncode == 143, err
        with pytest.raises(ProcessLookupError):  # and the workers have ended, too
            for _ in range(100):
                os.killpg(child.pid, 0)
                time.sleep(0.1)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    with penstock.CheckpointStore(tmp_path / "c") as store:
        info = store.latest()
        assert info is not None and info.step >= 20 and (store.load()["w"] == info.step + 1).all()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_sigterm_of_a_worker_counts_where_its_parent_sends_it(tmp_path, script, context):
    child = script(
        GROUP.replace(
            "guard.step_end(step)",
            """guard.step_end(step)
                if step == 20:
                    workers = iterator_of(loader)._workers
                    os.system(f"kill {workers[0].pid}")          # another process
                    time.sleep(0.5)
                    print([worker.is_alive() for worker in workers])
                    for worker in workers:
                        worker.terminate()
                        worker.join(30)
                        print(worker.exitcode)
                    os._exit(0)""",
        ).replace(
            "def train():",
            """def iterator_of(loader):
    import gc
    kind = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    return next(one for one in gc.get_objects() if isinstance(one, kind))

def train():""",
        ),
        tmp_path / "c",
        context,
        env={"OMP_NUM_THREADS": "1"},
    )
    out, err = child.communicate(timeout=60)
    assert out.splitlines() == ["training", "[True, True]", "0", "0"], (out, err)


def test_a_progress_function_that_saves_to_its_own_store_gets_an_error(store):
    """It would wait for itself."""
    state = {"w": torch.ones(1_000_000)}
    refused = []

    def tries(*_):
        for call in (
            lambda: store.save(state),
            lambda: store.save_async(state),
            lambda: store.collect(),
            lambda: store.remove(1),
        ):
            if len(refused) < 4:
                with pytest.raises(ValueError, match="progress function of a save of this store called this"):
                    call()
                refused.append(call)
        store.list()
        store.wait()

    store.save(state, step=1, progress=tries)
    assert len(refused) == 4 and [info.step for info in store.list()] == [1]
    store.save(state, step=2)


def test_a_progress_function_does_not_wait_for_saves_that_come_after_its_own(store):
    """They begin when that save has returned: it would wait for itself."""
    state = {"w": torch.ones(1_000_000)}
    refused = []

    def tries(*_):
        if refused:
            return
        other = threading.Thread(target=store.save_async, args=(state, 2))
        other.start()
        other.join()
        for call in (store.wait, store.close):
            with pytest.raises(ValueError, match="progress function of a save of this store called this"):
                call()
            refused.append(call)
        assert not store.wait(timeout=0)

    store.save(state, step=1, progress=tries)
    assert len(refused) == 2 and store.wait()
    assert [info.step for info in store.list()] == [1, 2]


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
        with pytest.warns(RuntimeWarning, match="training goes on"), pytest.raises(OSError):  # the last one
            with penstock.StepOverlap(store, optimizer, lambda: {"big": big}) as overlap:
                run()
        # A save that fails just before the next one begins keeps that from beginning.
        assert overlap.failures == overlap.saves > 2 and store.list() == []
        with pytest.warns(RuntimeWarning, match="the last save of StepOverlap failed"), pytest.raises(KeyError):
            with penstock.StepOverlap(store, optimizer, lambda: {"big": big}, every=6) as overlap:
                run()
                raise KeyError
        assert overlap.failures == 1
        overlap.close()
    with pytest.raises(ValueError, match="on_error"):
        penstock.StepOverlap(store, optimizer, state, on_error="ignore")
