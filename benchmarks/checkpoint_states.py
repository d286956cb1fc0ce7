# SPDX-License-Identifier: Apache-2.0
"""What the jobs on checkpoints share: states, meters, durability of the peers, and a cache that is known to be cold.

A state is that of a GPT-like transformer in fp32 with Adam's two moments, as a training loop has it: {"model": ...,
"optimizer": {"state": ..., "param_groups": ...}, "step": ...}. From 1 GiB up its width is 1024 (tensors from 4 KiB to
200 MB, the embedding), below it is 256 (1 KiB to 8 MB), and 32 below 16 MiB. Blocks are added until the bytes are
reached, and the embedding takes what is left. The values are 4 Mi random numbers, over and over.
"""

import mmap
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.job_tools import need, skip

models, storage = need("penstock._measure.models"), need("penstock._measure.storage")
bytes_of, make_durable, tensors_of = models.bytes_of, storage.make_durable, models.tensors_of
byte_count = need("penstock._core").parse_bytes  # 100m -> 104857600
MIB = 1 << 20
GIB = 1 << 30
_PAGE = mmap.PAGESIZE

# ---- states ----


def _shapes(parameters, width):
    """(name, shape) of so many parameters, about."""
    block = [
        ("attn.qkv.weight", (3 * width, width)),
        ("attn.qkv.bias", (3 * width,)),
        ("attn.proj.weight", (width, width)),
        ("attn.proj.bias", (width,)),
        ("mlp.up.weight", (4 * width, width)),
        ("mlp.up.bias", (4 * width,)),
        ("mlp.down.weight", (width, 4 * width)),
        ("mlp.down.bias", (width,)),
        *((f"norm_{i}.{part}", (width,)) for i in (1, 2) for part in ("weight", "bias")),
    ]
    in_block = sum(shape[0] * (shape[1] if len(shape) == 2 else 1) for _, shape in block)
    blocks = max(1, int(parameters * 0.75) // in_block)
    rows = max(1, (parameters - blocks * in_block) // width)
    yield "embed.weight", (rows, width)
    for index in range(blocks):
        for name, shape in block:
            yield f"blocks.{index}.{name}", shape


def training_state(size):
    """A model and its optimizer of about `size` bytes in all."""
    width = 1024 if size >= GIB else 256 if size >= 16 * MIB else 32
    return models.make_state(_shapes(size // 12, width), "full", "fp32") | {"step": 1000}


def many_tensors(count, size):
    """`count` tensors of `size` bytes, each with its own storage."""
    torch = need("torch")
    source = torch.arange(size // 4, dtype=torch.float32)
    return {f"tensor.{index:05}": source + index for index in range(count)}


def even_tensors(count, size):
    """`count` tensors of `size` bytes, large ones that begin with the same random numbers."""
    shapes = [(f"part.{index:03}", (size // 4,)) for index in range(count)]
    return models.make_state(shapes, "weights", "fp32")["model"]


def state_of(arguments):
    """By --state=training (--bytes=) or --state=many (--count=, --size=)."""
    if arguments.get("state", "training") == "many":
        return many_tensors(int(arguments["count"]), byte_count(arguments["size"]))
    return training_state(byte_count(arguments["bytes"]))


def flat(state):
    """The tensors of a state under one name each, as safetensors takes them."""
    return dict(tensors_of(state))


def clone(value):
    """The state with a copy of every tensor: what a handicap does."""
    if hasattr(value, "data_ptr"):
        return value.clone()
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(clone(item) for item in value)
    return value


# ---- meters ----


def resident_bytes():
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes():
    """The most that was resident since reset_peak()."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    skip("/proc/self/status has no VmHWM")


def io_bytes(way, row=None):
    """What this process has read from (`read`) or sent to (`write`) storage so far, as the kernel counts it.
    row: what is counted instead ("wchar": the bytes of its write calls)."""
    row = row or f"{way}_bytes"
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith(f"{row}:"):
            return int(line.split()[1])
    skip(f"/proc/self/io has no {row}")


# ---- storage ----


def settle(folder):
    """No write-back of an earlier run in the next one's time."""
    storage.settle(folder)
    time.sleep(0.3)  # longer than a slice of the block-I/O limit: what was left of one would be free


def make_cold(paths):
    """Takes files out of the page cache and looks whether they are; the share that stayed, which is next to none."""
    worst = 0.0
    for path in paths:
        storage.make_cold(path)
        worst = max(worst, storage.cached_bytes(path) / os.path.getsize(path))
    if worst > 0.01:
        sys.exit(f"{worst:.1%} of {paths} stayed in the page cache: this load would not be cold")
    return worst


def own_folder(arguments):
    """A folder of this run in --dir; the caller removes it (a context)."""
    return tempfile.TemporaryDirectory(dir=arguments["dir"], prefix="run-")
