# SPDX-License-Identifier: Apache-2.0
"""A user's program passes mypy and pyright in strict mode, what is wrong in one is found, and results have the types
that a reader expects. Skipped for the checker that is not installed."""

import importlib.util
import json
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
# Results, as a reader is shown them.
SHOWN = """
import io
import mmap
from typing import Any

import numpy
import numpy.typing
import penstock

import torch
from penstock.safetensors import safe_open
from penstock.weights import Streamed
from typing_extensions import assert_type

Arrays = numpy.typing.NDArray[Any]

def states(path: str, model: torch.nn.Module) -> None:
    assert_type(penstock.load(path), dict[str, Any])
    assert_type(penstock.load(io.BytesIO(b"")), dict[str, Any])
    assert_type(penstock.load(path, "cpu", names=["a", "b"]), dict[str, Any])
    assert_type(penstock.load(path, names={"a": slice(3), "b": (..., 0), "c": None}), dict[str, torch.Tensor])
    into = {"a": torch.zeros(3)}
    assert_type(penstock.load(path, into=into), dict[str, torch.Tensor])
    assert_type(penstock.load(path, into=torch.zeros(3), names="a"), torch.Tensor)
    assert_type(penstock.load_into(model, path, dtype=torch.float16).missing_keys, list[str])
    with open(path, "rb") as file:
        assert_type(penstock.inspect(file)[0].shape, tuple[int, ...])
    with open(path, "wb") as file:
        penstock.save(into, file)

def stores(store: penstock.CheckpointStore) -> None:
    assert_type(store.load(), dict[str, Any])
    assert_type(store.load(step=3, names={"a": slice(0, 2)}), dict[str, torch.Tensor])
    with store.open(1) as checkpoint:
        assert_type(checkpoint["a"][0:2], torch.Tensor)
        assert_type(checkpoint.load(into=[torch.zeros(2)]), list[torch.Tensor])

def buffers() -> None:
    assert_type(penstock.empty((2, 3), "float32").torch(), torch.Tensor)
    assert_type(penstock.empty(3, "float32").numpy(), Arrays)

def rows(path: str, ids: torch.Tensor) -> None:
    with penstock.FeatureStore(path, ram="1GiB", policy="clock") as store:
        assert_type(store["paper"].gather(ids), torch.Tensor)
        assert_type(store["paper"].gather([1, 2]), Arrays)
        assert_type(store["paper"].gather(ids, out=numpy.zeros(3)).dtype, numpy.dtype[numpy.float64])
        assert_type(store["paper"].gather_async(ids).result(), torch.Tensor)
        assert_type(store.gather({"paper": ids}), dict[str, torch.Tensor])
        assert_type(store.gather({"paper": [1]}), dict[str, Arrays])
        assert_type(store.gather_async({"paper": ids}).result(3.0), dict[str, torch.Tensor])
    with penstock.TensorRows(path, "wte") as table:
        assert_type(table.gather(ids), torch.Tensor)
        assert_type(table.gather_async([1], numpy.zeros(3)).result(), int)
    penstock.read_rows(path, [1], bytearray(4), block_bytes="1MiB", priority="urgent", cache="direct")

def drop_in(path: str) -> None:
    with safe_open(path, framework="pt") as tensors:
        assert_type(tensors.get_tensor("a"), torch.Tensor)
        assert_type(tensors.get_slice("a")[0:2], torch.Tensor)
    with safe_open(path, "np") as arrays:
        assert_type(arrays.get_tensor("a"), Arrays)

def streamed(path: str) -> None:
    model = penstock.stream(None, path, memory="8GiB")
    assert_type(model.stream_stats().bytes_read, int)
    model.generate(torch.zeros(1))

class Mine(torch.nn.Module):
    width = 3

def streamed_own(model: Mine, path: str) -> int:
    model = penstock.stream(model, path, memory="8GiB", device=torch.device("cuda"))
    assert_type(model, Mine)
    assert isinstance(model, Streamed)
    model.set_memory("4GiB")
    return model.stream_stats().bytes_read + model.width

def gpus(path: str, on: torch.cuda.Stream, tensor: torch.Tensor, mapped: mmap.mmap) -> None:
    penstock.read_async(path, [tensor, tensor], [0, 4], stream=on).join(torch.cuda.current_stream())
    penstock.write(path, tensor, stream=on.cuda_stream)
    penstock.read(path, [mapped, mapped], [0, 4])
    penstock.read_rows(path, tensor, numpy.zeros(3), stream=on, destinations=[1])
    with penstock.FeatureStore(path) as store:
        assert_type(store["paper"].gather([1], device="cuda", stream=on), torch.Tensor)
"""
QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"
PROGRAMS = [
    program
    for program in re.findall(r"^```python\n(.*?)^```", QUICKSTART.read_text(), re.MULTILINE | re.DOTALL)
    if "import penstock" in program
]
# Mistakes, each with a word of what mypy says; of pyright it is enough that it objects.
BAD = {
    'penstock.File("a", "rb")': "Argument 2",
    'penstock.read("a", bytearray(1), priority="high")': "overload",
    'penstock.read("a", 3)': "overload",
    'penstock.write("a", "text")': "Argument 2",
    'penstock.write("a", b"", stream="cuda:0")': "stream",
    'penstock.Engine(backend="uring")': "backend",
    "penstock.Engine(queue_dept=3)": "queue_dept",
    'penstock.save({}, "a", progres=True)': "progres",
    'penstock.save({}, open("a", "w"))': "Argument 2",
    'len(penstock.read("a", bytearray(1)))': "Sized",
    'penstock.read("a", [bytearray(1)], [0], allow_short=True) + 1': "",
    'penstock.read_rows("a", [1], bytearray(4), cache="never")': "cache",
    'penstock.CheckpointStore("a", mode="least")': "mode",
    'penstock.CheckpointStore("a").best("loss").step': "",
    'penstock.CheckpointStore("a").load(into=3)': "overload",
    'penstock.Checkpoint("a")["b"]["c"]': "index",
    'penstock.read_async("a", bytearray(1)).wait()': "wait",
    'penstock.save_async({}, "a").result() + 1': "",
    "penstock.load(3)": "overload",
    'penstock.load(open("a"))': "overload",
    'penstock.load("a", cache="never")': "overload",
    'penstock.load("a", names={"a": "b"})': "dict-item",
    'penstock.load("a", into={}, dtype="float16")': "overload",
    'penstock.load("a", names={"a": None})["a"].shap': "shap",
    'penstock.load_into("a", "b")': "Argument 1",
    'penstock.FeatureStore("a", policy="lru")': "policy",
}
PROGRAM_FILES = {"good": GOOD, "shown": SHOWN, "bad": "import penstock\n" + "\n".join(BAD) + "\n"}
PROGRAM_FILES |= {f"task{i}": program for i, program in enumerate(PROGRAMS)}


