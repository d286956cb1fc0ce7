# SPDX-License-Identifier: Apache-2.0
"""A store knows its own, on a real file system: moved and copied first folders over one drive, indexes of others."""

import json
import os
import shutil
import subprocess
import sys

import penstock
import pytest
import safetensors.torch as safetensors
import torch

INDEX = "model.safetensors.index.json"


def state(number):
    return {f"layer.{i}": torch.full((5000,), float(number * 10 + i)) for i in range(8)} | {"n": number}


def save(first, drive, numbers, keep):
    with penstock.CheckpointStore([first, drive], keep=keep, shard_bytes=40_000, read_back=False) as store:
        return [store.save(state(number), step=number).note for number in numbers]


def loaded(first):
    """The numbers of all checkpoints, each of which loads."""
    with penstock.CheckpointStore(first) as store:
        return [store.load(generation=info.generation)["n"] for info in store.list()]


def test_a_run_at_the_path_of_an_archived_one(tmp_path):
    run, archive, drive = tmp_path / "run", tmp_path / "archive", tmp_path / "drive"
    save(run, drive, range(1, 5), keep=9)
    run.rename(archive)
    notes = save(run, drive, range(11, 18), keep=2)
    assert loaded(archive) == [1, 2, 3, 4] and loaded(run) == [16, 17]
    assert "shards of other stores" in notes[0] and not any(notes[1:])
    save(archive, drive, [5], keep=1)  # renamed, it is the same store
    assert loaded(archive) == [5] and loaded(run) == [16, 17] and len(list(drive.glob("0*"))) == 3


@pytest.mark.parametrize("first", ["copy", "run"])
def test_copies_in_turns(tmp_path, first):
    run, copy, drive = tmp_path / "run", tmp_path / "copy", tmp_path / "drive"
    save(run, drive, [1, 2], keep=2)
    subprocess.run(["cp", "-a", run, copy], check=True)
    notes = []
    for turn in range(3):
        for folder, number in sorted([(run, 10 + turn), (copy, 20 + turn)], key=lambda row: row[0].name != first):
            notes += save(folder, drive, [number], keep=2)
            assert loaded(folder)[-1] == number
    assert loaded(run) == [11, 12] and loaded(copy) == [21, 22]
    assert any("delete those yourself" in note for note in notes)
    assert not any("delete those yourself" in note for note in notes[-2:])


def test_stock_readers_and_metadata_see_no_identity(tmp_path):
    with penstock.CheckpointStore(tmp_path / "s") as store:
        info = store.save({"w": torch.ones(3)}, metadata={"loss": 0.5})
        assert info.metadata == {"loss": 0.5} and store.list()[0].metadata == {"loss": 0.5}
        with pytest.raises(ValueError, match="penstock.store"):
            store.save({"w": torch.ones(3)}, metadata={"penstock.store": "x"})
    assert safetensors.load_file(os.path.join(info.path, "shard-00001.safetensors"))["w"].tolist() == [1.0] * 3


@pytest.mark.parametrize("name", ["base.safetensors", "model.safetensors", "model-00001-of-00001.safetensors"])
def test_the_files_of_another_index_stay(tmp_path, name):
    safetensors.save_file({"t": torch.ones(4)}, tmp_path / name)
    os.symlink(name, tmp_path / "link.safetensors")
    index = {"metadata": {}, "weight_map": {"t": name, "u": "link.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    for value in range(3):
        penstock.save({"w": torch.full((3,), float(value))}, tmp_path / INDEX)
    assert safetensors.load_file(tmp_path / name)["t"].tolist() == [1.0] * 4
    assert os.path.islink(tmp_path / "link.safetensors")
    assert penstock.load(tmp_path / INDEX)["w"].tolist() == [2.0] * 3
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


def test_the_folder_of_a_checkpoint_takes_no_index(tmp_path):
    with penstock.CheckpointStore(tmp_path / "s", shard_bytes=50_000) as store:
        info = store.save(state(1))
        target = os.path.join(info.path, INDEX)
        with pytest.raises(ValueError, match="in another folder"):
            penstock.save({"w": torch.ones(3)}, target)
        shard = os.path.join(info.path, "shard-00001.safetensors")
        for place in (target, shard, os.path.join(info.path, "new.pt"), info.path):
            made = subprocess.run(
                [sys.executable, "-m", "penstock", "checkpoint", "convert", tmp_path / "s", place, "--force"],
                capture_output=True, text=True,
            )  # fmt: skip
            assert made.returncode != 0 and "in another folder" in made.stderr, (place, made)
        assert loaded(tmp_path / "s") == [1] and not store.open(1).verify()
    shutil.rmtree(tmp_path / "s")
