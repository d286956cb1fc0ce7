# SPDX-License-Identifier: Apache-2.0
"""Models of transformers and files that do not fit them: no weight is wrong without a word, and a buffer that no file
has is as the constructor makes it."""

import contextlib
import resource
import threading
import warnings

import penstock
import pytest
import torch
import transformers

F8 = torch.float8_e4m3fn
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
         "vocab_size": 64}  # fmt: skip
MODELS = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**SMALL, tie_word_embeddings=False)),
    "bert": (transformers.BertForMaskedLM, transformers.BertConfig(**SMALL)),
    "mixtral": (transformers.MixtralForCausalLM,
                transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=2)),
}  # fmt: skip


def saved(folder, name):
    cls, config = MODELS[name]
    torch.manual_seed(1)
    cls(config).save_pretrained(folder)
    return cls


def rewritten(folder, change):
    """The folder, with its tensors as change(name, tensor) gives them: {name: tensor}."""
    path = folder / "model.safetensors"
    tensors = {}
    for name, one in penstock.load(path).items():
        tensors |= change(name, one)
    penstock.save(tensors, path)


@contextlib.contextmanager
def without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def is_linear(name):
    return name.endswith((".q_proj.weight", ".query.weight", ".w1.weight"))


def with_scale(dtype, ending):
    def change(name, one):
        if not is_linear(name):
            return {name: one}
        return {name: one.to(dtype), name.removesuffix("weight") + ending: torch.ones(one.shape[0])}

    return change


def gptq(name, one):
    if not is_linear(name):
        return {name: one}
    path = name.removesuffix("weight")
    numbers = {"qweight": (4, 32), "qzeros": (1, 4), "g_idx": (32,)}
    made = {path + ending: torch.ones(shape, dtype=torch.int32) for ending, shape in numbers.items()}
    return {**made, path + "scales": torch.ones(1, 32)}


QUANTIZED = {
    "fp8, weight_scale_inv": with_scale(F8, "weight_scale_inv"),
    "fp8, scale": with_scale(F8, "scale"),
    "fp8 without scales": lambda name, one: {name: one.to(F8) if is_linear(name) else one},
    "int8, SCB": with_scale(torch.int8, "SCB"),
    "a scale of a float": with_scale(torch.float32, "weight_scale"),
    "absmax": with_scale(torch.uint8, "weight.absmax"),
    "GPTQ": gptq,
}


@pytest.mark.parametrize("what", QUANTIZED)
def test_a_quantized_file_is_recognised_by_what_is_in_it(tmp_path, what):
    for name in MODELS:
        cls = saved(tmp_path / name, name)
        rewritten(tmp_path / name, QUANTIZED[what])
        with pytest.raises(NotImplementedError, match=r"q_proj|query|w1"):
            penstock.stream(cls, tmp_path / name, memory="1GiB")


@pytest.mark.parametrize("name", MODELS)
def test_what_the_class_does_not_want_is_no_warning_and_all_else_is(tmp_path, name):
    cls = saved(tmp_path, name)
    old = {"llama": "model.layers.0.self_attn.rotary_emb.inv_freq", "bert": "bert.embeddings.position_ids",
           "mixtral": "model.layers.1.self_attn.rotary_emb.inv_freq"}[name]  # fmt: skip
    rewritten(tmp_path, lambda key, one: {key: one, old: torch.arange(8.0)})
    with without_warnings():
        penstock.stream(cls, tmp_path, memory="1GiB", strict=True)
    rewritten(tmp_path, lambda key, one: {key: one, "model.adapter.weight": torch.ones(2, 2)})
    with pytest.warns(RuntimeWarning, match="nothing of the model takes model.adapter.weight of"):
        penstock.stream(cls, tmp_path, memory="1GiB")
    with pytest.raises(KeyError, match=r"model\.adapter\.weight"):
        penstock.stream(cls, tmp_path, memory="1GiB", strict=True)


def test_a_base_models_file_lacks_the_head_and_a_head_is_left_over(tmp_path):
    saved(tmp_path, "llama")
    base = transformers.LlamaModel.from_pretrained(tmp_path)
    base.save_pretrained(tmp_path / "base")
    with pytest.raises(KeyError, match=r"lm_head\.weight"):
        penstock.stream(transformers.LlamaForCausalLM, tmp_path / "base", memory="1GiB")
    with without_warnings():
        penstock.stream(transformers.LlamaModel, tmp_path / "base", memory="1GiB", strict=True)
    with pytest.warns(RuntimeWarning, match=r"takes lm_head\.weight"):
        penstock.stream(transformers.LlamaModel, tmp_path, memory="1GiB")


# ---- buffers that no file has


