# SPDX-License-Identifier: Apache-2.0
"""load_into(): compared with torch's load_state_dict()."""

import random
import re

import penstock
import pytest

torch = pytest.importorskip("torch")

FORMS = ["m.pt", "m.safetensors", "m.safetensors.index.json"]


def model_of(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    made = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Embedding(4, 6), torch.nn.PReLU())
    made[1].register_buffer("count", torch.tensor(seed))
    return made.to(dtype)


def alike(a, b):
    ours, theirs = a.state_dict(), b.state_dict()
    return list(ours) == list(theirs) and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in ours
    )


def lines(error):
    """What torch says, whatever the order of names in a line."""
    return [sorted(re.split(r"[ ,.]+", line)) for line in str(error).splitlines()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [None, "model", "a.model"])
def test_a_model_is_read_in_place(tmp_path, form, names):
    source, model = model_of(1), model_of(2)
    prefix = f"{names}." if names else ""
    flat = {prefix + name: tensor for name, tensor in source.state_dict().items()}
    if form == "m.pt" and names == "model":
        flat = {"model": source.state_dict(), "step": 3}
    penstock.save(flat, tmp_path / form)
    addresses = [p.data_ptr() for p in model.parameters()]
    keys = penstock.load_into(model, tmp_path / form, names=names)
    assert keys == ([], []) and keys.missing_keys == []
    assert alike(model, source) and [p.data_ptr() for p in model.parameters()] == addresses


@pytest.mark.parametrize("seed", range(20))
def test_what_does_not_fit_is_reported_as_torch_does(tmp_path, seed):
    rng = random.Random(seed)
    state = dict(model_of(1).state_dict())
    for name in rng.sample(list(state), rng.randint(0, 3)):
        change = rng.choice(["drop", "rename", "shape"])
        tensor = state.pop(name)
        if change != "drop":
            state[name + ("x" if change == "rename" else "")] = tensor if change == "rename" else torch.zeros(7, 3)
    path = tmp_path / rng.choice(FORMS[:2])
    penstock.save(state, path)
    for strict in (True, False):
        ours, theirs, before = model_of(3), model_of(3), model_of(3)
        try:
            expected = theirs.load_state_dict(state, strict=strict)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                penstock.load_into(ours, path, strict=strict)
            assert lines(raised.value) == lines(error)
            assert alike(ours, before)
        else:
            found = penstock.load_into(ours, path, strict=strict)
            assert sorted(found.missing_keys) == sorted(expected.missing_keys)
            assert sorted(found.unexpected_keys) == sorted(expected.unexpected_keys)
            assert alike(ours, theirs)


@pytest.mark.parametrize("form", FORMS[:2])
def test_floats_become_the_models(tmp_path, form):
    source = model_of(1)
    penstock.save(source.state_dict(), tmp_path / form)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        expected = model_of(1).to(dtype)
        model = model_of(2, dtype)
        penstock.load_into(model, tmp_path / form)
        assert alike(model, expected)
        model = model_of(2)
        penstock.load_into(model, tmp_path / form, dtype=dtype)
        assert alike(model, expected)
        assert penstock.load_into(model, tmp_path / form, dtype="float32") == ([], [])
        assert alike(model, source)


def test_other_types_are_refused_before_anything_changes(tmp_path):
    state = dict(model_of(1).state_dict())
    state["1.count"] = torch.tensor(2.0)
    penstock.save(state, tmp_path / "m.pt")
    model = model_of(2)
    with pytest.raises(RuntimeError, match="type mismatch for 1.count: float32 in the file, int64 in"):
        penstock.load_into(model, tmp_path / "m.pt", dtype="float16")
    assert alike(model, model_of(2))


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights(tmp_path):
    source = Tied()
    penstock.save(source.state_dict(), tmp_path / "m.pt")
    penstock.save({"embed.weight": source.embed.weight}, tmp_path / "m.safetensors")
    for form in FORMS[:2]:
        model = Tied()
        assert penstock.load_into(model, tmp_path / form) == ([], [])
        assert torch.equal(model.head.weight, source.embed.weight) and model.head.weight is model.embed.weight


def test_autograd_notices(tmp_path):
    layer = torch.nn.Linear(3, 3)
    penstock.save(layer.state_dict(), tmp_path / "m.pt")
    loss = (layer(torch.ones(1, 3)) @ layer.weight).sum()
    penstock.load_into(layer, tmp_path / "m.pt")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_refused(tmp_path):
    penstock.save({"model": model_of(1).state_dict(), "step": 3, "none": {"a": 1}}, tmp_path / "m.pt")
    with pytest.raises(TypeError, match="expected a torch.nn.Module, got 3"):
        penstock.load_into(3, tmp_path / "m.pt")
    with pytest.raises(TypeError, match="expected the name of a part"):
        penstock.load_into(model_of(), tmp_path / "m.pt", names=["model"])
    with pytest.raises(KeyError, match="did you mean 'model'"):
        penstock.load_into(model_of(), tmp_path / "m.pt", names="modle")
    for names in ("step", "none"):
        with pytest.raises(KeyError, match="has no tensors below it"):
            penstock.load_into(model_of(), tmp_path / "m.pt", names=names)
    with torch.device("meta"):
        empty = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="to_empty"):
        penstock.load_into(empty, tmp_path / "m.pt", names="model")
    with pytest.raises(ValueError, match="dtype: expected float64"):
        penstock.load_into(model_of(), tmp_path / "m.pt", names="model", dtype=torch.int8)


