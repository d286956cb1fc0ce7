# SPDX-License-Identifier: Apache-2.0
"""Tensors in the place of parameters that are not in memory. A tensor on the meta device would not do: operations that
mix it with a tensor of the CPU return memory without values, and raise nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

import torch
from torch.utils import _pytree

from penstock.weights import _refusals


def _untouchable(name: str) -> Any:
    def refused(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.refuse(name)

    return refused


class Home:
    """The place of a parameter in a unit, by their numbers. It is in memory also outside the call of the unit, if the
    unit stays there as a whole."""

    def __init__(self, weights: Callable[[], Any] = lambda: None, number: int = 0, index: int = 0) -> None:
        """weights(): the _Weights of the model, or None."""
        self._weights, self._number, self._index = weights, number, index

    @contextlib.contextmanager
    def there(self) -> Iterator[torch.Tensor | None]:
        """The parameter during a block, or None if it is not in memory."""
        weights = self._weights()
        if weights is None:
            yield None
            return
        with weights.turns.turn():
            found = weights.resident(self._number)
            yield None if found is None else found[self._index]

    def lasts(self) -> bool:
        """Whether its memory keeps its values after the block, until set_memory()."""
        weights = self._weights()
        return weights is not None and weights.is_fixed


class WeightNotInMemory(torch.Tensor):
    """Has the device, dtype and shape of a parameter, and no memory. Operations on it are refused with its name and
    `hint`, unless instead() returns the result or its home has the parameter."""

    _is_param = True  # so it is an instance of torch.nn.Parameter
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    full_name: str
    hint: str
    home: Home
    instead: Callable[..., torch.Tensor | None]

    @staticmethod
    def made(like: torch.Tensor, device: torch.device, name: str, hint: str) -> WeightNotInMemory:
        with torch.inference_mode(False):
            made: Any = torch.Tensor._make_wrapper_subclass(
                WeightNotInMemory, like.shape, strides=like.stride(), dtype=like.dtype, device=device
            )
        torch._C._set_throw_on_mutable_data_ptr(made)  # for code in C++
        made.full_name, made.hint, made.home, made.instead = name, hint, Home(), lambda *_: None
        made.requires_grad_(like.requires_grad)
        return cast("WeightNotInMemory", made)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Refuses backward(), which would come to the gradient of this parameter."""
        super().requires_grad_(requires_grad)
        if requires_grad and not self._backward_hooks and not self.is_inference():
            self.register_hook(_refusals.refuse_backward)  # type: ignore[no-untyped-call]
        return self

    @classmethod
    @_refusals.untraced
    def __torch_dispatch__(cls, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        operation, kwargs = func, kwargs or {}
        if operation is torch.ops.aten.detach.default:  # .data, state_dict()
            return args[0]._again()
        used = [one for one in _pytree.tree_leaves((args, kwargs)) if isinstance(one, WeightNotInMemory)]
        if any(isinstance(one, WeightNotInMemory) for one in _changed(operation, args, kwargs)):
            used[0].refuse(f"{operation}, which changes it", "Weights that are streamed do not change")
        result = used[0].instead(operation, args) if args and args[0] is used[0] else None
        if result is not None:
            return result
        with contextlib.ExitStack() as stack:
            there = {id(one): stack.enter_context(one.home.there()) for one in used}
            for one in used:
                if there[id(one)] is None:
                    one.refuse(str(operation))
            args, kwargs = _pytree.tree_map_only(WeightNotInMemory, lambda one: there[id(one)], (args, kwargs))
            out = operation(*args, **kwargs)
            passing = {there[id(one)].untyped_storage().data_ptr() for one in used if not one.home.lasts()}
            return _pytree.tree_map_only(torch.Tensor, lambda one: _apart(one, passing), out) if passing else out

    def _again(self) -> WeightNotInMemory:
        again = WeightNotInMemory.made(self, self.device, self.full_name, self.hint)
        again.requires_grad_(False)
        again.home, again.instead = self.home, self.instead
        return again

    def refuse(self, what: str, hint: str = "") -> NoReturn:
        hint = hint or self.hint
        raise RuntimeError(f"{self.full_name} was used by {what}. {hint}. Or model.unstream() loads all weights")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"WeightNotInMemory({self.full_name}, {tuple(self.shape)}, {self.dtype})"


# These do not come to __torch_dispatch__.
for _name in ("data_ptr", "untyped_storage", "storage", "numpy", "tolist", "share_memory_", "__array__", "__dlpack__"):
    setattr(WeightNotInMemory, _name, _untouchable(f"{_name}()"))
for _name in ("__reduce_ex__", "__deepcopy__"):
    setattr(WeightNotInMemory, _name, _untouchable("pickling or copying"))


def _set_data(away: WeightNotInMemory, value: Any) -> None:
    """Module.to() and the like assign a tensor that they left as it is."""
    if value is not away:
        away.refuse("an assignment to its .data")


_data: Any = property(lambda self: self.detach(), _set_data)
WeightNotInMemory.data = _data


def _apart(tensor: torch.Tensor, addresses: set[int]) -> torch.Tensor:
    """The tensor, or a copy if its memory is among these."""
    return tensor.clone() if tensor.untyped_storage().data_ptr() in addresses else tensor


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
