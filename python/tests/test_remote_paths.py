# SPDX-License-Identifier: Apache-2.0
"""A path that begins as a URL is refused by every call, also where a local folder has its name."""

import subprocess
import sys

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")

PLACE = "s3://bucket"


def stream(path):
    with torch.device("meta"):
        model = torch.nn.Linear(3, 3)
    penstock.stream(model, path, memory="1MiB")


def command(*words):
    done = subprocess.run([sys.executable, "-m", "penstock", *words], capture_output=True, text=True)
    if done.returncode:
        raise FileNotFoundError(done.stderr)


CALLS = {
    "load": lambda at: penstock.load(f"{at}/x.safetensors"),
    "load into": lambda at: penstock.load(f"{at}/x.safetensors", into=torch.nn.Linear(3, 3).state_dict()),
    "save": lambda at: penstock.save({"a": torch.ones(3)}, f"{at}/new.pt"),
    "save_async": lambda at: penstock.save_async({"a": torch.ones(3)}, f"{at}/new.safetensors").result(),
    "inspect": lambda at: penstock.inspect(f"{at}/x.safetensors"),
    "CheckpointStore": lambda at: penstock.CheckpointStore(f"{at}/store").save({"a": torch.ones(3)}),
    "stream": lambda at: stream(at),
    "weights.plan": lambda at: penstock.weights.plan(at, "1MiB"),
    "FeatureStore": lambda at: penstock.FeatureStore(f"{at}/rows.npy").close(),
    "File": lambda at: penstock.File(f"{at}/rows.npy").close(),
    "checkpoint show": lambda at: command("checkpoint", "show", f"{at}/x.safetensors"),
    "checkpoint convert": lambda at: command("checkpoint", "convert", "y.safetensors", f"{at}/new.pt"),
    "weights plan": lambda at: command("weights", "plan", at, "--memory", "1MiB"),
}


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A local folder of that name, with all that the calls ask for."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "s3:" / "bucket"
    folder.mkdir(parents=True)
    state = torch.nn.Linear(3, 3).state_dict()
    penstock.save(state, "y.safetensors")
    penstock.save(state, folder / "x.safetensors")
    np.save(folder / "rows.npy", np.ones((4, 4), np.float32))
    return folder


@pytest.mark.parametrize("call", CALLS)
def test_it_is_refused_and_a_local_one_can_be_named(call, there):
    before = sorted(there.rglob("*"))
    with pytest.raises(FileNotFoundError, match="only local paths are opened.*copy it to a local disk"):
        CALLS[call](PLACE)
    assert sorted(there.rglob("*")) == before
    CALLS[call](f"./{PLACE}")


@pytest.mark.parametrize("scheme", ["gs", "hf", "http", "https"])
def test_of_each_scheme(scheme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{scheme}:" / "a").mkdir(parents=True)
    for call in ("load", "save", "CheckpointStore", "FeatureStore"):
        with pytest.raises(FileNotFoundError, match="only local paths are opened"):
            CALLS[call](f"{scheme}://a")
