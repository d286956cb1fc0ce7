# SPDX-License-Identifier: Apache-2.0
"""How often to save."""

from __future__ import annotations

from penstock._arguments import named
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
    """How long to compute between saves so that the most work is kept, and how much that is (goodput).

        answer = penstock.plan.interval("60s", accelerator_mtbf="50000h", accelerators=16384)
        answer["interval_seconds"].value, answer["goodput"].value

    save: from the beginning of a save until it is durable. Times are seconds or words such as "6min".
    mtbf, nodes: mean time between failures of one node, and how many; accelerator_mtbf, accelerators: in place of them,
        or in addition.
    stall: the part of a save in which training stops (all of it); slowdown: the share of its speed that it loses in
        the rest. restore: reading the last save (as long as save). downtime: after each failure, before that.
    interval: one of your own, to see its goodput. simulate: play so many random failures, from `seed` on.
    The table "rules" of the answer has Young's, Daly's and the availability optimum, the series "goodput" the curve.
    Raises ValueError for a number that is out of range, and where nothing would be kept. Thread-safe."""
    return ask(
        "interval",
        save=save,
        mtbf=mtbf,
        nodes=nodes,
        accelerator_mtbf=accelerator_mtbf,
        accelerators=accelerators,
        stall=stall,
        slowdown=slowdown,
        restore=restore,
        downtime=downtime,
        interval=interval,
        simulate=simulate,
        seed=seed,
    )
