# SPDX-License-Identifier: Apache-2.0
"""All that take the folder of a model choose the same file, or refuse it with the same words.
tests/weights/model_folders.tsv is the table; tests/weights/model_folders_test.cpp reads it too."""

import json
import re
from pathlib import Path

import numpy as np
import penstock
import pytest
from penstock import _core

torch = pytest.importorskip("torch")
TABLE = Path(__file__).parents[2] / "tests" / "weights" / "model_folders.tsv"
ROWS = [line.split("\t") for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]


def name_of(file):
    return Path(file).stem.replace(".", "_") + ".weight"


def make(folder, files):
    folder.mkdir()
    for one in files.split():
        name, sign, rest = re.fullmatch(r"([^=@]+)([=@]?)(.*)", one).groups()
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if sign == "=":
            path.write_text(json.dumps({"weight_map": {name_of(shard): shard for shard in rest.split(",")}}))
        elif sign == "@":
            path.symlink_to(folder / rest)
        elif name.endswith(".safetensors"):
            penstock.save({name_of(name): np.ones((2, 2), "float32")}, path)
        else:
            path.write_text("{}")


class Model(torch.nn.Module):
    """Has a weight for each name, and no other."""

    def __init__(self, names):
        super().__init__()
        for name in names:
            self.add_module(name.removesuffix(".weight"), torch.nn.Linear(2, 2, bias=False, device="meta"))


def streamed(folder, names):
    model = Model(names)
    penstock.stream(model, folder, memory="1MiB", strict=True).unstream()
    return names


def of_command(words, folder, out):
    assert _core.cli_main([*words, "--json", str(out)]) == 0, "see stderr"
    return json.loads(out.read_text())


# Each gives the names of the tensors.
CALLERS = {
    "weights.plan": lambda folder, names, out: {
        f"{unit.name}.weight" for unit in penstock.weights.plan(folder, "1MiB").units
    },
    "weights plan": lambda folder, names, out: {
        f"{unit['name']}.weight"
        for unit in of_command(["weights", "plan", str(folder), "--memory", "1MiB"], folder, out)["units"]
    },
    "stream": lambda folder, names, out: streamed(folder, names),
    "several folders": lambda folder, names, out: {
        f"{unit.name}.weight" for unit in penstock.weights.plan([folder, folder], "1MiB").units
    },
    "checkpoint show": lambda folder, names, out: {
        tensor["name"] for tensor in of_command(["checkpoint", "show", str(folder)], folder, out)["tensors"]
    },
}


COMMANDS = ("weights plan", "checkpoint show")


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(("files", "wanted"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_file_of_a_folder(caller, files, wanted, tmp_path, capfd):
    folder = tmp_path / "model"
    make(folder, files)
    if not wanted.startswith("!"):
        names = set(penstock.load(folder / wanted))
        assert CALLERS[caller](folder, names, tmp_path / "out.json") == names
        return
    with pytest.raises((ValueError, FileNotFoundError, AssertionError)) as error:
        CALLERS[caller](folder, {"a.weight"}, tmp_path / "out.json")
    said = capfd.readouterr().err if caller in COMMANDS else str(error.value)
    assert str(folder) in said
    if caller != "checkpoint show":  # which says what else it takes
        assert wanted[1:] in said


@pytest.mark.parametrize("call", [penstock.load, penstock.inspect])
@pytest.mark.parametrize(("files", "wanted"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_takes_files_names_the_same_file(call, files, wanted, tmp_path):
    make(tmp_path / "model", files)
    with pytest.raises(IsADirectoryError) as error:
        call(tmp_path / "model")
    assert wanted.startswith("!") or f"such as '{tmp_path / 'model' / wanted}'" in str(error.value)


def test_the_table():
    assert len(ROWS) >= 20
