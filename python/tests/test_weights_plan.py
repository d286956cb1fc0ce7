# SPDX-License-Identifier: Apache-2.0
"""penstock.weights.plan() says what stream() then does."""

import copy
from random import Random

import penstock
import pytest

torch = pytest.importorskip("torch")


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(500, 64)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(12))
        self.head = torch.nn.Linear(64, 500, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.fixture
def saved(tmp_path):
    model = Model()
    penstock.save(model.state_dict(), tmp_path / "model.safetensors")
    return tmp_path, sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8, 2.0])
def test_the_plan_is_what_stream_does(saved, share):
    folder, total = saved
    memory = int(share * total)
    plan = penstock.weights.plan(folder, memory, rate=1e9)
    with torch.device("meta"):
        model = Model()
    penstock.stream(model, folder, memory=memory)
    real = model.stream_stats().plan
    assert plan.weight_bytes == total and plan.memory_bytes == memory
    assert abs(plan.read_bytes - real["read_bytes"]) <= total / 50
    assert plan.used_bytes <= memory and (share > 1 or plan.used_bytes >= 0.95 * memory)
    assert (plan.rows == ("embed.weight",)) == (share < 1)
    assert plan.seconds == pytest.approx(plan.read_bytes / 1e9)
    assert sum(unit.read_bytes for unit in plan.units) == plan.read_bytes


class Block(torch.nn.Module):
    """A module of others, at random: layers, lists, parameters of its own, and small ones."""

    def __init__(self, random, depth):
        super().__init__()
        if random.random() < 0.3:
            self.scale = torch.nn.Parameter(torch.ones(random.choice((1, 700))))
        for number in range(random.randint(1, 3)):
            kind = random.choice(("linear", "linear", "norm", "block", "list") if depth else ("linear", "norm"))
            self.add_module(f"{kind}_{number}", self._child(kind, random, depth))

    def forward(self, x):
        return x

    @staticmethod
    def _child(kind, random, depth):
        width = random.choice((16, 32, 64))
        if kind == "linear":
            return torch.nn.Linear(width, random.choice((16, 64, 128)), bias=random.random() < 0.5)
        if kind == "norm":
            return torch.nn.LayerNorm(width)
        if kind == "block":
            return Block(random, depth - 1)
        return torch.nn.ModuleList(Block(random, depth - 1) for _ in range(random.randint(1, 4)))


@pytest.mark.parametrize("seed", range(40))
def test_the_units_of_random_models_are_those_of_the_stream(seed, tmp_path):
    random = Random(seed)
    model = torch.nn.Module()
    rows = random.choice((10, 400))
    if random.random() < 0.7:
        model.embed = torch.nn.Embedding(rows, 64)
    model.layers = torch.nn.ModuleList(Block(random, random.randint(0, 3)) for _ in range(random.randint(1, 6)))
    model.outer = Block(random, random.randint(0, 2))
    model.head = torch.nn.Linear(64, rows)
    penstock.save(model.state_dict(), tmp_path / "model.safetensors")
    total = sum(parameter.nbytes for parameter in model.parameters())
    least = penstock.weights.plan(tmp_path, "1GiB").least_memory_bytes
    for memory in (least, least + 1, random.randint(least, least + total), 4 * total + (1 << 20)):
        plan = penstock.weights.plan(tmp_path, memory)
        streamed = copy.deepcopy(model).to("meta")
        penstock.stream(streamed, tmp_path, memory=memory)
        real = streamed.stream_stats().plan
        units = sorted((unit.name, unit.bytes) for unit in plan.units)  # the file has an order of its own
        assert units == sorted((name, nbytes) for name, nbytes, _ in real["units"])
        assert (plan.slots, plan.slot_bytes, plan.read_bytes) == (real["slots"], real["slot_bytes"], real["read_bytes"])
        assert plan.used_bytes - real["used_bytes"] == plan.memory_bytes - real["memory_bytes"]
    with pytest.raises(MemoryError):
        penstock.stream(copy.deepcopy(model).to("meta"), tmp_path, memory=least - 1)


