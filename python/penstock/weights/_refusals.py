# SPDX-License-Identifier: Apache-2.0
"""Refuses operations that a streamed model cannot do, with the reason: the class of such a model, and backward()."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from penstock._base import modes as _modes

# Each of these needs all weights at once, or changes them.
_REFUSED = ("load_state_dict", "save_pretrained", "push_to_hub", "to_empty", "share_memory", "__reduce_ex__")
# These change nothing if the weights are there, and of that type. torch implements them, and others, by _apply().
_CONVERSIONS = ("to", "type", "cpu", "cuda", "half", "float", "double", "bfloat16")
_ALIASES = {"__reduce_ex__": "pickling and copying"}
_UNTRACED = "penstock.stream() reads the weights of a layer when it is called"


def refuse(what: str, because: BaseException | None = None) -> NoReturn:
    raise RuntimeError(
        f"{what}: the weights of this model are streamed, and outside their layer's turn they are not in memory; "
        "model.unstream() loads them all"
    ) from because


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


def _keep_nothing(tensor: torch.Tensor) -> None:
    """Refuses to save a tensor for backward(): by then its memory holds the weights of another unit."""


def refuse_backward(unused: Any) -> NoReturn:
    refuse("backward()")


def without_backward() -> Any:
    """A context for calls, also in grad mode: torch saves nothing for backward(), and a later backward() is refused."""
    if not torch.is_grad_enabled():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_keep_nothing, refuse_backward)


@contextlib.contextmanager
def without_caches() -> Iterator[None]:
    """A context in which torch keeps nothing of weights: torch.autocast() keeps copies of all until it ends, beyond the
    budget. What parametrize.cached() keeps of a weight may be the weight itself, whose memory is that of another unit
    after the call. (Parameters that require no gradients would not be copied either; but torch chooses by that how it
    computes products, and so their bits.)"""
    parametrize = sys.modules.get("torch.nn.utils.parametrize")
    copies, count = torch.is_autocast_cache_enabled(), parametrize and parametrize._cache_enabled
    torch.set_autocast_cache_enabled(False)
    if parametrize:
        parametrize._cache_enabled = 0  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(copies)
        if parametrize:
            parametrize._cache_enabled = count  # type: ignore[attr-defined]


def bound(tensor: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    """A parameter for the duration of a call; it never gets a gradient."""
    parameter = torch.nn.Parameter(tensor, requires_grad)
    if requires_grad and not tensor.is_inference():
        parameter.register_hook(refuse_backward)
    return parameter


def untraced(function: Any) -> Any:
    """The function, which torch.compile() does not trace: it would trace the reads."""

    disabled: list[Any] = []  # functools.cache would be a warning of the compiler

    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return _modes.untraced(call, _UNTRACED)


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
    from penstock.weights._away import WeightNotInMemory

    like = WeightNotInMemory.made(tensor, tensor.device, "", "")
    try:
        return function(like) is like
    except Exception:
        return False


_classes: dict[type, type] = {}


def streamed(cls: type) -> type:
    """A class of the same name, with the members of a streamed model and its refusals."""
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
        from penstock.weights._stream import set_memory

        set_memory(self, memory, device_memory)

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
