# SPDX-License-Identifier: Apache-2.0
"""The class of a streamed model: that of the model, with members more, and with those that are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from penstock.weights._away import WeightNotInMemory
from penstock.weights._refusals import refuse, untraced, without_caches

# Each of these needs all weights at once, or changes them.
_REFUSED = ("load_state_dict", "save_pretrained", "push_to_hub", "to_empty", "share_memory", "__reduce_ex__")
# These change nothing if the weights are there, and of that type. torch implements them, and others, by _apply().
_CONVERSIONS = ("to", "type", "cpu", "cuda", "half", "float", "double", "bfloat16")
_ALIASES = {"__reduce_ex__": "pickling and copying"}


def _refusing(name: str) -> Any:
    def refused(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(_ALIASES.get(name, f"{name}()"))

    return refused


def _converting(cls: type, name: str) -> Any:
    """The method of a class, which comes to _apply() of the streamed model."""

    def converted(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(cls, name)(self, *args, **kwargs)
        except Exception as error:
            refuse(f"{name}()", error)

    return converted


def apply(module: Any, weights: Any, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> Any:
    """Module._apply() of a streamed model or a part of it, for a function that leaves each parameter as it is. Buffers
    are in memory, and get its results."""
    modules = list(module.modules()) if recurse else [module]
    with contextlib.nullcontext() if weights is None else weights.turns.turn(), torch.no_grad():
        its = {id(one): one for module in modules for one in module._parameters.values() if one is not None}
        if not all(_stays(one, function) for one in its.values()):
            refuse("_apply()")
        for one in modules:
            one._buffers.update({name: function(its) for name, its in one._buffers.items() if its is not None})
    return module


def _stays(tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether a function returns a tensor as it is. It gets another one like it, without values."""
    like = WeightNotInMemory.made(tensor, tensor.device, "", "")
    try:
        return function(like) is like
    except Exception:
        return False


_classes: dict[type, type] = {}


def streamed(cls: type, change_memory: Callable[[Any, int | str | None, int | str | None], None]) -> type:
    """A class of the same name, with the members of a streamed model and its refusals. change_memory: set_memory()."""
    if cls in _classes:
        return _classes[cls]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        weights = self.__dict__.get("_penstock_weights")  # None after unstream(), if torch.compile() has this method
        if weights is None:
            return cls.__call__(self, *args, **kwargs)
        with weights.turns.turn(), without_caches():  # passes run one after the other
            return cls.__call__(self, *args, **kwargs)

    def train(self: Any, mode: bool = True) -> Any:
        return refuse("train()") if mode else cls.train(self, False)

    def _apply(self: Any, function: Any, recurse: bool = True) -> Any:
        return apply(self, self._penstock_weights, function, recurse)

    def unstream(self: Any) -> Any:
        """Loads all weights. Afterwards the model is no longer streamed."""
        weights = self._penstock_weights
        with weights.turns.turn():
            weights.check_idle("unstream()")
            weights.close(load=True)
            del self.__dict__["_penstock_weights"]
            self.__class__ = cls
        return self

    def set_memory(self: Any, memory: int | str | None = None, *, device_memory: int | str | None = None) -> None:
        """Changes the budget between two units; with a GPU its device_memory."""
        change_memory(self, memory, device_memory)

    members: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__call__": untraced(call),
        "train": train,
        "unstream": unstream,
        "stream_stats": lambda self: self._penstock_weights.stats(),
        "set_memory": set_memory,
        "_apply": _apply,
    }
    members.update({name: _converting(cls, name) for name in _CONVERSIONS if hasattr(cls, name)})
    members.update({name: _refusing(name) for name in _REFUSED if hasattr(cls, name)})
    try:
        made = type(cls)(cls.__name__, (cls,), members)
    except Exception:  # __init_subclass__() wants an argument, or refuses a name that it has
        made = type(cls)(cls.__name__, (torch.nn.Module,), members)
        made.__bases__ = (cls,)
    _classes[cls] = made
    return _classes[cls]