def test_the_least_that_works_works(saved):
    folder, _ = saved
    least = penstock.weights.plan(folder, "1GiB").least_memory_bytes
    assert penstock.weights.plan(folder, least).used_bytes <= least
    with pytest.raises(MemoryError, match=rf"\({least} bytes\)"):
        penstock.weights.plan(folder, least - 1)


def test_rates_and_computation(saved):
    folder, total = saved
    plan = penstock.weights.plan(folder, total // 2)
    assert plan.rate is None and plan.seconds is None
    assert penstock.weights.plan(folder, total // 2, rate="2GB/s").rate == 2e9
    assert penstock.weights.plan(folder, total // 2, rate="measured").rate > 0
    assert penstock.weights.plan(folder, total // 2, rate=1e9, compute_s=3).seconds == pytest.approx(3, rel=0.2)


def test_computing_is_measured(saved):
    folder, total = saved
    plan = penstock.weights.plan(folder, total // 2, rate=1e12, compute_s="measured")
    assert plan.token_bytes == total - 500 * 64 * 4  # an embedding gives a row
    assert 0 < plan.compute_s < 10 and plan.seconds == pytest.approx(plan.compute_s, rel=0.5)
    assert penstock.weights.plan(folder, total // 2, compute_s=0.5).compute_s == 0.5


@pytest.mark.parametrize("state", [{"a.weight": torch.zeros(3)}, {"a.weight": torch.zeros(2, 3, dtype=torch.int8)}])
def test_computing_is_measured_where_there_are_no_products(state, tmp_path):
    penstock.save(state, tmp_path / "model.safetensors")
    assert penstock.weights.plan(tmp_path, "1MiB", rate=1e9, compute_s="measured").compute_s > 0


def mixture(folder, layers=4, experts=8):
    state = {}
    for layer in range(layers):
        state[f"model.layers.{layer}.attention.weight"] = torch.zeros(100, 100)
        for number in range(experts):
            state[f"model.layers.{layer}.mlp.experts.{number}.up.weight"] = torch.zeros(100, 100)
    penstock.save(state, folder / "model.safetensors")
    return sum(tensor.nbytes for tensor in state.values())


def test_of_a_mixture_experts_are_counted_that_a_token_uses(tmp_path):
    total = mixture(tmp_path)
    read = {}
    for chosen in (None, 1, 2, 8):
        plan = penstock.weights.plan(tmp_path, total // 2, experts=chosen)
        assert (plan.experts.experts, plan.experts.layers) == (32, 4)
        assert plan.experts.chosen == 4 * (chosen or 8)
        assert plan.experts.hits == plan.experts.slots / 32
        assert plan.used_bytes <= total // 2
        read[chosen] = plan.read_bytes
    assert read[None] == read[8] and read[2] == pytest.approx(2 * read[1], abs=10)
    (tmp_path / "config.json").write_text('{"num_experts_per_tok": 2}')
    assert penstock.weights.plan(tmp_path, total // 2).read_bytes == read[2]
    assert penstock.weights.plan(tmp_path, 2 * total).experts is None
    (tmp_path / "config.json").write_text('{"num_experts_per_tok": ')
    with pytest.raises(penstock.Damaged, match=r"config\.json"):
        penstock.weights.plan(tmp_path, total // 2)


def test_wrong_arguments_are_named(saved, tmp_path):
    folder, total = saved
    for wrong, error, message in [
        ({"rate": "fast"}, ValueError, "plan: rate"),
        ({"rate": 0}, ValueError, "more than 0"),
        ({"rate": b"1"}, TypeError, "expected bytes a second"),
        ({"compute_s": -1}, ValueError, "plan: compute_s"),
        ({"compute_s": "fast"}, ValueError, 'seconds or "measured"'),
        ({"slots": 1}, ValueError, "plan: slots"),
        ({"experts": 0}, ValueError, "plan: experts"),
        ({"experts": 1.5}, TypeError, "plan: experts"),
    ]:
        with pytest.raises(error, match=message):
            penstock.weights.plan(folder, total, **wrong)
    with pytest.raises(ValueError, match="plan: folder: got an empty list"):
        penstock.weights.plan([], total)
    with pytest.raises(TypeError, match="plan: memory"):
        penstock.weights.plan(folder, 1.5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no .safetensors file"):
        penstock.weights.plan(tmp_path / "empty", total)
