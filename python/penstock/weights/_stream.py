# SPDX-License-Identifier: Apache-2.0
"""penstock.stream(): the budget, and the calls of modules."""

from __future__ import annotations

import contextlib
import copy
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from penstock import _core
from penstock._base.arguments import flag, got, whole
from penstock._base.progress import Progress, reporter
from penstock.weights import _device, _diffusers, _experts, _hugging_face, _matching, _outputs, _parts, _refusals
from penstock.weights._away import Home, WeightNotInMemory
from penstock.weights._class import streamed
from penstock.weights._experts import Experts, taken_out
from penstock.weights._folders import Folders, component, paths_of, weights_in
from penstock.weights._live import Live
from penstock.weights._rows import Rows
from penstock.weights._stats import StreamStats, stats_of
from penstock.weights._turns import Turns
from penstock.weights._units import Place, Unit, find_units, named, once, parameter_names, split

_EXPERTS_LEAVE_BYTES = 64 << 20
# Bytes that a tensor takes beyond its own: pages at both ends that no other has, or the rest of a block of a GPU.
_PLACE_BYTES, _GPU_PLACE_BYTES = 2 << 12, 2 << 20


def start(
    model: Any,
    folder: Any,
    memory: int | str,
    units: Iterable[str] | None,
    slots: int,
    progress: Progress,
    device: Any,
    device_memory: int | str | None,
    strict: bool,
) -> Any:
    target = _device.target_of(device, device_memory, memory)
    is_made = model is None or isinstance(model, type)
    paths = [component(path, always=is_made) for path in paths_of(folder, "stream")]
    if len(paths) == 1:
        paths = [weights_in(paths[0])]
    if is_made:
        folders = [path if path.is_dir() else path.parent for path in paths]
        folder = next((one for one in folders if (one / "config.json").exists()), folders[0])
        source = _diffusers if _diffusers.is_class(model, folder) else _hugging_face
        model = source.made(model, folder, list(Folders(paths).infos.values()))
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"stream: model: expected a torch.nn.Module, a class or None, got {got(model)}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("stream: model: a model of torch.jit holds its weights itself; give the model it was made from")
    if hasattr(model, "_penstock_weights"):
        raise ValueError("stream: this model is streamed already; model.unstream() comes first")
    slots, strict = whole("stream", "slots", slots, 2, 1024), bool(flag("stream", "strict", strict))
    kind = streamed(type(model), set_memory)
    model.eval()  # as from_pretrained() does: dropout would give other results
    files = Folders(paths)
    files.compare_copies()
    weights = _Weights(model, files, target.memory, units, slots, reporter(progress, "stream"), target, strict=strict)
    if progress is True:
        weights.show_in(Live())
    model.__dict__["_penstock_weights"] = weights
    model.__class__ = kind
    return model


def set_memory(model: Any, memory: int | str | None, device_memory: int | str | None) -> None:
    """Changes the budget of a model. If its units do not fit, it is divided into smaller ones, and the weights that
    stay are read again."""
    weights: _Weights = model._penstock_weights
    memory = weights.target.changed(memory, device_memory)
    with weights.turns.turn():
        if weights.takes(memory):
            weights.set_memory(memory)
            return
        weights.check_may_close("set_memory()")
        before, _, slots = weights.asked
        if parameter_names(model) != weights.parameters:  # PEFT has added some
            least = weights.outside + weights.least + weights.experts.least
            raise _too_small(weights, "set_memory", weights.target.budget(memory), least, weights.units)
        trial = copy.copy(weights)  # a refusal leaves the model as it is
        _fit(trial, *weights.undivided(), weights.target.budget(memory), slots, "set_memory")
        weights.close(load=False)
        try:
            _renew(model, weights, memory)
        except BaseException:
            try:
                _renew(model, weights, before)
            except BaseException:
                weights.lose()
                raise
            raise


def _renew(model: Any, closed: _Weights, memory: int | str) -> None:
    """Streams a model again with another budget."""
    _, names, slots = closed.asked
    weights = _Weights(model, closed.files, memory, names, slots, None, closed.target, closed.turns)
    weights.show_in(closed.live)
    model.__dict__["_penstock_weights"] = weights


def _reserve(memory: int | str, experts: bool = False) -> int | None:
    """The reserve of memory that an "auto" budget leaves free; None: the budget is fixed. Experts have a larger one:
    they give memory back first, because layers are used in each pass."""
    return _device.RESERVE_BYTES + experts * _EXPERTS_LEAVE_BYTES if memory == "auto" else None


