# SPDX-License-Identifier: Apache-2.0
"""save_model() and load_model(): the same files, names and errors as those of safetensors.torch."""

import json
import struct

import pytest

torch = pytest.importorskip("torch")
stock = pytest.importorskip("safetensors.torch")
ours = pytest.importorskip("penstock.safetensors.torch")


class Tied(torch.nn.Module):
    def __init__(self, first="a", second="b"):
        super().__init__()
        torch.manual_seed(1)
        self.add_module(first, torch.nn.Linear(4, 4))
        self.add_module(second, torch.nn.Linear(4, 4))
        getattr(self, second).weight = getattr(self, first).weight
        self.register_buffer("steps", torch.arange(3))


class Views(torch.nn.Module):
    """One buffer covers the memory of the others."""

    def __init__(self):
        super().__init__()
        self.register_buffer("z", torch.arange(24.0))
        self.register_buffer("a", self.z[2:8])
        self.register_buffer("b", self.z[4:6])
        self.register_buffer("c", self.z[5:12])


class Halves(torch.nn.Module):
    """Each has its own part of one memory."""

    def __init__(self):
        super().__init__()
        memory = torch.arange(10.0)
        self.register_buffer("a", memory[:5])
        self.register_buffer("b", memory[5:])


class Strided(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(12.0).view(3, 4).t())


class NoneIsWhole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        memory = torch.arange(10.0)
        self.register_buffer("a", memory[:6])
        self.register_buffer("b", memory[4:])


def header(path):
    with open(path, "rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def same(a, b):
    assert sorted(a) == sorted(b)
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("make", [Tied, Views, Strided])
def test_files_are_those_of_safetensors(tmp_path, make):
    ours.save_model(make(), tmp_path / "ours")
    stock.save_model(make(), tmp_path / "stock")
    same(stock.load_file(tmp_path / "ours"), stock.load_file(tmp_path / "stock"))
    assert header(tmp_path / "ours").get("__metadata__") == header(tmp_path / "stock").get("__metadata__")
    for saved in ("ours", "stock"):
        results = []
        for module in (ours, stock):
            model = make()
            with torch.no_grad():
                for tensor in model.state_dict().values():
                    tensor.zero_()
            results.append(module.load_model(model, tmp_path / saved))
            same(model.state_dict(), make().state_dict())
        assert results[0] == results[1]


def test_views_in_a_row(tmp_path):
    """safetensors loses sight of the memory that covers all, and refuses."""
    model = Views()
    model.c = model.z[7:12]
    ours.save_model(model, tmp_path / "m")
    assert list(stock.load_file(tmp_path / "m")) == ["z"]
    assert ours.load_model(model, tmp_path / "m") == (set(), [])


def test_metadata_of_the_caller_stays(tmp_path):
    given = {"b.weight": "mine", "format": "pt"}
    ours.save_model(Tied(), tmp_path / "m", metadata=given)
    assert header(tmp_path / "m")["__metadata__"] == given == {"b.weight": "mine", "format": "pt"}


def test_another_name_may_have_been_kept(tmp_path):
    ours.save_model(Tied("b", "a"), tmp_path / "m")
    for module in (ours, stock):
        assert module.load_model(Tied(), tmp_path / "m") == (set(), [])
    state = Tied().state_dict()
    stock.save_file(
        {"b.weight": state["a.weight"], "b.bias": state["b.bias"], "a.bias": state["a.bias"]}, tmp_path / "n"
    )
    assert ours.load_model(Tied(), tmp_path / "n", strict=False) == ({"steps"}, [])


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_missing_and_unexpected(tmp_path, strict):
    tensors = {name: tensor.clone() for name, tensor in Tied().state_dict().items()}  # the shared memory twice
    del tensors["a.bias"]
    tensors["other"] = torch.ones(2)
    stock.save_file(tensors, tmp_path / "m")
    results = []
    for module in (ours, stock):
        try:
            results.append(module.load_model(Tied(), tmp_path / "m", strict=strict))
        except RuntimeError as error:
            results.append(str(error))
    assert results[0] == results[1] and ("a.bias" in results[0]) == strict


def test_refusals(tmp_path):
    for module in (ours, stock):
        for make in (NoneIsWhole, Halves):
            with pytest.raises(RuntimeError, match="cover"):
                module.save_model(make(), tmp_path / "m")
        with pytest.raises(ValueError, match="force_contiguous=True"):
            module.save_model(Strided(), tmp_path / "m", force_contiguous=False)
    assert not (tmp_path / "m").exists()
    with pytest.raises(TypeError, match="no argument 'stric'"):
        ours.load_model(Tied(), tmp_path / "m", stric=True)
