# SPDX-License-Identifier: Apache-2.0
"""Models of diffusers, made from the config.json of their folder. diffusers is imported only for such a model."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from penstock._state.load_call import TensorInfo


def is_class(model: Any, folder: Path) -> bool:
    """Whether the model of a folder is one of diffusers. model: a class, or None for the one that config.json names."""
    if model is None:
        return "_class_name" in _config(folder)
    diffusers = sys.modules.get("diffusers")
    return diffusers is not None and issubclass(model, diffusers.ModelMixin)


def _config(folder: Path) -> Any:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((folder / "config.json").read_text())
        return found if isinstance(found, dict) else {}
    return {}


def made(model: Any, folder: Path, infos: list[TensorInfo]) -> Any:
    """The model of a folder with its parameters on the meta device, as from_pretrained() makes it with the dtype of the
    files."""
    try:
        import accelerate
        import diffusers
        from diffusers.models.modeling_utils import no_init_weights
    except ImportError as error:
        raise ImportError(
            f"stream: '{folder}' has a model of diffusers, which diffusers makes with accelerate, and {error.name} is "
            "not installed: pip install diffusers accelerate"
        ) from error
    if model is None:
        name = _config(folder)["_class_name"]
        model = getattr(diffusers, str(name), None)
        if model is None or not issubclass(model, diffusers.ModelMixin):
            raise ValueError(
                f"stream: '{folder / 'config.json'}' names the class {name}, and diffusers {diffusers.__version__} has "
                "no such model; give the model: `with accelerate.init_empty_weights(): model = ...`"
            )
    dtype, before = _dtype(infos), torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # as from_pretrained(torch_dtype=...) does
    try:
        with torch.random.fork_rng(devices=[]), no_init_weights(), accelerate.init_empty_weights():
            out = model.from_config(model.load_config(folder))
    finally:
        torch.set_default_dtype(before)
    named = model._keep_in_fp32_modules or ()
    apart = {named} if isinstance(named, str) else set(named)
    for name, tensor in out.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(torch.float32 if apart.intersection(name.split(".")) else dtype)
    return out.eval()


def _dtype(infos: list[TensorInfo]) -> torch.dtype:
    """The floating-point type of most of the bytes."""
    nbytes: dict[str, int] = {}
    for info in infos:
        nbytes[info.dtype] = nbytes.get(info.dtype, 0) + info.nbytes
    found = (getattr(torch, name, torch.bool) for name in sorted(nbytes, key=lambda name: -nbytes[name]))
    floats = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    return next((dtype for dtype in found if dtype in floats), torch.float32)
