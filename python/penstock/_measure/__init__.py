# SPDX-License-Identifier: Apache-2.0
"""Code that the measuring commands written in Python share, also with benchmarks/.

tool.py               the frame of a command: wrong arguments, output, progress, signals, environment, JSON
fio.py                fio's command line and its figures
storage.py            the states of files: durable, settled, cold, removed
models.py             the true shapes of known models, and of their training states
checkpoint_bench.py   the command line of `penstock checkpoint bench`
shapes.py             typical file accesses of programs, with Penstock and with the usual calls
shapes_bench.py       the command line of `penstock bench --shapes`
weights_bench.py      the command line of `penstock weights bench`
weights_model.py      its model: true shapes, random weights, written one layer at a time
weights_side.py       one side of it, which runs in a separate process
sides.py, turns.py    the libraries that save and load, their order, and their times
"""