def mypy(folder):
    """(program, line, message) of each error."""
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache")]
    command += [f"{name}.py" for name in PROGRAM_FILES]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=600)
    # One that ended otherwise has found nothing, and says nothing of the programs.
    assert "INTERNAL ERROR" not in ran.stdout and re.search(r"^Found \d+ error", ran.stdout, re.M), ran.stdout
    found = re.findall(r"^(\w+)\.py:(\d+): error: (.*)", ran.stdout, re.M)
    return [(name, int(line), text) for name, line, text in found]


def pyright(folder):
    """The same, without what it says of types that torch and JAX leave out in functions of their own."""
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", "."]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=600)
    found = []
    for error in json.loads(ran.stdout)["generalDiagnostics"]:
        name, line = pathlib.Path(error["file"]).stem, error["range"]["start"]["line"]
        of = re.match(r'Type of "(\w+)"', error["message"])
        ours = rf"penstock[\w.]*\.{of[1]}\b" if of and error["rule"] == "reportUnknownMemberType" else "penstock"
        unknown = error.get("rule", "").startswith("reportUnknown")
        if not unknown or re.search(ours, PROGRAM_FILES[name].splitlines()[line]):
            found.append((name, line + 1, error["message"]))
    return found


@pytest.fixture(scope="module", params=["mypy", "basedpyright"])
def errors(request, tmp_path_factory):
    """What a checker says of each program. One run for all: most of its time is for torch."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"needs {request.param}")
    package = pathlib.Path(penstock.__file__).parent
    if not (package / "_core.pyi").exists():
        pytest.skip("needs the package installed, with its stub")
    folder = tmp_path_factory.mktemp(request.param)
    for name, program in PROGRAM_FILES.items():
        (folder / f"{name}.py").write_text(program)
    found = mypy(folder) if request.param == "mypy" else pyright(folder)
    return {name: [(line, text) for of, line, text in found if of == name] for name in PROGRAM_FILES}


def test_a_program_passes(errors):
    assert errors["good"] == []


def test_results_have_the_types_that_a_reader_expects(errors):
    pytest.importorskip("torch")
    assert errors["shown"] == []


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_programs_of_the_quickstart_pass(errors, number):
    for module in re.findall(r"^import (\w+)", PROGRAMS[number], re.MULTILINE):
        pytest.importorskip(module)
    assert errors[f"task{number}"] == []


def test_what_is_wrong_is_found(errors, request):
    is_mypy = request.node.callspec.params["errors"] == "mypy"
    for number, (line, word) in enumerate(BAD.items(), 2):
        found = [text for at, text in errors["bad"] if at == number]
        assert any(word in text or not is_mypy for text in found), (line, errors["bad"])
