# SPDX-License-Identifier: Apache-2.0
"""What the jobs on weights share: a Llama with true shapes and random weights, passes that are timed, and ways to make
ours worse.

The layers are those of a Llama of 1.1 billion parameters (width 2048, 5632 inside, 32 heads over 4, 32,000 words) in
bf16: 88 MB each, embedding and head 131 MB each. The whole model has 22 layers. With fewer the head has a larger share,
so bars whose result depends on what fits into memory take all 22; 8 make 966 MB.

The mixture has the shapes of Qwen3-MoE: width 2048, experts of 768 inside, saved one by one, of which 4 of 48 run. A
layer is 453 MB of experts and 38 MB of others. Its tokens are drawn, for those that a model of random weights generates
repeat themselves, and would find all their experts in memory.
"""

import math
import os
import time
from pathlib import Path

from benchmarks import checkpoint_states as states
from benchmarks.job_tools import need

SHARD_BYTES = 500_000_000
_DEPTH, _PIECE = 4, 64 << 20
_SHAPES = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
_MIXTURE = {
    **_SHAPES,
    "moe_intermediate_size": 768,
    "num_experts": 48,
    "num_experts_per_tok": 4,
    "head_dim": 128,
    "decoder_sparse_step": 1,
}
TINY = {**_SHAPES, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def use_processors():
    """All but one compute: the last one reads. More threads than processors cost 25 times as much."""
    torch = need("torch")
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))


def is_mixture(folder):
    return Path(folder).name == "mixture"


def _in_files(name, shape):
    """The tensors that a parameter is saved as: those of experts one by one."""
    layer, _, part = name.rpartition(".")
    if layer.endswith(".experts"):
        parts = {"down_proj": ("down_proj",), "gate_up_proj": ("gate_proj", "up_proj")}[part]
        one = (shape[1] // len(parts), shape[2])
        return [(f"{layer}.{number}.{each}.weight", one) for number in range(shape[0]) for each in parts]
    return [(name, tuple(shape))]


def lay_out(folder, layers):
    """The model in a folder, durable and in no cache; made when it is not there. Returns the paths of its shards. A
    folder called "mixture" gets that model."""
    penstock, torch, transformers = need("penstock"), need("torch"), need("transformers")
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        folder.mkdir(exist_ok=True)
        if is_mixture(folder):
            config = transformers.Qwen3MoeConfig(**_MIXTURE, num_hidden_layers=layers, dtype="bfloat16")
            config.architectures = ["Qwen3MoeForCausalLM"]
        else:
            config = transformers.LlamaConfig(**_SHAPES, num_hidden_layers=layers, dtype="bfloat16")
            config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(folder)
        with torch.device("meta"):
            empty = getattr(transformers, config.architectures[0])(config)
        numbers = torch.empty(1 << 24).normal_(0, 0.02, generator=torch.Generator().manual_seed(1)).bfloat16()
        state = {}
        saved = [one for name, parameter in empty.named_parameters() for one in _in_files(name, parameter.shape)]
        for at, (name, shape) in enumerate(saved):
            if len(shape) == 1:
                state[name] = torch.ones(shape, dtype=torch.bfloat16)
            else:
                turned, elements = numbers.roll(7919 * at), math.prod(shape)
                state[name] = turned.repeat(-(-elements // len(turned)))[:elements].reshape(shape).clone()
        penstock.save(state, index, shard_bytes=SHARD_BYTES)
    shards = [str(path) for path in sorted(folder.glob("*.safetensors"))]
    states.make_cold(shards)
    return shards


def weight_bytes(shards):
    return sum(os.path.getsize(path) for path in shards)


def least_memory(folder):
    """The smallest budget with which stream() works, without cutting layers."""
    plan = need("penstock").weights.plan(folder, 1 << 40)
    layer = max(unit.bytes for unit in plan.units if ".layers." in unit.name)
    head = max(unit.bytes for unit in plan.units if ".layers." not in unit.name)
    return int(2 * max(layer, head) * 1.01)


def largest_parameter(folder):
    """Bytes: the embedding, or the head, which is as large."""
    config = need("transformers").AutoConfig.from_pretrained(folder)
    return config.vocab_size * config.hidden_size * 2


def memory_for(folder, read_bytes):
    """The smallest budget, to 1 MB, that leaves no more to read."""
    penstock = need("penstock")
    low, high = least_memory(folder), 1 << 40
    while high - low > 1_000_000:
        middle = (low + high) // 2
        fits = penstock.weights.plan(folder, middle).read_bytes <= read_bytes
        low, high = (low, middle) if fits else (middle, high)
    return high


class Decoding:
    """A model that has read a prompt, and makes a token a pass from there on."""

    def __init__(self, model, batch=1, prompt=4, drawn=False):
        torch = need("torch")
        self._model, self._torch = model, torch
        self._draw = torch.Generator().manual_seed(1) if drawn else None
        ids = torch.arange(batch * prompt).reshape(batch, prompt) % 32000
        with torch.no_grad():
            out = model(input_ids=ids, use_cache=True)
        self._keep(out)
        self.first_at = time.perf_counter()
        self.tokens()  # memory is touched, and the order of the units known

    def _keep(self, out):
        self._cache = out.past_key_values
        self._next = out.logits[:, -1:].argmax(-1)
        if self._draw is not None:
            self._next = self._torch.randint(32000, self._next.shape, generator=self._draw)

    def tokens(self, count=1):
        """Seconds of so many."""
        start = time.perf_counter()
        with self._torch.no_grad():
            for _ in range(count):
                self._keep(self._model(input_ids=self._next, past_key_values=self._cache, use_cache=True))
        return time.perf_counter() - start


def read_through_engine(shards, times=1):
    """Seconds in which the engine reads the shards so many times, past the page cache, into memory that is touched."""
    penstock = need("penstock")
    memory = memoryview(penstock.empty(_DEPTH * _PIECE))
    memory[::4096] = bytes(len(memory) // 4096)
    files = [penstock.File(path, cache="direct") for path in shards]
    pieces = [
        (file, at, min(_PIECE, size - at))
        for file, size in ((file, os.path.getsize(file.path)) for file in files)
        for at in range(0, size, _PIECE)
    ]
    with penstock.Engine() as engine:
        engine.read(files[0], memory[:4096])  # the ring comes with the first transfer
        running = []
        start = time.perf_counter()
        for number, (file, at, length) in enumerate(pieces * times):
            if len(running) == _DEPTH:
                running.pop(0).result()
            begin = number % _DEPTH * _PIECE
            running.append(engine.read_async(file, memory[begin : begin + length], at))
        for transfer in running:
            transfer.result()
        seconds = time.perf_counter() - start
    for file in files:
        file.close()
    return seconds


class _Waits:
    """Handicap of ours: what is read ahead is waited for before a unit is computed, so nothing is read meanwhile."""

    def __init__(self, core):
        self._core = core

    def __getattr__(self, name):
        return getattr(self._core, name)

    def acquire(self, unit, stream):
        slot = self._core.acquire(unit, stream)
        need("penstock").default_engine().drain()
        return slot


def without_overlap(model):
    weights = model._penstock_weights
    weights.core = _Waits(weights.core)
    return model
