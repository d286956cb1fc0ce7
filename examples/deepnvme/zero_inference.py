# SPDX-License-Identifier: Apache-2.0
"""ZeRO-Inference on the CPU: generates tokens with a small transformer whose parameters lie on storage.

    python zero_inference.py --compare                                  # in memory, DeepSpeed's op, Penstock
    python zero_inference.py --store=nvme --folder=/mnt/nvme
    python -m penstock.deepnvme zero_inference.py --store=nvme --folder=/mnt/nvme

Nothing in here is Penstock's: it is a DeepSpeed program, and the third line runs it on Penstock. The model has random
weights of a fixed seed, so its text means nothing, but every engine must find the same. The last line is JSON.
"""

import argparse
import json
import sys
import tempfile
import time

import small_model


def configuration(arguments, folder):
    place = {"device": "nvme", "nvme_path": folder} if arguments.store == "nvme" else {"device": "cpu"}
    # A buffer holds the largest parameter; what is under 1 MiB DeepSpeed keeps in memory.
    buffers = {"buffer_count": 12, "buffer_size": 4 * arguments.width**2, "max_in_cpu": 0}
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "offload_param": {**place, **buffers}}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": zero,
        "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 4, "overlap_events": False},
    }


def generate(arguments, folder):
    import deepspeed
    import torch

    torch.manual_seed(arguments.seed)
    configured = configuration(arguments, folder)
    with deepspeed.zero.Init(config_dict_or_path=configured):
        model = small_model.Transformer(width=arguments.width, layers=arguments.layers)
    engine, *_ = deepspeed.initialize(model=model, config=configured)
    engine.module.eval()
    tokens = torch.arange(1, 9).repeat(2, 1)
    seconds = []
    with torch.no_grad():
        for _ in range(arguments.tokens):
            start = time.perf_counter()
            logits = engine.module(tokens)
            tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
            seconds.append(time.perf_counter() - start)
    print(f"{arguments.tokens} tokens, {sum(seconds) / len(seconds):.3f} s each", flush=True)
    return {"tokens": tokens[:, 8:].tolist(), "token_seconds": seconds, "moved": small_model.bytes_moved()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="run all three and compare the tokens")
    parser.add_argument("--store", choices=("memory", "nvme"), default="nvme", help="where the parameters lie")
    parser.add_argument("--folder", help="on the storage to use; a temporary folder where none is named")
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=512, help="a multiple of 64")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.compare:
        others = [word for word in sys.argv[1:] if word != "--compare" and not word.startswith("--store")]
        return small_model.run_sides(__file__, others, "tokens")
    small_model.one_process()
    small_model.without_shared_memory_op()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(generate(arguments, folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
