# SPDX-License-Identifier: Apache-2.0
"""Constructs a model whose parameters have no memory and whose buffers have their values: no file has those that a
constructor computes."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

_LARGE_BYTES = 64 << 20  # more than this is not given memory, not even until it becomes a parameter
# From here on torch.empty(), which makes parameters, gives a mapping of its own. The kernel takes it back when the
# tensor becomes a parameter. malloc() would keep it: others use what lies between aligned blocks, so the next block
# does not fit where the last one was. A model of 2 GB left 1.5 GB of such gaps, which computing then filled with pages,
# outside the budget.
_MAPPED_BYTES = 128 << 10
_MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)


class _SmallInMemory(TorchFunctionMode):
    """New tensors are on the CPU, large ones on the meta device."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in _MAKERS and kwargs.get("device") is None:
            outline = function(*args, **{**kwargs, "device": "meta"})
            if outline.nbytes > _LARGE_BYTES:
                return outline
            plain = function is torch.empty and kwargs.keys() <= {"dtype", "device"}
            if plain and outline.nbytes >= _MAPPED_BYTES:
                memory = mmap.mmap(-1, outline.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                return torch.frombuffer(memory, dtype=outline.dtype).view(outline.shape)
        return function(*args, **kwargs)


def on_meta(make: Callable[[], Any]) -> Any:
    """make() on the meta device."""
    with torch.device("meta"):
        return make()


def with_buffers(make: Callable[[], Any]) -> Any:
    """make() with parameters on the meta device and buffers on the CPU. A model that cannot be made so is all on the
    meta device. Random numbers of the caller stay as they are."""
    owner, moved = threading.get_ident(), WeakTensorKeyDictionary()

    def register(module: torch.nn.Module, name: str, parameter: Any) -> Any:
        if threading.get_ident() == owner:  # the hook is called for modules of all threads
            return _moved(parameter, moved)
        return None

    hook = register_module_parameter_registration_hook(register)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), _SmallInMemory():
            return make()
    except Exception:  # for example, it puts tensors with memory into those without
        pass
    finally:
        hook.remove()
    return on_meta(make)


def _moved(parameter: Any, moved: Any) -> Any:
    """The same parameter without memory. One that is registered twice remains one object."""
    if parameter is None or parameter.is_meta or torch.nn.parameter.is_lazy(parameter):
        return None
    if parameter not in moved:
        made = torch.nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        made.__dict__.update(parameter.__dict__)
        moved[parameter] = made
    return moved[parameter]


def move_parameters(model: Any) -> None:
    """Moves the parameters that a model has in memory all the same."""
    moved: Any = WeakTensorKeyDictionary()
    for module in model.modules():
        for name, one in module._parameters.items():
            if (made := _moved(one, moved)) is not None:
                module._parameters[name] = made
