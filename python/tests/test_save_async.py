# SPDX-License-Identifier: Apache-2.0
"""save_async() of single files: what is durable is what was at the call, errors are never lost, memory has a bound."""

import asyncio
import gc
import os
import subprocess
import sys
import time
import warnings

import penstock
import pytest
from penstock import _core
from penstock._base import devices as _devices
from penstock._state import save_async as _async

torch = pytest.importorskip("torch")

# A limit on the size of files, as a full disk that needs no root.
FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
"""


@pytest.fixture
def saver(monkeypatch):
    """save_async() with a small budget and a queue of its own."""

    def make(host_memory):
        made = _core._async.FileSaver(host_memory)
        monkeypatch.setattr(_async, "_files", made)
        return made

    return make


def state_of(seed=1, size=300_000):
    torch.manual_seed(seed)
    base = torch.randn(1000)
    return {
        "weights": torch.randn(size),
        "view": base[10:20],
        "base": base,
        "small": [torch.randn(3) for _ in range(50)],
        "empty": torch.empty(0),
        "step": seed,
        "name": "run",
    }


def check(loaded, expected):
    assert torch.equal(loaded["weights"], expected["weights"]) and torch.equal(loaded["base"], expected["base"])
    assert torch.equal(loaded["view"], expected["view"])
    assert all(torch.equal(a, b) for a, b in zip(loaded["small"], expected["small"], strict=True))
    assert loaded["empty"].numel() == 0 and loaded["step"] == expected["step"] and loaded["name"] == "run"


@pytest.mark.parametrize("name", ["state.pt", "state.safetensors"])
def test_what_is_durable_is_what_was_at_the_call(tmp_path, name):
    """Promise P10: training changes its tensors as soon as it may."""
    for seed in range(5):
        state = state_of(seed, 3_000_000)
        if name.endswith("safetensors"):
            state = {"weights": state["weights"], "base": state["base"]}
        before = {k: v.clone() for k, v in state.items() if isinstance(v, torch.Tensor)}
        pending = penstock.save_async(state, tmp_path / name)
        assert pending.staged()
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.fill_(-1)
        state["step"] = -1
        state.clear()
        assert pending.result() is None
        assert pending.durable() and pending.done() and pending.state == "durable"
        loaded = penstock.load(tmp_path / name)
        for key, value in before.items():
            assert torch.equal(loaded[key], value)
        if not name.endswith("safetensors"):
            assert loaded["step"] == seed


def test_saves_are_done_in_order(tmp_path):
    pendings = [penstock.save_async(state_of(i), tmp_path / f"{i}.pt") for i in range(10)]
    for i in (3, 7, 9):
        pendings[i].result()
        assert all(p.durable() for p in pendings[: i + 1])
    same = [penstock.save_async(state_of(i), tmp_path / "state.pt") for i in range(10)]
    same[-1].result()
    check(penstock.load(tmp_path / "state.pt"), state_of(9))


def test_stock_torch_reads_what_was_saved_behind_the_back(tmp_path):
    state = state_of()
    penstock.save_async(state, tmp_path / "state.pt").result()
    check(torch.load(tmp_path / "state.pt", weights_only=True), state)


def test_without_a_copy_the_caller_waits_before_it_changes(tmp_path):
    state = state_of(3)
    pending = penstock.save_async(state, tmp_path / "state.pt", copy=False)
    assert pending.wait_before_update() is True
    assert pending.staged()
    state["weights"].fill_(0)
    pending.result()
    check(penstock.load(tmp_path / "state.pt"), state_of(3))


def test_without_a_copy_tensors_live_as_long_as_they_are_needed(tmp_path):
    pending = penstock.save_async(state_of(4), tmp_path / "state.pt", copy=False)  # nobody else holds the tensors
    gc.collect()
    pending.result()
    check(penstock.load(tmp_path / "state.pt"), state_of(4))


def test_a_pending_that_is_dropped_goes_on(tmp_path, saver):
    mine = saver(64 << 20)
    penstock.save_async(state_of(5), tmp_path / "state.pt")
    mine.finish()
    check(penstock.load(tmp_path / "state.pt"), state_of(5))


def test_await(tmp_path):
    async def run():
        first = penstock.save_async(state_of(6), tmp_path / "a.pt")
        second = penstock.save_async(state_of(7), tmp_path / "b.pt")
        assert await second is None
        await first

    asyncio.run(run())
    check(penstock.load(tmp_path / "b.pt"), state_of(7))


def test_progress_is_told_to_who_waits(tmp_path):
    reports = []
    state = {"weights": torch.zeros(4_000_000)}
    pending = penstock.save_async(state, tmp_path / "s.pt", progress=lambda done, total: reports.append((done, total)))
    pending.result()
    assert pending.total_bytes >= 16_000_000 or pending.total_bytes == 0
    assert all(0 <= done <= total for done, total in reports)


def test_what_cannot_be_saved_is_said_at_the_call(tmp_path):
    with pytest.raises(TypeError, match=r"state\['model'\]\[1\]"):
        penstock.save_async({"model": [1, object()]}, tmp_path / "state.pt")
    assert os.listdir(tmp_path) == []


def test_copies_from_devices():
    """Their host side; that of a GPU needs one."""
    storages = [torch.arange(n, dtype=torch.uint8).untyped_storage() for n in (0, 7, 200)]
    copies = _devices.host_copies(storages)
    for copy, storage in zip(copies, storages, strict=True):
        assert bytes(copy) == bytes(storage) and (copy.data_ptr() != storage.data_ptr() or not storage.nbytes())


# ---- errors


def test_a_failure_is_raised_by_result_and_the_old_file_stays(tmp_path, saver, full_disk):
    saver(64 << 20)
    old = {"weights": torch.ones(1000)}
    penstock.save(old, tmp_path / "state.pt")
    pending = penstock.save_async(state_of(), tmp_path / "state.pt")
    with pytest.raises(OSError) as error:
        pending.result()
    assert "state.pt" in str(error.value)
    assert pending.done() and not pending.durable() and pending.state == "failed"
    assert str(pending.exception()) == str(error.value)
    assert torch.equal(penstock.load(tmp_path / "state.pt")["weights"], old["weights"])
    assert os.listdir(tmp_path) == ["state.pt"]
    penstock.save_async(old, tmp_path / "next.pt").result()  # it was reported: the next save is not affected


def test_a_failure_that_nobody_asked_for_is_raised_by_the_next_save(tmp_path, saver, full_disk):
    saver(64 << 20)
    failed = penstock.save_async(state_of(), tmp_path / "first.pt")
    while not failed.done():
        time.sleep(0.01)
    small = {"weights": torch.ones(10)}
    with pytest.raises(OSError, match=r"earlier save of '.*first\.pt' failed, and '.*second\.pt' was not begun"):
        penstock.save_async(small, tmp_path / "second.pt")
    assert not os.path.exists(tmp_path / "second.pt")
    penstock.save_async(small, tmp_path / "second.pt").result()  # training goes on
    assert os.listdir(tmp_path) == ["second.pt"]


def test_a_failure_does_not_stop_those_behind_it(tmp_path, saver, full_disk):
    saver(64 << 20)
    good = {"weights": torch.ones(10)}
    first = penstock.save_async(state_of(), tmp_path / "first.pt", copy=True)
    try:
        second = penstock.save_async(good, tmp_path / "second.pt")
    except OSError:  # the first one has failed already, and says so here
        second = penstock.save_async(good, tmp_path / "second.pt")
    second.result()
    assert first.exception() is not None
    assert torch.equal(penstock.load(tmp_path / "second.pt")["weights"], good["weights"])


def test_an_error_that_nobody_asked_for_is_printed_at_the_end(tmp_path, script):
    run = script(
        FULL
        + """
