# SPDX-License-Identifier: Apache-2.0
"""The model of `penstock weights bench`: the true shapes of a known model, random weights in bf16, one shard for each
layer, so that making it needs the memory of one layer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock._measure.models import Model

# The models that are built like Llama and Qwen 2 of transformers.
PRESETS = ("llama3.2-1b", "llama3-8b", "llama3-70b", "mistral-7b", "qwen2.5-7b")
HEAD_WIDTH = {"llama3.2-1b": 64}  # the others have 128
BYTES_A_PARAMETER = 2


def config_of(preset: str, model: Model) -> Any:
    """The configuration of transformers. `model`: the preset, or fewer of its layers or words."""
    import transformers

    head = min(HEAD_WIDTH.get(preset, 128), model.key_value)
    kind, name = (transformers.LlamaConfig, "LlamaForCausalLM")
    if model.query_bias:
        kind, name = transformers.Qwen2Config, "Qwen2ForCausalLM"
    config = kind(
        hidden_size=model.width,
        intermediate_size=model.inner,
        num_hidden_layers=model.blocks,
        num_attention_heads=max(1, model.width // head),
        num_key_value_heads=max(1, model.key_value // head),
        vocab_size=model.vocabulary,
        max_position_embeddings=2048,
        tie_word_embeddings=model.tied,
        dtype="bfloat16",
    )
    config.architectures = [name]
    for end in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, end, None)  # the defaults of the class may be beyond the remaining words
    return config


def _shards(model: Model) -> Iterator[dict[str, tuple[int, ...]]]:
    """Names and shapes of each shard: one for each layer, and for each tensor outside of layers."""
    layer: dict[str, tuple[int, ...]] = {}
    of = ""
    for name, shape in model.shapes():
        group = name.split(".")[2] if ".layers." in name else name
        if layer and group != of:
            yield layer
            layer = {}
        of = group
        layer[name] = shape
    yield layer


def make(preset: str, model: Model, folder: Path, progress: Callable[[str], None]) -> int:
    """Writes the model to an existing folder. Returns the bytes of its weights."""
    import torch

    config_of(preset, model).save_pretrained(folder)
    numbers = torch.empty(1 << 23).normal_(0, 0.02, generator=torch.Generator().manual_seed(1)).bfloat16()
    shards, names, total = list(_shards(model)), {}, 0
    for number, shapes in enumerate(shards):
        progress(f"writing the model: part {number + 1} of {len(shards)}")
        state = {}
        for at, (name, shape) in enumerate(shapes.items()):
            elements = math.prod(shape)
            if len(shape) == 1:
                state[name] = (torch.ones if "norm" in name else torch.zeros)(shape, dtype=torch.bfloat16)
            else:
                turned = numbers.roll(7919 * (17 * number + at))
                state[name] = turned.repeat(-(-elements // len(turned)))[:elements].reshape(shape)
            total += elements * BYTES_A_PARAMETER
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        penstock.save(state, folder / file)
        names |= dict.fromkeys(state, file)
    index = {"metadata": {"total_size": total}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return total