class _Weights:
    """Binds the parameters of a unit to its memory while its module is called."""

    def __init__(
        self,
        model: torch.nn.Module,
        files: Folders,
        memory: int | str,
        names: Any,
        slots: int,
        report: Any,
        target: _device.Target,
        turns: Turns | None = None,
        strict: bool | None = None,  # None: what nothing takes was named before
    ) -> None:
        self.target, self.put = target, target.put
        self.asked = memory, names, slots
        self.before: dict[int, list[Any]] = {}  # of each unit whose module is called: what its places had before
        self.changed = ""  # the reason why what is in memory is not what the files have
        self.live: Live | None = None
        budget = target.budget(memory)
        self.outside = self.least = 0  # memory: of what is in no unit, and the least that units need
        self.turns = turns or Turns(str(files))
        self.files, infos = files, files.infos
        if _hugging_face.is_pretrained(model):
            _hugging_face.check(model, list(infos.values()), str(files))
        self.in_files = list(infos.values())  # before those that are converted
        self.keys, self.converted = _matching.keys_of(model, infos)
        self.parameters = parameter_names(model)
        self.computed = computed = (
            _hugging_face.computed(model, self.keys) if _hugging_face.is_pretrained(model) else set()
        )
        units, stay = find_units(model) if names is None else named(names, model)
        units, stay = _without(computed, units, stay)
        self.computed_bytes = sum(one.nbytes for name, one in model.named_parameters() if name in computed)
        self.kept: list[tuple[Place, torch.nn.Parameter]] = []  # places that stay, with their meta parameters
        self.metas: list[tuple[Place, torch.nn.Parameter]] = []  # the other places
        self.rows: list[tuple[Place, Rows]] = []
        self.looked_up: list[Unit] = []  # the embeddings of `rows`
        self.parts = [weakref.ref(module) for module in model.modules()]
        self.infos = infos
        self.model: Callable[[], Any] = weakref.ref(model)
        self.places = places = [place for unit in units for place in unit.places] + stay
        _matching.check(self, places)
        _cast(self, places)
        if _hugging_face.is_pretrained(model):
            _hugging_face.fill(model, computed)
        buffers = _matching.buffers(self)
        if strict is not None:
            _matching.check_unused(self, strict)
        self.ran_experts = _hugging_face.run_experts_in_order(model)
        units, small = _without_small(self, units)
        self.whole = units, stay + small
        self.experts = Experts(files.paths, [], [], (), self.turns, target)
        units, stay, rows = _fit(self, *self.undivided(), budget, slots, "stream")
        self.units, self.wanted = units, _wanted(self, units)
        of_units, of_experts = self._shares(budget)
        self.layout, self.is_closed, joined = 0, False, self.converted.joined
        self.is_fixed = memory != "auto"
        self.residents: dict[int, list[torch.nn.Parameter]] = {}  # of units that are in memory as a whole
        gpu, in_host = target.number, target.host_bytes
        self.core = _core.WeightStream(
            files.paths, self.wanted, of_units, slots, _reserve(memory), report, joined, gpu, in_host
        )
        try:
            self.experts.start(of_experts, _reserve(memory, experts=True))
            self._bind(stay, buffers, rows)
        except BaseException:
            self.close(load=False)
            raise

    def _bind(self, stay: list[Place], buffers: dict[tuple[torch.nn.Module, str], str], rows: list[Unit]) -> None:
        made: dict[str, torch.nn.Parameter] = {}  # tied parameters remain one object
        for place, tensor in zip(stay, self._load(stay), strict=True):
            key, meta = self.keys[place.full_name], place.parameter
            self.kept.append((place, meta))
            if key not in made:
                made[key] = torch.nn.Parameter(self.put(tensor.to(meta.dtype)), meta.requires_grad)
            place.put(made[key])
        for (module, name), key in buffers.items():
            module._buffers[name] = self._tensors([key])[key].to(module._buffers[name].dtype)
        if self.target.number is not None:
            for module in self.model().modules():
                known = {name: one for name, one in module._buffers.items() if one is not None}
                module._buffers.update({name: self.put(one) for name, one in known.items()})
                for one in module._parameters.values():
                    if one is not None and one.device.type == "cpu":  # computed by transformers
                        one.data = self.put(one.data)
        for unit in rows:
            place = unit.places[0]
            key = self.converted.reads(self.keys[place.full_name])[0]
            self.rows.append((place, Rows(self.infos[key].path, key, place.parameter.dtype, self.put)))
        self._take_away()
        for number, unit in enumerate(self.units):
            unit.wrap(functools.partial(self._run, number))
        self.looked_up = rows
        for unit in rows:  # torch.compile() does not trace the reads
            unit.wrap(lambda call: call())
        _parts.adapt(self)

    def _take_away(self) -> None:
        """Replaces the parameters of all units, experts and embeddings. A tied one has one replacement, unless the
        files have it under several names: each of these has its own values."""
        made: dict[tuple[int, str], WeightNotInMemory] = {}
        device, me = self.put(torch.empty(0)).device, weakref.ref(self)

        def away(place: Place, hint: str) -> WeightNotInMemory:
            meta = place.parameter
            if isinstance(meta, WeightNotInMemory):  # its module is in several units
                return meta
            of = id(meta), self.keys[place.full_name]
            if of not in made:
                made[of] = WeightNotInMemory.made(meta, device, place.full_name, hint)
            self.metas.append((place, meta))
            place.put(made[of])
            return made[of]

        for place, rows in self.rows:
            away(place, "Only rows of this embedding are read, when they are looked up").instead = rows.instead
        for layer in self.experts.layers:
            hint = f"Its experts are read one by one: model.set_experts_implementation('{_experts.IMPLEMENTATION}')"
            layer.aways = [away(place, hint) for place in layer.places]
        self.aways: list[list[WeightNotInMemory]] = []
        for number, unit in enumerate(self.units):
            hint = (
                f"It is in memory only while '{unit.name}' is called: give stream() units= that name the module whose "
                "forward() uses it, or a memory= for all weights"
            )
            self.aways.append([away(place, hint) for place in unit.places])
            for index, one in enumerate(self.aways[-1]):
                one.home = Home(me, number, index)

    def _bytes(self, places: list[Place]) -> int:
        return sum({key: self.infos[key].nbytes for key in (self.keys[p.full_name] for p in places)}.values())

    def _load(self, places: list[Place]) -> list[torch.Tensor]:
        keys = [self.keys[place.full_name] for place in places]
        loaded = self._tensors(keys)
        return [loaded[key] for key in keys]

    def _tensors(self, keys: list[str]) -> dict[str, torch.Tensor]:
        """The tensors of these keys, in their own memory."""
        made = self.converted.made(keys, lambda one: self._tensors(one.keys))
        return made | self.files.load([key for key in keys if key not in made])

    def _run(self, number: int, call: Callable[[], Any]) -> Any:
        """Runs a call with a unit in memory and its parameters bound."""
        if self.is_closed or number in self.before:  # a module may call itself
            return call()
        with _refusals.without_backward(), _refusals.without_caches():
            give_back = functools.partial(self._give_back, number)
            return self.turns.run(
                functools.partial(self._take, number), give_back, functools.partial(self._call, number, call)
            )

    def _take(self, number: int) -> None:
        places = self.units[number].places
        if self.changed:
            raise RuntimeError(self.changed)
        if not self.before:  # else another unit may have bound the same parameters
            self._check_assigned(places)
        bound = self._bound(number, *self.core.acquire(number, self.target.stream()))
        self.before[number] = [place.parameter for place in places]
        for place, parameter in zip(places, bound, strict=True):
            place.put(parameter)

    def _call(self, number: int, call: Callable[[], Any]) -> Any:
        places = self.units[number].places
        bound = [place.parameter for place in places]
        versions = _outputs.versions(bound)
        try:
            return _outputs.lasting(call(), bound)
        finally:
            for place, before, now in zip(places, versions, _outputs.versions(bound), strict=True):
                if before != now:
                    self.changed = (
                        f"{place.full_name} was changed by a call of '{self.units[number].name}'. Weights that are "
                        "streamed do not change: model.unstream() loads them all as the files have them"
                    )
                    raise RuntimeError(self.changed)

    def _give_back(self, number: int) -> None:
        if number in self.before:
            for place, one in zip(self.units[number].places, self.before[number], strict=True):
                place.put(one)
            del self.before[number]
        self._release(number)
        if self.live is not None:
            self.live.show(lambda: str(self.stats()))

    def _check_assigned(self, places: list[Place]) -> None:
        for place in places:
            if not isinstance(place.parameter, WeightNotInMemory):
                raise RuntimeError(
                    f"{place.full_name} was assigned to, by load_state_dict(assign=True), functional_call() or an "
                    "attribute. Weights that are streamed do not change: model.unstream() comes first"
                )

    def check_may_close(self, verb: str) -> None:
        """Refuses to divide or load a model whose layer runs, whose parameters were assigned to, or whose files are not
        what they were."""
        self.check_idle(verb)
        self._check_assigned([place for place, _ in self.metas if place.module is not None])
        self.files.check()

    def check_idle(self, verb: str) -> None:
        if self.before:
            name = self.units[next(iter(self.before))].name
            raise RuntimeError(f"{verb}: '{name}' is being called, with its weights; call {verb} after the pass")

    def _release(self, number: int) -> None:
        with contextlib.suppress(ValueError):  # it is not held: acquire() failed, or it was released before Ctrl-C
            self.core.release(number, self.target.stream())

    def resident(self, number: int) -> list[torch.nn.Parameter] | None:
        """The parameters of a unit that stays in memory as a whole, until the budget changes; None for another one."""
        found = self.residents.get(number)

        def is_resident() -> bool:
            return bool(self.core.plan()["units"][number][2] == 0)

        def take() -> None:
            nonlocal found
            bound = self._bound(number, *self.core.acquire(number, self.target.stream()))
            found = bound if is_resident() else None  # also by the budget that acquire() may have changed to

        keys = (self.keys[place.full_name] for place in self.units[number].places)
        if found is None and not self.is_closed and is_resident() and self.converted.computed.keys().isdisjoint(keys):
            self.turns.run(take, functools.partial(self._release, number), lambda: None)
            if self.is_fixed and found is not None:
                self.residents[number] = found
        return found

    def _bound(self, number: int, layout: int, slot: int) -> list[torch.nn.Parameter]:
        """The parameters of the unit that was acquired last: the same objects if the addresses are the same."""
        if layout != self.layout:
            self.residents.clear()
            for unit in self.units:
                unit.bound.clear()
            self.layout = layout  # last: after Ctrl-C in these lines the next call clears them again
        known, aways = self.units[number].bound.get(slot), self.aways[number]
        if known and all(one.requires_grad == away.requires_grad for one, away in zip(known, aways, strict=True)):
            return known
        with torch.inference_mode(False):  # the next pass may be in another mode
            return self._arrived(number, slot)

    def _arrived(self, number: int, slot: int) -> list[torch.nn.Parameter]:
        """The parameters of a unit that is in memory. Computed parameters exist as long as they are used."""
        unit = self.units[number]
        names, buffers = self.wanted[number][1], self.core.tensors(number)
        tensors = {name: self.target.tensor(buffer) for name, buffer in zip(names, buffers, strict=True)}
        keys = [self.keys[place.full_name] for place in unit.places]
        computed = self.converted.made((key for key in keys if key in self.converted.computed), lambda _: tensors)
        bound = [
            _refusals.bound(computed[key] if key in computed else tensors[key], away.requires_grad)
            for key, away in zip(keys, self.aways[number], strict=True)
        ]
        # On a GPU a tensor keeps its memory allocated, and acquire() may change the budget.
        if not computed and (self.is_fixed or self.target.number is None):
            unit.bound[slot] = bound
        return bound

    def _shares(self, budget: int) -> tuple[int, int]:
        """The shares of a budget: for units, which are all used in each pass; experts get the rest."""
        budget = max(0, budget - self.outside)
        if not self.experts.layers:
            return budget, 0
        places = [place for unit in self.units for place in unit.places]
        whole = self._bytes(places) + (_PLACE_BYTES if self.target.number is None else _GPU_PLACE_BYTES) * len(places)
        return _core.share_weight_memory(budget, self.least, whole, self.experts.least)

    def undivided(self) -> tuple[list[Unit], list[Place]]:
        """The units before any is divided, and the parameters that stay."""
        units, stay = self.whole
        return [Unit(unit.module, unit.name, list(unit.places)) for unit in units], list(stay)

    def takes(self, memory: int | str) -> bool:
        """Whether the units fit a budget. If not, smaller ones may."""
        return self.outside + self.least + self.experts.least <= self.target.budget(memory)

    def set_memory(self, memory: int | str) -> None:
        """Changes the budget to one that it takes()."""
        of_units, of_experts = self._shares(self.target.budget(memory))
        self.residents.clear()
        for unit in self.units:
            unit.bound.clear()
        self.is_fixed = memory != "auto"
        self.asked = memory, *self.asked[1:]
        self.core.set_memory(of_units, _reserve(memory))
        self.experts.set_memory(of_experts, _reserve(memory, experts=True))

    def stats(self) -> StreamStats:
        with self.turns.turn():
            names = [unit.name for unit in self.units]
            rows_bytes = sum(rows.bytes_read for _, rows in self.rows)
            of_units, plan, of_experts = self.core.stats(), self.core.plan(), self.experts.stats()
        if self.target.number is not None:
            plan["device_bytes"] = plan["used_bytes"]
        return stats_of(names, self.files.paths, rows_bytes, of_units, plan, of_experts)

    def close(self, load: bool) -> None:
        """Restores the modules. With `load` all weights are then in memory, else on the meta device."""
        with self.turns.turn():
            there = (place for place, _ in self.metas if place.module is not None)
            places = [place for place in there if isinstance(place.parameter, WeightNotInMemory)]
            tensors = self._load(places) if load else []
            self.is_closed = True
            if self.live is not None:
                self.live.close()
            _parts.restore(self.parts)
            for _, rows in self.rows:
                rows.close()
            self.core.close()
            self.experts.close()
            kept = [(place, meta) for place, meta in self.kept if place.module is not None]
            made = {self.keys[place.full_name]: place.parameter for place, _ in kept}  # keeps parameters tied
            for place, tensor in zip(places, tensors, strict=bool(load)):
                key, away = self.keys[place.full_name], place.parameter
                made.setdefault(key, torch.nn.Parameter(tensor.to(away.dtype), away.requires_grad))
                place.put(made[key])
            model = self.model()
            if model is not None and self.ran_experts is not None:
                model.set_experts_implementation(self.ran_experts)
            if not load:
                for place, meta in kept + self.metas:
                    place.put(meta.requires_grad_(place.parameter.requires_grad))

    def show_in(self, live: Live | None) -> None:
        """Shows the passes in a line, which ends with these weights."""
        self.live = live
        if live is not None:
            weakref.finalize(self, live.close)

    def lose(self) -> None:
        """After close(load=False), and an error: no parameter is in memory until unstream() loads all."""
        hint = "The files could not be read again after set_memory()"
        self.metas, self.kept = self.metas + self.kept, []
        for place, meta in self.metas:
            place.put(WeightNotInMemory.made(meta, meta.device, place.full_name, hint))