import penstock, torch, sys
penstock.save_async({"weights": torch.ones(1_000_000)}, sys.argv[1])
print("training goes on")
""",
        tmp_path / "state.pt",
    )
    out, err = run.communicate(timeout=60)
    assert run.returncode == 1 and out == "training goes on\n", err
    assert "state.pt" in err and "failed" in err
    assert not os.path.exists(tmp_path / "state.pt")


def test_pending_saves_are_finished_at_the_end(tmp_path, run_script):
    run_script(
        """
import penstock, torch, sys
for i in range(5):
    penstock.save_async({"weights": torch.full((2_000_000,), i)}, f"{sys.argv[1]}/{i}.pt")
""",
        tmp_path,
    )
    for i in range(5):
        assert torch.equal(penstock.load(tmp_path / f"{i}.pt")["weights"], torch.full((2_000_000,), i))


def test_cancel(tmp_path, saver):
    saver(256 << 20)
    first = penstock.save_async({"weights": torch.zeros(8_000_000)}, tmp_path / "first.pt")
    second = penstock.save_async({"weights": torch.zeros(8_000_000)}, tmp_path / "second.pt")
    second.cancel()
    assert second.exception() is None or second.cancelled()
    if not second.durable():  # it had not begun
        with pytest.raises(penstock.Cancelled):
            second.result()
        assert not os.path.exists(tmp_path / "second.pt")
    first.result()
    penstock.save_async({"weights": torch.zeros(8)}, tmp_path / "third.pt").result()


def test_the_error_of_a_cancelled_save_names_the_cancel(tmp_path):
    weights = torch.zeros(20_000_000)
    for delay in (0.02, 0.01, 0.005, 0.001, 0):
        pending = penstock.save_async({"weights": weights}, tmp_path / "state.pt")
        time.sleep(delay)
        pending.cancel()
        if pending.exception() is not None:
            assert isinstance(pending.exception(), penstock.Cancelled) and "cancel()" in str(pending.exception())
            return
    pytest.skip("each save was over before it could be cancelled")


def test_fork_with_a_pending_save(tmp_path, saver):
    saver(256 << 20)
    pending = penstock.save_async({"weights": torch.ones(8_000_000)}, tmp_path / "parent.pt")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ours = pending.exception(5) is None or (
                pending.cancelled() and "belongs to the process" in str(pending.exception())
            )
            penstock.save_async({"weights": torch.zeros(10)}, tmp_path / "child.pt").result(20)
            status = 0 if ours else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    pending.result()
    assert torch.equal(penstock.load(tmp_path / "parent.pt")["weights"], torch.ones(8_000_000))
    assert torch.equal(penstock.load(tmp_path / "child.pt")["weights"], torch.zeros(10))


# ---- memory


def test_who_finds_the_budget_used_up_waits(tmp_path, saver):
    saver(40 << 20)
    for i in range(6):
        pending = penstock.save_async({"weights": torch.full((4_000_000,), i)}, tmp_path / f"{i}.pt")
        assert pending.staged()
    pending.result()
    for i in range(6):
        assert penstock.load(tmp_path / f"{i}.pt")["weights"][0] == i


def test_a_state_larger_than_the_budget_waits_for_its_own_save_and_says_so(tmp_path, saver):
    saver(4 << 20)
    with pytest.warns(RuntimeWarning, match=r"host_memory \(4 MiB\)"):
        pending = penstock.save_async(state_of(1, 4_000_000), tmp_path / "state.pt")
    assert pending.staged() and pending.durable()
    check(penstock.load(tmp_path / "state.pt"), state_of(1, 4_000_000))


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_memory_after_200_saves_is_that_after_10(memory_folder, saver):
    """The quick form of the bar ckpt.leak."""
    saver(64 << 20)
    state = {"weights": torch.zeros(4 << 20, dtype=torch.uint8), **{f"t{i}": torch.zeros(64) for i in range(100)}}
    seen = {}
    for i in range(1, 201):
        state["weights"].fill_(i % 256)
        penstock.save_async(state, memory_folder + "/state.pt").result()
        if i in (10, 200):
            gc.collect()
            seen[i] = resident_bytes()
    assert seen[200] <= seen[10] * 1.02 + (1 << 20), seen


@pytest.mark.timed
def test_many_small_tensors_stage_quickly(tmp_path, saver):
    saver(256 << 20)
    state = {f"tensor.{i}": torch.zeros(64) for i in range(20_000)}
    began = time.perf_counter()
    pending = penstock.save_async(state, tmp_path / "state.pt")
    stall = time.perf_counter() - began
    pending.result()
    assert stall < 5, stall  # about 0.1 s on a machine that does nothing else
    assert len(penstock.load(tmp_path / "state.pt")) == 20_000


def test_it_is_not_imported_with_torch():
    code = "import penstock, sys; penstock.CheckpointStore; penstock.save_async; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_warning_without_a_reason(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        penstock.save_async(state_of(), tmp_path / "state.pt").result()
