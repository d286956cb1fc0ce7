# SPDX-License-Identifier: Apache-2.0
"""The statistics of streamed models, and the budgets that refusals name."""

import pathlib
import shutil
import tempfile
import time

import penstock
import pytest

torch = pytest.importorskip("torch")


def made():
    return torch.nn.Sequential(*(torch.nn.Linear(200, 200) for _ in range(6)))


def on_meta():
    with torch.device("meta"):
        return made()


@pytest.fixture
def saved(tmp_path):
    model, x = made(), torch.ones(1, 200)
    penstock.save(model.state_dict(), tmp_path / "model.safetensors")
    with torch.no_grad():
        return tmp_path, x, model(x), sum(one.nbytes for one in model.parameters())


def run(model, x):
    with torch.no_grad():
        return model(x)


def small_parts(make, count):
    return torch.nn.Sequential(*(make() for _ in range(count)))


MANY_SMALL = {
    "convolutions": lambda: small_parts(
        lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3, bias=False), torch.nn.BatchNorm2d(3)), 12
    ),
    "linear": lambda: small_parts(lambda: torch.nn.Linear(4, 4), 20),
    "norms": lambda: small_parts(lambda: torch.nn.LayerNorm(3000), 9),
    "one": lambda: small_parts(lambda: torch.nn.BatchNorm1d(7), 1),
    "rows": lambda: small_parts(lambda: torch.nn.Embedding(1000, 64), 3),
}


@pytest.mark.parametrize("make", MANY_SMALL.values(), ids=MANY_SMALL)
def test_the_least_budget_of_the_message_works_and_so_does_any_above(make, tmp_path):
    whole = make()
    penstock.save(whole.state_dict(), tmp_path / "model.safetensors")
    total = sum(one.nbytes for one in whole.parameters())

    def streamed(memory):
        with torch.device("meta"):
            model = make()
        return penstock.stream(model, tmp_path, memory=memory)

    least = 0
    try:
        streamed(1)
    except MemoryError as refused:
        least = int(str(refused).split("the least that works for this model is ")[1].split()[0])
    for share in (0, 0.5, 1, 1.005, 1.02, 1.5, 2, 4, 50):
        memory = max(1, least, int(share * total))
        assert streamed(memory).stream_stats().plan["used_bytes"] <= memory


@pytest.mark.timed
def test_stats_have_the_time_of_passes_and_the_share_of_the_bound(saved):
    folder, x, expected, total = saved
    model = penstock.stream(on_meta(), folder, memory=int(0.6 * total))
    before = time.perf_counter()
    for _ in range(5):
        assert torch.equal(run(model, x), expected)
        time.sleep(0.05)  # between passes: of none
    took = time.perf_counter() - before
    stats = model.stream_stats()
    waited = sum(stats.stall_s.values())
    assert 0 < waited <= stats.seconds <= took - 0.2
    assert (1 - waited / stats.seconds) - 1e-6 <= stats.share_of_bound <= 1
    assert str(stats).startswith(f"{stats.passes} passes, 0.00 GiB read, ") and str(stats).endswith(" of the bound")


def test_bytes_without_direct_io_are_counted(saved, tmp_path):
    folder, x, _, total = saved
    shm = pathlib.Path("/dev/shm")
    if not shm.is_dir() or shutil.disk_usage(shm).free < 1 << 24:
        pytest.skip("/dev/shm has no room")
    run(model := penstock.stream(on_meta(), folder, memory=int(0.6 * total)), x)
    (direct,) = model.stream_stats().folders
    if penstock.File(next(folder.glob("*.safetensors"))).info.direct:
        assert direct.bytes_read and direct.buffered_bytes == 0 and direct.buffered_because == ""
    with tempfile.TemporaryDirectory(prefix="penstock-test-", dir=shm) as there:
        for file in folder.glob("model*"):
            shutil.copy(file, there)
        run(model := penstock.stream(on_meta(), there, memory=int(0.6 * total)), x)
        (buffered,) = model.stream_stats().folders
        assert buffered.bytes_read and "tmpfs" in buffered.buffered_because
        assert buffered.buffered_bytes == buffered.bytes_read
        del model


def test_progress_goes_on_with_a_line_about_the_passes(saved, monkeypatch, capsys):
    folder, x, _, total = saved
    monkeypatch.setattr("penstock.weights._live._SHOWN_AFTER_S", 0)
    model = penstock.stream(on_meta(), folder, memory=int(0.6 * total), progress=True)
    for _ in range(3):
        run(model, x)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("penstock stream: 1 passes, ")  # the next one is in ten seconds
    monkeypatch.setattr("penstock.weights._live._TERMINAL_S", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    model.unstream()
    model = penstock.stream(on_meta(), folder, memory=int(0.6 * total), progress=True)
    run(model, x)
    assert "\r" in (drawn := capsys.readouterr().err) and not drawn.endswith("\n")
    monkeypatch.setattr("penstock.weights._stream._Weights.takes", lambda *_: False)  # as if units were divided
    model.set_memory(int(0.7 * total))
    run(model, x)
    assert capsys.readouterr().err.splitlines()[-1].startswith("penstock stream: 1 passes, ")
    del model
    assert capsys.readouterr().err == "\n"
