# SPDX-License-Identifier: Apache-2.0
"""Plain modules that are streamed give the bits that they give in memory; the models of transformers are in
tests/deepspeed."""

import copy
import io
import json
import pickle
import re
import threading
import time

import penstock
import pytest

torch = pytest.importorskip("torch")

from penstock.weights import Streamed  # noqa: E402
from penstock.weights._away import is_away  # noqa: E402


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.scale = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x))) * self.scale


class Model(torch.nn.Module):
    def __init__(self, width=64, layers=5, rows=500, tied=True):
        super().__init__()
        self.embed = torch.nn.Embedding(rows, width, padding_idx=7)
        self.layers = torch.nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, rows, bias=False)
        self.register_buffer("offset", torch.arange(float(width)))
        if tied:
            self.head.weight = self.embed.weight
        self.fail = None

    def forward(self, ids):
        x = self.embed(ids) + self.offset
        for layer in self.layers:
            x = layer(x)
            if self.fail:
                raise self.fail("in the middle of a pass")
        return self.head(self.norm(x))


class NormsLast(torch.nn.Module):
    """A layer as transformers has them: its norms are registered last and called first."""

    def __init__(self, width):
        super().__init__()
        self.attention = Layer(width)
        self.mlp = Layer(2 * width)
        self.norm, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(2 * width)

    def forward(self, x):
        x = self.attention(self.norm(x))
        return self.mlp(self.norm_2(torch.cat([x, x], -1)))[..., : x.shape[-1]]


def on_meta(**shape):
    with torch.device("meta"):
        return Model(**shape)


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(3)
    model = Model().eval()
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "head.weight"}
    path = tmp_path / "model.safetensors.index.json"
    penstock.save(state, path, shard_bytes=200_000)
    ids = torch.tensor([[1, 7, 499, 1]])
    with torch.no_grad():
        return path, ids, model(ids), sum(tensor.nbytes for tensor in state.values())


def least_of(model):
    """The budget that a refusal names."""
    with pytest.raises(MemoryError, match="the least that works for this model") as refused:
        model.set_memory(0)
    return int(str(refused.value).split("the least that works for this model is ")[1].split()[0])


def run(model, ids):
    with torch.no_grad():
        return model(ids)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.8, 2.0])
def test_any_budget_gives_the_same_bits(saved, share):
    path, ids, expected, total = saved
    with pytest.raises(MemoryError, match="the least that works for this model is") as refused:
        penstock.stream(on_meta(), path, memory=1000)
    least = int(str(refused.value).split("the least that works for this model is ")[1].split()[0])
    model = penstock.stream(on_meta(), path.parent, memory=max(least, int(share * total)))
    for _ in range(3):
        assert torch.equal(run(model, ids), expected)
    stats = model.stream_stats()
    assert stats.plan["used_bytes"] <= stats.plan["memory_bytes"]
    assert (stats.bytes_read == 0) == (share == 2.0)
    assert stats.rows_bytes_read == (0 if share == 2.0 else 3 * 3 * 64 * 4)  # three rows, each once
    assert is_away(model.layers[0].up.weight) and isinstance(model, Model) and isinstance(model, Streamed)
    model.unstream()
    assert type(model) is Model and not isinstance(model, Streamed) and model.head.weight is model.embed.weight
    assert torch.equal(run(model, ids), expected) and not any(is_away(p) for p in model.parameters())


def test_files_of_another_dtype_take_their_own_bytes(tmp_path):
    torch.manual_seed(3)
    model = Model(layers=8).eval().to(torch.bfloat16)
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "head.weight"}
    penstock.save(state, tmp_path / "model.safetensors")
    model, ids = model.float(), torch.tensor([[1, 7, 499, 1]])
    expected, total = run(model, ids), sum(tensor.nbytes for tensor in state.values())
    for memory in (total, 4 * total):  # the bytes of the files, and all parameters
        streamed = penstock.stream(on_meta(layers=8), tmp_path / "model.safetensors", memory=memory)
        for _ in range(2):
            assert torch.equal(run(streamed, ids), expected)
        assert (streamed.stream_stats().rows_bytes_read > 0) == (memory == total)
        assert torch.equal(run(streamed.unstream(), ids), expected)
        assert streamed.head.weight is streamed.embed.weight and streamed.head.weight.dtype == torch.float32


