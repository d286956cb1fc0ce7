# SPDX-License-Identifier: Apache-2.0
"""Experts of a mixture: a pass reads only those that the router chose.

transformers keeps the experts of a layer in parameters whose first dimension is the expert. Its implementation "eager"
computes one expert after the other, by `self.down_proj[expert]`. This module registers the implementation "penstock",
which runs the same code with parameters that load an expert when they are indexed."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import torch

from penstock import _core
from penstock._state.load_call import TensorInfo
from penstock.weights import _refusals
from penstock.weights._conversions import Part
from penstock.weights._device import Target
from penstock.weights._turns import Turns
from penstock.weights._units import Place, Unit, put_on, taken_off

IMPLEMENTATION = "penstock"
_RUN = "_penstock_experts"  # an attribute of modules of experts
_READ_LIKELY = True  # benchmarks switch it off


def register() -> None:
    """Registers the implementation with transformers. It computes modules that are not streamed by "eager"."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, _forward)


def _forward(module: Any, *args: Any, **kwargs: Any) -> Any:
    run = module.__dict__.get(_RUN)
    eager = type(module).forward.__wrapped__
    return eager(module, *args, **kwargs) if run is None else run(functools.partial(eager, module), args, kwargs)


_Acquire = Callable[[list[int]], dict[int, list[torch.Tensor]]]


class Layer:
    """The parameters of one module of experts."""

    def __init__(self, name: str, places: list[Place]) -> None:
        self.name, self.places = name, places
        self.aways = [place.parameter for place in places]
        self._held: dict[int, list[torch.Tensor]] = {}
        self._chosen: list[int] = []

    def experts(self, infos: list[TensorInfo]) -> tuple[str, list[list[Part]]]:
        """The bytes of each expert in the tensors of the places, for the core."""
        count = self.aways[0].shape[0]
        sizes = [(info.name, info.nbytes // count) for info in infos]
        return self.name, [[(name, number * size, size) for name, size in sizes] for number in range(count)]

    def take(self, acquire: _Acquire, values: Iterable[Any]) -> None:
        """Makes the parameters load experts. `values`: arguments of the call."""
        self._chosen = self._chosen_in(values)
        for part, place in enumerate(self.places):
            place.put(_Slices(self, acquire, part))

    def give_back(self) -> None:
        for place, away in zip(self.places, self.aways, strict=True):
            place.put(away)
        self._held = {}

    def _chosen_in(self, values: Iterable[Any]) -> list[int]:
        """The experts that the router chose, in the order of "eager"."""
        for value in values:
            if isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32):
                return [number for number in torch.unique(value).tolist() if 0 <= number < self.aways[0].shape[0]]
        return []

    def expert(self, acquire: _Acquire, number: int) -> list[torch.Tensor]:
        """The part of each parameter for this expert. The call may drop experts that were held before."""
        if number not in self._held:
            self._held = {}
            self._held = acquire([number, *(later for later in self._chosen if later > number)])
        return self._held[number]


class _Slices:
    """A parameter of all experts. Indexing it by number gives an expert that is in memory."""

    def __init__(self, layer: Layer, acquire: _Acquire, part: int) -> None:
        self._layer, self._acquire, self._part = layer, acquire, part

    def __getitem__(self, number: Any) -> torch.Tensor:
        return self._layer.expert(self._acquire, int(number))[self._part]


class Experts:
    """All layers of experts of a model, in one cache. `infos`: for each layer, the tensors of its places."""

    def __init__(
        self,
        paths: list[str],
        layers: list[Layer],
        infos: list[list[TensorInfo]],
        joined: Any,
        turns: Turns,
        target: Target,
    ) -> None:
        self.layers, self._paths, self._joined = layers, paths, joined
        self._wanted = [layer.experts(its) for layer, its in zip(layers, infos, strict=True)]
        self.least = _core.least_expert_memory(paths, self._wanted, joined, target.number) if layers else 0
        self._bound: dict[int, tuple[tuple[int, int], list[torch.Tensor]]] = {}  # by slot
        self._turns, self._target = turns, target
        self._is_fixed = True
        self._core: _core.ExpertStream | None = None

    def start(self, memory: int, reserve: int | None) -> None:
        if not self.layers:
            return
        gpu, self._is_fixed = self._target.number, reserve is None
        self._core = _core.ExpertStream(self._paths, self._wanted, memory, reserve, self._joined, _READ_LIKELY, gpu)
        for number, layer in enumerate(self.layers):
            put_on(layer.places[0].module, _RUN, self._run_of(number))

    def _run_of(self, number: int) -> Callable[..., Any]:
        def run(eager: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._run(number, eager, args, kwargs)

        return run

    def _run(self, number: int, eager: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layer, acquire = self.layers[number], functools.partial(self._acquire, number)

        def give_back() -> None:
            layer.give_back()
            acquire([])

        def call() -> Any:
            with _refusals.without_backward():
                return eager(*args, **kwargs)

        take = functools.partial(layer.take, acquire, (*args, *kwargs.values()))
        return self._turns.run(take, give_back, call)

    def _acquire(self, layer: int, numbers: list[int]) -> dict[int, list[torch.Tensor]]:
        """Releases the held experts, and acquires the first of these, as many as there is room for."""
        core, out = self._core, {}
        assert core is not None
        core.release(self._target.stream())
        for place, slot in enumerate(core.acquire(layer, numbers) if numbers else ()):
            what, tensors = self._bound.get(slot, (None, []))
            if what != (layer, numbers[place]):
                shapes = (away.shape[1:] for away in self.layers[layer].aways)
                parts = zip(core.parts(place), shapes, strict=True)
                with torch.inference_mode(False):  # the next pass may be in another mode
                    tensors = [self._target.tensor(found).view(shape) for found, shape in parts]
                # On a GPU a tensor keeps its memory allocated, and acquire() may change the budget.
                if self._is_fixed or self._target.number is None:
                    self._bound[slot] = (layer, numbers[place]), tensors
            out[numbers[place]] = tensors
        return out

    def set_memory(self, memory: int, reserve: int | None) -> None:
        self._bound.clear()
        self._is_fixed = reserve is None
        if self._core is not None:
            self._core.set_memory(memory, reserve)

    def stats(self) -> dict[str, Any]:
        return {} if self._core is None else self._core.stats()

    def close(self) -> None:
        self._bound.clear()
        for layer in self.layers:
            if layer.places[0].module is not None:
                taken_off(layer.places[0].module)
        if self._core is not None:
            self._core.close()


def taken_out(units: list[Unit], can_be: Callable[[Place], bool]) -> list[Layer]:
    """Removes the experts that can be read by number from the units, and returns them."""
    out = []
    for unit in units:
        by_module: dict[int, list[Place]] = {}
        for place in unit.places:
            by_module.setdefault(id(place.module), []).append(place)
        for places in by_module.values():
            module = places[0].module
            count = getattr(module, "num_experts", None)
            its = [place for place in places if place.parameter.shape[:1] == (count,)]
            eager = getattr(type(module).forward, "__wrapped__", None)
            names = frozenset(place.name for place in its)
            if eager is not None and its and all(map(can_be, its)) and _only_indexed(eager, names):
                out.append(Layer(its[0].full_name.rpartition(".")[0], its))
                unit.places = [place for place in unit.places if place not in its]
    units[:] = [unit for unit in units if unit.places]
    return out


@functools.cache
def _only_indexed(function: Callable[..., Any], names: frozenset[str]) -> bool:
    """Whether the code of a method uses all of these attributes, each only in the form `self.name[index]`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    indexed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in names]
    return {node.attr for node in uses} == names and all(id(node) in indexed for node in uses)
