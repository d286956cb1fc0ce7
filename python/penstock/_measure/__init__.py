# SPDX-License-Identifier: Apache-2.0
"""Shared code of the measuring commands written in Python, with benchmarks/ too.

tool.py               the frame of a command: arguments that are wrong, output, progress, signals, environment, JSON
fio.py                fio's command line and its figures
storage.py            durable, settled, cold, removed
models.py             the true shapes of known models, and of their training states
checkpoint_bench.py   the command line of `penstock checkpoint bench`
shapes.py             what programs do with files, by Penstock and by the stock ways
shapes_bench.py       the command line of `penstock bench --shapes`
weights_bench.py      the command line of `penstock weights bench`
weights_model.py      its model: true shapes, random weights, written one layer at a time
weights_side.py       one side of it, which runs in a process of its own
sides.py, turns.py    who saves and loads, in which order, and what it took
"""
