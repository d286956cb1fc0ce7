# SPDX-License-Identifier: Apache-2.0
"""Calls that libraries make on a model, and that change nothing, work on a streamed one; what torch keeps of weights
does not exceed the budget."""

import copy

import penstock
import pytest

torch = pytest.importorskip("torch")

from penstock.weights._away import is_away  # noqa: E402
from test_weights import Model, on_meta  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402

IDS = torch.tensor([[1, 7, 499, 1]])


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(3)
    model = Model(tied=False).eval()
    penstock.save(model.state_dict(), tmp_path / "m.safetensors")
    return model, tmp_path / "m.safetensors", sum(one.nbytes for one in model.parameters())


def same(streamed, model):
    with torch.no_grad():
        return torch.equal(streamed(IDS), model(IDS))


NOTHING = {
    "to(device)": lambda m: m.to("cpu"),
    "to(device, dtype)": lambda m: m.to(torch.device("cpu"), torch.float32, non_blocking=True),
    "to(dtype)": lambda m: m.to(torch.float32),
    "to(tensor)": lambda m: m.to(torch.ones(1)),
    "to(memory_format)": lambda m: m.to(memory_format=torch.channels_last),
    "cpu": lambda m: m.cpu(),
    "float": lambda m: m.float(),
    "type": lambda m: m.type(torch.float32),
    "_apply": lambda m: m._apply(lambda tensor: tensor),
    "eval": lambda m: m.eval(),
    "train": lambda m: m.train(False),
    "requires_grad_": lambda m: m.requires_grad_(True),
    "apply": lambda m: m.apply(lambda module: [one.shape for one in module.parameters()]),
}
CHANGES = {
    "to(dtype)": lambda m: m.to(torch.bfloat16),
    "to(device)": lambda m: m.to("meta"),
    "half": lambda m: m.half(),
    "type": lambda m: m.type(torch.float64),
    "cuda": lambda m: m.cuda(),
    "share_memory": lambda m: m.share_memory(),
    "to_empty": lambda m: m.to_empty(device="cpu"),
    "_apply": lambda m: m._apply(lambda tensor: tensor + 0),
    "_apply in place": lambda m: m._apply(lambda tensor: tensor.zero_()),
}
PARTS = {
    "model": lambda m: m,
    "layers": lambda m: m.layers,
    "layer": lambda m: m.layers[1],
    "of a layer": lambda m: m.layers[1].up,
    "that stays": lambda m: m.norm,
    "embedding": lambda m: m.embed,
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("share", [0.5, 2])
def test_a_call_that_changes_nothing_returns_the_module(saved, share, part):
    model, path, total = saved
    streamed = penstock.stream(on_meta(tied=False), path, memory=int(total * share))
    its = PARTS[part](streamed)
    for name, call in NOTHING.items():
        assert call(its) is its, name
    wrapper = torch.nn.ModuleList([its])
    assert wrapper.to("cpu").float()[0] is its
    assert same(streamed, model)
    assert not any(one.requires_grad for one in streamed.requires_grad_(False).parameters())
    assert same(streamed, model)


@pytest.mark.parametrize("part", PARTS)
def test_a_call_that_would_change_weights_is_refused_and_changes_none(saved, part):
    model, path, total = saved
    streamed = penstock.stream(on_meta(tied=False), path, memory=total // 2)
    before = [(id(one), one.dtype, one.device, one._version) for one in streamed.parameters()]
    its = PARTS[part](streamed)
    for name, call in CHANGES.items():
        for module in (its, torch.nn.ModuleList([its])):
            with pytest.raises(RuntimeError, match=r"\(\): the weights of this model are streamed"):
                raise AssertionError(f"{name} returned {call(module)}")
    assert [(id(one), one.dtype, one.device, one._version) for one in streamed.parameters()] == before
    assert same(streamed, model)
    assert streamed.unstream().double().layers[0].up.weight.dtype == torch.float64


def test_half_of_a_half_model_changes_the_buffers_that_it_changes_in_memory(tmp_path):
    model = Model(tied=False).eval().to(torch.bfloat16)
    model.offset = model.offset.float()
    penstock.save(model.state_dict(), tmp_path / "m.safetensors")
    empty = on_meta(tied=False).to(torch.bfloat16)
    empty.offset = empty.offset.float()
    streamed = penstock.stream(empty, tmp_path / "m.safetensors", memory="1GiB")
    for call in (lambda m: m.to(torch.device("cpu")), lambda m: m.bfloat16()):
        assert call(streamed) is streamed
        call(model)
        assert streamed.offset.dtype == model.offset.dtype and torch.equal(streamed.offset, model.offset)
    assert same(streamed, model)


@pytest.mark.parametrize("part", [part for part in PARTS if part != "model"])
def test_a_copy_of_a_part_is_an_ordinary_module_with_the_values_of_the_files(saved, part):
    model, path, total = saved
    streamed = penstock.stream(on_meta(tied=False), path, memory=total // 2)
    copied = copy.deepcopy(PARTS[part](streamed))
    state, expected = copied.state_dict(), PARTS[part](model).state_dict()
    assert state.keys() == expected.keys() and all(torch.equal(state[name], one) for name, one in expected.items())
    for module in copied.modules():
        assert not {"forward", "_call_impl", "_apply", "__deepcopy__"} & set(vars(module))
    copied.train().half().requires_grad_(True)
    with torch.no_grad():
        for one in copied.parameters():
            one.zero_()
    assert same(streamed, model)  # and the part itself is what it was
    assert part == "that stays" or any(map(is_away, PARTS[part](streamed).parameters()))
    with pytest.raises(RuntimeError, match="copying"):
        copy.deepcopy(streamed)


def test_a_hook_of_a_layer_copies_it_and_converts_it_to_what_it_is(saved):
    model, path, total = saved
    streamed = penstock.stream(on_meta(tied=False), path, memory=total // 2)
    copies = []
    streamed.layers[2].register_forward_hook(lambda module, *_: copies.append(copy.deepcopy(module.to("cpu"))))
    assert same(streamed, model)
    assert torch.equal(copies[0].up.weight, model.layers[2].up.weight) and not is_away(copies[0].up.weight)
    assert same(streamed, model)


AUTOCAST = """
    import os, sys, torch, penstock
    path = sys.argv[1]

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(1024, 1024)
            self.weight = torch.nn.Parameter(torch.randn(1024, 1024) / 100)
        def forward(self, x):
            return x @ self.weight + self.linear(x)

    def layers():
        return torch.nn.Sequential(*(Layer() for _ in range(6)))

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    model = layers()
    penstock.save(model.state_dict(), path)
    x = torch.ones(2, 3, 1024)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x).detach()
    del model
    for memory, units in ((20 << 20, None), (1 << 30, None), (1 << 30, ["0"])):
        with torch.device("meta"):
            empty = layers()
        streamed = penstock.stream(empty, path, memory=memory, units=units)
        with torch.no_grad():
            streamed(x)  # without autocast: all memory of the stream's own is filled from here on
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                for _ in range(2):
                    before = resident()
                    with torch.autocast("cpu", torch.bfloat16):
                        assert torch.equal(streamed(x), expected)
                        more = resident() - before
                assert more < 8 << 20, (memory, units, grad, more)  # copies of all would be 24 MiB
"""


def test_autocast_keeps_no_copies_of_weights(tmp_path, run_script):
    run_script(AUTOCAST, tmp_path / "m.safetensors")


class OfSlices(torch.nn.Module):
    """Its products have inputs with gaps: torch computes them in one of two ways, by what the weight requires."""

    def __init__(self):
        super().__init__()
        self.linear, self.weight = torch.nn.Linear(32, 32), torch.nn.Parameter(torch.randn(32, 32))

    def forward(self, x):
        return torch.cat([x[:, :64], self.linear(x[:, 64:]) @ self.weight], 1)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_products_have_the_bits_that_they_have_in_memory(tmp_path, mode):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(OfSlices() for _ in range(6)))
    penstock.save(model.state_dict(), tmp_path / "m.safetensors")
    x = torch.randn(2, 69, 32)
    for memory in (4 * (2 * 32 * 32 * 4 + 3 * 8192), "1GiB"):
        with torch.device("meta"):
            empty = torch.nn.Sequential(*(OfSlices() for _ in range(6)))
        streamed = penstock.stream(empty, tmp_path / "m.safetensors", memory=memory)
        with mode():
            assert torch.equal(streamed(x), model(x))


class Same(torch.nn.Module):
    def forward(self, weight):
        return weight


def test_a_cache_of_parametrizations_keeps_no_weight_of_another_layer(tmp_path):
    def layers():
        out = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(6)))
        for layer in out:
            parametrize.register_parametrization(layer, "weight", Same())
        return out

    model = layers()
    penstock.save(model.state_dict(), tmp_path / "m.safetensors")
    with torch.device("meta"):
        empty = layers()
    streamed = penstock.stream(empty, tmp_path / "m.safetensors", memory=3 * (64 * 64 * 4 + 8192))
    x = torch.ones(1, 64)
    with torch.no_grad(), parametrize.cached():
        for _ in range(3):
            assert torch.equal(streamed(x), model(x))
