# SPDX-License-Identifier: Apache-2.0
"""Modules and files that a stranger tried on penstock.stream(): results, changes and calls of a layer, parameters that
are assigned to, files that are replaced. The outcome is that of torch, or an error; never bytes of another layer."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import penstock
import pytest

torch = pytest.importorskip("torch")

from penstock.weights import _stream, _turns  # noqa: E402

nn, WIDTH = torch.nn, 64


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Model(nn.Module):
    def __init__(self, layer=Layer, layers=6):
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Streamed:
    """A model in memory, and the same one streamed by a budget."""

    def __init__(self, folder, make, **more):
        torch.manual_seed(0)
        self.make, self.path, self.more = make, str(folder / "model.safetensors"), more
        self.inner = make().eval()
        self.x = torch.randn(4, WIDTH)
        self.save(self.inner.state_dict())

    def save(self, state):
        """As safetensors.torch.save_model(): what is shared is saved once."""
        first = {one.data_ptr(): name for name, one in reversed(state.items())}
        penstock.save({name: one for name, one in state.items() if first[one.data_ptr()] == name}, self.path)

    def stream(self, memory):
        with torch.device("meta"):
            model = self.make()
        return penstock.stream(model, self.path, memory=memory, **self.more)

    @property
    def budgets(self):
        """The least, one between, all."""
        with pytest.raises(MemoryError) as caught:
            self.stream(0)
        least = int(re.search(r"is (\d+) bytes", str(caught.value)).group(1))
        every = sum(one.nbytes for one in self.inner.state_dict().values()) + (1 << 20)
        return least, (least + every) // 2, every

    def is_as_in_memory(self):
        for memory in self.budgets:
            model = self.stream(memory)
            for _ in range(3):
                assert torch.equal(model(self.x), self.inner(self.x)), memory
            assert torch.equal(model.unstream()(self.x), self.inner(self.x)), memory


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def case(tmp_path):
    return lambda make=Model, **more: Streamed(tmp_path, make, **more)


# ---- what a call returns


class Positions(nn.Module):
    def __init__(self, returns):
        super().__init__()
        self.table, self.returns = nn.Parameter(torch.randn(512, WIDTH)), returns

    def forward(self, x):
        return self.returns(self.table, len(x))


RETURNS = {
    "a view": lambda table, count: table[:count],
    "the parameter": lambda table, count: table,
    "an expanded row": lambda table, count: table[:1].expand(count, -1),
    "inside others": lambda table, count: {"all": (table[:count], None)},
}


@pytest.mark.parametrize("returns", RETURNS.values(), ids=RETURNS)
def test_a_module_returns_its_weight(case, returns):
    class WithPositions(Model):
        def __init__(self):
            super().__init__()
            self.positions = Positions(returns)

        def forward(self, x):
            found = self.positions(x)
            found = found["all"][0] if isinstance(found, dict) else found
            for layer in self.layers:
                x = layer(x + found[: len(x)])
            return x

    case(WithPositions).is_as_in_memory()


def test_an_output_that_is_no_weight_is_the_same_object(case):
    class Result(dict):
        pass

    class Gives(Layer):
        def forward(self, x):
            self.given = Result(x=super().forward(x))
            return self.given

    class Takes(Model):
        def __init__(self):
            super().__init__(Gives)

        def forward(self, x):
            for layer in self.layers:
                found = layer(x)
                assert found is layer.given
                x = found["x"]
            return x

    case(Takes).is_as_in_memory()


# ---- what it changes and keeps


@pytest.mark.parametrize("which", range(3), ids=["least", "between", "all"])
def test_a_layer_that_changes_its_weight_is_refused(case, which):
    class Counts(Layer):
        def __init__(self):
            super().__init__()
            self.count = nn.Parameter(torch.zeros(256, WIDTH))

        def forward(self, x):
            self.count.add_(1)
            return super().forward(x) + self.count.mean()

    made = case(lambda: Model(Counts))
    model = made.stream(made.budgets[which])
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"layers\.0\.count was changed by a call of 'layers\.0.*unstream"):
            model(made.x)
    assert torch.equal(model.unstream()(made.x), made.inner(made.x))


class KeepsWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        return grad @ ctx.weight, None


def test_backward_of_a_function_that_keeps_the_weight_is_refused(case):
    class Fused(Layer):
        def forward(self, x):
            return KeepsWeight.apply(x, self.linear.weight)

    made = case(lambda: Model(Fused).requires_grad_(False))
    for memory in made.budgets:
        with torch.enable_grad():
            out = made.stream(memory)(made.x.clone().requires_grad_())
            with pytest.raises(RuntimeError, match=r"backward\(\)"):
                out.sum().backward()


# ---- assignments


def replaced(model, values):
    model.layers.load_state_dict({name.removeprefix("layers."): one for name, one in values.items()}, assign=True)


def replaced_by_a_parent(model, values):
    parent = nn.Sequential(model)
    parent.load_state_dict({f"0.{name}": one for name, one in values.items()}, assign=True)


def set_by_hand(model, values):
    model.layers[2].linear.weight = nn.Parameter(values["layers.2.linear.weight"])


@pytest.mark.parametrize("assign", [replaced, replaced_by_a_parent, set_by_hand])
def test_an_assigned_parameter_is_refused_and_not_lost(case, assign):
    made = case()
    values = {name: one + 1 for name, one in made.inner.state_dict().items()}
    model = made.stream(made.budgets[0])
    model(made.x)
    assign(model, values)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"layers\.\d\.linear\.\w+ was assigned to.*unstream"):
            model(made.x)
    assign(made.inner, values)
    assert torch.equal(model.unstream()(made.x), made.inner(made.x))


def test_functional_call_is_refused_and_the_next_pass_is_right(case):
    made = case()
    model = made.stream(made.budgets[0])
    with pytest.raises(RuntimeError, match=r"layers\.2\.linear\.weight was assigned to"):
        torch.func.functional_call(model, {"layers.2.linear.weight": torch.zeros(WIDTH, WIDTH)}, (made.x,))
    assert torch.equal(model(made.x), made.inner(made.x))


# ---- what calls what


class Recursive(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, depth=2):
        y = self.a(x)
        return self.b(self(y, depth - 1) if depth else y)


@pytest.mark.parametrize("units", [None, [f"layers.{i}" for i in range(4)]], ids=["found", "named"])
def test_a_module_that_calls_itself(case, units):
    case(lambda: Model(Recursive, 4), units=units).is_as_in_memory()


class Shares(nn.Module):
    """Calls a module that the model calls too, and uses its weight."""

    def __init__(self, shared):
        super().__init__()
        self.shared, self.own = shared, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.shared(self.own(self.shared(x))) + x @ self.shared.weight)


class SharesAll(Model):
    def __init__(self):
        shared = nn.Linear(WIDTH, WIDTH)
        super().__init__(lambda: Shares(shared), 4)
        self.shared = shared

    def forward(self, x):
        return self.shared(super().forward(x))


def test_a_child_of_several_layers_is_a_unit_too(case):
    case(SharesAll, units=["layers.0.shared", *(f"layers.{i}" for i in range(1, 4))]).is_as_in_memory()


def test_the_whole_model_is_the_unit(case):
    case(units=[""]).is_as_in_memory()


@pytest.mark.parametrize("call", ["unstream()", "set_memory()"])
def test_a_layer_ends_nothing_while_it_runs(case, call):
    made = case()
    model = made.stream(made.budgets[2])
    end = model.unstream if call == "unstream()" else lambda: model.set_memory(made.budgets[0])
    hook = model.layers[2].linear.register_forward_hook(lambda *_: end())
    if call == "unstream()":
        with pytest.raises(RuntimeError, match=r"unstream\(\): 'layers\.2' is being called"):
            model(made.x)
    else:
        assert torch.equal(model(made.x), made.inner(made.x))
    hook.remove()
    assert torch.equal(model(made.x), made.inner(made.x))
    assert torch.equal(model.unstream()(made.x), made.inner(made.x))


def test_layers_in_threads_of_forward_are_refused_and_do_not_hang(case, monkeypatch):
    monkeypatch.setattr(_turns, "_STANDS_S", 0.5)

    class Branches(Model):
        def forward(self, x):
            with ThreadPoolExecutor(2) as threads:
                one, other = threads.map(lambda layer: layer(x), self.layers[:2])
            return self.layers[2](one) + other

    made = case(Branches)
    model = made.stream(made.budgets[0])
    with pytest.raises(RuntimeError, match="calls a streamed model and its layers"):
        model(made.x)
    assert torch.equal(model.layers[3](made.x), made.inner.layers[3](made.x))


def test_a_pass_that_goes_on_is_waited_for(case, monkeypatch):
    monkeypatch.setattr(_turns, "_STANDS_S", 3.0)
    made = case()
    model = made.stream(made.budgets[0])

    def passes(_):
        with torch.no_grad():
            return all(torch.equal(model(made.x), made.inner(made.x)) for _ in range(20))

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(passes, range(3)))


COMPILED = """
import sys
import torch, penstock
from test_weights_hostile import Model, Streamed
from pathlib import Path
assert "torch._dynamo" not in sys.modules
made = Streamed(Path(sys.argv[1]), Model)
with torch.no_grad():
    model = made.stream(made.budgets[0])
    assert torch.equal(torch.compile(model, backend="eager")(made.x), made.inner(made.x))
    model.layers[1].compile(backend="eager")
    for _ in range(2):
        assert torch.equal(model(made.x), made.inner(made.x))