@pytest.mark.parametrize("layers", [1, 1.4])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_first_pass_reads_the_weights_once(tmp_path, layers, backwards):
    class Stack(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(NormsLast(48) for _ in range(20))

        def forward(self, x):
            for layer in reversed(self.layers) if backwards else self.layers:
                x = layer(x)
            return x

    torch.manual_seed(3)
    whole, x = Stack().eval(), torch.randn(1, 48)
    penstock.save(whole.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        empty = Stack()
    of_layer = sum(one.nbytes for one in whole.layers[0].parameters())
    model = penstock.stream(empty, tmp_path, memory=int(layers * of_layer))
    assert torch.equal(run(model, x), run(whole, x))
    stats = model.stream_stats()
    assert any(name.endswith(".mlp.up") for name in stats.stall_s)  # layers were divided
    assert stats.bytes_read <= 1.05 * stats.plan["read_bytes"]
    assert torch.equal(run(model, x), run(whole, x))


def test_budgets_may_change(saved):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory=total // 2)
    for memory in (total, total // 2, "10MiB", total * 2 // 3):
        model.set_memory(memory)
        assert torch.equal(run(model, ids), expected)
    with pytest.raises(MemoryError, match=r"^set_memory: memory=10: the least .* is (\d+) bytes, because head"):
        model.set_memory(10)
    assert "layers.0" in model.stream_stats().stall_s
    model.layers[0].up.weight.requires_grad_(False)
    model.set_memory(least_of(model))
    assert "layers.0.up" in model.stream_stats().stall_s  # smaller units
    assert torch.equal(run(model, ids), expected)
    assert not model.layers[0].up.weight.requires_grad and model.layers[0].down.weight.requires_grad
    model.set_memory(2 * total)
    assert torch.equal(run(model, ids), expected)
    assert torch.equal(run(model.unstream(), ids), expected)


@pytest.mark.parametrize("remain", [0, 1])
def test_a_budget_of_other_units_that_cannot_be_read_loses_no_model(saved, tmp_path, monkeypatch, remain):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory=int(0.8 * total))
    least, opened = least_of(model), penstock._core.WeightStream
    fails = iter([True] * (2 - remain))

    def failing(*arguments):
        if next(fails, False):
            raise OSError("the disk is away")
        return opened(*arguments)

    monkeypatch.setattr("penstock._core.WeightStream", failing)
    with pytest.raises(OSError, match="the disk is away"):
        model.set_memory(least)
    if remain:
        assert model.stream_stats().plan["memory_bytes"] > least  # as before
    else:
        with pytest.raises(RuntimeError, match="could not be read again after set_memory.*unstream"):
            run(model, ids)
        model.unstream()
    assert torch.equal(run(model, ids), expected)


def test_a_budget_of_other_units_is_refused_where_modules_were_added(saved):
    path, ids, _, total = saved
    model = penstock.stream(on_meta(), path, memory=int(0.8 * total))
    least = least_of(model)
    model.layers[0].extra = torch.nn.Linear(2, 2)
    with pytest.raises(MemoryError, match="the least that works for this model"):
        model.set_memory(least)


def test_a_forward_that_somebody_had_set_stays(saved):
    path, ids, expected, total = saved
    model, calls = on_meta(), []
    layer, plain = model.layers[2], model.layers[2].forward
    layer.forward = lambda x: calls.append(1) or plain(x)
    mine = layer.forward
    penstock.stream(model, path, memory=total // 2)
    assert torch.equal(run(model, ids), expected) and len(calls) == 1
    model.unstream()
    assert layer.forward is mine and "forward" not in model.layers[1].__dict__


def test_units_by_name(saved):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory=total, units=["layers.0", "layers.1", "layers.4"])
    assert torch.equal(run(model, ids), expected)
    assert list(model.stream_stats().stall_s) == ["layers.0", "layers.1", "layers.4"]
    with pytest.raises(KeyError, match="no module 'layers.9'"):
        penstock.stream(on_meta(), path, memory=total, units=["layers.9"])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("part", ["model", "layers"])
def test_a_pass_that_ends_early_is_followed_by_a_right_one(saved, error, part):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory=total // 2)
    x = torch.zeros(1, 64)
    for _ in range(3):  # more often than there are slots
        if part == "model":
            model.fail = error
            with pytest.raises(error):
                run(model, ids)
            model.fail = None
        else:  # a layer by itself, outside a pass
            handle = model.layers[1].down.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(error()))
            with pytest.raises(error):
                model.layers[1](x)
            handle.remove()
            model.layers[1](x)
        assert is_away(model.layers[0].up.weight) and is_away(model.layers[1].up.weight)
        assert torch.equal(run(model, ids), expected)
    found = []
    other = threading.Thread(target=lambda: found.append(run(model, ids)), daemon=True)
    other.start()
    other.join(30)
    assert found and torch.equal(found[0], expected)
    assert is_away(model.layers[0].up.weight)


def test_a_read_that_fails_is_an_error_and_the_next_pass_is_right(saved, tmp_path):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory=total // 2)
    assert torch.equal(run(model, ids), expected)
    shards = sorted(tmp_path.glob("*.safetensors"))
    whole = [shard.read_bytes() for shard in shards]
    for shard in shards:
        with open(shard, "r+b") as file:
            file.truncate(100)
    with pytest.raises(penstock.Error):
        for _ in range(3):
            run(model, ids)
    for shard, data in zip(shards, whole, strict=True):
        shard.write_bytes(data)
    with pytest.raises(penstock.Error, match="was changed while its weights were streamed"):
        for _ in range(3):  # its bytes may be of two versions
            run(model, ids)
    assert is_away(model.layers[0].up.weight)


def test_threads_take_turns(saved):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory=total // 2)
    wrong = []

    def work():
        for _ in range(5):
            wrong.extend([] if torch.equal(run(model, ids), expected) else [1])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


USES = {
    "train()": lambda model: model.train(),
    "load_state_dict()": lambda model: model.load_state_dict({}),
    "to()": lambda model: model.to(torch.float64),
    "to(": lambda model: model.to("meta"),
    "cuda()": lambda model: model.cuda(),
    "double()": lambda model: model.double(),
    "half()": lambda model: model.half(),
    "type()": lambda model: model.type(torch.float16),
    "share_memory()": lambda model: model.share_memory(),
    "_apply()": lambda model: model._apply(lambda tensor: tensor.clone()),
    "pickling": lambda model: torch.save(model, io.BytesIO()),
    "pickling and": pickle.dumps,
    "pickling and copying": copy.deepcopy,
}


@pytest.mark.parametrize("what", USES)
def test_what_needs_all_weights_is_refused(saved, what):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory=total // 2)
    with pytest.raises(RuntimeError, match=rf"^{re.escape(what)}.*: the weights.*unstream\(\) loads them all"):
        USES[what](model)
    model.eval()
    assert torch.equal(run(model, ids), expected)


class Bias(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.ones(64))

    def forward(self, x):
        return x + self.bias


def test_backward_through_a_streamed_unit_is_refused_and_never_gives_gradients_of_other_weights(saved, tmp_path):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory=total // 2)
    out = model(ids)  # in grad mode
    assert torch.equal(out, expected) and out.requires_grad
    with pytest.raises(RuntimeError, match=r"^backward\(\): the weights of this model are streamed"):
        out.sum().backward()
    model.requires_grad_(False)
    assert not model(ids).requires_grad
    x = torch.ones(1, 64, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^backward\(\)"):  # the gradient of x needs the weights
        model.layers[1](x).sum().backward()
    with pytest.raises(RuntimeError, match=r"^backward\(\)"):
        model.requires_grad_(True).embed(ids).sum().backward()

    penstock.save({f"{i}.bias": torch.full((64,), float(i)) for i in range(40)}, tmp_path / "bias.safetensors")
    with torch.device("meta"):
        adds = torch.nn.ModuleList(Bias() for _ in range(40))
    penstock.stream(adds, tmp_path / "bias.safetensors", memory=40 << 13, units=[str(i) for i in range(40)])
    with pytest.raises(RuntimeError, match=r"^backward\(\)"):  # torch saves nothing for a sum
        adds[3](torch.ones(64)).sum().backward()


@pytest.mark.parametrize("modes", [(torch.inference_mode, torch.enable_grad), (torch.no_grad, torch.inference_mode)])
def test_passes_in_any_mode_follow_one_another(saved, modes):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory=total // 2)
    for mode in modes * 2:
        with mode():
            assert torch.equal(model(ids), expected)


CHILD = """
import os, sys, threading
import penstock, torch

def sequence(): return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
torch.manual_seed(1)
whole = sequence().eval()
penstock.save(whole.state_dict(), "model.safetensors")
with torch.device("meta"): empty = sequence()
model = penstock.stream(empty, "model.safetensors", memory=60_000)
x = torch.ones(1, 64)
with torch.no_grad():
    expected = whole(x)
    assert torch.equal(model(x), expected)
entered, leave = threading.Event(), threading.Event()
def hold():
    with torch.no_grad():
        model.register_forward_pre_hook(lambda *_: entered.set() or leave.wait() and None)
        model(x)
holder = threading.Thread(target=hold)
holder.start()
assert entered.wait(60)
child = os.fork()  # while another thread has the model
if child == 0:
    for use in (lambda: model(x), lambda: model[2](x), model.unstream, lambda: model.set_memory(80_000)):
        try:
            use()
        except penstock.Unsupported as error:
            assert "after fork()" in str(error), error
        else:
            os._exit(3)
    with torch.device("meta"): again = sequence()
    with torch.no_grad():
        assert torch.equal(penstock.stream(again, "model.safetensors", memory=60_000)(x), expected)
    sys.exit(0)  # objects are destroyed
leave.set()
holder.join()
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 0, status
with torch.no_grad():
    for _ in range(3):
        assert torch.equal(model(x), expected)
print("the parent goes on")
"""


def test_a_child_of_fork_gets_an_error_and_the_parent_goes_on(run_script):
    assert run_script(CHILD, timeout_s=300) == "the parent goes on\n"


def shards_of(path):
    return sorted(path.parent.glob("*.safetensors"))


def cut(shard):
    with open(shard, "r+b") as file:
        file.truncate(shard.stat().st_size - 100)


def with_header(shard, change):
    """Writes another header over a shard's, of the same length."""
    data = bytearray(shard.read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= length
    data[8 : 8 + length] = text.ljust(length)
    shard.write_bytes(data)


def swap_names(header):
    names = [name for name in header if name != "__metadata__"]
    header["swapped"] = header.pop(names[0])


def too_long(header):
    name = [name for name in header if name != "__metadata__"][-1]
    header[name]["data_offsets"][1] += 4


def other_shape(header):
    name = [name for name in header if name != "__metadata__"][0]
    header[name]["shape"] = [1]


DAMAGES = {
    "missing": (lambda shard: shard.unlink(), FileNotFoundError),
    "cut short": (cut, penstock.Damaged),
    "empty": (lambda shard: shard.write_bytes(b""), penstock.Damaged),
    "lying about a name": (lambda shard: with_header(shard, swap_names), penstock.Damaged),
    "lying about a length": (lambda shard: with_header(shard, too_long), penstock.Damaged),
    "lying about a shape": (lambda shard: with_header(shard, other_shape), penstock.Damaged),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_shard_that_is_not_what_the_index_says_is_refused_at_the_call(saved, damage):
    path, _, _, total = saved
    harm, kind = DAMAGES[damage]
    shard = shards_of(path)[1]
    harm(shard)
    with pytest.raises(kind) as refused:
        penstock.stream(on_meta(), path, memory=total // 2)
    assert shard.name in str(refused.value)


def test_a_budget_follows_the_memory_that_is_left(saved):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory="auto")
    core = model._penstock_weights.core
    assert torch.equal(run(model, ids), expected)
    model.set_memory(total // 2)
    least = model._penstock_weights.least
    for reserve, reached in (
        (1 << 60, lambda plan: plan["memory_bytes"] <= least),
        (0, lambda plan: not plan["read_bytes"]),
    ):
        core.set_memory(core.plan()["memory_bytes"], reserve)
        deadline = time.monotonic() + 60
        while not reached(core.plan()):
            assert torch.equal(run(model, ids), expected) and time.monotonic() < deadline
    model.set_memory("auto")
    assert torch.equal(run(model, ids), expected)


def test_wrong_models_are_refused_by_name(saved, tmp_path):
    path, _, _, total = saved
    for model, message, kind in [
        (on_meta(layers=6), "layers.5.scale", KeyError),
        (on_meta(width=32), r"shape \[500, 32\].*\[500, 64\]", ValueError),
        (Model(), "in memory already", ValueError),
        ("model", "expected a torch.nn.Module", TypeError),
    ]:
        with pytest.raises(kind, match=message):
            penstock.stream(model, path, memory=total)
    for wrong in ({"memory": 1.5}, {"memory": "much"}, {"memory": total, "slots": 1}):
        with pytest.raises((TypeError, ValueError), match="stream: (memory|slots)"):
            penstock.stream(on_meta(), path, **wrong)
    with pytest.raises(ValueError, match="has no .safetensors file"):
        (tmp_path / "empty").mkdir()
        penstock.stream(on_meta(), tmp_path / "empty", memory=total)
    model = penstock.stream(on_meta(), path, memory=total)
    with pytest.raises(ValueError, match="streamed already"):
        penstock.stream(model, path, memory=total)
    with pytest.raises(IndexError, match="there are 500"):
        penstock.stream(on_meta(), path, memory=total // 2)(torch.tensor([500]))


class Mixture(torch.nn.Module):
    """A layer whose router calls two of its experts."""

    def __init__(self, width=64, experts=6):
        super().__init__()
        self.gate = torch.nn.Linear(width, experts)
        self.experts = torch.nn.ModuleList(Layer(width) for _ in range(experts))

    def forward(self, x):
        for number in self.gate(x).sum((0, 1)).topk(2).indices.tolist():
            x = self.experts[number](x)
        return x


def test_experts_in_a_list_are_read_when_they_are_called(tmp_path):
    torch.manual_seed(5)
    whole = torch.nn.Sequential(Mixture(), Mixture(), Mixture())
    penstock.save(whole.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = torch.nn.Sequential(Mixture(), Mixture(), Mixture())
    total = sum(parameter.nbytes for parameter in whole.parameters())
    penstock.stream(model, tmp_path, memory=total // 4)
    inputs = torch.randn(8, 1, 3, 64)
    with torch.no_grad():
        for x in inputs:
            assert torch.equal(model(x), whole(x))
    stats = model.stream_stats()
    assert stats.acquired <= 8 * 3 * 3 and "0.experts.5" in stats.stall_s  # a layer, two of its experts
    assert stats.bytes_read < 8 * stats.plan["read_bytes"] * 4 // 5


class Own(torch.nn.Module):
    """Its parameter is its own, next to a child without parameters."""

    def __init__(self, width=64):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, width))
        self.act = torch.nn.ReLU()

    def forward(self, x):
        return self.act(x @ self.weight)


def test_parameters_next_to_children_without_any_are_streamed(tmp_path):
    torch.manual_seed(2)
    whole = torch.nn.Sequential(*(Own() for _ in range(6)))
    penstock.save(whole.state_dict(), tmp_path / "model.safetensors")

    def streamed(memory):
        with torch.device("meta"):
            model = torch.nn.Sequential(*(Own() for _ in range(6)))
        return penstock.stream(model, tmp_path, memory=memory)

    with pytest.raises(MemoryError, match="the least that works for this model is") as refused:
        streamed(1000)
    least = int(str(refused.value).split("the least that works for this model is ")[1].split()[0])
    assert least <= 2 * (64 * 64 * 4 + 8192)  # two of the six
    model = streamed(least)
    x = torch.randn(3, 64)
    with torch.no_grad():
        assert torch.equal(model(x), whole(x))
    assert model.stream_stats().bytes_read >= 4 * 64 * 64 * 4