# ---- modules with code of their own for load_state_dict()


class Scaled(torch.nn.Module):
    def __init__(self, value=1.0):
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((3,), value))

    def _load_from_state_dict(self, state, prefix, *rest):
        state[prefix + "w"] = state[prefix + "w"] * 2
        super()._load_from_state_dict(state, prefix, *rest)


class Extra(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.extra = {"kind": [1]}

    def get_extra_state(self):
        return {**self.extra, "w": torch.ones(2)}

    def set_extra_state(self, state):
        self.extra = {"kind": state["kind"] * 2}


class Named(torch.nn.Linear):
    """Saves under other names than those of its parameters."""

    def __init__(self):
        super().__init__(3, 3)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "kernel"] = destination.pop(prefix + "weight")

    def _load_from_state_dict(self, state, prefix, *rest):
        state[prefix + "weight"] = state.pop(prefix + "kernel")
        super()._load_from_state_dict(state, prefix, *rest)


def hooked(kind):
    module = torch.nn.Linear(3, 3)
    if kind == "pre":
        module.register_load_state_dict_pre_hook(lambda _, state, prefix, *rest: state[prefix + "bias"].add_(1))
    elif kind == "old pre":
        module._register_load_state_dict_pre_hook(lambda state, prefix, *_: state[prefix + "bias"].add_(1))
    else:
        module.register_load_state_dict_post_hook(lambda its, _: setattr(its.bias, "data", its.bias * 3))
    return module


def instead_of_method():
    module = Scaled()
    plain = torch.nn.Module._load_from_state_dict.__get__(module)
    module._load_from_state_dict = lambda state, *rest: plain({"0.w": state["0.w"] + 5}, *rest)
    return module


OWN = {
    "override": Scaled,
    "override of the object": instead_of_method,
    "extra state": Extra,
    "other names": Named,
    "pre-hook": lambda: hooked("pre"),
    "old pre-hook": lambda: hooked("old pre"),
    "post-hook": lambda: hooked("post"),
    "lazy": lambda: torch.nn.LazyLinear(3),
    "weight norm": lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3)),
}


@pytest.mark.parametrize("name", OWN)
def test_a_module_with_code_of_its_own_gets_what_load_state_dict_gives_it(tmp_path, name):
    torch.manual_seed(1)
    saved = OWN[name]() if name != "lazy" else torch.nn.Linear(3, 3)
    source = torch.nn.Sequential(saved, torch.nn.Linear(3, 2))
    state = torch.nn.Sequential(*source).state_dict()
    penstock.save({"model": state, "step": 1}, tmp_path / "m.pt")
    torch.manual_seed(2)
    models = [torch.nn.Sequential(OWN[name](), torch.nn.Linear(3, 2)) for _ in range(2)]
    expected = models[0].load_state_dict(penstock.load(tmp_path / "m.pt")["model"])
    keys = penstock.load_into(models[1], tmp_path / "m.pt", names="model")
    assert keys == (expected.missing_keys, expected.unexpected_keys)
    assert [list(one.parameters())[0].shape for one in models] == [list(source.parameters())[0].shape] * 2
    for (key, ours), theirs in zip(models[1].named_parameters(), models[0].parameters(), strict=True):
        assert torch.equal(ours, theirs), key
    if name == "extra state":
        assert models[1][0].extra == models[0][0].extra == {"kind": [1, 1]}


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("old", [False, True])
def test_a_batch_norm_of_an_old_file(tmp_path, form, old):
    """Before version 2 of its state, it had no num_batches_tracked."""
    torch.manual_seed(1)
    source, *models = (torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.InstanceNorm1d(3)) for _ in range(3))
    source[0].running_mean.normal_()
    state = dict(source.state_dict())
    for model in models:
        model[0].num_batches_tracked.fill_(4)
    if old:
        del state["0.num_batches_tracked"]
    penstock.save(state, tmp_path / form)
    expected = models[0].load_state_dict(penstock.load(tmp_path / form))
    assert penstock.load_into(models[1], tmp_path / form) == (expected.missing_keys, expected.unexpected_keys)
    assert alike(*models) and models[1][0].num_batches_tracked == (4 if old else 0)


def test_errors_of_a_module_with_code_of_its_own_are_those_of_torch(tmp_path):
    penstock.save({"w": torch.ones(4), "x": torch.ones(1)}, tmp_path / "m.pt")
    with pytest.raises(RuntimeError, match="Unexpected key.*\n.*size mismatch"):
        penstock.load_into(Scaled(), tmp_path / "m.pt")
    penstock.save({"w": torch.ones(3), "x": torch.ones(1)}, tmp_path / "m.pt")
    model = Scaled()
    keys = penstock.load_into(model, tmp_path / "m.pt", strict=False, dtype=torch.float16)
    assert keys == ([], ["x"]) and model.w.tolist() == [2, 2, 2] and model.w.dtype == torch.float16
