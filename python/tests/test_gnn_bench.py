# SPDX-License-Identifier: Apache-2.0
"""`penstock bench gnn`: the rows of sampled batches by every side, each byte checked."""

import json
import shutil
import subprocess
import sys

import numpy as np
import penstock
import pytest
from penstock._measure import gnn_bench, gnn_side

SMALL = ["--scale", "9", "--batch", "8", "--iterations", "3", "--fanout", "3,2", "--row-bytes", "512"]


FIO = ["fio"] if shutil.which("fio") else []


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "penstock", "bench", "gnn", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_every_side_of_every_trace(tmp_path):
    done = run(tmp_path, *SMALL, "--json", tmp_path / "gnn.json")
    assert done.returncode == 0, done.stderr
    assert "Every byte of every batch was right" in done.stdout and "512 rows of 512 bytes" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if str(tmp_path) not in line)
    assert [path.name for path in tmp_path.iterdir()] == ["gnn.json"]
    found = json.loads((tmp_path / "gnn.json").read_text())
    assert found["scale"] == 9 and found["environment"]["penstock"] == penstock.__version__
    assert "--scale 28" in found["not_measured_here"]["command"]
    runs = found["runs"]
    assert {(one["trace"], one["side"]) for one in runs} == {
        (trace, side) for trace in ("rmat", "zipf", "uniform") for side in [*gnn_side.SIDES, *FIO]
    }
    assert bool(found["left_out"]) == (not FIO)
    for one in runs:
        batches = 1 if one["side"] == "fio" else 3
        assert len(one["exposed_s"]) == len(one["step_s"]) == batches and min(one["exposed_s"]) > 0
        assert one["rows_per_second"] == pytest.approx(one["rows"] / sum(one["exposed_s"]))
        assert one["cores_for_6_3_million_rows_per_second"] == pytest.approx(6.3 * one["cpu_us_per_row"])


def test_the_same_seed_asks_for_the_same_rows(tmp_path):
    rows = []
    for number in range(2):
        done = run(tmp_path, *SMALL, "--trace", "rmat", "--against", "penstock", "--json", tmp_path / f"{number}.json")
        assert done.returncode == 0, done.stderr
        rows.append(json.loads((tmp_path / f"{number}.json").read_text())["runs"][0]["rows"])
    assert rows[0] == rows[1] > 0


def test_a_wrong_byte_is_found():
    ids = np.arange(5000)
    rows = gnn_side.rows_of(ids, 8)
    gnn_side.check(rows, ids)
    rows.view("u1")[4500, 63] ^= 1
    with pytest.raises(ValueError, match="row 4500 has wrong bytes"):
        gnn_side.check(rows, ids)
    assert len(np.unique(gnn_side.rows_of(ids, 8))) == 40_000


def test_a_side_whose_bytes_are_wrong_ends_the_run(tmp_path):
    path = tmp_path / "table.npy"
    np.save(path, gnn_side.rows_of(np.arange(50) + 1, 8))
    np.save(tmp_path / "ids.npy", np.arange(10))
    np.save(tmp_path / "ends.npy", np.array([10]))
    files = {name: str(tmp_path / f"{name}.npy") for name in ("table", "ids", "ends")}
    for side in gnn_side.SIDES:
        with pytest.raises(gnn_bench.ToolError, match=f"{side}: ValueError: row 0 has wrong bytes"):
            gnn_bench._run_side(side, files, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scale", "99"], "--scale 99: expected 1 to 34"),
        (["--fanout", "a"], "--fanout a: expected numbers with commas"),
        (["--fanout=-2"], "expected 0 or more, or -1 for all"),
        (["--row-bytes", "100"], "--row-bytes 100: expected a multiple of 8"),
        (["--row-bytes", "x"], "--row-bytes: got x"),
        (["--trace", "rmta"], "--trace rmta: did you mean rmat?"),
        (["--against", "gids"], "--against gids: "),
        (["--against", "fio", "--row-bytes", "1000"], "fio reads whole blocks, and rows of 1000 bytes are none"),
        (["--iterations", "0"], "--iterations 0: at least 1"),
        (["--seed", "-1"], "--seed -1: 0 or more"),
        (["--memory", "lots"], "--memory: got lots"),
        (["--json", "/none/x.json"], "--json /none/x.json: its folder is not there"),
        (["--scale", "34", "--row-bytes", "1MiB"], "take a smaller scale, or another folder"),
    ],
)
def test_wrong_arguments_are_named_before_any_work(tmp_path, words, message, capsys):
    assert gnn_bench.main([str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert gnn_bench.main([str(tmp_path / "none")]) == 2


def test_without_fio_the_others_run_and_it_says_so(tmp_path):
    words = [*SMALL[:-1], "72", "--trace", "uniform", "--json", tmp_path / "gnn.json"]
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "Without fio: fio" in done.stdout
    found = json.loads((tmp_path / "gnn.json").read_text())
    assert [one["side"] for one in found["runs"]] == list(gnn_side.SIDES) and found["left_out"]


def test_read_ahead_is_a_number_or_unknown(tmp_path):
    assert gnn_bench.read_ahead_kb(str(tmp_path)) is None or gnn_bench.read_ahead_kb(str(tmp_path)) >= 0
