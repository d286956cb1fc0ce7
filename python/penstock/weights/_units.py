# SPDX-License-Identifier: Apache-2.0
"""Divides a model into units: a unit is a module whose parameters are in memory together during its call."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from penstock import _core
from penstock._base import arguments as _arguments
from penstock.weights._refusals import untraced
from penstock.weights._used import used_by

# Modules that use parameters of their children without calling these.
_ATOMIC = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)
_LISTS = (torch.nn.ModuleList, torch.nn.Sequential)
_OURS = "_penstock_call"  # an attribute of functions that put_on() sets
_CALLED = ("forward", "_call_impl")  # torch calls the second one, which calls hooks and the first one


class _OfModule:
    """Refers to a module and does not keep it: modules keep the weights, so that `del model` frees the memory."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.reference = weakref.ref(module)

    @property
    def module(self) -> Any:
        """None if the user has removed it from the model."""
        return self.reference()


class Place(_OfModule):
    """A parameter of a module."""

    def __init__(self, module: torch.nn.Module, name: str, full_name: str) -> None:
        super().__init__(module)
        self.name, self.full_name = name, full_name
        self._parameters: dict[str, Any] = module._parameters
        self._is_in_list = isinstance(module, torch.nn.RNNBase)

    @property
    def parameter(self) -> Any:
        return self._parameters[self.name]

    def put(self, parameter: Any) -> None:
        """Replaces the parameter."""
        self._parameters[self.name] = parameter
        if self._is_in_list and (module := self.module) is not None:
            module._flat_weights[module._flat_weights_names.index(self.name)] = parameter


class Unit(_OfModule):
    def __init__(self, module: torch.nn.Module, name: str, places: list[Place]) -> None:
        super().__init__(module)
        self.name, self.places = name, places
        self.bound: dict[int, list[torch.nn.Parameter]] = {}  # by slot

    def wrap(self, run: Callable[[Callable[[], Any]], Any]) -> None:
        """Makes each call a call of `run(call)`, with the hooks of the module in it. A hook of ours would not run after
        a call that Ctrl-C ends."""
        for method in _CALLED:
            self._wrap(method, run)

    def _wrap(self, method: str, run: Callable[[Callable[[], Any]], Any]) -> None:
        module: Callable[[], Any] = self.reference
        own, before = self.module.__dict__.get(method), getattr(self.module, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            its = own or getattr(type(module()), method).__get__(module())
            return run(functools.partial(its, *args, **kwargs))

        call = untraced(call)
        functools.update_wrapper(call, before, updated=())
        del call.__dict__["__wrapped__"]  # it would keep the module
        call.__dict__["__signature__"] = inspect.signature(before)
        put_on(self.module, method, call)


def put_on(module: torch.nn.Module, method: str, function: Any) -> None:
    """Sets a method on an object. taken_off() undoes it."""
    function.__dict__[_OURS] = method, module.__dict__.get(method)  # what was set on the object before
    module.__dict__[method] = function


def taken_off(module: torch.nn.Module) -> dict[str, Any]:
    """Removes from a module what put_on() set, and returns it. What others keep of it under another name, as accelerate
    keeps the forward() that it replaces, becomes the method that it was before."""
    its = module.__dict__
    ours = {name: one for name, one in its.items() if isinstance(one, types.FunctionType) and _OURS in one.__dict__}
    for name, one in ours.items():
        method, before = one.__dict__[_OURS]
        if before is None and name == method:
            del its[name]
        else:
            its[name] = before or getattr(type(module), method).__get__(module)
    return ours


def parameter_names(model: torch.nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters(remove_duplicate=False)}


def places_of(module: torch.nn.Module, prefix: str) -> list[Place]:
    out = []
    for path, child in module.named_modules(prefix=prefix, remove_duplicate=True):
        for name, parameter in child._parameters.items():
            if parameter is not None:
                out.append(Place(child, name, f"{path}.{name}" if path else name))
    return out


def _own_places(module: torch.nn.Module, prefix: str, but_rows: bool = False) -> list[Place]:
    """The parameters that the code of a module uses itself: its own, and some of its children."""
    its = [*((module, name) for name in module._parameters), *used_by(module, but_rows=but_rows)]
    used = {(id(owner), name) for owner, name in its}
    return [place for place in places_of(module, prefix) if (id(place.module), place.name) in used]


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
    rest = _own_places(module, prefix, but_rows=True)
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
    return once(units, rest)


def once(units: list[Unit], rest: list[Place]) -> tuple[list[Unit], list[Place]]:
    """Each module and each parameter once, also if the model has it in several places. What stays in memory is in no
    unit."""
    stays = {(id(place.module), place.name): place for place in reversed(rest)}
    for unit in units:
        unit.places = [place for place in unit.places if (id(place.module), place.name) not in stays]
    first = {id(unit.module): unit for unit in reversed(units)}
    return [unit for unit in units if first[id(unit.module)] is unit and unit.places], list(stays.values())[::-1]


def split(unit: Unit) -> tuple[list[Unit], list[Place]] | None:
    """The parts of a unit that is too large, or None if it cannot be divided. They have only parameters of the unit,
    which may be fewer than those of its modules. A module is not divided if it uses parameters of its children itself;
    but if it has a list of modules, these parameters stay in memory."""
    has_list = any(isinstance(child, _LISTS) for child in unit.module.modules())
    if _is_whole(unit.module) or (not has_list and used_by(unit.module, by_methods=True)):
        return None
    return once(*_parts(unit))


def _parts(unit: Unit) -> tuple[list[Unit], list[Place]]:
    units, rest = [], _own_places(unit.module, unit.name)
    for name, child in unit.module._modules.items():
        if child is None:
            continue
        path = f"{unit.name}.{name}" if unit.name else name
        if isinstance(child, _LISTS) or type(child).forward is torch.nn.Module.forward:  # it is never called itself
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
    return once(out, [place for place in places_of(model, "") if place.full_name not in inside])
