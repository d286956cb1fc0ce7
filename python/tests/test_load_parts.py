# SPDX-License-Identifier: Apache-2.0
"""load(names=) of parts of a state, load(dtype=), load(device=): of a .pt, a .safetensors, an index and a store."""

import random
import resource
import time
from collections import OrderedDict

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")

from penstock.safetensors.torch import load_file  # noqa: E402


def training_state():
    weight = torch.arange(12.0).reshape(3, 4)
    model = OrderedDict({"0.weight": weight, "0.bias": torch.ones(3), "tied": weight, "row": weight[1]})
    model._metadata = {"version": 1}
    optimizer = {"state": {0: {"exp_avg": torch.full((3, 4), 2.0), "step": torch.tensor(3.0)}}, "groups": [{"lr": 0.1}]}
    return {"model": model, "optimizer": optimizer, "step": 7, "ids": [torch.arange(3), np.arange(4)], "empty": {}}


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def everywhere(tmp_path, state):
    """load() of a .pt, a legacy one, and a store."""
    penstock.save(state, tmp_path / "s.pt")
    with open(tmp_path / "legacy.pt", "wb") as file:
        torch.save(state, file, _use_new_zipfile_serialization=False)
    store = penstock.CheckpointStore(tmp_path / "store")
    store.save(state, step=1)
    checkpoint = store.open(1)
    return [
        lambda **how: penstock.load(tmp_path / "s.pt", **how),
        lambda **how: penstock.load(tmp_path / "s.pt", mmap=True, **how),
        lambda **how: penstock.load(tmp_path / "legacy.pt", **how),
        store.load,
        checkpoint.load,
    ]


def places(value, name=""):
    """(name, value) of all that a name leads to."""
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            below = f"{name}.{key}" if name else str(key)
            yield below, item
            yield from places(item, below)


def test_a_name_is_what_the_whole_state_has_there(tmp_path):
    state = training_state()
    for load in everywhere(tmp_path, state):
        whole = load()
        for name, value in places(whole):
            assert same(load(names=name), value), name
        model = load(names="model")
        assert model["tied"].data_ptr() == model["0.weight"].data_ptr() == model["row"].data_ptr() - 16
        assert model._metadata == {"version": 1}


