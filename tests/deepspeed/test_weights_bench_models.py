# SPDX-License-Identifier: Apache-2.0
"""`penstock weights bench` with transformers: a small model from its making to the table, and what a signal leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from penstock._measure import models, weights_bench

GROUPS = Path("/sys/fs/cgroup/memory")
SIZE = ["--max-bytes", "20MB", "--against", "map", "--rounds", "1", "--tokens", "2"]
TINY = models.Model("llama3.2-1b", 256, 40, 500, 1024, key_value=64, tied=True)


def groups():
    return {path.name for root in (GROUPS, GROUPS.parent) for path in root.glob("penstock-weights-bench-*")}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(models.MODELS, "llama3.2-1b", TINY)


def test_all_sides_generate_the_same_words(tiny, tmp_path, capsys):
    assert weights_bench.main([str(tmp_path), *SIZE, "--json", str(tmp_path / "out.json")]) == 0, capsys.readouterr()
    out = capsys.readouterr().out
    assert "every shape as it is, for --max-bytes is 0.02 GB" in out
    assert "all sides generated the same words" in out
    assert all(len(line) <= 80 for line in out.splitlines() if "x" in line[-1:])
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["same_words"] and found["weight_bytes"] <= 20_000_000 and found["memory_bytes"] < found["weight_bytes"]
    assert [side["side"] for side in found["figures"]] == ["penstock", "map"]
    assert all(len(one["token_s"]) == 2 and one["peak_bytes"] for side in found["figures"] for one in side["rounds"])
    assert found["figures"][0]["rounds"][0]["read_bytes"] == pytest.approx(found["read_bytes"], rel=0.1)


def test_a_budget_that_is_too_small_costs_no_run(tiny, tmp_path, capsys):
    assert weights_bench.main([str(tmp_path), *SIZE, "--memory", "1000"]) == 1
    assert "the least that works for this model is" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(number, tmp_path):
    before = groups()
    words = ["weights", "bench", str(tmp_path), "--max-bytes", "400MB", "--rounds", "50", "--against", "map"]
    process = subprocess.Popen([sys.executable, "-m", "penstock", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any(tmp_path.glob("*/model.safetensors.index.json")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(1)  # a side runs
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "the files that it made are removed" in err
    assert list(tmp_path.iterdir()) == [] and groups() <= before
