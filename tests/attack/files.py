# SPDX-License-Identifier: Apache-2.0
"""Files that others write, and what the page cache has of them."""

import contextlib
import os
from pathlib import Path

import penstock


def evict(path):
    """Out of the page cache, once it is on the disk."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


@contextlib.contextmanager
def a_store(folder, **options):
    store = penstock.CheckpointStore(folder, **options)
    try:
        yield store
    finally:
        store.close()


def write_tensors(kind, tensors, folder, name):
    """A flat state of tensors, written by `kind`: safetensors, torch, or a form of ours. A function that loads it."""
    import torch

    path = str(Path(folder) / name)
    if kind == "safetensors":
        from safetensors.torch import save_file

        save_file(tensors, path + ".safetensors")
        return lambda **kw: penstock.load(path + ".safetensors", **kw)
    if kind == "torch":
        torch.save(tensors, path + ".torch.pt")
        return lambda **kw: penstock.load(path + ".torch.pt", **kw)
    if kind == "store":
        with a_store(path + ".store", keep=1, shard_bytes=8 << 20) as store:
            store.save(tensors)

        def load(**kw):
            with a_store(path + ".store") as store:
                return store.load(**kw)

        return load
    suffix = {"pt": ".pt", "own": ".own.safetensors", "index": ".safetensors.index.json"}[kind]
    penstock.save(tensors, path + suffix, sync=False, **({"shard_bytes": 4 << 20} if kind == "index" else {}))
    return lambda **kw: penstock.load(path + suffix, **kw)
