# SPDX-License-Identifier: Apache-2.0
"""Information from transformers about a model: its class, the names of its tensors in the files, and the values of
buffers that no file has. transformers is imported only for models of its classes."""

from __future__ import annotations

import copy
import json
import re
import sys
import types
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import torch

from penstock._state.load_call import TensorInfo
from penstock._state.rows import FLOATS
from penstock.weights import _construction, _experts
from penstock.weights._conversions import Conversion


def is_pretrained(model: torch.nn.Module) -> bool:
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def made(model: Any, folder: Path, infos: list[TensorInfo]) -> Any:
    """The model of a folder with its parameters on the meta device, as from_pretrained(dtype="auto") makes it."""
    automatic = hasattr(model, "_model_mapping")  # AutoModelForCausalLM and the like
    if model is not None and not automatic and not hasattr(model, "config_class"):
        raise TypeError(
            f"stream: model: {model.__name__} is no class of transformers or diffusers; make the model on the meta "
            f"device, and give it: `with torch.device('meta'): model = {model.__name__}(...)`. If that fails, because "
            "its constructor computes with values, `with accelerate.init_empty_weights():` works"
        )
    names = _architectures(folder) if model is None else []
    try:
        import transformers
    except ImportError:
        raise ImportError(
            "stream: the model was not given, and transformers, which makes it of config.json, is not installed: "
            "pip install transformers, or give the model, on the meta device"
        ) from None
    if model is None:
        model = getattr(transformers, names[0], None) if names else None
        if model is None:
            raise ValueError(
                f"stream: '{folder / 'config.json'}' names the architectures {names}, none of which transformers "
                f"{transformers.__version__} has; give the model, on the meta device"
            )
    config = (transformers.AutoConfig if automatic else model.config_class).from_pretrained(folder)
    if automatic:
        model, config = _chosen(model, config, folder)
    out = _empty(model, config, infos, _construction.with_buffers)
    if out.can_generate() and (folder / "generation_config.json").exists():
        out.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return out.eval()


def _chosen(automatic: Any, config: Any, folder: Path) -> tuple[Any, Any]:
    """The class that an AutoModel chooses for a config, and the config for it, as its from_pretrained() does."""
    from transformers.models.auto.auto_factory import _get_model_class

    if type(config) not in automatic._model_mapping:
        raise ValueError(
            f"stream: model: {automatic.__name__} has no model for the {type(config).__name__} of '{folder}'; give "
            "another AutoModel, or None for the class that config.json names"
        )
    model = _get_model_class(config, automatic._model_mapping)
    text = config.sub_configs.get("text_config")
    return model, config.get_text_config() if text is not None and model.config_class == text else config


def _architectures(folder: Path) -> list[str]:
    """The names of classes in config.json."""
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(
            f"stream: '{path}' does not exist; give the model instead, on the meta device"
        ) from None
    except ValueError as error:
        raise ValueError(f"stream: '{path}' is not JSON: {error}; give the model instead, on the meta device") from None
    return list(found.get("architectures") or []) if isinstance(found, dict) else []


def _empty(model: Any, config: Any, infos: list[TensorInfo], on: Any = _construction.on_meta) -> Any:
    """A model with its parameters on the meta device, and the dtypes that from_pretrained(dtype="auto") gives. on: how
    it is constructed."""
    from transformers import core_model_loading, initialization

    dtype = config.dtype or next((info.dtype for info in infos if info.dtype in FLOATS), torch.float32)
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype  # save_pretrained() makes it a name
    with initialization.meta_device_safe_creation_ops():
        out = on(lambda: model._from_config(copy.deepcopy(config), dtype=dtype))
    _construction.move_parameters(out)
    if plan := out._get_dtype_plan(dtype):  # parameters that stay float32 in a model of 16 bits
        pattern, named, _ = core_model_loading.build_glob_alternation(list(plan))
        for name, parameter in out.named_parameters():
            if found := pattern.search(name):
                parameter.data = parameter.data.to(plan[named[found.lastgroup]])
    return out


def check(model: Any, infos: list[TensorInfo], path: str) -> None:
    """Refuses weights that from_pretrained would rewrite, and a model with other dtypes than from_pretrained gives."""
    quantized = getattr(model.config, "quantization_config", None)
    if quantized is not None:
        asked = quantized if isinstance(quantized, dict) else quantized.to_dict()
        raise NotImplementedError(
            f"stream: '{path}' is quantized ({asked.get('quant_method', 'by its config')}), and transformers rewrites "
            "such weights when it loads them; stream the model that is not quantized"
        )
    dtypes = {info.dtype for info in infos}
    own = {parameter.dtype for parameter in model.parameters()}
    if len(own) == 1 and {str(one).removeprefix("torch.") for one in own} == dtypes:
        if not model._get_dtype_plan(*own):  # no parameter has a type of its own in a model of this type
            return
    like = dict(_empty(type(model), copy.deepcopy(model.config), infos).named_parameters())
    for name, parameter in model.named_parameters():
        if name in like and parameter.dtype != like[name].dtype:
            raise ValueError(
                f"stream: {name} is {parameter.dtype} in the model, and from_pretrained(dtype='auto') gives "
                f"{like[name].dtype} for '{path}'; make the model with that dtype, or give its class"
            )


