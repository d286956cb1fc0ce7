# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch's FakeTensorMode have a shape, a device and no data: they are refused by name."""

import penstock
import pytest

torch = pytest.importorskip("torch")
fakes = pytest.importorskip("torch._subclasses.fake_tensor")


@pytest.fixture
def mode():
    return fakes.FakeTensorMode()


@pytest.fixture
def fake(mode):
    with mode:
        return torch.ones(1000)


SAVES = {
    "pt": lambda state, folder: penstock.save(state, folder / "f.pt"),
    "safetensors": lambda state, folder: penstock.save(state, folder / "f.safetensors"),
    "index": lambda state, folder: penstock.save(state, folder / "f.safetensors.index.json"),
    "async": lambda state, folder: penstock.save_async(state, folder / "f.safetensors"),
    "store": lambda state, folder: penstock.CheckpointStore(folder / "s").save(state),
    "write": lambda state, folder: penstock.write(folder / "w", state["t"]),
}


@pytest.mark.parametrize("name", SAVES)
def test_a_save_names_the_type(tmp_path, fake, name):
    with pytest.raises((TypeError, ValueError), match="FakeTensor"):
        SAVES[name]({"t": fake}, tmp_path)
    assert not (tmp_path / "s").exists() and not list(tmp_path.glob("f*"))


@pytest.fixture
def there(tmp_path):
    state = {"t": torch.arange(1000.0)}
    for name in ("f.pt", "f.safetensors"):
        penstock.save(state, tmp_path / name)
    with penstock.CheckpointStore(tmp_path / "s") as store:
        store.save(state)
        yield {
            "pt": lambda **how: penstock.load(tmp_path / "f.pt", **how),
            "safetensors": lambda **how: penstock.load(tmp_path / "f.safetensors", **how),
            "store": store.load,
        }


@pytest.mark.parametrize("name", ["pt", "safetensors", "store"])
def test_a_load_into_one_names_the_type(there, fake, name):
    with pytest.raises(ValueError, match="FakeTensor.*no data"):
        there[name](into={"t": fake})


@pytest.mark.parametrize("name", ["pt", "safetensors", "store"])
def test_a_load_in_the_mode_is_refused(there, mode, name):
    with mode, pytest.raises(RuntimeError, match=r"FakeTensorMode is on.*penstock\.inspect"):
        there[name]()
    assert torch.equal(there[name]()["t"], torch.arange(1000.0))
