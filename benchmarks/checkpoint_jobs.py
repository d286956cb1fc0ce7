# SPDX-License-Identifier: Apache-2.0
"""Runs of the ckpt.* bars and of safe.* ones, each in a fresh interpreter:
`python -m benchmarks.checkpoint_jobs JOB --key=value ...`.

Prints one JSON object. Ends with 77 and the reason where something it needs is not installed. checkpoint_states.py says
what a state is and how a cache is known to be cold.
"""

import sys

from benchmarks import checkpoint_async, checkpoint_counts, checkpoint_saves
from benchmarks.job_tools import run_job

_JOBS = {
    "save": checkpoint_saves.save,
    "load": checkpoint_saves.load,
    "stall": checkpoint_async.stall,
    "every_step": checkpoint_async.every_step,
    "memory": checkpoint_counts.memory,
    "lazy": checkpoint_counts.lazy,
    "update": checkpoint_counts.update,
    "leak": checkpoint_counts.leak,
    "slice": checkpoint_counts.slice_of_rows,
    "incremental": checkpoint_counts.incremental,
    "descriptors": checkpoint_counts.descriptors,
    "freed": checkpoint_counts.freed,
}


def main():
    return run_job("checkpoint_jobs", _JOBS)


if __name__ == "__main__":
    sys.exit(main())
