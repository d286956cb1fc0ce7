# SPDX-License-Identifier: Apache-2.0
"""Tensors whose storage was cut short (FSDP frees memory so) are refused: behind it is memory of others."""

import penstock
import pytest

torch = pytest.importorskip("torch")

COUNT = 1 << 18


def short(kept, shape=(COUNT,), turned=False):
    """A float32 tensor that keeps `kept` bytes of its storage."""
    tensor = torch.zeros(shape)
    tensor = tensor.T if turned else tensor
    tensor.untyped_storage().resize_(kept)
    return tensor


def module_of(tensor):
    module = torch.nn.Module()
    module.register_buffer("t", tensor)
    return module


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    state = {"t": torch.ones(COUNT)}
    penstock.save(state, folder / "s.safetensors")
    penstock.save(state, folder / "s.pt")
    store = penstock.CheckpointStore(folder / "store")
    store.save(state)
    yield folder, store
    store.close()


LOADS = {
    "safetensors": lambda folder, store, t: penstock.load(folder / "s.safetensors", into={"t": t}),
    "pt": lambda folder, store, t: penstock.load(folder / "s.pt", into={"t": t}),
    "store": lambda folder, store, t: store.load(into={"t": t}),
    "load_into": lambda folder, store, t: penstock.load_into(module_of(t), folder / "s.safetensors"),
}


@pytest.mark.parametrize("kept", [0, 4096, COUNT * 4 - 1])
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_it_is_not_filled(files, load, kept):
    tensor = short(kept)
    with pytest.raises(ValueError, match=rf"into\['t'\] reaches past its storage, which has {kept} bytes"):
        load(*files, tensor)
    # As a tensor: bytes() of a storage asks it for each byte.
    assert not torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage()).any()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kept", [0, 4096, COUNT * 4 - 1])
@pytest.mark.parametrize("name", ["s.safetensors", "s.safetensors.index.json", "s.pt"])
def test_it_is_not_saved(tmp_path, name, kept, turned):
    state = {"a": torch.ones(3), "t": short(kept, (512, COUNT // 512), turned)}
    later = [] if name.endswith(".json") else [lambda *args: penstock.save_async(*args).result()]
    for save in (penstock.save, *later):
        with pytest.raises((ValueError, penstock.Error), match="storage"):
            save(state, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_view_with_gaps_whose_last_element_is_there(files, tmp_path):
    tensor = torch.zeros(COUNT, 2)[:, 0]
    tensor.untyped_storage().resize_(COUNT * 8 - 4)  # without the gap after the last element
    folder, _ = files
    penstock.load(folder / "s.safetensors", into={"t": tensor})
    assert torch.equal(tensor, torch.ones(COUNT))
    penstock.save({"t": tensor}, tmp_path / "again.safetensors")
    assert torch.equal(penstock.load(tmp_path / "again.safetensors")["t"], tensor)


class Elsewhere(torch.Tensor):
    """Has an address of its own, and no storage, as a tensor of a device that torch's build does not know."""

    @staticmethod
    def of(inner):
        made = torch.Tensor._make_wrapper_subclass(Elsewhere, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    def data_ptr(self):
        return self.inner.data_ptr()

    def detach(self):
        return self.inner.detach()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def test_a_subclass_without_a_storage_is_saved(tmp_path):
    inner = torch.arange(64.0)
    penstock.save({"t": Elsewhere.of(inner)}, tmp_path / "s.safetensors")
    assert torch.equal(penstock.load(tmp_path / "s.safetensors")["t"], inner)
