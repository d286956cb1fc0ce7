# SPDX-License-Identifier: Apache-2.0
"""Matches the parameters and buffers of a model with the tensors of its files: names, shapes, types, devices. Each
tensor of the files is used, or named; each parameter and buffer has a tensor, is computed, or is named."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch

from penstock import _core
from penstock._base import log as _log
from penstock._state import load_into as _load_into
from penstock._state.load_call import TensorInfo
from penstock.weights import _hugging_face
from penstock.weights._conversions import Converted
from penstock.weights._units import Place

_match = _core._match


def keys_of(model: torch.nn.Module, infos: dict[str, TensorInfo]) -> tuple[dict[str, str], Converted]:
    """{name of a parameter: its key in the files}; tied parameters have the key of the one that was saved. Converted
    parameters have a key too, and are added to `infos`."""
    converted = Converted((), infos)
    if _hugging_face.is_pretrained(model):
        out, conversions = _hugging_face.names_in_files(model, list(infos))
        given = list(infos.values())
        try:
            converted = Converted(conversions, infos)
        except NotImplementedError as error:
            raise NotImplementedError("; ".join(filter(None, [str(error), _quantized(given)]))) from error
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
        raise _missing(weights, missing)
    for place in places:
        _check_like(weights, place.full_name, place.parameter)
        if not place.parameter.is_meta:
            raise ValueError(
                f"stream: {place.full_name} is in memory already; make the model on the meta device: `with "
                "torch.device('meta'): model = ...`, or give its class if it is one of transformers or diffusers"
            )


def _missing(weights: Any, missing: list[str]) -> Exception:
    model = weights.model()
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    what = f"stream: no file of '{weights.files}' has {', '.join(missing[:3])}{more}, which the model needs; "
    if quantized := _quantized(weights.in_files):
        return NotImplementedError(what + quantized)
    own = {name for name, _ in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]}
    others = [row.name for row in weights.in_files if row.name not in own]
    if hint := _match.prefix_hint("stream", missing, others):
        return KeyError(what + hint)
    there = ", ".join([row.name for row in weights.in_files][:3])
    return KeyError(what + f"its names begin with {there}: check that the files are of this model")


def _quantized(in_files: list[TensorInfo]) -> str:
    found = _match.quantized_as([row.name for row in in_files], in_files)
    return f"the files are quantized: {found}; stream the model that is not quantized" if found else ""


def _check_like(weights: Any, name: str, wanted: torch.Tensor) -> None:
    """Refuses a tensor of another shape, or of a type that would have to be converted."""
    key = weights.keys[name]
    own = str(wanted.dtype).removeprefix("torch.")
    for info in (weights.infos[source] for source in weights.converted.sources(key)):
        if not _match.is_converted(info.dtype, own):
            what = (
                f"stream: {name}: the model wants {own}, and '{info.path}' has {info.dtype} ('{info.name}'). Only "
                "float16, bfloat16, float32 and float64 are converted to one another; "
            )
            quantized = _quantized(weights.in_files)
            raise (
                NotImplementedError(what + quantized)
                if quantized
                else ValueError(what + "make the model with the types of the files")
            )
    info = weights.infos[key]
    if tuple(info.shape) != tuple(wanted.shape):
        raise ValueError(
            f"stream: {name}: the model wants the shape {list(wanted.shape)}, "
            f"and '{info.path}' has {list(info.shape)}; check that the files are of this model"
        )


def buffers(weights: Any) -> dict[tuple[torch.nn.Module, str], str]:
    """The buffers that the files have. Refuses one that they should have and do not, and one on the meta device."""
    out: dict[tuple[torch.nn.Module, str], str] = {}
    missing = []
    for path, module in weights.model().named_modules():
        for name, buffer in module._buffers.items():
            full, is_saved = f"{path}.{name}" if path else name, name not in module._non_persistent_buffers_set
            if buffer is None:
                continue
            if is_saved and full in weights.keys:
                _check_like(weights, full, buffer)
                out[module, name] = weights.keys[full]
            elif name == "num_batches_tracked" and isinstance(module, torch.nn.modules.batchnorm._NormBase):
                module._buffers[name] = torch.zeros_like(buffer, device="cpu")  # as load_state_dict() of an old file
            elif is_saved and full not in weights.computed:
                missing.append(full)
            elif buffer.is_meta:
                raise KeyError(
                    f"stream: the buffer {full} is on the meta device, and no file of '{weights.files}' has its "
                    "values; set it before the call"
                )
    if missing:
        raise _missing(weights, missing)
    return out


# ---- what is left of the files


def check_unused(weights: Any, strict: bool) -> None:
    """Names the tensors that nothing takes: an error if one is a scale, zero point or table of one that is taken, or if
    `strict`; else a warning, unless the class of the model says that it wants none of them."""
    model, keys = weights.model(), weights.keys
    if not _hugging_face.is_pretrained(model) and (owner := _own_loading(model)):
        _log.warn(
            f"stream: {owner} has code of its own for load_state_dict(), which stream() does not run; check that the "
            "weights are those of the files without it"
        )
    state = [*model.named_parameters(remove_duplicate=False), *_saved_buffers(model)]
    taken = {source for name, _ in state if name in keys for source in weights.converted.sources(keys[name])}
    rows = weights.in_files
    for path in dict.fromkeys(row.path for row in rows if not row.path.endswith(".safetensors")):
        rows = rows + _load_into.other_scales(path, "", [row for row in rows if row.path == path])
    for scale, owner in _match.lost_scales([row.name for row in rows], rows, list(taken)):
        raise NotImplementedError(
            f"stream: '{weights.files}' has {scale}, a scale, zero point or table of {owner}, and the model does not "
            "take it: its weights would be wrong; stream the model that is not quantized"
        )
    names = {key: name for name, key in keys.items()}
    unused = {row.name: names.get(row.name, row.name) for row in weights.in_files if row.name not in taken}
    ignored = _ignored(model, {*unused, *unused.values()})
    left = [key for key, name in unused.items() if key not in ignored and name not in ignored]
    left += _differing(weights, state)
    if not left:
        return
    more = f" and {len(left) - 5} more" if len(left) > 5 else ""
    what = f"stream: nothing of the model takes {', '.join(left[:5])}{more} of '{weights.files}'"
    if strict:
        raise KeyError(f"{what}; check that the files are of this model, or leave out strict=True")
    _log.warn(what)


def _own_loading(model: torch.nn.Module) -> str:
    """A class of the user's whose load_state_dict() may change values, or whose hooks may. Empty without one."""
    for module in model.modules():
        kind = type(module)
        hooks = [*module._load_state_dict_pre_hooks.values(), *module._load_state_dict_post_hooks.values()]
        for code in (
            kind._load_from_state_dict,
            kind.load_state_dict,
            *(getattr(hook, "hook", hook) for hook in hooks),
        ):
            if not (getattr(code, "__module__", None) or "").startswith("torch."):
                return kind.__name__
    return ""


def _saved_buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [
        (f"{path}.{name}" if path else name, one)
        for path, module in model.named_modules(remove_duplicate=False)
        for name, one in module._buffers.items()
        if one is not None and name not in module._non_persistent_buffers_set
    ]


def _ignored(model: Any, names: Iterable[str]) -> set[str]:
    if _hugging_face.is_pretrained(model):
        return _hugging_face.ignored(model, names)
    patterns = [re.compile(one) for one in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    return {name for name in names if any(one.search(name) for one in patterns)}


def _differing(weights: Any, state: Iterable[tuple[str, Any]]) -> list[str]:
    """Names of modules that are in the model several times, for which the files have values of their own: the first
    name counts."""
    kept = {place.full_name for place in weights.places}
    first = {id(one): name for name, one in reversed(list(state)) if name in kept}
    out = []
    for name, one in state:
        key, other = weights.keys.get(name), weights.keys.get(first.get(id(one), name))
        if name in kept or key == other or id(one) not in first or key in weights.converted:
            continue
        loaded = weights.files.load([key, other])
        if not torch.equal(*(loaded[each].reshape(-1).view(torch.uint8) for each in (key, other))):
            out.append(str(key))
    return out
