# SPDX-License-Identifier: Apache-2.0
"""The memory that units of weights are used in: of the host, or of a GPU. Budgets, the current stream and tensors.

Only check_torch(), current_stream(), free_memory(), tensor() and put() ask CUDA."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from penstock import _core
from penstock._base import devices as _devices
from penstock._base.arguments import size
from penstock._base.errors import Unsupported

RESERVE_BYTES = 512 << 20


@dataclass(frozen=True)
class Target:
    """number: CUDA's number of the GPU that units are used on; None: they are used on the host. memory: the argument
    for the budget there. host_bytes: with a GPU, pinned memory of the host."""

    number: int | None
    memory: int | str
    host_bytes: int = 0

    def stream(self) -> int:
        """The current stream of torch; 0 on the host."""
        return 0 if self.number is None else current_stream(self.number)

    def put(self, value: torch.Tensor) -> torch.Tensor:
        """The tensor in this memory."""
        return value if self.number is None else put(self.number, value)

    def tensor(self, found: Any) -> torch.Tensor:
        """From what the core says of a tensor."""
        if self.number is None:
            made: torch.Tensor = found.torch()
            return made
        address, nbytes, dtype, shape, owner = found
        return tensor(self.number, address, nbytes, getattr(torch, dtype), shape, owner)

    def budget(self, memory: int | str) -> int:
        """Bytes of an argument for the budget. "auto": what is free, but for a reserve."""
        if memory != "auto":
            return size("stream", "memory" if self.number is None else "device_memory", memory)
        free = _core.available_memory_bytes() if self.number is None else free_memory(self.number)
        return max(0, free - RESERVE_BYTES)

    def changed(self, memory: int | str | None, device_memory: int | str | None) -> int | str:
        """The new budget, from the arguments of set_memory()."""
        given, other, name = memory, device_memory, "memory"
        why = "weights that are used on the host have no device_memory="
        if self.number is not None:
            given, other, name = device_memory, memory, "device_memory"
            why = "weights on a GPU change device_memory= alone; the pinned memory= stays as stream() got it"
        if given is None or other is not None:
            raise ValueError(f"set_memory: expected {name}= and nothing else: {why}")
        return given


def target_of(device: Any, device_memory: int | str | None, memory: int | str) -> Target:
    """The memory of these arguments of stream()."""
    if isinstance(device, int):
        device = _devices.device_of("stream", "device", device)
    name = "cpu" if device is None else str(device)
    if name == "cpu":
        if device_memory is not None:
            raise ValueError(
                f"stream: device_memory={device_memory!r} without a GPU: give device='cuda:0' with it, or leave it out"
            )
        return Target(None, memory)
    match = re.fullmatch(r"cuda(?::(\d{1,4}))?", name)
    if match is None:
        raise ValueError(f"stream: device={name!r}: expected 'cpu', 'cuda', or 'cuda:1' for another GPU")
    if device_memory is None:
        raise ValueError(
            f"stream: device={name!r} needs device_memory=, the bytes of that GPU for weights: '40GiB', or 'auto'"
        )
    if device_memory != "auto":
        device_memory = size("stream", "device_memory", device_memory)
    host_bytes = Target(None, memory).budget(memory)
    check_torch(name)
    return Target(int(match[1]) if match[1] else torch.cuda.current_device(), device_memory, host_bytes)


def check_torch(name: str) -> None:
    if not torch.cuda.is_available():
        raise Unsupported(
            f"stream: device={name!r}: {_devices.missing(torch.device('cuda'))}; install a torch with CUDA and a "
            "driver, or leave device out, and the weights are streamed to host memory",
            operation="stream",
        )


def current_stream(number: int) -> int:
    return int(torch.cuda.current_stream(number).cuda_stream)


def free_memory(number: int) -> int:
    return int(torch.cuda.mem_get_info(number)[0])


class _Memory:
    """Bytes of a GPU. A tensor on them keeps their owner alive."""

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "strides": None,
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def tensor(number: int, address: int, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...], owner: Any) -> Any:
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype, device=f"cuda:{number}")
    return torch.as_tensor(_Memory(address, nbytes, owner), device=f"cuda:{number}").view(dtype).view(shape)


def put(number: int, value: torch.Tensor) -> torch.Tensor:
    return value.to(f"cuda:{number}")
