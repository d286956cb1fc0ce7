# SPDX-License-Identifier: Apache-2.0
"""Power cuts of ext4, XFS and btrfs under Penstock's writers, and under two protocols that leave something out, which
must be caught. Root, /dev/fuse and a build with libfuse3-dev; minutes. The table is left in build/power_cut.md."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "release" / "tests" / "power_cut"
FILE_SYSTEMS = ("ext4", "xfs", "btrfs")
# Cuts at random places, besides those before and after each flush.
RANDOM = {"store": 100, "save": 60, "index": 60, "store_no_folder_sync": 30, "torch.save": 40}
HOLDS = ("store", "save", "index")
COLUMNS = ("states", "damaged", "lost", "none", "unmountable", "stuck")
HEADINGS = {
    "states": "states",
    "damaged": "final name damaged",
    "lost": "newest acknowledged lost",
    "none": "nothing whole left",
    "unmountable": "not mountable",
    "stuck": "next save failed",
}


def versions():
    """Of what takes part, for the table's head."""
    said = [f"kernel {platform.release()}"]
    for argv in (["mkfs.ext4", "-V"], ["mkfs.xfs", "-V"], ["mkfs.btrfs", "--version"]):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=10)
            said.append((done.stdout + done.stderr).strip().splitlines()[0])
        except OSError:
            continue
    try:
        import torch

        said.append(f"torch {torch.__version__}")
    except ImportError:
        pass
    return ", ".join(said)


def table(results):
    head = ["writer", "file system", *(HEADINGS[c] for c in COLUMNS)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in results:
        # A next save is tried on what is left of a store alone.
        cells = ["–" if c == "stuck" and not r["work"].startswith("store") else str(r[c]) for c in COLUMNS]
        lines.append("| " + " | ".join([r["work"], r["file_system"], *cells]) + " |")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def results():
    """What each test puts in; written down at the end."""
    done = []
    yield done
    if done:
        (ROOT / "build" / "power_cut.json").write_text(json.dumps(done, indent=1) + "\n")
        (ROOT / "build" / "power_cut.md").write_text(f"{versions()}\n\n{table(done)}\n")


def cut(work, file_system, results):
    if not PROGRAM.exists():
        pytest.skip("build/release/tests/power_cut is not built; it needs libfuse3-dev (tools/setup.sh long)")
    if work == "torch.save":
        pytest.importorskip("torch", reason="no torch in this environment")
    argv = [PROGRAM, "--file-system", file_system, "--work", work, "--random", str(RANDOM[work])]
    done = subprocess.run([*argv, "--python", sys.executable], capture_output=True, text=True, timeout=900)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
    result = json.loads(done.stdout)
    results.append(result)
    print(result)
    return result


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
@pytest.mark.parametrize("work", HOLDS)
def test_what_was_acknowledged_is_there(work, file_system, results):
    result = cut(work, file_system, results)
    assert result["states"] >= RANDOM[work] + 50, "too few to say anything"
    broken = {name: result[name] for name in ("damaged", "lost", "none", "stuck") if result[name]}
    assert not broken, result["first"]
    # A write of the file system's own, torn at 4 KiB, can be its end; that says nothing about who writes on it.
    assert result["unmountable"] <= result["states"] // 50


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
@pytest.mark.parametrize("work", ["torch.save", "store_no_folder_sync"])
def test_what_leaves_something_out_is_caught(work, file_system, results):
    result = cut(work, file_system, results)
    assert result["lost"] > 0, "the harness sees nothing"
    # On btrfs a file that was not synced may be missing in every state, which is no damage.
    if work == "torch.save" and file_system != "btrfs":
        assert result["damaged"] > 0, "the harness sees nothing"
