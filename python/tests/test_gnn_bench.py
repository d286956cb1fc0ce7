# SPDX-License-Identifier: Apache-2.0
"""`penstock bench gnn`: the rows of sampled batches by every side, each byte checked."""

import importlib.util
import json
import shutil
import subprocess
import sys
import time

import numpy as np
import penstock
import pytest
from penstock import _core
from penstock._measure import gnn_bench, gnn_side

SIDES = [side for side in gnn_side.SIDES if side != "torch" or importlib.util.find_spec("torch")]
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
    sides = [side for side in [*SIDES, *FIO] if side != "torch"]  # its import takes seconds; it is in the default below
    done = run(tmp_path, *SMALL, "--against", ",".join(sides), "--json", tmp_path / "gnn.json")
    assert done.returncode == 0, done.stderr
    assert "Every byte of every batch was right" in done.stdout and "512 rows of 512 bytes" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if str(tmp_path) not in line)
    assert [path.name for path in tmp_path.iterdir()] == ["gnn.json"]
    found = json.loads((tmp_path / "gnn.json").read_text())
    assert found["scale"] == 9 and found["environment"]["penstock"] == penstock.__version__
    assert "--scale 28" in found["not_measured_here"]["command"]
    runs = found["runs"]
    assert {(one["trace"], one["side"]) for one in runs} == {
        (trace, side) for trace in ("rmat", "zipf", "uniform") for side in sides
    }
    assert found["left_out"] == {}
    for one in runs:
        batches = 1 if one["side"] == "fio" else 3
        assert len(one["busy_s"]) == len(one["exposed_s"]) == len(one["step_s"]) == batches
        assert min(one["busy_s"]) > 0 and min(one["exposed_s"]) > 0
        assert one["rows_per_second"] == pytest.approx(one["rows"] / sum(one["exposed_s"]))
        assert one["cores_for_6_3_million_rows_per_second"] == pytest.approx(6.3 * one["cpu_us_per_row"])
        assert f"{one['rows_per_core_second'] or 0:9,.0f}" in done.stdout


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


def side_files(folder, rows, batches, key=0):
    """The files of a side: a table, and batches of its rows."""
    files = {name: str(folder / f"{name}.npy") for name in ("table", "ids", "ends")}
    np.save(files["table"], gnn_side.rows_of(np.arange(rows) + key, 8))
    np.save(files["ids"], np.concatenate(batches))
    np.save(files["ends"], np.cumsum([len(ids) for ids in batches]))
    return files


@pytest.mark.timed
def test_a_loop_that_computes_is_exposed_less_than_it_is_busy(tmp_path, monkeypatch):
    """Each gather takes 50 ms, and so does each step: the side that reads ahead waits for its first gather only."""
    gather_s, step_s, batches = 0.05, 0.05, [np.arange(8)] * 4
    gather = penstock.features.FeatureTable.gather
    gather_async = penstock.features.FeatureTable.gather_async

    class Slow:
        """A future that ends after 50 ms."""

        def __init__(self, future):
            self._future, self._end = future, time.perf_counter() + gather_s

        def result(self):
            time.sleep(max(self._end - time.perf_counter(), 0))
            return self._future.result()

        def notify(self, descriptor):
            time.sleep(max(self._end - time.perf_counter(), 0))
            self._future.notify(descriptor)

    monkeypatch.setattr(gnn_side, "check", lambda rows, ids: time.sleep(step_s))
    slow = lambda table, ids: time.sleep(gather_s) or gather(table, ids)  # noqa: E731
    monkeypatch.setattr(penstock.features.FeatureTable, "gather", slow)
    monkeypatch.setattr(
        penstock.features.FeatureTable, "gather_async", lambda table, ids: Slow(gather_async(table, ids))
    )
    files, reported = side_files(tmp_path, 8, batches), []
    blocking = gnn_side.run("penstock", **files, report=reported.append)
    assert reported == [1, 2, 3, 4]
    assert 4 * gather_s * 0.9 <= sum(blocking["busy_s"]) <= sum(blocking["exposed_s"])
    ahead = gnn_side.run("ahead", **files)
    assert min(ahead["busy_s"]) >= gather_s * 0.9
    assert sum(ahead["exposed_s"]) < sum(ahead["busy_s"]) - gather_s


