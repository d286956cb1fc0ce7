# SPDX-License-Identifier: Apache-2.0
"""Turns: in each round every side saves and loads once. The order changes from round to round, so that a disk that
becomes faster or slower affects all sides. The figure of a side is the median of its rounds. The first load of a side
is compared with the saved state, outside the timed part."""

from __future__ import annotations

import functools
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import penstock
from penstock._measure import host_memory, sides, storage
from penstock._measure.models import bytes_of, tensors_of
from penstock._measure.tool import ToolError


@dataclass
class Figures:
    """The times of one side for one action (save, load, stall), one for each round."""

    title: str
    verb: str
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def as_json(self, size: int) -> dict[str, Any]:
        median = statistics.median(self.seconds)
        return {
            "side": self.title,
            "verb": self.verb,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_s,
            "median_seconds": median,
            "bytes_per_second": size / median,
        }


def _timed(size: int, call: Callable[..., Any], *words: Any) -> tuple[float, float, Any]:
    """Free memory of `size` bytes is backed before the clock starts: a load makes as much, and a save may copy."""
    host_memory.back_memory(size)
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    result = call(*words)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu_s, result


class Bench:
    """The state, the sides and the folder of a run; `tell` is called with the current step."""

    def __init__(
        self, state: Any, folder: str, verbs: list[str], peers: list[str], tell: Callable[[str], None]
    ) -> None:
        self._state = state
        self._flat = dict(tensors_of(state))
        self._folder = folder
        self._verbs = verbs
        self._tell = tell
        self.tensors = len(self._flat)
        self._sides = sides.OURS + [side for peer in peers for side in sides.PEERS[peer]]
        self._fio = "fio" in peers
        self.bytes = bytes_of(state)
        self.figures: dict[tuple[str, str], Figures] = {}

    def run(self, rounds: int) -> None:
        self._warm()
        for turn in range(rounds):
            steps: list[Callable[[str], None]] = [functools.partial(self._turn, side) for side in self._sides]
            steps += [self._stall] * ("async" in self._verbs) + [self._fio_turn] * self._fio
            steps = steps[turn % len(steps) :] + steps[: turn % len(steps)]
            for step in steps if turn % 2 == 0 else reversed(steps):
                storage.settle(self._folder)
                step(f"round {turn + 1} of {rounds}")

    def _warm(self) -> None:
        """Makes a small save and load with each side first, to set up rings, pools and imports."""
        import torch

        small = {"weight": torch.zeros(1 << 20)}
        for side in self._sides:
            self._tell(f"warming up: {side.title}")
            path = os.path.join(self._folder, f"warm.{side.suffix}")
            side.save(small, path)
            side.load(path)
            storage.remove(path)

    def _note(self, title: str, verb: str, seconds: float, cpu_s: float) -> None:
        figures = self.figures.setdefault((title, verb), Figures(title, verb))
        figures.seconds.append(seconds)
        figures.cpu_s.append(cpu_s)

    def _turn(self, side: sides.Side, told: str) -> None:
        path = os.path.join(self._folder, f"state.{side.suffix}")
        self._tell(f"{told}: {side.title}, save")
        try:
            seconds, cpu_s, _ = _timed(self.bytes, side.save, self._flat if side.flat else self._state, path)
            self._note(side.title, "save", seconds, cpu_s)
            if "load" in self._verbs:
                self._tell(f"{told}: {side.load_title}")
                storage.make_cold(path)
                seconds, cpu_s, loaded = _timed(self.bytes, side.load, path)
                self._note(side.load_title, "load", seconds, cpu_s)
                if len(self.figures[side.load_title, "load"].seconds) == 1:
                    self._compare(dict(tensors_of(loaded)), side.load_title)
                del loaded
        finally:
            storage.remove(path)

    def _compare(self, loaded: dict[str, Any], title: str) -> None:
        """Raises ToolError unless every tensor came back bit for bit."""
        import torch

        for name, tensor in self._flat.items():
            found = loaded.get(name)
            if found is None or not torch.equal(*(one.reshape(-1).view(torch.uint8) for one in (tensor, found))):
                raise ToolError(f"{title}: {name} is not what was saved: do not trust this disk")

    def _stall(self, told: str) -> None:
        """Times save_async() until the tensors may change again. The rest of the save is not timed."""
        self._tell(f"{told}: penstock save_async")
        path = os.path.join(self._folder, "async.pt")
        try:
            seconds, cpu_s, pending = _timed(self.bytes, penstock.save_async, self._state, path)
            pending.result()
            self._note("penstock save_async", "stall", seconds, cpu_s)
        finally:
            storage.remove(path)

    def _fio_turn(self, told: str) -> None:
        path = os.path.join(self._folder, "fio")
        try:
            for way, verb in (("write", "save"), ("read", "load")):
                if verb == "save" or verb in self._verbs:
                    self._tell(f"{told}: fio, {way}")
                    self._note(f"fio {way}", verb, *sides.fio(way, path, self.bytes))
        finally:
            storage.remove(path)
