# SPDX-License-Identifier: Apache-2.0
"""Measures one bar: ours and the peer in turns, and the peer against itself in the same run.

A pair is three runs, (ours, peer, peer) and the next time (peer, peer, ours): the sides change ends, ours is held
against the mean of the two peers, and the two against each other are the control. Bars without a peer are figures of
ours alone; one that comes out the same twice is exact and needs no more runs.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock._measure import tool

from benchmarks import bars, sides
from benchmarks.bars import Bar
from benchmarks.places import CannotRun, Place, Places
from benchmarks.processes import RunFailed
from benchmarks.samples import Sample
from benchmarks.stats import Interval, mean_interval, ratio_interval

PAIRS_MIN = 5
_WARM_UPS = 2


@dataclass(frozen=True)
class Options:
    pairs: int = 0  # 0: what the row says, else 7
    budget_s: float = 60
    handicap: bool = False
    build: Path | None = None

    def pairs_of(self, bar: Bar) -> int:
        return max(PAIRS_MIN, self.pairs or bar.pairs or 7)

    def budget_of(self, bar: Bar) -> float:
        """Seconds; a row whose single runs are long asks for more than the rest."""
        return max(self.budget_s, bar.budget_s)


@dataclass
class Outcome:
    bar: Bar
    verdict: str  # met, missed, undecided; cannot-run: not here; failed: a program of a side did
    interval: Interval | None = None
    control: Interval | None = None
    pairs: int = 0
    reason: str = ""
    handicap: str = ""
    peer: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    place: dict[str, object] = field(default_factory=dict)
    ours: list[Sample] = field(default_factory=list)
    peers: list[Sample] = field(default_factory=list)
    seconds: float = 0


class Progress(tool.Progress):
    """Says on stderr what is being measured and how long it will take."""

    def say(self, bar: Bar, text: str) -> None:
        self.show(f"[{bar.id}] {text}")


class _Budget:
    """Whether another round fits, judged by the rounds so far."""

    def __init__(self, budget_s: float) -> None:
        self._start = time.monotonic()
        self._budget_s = budget_s
        self._rounds_from = self._start
        self._rounds = 0

    def begin_rounds(self) -> None:
        self._rounds_from = time.monotonic()

    def end_round(self) -> None:
        self._rounds += 1

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._start

    def round_s(self) -> float:
        return (time.monotonic() - self._rounds_from) / self._rounds if self._rounds else 0.0

    def has_room(self) -> bool:
        return self.spent_s + self.round_s() <= self._budget_s

    def needed_s(self, rounds: int) -> float:
        return self._rounds_from - self._start + rounds * self.round_s()


def _settle(bar: Bar, side: sides.Side, place: Place, progress: Progress) -> None:
    """Chooses the variant of the peer that is best by the bar's metric; a single one is warmed up all the same."""
    best: float | None = None
    higher_is_better = bars.METRICS[bar.metric][0]
    for index, variant in enumerate(side.variants):
        side.variant = variant
        progress.say(bar, f"warm-up of the peer, {index + 1} of {len(side.variants)}: {side.name}")
        turns = _WARM_UPS if len(side.variants) > 1 else 1
        figure = statistics.fmean(side.run(place).metric(bar.metric) for _ in range(turns))
        if best is None or (figure > best if higher_is_better else figure < best):
            best, chosen = figure, variant
    side.variant = chosen


def _measure_pairs(bar: Bar, place: Place, options: Options, outcome: Outcome, progress: Progress) -> None:
    ours = sides.make_side(bar.ours_run, build=options.build, handicap=outcome.handicap)
    peer = sides.make_side(bar.peer_run, build=options.build)
    budget = _Budget(options.budget_of(bar))
    _settle(bar, peer, place, progress)
    if len(ours.variants) > 1 and ours.variants == peer.variants:
        ours.variant = peer.variant  # fio against fio
    ours.run(place)
    budget.begin_rounds()
    wanted = options.pairs_of(bar)
    for index in range(wanted):
        left_s = budget.round_s() * (wanted - index)
        progress.say(bar, f"pair {index + 1}/{wanted}, {f'about {left_s:.0f} s left' if index else 'starting'}")
        if index % 2 == 0:
            mine, near, far = ours.run(place), peer.run(place), peer.run(place)
        else:
            far, near, mine = peer.run(place), peer.run(place), ours.run(place)
        outcome.ours.append(mine)
        outcome.peers += [near, far]
        budget.end_round()
        if not budget.has_room():
            break
    outcome.pairs = len(outcome.ours)
    outcome.peer = peer.name
    outcome.versions = {"ours": ours.version(), "peer": peer.version()}
    if outcome.pairs < PAIRS_MIN:
        need = budget.needed_s(PAIRS_MIN)
        raise CannotRun(f"{outcome.pairs} pairs fit --budget-s {options.budget_of(bar):g}; {PAIRS_MIN} need {need:.0f}")
    _judge_pairs(bar, outcome)


