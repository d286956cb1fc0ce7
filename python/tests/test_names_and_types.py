# SPDX-License-Identifier: Apache-2.0
"""Files that do not fit their model: each tensor of a file is taken or named, and each of a model gets its values or is
named. One table of files for stream(), load_into(), load(into=) and a Checkpoint."""

import warnings

import penstock
import pytest

torch = pytest.importorskip("torch")
nn, F8 = torch.nn, torch.float8_e4m3fn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.linear(x))


class Model(nn.Sequential):
    def __init__(self):
        super().__init__(*(Layer() for _ in range(2)))


def on_meta(make=Model):
    with torch.device("meta"):
        return make()


def state():
    torch.manual_seed(1)
    return dict(Model().state_dict())


def cast(dtype):
    return {name: one.to(dtype) if name.endswith("linear.weight") else one for name, one in state().items()}


def scaled(dtype, name, **more):
    return {**cast(dtype), f"0.linear.{name}": torch.ones(8), **more}


# {a file: its tensors}: a conversion would be needed, or a scale would be lost
WRONG = {
    "float8": lambda: cast(F8),
    "int8": lambda: cast(torch.int8),
    "bool": lambda: cast(torch.bool),
    "complex": lambda: cast(torch.complex64),
    "packed": lambda: {**state(), "0.linear.weight": torch.ones(32, 1, dtype=torch.uint8)},
    "fp8, weight_scale": lambda: scaled(F8, "weight_scale"),
    "fp8, weight_scale_inv": lambda: scaled(F8, "weight_scale_inv"),
    "int8, SCB": lambda: scaled(torch.int8, "SCB"),
    "a counter of another type": lambda: {**state(), "1.norm.weight": torch.ones(8, dtype=torch.int64)},
}
LOST = ["weight_scale", "weight_scale_inv", "scale", "SCB", "qzeros", "weight.absmax", "weight_zero_point",
        "weight.quant_state.bitsandbytes__nf4", "input_scale", "g_idx"]  # fmt: skip
WRONG.update({f"float32, {name}": lambda name=name: scaled(torch.float32, name) for name in LOST})


@pytest.mark.parametrize("what", WRONG)
def test_wrong_weights_are_refused_by_name_by_each_call(tmp_path, what):
    path, tensors = tmp_path / "m.safetensors", WRONG[what]()
    penstock.save(tensors, path)
    named = "norm.weight" if "counter" in what else r"0\.linear"
    before = Model()
    with pytest.raises((ValueError, NotImplementedError), match=named):
        penstock.stream(on_meta(), path, memory="1MiB")
    for strict in (True, False):
        model = Model()
        model.load_state_dict(before.state_dict())
        with pytest.raises(RuntimeError, match=named):
            penstock.load_into(model, path, strict=strict)
        assert all(map(torch.equal, model.state_dict().values(), before.state_dict().values()))
    with pytest.raises((KeyError, ValueError), match=named):
        penstock.load(path, into=Model().state_dict())
    with penstock.CheckpointStore(tmp_path / "store") as store:
        store.save({"model": tensors}, step=1)
        with pytest.raises((KeyError, ValueError), match=named):
            store.load(into={"model": Model().state_dict()})


@pytest.mark.parametrize("form", ["a state", "a part", "a prefix"])
def test_a_scale_that_is_a_number(tmp_path, form):
    names = None if form == "a state" else "model"

    def save(values):
        whole = {"model": values} if form == "a part" else {f"model.{key}": one for key, one in values.items()}
        penstock.save(values if form == "a state" else whole, tmp_path / "m.pt")

    values = {**state(), "0.linear.weight_scale": 0.5, "step": 3, "lr": 0.1, "name": "x"}
    save(values)
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"0\.linear\.weight_scale is a scale"):
            penstock.load_into(Model(), tmp_path / "m.pt", names=names, strict=strict)
    del values["0.linear.weight_scale"]
    save(values)
    assert penstock.load_into(Model(), tmp_path / "m.pt", names=names) == ([], [])


class Hooked(Model):
    def __init__(self):
        super().__init__()
        self.register_load_state_dict_post_hook(lambda *_: None)


@pytest.mark.parametrize("what", [one for one in WRONG if one != "packed"])
def test_a_module_with_code_of_its_own_converts_nothing_either(tmp_path, what):
    penstock.save(WRONG[what](), tmp_path / "m.safetensors")
    for strict in (True, False):
        with pytest.raises(RuntimeError, match="type mismatch|Unexpected key|is a scale"):
            penstock.load_into(Hooked(), tmp_path / "m.safetensors", strict=strict)


