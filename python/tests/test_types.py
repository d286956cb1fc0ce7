# SPDX-License-Identifier: Apache-2.0
"""A user's program passes mypy --strict, and what is wrong in one is found; skipped where mypy is not installed."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import penstock
import pytest

GOOD = """
import asyncio
from typing import Any
import penstock

def moves(path: str) -> int:
    moved = penstock.write(path, b"abc", sync=True)
    transfer = penstock.read_async(path, bytearray(3), priority="urgent", block_bytes="1MiB")
    transfer.add_done_callback(lambda future: print(future.done()))
    return moved + len(str(transfer.result(3.0)))

async def waits(path: str) -> int:
    task = asyncio.create_task(penstock.write_async(path, b"abc").coroutine())
    return await task

def rows(path: str) -> int:
    return penstock.read_rows_async(path, [0], bytearray(1)).result()

def saves(folder: str, state: dict[str, Any]) -> list[int]:
    with penstock.CheckpointStore(folder, keep=3, shard_bytes="1GiB") as store:
        pending: penstock.PendingSave[penstock.CheckpointInfo] = store.save_async(state, step=3)
        info = pending.result()
        print(info.step + 1, pending.exception(), 3 in store, len(store))
        return [one.step for one in store]

def shorts(path: str) -> list[int]:
    came = penstock.read(path, [bytearray(1), bytearray(2)], [0, 1], allow_short=True)
    one: int = penstock.read(path, bytearray(3), allow_short=True)
    moved: int = penstock.read(path, [bytearray(1)], [0])
    later: penstock.Transfer[list[int]] = penstock.read_async(path, (bytearray(1),), [0], allow_short=True)
    rows: penstock.Transfer[int] = penstock.read_rows_async(path, [0], bytearray(1))
    return [one, moved, rows.result(), *came, *later.result()]

async def awaits(engine: penstock.Engine, path: str) -> int:
    came = await engine.read_async(path, [bytearray(1)], [0], allow_short=True)
    return sum(came) + await engine.read_async(path, bytearray(1))

def finds(store: penstock.CheckpointStore) -> list[float | str | bool | None]:
    best = store.best("loss")
    first = 0 if best is None else best.step
    return [first, *[info.metadata["loss"] for info in store.best("loss", k=3, mode="max")]]

def pickles(path: str) -> list[str]:
    penstock.save({"a": {1}}, path, default=penstock.Pickled)
    return penstock.inspect(path).pickled

def opens(path: str) -> int:
    with penstock.Engine(block_bytes="4MiB", backend="auto") as engine, penstock.File(path, "rw") as file:
        engine.write(file, b"x", cache="auto")
        return file.size
"""
QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", QUICKSTART.read_text(), re.MULTILINE | re.DOTALL)
BAD = {
    'penstock.File("a", "rb")': "Argument 2",
    'penstock.read("a", bytearray(1), priority="high")': "overload",
    'penstock.Engine(backend="uring")': "backend",
    "penstock.Engine(queue_dept=3)": "queue_dept",
    'penstock.save({}, "a", progres=True)': "progres",
    'len(penstock.read("a", bytearray(1)))': "Sized",
    'penstock.read("a", [bytearray(1)], [0], allow_short=True) + 1': "",
    'penstock.CheckpointStore("a", mode="least")': "mode",
    'penstock.CheckpointStore("a").best("loss").step': "",
    'penstock.read_async("a", bytearray(1)).wait()': "wait",
    'penstock.save_async({}, "a").result() + 1': "",
}


def run_mypy(program, tmp_path):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("needs mypy")
    package = pathlib.Path(penstock.__file__).parent
    if not (package / "_core.pyi").exists():
        pytest.skip("needs the package installed, with its stub")
    path = tmp_path / "program.py"
    path.write_text(program)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--cache-dir",
        str(tmp_path / "cache"),
        str(path),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    return [line for line in ran.stdout.splitlines() if "program.py" in line and ": error: " in line]


def test_a_program_passes(tmp_path):
    assert run_mypy(GOOD, tmp_path) == []


@pytest.mark.parametrize("program", [one for one in PROGRAMS if "import penstock" in one])
def test_the_programs_of_the_quickstart_pass(program, tmp_path):
    for module in re.findall(r"^import (\w+)", program, re.MULTILINE):
        pytest.importorskip(module)
    assert run_mypy(program, tmp_path) == []


def test_what_is_wrong_is_found(tmp_path):
    program = "import penstock\n" + "\n".join(BAD)
    said = run_mypy(program + "\n", tmp_path)
    for number, (line, word) in enumerate(BAD.items(), 2):
        assert any(f":{number}:" in row and word in row for row in said), (line, said)