class Config(transformers.PretrainedConfig):
    model_type = "mine"


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, 8, 2).float() / 8), persistent=False)
        self.register_buffer("mask", torch.tril(torch.ones(4, 4, dtype=torch.bool)), persistent=False)
        self.scale = torch.linspace(0, 1, 3)[1].item()

    def forward(self, x):
        return self.linear(x) * self.inv_freq.sum() * self.mask.sum() * self.scale


class Mine(transformers.PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Saves(Mine):
    """A buffer that files should have."""

    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("statistics", torch.ones(3))


class Forgives(Saves):
    _keys_to_ignore_on_load_missing = ["statistics"]


class Partly(Mine):
    """Computes one of its buffers, and half of another."""

    def _init_weights(self, module):
        if isinstance(module, Layer):
            module.mask.copy_(torch.tril(torch.ones(4, 4, dtype=torch.bool)))
            module.inv_freq[:2] = 1


class LacksParameter(Mine):
    _keys_to_ignore_on_load_missing = ["head"]

    def __init__(self, config):
        super().__init__(config)
        self.head = torch.nn.Parameter(torch.ones(2, 2))


class Assigns(Mine):
    """Its constructor needs all on one device."""

    def __init__(self, config):
        super().__init__(config)
        self.layers[0].linear.weight.data = torch.ones(16, 16)

    def _init_weights(self, module):
        if isinstance(module, Layer):
            made = Layer()
            module.mask.copy_(made.mask)
            module.inv_freq.copy_(made.inv_freq)


def junk():
    """Memory that is freed has other values than those that are wanted."""
    return [torch.full((4,), 7.5) for _ in range(300)]


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(1)
    Mine(Config()).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("cls", [Mine, Forgives, Partly, Assigns])
def test_a_buffer_is_as_the_constructor_makes_it(folder, cls):
    mine, expected, x = Mine.from_pretrained(folder), Layer(), torch.ones(2, 16)
    for layer in mine.layers:  # which transformers leaves as memory that nobody wrote
        layer.inv_freq, layer.mask = expected.inv_freq, expected.mask
    junk()
    state = torch.get_rng_state()
    model = penstock.stream(cls, folder, memory="40KiB")
    assert torch.equal(torch.get_rng_state(), state)
    for layer in model.layers:
        if cls is not Partly:
            assert torch.equal(layer.inv_freq, expected.inv_freq)
        assert torch.equal(layer.mask, expected.mask) and layer.scale == 0.5
    if cls is not Partly:
        assert torch.equal(model(x), mine(x))
    if cls is Forgives:
        assert model.statistics.tolist() == [1, 1, 1]


@pytest.mark.parametrize("cls", [Mine, Partly])
def test_a_buffer_that_nobody_computes_is_named(folder, cls):
    with torch.device("meta"):
        model = cls(Config())
    junk()
    with pytest.raises(KeyError, match=r"no file has the buffer layers\.0\.inv_freq, and .*_init_weights"):
        penstock.stream(model, folder, memory="40KiB")


def test_buffers_of_a_model_that_has_them_stay(folder):
    accelerate = pytest.importorskip("accelerate")
    with accelerate.init_empty_weights():
        model = Partly(Config())
    model.layers[1].inv_freq.fill_(5)
    penstock.stream(model, folder, memory="40KiB")
    assert model.layers[1].inv_freq.tolist() == [5] * 4 and model.layers[0].mask.sum() == 10


def test_what_files_should_have_is_named(folder):
    with pytest.raises(KeyError, match="has statistics, which the model needs"):
        penstock.stream(Saves, folder, memory="40KiB")
    with pytest.raises(KeyError, match=r"no file has the parameter head, and .*_init_weights"):
        penstock.stream(LacksParameter, folder, memory="40KiB")


class Large(transformers.PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        one = torch.nn.Parameter(torch.zeros(48, 1 << 20))
        self.first, self.second = torch.nn.Module(), torch.nn.Module()
        self.first.weight, self.second.weight = one, one
        small = torch.nn.Parameter(torch.ones(3))
        self.first.small, self.second.small = small, small
        self.first.register_buffer("table", torch.arange(3.0), persistent=False)
        self.post_init()


def test_a_parameter_takes_no_memory_while_the_model_is_made():
    from penstock.weights import _construction

    stop, others = threading.Event(), []

    def makes_modules():
        while not stop.is_set():
            others.append(torch.nn.Linear(2, 2).weight.device.type)

    thread = threading.Thread(target=makes_modules)
    thread.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        model = _construction.with_buffers(lambda: Large(Config()))
    finally:
        stop.set()
        thread.join()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10 < 150  # MiB, and it has 192
    assert {one.device.type for one in model.parameters()} == {"meta"} and set(others) <= {"cpu"}
    assert model.first.weight is model.second.weight and model.first.small is model.second.small
    assert model.first.table.tolist() == [0, 1, 2]
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"