class Dequantizes(nn.Linear):
    def __init__(self):
        super().__init__(8, 8, bias=False)

    def _load_from_state_dict(self, state, prefix, *rest):
        scale = state.pop(prefix + "weight_scale")
        state[prefix + "weight"] = state[prefix + "weight"].float() * scale
        super()._load_from_state_dict(state, prefix, *rest)


def test_a_module_that_takes_its_scales_itself(tmp_path):
    weight = torch.randn(8, 8).to(F8)
    penstock.save({"weight": weight, "weight_scale": torch.tensor(2.0)}, tmp_path / "m.safetensors")
    model = Dequantizes()
    assert penstock.load_into(model, tmp_path / "m.safetensors") == ([], [])
    assert torch.equal(model.weight, weight.float() * 2)


def test_a_quantized_module_gets_its_own_tensors(tmp_path):
    class Quantized(nn.Module):
        def __init__(self):
            super().__init__()
            for name, dtype in (("weight", F8), ("qweight", torch.int32), ("mask", torch.bool), ("z", torch.complex64)):
                self.register_parameter(name, nn.Parameter(torch.ones(8, 8).to(dtype), requires_grad=False))
            self.weight_scale, self.qzeros = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(2))
            self.register_buffer("steps", torch.tensor(7))

        def forward(self, x):
            return x @ (self.weight.float() * self.weight_scale)

    made = Quantized()
    penstock.save(made.state_dict(), tmp_path / "m.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = penstock.stream(on_meta(Quantized), tmp_path / "m.safetensors", memory="1MiB", strict=True)
        assert penstock.load_into(Quantized(), tmp_path / "m.safetensors") == ([], [])
    x = torch.ones(2, 8)
    assert torch.equal(model(x), made(x)) and model.steps == 7


# ---- what nothing takes, and what nothing gives


@pytest.mark.parametrize("name", ["head.weight", "0.linear.lora_A.weight", "logit_scale", "0.norm.scale", "0.extra"])
def test_what_nothing_takes_is_named(tmp_path, name):
    path = tmp_path / "m.safetensors"
    penstock.save({**state(), name: torch.ones(3)}, path)
    with pytest.warns(RuntimeWarning, match=f"nothing of the model takes {name} of"):
        penstock.stream(on_meta(), path, memory="1MiB").set_memory("2MiB")
    with pytest.raises(KeyError, match=name):
        penstock.stream(on_meta(), path, memory="1MiB", strict=True)
    assert penstock.load_into(Model(), path, strict=False) == ([], [name])
    with pytest.raises(KeyError, match=name):
        penstock.load(path, into=Model().state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = on_meta()
        model._keys_to_ignore_on_load_unexpected = [rf"^{name}$"]
        penstock.stream(model, path, memory="1MiB", strict=True)
    with pytest.raises(TypeError, match="strict: expected True"):
        penstock.stream(on_meta(), path, strict="no")


def test_a_checkpoint_names_what_into_lacks_next_to_what_it_has(tmp_path):
    with penstock.CheckpointStore(tmp_path) as store:
        store.save({"model": {**state(), "head": torch.ones(2)}, "optimizer": {"m": torch.ones(3)}}, step=1)
        with pytest.warns(RuntimeWarning, match="into has no tensor model.head, which is in") as caught:
            found = store.load(into={"model": Model().state_dict()})
        assert len(caught) == 1 and found["model"]["head"].tolist() == [1, 1]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = store.load(into={"model": {**Model().state_dict(), "head": torch.zeros(2)}})
        assert found["optimizer"]["m"].tolist() == [1, 1, 1] and found["model"]["head"].tolist() == [1, 1]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = self.b = nn.Linear(8, 8)

    def forward(self, x):
        return self.b(self.a(x))


@pytest.mark.parametrize("same", [True, False])
def test_a_module_of_two_names(tmp_path, same):
    values = dict(Twice().state_dict())
    if not same:
        values["b.weight"] = torch.zeros(8, 8)
    penstock.save({name: one.clone() for name, one in values.items()}, tmp_path / "m.safetensors")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        penstock.stream(on_meta(Twice), tmp_path / "m.safetensors", memory="1MiB")
    assert [("takes b.weight of" in str(one.message)) for one in caught] == ([] if same else [True])


def test_code_for_load_state_dict_that_is_not_run_is_named(tmp_path):
    penstock.save(Dequantizes().state_dict(), tmp_path / "m.safetensors")
    with pytest.warns(RuntimeWarning, match="Dequantizes has code of its own for load_state_dict"):
        penstock.stream(on_meta(Dequantizes), tmp_path / "m.safetensors", memory="1MiB")
    penstock.save(state(), tmp_path / "m.safetensors")
    with pytest.warns(RuntimeWarning, match="Hooked has code of its own for load_state_dict"):
        penstock.stream(on_meta(Hooked), tmp_path / "m.safetensors", memory="1MiB")

    def normed():
        return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.BatchNorm1d(8))

    penstock.save(normed().state_dict(), tmp_path / "m.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        penstock.stream(on_meta(normed), tmp_path / "m.safetensors", memory="1MiB", strict=True)


class Buffered(Model):
    def __init__(self):
        super().__init__()
        self.register_buffer("computed", torch.ones(4), persistent=False)
        self.register_buffer("saved", torch.zeros(4))


def buffers_in_memory():
    model = Buffered()
    for module in model.modules():
        for name, one in module._parameters.items():
            module._parameters[name] = nn.Parameter(one.to("meta"))
    return model


def test_a_buffer_has_a_value_or_is_named(tmp_path):
    path = tmp_path / "m.safetensors"
    penstock.save(state(), path)
    with pytest.raises(KeyError, match="no file of .* has saved, which the model needs"):
        penstock.stream(buffers_in_memory(), path, memory="1MiB")
    penstock.save({**state(), "saved": torch.ones(4)}, path)
    model = penstock.stream(buffers_in_memory(), path, memory="1MiB", strict=True)
    assert model.computed.tolist() == [1] * 4 and model.saved.tolist() == [1] * 4
    with pytest.raises(KeyError, match="the buffer computed is on the meta device"):
        penstock.stream(on_meta(Buffered), path, memory="1MiB")
    model = Buffered()
    model.computed = model.computed.to("meta")
    with pytest.raises(ValueError, match="outside torch.device.*buffer 'computed'"):
        penstock.load_into(model, path)
    penstock.save({**state(), "saved": torch.ones(4, dtype=torch.int64)}, path)
    with pytest.raises(ValueError, match="saved: the model wants float32, and .* has int64"):
        penstock.stream(buffers_in_memory(), path, memory="1MiB")


def test_a_batch_norm_of_an_old_file_counts_from_0(tmp_path):
    norm = nn.BatchNorm1d(8).eval()
    norm.running_mean.normal_()
    old = {name: one for name, one in norm.state_dict().items() if name != "num_batches_tracked"}
    penstock.save(old, tmp_path / "m.safetensors")
    model = penstock.stream(on_meta(lambda: nn.BatchNorm1d(8)), tmp_path / "m.safetensors", memory="1MiB")
    assert torch.equal(model(torch.ones(2, 8)), norm(torch.ones(2, 8))) and model.num_batches_tracked == 0


# ---- prefixes


WRAPPED = {"_orig_mod": lambda model: nn.ModuleDict({"_orig_mod": model}), "module": nn.DataParallel,
           "model._orig_mod": lambda model: nn.ModuleDict({"model": nn.ModuleDict({"_orig_mod": model})})}  # fmt: skip


@pytest.mark.parametrize("prefix", WRAPPED)
def test_a_prefix_has_a_hint_that_helps(tmp_path, prefix):
    values = state()
    wrapped = WRAPPED[prefix](Model())
    wrapped.load_state_dict({f"{prefix}.{name}": one for name, one in values.items()})
    penstock.save(wrapped.state_dict(), tmp_path / "wrapped.safetensors")
    penstock.save({"step": 1, "model": wrapped.state_dict()}, tmp_path / "wrapped.pt")
    penstock.save(values, tmp_path / "plain.safetensors")

    def is_loaded(model):
        return all(torch.equal(one, values[name]) for name, one in model.state_dict().items())

    for names, path in ((None, "wrapped.safetensors"), ("model", "wrapped.pt")):
        inside = f"{names}.{prefix}" if names else prefix
        with pytest.raises(RuntimeError, match=f"Hint: .*names='{inside}' reads"):
            penstock.load_into(Model(), tmp_path / path, names=names)
        model = Model()
        with pytest.warns(RuntimeWarning, match=f"names='{inside}' reads"):
            penstock.load_into(model, tmp_path / path, names=names, strict=False)
        penstock.load_into(model, tmp_path / path, names=inside)
        assert is_loaded(model)
    with pytest.raises(KeyError, match=f"names='{prefix}' reads"):
        penstock.load(tmp_path / "wrapped.safetensors", into=Model().state_dict())
    with pytest.raises(KeyError, match=f"begin with '{prefix}.'"):
        penstock.stream(on_meta(), tmp_path / "wrapped.safetensors", memory="1MiB")
    loaded = penstock.load(tmp_path / "wrapped.safetensors")
    penstock.save(
        {name.removeprefix(f"{prefix}."): one for name, one in loaded.items()}, tmp_path / "again.safetensors"
    )
    assert is_loaded(penstock.stream(on_meta(), tmp_path / "again.safetensors", memory="1MiB").unstream())
    with pytest.raises(RuntimeError, match=f"Hint: .*give model.{prefix}"):
        penstock.load_into(WRAPPED[prefix](Model()), tmp_path / "plain.safetensors")
    inner = wrapped.get_submodule(prefix)
    for one in inner.parameters():
        one.data.zero_()
    penstock.load_into(inner, tmp_path / "plain.safetensors")
    assert is_loaded(inner)


def test_a_part_that_was_compiled_has_a_hint(tmp_path):
    renamed = {name.replace("1.norm", "1.norm._orig_mod"): one for name, one in state().items()}
    penstock.save(renamed, tmp_path / "m.safetensors")
    with pytest.raises(RuntimeError, match="some names in the file have '_orig_mod.' in them"):
        penstock.load_into(Model(), tmp_path / "m.safetensors")
    loaded = penstock.load(tmp_path / "m.safetensors")
    Model().load_state_dict({name.replace("_orig_mod.", ""): one for name, one in loaded.items()})


# ---- load_into() takes what load_state_dict() takes


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight


class Overlapping(nn.Module):
    def __init__(self):
        super().__init__()
        flat = torch.zeros(12)
        self.a, self.b, self.c = nn.Parameter(flat[:6]), nn.Parameter(flat[4:10]), nn.Parameter(flat[10:])


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(3, 4))
        self.b = nn.Parameter(self.a.detach().t())


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.0))


