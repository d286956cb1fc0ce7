# SPDX-License-Identifier: Apache-2.0
"""Matches the parameters and buffers of a model with the tensors of its files: names, shapes, devices."""

from __future__ import annotations

from typing import Any

import torch

import penstock
from penstock.weights import _hugging_face
from penstock.weights._conversions import Converted
from penstock.weights._units import Place


def keys_of(model: torch.nn.Module, infos: dict[str, penstock.TensorInfo]) -> tuple[dict[str, str], Converted]:
    """{name of a parameter: its key in the files}; tied parameters have the key of the one that was saved. Converted
    parameters have a key too, and are added to `infos`."""
    converted = Converted((), infos)
    if _hugging_face.is_pretrained(model):
        out, conversions = _hugging_face.names_in_files(model, list(infos))
        converted = Converted(conversions, infos)
        out |= converted.keys
        pairs = list(_hugging_face.tied(model).items())
        for target, source in pairs + [(source, target) for target, source in pairs]:
            if target not in out and source in out:
                out[target] = out[source]
    else:
        out = {key: key for key in infos}
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        groups.setdefault(id(buffer), []).append(name)
    for group in groups.values():
        known = next((out[name] for name in group if name in out), None)
        for name in group:
            if known is not None:
                out.setdefault(name, known)
    return out, converted


def check(weights: Any, places: list[Place]) -> None:
    missing = [place.full_name for place in places if place.full_name not in weights.keys]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        there = ", ".join(list(weights.infos)[:3])
        raise KeyError(
            f"stream: no file of '{weights.files}' has {', '.join(missing[:3])}{more}, which the model needs; "
            f"its names begin with {there}: check that the files are of this model"
        )
    for place in places:
        info, parameter = weights.infos[weights.keys[place.full_name]], place.parameter
        _check_shape(place.full_name, parameter, info)
        if not parameter.is_meta:
            raise ValueError(
                f"stream: {place.full_name} is in memory already; make the model on the meta device: `with "
                "torch.device('meta'): model = ...`, or give its class if it is one of transformers"
            )


def _check_shape(name: str, wanted: torch.Tensor, info: penstock.TensorInfo) -> None:
    if tuple(info.shape) != tuple(wanted.shape):
        raise ValueError(
            f"stream: {name}: the model wants the shape {list(wanted.shape)}, "
            f"and '{info.path}' has {list(info.shape)}; check that the files are of this model"
        )


def buffers(weights: Any) -> dict[tuple[torch.nn.Module, str], str]:
    """Reads the buffers that the files have. Refuses a buffer on the meta device that they do not have."""
    out: dict[tuple[torch.nn.Module, str], str] = {}
    for path, module in weights.model().named_modules():
        for name, buffer in module._buffers.items():
            full = f"{path}.{name}" if path else name
            if buffer is not None and full in weights.keys and name not in module._non_persistent_buffers_set:
                _check_shape(full, buffer, weights.infos[weights.keys[full]])
                out[module, name] = weights.keys[full]
            elif buffer is not None and buffer.is_meta:
                raise KeyError(
                    f"stream: the buffer {full} is on the meta device, and no file of '{weights.files}' has its "
                    "values; set it before the call"
                )
    return out
