# SPDX-License-Identifier: Apache-2.0
"""The verdict of a whole bar, with sides that a test makes up."""

import itertools

import pytest

from benchmarks import places, report, runner, sides
from benchmarks.bars import parse_bars
from benchmarks.cli import exit_status
from benchmarks.samples import Sample

from test_bars import ROW  # isort: skip


class Made:
    """A side that gives these seconds for a GiB, again and again."""

    def __init__(self, seconds, variants=None):
        self._seconds = itertools.cycle(seconds)
        self.variants = variants or [{}]
        self.variant = self.variants[0]
        self.runs = []

    name = "made up"

    def version(self):
        return "1"

    def run(self, place):
        self.runs.append(self.variant)
        seconds = self.variant.get("seconds") or next(self._seconds)
        return Sample(seconds=seconds, bytes=1 << 30, cpu_s=seconds / 4, value=seconds, command=["made"])


class Nowhere:
    def open(self, name, rate, devices=0, image_gib=0, file_gib=0, tmpfs=False):
        import contextlib

        return contextlib.nullcontext(places.Place(name))


class Silent:
    def say(self, bar, text): ...
    def clear(self): ...


def measure(monkeypatch, ours, peer=None, row=ROW, **options):
    made = {"program": ours, "fio": peer}
    monkeypatch.setattr(sides, "make_side", lambda text, **_: made[text.split()[0]])
    return runner.measure(parse_bars(row)[0], Nowhere(), runner.Options(**options), Silent())


def test_ours_as_fast_as_the_peer_is_met(monkeypatch):
    outcome = measure(monkeypatch, Made([1.0, 1.001, 0.999]), Made([1.0, 1.001]))
    assert outcome.verdict == "met" and outcome.pairs == 7
    assert len(outcome.ours) == 7 and len(outcome.peers) == 14


def test_ours_slower_is_missed_and_near_the_bar_undecided(monkeypatch):
    assert measure(monkeypatch, Made([1.1, 1.101]), Made([1.0, 1.001])).verdict == "missed"
    assert measure(monkeypatch, Made([1.0, 1.04]), Made([1.0, 1.001])).verdict == "undecided"


def test_a_peer_that_disagrees_with_itself_decides_nothing(monkeypatch):
    outcome = measure(monkeypatch, Made([0.5]), Made([1.0, 1.0, 1.3, 0.9, 1.1]))
    assert outcome.interval.low > 0.98
    assert outcome.verdict == "undecided" and "own runs differed" in outcome.reason


def test_the_best_variant_of_the_peer_is_the_peer(monkeypatch):
    peer = Made([], [{"seconds": 2.0}, {"seconds": 1.0}, {"seconds": 3.0}])
    outcome = measure(monkeypatch, Made([1.5]), peer)
    assert peer.variant == {"seconds": 1.0}
    assert outcome.interval.mean == pytest.approx(1 / 1.5)


def test_lower_is_better_for_cpu(monkeypatch):
    row = ROW.replace("bandwidth", "cpu").replace(">= 0.98", "<= 1.3")
    assert measure(monkeypatch, Made([1.2]), Made([1.0]), row).verdict == "met"
    assert measure(monkeypatch, Made([1.4]), Made([1.0]), row).verdict == "missed"
    peer = Made([], [{"seconds": 2.0}, {"seconds": 1.0}])
    measure(monkeypatch, Made([1.0]), peer, row)
    assert peer.variant == {"seconds": 1.0}


def test_too_small_a_budget_cannot_run_and_says_how_much_is_needed(monkeypatch):
    clock = itertools.count(0, 10.0)
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(clock))
    outcome = measure(monkeypatch, Made([1.0]), Made([1.0]), budget_s=50)
    assert outcome.verdict == "cannot-run" and "need" in outcome.reason
    assert exit_status([outcome]) == 77


def test_an_exact_figure_is_run_twice(monkeypatch):
    row = ROW.replace('peer_run = "fio read"', "").replace("loop", "count").replace("bandwidth", "value")
    row = row.replace(">= 0.98", "<= 0.25")
    ours = Made([0.2])
    outcome = measure(monkeypatch, ours, row=row)
    assert (outcome.verdict, len(ours.runs)) == ("met", 2)
    assert "ratio=0.200 ci95=[0.200,0.200] aa=[1.000,1.000] bar<=0.25 pairs=2 place=count verdict=met" in report.line(
        outcome
    )
    unsteady = Made([0.2, 0.21])
    outcome = measure(monkeypatch, unsteady, row=row)
    assert (outcome.verdict, len(unsteady.runs)) == ("met", 7)
    assert measure(monkeypatch, Made([0.3]), row=row).verdict == "missed"


def test_the_line(monkeypatch):
    outcome = measure(monkeypatch, Made([1.0]), Made([1.0]))
    assert report.line(outcome) == (
        "BAR engine.x ratio=1.000 ci95=[1.000,1.000] aa=[1.000,1.000] bar>=0.98 pairs=7 place=loop verdict=met"
    )
    outcome = measure(monkeypatch, Made([1.0]), Made([1.0]), handicap=True)
    assert report.line(outcome).endswith("verdict=met handicap=depth1")
    assert report.as_json(outcome)["ours"][0]["bytes"] == 1 << 30


def test_a_side_that_fails_gives_no_verdict(monkeypatch):
    class Failing(Made):
        def run(self, place):
            raise runner.RunFailed('exit 1: "oh"\nno')

    outcome = measure(monkeypatch, Failing([1.0]), Made([1.0]))
    assert report.line(outcome).endswith("""verdict=failed reason="exit 1: 'oh' no\"""")
    assert exit_status([outcome]) == exit_status([outcome], check_handicaps=True) == 70


def test_exit_status(monkeypatch):
    met = measure(monkeypatch, Made([1.0]), Made([1.0]))
    missed = measure(monkeypatch, Made([1.5]), Made([1.0]))
    undecided = measure(monkeypatch, Made([1.0, 1.04]), Made([1.0]))
    assert exit_status([met, met]) == 0
    assert exit_status([met, undecided, missed]) == 1
    assert exit_status([met, undecided]) == 2
    assert exit_status([missed, missed], check_handicaps=True) == 0
    assert exit_status([missed, met], check_handicaps=True) == 1
    assert exit_status([missed, undecided], check_handicaps=True) == 1


def test_both_sides_of_a_row_with_one_cpu_run_on_one(monkeypatch):
    import os

    seen = []

    class Seeing(Made):
        def run(self, place):
            seen.append(os.sched_getaffinity(0))
            return super().run(place)

    before = os.sched_getaffinity(0)
    measure(monkeypatch, Seeing([1.0]), Seeing([1.0]), ROW + "one_cpu = true\n")
    assert {frozenset(cpus) for cpus in seen} == {frozenset({max(before)})}
    assert os.sched_getaffinity(0) == before
