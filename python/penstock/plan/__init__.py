# SPDX-License-Identifier: Apache-2.0
"""The storage that a job needs: arithmetic with its sources, as in `penstock plan`.

    import penstock.plan

    answer = penstock.plan.train("resnet50", accelerators=8)
    print(answer)                   # the dataclass
    print(answer.text())            # as the command line prints it
    print(answer.explain())         # formula, inputs and sources of each figure
    answer["read_bytes_per_second"].value

Numbers may be texts with units: "2.5GB" is 2.5e9 bytes, "8GiB" is 8 x 2**30, "2h" is 7,200 s.
"""

from __future__ import annotations

from penstock.plan._answer import Answer, Column, Figure, Input, Series, Table
from penstock.plan._checkpoint import checkpoint, restore
from penstock.plan._feeds import feeds
from penstock.plan._interval import interval
from penstock.plan._measure import measure
from penstock.plan._measure_options import Measure, MeasureStep
from penstock.plan._mix import Job, mix
from penstock.plan._models import KeyValueCache, Model, Optimizer, Tensors, model, model_types, models, optimizers
from penstock.plan._size import size
from penstock.plan._stream import stream
from penstock.plan._train import Preset, presets, train

__all__ = [
    "Answer",
    "Column",
    "Figure",
    "Input",
    "Job",
    "KeyValueCache",
    "Measure",
    "MeasureStep",
    "Model",
    "Optimizer",
    "Preset",
    "Series",
    "Table",
    "Tensors",
    "checkpoint",
    "feeds",
    "interval",
    "measure",
    "mix",
    "model",
    "model_types",
    "models",
    "optimizers",
    "presets",
    "restore",
    "size",
    "stream",
    "train",
]