def filled(shape, value, dtype=torch.float32):
    return torch.full(shape, float(value), dtype=dtype)


ODD = {
    "tied": (Tied, {"a.weight": filled((4, 4), 2), "b.weight": filled((4, 4), 2)}, False),
    "tied, NaN": (Tied, {"a.weight": filled((4, 4), "nan"), "b.weight": filled((4, 4), "nan")}, False),
    "tied, of two values": (Tied, {"a.weight": filled((4, 4), 2), "b.weight": filled((4, 4), 3)}, True),
    "tied, of two types": (Tied, {"a.weight": filled((4, 4), 2), "b.weight": filled((4, 4), 2, torch.half)}, False),
    "the first is converted": (Tied, {"a.weight": filled((4, 4), 3, torch.half), "b.weight": filled((4, 4), 2)}, True),
    "overlapping": (Overlapping, {"a": filled((6,), 2), "b": filled((6,), 2), "c": filled((2,), 5)}, False),
    "overlapping, of two values": (
        Overlapping, {"a": filled((6,), 2), "b": filled((6,), 3), "c": filled((2,), 5)}, True),
    "transposed": (
        Transposed, {"a": torch.arange(12.0).view(3, 4), "b": torch.arange(12.0).view(3, 4).t()}, False),
    "a number of torch 0.3": (Scalar, {"a": filled((1,), 5)}, False),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("form", ["m.pt", "m.safetensors"])
@pytest.mark.parametrize("strict", [True, False])
def test_load_into_takes_what_load_state_dict_takes(tmp_path, what, form, strict):
    make, tensors, differ = ODD[what]
    tensors = {name: one.clone() for name, one in tensors.items()}
    penstock.save(tensors, tmp_path / form)
    theirs, ours = make(), make()
    theirs.load_state_dict(tensors, strict=strict)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert penstock.load_into(ours, tmp_path / form, strict=strict) == ([], [])
    assert [("other values" in str(one.message)) for one in caught] == ([True] if differ else [])
    for name, one in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name].nan_to_num(9), one.nan_to_num(9)), name


def test_another_type_for_the_model_is_one_for_its_floats(tmp_path):
    class Mixed(Model):
        def __init__(self):
            super().__init__()
            self.wave = nn.Parameter(torch.full((4,), 1 + 2j))
            self.small = nn.Parameter(torch.ones(4).to(F8), requires_grad=False)

    made = Mixed()
    penstock.save(made.state_dict(), tmp_path / "m.pt")
    model = Mixed()
    penstock.load_into(model, tmp_path / "m.pt", dtype="float16")
    assert torch.equal(model.wave, made.wave) and model.small.dtype == F8 and model[0].norm.weight.dtype == torch.half


def test_load_into_reads_an_open_file(tmp_path):
    penstock.save(state(), tmp_path / "m.pt")
    model = Model()
    with open(tmp_path / "m.pt", "rb") as file:
        assert penstock.load_into(model, file) == ([], [])
    assert all(torch.equal(one, state()[name]) for name, one in model.state_dict().items())
