# SPDX-License-Identifier: Apache-2.0
"""Tensors in the place of parameters that are not in memory. A tensor on the meta device would not do: operations that
mix it with a tensor of the CPU return memory without values, and raise nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.utils import _pytree

from penstock.weights import _refusals


def _untouchable(name: str) -> Any:
    def refused(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        self.refuse(name)

    return refused


class WeightNotInMemory(torch.Tensor):
    """Has the device, dtype and shape of a parameter, and no memory. Operations on it are refused with its name and
    `cure`, unless instead() returns the result or there() returns the parameter."""

    _is_param = True  # so it is an instance of torch.nn.Parameter
    __torch_function__ = torch._C._disabled_torch_function_impl

    full_name: str
    cure: str
    there: Callable[[], torch.Tensor | None]
    instead: Callable[..., torch.Tensor | None]

    @staticmethod
    def made(like: torch.Tensor, device: torch.device, name: str, cure: str) -> WeightNotInMemory:
        with torch.inference_mode(False):
            made: Any = torch.Tensor._make_wrapper_subclass(
                WeightNotInMemory, like.shape, strides=like.stride(), dtype=like.dtype, device=device
            )
        torch._C._set_throw_on_mutable_data_ptr(made)  # for code in C++
        made.full_name, made.cure, made.there, made.instead = name, cure, lambda: None, lambda *_: None
        return made.requires_grad_(like.requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Refuses backward(), which would come to the gradient of this parameter."""
        super().requires_grad_(requires_grad)
        if requires_grad and not self._backward_hooks and not self.is_inference():
            self.register_hook(_refusals.refuse_backward)
        return self

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operation is torch.ops.aten.detach.default:  # .data, state_dict()
            return args[0]._again()
        used = [one for one in _pytree.tree_leaves((args, kwargs)) if isinstance(one, WeightNotInMemory)]
        if any(isinstance(one, WeightNotInMemory) for one in _changed(operation, args, kwargs)):
            used[0].refuse(f"{operation}, which changes it", "Weights that are streamed do not change")
        result = used[0].instead(operation, args)
        if result is not None:
            return result
        there = {id(one): one.there() for one in used}
        for one in used:
            if there[id(one)] is None:
                one.refuse(str(operation))
        args, kwargs = _pytree.tree_map_only(WeightNotInMemory, lambda one: there[id(one)], (args, kwargs))
        return operation(*args, **kwargs)

    def _again(self) -> WeightNotInMemory:
        again = WeightNotInMemory.made(self, self.device, self.full_name, self.cure).requires_grad_(False)
        again.there, again.instead = self.there, self.instead
        return again

    def refuse(self, what: str, cure: str = "") -> NoReturn:
        cure = cure or self.cure
        raise RuntimeError(f"{self.full_name} was used by {what}. {cure}. Or model.unstream() loads all weights")

    def __repr__(self, **_: Any) -> str:
        return f"WeightNotInMemory({self.full_name}, {tuple(self.shape)}, {self.dtype})"


# These do not come to __torch_dispatch__.
for _name in ("data_ptr", "untyped_storage", "storage", "numpy", "tolist", "share_memory_", "__array__", "__dlpack__"):
    setattr(WeightNotInMemory, _name, _untouchable(f"{_name}()"))
for _name in ("__reduce_ex__", "__deepcopy__"):
    setattr(WeightNotInMemory, _name, _untouchable("pickling or copying"))
WeightNotInMemory.data = property(lambda self: self.detach(), _untouchable("an assignment to its .data"))  # type: ignore[assignment]


def _changed(operation: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operation writes to."""
    if not operation._schema.is_mutable:
        return []
    named = {one.name: value for one, value in zip(operation._schema.arguments, args, strict=False)} | kwargs
    writes = (one.name for one in operation._schema.arguments if one.alias_info and one.alias_info.is_write)
    return _pytree.tree_leaves([named.get(name) for name in writes])


def is_away(parameter: Any) -> bool:
    """Whether a parameter of a streamed model is not in memory, because its unit is not in use."""
    return isinstance(parameter, WeightNotInMemory)
