# SPDX-License-Identifier: Apache-2.0
"""ZeRO-Infinity on the CPU: trains a small transformer whose optimizer state, parameters or both lie on storage.

    python zero_infinity.py --compare                                   # in memory, DeepSpeed's op, Penstock
    python zero_infinity.py --store=nvme --offload=both --folder=/mnt/nvme
    python -m penstock.deepnvme zero_infinity.py --store=nvme --offload=both --folder=/mnt/nvme

Nothing in here is Penstock's: it is a DeepSpeed program, and the third line runs it on Penstock. The last line of the
output is JSON: the losses, the seconds of each step, and the bytes that Penstock moved.
"""

import argparse
import json
import sys
import tempfile
import time

import small_model


def configuration(arguments, folder):
    zero = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "sub_group_size": 4_000_000,
        # DeepSpeed 0.19.8 prefetches a parameter of a model as small as this one twice, and stops with an assertion.
        "stage3_prefetch_bucket_size": 0,
    }
    # "cpu" is DeepSpeed's offload too, with the same arithmetic in the same order, and the state in memory.
    place = {"device": "nvme", "nvme_path": folder} if arguments.store == "nvme" else {"device": "cpu"}
    if arguments.offload in ("optimizer", "both"):
        pipeline = {"pipeline_read": arguments.pipeline, "pipeline_write": arguments.pipeline}
        zero["offload_optimizer"] = {**place, **pipeline, "buffer_count": 12 if arguments.pipeline else 4}
    if arguments.offload in ("parameters", "both"):
        # A buffer holds the largest parameter; what is under 1 MiB DeepSpeed keeps in memory.
        zero["offload_param"] = {**place, "buffer_count": 12, "buffer_size": 4 * arguments.width**2, "max_in_cpu": 0}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": zero,
        "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 4, "overlap_events": False},
        # torch's own Adam: DeepSpeed's CPU Adam has to be compiled.
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_force_ds_cpu_optimizer": False,
    }


def train(arguments, folder):
    import deepspeed
    import torch

    torch.manual_seed(arguments.seed)
    configured = configuration(arguments, folder)
    with deepspeed.zero.Init(config_dict_or_path=configured):
        model = small_model.Transformer(width=arguments.width, layers=arguments.layers)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=configured)
    choose = torch.Generator().manual_seed(arguments.seed)
    losses, seconds = [], []
    for step in range(arguments.steps):
        # Something to learn: numbers that go up by one.
        first = torch.randint(small_model.VOCABULARY, (4, 1), generator=choose)
        tokens = (first + torch.arange(65)) % small_model.VOCABULARY
        start = time.perf_counter()
        loss = engine(tokens[:, :-1], tokens[:, 1:])
        engine.backward(loss)
        engine.step()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.6f}, {seconds[-1]:.2f} s", flush=True)
    return {"losses": losses, "step_seconds": seconds, "moved": small_model.bytes_moved()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="run all three and compare the losses")
    parser.add_argument("--store", choices=("memory", "nvme"), default="nvme", help="where the state lies")
    parts = ("optimizer", "parameters", "both")
    parser.add_argument("--offload", choices=parts, default="both", help="what is on storage")
    parser.add_argument("--folder", help="on the storage to use; a temporary folder where none is named")
    parser.add_argument("--pipeline", action="store_true", help="DeepSpeed's pipelined swapping of optimizer state")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=512, help="a multiple of 64")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.compare:
        others = [word for word in sys.argv[1:] if word != "--compare" and not word.startswith("--store")]
        return small_model.run_sides(__file__, others, "losses")
    small_model.one_process()
    small_model.without_shared_memory_op()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(train(arguments, folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