# ---- the weights that stay, by the budget


def _without(computed: set[str], units: list[Unit], stay: list[Place]) -> tuple[list[Unit], list[Place]]:
    """Leaves out parameters that no file has, because transformers computes them."""
    for unit in units:
        unit.places = [place for place in unit.places if place.full_name not in computed]
    return [unit for unit in units if unit.places], [place for place in stay if place.full_name not in computed]


def _is_same_dtype(weights: _Weights, place: Place) -> bool:
    return f"torch.{weights.infos[weights.keys[place.full_name]].dtype}" == str(place.parameter.dtype)


def _cast(weights: _Weights, places: list[Place]) -> None:
    """Gives the places whose tensor has another dtype a key of their own."""
    for place in places:
        if not _is_same_dtype(weights, place):
            key, dtype = weights.keys[place.full_name], place.parameter.dtype
            weights.keys[place.full_name] = weights.converted.cast(key, dtype, weights.infos)


def _without_small(weights: _Weights, units: list[Unit]) -> tuple[list[Unit], list[Place]]:
    """Keeps small modules outside the layers in memory, and small tensors that are cast."""
    out: list[Unit] = []
    stay: list[Place] = []
    small = _core.small_weight_bytes(weights._bytes([place for unit in units for place in unit.places]))
    for unit in units:
        stay += _apart(
            unit,
            lambda place: (
                not _is_same_dtype(weights, place)
                or (weights.keys[place.full_name] in weights.converted.casts and weights._bytes([place]) <= small)
            ),
        )
        if not unit.module._modules and weights._bytes(unit.places) <= small:
            stay += unit.places
        elif unit.places:
            out.append(unit)
    return out, stay