"""


def test_a_compiler_that_is_imported_later_traces_no_reads(tmp_path):
    program = [sys.executable, "-c", textwrap.dedent(COMPILED), str(tmp_path)]
    env = os.environ | {"PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run(program, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


# ---- classes, buffers


class Tagged(nn.Module):
    def __init_subclass__(cls, *, tag, **more):
        super().__init_subclass__(**more)


class TaggedModel(Tagged, tag="x"):
    forward = Model.forward

    def __init__(self):
        nn.Module.__init__(self)
        self.layers = nn.ModuleList(Layer() for _ in range(6))


def test_a_class_whose_subclasses_want_an_argument(case):
    case(TaggedModel).is_as_in_memory()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_refused(case):
    with pytest.raises(TypeError, match=r"torch\.jit"):
        penstock.stream(torch.jit.script(nn.Linear(2, 2)), case().path, memory=1 << 20)


class Masked(Layer):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, x):
        return super().forward(x) * self.mask


class MaskedModel(Model):
    def __init__(self):
        mask = torch.rand(WIDTH)
        super().__init__(lambda: Masked(mask))


def test_a_buffer_that_layers_share_is_saved_once(case):
    case(MaskedModel).is_as_in_memory()


def test_a_buffer_of_another_shape_is_refused(case):
    made = case(MaskedModel)
    made.save(made.inner.state_dict() | {"layers.0.mask": torch.ones(5, WIDTH)})
    with pytest.raises(ValueError, match=r"layers\.0\.mask: the model wants the shape \[64\].*\[5, 64\]"):
        made.stream(1 << 24)


# ---- embeddings


class Embeds(Model):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(3000, WIDTH)

    def forward(self, x, ids=None):
        ids = torch.arange(len(x)) if ids is None else ids
        return super().forward(x + self.embed(ids))


def test_ids_that_torch_refuses_are_refused(case):
    made = case(Embeds)
    model = made.stream(made.budgets[0])
    for ids in (torch.tensor([2.7] * 4), torch.tensor([1] * 4, dtype=torch.int16)):
        with pytest.raises(RuntimeError, match="Expected tensor for argument"):
            made.inner(made.x, ids)
        with pytest.raises(RuntimeError, match="Expected tensor for argument"):
            model(made.x, ids)
    with pytest.raises((RuntimeError, IndexError)):
        model.embed.weight.index_select(0, torch.tensor([[1, 2]]))
    row = model.embed.weight.index_select(0, torch.tensor(5))
    assert torch.equal(row, made.inner.embed.weight.index_select(0, torch.tensor(5)))


# ---- files


def other(made):
    torch.manual_seed(1)
    return made.make().state_dict()


def replace(made):
    penstock.save(other(made), made.path)


def overwrite(made):
    penstock.save(other(made), made.path + ".new")
    shutil.copyfile(made.path + ".new", made.path)


def remove(made):
    os.remove(made.path)


@pytest.mark.parametrize("change", [replace, overwrite, remove])
def test_files_that_changed_are_not_mixed(case, change):
    made = case(lambda: Model(Recursive, 4))
    least, _, every = made.budgets
    model = made.stream(every)
    model(made.x)
    shutil.copy2(made.path, made.path + ".kept")
    change(made)
    with pytest.raises(penstock.Damaged, match="since stream"):
        model.set_memory(least)  # divides the units
    with pytest.raises(penstock.Damaged, match="since stream"):
        model.unstream()
    if change is not overwrite:  # the file is still open
        assert torch.equal(model(made.x), made.inner(made.x))


def test_a_file_that_was_moved_and_put_back(case):
    made = case()
    model = made.stream(made.budgets[0])
    os.rename(made.path, made.path + ".away")
    with pytest.raises(penstock.Damaged, match="was removed"):
        model.unstream()
    os.rename(made.path + ".away", made.path)
    assert torch.equal(model.unstream()(made.x), made.inner(made.x))


# ---- the budget changes


def test_layers_that_share_bytes_of_a_file(case):
    """One may leave the memory while another stays."""
    made = case()
    for one in range(1, 6):
        made.inner.layers[one].linear.load_state_dict(made.inner.layers[one // 2].linear.state_dict())
    state = made.inner.state_dict()
    for one in range(1, 6):
        for name in ("weight", "bias"):
            state[f"layers.{one}.linear.{name}"] = state[f"layers.{one // 2}.linear.{name}"]
    made.path += ".pt"
    torch.save(state, made.path)
    least, _, every = made.budgets
    model = made.stream(every)
    for step in range(20):
        model.set_memory(least + (every - least) * (step * 7 % 20) // 20)
        assert torch.equal(model(made.x), made.inner(made.x)), step


def _interrupted(model, x, function, line):
    """Runs a pass, which Ctrl-C ends at this line of a function. False if it has no such line."""

    def trace(frame, event, _):
        if frame.f_code is not function.__code__:
            return None
        return at_line

    def at_line(frame, event, _):
        if event == "line" and frame.f_lineno == line:
            raise KeyboardInterrupt
        return at_line

    sys.settrace(trace)
    try:
        model(x)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_a_pass_after_one_that_ctrl_c_ended_is_right(case):
    made = case()
    least = made.budgets[0]
    budgets = least, least + 20_000  # layers are read in both
    model = made.stream(least)
    function = _stream._Weights._bound
    first = function.__code__.co_firstlineno
    ended = 0
    for line in range(first + 1, first + 15):
        for memory in budgets:  # each changes the addresses of the weights
            model.set_memory(memory)
            ended += _interrupted(model, made.x, function, line)
            assert torch.equal(model(made.x), made.inner(made.x)), line - first
    assert ended > 10


def test_a_weight_that_a_layer_used_before_the_budget_changed(case):
    made = case()
    least, _, every = made.budgets
    model = made.stream(every)
    weight, used = model.layers[5].linear.weight, []

    def change(module, _):
        if not used:
            model.set_memory(least)  # in force with the next layer
            used.append(weight * 1)

    model.layers[0].linear.register_forward_pre_hook(change)
    assert torch.equal(model(made.x), made.inner(made.x))
    assert torch.equal(used[0], made.inner.layers[5].linear.weight)
    model(made.x)
    with pytest.raises(RuntimeError, match=r"layers.5.linear.weight was used by"):
        weight * 1
