# SPDX-License-Identifier: Apache-2.0
"""`penstock bench --shapes`: each side of each shape moves the same bytes, and what is made goes again."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from penstock._measure import shapes, shapes_bench, storage

SCALE = "64"


def run(folder, *words):
    return shapes_bench.main(["--shapes", str(folder), "--seconds", "1", "--scale", SCALE, *words])


def test_all_shapes_move_the_same_bytes_by_every_side(tmp_path):
    """Whatever state they begin from, which a small disk or a busy machine may not give."""
    files = shapes.Files(str(tmp_path), int(SCALE))
    for name, make in shapes.SHAPES.items():
        if not all(map(shapes.has, shapes.NEEDS.get(name, ()))):
            continue
        shape = make(files)
        assert list(shape.sides)[0] == "penstock" and len(shape.sides) > 1 and len(shape.what) <= 38
        sums = set()
        for call in shape.sides.values():
            if shape.states == ("new",):
                shape.begin("new")
            elif shape.write_dirty is not None:
                shape.write_dirty()
            call()
            sums.add(shape.checksum())
        assert len(sums) == 1, name
        if shape.states == ("new",):
            assert sum(map(os.path.getsize, shape.paths)) >= shape.nbytes
    files.remove_own()
    assert sorted(os.listdir(tmp_path)) == ["large", "small"]


def test_a_run_has_every_turn_and_leaves_nothing(tmp_path, capsys):
    disk, out = tmp_path / "disk", tmp_path / "out.json"
    disk.mkdir()
    assert run(disk, "--only", "sequence,files_list,append_4k,threads_16", "--json", str(out)) == 0
    assert list(disk.iterdir()) == []
    document = json.loads(out.read_text())
    rows = {(row["shape"], row["state"]): row for row in document["rows"]}
    assert ("sequence", "warm") in rows and ("append_4k", "new") in rows
    for row in rows.values():
        if "skipped" in row:  # a file system in memory has nothing that is cold
            assert row["state"] == "cold"
            continue
        times = {side["side"]: side["seconds"] for side in row["sides"]}
        assert len({len(seconds) for seconds in times.values()}) == 1 and len(times["penstock"]) >= 3
        assert row["best_stock"] != "penstock" and row["ratio"]["min"] <= row["ratio"]["max"]
    printed = capsys.readouterr().out
    assert "4 shapes" in printed and "pwrite" in printed
    assert max(map(len, printed.splitlines()[2:])) <= 80
    assert "\033" not in printed  # no terminal


def test_a_side_that_moves_other_bytes_is_found(tmp_path, capsys, monkeypatch):
    def wrong(files):
        shape = whole(files)
        shape.sides["preadv"] = lambda: None
        return shape

    whole = shapes.SHAPES["whole"]
    monkeypatch.setitem(shapes.SHAPES, "whole", wrong)
    assert run(tmp_path, "--only", "whole") == 1
    assert re.search(r"in one call, \w+: preadv moved other bytes", capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_what_is_cold_and_warm_is_known(tmp_path):
    path = str(tmp_path / "f")
    shapes.write_random(path, 4 << 20)
    storage.bring_in(path)
    assert storage.cached_bytes(path) >= 0.98 * (4 << 20)
    storage.make_cold(path)
    if storage.cached_bytes(path) == 0:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(file.fileno(), 1, 1 << 20)
        assert 0 < storage.cached_bytes(path) < 1 << 20
    (tmp_path / "empty").touch()
    assert storage.cached_bytes(str(tmp_path / "empty")) == 0


def test_a_file_system_in_memory_has_no_cold_rows(tmp_path_factory, capsys):
    if not os.access("/dev/shm", os.W_OK) or os.statvfs("/dev/shm").f_bavail < 1 << 16:
        pytest.skip("/dev/shm cannot be written, or is small")
    folder = f"/dev/shm/penstock-test-{os.getpid()}"
    os.mkdir(folder)
    try:
        assert run(folder, "--only", "whole") == 0
        assert "not measured: 100 % stay in the page cache" in capsys.readouterr().out
    finally:
        os.rmdir(folder)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--only", "sequenze"], 2, "--only sequenze: did you mean sequence?"),
        (["--only", "x"], 2, "--only x: expected one of whole, sequence"),
        (["--json", "/nowhere/x"], 2, "its folder is not there"),
    ],
)
def test_wrong_words_are_found_before_any_work(words, status, said, tmp_path, capsys):
    assert run(tmp_path, *words) == status
    assert said in capsys.readouterr().err


def test_the_time_is_checked(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        run(tmp_path, "--seconds", "0")
    assert ended.value.code == 2 and "--seconds: got '0'; expected 1 to 86,400" in capsys.readouterr().err


def test_too_little_space_is_found_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shapes, "DISK_BYTES", 1 << 60)
    assert run(tmp_path) == 1
    assert re.search(r"\d+ MiB are free, and \d+ MiB are needed; free some", capsys.readouterr().err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(number, tmp_path):
    words = [sys.executable, "-m", "penstock", "bench", "--shapes", str(tmp_path), "--only", "append_1m"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 60
    while not any(tmp_path.glob("*/log")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert list(tmp_path.iterdir()) == []


def test_a_row_says_who_is_faster_only_where_the_rounds_agree():
    def verdict(ours, theirs):
        return shapes_bench.Row("x", None, "cold", seconds={"penstock": ours, "preadv": theirs}).verdict

    assert verdict([1, 1, 1], [2, 2, 2]) == "faster" and verdict([2, 2, 2], [1, 1, 1]) == "slower"
    assert verdict([1, 1, 1], [1.04, 1.04, 1.04]) == "level"
    assert verdict([1, 5, 1, 5, 1], [2, 2, 2, 2, 2]) == "level"
