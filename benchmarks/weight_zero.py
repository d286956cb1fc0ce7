# SPDX-License-Identifier: Apache-2.0
"""The peer of the weights.zero_* bars: ZeRO-Inference of DeepSpeed, with its own op, on the CPU, weights on storage.

The settings are those of its own example: five buffers of the largest parameter, reads ahead of twice the square of the
width, nothing kept in memory; blocks of 1 MiB, depth 32, 4 threads.
"""

import sys
from pathlib import Path

from benchmarks import deepnvme_jobs
from benchmarks.job_tools import need

_ROOT = Path(__file__).resolve().parent.parent


def _prepare():
    """One process, and its op, which is kept in build/."""
    deepnvme_jobs.prepare_theirs()
    need("accelerate")  # transformers asks for it before it hands a model to DeepSpeed
    need("deepspeed")
    sys.path.insert(0, str(_ROOT / "examples" / "deepnvme"))
    import small_model

    small_model.one_process()
    small_model.without_shared_memory_op()
    deepnvme_jobs.op("theirs")


def _configuration(config, swap):
    largest = config.vocab_size * config.hidden_size
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": config.hidden_size,
            "stage3_prefetch_bucket_size": 2 * config.hidden_size**2,
            "stage3_max_live_parameters": 2 * config.hidden_size**2,
            "offload_param": {
                "device": "nvme",
                "nvme_path": str(swap),
                "pin_memory": False,
                "buffer_count": 5,
                "buffer_size": largest,
            },
        },
        "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 4, "overlap_events": True},
    }


def loaded(folder, swap):
    """The model of a folder, whose weights it writes to `swap` first."""
    _prepare()
    import deepspeed
    import transformers
    from transformers.integrations import HfDeepSpeedConfig

    config = transformers.AutoConfig.from_pretrained(folder)
    configured = _configuration(config, swap)
    kept = HfDeepSpeedConfig(configured)  # from_pretrained looks for it while it lives
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    engine = deepspeed.initialize(model=model, config=configured)[0]
    engine.module.eval()
    engine.module._kept_configuration = kept
    return engine.module
