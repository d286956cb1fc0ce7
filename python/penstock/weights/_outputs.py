# SPDX-License-Identifier: Apache-2.0
"""The results of a call of a unit. Its weights are in memory only until it returns, so no result may use their memory,
and no change of them may be kept."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

from penstock.weights import _refusals


def lasting(out: Any, bound: list[torch.Tensor]) -> Any:
    """The result of a call, with a copy of each tensor that uses the memory of the parameters. Refuses backward()
    through its tensors: an autograd.Function may have kept a parameter in another way than torch saves tensors."""
    addresses = {_address(one) for one in bound} - {0}
    tensors = [one for one in _pytree.tree_leaves(out) if isinstance(one, torch.Tensor)]
    if any(_address(one) in addresses for one in tensors):
        out = _pytree.tree_map_only(torch.Tensor, lambda one: one.clone() if _address(one) in addresses else one, out)
    for one in tensors:
        if one.grad_fn is not None:
            one.register_hook(_refusals.refuse_backward)  # type: ignore[no-untyped-call]
    return out


def versions(bound: list[torch.Tensor]) -> list[int]:
    """A number for each parameter, which rises when an operation changes it in place."""
    return [one._version for one in bound]


def _address(tensor: torch.Tensor) -> int:
    """The begin of the memory that a tensor is a part of; 0 if it has none, as in torch.func and on the meta device."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
