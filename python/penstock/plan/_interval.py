# SPDX-License-Identifier: Apache-2.0
"""How often to save."""

from __future__ import annotations

from penstock._base.arguments import named
from penstock.plan._answer import Answer
from penstock.plan._ask import ask


@named
def interval(
    save: float | str,
    *,
    mtbf: float | str | None = None,
    nodes: float | str = 1,
    accelerator_mtbf: float | str | None = None,
    accelerators: float | str = 1,
    stall: float | str | None = None,
    slowdown: float | str = 0,
    restore: float | str | None = None,
    downtime: float | str = 0,
    interval: float | str | None = None,
    simulate: float | str | None = None,
    seed: float | str = 1,
) -> Answer:
    """The time to compute between saves that keeps the most work, and the share of work that is kept (goodput).

        answer = penstock.plan.interval("60s", accelerator_mtbf="50000h", accelerators=16384)
        answer["interval_seconds"].value, answer["goodput"].value

    save: the time from the beginning of a save until it is durable. Times are seconds or texts such as "6min".
    mtbf, nodes: mean time between failures of one node, and the number of nodes. accelerator_mtbf, accelerators: the
        same for accelerators, instead or in addition.
    stall: the part of a save in which training stops (default: all of it). slowdown: the share of its speed that
        training loses in the rest. restore: time to read the last save (default: save). downtime: after each failure,
        before restoring.
    interval: another interval, to get its goodput. simulate: the number of random failures to simulate, with `seed`.
    The table "rules" of the answer has Young's, Daly's and the availability optimum, the series "goodput" the curve.
    Raises ValueError for a number out of range, and if no work would be kept. Thread-safe."""
    return ask("interval", locals())