def _judge_pairs(bar: Bar, outcome: Outcome) -> None:
    ours = [sample.metric(bar.metric) for sample in outcome.ours]
    peers = [sample.metric(bar.metric) for sample in outcome.peers]
    near, far = peers[0::2], peers[1::2]
    if bar.kind == "diff":
        outcome.interval = mean_interval([a - (b + c) / 2 for a, b, c in zip(ours, near, far)])
        outcome.control = mean_interval([one - other for one, other in zip(near, far)])
    else:
        outcome.interval = ratio_interval([a / math.sqrt(b * c) for a, b, c in zip(ours, near, far)])
        outcome.control = ratio_interval([one / other for one, other in zip(near, far)])
    outcome.verdict = bar.limit.verdict(outcome.interval)
    if not bar.limit.control_holds(outcome.control):
        allowance = bar.limit.control_allowance()
        outcome.reason = (
            f"inconclusive: the peer's own runs differed by more than {allowance:g}, so {outcome.verdict} is not sure"
        )
        outcome.verdict = "undecided"


def _measure_value(bar: Bar, place: Place, options: Options, outcome: Outcome, progress: Progress) -> None:
    ours = sides.make_side(bar.ours_run, build=options.build, handicap=outcome.handicap)
    budget = _Budget(options.budget_of(bar))
    wanted = options.pairs_of(bar)
    exact = bar.place in ("model", "count")
    for index in range(wanted):
        left_s = budget.round_s() * (wanted - index)
        progress.say(bar, f"run {index + 1}/{wanted}, {f'about {left_s:.0f} s left at most' if index else 'starting'}")
        outcome.ours.append(ours.run(place))
        budget.end_round()
        values = [sample.metric(bar.metric) for sample in outcome.ours]
        if exact and index == 1 and values[0] == values[1]:
            break
        if not budget.has_room():
            break
    outcome.pairs = len(values)
    outcome.versions = {"ours": ours.version()}
    steady = exact and len(values) == 2 and values[0] == values[1]
    if not steady and outcome.pairs < PAIRS_MIN:
        need = budget.needed_s(PAIRS_MIN)
        raise CannotRun(f"{outcome.pairs} runs fit --budget-s {options.budget_of(bar):g}; {PAIRS_MIN} need {need:.0f}")
    outcome.interval = mean_interval(values)
    if steady:
        outcome.control = Interval(1.0, 1.0, 1.0)
    outcome.verdict = bar.limit.verdict(outcome.interval)


@contextlib.contextmanager
def _cpus_of(bar: Bar) -> Iterator[None]:
    """Both sides of a row with `one_cpu` run on the last of this process's CPUs; what they start inherits it."""
    before = os.sched_getaffinity(0)
    if bar.one_cpu:
        os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(bar: Bar, places: Places, options: Options, progress: Progress) -> Outcome:
    """The outcome of one bar; what cannot run here is an outcome too."""
    start = time.monotonic()
    outcome = Outcome(bar, "cannot-run", handicap=bar.handicap if options.handicap else "")
    try:
        progress.say(bar, f"setting up place {bar.place}")
        wanted = (bar.place, bar.rate, bar.devices, bar.image_gib, bar.file_gib, bar.tmpfs)
        with places.open(*wanted) as place, _cpus_of(bar):
            outcome.place = place.about
            if bar.kind == "value":
                _measure_value(bar, place, options, outcome, progress)
            else:
                _measure_pairs(bar, place, options, outcome, progress)
    except CannotRun as error:
        outcome.verdict, outcome.reason = "cannot-run", str(error)
    except (RunFailed, ValueError) as error:
        outcome.verdict, outcome.reason = "failed", str(error)
    finally:
        progress.clear()
        outcome.seconds = time.monotonic() - start
    return outcome