def test_a_side_whose_bytes_are_wrong_ends_the_run(tmp_path):
    files = side_files(tmp_path, 50, [np.arange(10)], key=1)
    for side in SIDES:
        with pytest.raises(gnn_bench.ToolError, match=f"{side}: ValueError: row 0 has wrong bytes"):
            gnn_bench._run_side(side, files, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scale", "99"], "--scale 99: expected 1 to 34"),
        (["--fanout", "a"], "--fanout a: expected numbers with commas"),
        (["--fanout=-2"], "expected 0 or more, or -1 for all"),
        (["--row-bytes", "100"], "--row-bytes 100: expected a multiple of 8"),
        (["--row-bytes", "x"], "--row-bytes: got 'x'"),
        (["--trace", "rmta"], "--trace rmta: did you mean rmat?"),
        (["--against", "gids"], "--against gids: "),
        (["--against", "fio", "--row-bytes", "1000"], "fio reads whole blocks, and rows of 1000 bytes are none"),
        (["--iterations", "0"], "--iterations 0: at least 1"),
        (["--seed", "-1"], "--seed -1: 0 or more"),
        (["--memory", "lots"], "--memory: got 'lots'"),
        (["--json", "/none/x.json"], "--json /none/x.json: its folder is not there"),
        (["--scale", "34", "--row-bytes", "1MiB"], "take a smaller scale, or another folder"),
    ],
)
def test_wrong_arguments_are_named_before_any_work(tmp_path, words, message, capsys):
    try:
        status = gnn_bench.main([str(tmp_path), *words])
    except SystemExit as ended:  # of argparse
        status = ended.code
    assert status == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert gnn_bench.main([str(tmp_path / "none")]) == 2


def test_json_replaces_only_output_of_either_face(tmp_path, capsys):
    array, out = tmp_path / "a.npy", tmp_path / "out.json"
    np.save(array, np.zeros((4, 4), "f4"))
    before = array.read_bytes()
    words = [str(tmp_path), *SMALL, "--trace", "uniform", "--against", "penstock", "--json"]
    assert gnn_bench.main([*words, str(array)]) == 2
    said = capsys.readouterr().err
    assert f"--json {array}: it is there, and is no earlier output of penstock; give another name" in said
    assert array.read_bytes() == before
    show = ["features", "show", str(array), "--json", str(out)]
    for _ in range(2):  # each replaces what the other wrote, and what itself wrote
        assert gnn_bench.main([*words, str(out)]) == 0, capsys.readouterr().err
        assert "runs" in json.loads(out.read_text())
        assert _core.cli_main(show) == 0 == _core.cli_main(show)
        assert "file" in json.loads(out.read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "out.json"]


def test_without_fio_the_others_run_and_it_says_so(tmp_path):
    words = [*SMALL[:-1], "72", "--trace", "uniform", "--json", tmp_path / "gnn.json"]
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "Without fio: fio" in done.stdout
    found = json.loads((tmp_path / "gnn.json").read_text())
    assert [one["side"] for one in found["runs"]] == SIDES and found["left_out"]["fio"]


def test_without_torch_the_others_run_and_it_says_so(tmp_path, capsys, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else there(name))
    monkeypatch.setattr(gnn_bench, "_SIDES", ("torch", "penstock"))
    words = [str(tmp_path), *SMALL, "--trace", "uniform"]
    assert gnn_bench.main([*words, "--against", "torch,penstock", "--json", str(tmp_path / "gnn.json")]) == 0
    assert "Without torch: torch is not installed" in capsys.readouterr().out
    assert [one["side"] for one in json.loads((tmp_path / "gnn.json").read_text())["runs"]] == ["penstock"]
    assert gnn_bench.main([*words, "--against", "torch"]) == 2
    assert "--against torch: torch is not installed" in capsys.readouterr().err


def test_the_default_is_a_hundred_batches():
    assert gnn_bench._parser().parse_args([]).iterations == 100


def test_read_ahead_is_a_number_or_unknown(tmp_path):
    assert gnn_bench.read_ahead_kb(str(tmp_path)) is None or gnn_bench.read_ahead_kb(str(tmp_path)) >= 0
