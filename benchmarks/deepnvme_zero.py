# SPDX-License-Identifier: Apache-2.0
"""The job zero_step of deepnvme_jobs.py: steps of examples/deepnvme/zero_infinity.py, optimizer state on storage."""

import statistics
import sys
import time
from argparse import Namespace
from pathlib import Path

from benchmarks.job_tools import figures

_EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "deepnvme"
_WARM_UP = 2  # steps: files are made, memory is touched


def zero_step(arguments):
    """Median seconds of a training step, --steps=10 after two to warm up; DeepSpeed itself on either engine.

    --width=768 --layers=2 sizes the transformer (17 million parameters; a step reads and writes 200 MB each at least).
    Handicap `slow`: 20 % of a step on top of each.
    """
    ours = arguments["engine"] == "ours"
    if ours:
        from penstock import deepnvme

        deepnvme.install()
    sys.path.insert(0, str(_EXAMPLES))
    import small_model
    import zero_infinity

    steps = int(arguments.get("steps", "10"))
    options = Namespace(
        store="nvme",
        offload="optimizer",
        pipeline=False,
        steps=_WARM_UP + steps,
        layers=int(arguments.get("layers", "2")),
        width=int(arguments.get("width", "768")),
        seed=1,
    )
    small_model.one_process()
    small_model.without_shared_memory_op()
    trained = zero_infinity.train(options, arguments["dir"])
    moved = trained["moved"]
    if ours and not (moved and moved["read"] and moved["written"]):
        raise RuntimeError("zero_step: Penstock moved nothing, so this was not a run of ours")
    if not ours and moved is not None:
        raise RuntimeError("zero_step: Penstock was in the process, so this was not a run of theirs")
    seconds = statistics.median(trained["step_seconds"][_WARM_UP:])
    if arguments.get("handicap") == "slow":
        start = time.perf_counter()
        time.sleep(0.2 * seconds)
        seconds += time.perf_counter() - start
    return figures("penstock" if ours else "deepspeed", seconds=seconds, operations=steps, loss=trained["losses"][-1])
