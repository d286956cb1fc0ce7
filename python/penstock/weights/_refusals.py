# SPDX-License-Identifier: Apache-2.0
"""What a model whose weights are streamed cannot do, refused with the reason: its class, and backward()."""

from __future__ import annotations

import contextlib
from typing import Any, NoReturn

import torch

# Each needs all weights at once, or takes them elsewhere. _apply() is what torch makes the others of.
_REFUSED = (
    "state_dict", "load_state_dict", "save_pretrained", "push_to_hub", "to", "to_empty", "type", "cpu", "cuda", "half",
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
    """What backward() would need of a unit's call: memory that has the weights of another unit by then."""


def _refuse_backward(unused: Any) -> NoReturn:
    refuse("backward()")


def without_backward() -> Any:
    """A context for calls, in grad mode too: torch saves nothing for backward(), which is refused when it comes."""
    if not torch.is_grad_enabled():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_keep_nothing, _refuse_backward)


def bound(tensor: torch.Tensor, meta: torch.nn.Parameter) -> torch.nn.Parameter:
    """A parameter for the time of a call, which never gets a gradient."""
    parameter = torch.nn.Parameter(tensor, meta.requires_grad)
    if meta.requires_grad and not tensor.is_inference():
        parameter.register_hook(_refuse_backward)
    return parameter


_classes: dict[type, type] = {}


def streamed(cls: type) -> type:
    """The model's class with what a streamed model can do, and cannot, under the same name."""
    if cls in _classes:
        return _classes[cls]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._penstock_weights.turn():  # one pass after the other
            return cls.__call__(self, *args, **kwargs)

    def train(self: Any, mode: bool = True) -> Any:
        return refuse("train()") if mode else cls.train(self, False)

    def unstream(self: Any) -> Any:
        """Loads all weights; from here on it is the model that it was."""
        weights = self._penstock_weights
        with weights.turn():
            weights.close(load=True)
            del self.__dict__["_penstock_weights"]
            self.__class__ = cls
        return self

    members: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__call__": call,
        "train": train,
        "unstream": unstream,
        "stream_stats": lambda self: self._penstock_weights.stats(),
        "set_memory": lambda self, memory: self._penstock_weights.set_memory(memory),
    }
    members.update({name: _refusing(name) for name in _REFUSED if hasattr(cls, name)})
    if isinstance(getattr(cls, "device", None), property):
        members["device"] = property(lambda self: torch.device("cpu"))
    _classes[cls] = type(cls)(cls.__name__, (cls,), members)
    return _classes[cls]
