# SPDX-License-Identifier: Apache-2.0
"""Plain modules that are streamed give the bits that they give in memory; the models of transformers are in
tests/deepspeed."""

import copy
import pickle
import threading

import penstock
import pytest

torch = pytest.importorskip("torch")


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
    assert model.layers[0].up.weight.is_meta and isinstance(model, Model)
    model.unstream()
    assert type(model) is Model and model.head.weight is model.embed.weight
    assert torch.equal(run(model, ids), expected) and not any(p.is_meta for p in model.parameters())


def test_budgets_may_change(saved):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory=total // 2)
    for memory in (total, total // 2, "10MiB", total * 2 // 3):
        model.set_memory(memory)
        assert torch.equal(run(model, ids), expected)
    with pytest.raises(MemoryError, match="too small"):
        model.set_memory(10)
    assert torch.equal(run(model, ids), expected)


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
        assert model.layers[0].up.weight.is_meta and model.layers[1].up.weight.is_meta
        assert torch.equal(run(model, ids), expected)
    found = []
    other = threading.Thread(target=lambda: found.append(run(model, ids)), daemon=True)
    other.start()
    other.join(30)
    assert found and torch.equal(found[0], expected)
    assert model.layers[0].up.weight.is_meta


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
    assert model.layers[0].up.weight.is_meta


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


@pytest.mark.parametrize(
    "use", [lambda m: m.train(), lambda m: m.state_dict(), lambda m: m.to("cpu"), pickle.dumps, copy.deepcopy]
)
def test_what_needs_all_weights_is_refused(saved, use):
    path, ids, expected, total = saved
    model = penstock.stream(on_meta(), path, memory=total // 2)
    with pytest.raises(RuntimeError, match=r"unstream\(\) loads them all"):
        use(model)
    model.eval()
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
    with pytest.raises(FileNotFoundError, match="has no .safetensors file"):
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
