# SPDX-License-Identifier: Apache-2.0
"""The shapes of models from their public configurations, and of their training states.

A state is `weights` (bf16 or fp32), or `full`: bf16 weights, the fp32 master copy and Adam's two moments, 14 bytes a
parameter; with fp32 weights there is no master copy, 12 bytes a parameter. A model that does not fit is made smaller by
omitting blocks; the shape of a block is never changed. If a single block is too large, rows of the embedding are
omitted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

Shapes = list[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Model:
    """A model of one of two families: GPT-2, and Llama (also Phi-3, Mistral, Qwen 2.5)."""

    name: str
    width: int
    blocks: int
    vocabulary: int
    inner: int  # width of the MLP
    key_value: int = 0  # width of keys, and of values
    positions: int = 0  # number of learnt positions: GPT-2
    fused: bool = False  # one tensor for query, key and value, one for gate and up: Phi-3
    tied: bool = False  # the output layer is the embedding
    query_bias: bool = False  # the query has a bias: Qwen 2.5

    def block_shapes(self) -> Shapes:
        width, inner = self.width, self.inner
        if self.positions:
            attention: Shapes = [
                ("ln_1", (width,)),
                ("attn.c_attn", (width, 3 * width)),
                ("attn.c_proj", (width, width)),
            ]
            mlp: Shapes = [("ln_2", (width,)), ("mlp.c_fc", (width, inner)), ("mlp.c_proj", (inner, width))]
            pairs = [[(f"{name}.weight", shape), (f"{name}.bias", shape[-1:])] for name, shape in attention + mlp]
            return sum(pairs, [])
        norms: Shapes = [("input_layernorm.weight", (width,)), ("post_attention_layernorm.weight", (width,))]
        down: Shapes = [("self_attn.o_proj.weight", (width, width)), ("mlp.down_proj.weight", (width, inner))]
        if self.fused:
            qkv = ("self_attn.qkv_proj.weight", (width + 2 * self.key_value, width))
            return [qkv, ("mlp.gate_up_proj.weight", (2 * inner, width)), *down, *norms]
        heads = (("q", width), ("k", self.key_value), ("v", self.key_value))
        attention = [(f"self_attn.{name}_proj.weight", (rows, width)) for name, rows in heads]
        if self.query_bias:
            attention += [(f"self_attn.{name}_proj.bias", (rows,)) for name, rows in heads]
        mlp = [(f"mlp.{name}_proj.weight", (inner, width)) for name in ("gate", "up")]
        return [*attention, *mlp, *down, *norms]

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(name, shape) of every parameter, in the order of the model, with the names in its published files."""
        gpt2 = bool(self.positions)
        yield ("wte.weight" if gpt2 else "model.embed_tokens.weight"), (self.vocabulary, self.width)
        if gpt2:
            yield "wpe.weight", (self.positions, self.width)
        for block in range(self.blocks):
            for name, shape in self.block_shapes():
                yield f"{'h' if gpt2 else 'model.layers'}.{block}.{name}", shape
        if gpt2:
            yield "ln_f.weight", (self.width,)
            yield "ln_f.bias", (self.width,)
        else:
            yield "model.norm.weight", (self.width,)
            if not self.tied:
                yield "lm_head.weight", (self.vocabulary, self.width)

    def parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.shapes())


def _gpt2(name: str, width: int, blocks: int) -> Model:
    return Model(name, width, blocks, 50257, 4 * width, positions=1024, tied=True)


MODELS = {
    model.name: model
    for model in (
        _gpt2("gpt2", 768, 12),
        _gpt2("gpt2-medium", 1024, 24),
        _gpt2("gpt2-large", 1280, 36),
        _gpt2("gpt2-xl", 1600, 48),
        Model("phi3-mini", 3072, 32, 32064, 8192, key_value=3072, fused=True),
        Model("llama3.2-1b", 2048, 16, 128256, 8192, key_value=512, tied=True),
        Model("llama3-8b", 4096, 32, 128256, 14336, key_value=1024),
        Model("llama3-70b", 8192, 80, 128256, 28672, key_value=1024),
        Model("mistral-7b", 4096, 32, 32000, 14336, key_value=1024),
        Model("qwen2.5-7b", 3584, 28, 152064, 18944, key_value=512, query_bias=True),
    )
}


def bytes_a_parameter(state: str, dtype: str) -> int:
    weights = 2 if dtype == "bf16" else 4
    return weights if state == "weights" else weights + (4 if dtype == "bf16" else 0) + 8


def fit(model: Model, per_parameter: int, limit: int) -> tuple[Model, str]:
    """The model, if necessary with fewer blocks (then fewer rows of the embedding), so that its state is at most
    `limit` bytes; and a sentence about the omitted parts, or empty."""
    if model.parameters() * per_parameter <= limit:
        return model, ""
    fixed = replace(model, blocks=0).parameters()
    one = replace(model, blocks=1).parameters() - fixed
    blocks = (limit // per_parameter - fixed) // one
    if blocks >= 1:
        return replace(model, blocks=blocks), f"the first {blocks} of {model.blocks} blocks, every shape as it is"
    tables = 1 if model.tied else 2
    rows = (limit // per_parameter - one - (fixed - tables * model.vocabulary * model.width)) // (tables * model.width)
    if rows < 1:
        raise ValueError(f"one block of {model.name} is {one * per_parameter} bytes; that is more than {limit}")
    rows = min(rows, model.vocabulary)
    told = f"one of {model.blocks} blocks, and {rows} of {model.vocabulary} rows of the embedding"
    return replace(model, blocks=1, vocabulary=rows), told


def make_state(shapes: Iterable[tuple[str, tuple[int, ...]]], state: str, dtype: str) -> dict[str, Any]:
    """{"model": ..., "master": ..., "optimizer": ...} as in a training loop. Every tensor begins with the same random
    numbers."""
    import torch

    shapes = list(shapes)
    block = torch.empty(4 << 20).normal_(0, 0.02, generator=torch.Generator().manual_seed(1))

    def filled(shape: tuple[int, ...], kind: Any = torch.float32) -> Any:
        flat = torch.empty(math.prod(shape), dtype=kind)
        for piece in flat.split(block.numel()):
            piece.copy_(block[: piece.numel()])
        return flat.view(shape)

    weights = torch.bfloat16 if dtype == "bf16" else torch.float32
    made: dict[str, Any] = {"model": {name: filled(shape, weights) for name, shape in shapes}}
    if state == "full":
        if dtype == "bf16":
            made["master"] = {name: filled(shape) for name, shape in shapes}
        moments = [
            {"step": torch.tensor(1.0), "exp_avg": filled(shape), "exp_avg_sq": filled(shape)} for _, shape in shapes
        ]
        group = {
            "lr": 1e-4,
            "betas": (0.9, 0.95),
            "eps": 1e-8,
            "weight_decay": 0.1,
            "params": list(range(len(moments))),
        }
        made["optimizer"] = {"state": dict(enumerate(moments)), "param_groups": [group]}
    return made


def tensors_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, tensor) of every tensor of a state."""
    if hasattr(value, "data_ptr"):
        yield path, value
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from tensors_of(item, f"{path}.{key}" if path else str(key))


def bytes_of(state: Any) -> int:
    return sum(tensor.nbytes for _, tensor in tensors_of(state))
