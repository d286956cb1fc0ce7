# SPDX-License-Identifier: Apache-2.0
"""Parts of a streamed model, as libraries use them: a conversion that changes nothing, and a copy, which PEFT makes of
each module that an adapter has whole (modules_to_save)."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from penstock import _core
from penstock.weights._away import WeightNotInMemory
from penstock.weights._class import apply
from penstock.weights._refusals import refuse
from penstock.weights._units import Place, put_on, taken_off


def adapt(weights: Any) -> None:
    """Sets the two methods on each module of a model but the model itself, whose class has them."""
    for part in weights.model().modules():
        if part is not weights.model():
            _adapt(part, weakref.ref(part), weakref.ref(weights))


def _adapt(part: torch.nn.Module, module: weakref.ref[Any], weights: weakref.ref[Any]) -> None:
    def applied(function: Any, recurse: bool = True) -> Any:
        return apply(module(), weights(), function, recurse)

    def copied(memo: dict[int, Any]) -> Any:
        return _copied(module(), weights(), memo)

    put_on(part, "_apply", applied)
    put_on(part, "__deepcopy__", copied)


def restore(parts: Iterable[weakref.ref[torch.nn.Module]]) -> None:
    """Removes all methods that were set on modules."""
    for part in parts:
        if (module := part()) is not None:
            taken_off(module)


def _copied(module: Any, weights: Any, memo: dict[int, Any]) -> Any:
    """A copy of a module, in memory, with the values of the files. It is an ordinary one."""
    if weights is None:
        refuse("copying a part of it")
    with weights.turns.turn():
        there = [place for place, _ in weights.metas if place.module is not None]
        wanted = {id(one): one for one in module.parameters() if isinstance(one, WeightNotInMemory)}
        places = {id(place.parameter): place for place in there if id(place.parameter) in wanted}
        memo.update(zip(places, _parameters(weights, list(places.values())), strict=True))
        removed = [(part, taken_off(part)) for part in module.modules()]
        try:
            return copy.deepcopy(module, memo)
        finally:
            for part, ours in removed:
                part.__dict__.update(ours)


def _parameters(weights: Any, places: list[Place]) -> list[torch.nn.Parameter]:
    wanted, there = weights._bytes(places), _core.available_memory_bytes()
    if wanted > there:
        raise MemoryError(
            f"copying a part of a streamed model: the copy has {wanted} bytes of weights in memory; {there} are free"
        )
    tensors = zip(places, weights._load(places), strict=True)
    return [torch.nn.Parameter(one.to(place.parameter.dtype), place.parameter.requires_grad) for place, one in tensors]