def _apart(unit: Unit, which: Callable[[Place], bool]) -> list[Place]:
    """Takes places out of a unit."""
    out = [place for place in unit.places if which(place)]
    unit.places = [place for place in unit.places if place not in out]
    return out


def _wanted(weights: _Weights, units: list[Unit]) -> list[tuple[str, list[str]]]:
    """The tensors to read for each unit, without repetition."""
    reads, keys = weights.converted.reads, weights.keys
    return [
        (unit.name, list(dict.fromkeys(name for place in unit.places for name in reads(keys[place.full_name]))))
        for unit in units
    ]


def _experts_of(weights: _Weights, units: list[Unit]) -> Experts:
    """Removes the experts that are read one by one from the units, and returns them."""
    keys = weights.keys
    layers = taken_out(units, lambda place: keys[place.full_name] not in weights.converted.computed)
    infos = [[weights.infos[keys[place.full_name]] for place in layer.places] for layer in layers]
    return Experts(weights.files.paths, layers, infos, weights.converted.joined, weights.turns, weights.target)


def _outside(weights: _Weights, units: list[Unit], stay: list[Place]) -> int:
    """Memory for parameters that stay, and for those that are computed when their tensors have been read, for one unit
    at a time."""
    converted = weights.converted.computed
    places = ([place for place in unit.places if weights.keys[place.full_name] in converted] for unit in units)
    on_arrival = max((weights._bytes(of_unit) for of_unit in places), default=0)
    return weights._bytes(stay) + weights.computed_bytes + on_arrival


