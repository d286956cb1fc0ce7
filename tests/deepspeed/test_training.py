# SPDX-License-Identifier: Apache-2.0
"""ZeRO-Infinity and ZeRO-Inference of an unmodified DeepSpeed on Penstock find what DeepSpeed finds in memory."""

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "deepnvme"
ON_PENSTOCK = ("-m", "penstock.deepnvme")
MIB = 1 << 20


@pytest.fixture(scope="module")
def in_memory():
    """Results of the runs in memory, by their options: several tests compare with one."""
    return {}


def compare(run, in_memory, example, what, *options, more=()):
    """What the example found on Penstock is what it found in memory. Gives that, and what Penstock moved."""
    if (example, options) not in in_memory:
        there = run(EXAMPLES / f"{example}.py", "--store=memory", *options).result
        assert there["moved"] is None
        in_memory[example, options] = there[what]
    ours = run(*ON_PENSTOCK, EXAMPLES / f"{example}.py", "--store=nvme", *options, *more).result
    assert ours[what] == in_memory[example, options]
    return ours[what], ours["moved"]


@pytest.mark.parametrize(
    "offload, more, read_min, written_min",
    [
        # Master weights and two moments, 25.7 MiB each: written once at least, and read for each of five steps.
        ("optimizer", (), 400 * MIB, 500 * MIB),
        ("optimizer", ("--pipeline",), 400 * MIB, 500 * MIB),
        ("parameters", (), 150 * MIB, 150 * MIB),
        ("both", (), 600 * MIB, 650 * MIB),
    ],
)
def test_infinity_finds_the_losses_of_memory(run, in_memory, offload, more, read_min, written_min):
    losses, moved = compare(run, in_memory, "zero_infinity", "losses", "--steps=5", f"--offload={offload}", more=more)
    assert moved["read"] >= read_min and moved["written"] >= written_min, moved
    assert len(losses) == 5 and losses[-1] < losses[0] - 0.5, losses  # it learns, so nothing is equal by standing still


def test_inference_finds_the_tokens_of_memory(run, in_memory):
    tokens, moved = compare(run, in_memory, "zero_inference", "tokens", "--tokens=12")
    assert moved["read"] >= 250 * MIB and moved["written"] >= 24 * MIB, moved
    assert len(set(tokens[0])) > 6, tokens  # not one token again and again


def test_infinity_under_torchrun(run, tmp_path):
    """Two ranks, started by torchrun: each has ours, and they find what two ranks find in memory."""

    def results(*before, store):
        logs = tmp_path / store
        torchrun = (
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "--redirects=1",
            "--log-dir",
            logs,
        )
        run(*before, *torchrun, EXAMPLES / "zero_infinity.py", f"--store={store}", "--steps=2", "--layers=1")
        ranks = sorted(logs.glob("*/attempt_0/*/stdout.log"))
        assert len(ranks) == 2
        return [json.loads(rank.read_text().splitlines()[-1]) for rank in ranks]

    there, ours = results(store="memory"), results(*ON_PENSTOCK, store="nvme")
    assert [rank["losses"] for rank in ours] == [rank["losses"] for rank in there]
    for rank in ours:
        assert rank["moved"]["read"] >= 40 * MIB and rank["moved"]["written"] >= 40 * MIB, rank


def test_nothing_is_compiled_where_there_is_a_compiler(run, tmp_path):
    """Compilers that only note that they were called: nothing that does I/O calls one."""
    tools = tmp_path / "tools"
    tools.mkdir()
    called = tmp_path / "called"
    for name in (
        "c++",
        "g++",
        "gcc",
        "cc",
        "clang",
        "clang++",
        "x86_64-linux-gnu-gcc",
        "x86_64-linux-gnu-g++",
        "ninja",
    ):
        (tools / name).write_text(f"#!/bin/sh\necho $0 $* >>{called}\nexit 1\n")
        (tools / name).chmod(0o755)
    ours = run(*ON_PENSTOCK, EXAMPLES / "zero_infinity.py", "--steps=1", env={"PATH": str(tools)})
    assert ours.result["moved"]["written"] > 0
    # DeepSpeed's own probes may ask what the compiler is; none may build.
    lines = called.read_text().splitlines() if called.exists() else []
    assert [line for line in lines if "version" not in line] == []
