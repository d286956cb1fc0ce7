# SPDX-License-Identifier: Apache-2.0
"""Sides that save and load. Each save ends durable: data, file and folder are synced before its clock stops.

If the call of a peer does not sync file and folder, that is done after it and counted, because a checkpoint needs it.
Loads go to new tensors. Of mapped tensors one byte of each page is read, because otherwise nothing would be loaded.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import penstock
from penstock._measure import fio as _fio
from penstock._measure.models import tensors_of
from penstock._measure.storage import make_durable


@dataclass(frozen=True)
class Side:
    """`save` writes the state to a path, durably; `load` returns the state from there."""

    title: str
    load_title: str
    save: Callable[[Any, str], Any]
    load: Callable[[str], Any]
    suffix: str
    flat: bool = False  # needs a dict of names and tensors


def touched(state: Any) -> Any:
    """Returns the state after reading a byte of every page, because a memory map reads nothing before."""
    import torch

    for _, tensor in tensors_of(state):
        if tensor.dim():
            tensor.reshape(-1).view(torch.uint8)[::4096].sum(dtype=torch.int64)
    return state


def _store_save(state: Any, path: str) -> None:
    with penstock.CheckpointStore(path, keep=1) as store:
        store.save(state, step=1)


def _store_load(path: str) -> Any:
    with penstock.CheckpointStore(path) as store:
        return store.load()


def _torch_save(state: Any, path: str) -> None:
    import torch

    torch.save(state, path)
    make_durable(path)


def _torch_load(path: str) -> Any:
    import torch

    return torch.load(path)


def _safetensors_save(state: Any, path: str) -> None:
    from safetensors.torch import save_file

    save_file(state, path)
    make_durable(path)


def _safetensors_load(path: str) -> Any:
    from safetensors.torch import load_file

    return touched(load_file(path))


OURS = [
    Side("penstock .pt", "penstock .pt", penstock.save, penstock.load, "pt"),
    Side("penstock .safetensors", "penstock .safetensors", penstock.save, penstock.load, "safetensors", flat=True),
    Side("penstock store", "penstock store", _store_save, _store_load, "store"),
]
TORCH = Side("torch.save + fsync", "torch.load", _torch_save, _torch_load, "torch.pt")
SAFETENSORS = Side(
    "safetensors + fsync", "safetensors load_file", _safetensors_save, _safetensors_load, "st.safetensors", flat=True
)
PEERS = {"torch": [TORCH], "safetensors": [SAFETENSORS], "fio": []}


def fio(way: str, path: str, size: int) -> tuple[float, float]:
    """(seconds, CPU seconds of the job) for fio to write so many bytes, including end_fsync, or to read them."""
    backend = penstock.default_engine().describe().backend
    options = {"ioengine": "io_uring" if backend == "io_uring" else "libaio", "iodepth": 16, "bs": "1m"}
    size_mib = -(-size >> 20)
    words = _fio.command(way, filename=_fio.filename(path), size=f"{size_mib}m", end_fsync=1, **options)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"fio ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    figures = _fio.figures(done.stdout, way)
    return figures["seconds"], figures["cpu_s"]