def names_in_files(model: Any, keys: list[str]) -> tuple[dict[str, str], list[Conversion]]:
    """{name of a parameter or buffer: its key in the files}, and the conversions of transformers: parameters that it
    makes from several keys, or changes."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

    transforms = get_model_conversion_mapping(model)
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    renamings = [one for one in transforms if not isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    prefix, wanted = model.base_model_prefix, model.state_dict()
    out: dict[str, str] = {}
    conversions: dict[str, Conversion] = {}
    for key in sorted(keys, key=dot_natural_key):  # the order in which transformers joins them
        name, pattern = rename_source_key(key, renamings, converters, prefix, wanted)
        if name not in wanted and key in wanted:
            name, pattern = rename_source_key(key, [], [], prefix, wanted)
        if pattern is None or name not in wanted:
            out[name] = key
        else:
            made = conversions.setdefault(name, Conversion(model, by_pattern[pattern], name))
            made.sources.append((pattern, key))
    return out, list(conversions.values())


def run_experts_in_order(model: Any) -> Any:
    """Selects an implementation of mixtures of experts with the same results as "eager", one expert after the other, at
    any budget. Returns the previous one, or None if it is not changed."""
    if not is_pretrained(model) or not model._can_set_experts_implementation():
        return None
    before = model.get_experts_implementation()
    _experts.register()
    model.set_experts_implementation(_experts.IMPLEMENTATION)
    return before


def computed(model: Any, known: Container[str]) -> set[str]:
    """The parameters and buffers that no file has because transformers computes them: sinusoidal positions."""
    patterns = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_missing or ()]
    names = (name for name in model.state_dict() if name not in known)
    return {name for name in names if any(pattern.search(name) for pattern in patterns)}


def ignored(model: Any, names: Iterable[str]) -> set[str]:
    """Names of the files that the class does not want, though nothing takes them: by its own lists, and buffers that
    files of older versions have."""
    info = types.SimpleNamespace(missing_keys=set(), unexpected_keys=set(names))
    before = set(info.unexpected_keys)
    model._adjust_missing_and_unexpected_keys(info)
    return before - info.unexpected_keys


def fill(model: Any, computed: Container[str]) -> None:
    """Fills these parameters, and the buffers that no file has, with the values that transformers computes. Those that
    have values keep them. Raises KeyError for one that transformers does not compute: it would be memory that nobody
    wrote."""
    for parameter in model.parameters():
        parameter._is_hf_initialized = True
    empty: list[tuple[torch.nn.Module, bool, str, str]] = []
    for path, module in model.named_modules():
        for is_buffer, own in enumerate((module._parameters, module._buffers)):
            for name, one in own.items():
                full = f"{path}.{name}" if path else name
                if one is None or not (name in module._non_persistent_buffers_set or full in computed):
                    continue
                if one.is_meta:
                    made = torch.empty(one.shape, dtype=one.dtype, device="cpu")
                    own[name] = made if is_buffer else torch.nn.Parameter(made, one.requires_grad)
                    empty.append((module, bool(is_buffer), name, full))
                else:
                    one._is_hf_initialized = True
    if not empty:
        return
    # Values that do not depend on the bytes that were there before have been computed.
    first, second = (_initialized(model, empty, byte) for byte in (0, 1))
    for (_, is_buffer, _, full), one, other in zip(empty, first, second, strict=True):
        if not torch.equal(one, other):
            raise KeyError(
                f"stream: no file has the {'buffer' if is_buffer else 'parameter'} {full}, and "
                f"{type(model).__name__}._init_weights() does not compute it; give the class of the model, or a model "
                "whose buffers are in memory: `with accelerate.init_empty_weights(): model = ...`"
            )


def _initialized(model: Any, empty: list[tuple[torch.nn.Module, bool, str, str]], byte: int) -> list[torch.Tensor]:
    """The bytes of these tensors, which had this value in each byte before transformers computed them."""
    for module, is_buffer, name, _ in empty:
        own: Any = module._buffers if is_buffer else module._parameters
        own[name].data.reshape(-1).view(torch.uint8).fill_(byte)
        own[name]._is_hf_initialized = False
        module._is_hf_initialized = False
    with torch.random.fork_rng(devices=[]):  # each time the same random numbers
        model.initialize_weights()
    found = ((module._buffers if is_buffer else module._parameters)[name] for module, is_buffer, name, _ in empty)
    return [one.detach().reshape(-1).view(torch.uint8).clone() for one in found]


def tied(model: Any) -> dict[str, str]:
    """{name: name of the parameter that it is tied to}."""
    return dict(getattr(model, "all_tied_weights_keys", None) or {})
