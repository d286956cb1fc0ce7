# SPDX-License-Identifier: Apache-2.0
"""Refuses operations that a streamed model cannot do, with the reason: the class of such a model, and backward()."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any, NoReturn

import torch

# Each of these needs all weights at once, or moves them. torch implements the other such methods by _apply().
_REFUSED = (
    "load_state_dict", "save_pretrained", "push_to_hub", "to", "to_empty", "type", "cpu", "cuda", "half",
    "float", "double", "bfloat16", "share_memory", "_apply", "__reduce_ex__",
)  # fmt: skip
_ALIASES = {"__reduce_ex__": "pickling and copying"}


def refuse(what: str) -> NoReturn:
    raise RuntimeError(
        f"{what}: the weights of this model are streamed, and outside their layer's turn they are not in memory; "
        "model.unstream() loads them all"
    )


def _refusing(name: str) -> Any:
    def refused(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(_ALIASES.get(name, f"{name}()"))

    return refused


def _keep_nothing(tensor: torch.Tensor) -> None:
    """Refuses to save a tensor for backward(): by then its memory holds the weights of another unit."""


def refuse_backward(unused: Any) -> NoReturn:
    refuse("backward()")


def without_backward() -> Any:
    """A context for calls, also in grad mode: torch saves nothing for backward(), and a later backward() is refused."""
    if not torch.is_grad_enabled():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_keep_nothing, refuse_backward)


def bound(tensor: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    """A parameter for the duration of a call; it never gets a gradient."""
    parameter = torch.nn.Parameter(tensor, requires_grad)
    if requires_grad and not tensor.is_inference():
        parameter.register_hook(refuse_backward)
    return parameter


def untraced(function: Any) -> Any:
    """The function, which torch.compile() does not trace: it would trace the reads. The import of the compiler takes a
    second, so it is left to those who use it."""

    @functools.cache
    def disabled() -> Any:
        return torch.compiler.disable(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return (disabled() if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return call


_classes: dict[type, type] = {}


def streamed(cls: type) -> type:
    """A class of the same name, with the members of a streamed model and its refusals."""
    if cls in _classes:
        return _classes[cls]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._penstock_weights.turns.turn():  # passes run one after the other
            return cls.__call__(self, *args, **kwargs)

    def train(self: Any, mode: bool = True) -> Any:
        return refuse("train()") if mode else cls.train(self, False)

    def unstream(self: Any) -> Any:
        """Loads all weights. Afterwards the model is no longer streamed."""
        weights = self._penstock_weights
        with weights.turns.turn():
            weights.check_idle("unstream()")
            weights.close(load=True)
            del self.__dict__["_penstock_weights"]
            self.__class__ = cls
        return self

    def set_memory(self: Any, memory: int | str) -> None:
        from penstock.weights._stream import set_memory

        set_memory(self, memory)

    members: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__call__": untraced(call),
        "train": train,
        "unstream": unstream,
        "stream_stats": lambda self: self._penstock_weights.stats(),
        "set_memory": set_memory,
    }
    members.update({name: _refusing(name) for name in _REFUSED if hasattr(cls, name)})
    try:
        made = type(cls)(cls.__name__, (cls,), members)
    except Exception:  # __init_subclass__() wants an argument, or refuses a name that it has
        made = type(cls)(cls.__name__, (torch.nn.Module,), members)
        made.__bases__ = (cls,)
    _classes[cls] = made
    return _classes[cls]
