# SPDX-License-Identifier: Apache-2.0
"""Weights outside the call of their unit: the model gives the bits that it gives in memory, or an error with the name
of the weight. Never values that nobody wrote."""

import copy
import gc
import io
import os
import re
import signal
import threading
import time
import weakref

import numpy
import penstock
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

    def go(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Layers(nn.Module):
    """Its forward() gives the layers something to do between an embedding and use(), which uses weights directly."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 64)
        self.layers = nn.ModuleList(Layer() for _ in range(5))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.use(x, ids)

    def use(self, x, ids):
        return x


class TiedHead(Layers):
    def use(self, x, ids):
        return functional.linear(x, self.embed.weight)


class OtherRows(nn.Embedding):
    """As the positions of OPT and BART: a subclass that looks up other rows than it is asked for."""

    def forward(self, ids):
        return super().forward(ids + 2) + self.weight[1:3].sum() + self.weight[ids[0]] + self.weight[-1]


class Positions(Layers):
    def __init__(self):
        super().__init__()
        self.embed = OtherRows(300, 64)


class Padding(Layers):
    """As Gemma 4: a row of an embedding that is called, too."""

    def use(self, x, ids):
        return x - self.embed.weight[1, :]


class Parameters(Layers):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.randn(64, 64)) for _ in range(3))

    def use(self, x, ids):
        for scale in self.scales:
            x = torch.tanh(x @ scale)
        return x


class Relative(Layers):
    """Uses the weight of a child that it never calls, through a property and a method."""

    def __init__(self):
        super().__init__()
        self.relative, self.conv = nn.Embedding(64, 64), nn.Conv1d(64, 64, 3, groups=64)

    @property
    def table(self):
        return self.relative.weight

    def use(self, x, ids):
        x = (x @ self.table).transpose(1, 2)
        return functional.conv1d(x, self.conv.weight, self.conv.bias, padding=1, groups=64)


class Norm(Layer):
    def __init__(self):
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(64, 64, 3, padding=1, groups=64))
        self.router = Layer()

    def forward(self, x):
        x = x * self.conv.bias + self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.router.go(super().forward(x))


class Norms(Layers):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Norm() for _ in range(5))


class Shared(Layers):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([self.layers[0], self.layers[1]] * 3)


class Encoder(Layers):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        self.layers = nn.ModuleList([nn.TransformerEncoder(layer, 3), nn.LSTM(64, 64)])

    def forward(self, ids):
        return self.layers[1](self.layers[0](self.embed(ids)))[0]


class Methods(Layers):
    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer.go(x)
        return x


IDS = torch.tensor([[1, 2, 3], [290, 2, 1]])


def on_meta(cls):
    with torch.device("meta"):
        return cls().eval()


def saved(cls, folder):
    """A model in memory; its tensors once each; their bytes."""
    torch.manual_seed(3)
    model = cls().eval()
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    penstock.save(state, folder / "model.safetensors")
    return model, sum(tensor.nbytes for tensor in state.values())


def least(cls, folder):
    with pytest.raises(MemoryError) as refused:
        penstock.stream(on_meta(cls), folder, memory=0)
    return int(re.search(r"the least that works for this model is (\d+)", str(refused.value))[1])


@pytest.mark.parametrize("cls", [TiedHead, Positions, Padding, Parameters, Relative, Norms, Shared, Encoder])
def test_weights_that_other_modules_use_are_there(cls, tmp_path):
    model, total = saved(cls, tmp_path)
    small = least(cls, tmp_path)
    for memory in (small, max(small, total * 6 // 10), 4 * total, "auto"):
        streamed = penstock.stream(on_meta(cls), tmp_path, memory=memory)
        with torch.no_grad():
            for _ in range(2):
                assert torch.equal(streamed(IDS), model(IDS))
        streamed.unstream()
        with torch.no_grad():
            assert torch.equal(streamed(IDS), model(IDS))
        assert not any("forward" in module.__dict__ for module in streamed.modules())


def test_an_embedding_that_is_looked_up_is_read_by_row(tmp_path):
    _, total = saved(Padding, tmp_path)
    rows, tied = (penstock.stream(on_meta(cls), tmp_path, memory=total * 8 // 10) for cls in (Padding, TiedHead))
    for streamed in (rows, tied):
        with torch.no_grad():
            streamed(IDS)
    assert rows.stream_stats().rows_bytes_read == (4 + 1) * 64 * 4 and tied.stream_stats().rows_bytes_read == 0


def test_a_layer_that_is_not_called_names_the_weight_and_what_to_do(tmp_path):
    model, total = saved(Methods, tmp_path)
    streamed = penstock.stream(on_meta(Methods), tmp_path, memory=total // 2)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"^layers\.\d\.up\.weight was .* while 'layers.*units="):
        streamed(IDS)
    units = [f"layers.{layer}.{part}" for layer in range(5) for part in ("up", "down")]
    with torch.no_grad():
        for more in ({"memory": total * 8 // 10, "units": units}, {"memory": 2 * total}):
            streamed = penstock.stream(on_meta(Methods), tmp_path, **more)
            assert torch.equal(streamed(IDS), model(IDS))
        streamed.set_memory(total // 2)  # what was in memory as a whole is no longer
        with pytest.raises(RuntimeError, match=r"^layers\.\d\.(up|down)\.weight was used"):
            streamed(IDS)
        streamed.set_memory(2 * total)
        assert torch.equal(streamed(IDS), model(IDS))
        streamed.set_memory("auto")  # which may change at any time
        assert torch.equal(streamed(IDS), model(IDS))
        kept = streamed.layers[0].up.weight.t()
        streamed.set_memory(total // 2)
        streamed.layers[1](torch.ones(1, 64))
        assert torch.equal(kept, model.layers[0].up.weight.t())


USES = {
    "linear": lambda w: functional.linear(torch.ones(2, 64), w),
    "product": lambda w: torch.ones(2, 256) @ w,
    "addmm": lambda w: torch.addmm(torch.ones(64), torch.ones(2, 256), w),
    "conv1d": lambda w: functional.conv1d(torch.ones(1, 64, 9), w[:, :, None]),
    "bilinear": lambda w: functional.bilinear(torch.ones(2, 64), torch.ones(2, 1), w[:1, :, None]),
    "embedding": lambda w: functional.embedding(torch.tensor([1]), w),
    "index": lambda w: w[3],
    "copy": lambda w: torch.zeros(256, 64).copy_(w),
    "numbers": lambda w: w.detach().tolist(),
    "numpy": lambda w: numpy.asarray(w.detach()),
    "dlpack": lambda w: torch.utils.dlpack.to_dlpack(w.detach()),
    "address": lambda w: w.data_ptr(),
    "dtype": lambda w: w.bfloat16(),
    "float": lambda w: w.float() + 1,  # .float() itself is nothing
    "cpu": lambda w: w.cpu().sum(),
    "change": lambda w: w.detach().add_(1),
    "data": lambda w: w.data.mul_(2),
    "set": lambda w: setattr(w, "data", torch.zeros(256, 64)),
    "init": nn.init.zeros_,
    "deepcopy": copy.deepcopy,
    "save": lambda w: torch.save(w, io.BytesIO()),
    "storage": lambda w: w.untyped_storage(),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("use", USES)
def test_no_use_of_a_weight_that_is_not_there_gives_values(use, mode, tmp_path):
    model, total = saved(Layers, tmp_path)
    streamed = penstock.stream(on_meta(Layers), tmp_path, memory=total // 2)
    with mode(), pytest.raises(RuntimeError, match=r"layers.3.up.weight was used|Cannot access data pointer"):
        USES[use](streamed.layers[3].up.weight)
    with mode():
        assert torch.equal(streamed(IDS), model(IDS))


def test_what_needs_no_values_works(tmp_path):
    model, total = saved(Layers, tmp_path)
    streamed = penstock.stream(on_meta(Layers), tmp_path, memory=total // 2)
    for (name, one), (same, other) in zip(streamed.named_parameters(), model.named_parameters(), strict=True):
        assert (name, one.shape, one.dtype, one.device, one.stride()) == (
            same, other.shape, other.dtype, other.device, other.stride()
        )  # fmt: skip
        assert isinstance(one, nn.Parameter) and one.requires_grad and one.nbytes == other.nbytes
        assert torch.ones(2).to(one.device).device.type == "cpu"
    assert repr(streamed) == repr(model) and "layers.0.up.weight" in repr(streamed.layers[0].up.weight)
    assert not any(one.requires_grad for one in streamed.requires_grad_(False).parameters())


SAVES = {
    "torch": lambda state, path: torch.save(state, path),
    "safetensors": lambda state, path: safetensors.torch.save_file(state, path),
    "penstock": lambda state, path: penstock.save(state, f"{path}.safetensors"),
    "penstock-pt": lambda state, path: penstock.save(state, f"{path}.pt"),
}


@pytest.mark.parametrize("how", SAVES)
def test_a_state_dict_has_names_and_shapes_and_cannot_be_saved(how, tmp_path):
    model, total = saved(Layers, tmp_path)
    streamed = penstock.stream(on_meta(Layers), tmp_path, memory=2 * total)
    state = streamed.state_dict()
    assert {key: one.shape for key, one in state.items()} == {key: one.shape for key, one in model.state_dict().items()}
    with torch.no_grad():
        streamed(IDS)
    with pytest.raises((RuntimeError, TypeError), match=r"embed\.weight was used"):
        SAVES[how](state, tmp_path / "saved")
    with pytest.raises(RuntimeError, match="do not change"):  # also those that are in memory as a whole
        streamed.layers[0].up.weight.data += 1


def test_backward_to_a_weight_that_is_used_elsewhere_is_refused(tmp_path):
    _, total = saved(Methods, tmp_path)
    streamed = penstock.stream(on_meta(Methods), tmp_path, memory=2 * total)
    with pytest.raises(RuntimeError, match=r"^backward\(\)"):
        streamed(IDS).sum().backward()


def test_ctrl_c_at_any_time_is_followed_by_a_right_pass(tmp_path):
    model, total = saved(Layers, tmp_path)
    streamed = penstock.stream(on_meta(Layers), tmp_path, memory=least(Layers, tmp_path))
    with torch.no_grad():
        expected = model(IDS)
        streamed(IDS)
        begin = time.monotonic()
        streamed(IDS)
        pass_s = time.monotonic() - begin
        interrupted = 0
        for number in range(200):
            timer = threading.Timer(pass_s * number / 200, lambda: os.kill(os.getpid(), signal.SIGINT))
            try:
                timer.start()
                while True:
                    streamed(IDS)
            except KeyboardInterrupt:
                interrupted += 1
            timer.join()
            assert torch.equal(streamed(IDS), expected)
    assert interrupted == 200


@pytest.mark.parametrize("call", ["acquire", "release"])
def test_ctrl_c_next_to_a_call_of_the_core_loses_no_slot(call, tmp_path):
    model, total = saved(Layers, tmp_path)
    streamed = penstock.stream(on_meta(Layers), tmp_path, memory=least(Layers, tmp_path))
    weights = streamed._penstock_weights
    core, left = weights.core, []

    class Core:
        def __getattr__(self, name):
            return getattr(core, name)

    def then_ctrl_c(unit, stream):
        out = getattr(core, call)(unit, stream)
        if left and left.pop() == 0:
            raise KeyboardInterrupt
        return out

    weights.core = Core()
    setattr(weights.core, call, then_ctrl_c)
    with torch.no_grad():
        expected = model(IDS)
        for number in range(5):  # more often than there are slots
            left[:] = [0, *range(1, number)]
            with pytest.raises(KeyboardInterrupt):
                streamed(IDS)
            assert torch.equal(streamed(IDS), expected)


@pytest.mark.parametrize("share", [0, 2])
def test_del_frees_the_weights_at_once(share, tmp_path):
    model, total = saved(Layers, tmp_path)
    memory = max(share * total, least(Layers, tmp_path))
    gc.collect()
    gc.disable()
    try:
        streamed = penstock.stream(on_meta(Layers), tmp_path, memory=memory)
        with torch.no_grad():
            expected = streamed(IDS)
            weights, layer = weakref.ref(streamed._penstock_weights), streamed.layers[0]
            x = torch.ones(1, 64)
            del streamed
            assert torch.equal(layer(x), model.layers[0](x)) and torch.equal(model(IDS), expected)
        del layer
        assert weights() is None
    finally:
        gc.enable()