def _too_small(weights: _Weights, verb: str, budget: int, least: int, units: list[Unit]) -> MemoryError:
    sizes = {unit.name: weights._bytes(unit.places) for unit in units}
    largest = max(sizes, key=lambda name: sizes[name], default=None)
    because = f", because {largest} has {sizes[largest]}" if largest else ""
    if casts := weights.converted.casts:
        dtypes = {(weights.infos[one.keys[0]].dtype, weights.infos[key].dtype) for key, one in casts.items()}
        changes = " and ".join(f"from {of_file} to {of_model}" for of_file, of_model in sorted(dtypes))
        because += (
            f"; {len(casts)} tensors are cast {changes} after they are read, which takes memory for those of a unit: "
            "the dtype of the files in config.json, or of the model, saves it"
        )
    name = "memory" if weights.target.number is None else "device_memory"
    return MemoryError(
        f"{verb}: {name}={budget}: the least that works for this model is {least} bytes{because}; "
        f"{weights.outside} bytes of small and converted parameters always stay"
    )


def _fit(
    weights: _Weights, units: list[Unit], stay: list[Place], budget: int, slots: int, verb: str
) -> tuple[list[Unit], list[Place], list[Unit]]:
    """Units that fit the budget. If not everything stays, embeddings are gathered by row, and tensors are cast on
    arrival. Units that are too large are divided into their parts."""
    casts, converted, paths = weights.converted.casts, weights.converted, weights.files.paths

    def to_fit() -> tuple[list[tuple[str, list[str]]], int]:
        weights.outside = _outside(weights, units, stay)
        return _wanted(weights, units), weights.outside + weights.experts.least

    def divide(numbers: list[int]) -> tuple[list[tuple[str, list[str]]], int] | None:
        nonlocal units, stay
        parts = {} if all_fits else {number: found for number in numbers if (found := split(units[number]))}
        if not parts:
            return None
        divided = [parts.get(number, ([unit], [])) for number, unit in enumerate(units)]
        units, stay = once(
            [part for its, _ in divided for part in its], stay + [place for _, own in divided for place in own]
        )
        return to_fit()

    most = _core.most_weight_memory(paths, _wanted(weights, units), converted.joined, weights.target.number)
    all_fits = _outside(weights, units, stay) + most <= budget
    if all_fits:
        for unit in units:
            stay = stay + _apart(unit, lambda place: weights.keys[place.full_name] in casts)
        units, rows = [unit for unit in units if unit.places], []
    else:
        rows = [
            unit
            for unit in units
            if isinstance(unit.module, torch.nn.Embedding)
            and len(unit.places) == 1
            and unit.module.max_norm is None  # or the lookup changes rows
            and ((key := weights.keys[unit.places[0].full_name]) not in converted or converted.is_cast(key))
        ]
        units = [unit for unit in units if unit not in rows]
        weights.experts = _experts_of(weights, units)
    least = _core.fit_weight_units(paths, to_fit(), budget, slots, converted.joined, weights.target.number, divide)
    if least > budget and not all_fits:
        raise _too_small(weights, verb, budget, least, units)
    weights.least = least - weights.outside - weights.experts.least
    return units, stay, rows
