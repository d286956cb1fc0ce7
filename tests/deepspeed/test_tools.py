# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own ds_io and ds_nvme_tune on Penstock, not a byte of them changed."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

RUNNER = ("-m", "penstock.deepnvme")
BIN = Path(sys.prefix) / "bin"
ODD = 1_000_000  # no multiple of 512: DeepSpeed's op writes nothing of it, and ds_io tells a speed all the same


@pytest.fixture
def path(tmp_path):
    """A PATH with the two programs that the tools call, and no compiler. `sync` is left undone: it is the machine's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "dd").symlink_to(shutil.which("dd"))
    (folder / "sync").symlink_to(shutil.which("true"))
    return {"PATH": str(folder)}


def speed(text, kind):
    return float(re.search(rf"^E2E {kind} Speed = (\S+) GB/sec$", text, re.M)[1])


def test_ds_io_writes_every_byte(run, tmp_path, path):
    words = ["--folder", tmp_path, "--io_size", ODD, "--loops", "1"]
    done = run(*RUNNER, BIN / "ds_io", *words, env=path)
    assert speed(done.out, "Write") > 0
    assert (tmp_path / f"_aio_write_{ODD}.pt.0_0").stat().st_size == ODD


def test_ds_io_reads(run, tmp_path, path):
    words = ["--folder", tmp_path, "--io_size", "4M", "--read", "--loops", "1", "--io_parallel", "4"]
    assert speed(run(*RUNNER, BIN / "ds_io", *words, env=path).out, "Read") > 0


def test_without_penstock_the_same_command_needs_a_compiler(run, tmp_path, path):
    words = ["--folder", tmp_path, "--io_size", ODD, "--loops", "1"]
    done = run(BIN / "ds_io", *words, env={**path, "PENSTOCK_DEEPNVME": None}, status=1)
    assert "Speed" not in done.out


def test_ours_prints_what_theirs_does(run, tmp_path, path):
    """The lines of both, figures and paths left out."""
    words = ["--folder", tmp_path, "--io_size", "1M", "--loops", "2"]
    lines = []
    for command in ((*RUNNER, BIN / "ds_io"), ("-m", "penstock", "ds_io")):
        out = run(*command, *words, env=path).out
        lines.append([re.sub(r"[\d.]+(e-\d+)?", "N", line) for line in out.splitlines()])
    theirs, ours = lines
    assert ours[-4:] == theirs[-4:]
    assert [line for line in theirs if line.startswith(("Testing", "Configuring", "[N]", "Successful"))] == [
        line for line in ours if line.startswith(("Testing", "Configuring", "[N]", "Successful"))
    ]


def test_ds_nvme_tune_of_both_reads_as_one(run, tmp_path, path):
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"block_size": ["1M"], "queue_depth": [32], "io_parallel": [1]}))
    results = []
    for command in ((*RUNNER, BIN / "ds_nvme_tune"), ("-m", "penstock", "ds_nvme_tune")):
        folder = tmp_path / str(len(results))
        folder.mkdir()
        logs = folder / "logs"
        words = ["--nvme_dir", folder, "--io_size", "1M", "--sweep_config", sweep, "--log_dir", logs]
        done = run(*command, *words, env=path)
        best, _, paste = done.out.partition("GB/sec): ")[2].partition("\n")
        assert re.fullmatch(r"read = +[\d.]+, write = +[\d.]+", best)
        results.append((json.loads(paste), sorted(p.name for p in logs.glob("*/*.txt"))))
    assert results[0] == results[1]
    assert results[0][0]["aio"]["num_threads"] == 1
