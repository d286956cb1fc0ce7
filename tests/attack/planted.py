# SPDX-License-Identifier: Apache-2.0
"""Planted defects: a package in which each can be switched on, and the attack that has to find it.

src/base/planted.hpp has the switch. PENSTOCK_PLANTED=ON compiles it, for this package alone; there the environment
variable PENSTOCK_PLANTED names the defect. In every other build the switch is a constant, and the code is not there.
"""

import os
import subprocess
import sys
from dataclasses import dataclass

from tests.attack.catalogue import ATTACKS
from tests.attack.runner import ROOT, Result, report

PACKAGE = ROOT / "build" / "planted" / "package"
FIND_S = 45  # for which an attack looks for its defect
CLEAN_S = 5


@dataclass(frozen=True)
class Defect:
    attack: str
    what: str


DEFECTS = {
    "direct_neighbours": Defect("load_memory", "pages of a load go when both neighbours of a part are gone"),
    "gap_off_by_one": Defect("engine", "extents of a read over gaps are taken one byte too early"),
    "torn_record": Defect("threads", "a record is appended in pieces, and those of others come between"),
    "row_before": Defect("rows", "rows of further tables are counted from one too few"),
    "stale_slot": Defect("features", "a slot of the tier in memory keeps the number of the row that was in it"),
    "wrong_stripe": Defect("features", "rows of a striped file are read from the stripe before"),
    "early_hit": Defect("feature_threads", "a row is taken from its slot before it has arrived"),
    "lost_conjugate": Defect("state", "a conjugated view is loaded as if it were none"),
    "stale_shard": Defect("history", "only the first chunk of a tensor is looked at to see whether it changed"),
    "unseen_change": Defect("changing", "sums of a save are made before the write, and not compared after it"),
    "whole_storages": Defect("changing", "StepOverlap takes the whole storage of a parameter for its own"),
    "foreign_parts": Defect("shared_drive", "shards of all stores on a shared drive are taken for this store's"),
    "copied_checkpoint": Defect("shared_drive", "shards go with their checkpoint though a copy of it leads to them"),
    "moved_checkpoint": Defect("shared_drive", "shards go when no checkpoint in the first folder leads to them"),
    "slice_offset": Defect("into", "a slice of a tensor begins one element too early"),
    "unchecked_manifest": Defect("manifest", "the checksum of a manifest is not compared"),
    "named_before_written": Defect("kills", "a file has its name before its bytes"),
    "opened_once": Defect("readers", "an index that was replaced is not read again"),
    "neighbour_weight": Defect("zoo", "a streamed weight is that of its neighbour of the same size"),
}


def build():
    """The package with the switches, in a folder of its own."""
    subprocess.run(
        [sys.executable, "tools/build_wheel.py", "--planted"], cwd=ROOT, check=True, stdin=subprocess.DEVNULL
    )
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))}


def found(session, name, seed, environment):
    """A result that has passed when the attack finds the defect, by wrong bytes and nothing else."""
    defect = DEFECTS[name]
    result = session.run(defect.attack, seed, FIND_S, environment={**environment, "PENSTOCK_PLANTED": name})
    if result.verdict == "skipped":
        session.say(f"skipped  {name}: {defect.attack} {result.text}")
    elif result.verdict == "wrong":
        session.say(f"found    {name} by {defect.attack} in {result.seconds:.0f} s: {result.text.splitlines()[0]}")
        result = Result(defect.attack, seed, "passed", seconds=result.seconds)
    elif result.failed:
        session.say(f"FAILED   {name}: {defect.attack} ended with {result.verdict}, and wrong bytes are expected")
        report(session, result, shrink=False)
    else:
        session.say(f"FAILED   {name}: {defect.attack} did not find it in {FIND_S} s, {result.rounds} rounds")
        result = Result(defect.attack, seed, "missed")
    result.name, result.suite = name, "planted"
    return result


def check(session, names, seed):
    """Each defect is found, and with none switched on the same package passes."""
    environment = build()
    results = [found(session, name, seed, environment) for name in names or DEFECTS]
    for name in [] if names else ATTACKS:
        result = session.run(name, seed, CLEAN_S, environment=environment)
        report(session, result, shrink=False)
        results.append(result)
    return results