def random_state(rng, depth=0):
    kind = rng.choice(["dict", "list", "tensor", "number"] if depth < 4 else ["tensor", "number"])
    if kind == "dict" or depth == 0:
        return {rng.choice(["a", "b", 3, "c.d", "e"]): random_state(rng, depth + 1) for _ in range(rng.randint(1, 4))}
    if kind == "list":
        return [random_state(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return torch.randn(rng.randint(0, 5)) if kind == "tensor" else rng.random()


@pytest.mark.parametrize("seed", range(30))
def test_names_of_random_states(tmp_path, seed):
    state = random_state(random.Random(seed))
    penstock.save(state, tmp_path / "s.pt")
    named = {}
    for name, value in places(state):
        named.setdefault(name, []).append(value)
    for name, values in named.items():
        if len(values) == 1:
            assert same(penstock.load(tmp_path / "s.pt", names=name), values[0]), name
        else:
            with pytest.raises(ValueError, match="of the name"):
                penstock.load(tmp_path / "s.pt", names=name)
    unique = [name for name, values in named.items() if len(values) == 1]
    if unique:
        assert same(penstock.load(tmp_path / "s.pt", names=unique), {name: named[name][0] for name in unique})


def test_several_names_are_a_dict_of_what_they_name(tmp_path):
    state = training_state()
    for load in everywhere(tmp_path, state):
        found = load(names=["step", "model", "optimizer.state.*.exp_avg", "ids.0"])
        assert list(found) == ["step", "model", "optimizer.state.0.exp_avg", "ids.0"]
        assert same(found["model"], load()["model"]) and found["step"] == 7
        assert list(load(names="optimizer.*")) == ["optimizer.state.0.exp_avg", "optimizer.state.0.step"]
        assert list(load(names=["ids.0"])) == ["ids.0"]


def test_a_flat_dict_has_parts_too(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    flat = {f"model.{name}": tensor for name, tensor in model.state_dict().items()} | {"modelled": torch.ones(1)}
    for name in ("m.safetensors", "m.safetensors.index.json", "m.pt"):
        path = tmp_path / name
        penstock.save(flat, path)
        part = penstock.load(path, names="model")
        assert same(dict(sorted(part.items())), dict(sorted(model.state_dict().items())))
        assert sorted(penstock.load(path, names="model.0")) == ["bias", "weight"]
        assert same(penstock.load(path, names="modelled"), torch.ones(1))
        assert set(penstock.load(path, names=["model.1", "modelled"])) == {"model.1.weight", "model.1.bias", "modelled"}
        rows = penstock.load(path, names={"model.0": slice(0, 1)})
        assert rows["model.0.weight"].shape == (1, 3) and rows["model.0.bias"].shape == (1,)
        other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        penstock.load(path, names="model", into=other.state_dict())
        assert same({**other.state_dict()}, {**model.state_dict()}), path
        one = torch.zeros(1)
        assert penstock.load(path, names="modelled", into=one) is one and one == 1


def test_into_a_part(tmp_path):
    state = training_state()
    for number, load in enumerate(everywhere(tmp_path, state)):
        into = {"state": {0: {"exp_avg": torch.zeros(3, 4), "step": torch.zeros(())}}, "groups": []}
        if number == 1:
            with pytest.raises(ValueError, match="leave out map_location and mmap"):
                load(names="optimizer", into=into)
            continue
        found = load(names="optimizer", into=into)
        assert found["groups"] == [{"lr": 0.1}]
        assert found["state"][0]["exp_avg"] is into["state"][0]["exp_avg"]
        assert same(into["state"], state["optimizer"]["state"])


def test_a_name_that_nothing_has_gets_the_nearest(tmp_path):
    state = training_state()
    for load in everywhere(tmp_path, state):
        for names in ("modle", ["step", "modle"]):
            with pytest.raises(KeyError, match="no tensor 'modle'; did you mean 'model'"):
                load(names=names)
        with pytest.raises(KeyError, match=r"'model.0.weigth'; did you mean 'model.0.weight'"):
            load(names="model.0.weigth")


def test_only_the_part_takes_memory(tmp_path):
    big = 64 << 20
    penstock.save(
        {"model": {"w": torch.ones(1000)}, "optimizer": torch.zeros(big, dtype=torch.uint8)}, tmp_path / "s.pt"
    )
    penstock.load(tmp_path / "s.pt", names="model")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stats = penstock.default_engine().stats().bytes_read
    model = penstock.load(tmp_path / "s.pt", names="model")
    assert model["w"].untyped_storage().nbytes() == 4000
    assert penstock.default_engine().stats().bytes_read - stats < 1 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < big // 2048


# ---- dtype


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_become_the_type(tmp_path, dtype):
    state = {str(kind): torch.randn(5, 7).to(kind) for kind in (*FLOATS, torch.int64, torch.bool, torch.complex64)}
    state["float8"] = torch.randn(4).to(torch.float8_e4m3fn)
    flat = {name: tensor.clone() for name, tensor in state.items()}
    base = torch.randn(40)
    state |= {"base": base, "view": base[3:9].reshape(2, 3).t()}

    def expected(tensor):
        return tensor.to(dtype) if tensor.dtype in FLOATS else tensor

    loads = everywhere(tmp_path, state)
    for load in loads:
        for given in (dtype, str(dtype), str(dtype).removeprefix("torch.")):
            found = load(dtype=given)
        assert all(found[name].dtype == expected(tensor).dtype for name, tensor in state.items())
        for name, tensor in state.items():
            bits = found[name].contiguous().view(torch.uint8), expected(tensor).contiguous().view(torch.uint8)
            assert torch.equal(*bits), name
        assert found["view"].untyped_storage().data_ptr() == found["base"].untyped_storage().data_ptr()
        assert torch.equal(load(names="base", dtype=dtype), expected(base))
        assert torch.equal(load(names={"base": slice(2, 5)}, dtype=dtype)["base"], expected(base)[2:5])
    penstock.save(flat, tmp_path / "s.safetensors")
    for how in ({}, {"mmap": True}):
        found = penstock.load(tmp_path / "s.safetensors", dtype=dtype, **how)
        for name, tensor in flat.items():
            assert torch.equal(found[name].view(torch.uint8), expected(tensor).view(torch.uint8)), name


def test_a_storage_of_several_types_stays(tmp_path):
    base = torch.randn(8)
    state = {"floats": base, "bits": base.view(torch.int32), "own": torch.randn(3)}
    penstock.save(state, tmp_path / "s.pt")
    store = penstock.CheckpointStore(tmp_path / "store")
    store.save(state)
    for load in (lambda **how: penstock.load(tmp_path / "s.pt", **how), store.load):
        found = load(dtype="float16")
        assert found["floats"].dtype == torch.float32 and torch.equal(found["floats"], base)
        assert found["own"].dtype == torch.float16


def test_what_dtype_and_device_refuse(tmp_path):
    for load in everywhere(tmp_path, training_state()):
        for dtype in ("int32", torch.int32, "float8_e4m3fn", 7, "nonsense"):
            with pytest.raises(ValueError, match="dtype: expected float64, float32, float16 or bfloat16, got"):
                load(dtype=dtype)
        for wrong in (3.5, True, ["cpu"]):
            with pytest.raises(TypeError, match="device: expected 'cpu', 'cuda', 'cuda:1', the number of a GPU or a"):
                load(device=wrong)
        with pytest.raises(TypeError, match="map_location: expected 'cpu', 'cuda', 'cuda:1', the number of a GPU or a"):
            load(map_location=3.5)
        with pytest.raises(ValueError, match="device: expected 'cpu', 'cuda', .*, got 'gpu'"):
            load(device="gpu")
        with pytest.raises(ValueError, match="device or map_location"):
            load(device="cpu", map_location="cpu")
        assert same(load(device="cpu", names="model"), load(names="model"))
        assert same(load(device=torch.device("cpu"), names="step"), 7)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_here_is_said_first(tmp_path, monkeypatch):
    loads = [*everywhere(tmp_path, training_state()), lambda **how: load_file(tmp_path / "not there", **how)]
    for load in loads:
        for device in ("cuda", "cuda:1", 0, 1, torch.device("cuda", 1)):
            for name in ("device", "map_location")[: 1 if load is loads[-1] else 2]:
                with pytest.raises(ValueError, match="no GPU is here: torch .* (sees none|without CUDA)") as raised:
                    load(**{name: device})
                asked = f"cuda:{device}" if isinstance(device, int) else str(device)
                assert f"{name}='{asked}'" in str(raised.value)
                assert "torch.load" not in str(raised.value) and len(str(raised.value)) < 250 + len(str(tmp_path))
    for load in loads[:-1]:
        with pytest.raises(ValueError, match="device='mps': torch .* has no such device here; give device='cpu'"):
            load(device="mps")
        into = load()
        with pytest.raises(ValueError, match="into: the tensors say where they are; leave out"):
            monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
            load(into=into, device="cuda")
        monkeypatch.undo()


def test_a_number_of_a_gpu_that_is_not_here_names_those_that_are(monkeypatch):
    from penstock._base import devices as _devices

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert _devices.missing(torch.device("cuda")) is None and _devices.missing(torch.device("cuda:1")) is None
    assert _devices.missing(torch.device("cuda:2")) == "there are 2 GPUs here, from cuda:0 on"


@pytest.mark.timed
def test_thousands_of_names_take_about_as_long_as_the_whole_state(tmp_path):
    state = {f"layer.{i}": torch.full((2,), i) for i in range(6000)} | {"groups": [{"lr": 0.1}]}
    for load in everywhere(tmp_path, state):
        start = time.process_time()
        load()
        whole_s = time.process_time() - start
        for names in (list(state), list(state)[:-1]):
            start = time.process_time()
            assert same(load(names=names), {name: state[name] for name in names})
            assert time.process_time() - start < 0.5 + 10 * whole_s


def test_a_tensor_of_a_name_is_the_parameter_that_was_saved(tmp_path):
    def of(tensor):
        return type(tensor), tensor.requires_grad

    weight = torch.nn.Parameter(torch.arange(4.0))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    state = {"w": weight, "f": frozen, "g": torch.ones(2, requires_grad=True), "t": torch.ones(2), "sub": {"w": weight}}
    for load in everywhere(tmp_path, state):
        for names in (["w", "f", "g", "t"], ["w", "f", "g", "t", "sub"], "?"):
            for how in ({}, {"map_location": "cpu"}):
                found = load(names=names, **how)
                assert [of(found[name]) for name in "wfgt"] == [of(state[name]) for name in "wfgt"]
        assert of(load(names="w")) == of(weight)
        assert of(load(names={"w": slice(0, 2)})["w"]) == (torch.Tensor, False)
