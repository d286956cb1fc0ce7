# SPDX-License-Identifier: Apache-2.0
"""What transformers knows of a model: its class, what its tensors are called in the files, and the values of buffers
that no file has. Nothing here is imported unless the model is one of its classes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from penstock.weights import _experts
from penstock.weights._conversions import Conversion


def is_pretrained(model: torch.nn.Module) -> bool:
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def made(model: type | None, folder: Path) -> torch.nn.Module:
    """The model of a folder with its parameters on the meta device, as from_pretrained(dtype="auto") makes it."""
    try:
        import transformers
        from transformers import initialization
    except ImportError:
        raise ImportError(
            "stream: the model was not given, and transformers, which makes it of config.json, is not installed: "
            "pip install transformers, or give the model, on the meta device"
        ) from None
    if model is None:
        path = folder / "config.json"
        try:
            names = json.loads(path.read_text()).get("architectures") or []
        except FileNotFoundError:
            raise FileNotFoundError(
                f"stream: '{path}' does not exist; give the model instead, on the meta device"
            ) from None
        model = getattr(transformers, names[0], None) if names else None
        if model is None:
            raise ValueError(
                f"stream: '{path}' names the architectures {names}, none of which transformers has; give the model"
            )
    config = model.config_class.from_pretrained(folder)
    with torch.device("meta"), initialization.meta_device_safe_creation_ops():
        out = model._from_config(config, dtype=config.dtype or torch.float32)
    if out.can_generate() and (folder / "generation_config.json").exists():
        out.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return out.eval()


def names_in_files(model: Any, keys: list[str]) -> tuple[dict[str, str], list[Conversion]]:
    """{name of a parameter or buffer: its key in the files}, and what transformers makes of several keys, or
    otherwise than as it is."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

    transforms = get_model_conversion_mapping(model)
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    renamings = [one for one in transforms if not isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    prefix, wanted = model.base_model_prefix, model.state_dict()
    out: dict[str, str] = {}
    conversions: dict[str, Conversion] = {}
    for key in sorted(keys, key=dot_natural_key):  # the order in which transformers puts them together
        name, pattern = rename_source_key(key, renamings, converters, prefix, wanted)
        if name not in wanted and key in wanted:
            name, pattern = rename_source_key(key, [], [], prefix, wanted)
        if pattern is None or name not in wanted:
            out[name] = key
        else:
            made = conversions.setdefault(name, Conversion(model, by_pattern[pattern], name))
            made.sources.append((pattern, key))
    return out, list(conversions.values())


def run_experts_in_order(model: Any) -> Callable[[], None]:
    """Chooses an implementation of mixtures of experts that computes what "eager" does, one expert after the other,
    whatever the budget. Returns what sets the one that was chosen before."""
    if not is_pretrained(model) or not model._can_set_experts_implementation():
        return lambda: None
    before = model.get_experts_implementation()
    _experts.register()
    model.set_experts_implementation(_experts.IMPLEMENTATION)
    return lambda: model.set_experts_implementation(before)


def fill_buffers(model: Any) -> None:
    """Gives buffers that no file has their values, as transformers computes them."""
    for parameter in model.parameters():
        parameter._is_hf_initialized = True
    for module in model.modules():
        fresh = [name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None]
        for name in fresh:
            module._buffers[name] = torch.empty_like(module._buffers[name], device="cpu")
        if fresh:
            module._is_hf_initialized = False
    model.initialize_weights()


def tied(model: Any) -> dict[str, str]:
    """{name: name of the parameter that it is}."""
    return dict(getattr(model, "all_tied_weights_keys", None) or {})
