# SPDX-License-Identifier: Apache-2.0
"""Divides a model into units: a unit is a module whose parameters are in memory together during its call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from penstock import _arguments, _core

# Modules that use parameters of their children without calling these.
_ATOMIC = (torch.nn.MultiheadAttention,)
_LISTS = (torch.nn.ModuleList, torch.nn.Sequential)


@dataclass
class Place:
    """A parameter of a module."""

    module: torch.nn.Module
    name: str
    full_name: str

    @property
    def parameter(self) -> torch.nn.Parameter:
        return self.module._parameters[self.name]


@dataclass
class Unit:
    module: torch.nn.Module
    name: str
    places: list[Place]
    bound: dict[int, list[torch.nn.Parameter]] = field(default_factory=dict)  # by slot
    unwrapped: Any = None  # the module's forward() before wrap()

    def wrap(self, during: Callable[[], Any]) -> None:
        """Makes each call run inside the context of `during()`. A hook would not run after a call that Ctrl-C ends."""
        forward = self.module.forward

        @functools.wraps(forward)
        def call(*args: Any, **kwargs: Any) -> Any:
            with during():
                return forward(*args, **kwargs)

        self.unwrapped = forward
        self.module.__dict__["forward"] = call

    def unwrap(self) -> None:
        """Undoes wrap(). Does nothing if the module is not wrapped."""
        if self.unwrapped is None:
            return
        del self.module.__dict__["forward"]
        if self.module.forward != self.unwrapped:  # forward was set on the object, as accelerate does
            self.module.__dict__["forward"] = self.unwrapped
        self.unwrapped = None


def places_of(module: torch.nn.Module, prefix: str) -> list[Place]:
    out = []
    for path, child in module.named_modules(prefix=prefix, remove_duplicate=True):
        for name, parameter in child._parameters.items():
            if parameter is not None:
                out.append(Place(child, name, f"{path}.{name}" if path else name))
    return out


def _own_places(module: torch.nn.Module, prefix: str) -> list[Place]:
    return [
        Place(module, name, f"{prefix}.{name}" if prefix else name)
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]


def _is_whole(module: torch.nn.Module) -> bool:
    """Whether its children have no parameters, or are not called."""
    children = (child for child in module._modules.values() if child is not None)
    return isinstance(module, _ATOMIC) or not any(next(child.parameters(), None) is not None for child in children)


def _layer_units(module: torch.nn.Module, name: str) -> list[Unit]:
    """The units of a layer. Experts in a list are separate units, because a router calls only some of them."""
    lists = [
        (path, child)
        for path, child in module.named_modules(prefix=name)
        if isinstance(child, torch.nn.ModuleList) and path.rpartition(".")[2] == "experts"
    ]
    experts = [
        Unit(expert, f"{path}.{key}", places_of(expert, f"{path}.{key}"))
        for path, child in lists
        for key, expert in child._modules.items()
        if expert is not None
    ]
    theirs = {place.full_name for unit in experts for place in unit.places}
    rest = [place for place in places_of(module, name) if place.full_name not in theirs]
    return [unit for unit in (Unit(module, name, rest), *experts) if unit.places]


def find_units(module: torch.nn.Module, prefix: str = "") -> tuple[list[Unit], list[Place]]:
    """The units of a model in the order of its modules, and the parameters of modules that only contain other modules;
    those parameters stay in memory. Each child of a list of modules (the decoder layers) is a unit, and so is each
    expert of a list in a layer."""
    units: list[Unit] = []
    if _is_whole(module):
        places = places_of(module, prefix)
        return ([Unit(module, prefix, places)] if places else []), []
    rest = _own_places(module, prefix)
    for name, child in module._modules.items():
        if child is None:
            continue
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(module, _LISTS):
            units += _layer_units(child, path)
        else:
            more, own = find_units(child, path)
            units += more
            rest += own
    return units, rest


def split(unit: Unit) -> tuple[list[Unit], list[Place]] | None:
    """The parts of a unit that is too large, or None if it cannot be divided. They have only parameters of the unit,
    which may be fewer than those of its modules."""
    if _is_whole(unit.module):
        return None
    units, rest = _parts(unit)
    names = {place.full_name for place in unit.places}
    for part in units:
        part.places = [place for place in part.places if place.full_name in names]
    return [part for part in units if part.places], [place for place in rest if place.full_name in names]


def _parts(unit: Unit) -> tuple[list[Unit], list[Place]]:
    units, rest = [], _own_places(unit.module, unit.name)
    for name, child in unit.module._modules.items():
        if child is None:
            continue
        path = f"{unit.name}.{name}"
        if isinstance(child, _LISTS):  # a list is never called itself
            more, own = find_units(child, path)
            units += more
            rest += own
        else:
            units.append(Unit(child, path, places_of(child, path)))
    its = {place.full_name for place in unit.places}  # other parameters of the module are in other units
    for part in units:
        part.places = [place for place in part.places if place.full_name in its]
    return [part for part in units if part.places], [place for place in rest if place.full_name in its]


def named(units: Any, model: torch.nn.Module) -> tuple[list[Unit], list[Place]]:
    """The units that the caller names; all other parameters stay in memory."""
    modules = dict(model.named_modules())
    if isinstance(units, str):
        raise TypeError(f"stream: units: expected a list of names of modules, got {units!r} (str): [{units!r}] is one")
    out, inside = [], {}
    for name in _arguments.texts("stream", "units", units):
        if name not in modules:
            near = _core.nearest(name, [known for known in modules if known])
            hint = f"did you mean '{near}'?" if near else "check model.named_modules()"
            raise KeyError(f"stream: units: the model has no module '{name}'; {hint}")
        unit = Unit(modules[name], name, places_of(modules[name], name))
        twice = next((inside[place.full_name] for place in unit.places if place.full_name in inside), None)
        if twice is not None:
            raise ValueError(
                f"stream: units: '{name}' and '{twice}' have the same parameters; give names of modules of which none "
                "is in another"
            )
        out.append(unit)
        inside |= {place.full_name: name for place in unit.places}
    rest = [place for place in places_of(model, "") if place.full_name not in inside]
    return out, rest
