# SPDX-License-Identifier: Apache-2.0
"""Who saves and loads. Each save ends durable: the data, the file and the folder are synced before its clock stops.

What a peer's own call leaves undone (fsync of file and folder) is done after it and counted, for whoever wants to
keep a checkpoint has to do it. Loads go to fresh tensors; of what is mapped a byte a page is touched, or nothing was
loaded.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import penstock
from penstock.checkpoint_bench._models import tensors_of


@dataclass(frozen=True)
class Side:
    """`save` writes the state under a path, durably; `load` gives a state back from there."""

    title: str
    load_title: str
    save: Callable[[Any, str], Any]
    load: Callable[[str], Any]
    suffix: str
    flat: bool = False  # takes a dict of names and tensors


def _sync(path: str) -> None:
    for one in (path, os.path.dirname(path)):
        descriptor = os.open(one, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def settle(folder: str) -> None:
    """No write-back of one side in the next one's time."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)


def _touch(state: Any) -> Any:
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
    _sync(path)


def _torch_load(path: str) -> Any:
    import torch

    return torch.load(path)


def _safetensors_save(state: Any, path: str) -> None:
    from safetensors.torch import save_file

    save_file(state, path)
    _sync(path)


def _safetensors_load(path: str) -> Any:
    from safetensors.torch import load_file

    return _touch(load_file(path))


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


def files_of(path: str) -> list[str]:
    """The files of a checkpoint, which is one, or a folder of them."""
    if not os.path.isdir(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names if name != ".lock"]


def make_cold(path: str) -> None:
    """Takes the files out of the page cache. Only what is clean goes, so they must have been synced."""
    for one in files_of(path):
        descriptor = os.open(one, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)


def fio(way: str, path: str, size: int) -> tuple[float, float]:
    """(seconds, CPU seconds of the job) of fio's writes of so many bytes, end_fsync included, or of its reads."""
    command = ["fio", "--name=job", f"--rw={way}", f"--filename={path}", f"--size={-(-size >> 20)}m", "--bs=1m"]
    command += ["--iodepth=16", "--ioengine=libaio", "--direct=1", "--end_fsync=1", "--output-format=json"]
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    if done.returncode != 0:
        raise OSError(f"fio ended with {done.returncode}: {(done.stderr or text).strip()[-300:]}")
    job = json.loads(text[text.index("{") :])["jobs"][0]
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    return job[way]["runtime"] / 1000, cpu_s
