# SPDX-License-Identifier: Apache-2.0
"""Weights that are streamed to a GPU: the arguments, and the calls of _core.WeightStream for it.

Only check_torch(), current_stream(), tensor() and put() use torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

import penstock
from penstock import _core, _devices
from penstock._arguments import size


@dataclass(frozen=True)
class Target:
    """number: CUDA's number of the GPU. memory: bytes of it for weights."""

    number: int
    memory: int


def target_of(device: Any, device_memory: int | str | None) -> Target | None:
    """The GPU of these arguments; None for the host."""
    if isinstance(device, int):
        device = _devices.device_of("stream", "device", device)
    name = "cpu" if device is None else str(device)
    if name == "cpu":
        if device_memory is not None:
            raise ValueError(
                f"stream: device_memory={device_memory!r} without a GPU: give device='cuda:0' with it, or leave it out"
            )
        return None
    match = re.fullmatch(r"cuda(?::(\d{1,4}))?", name)
    if match is None:
        raise ValueError(f"stream: device={name!r}: expected 'cpu', 'cuda', or 'cuda:1' for another GPU")
    if device_memory is None:
        raise ValueError(f"stream: device={name!r} needs device_memory=, the bytes of that GPU for weights: '40GiB'")
    memory = size("stream", "device_memory", device_memory)
    check_torch(name)
    return Target(int(match[1]) if match[1] else torch.cuda.current_device(), memory)


def check_torch(name: str) -> None:
    if not torch.cuda.is_available():
        raise penstock.Unsupported(
            f"stream: device={name!r}: {_devices.missing(torch.device('cuda'))}; install a torch with CUDA and a "
            "driver, or leave device out, and the weights are streamed to host memory",
            operation="stream",
        )


def current_stream(number: int) -> int:
    return int(torch.cuda.current_stream(number).cuda_stream)


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


@dataclass(frozen=True)
class _Arrived:
    arguments: tuple[Any, ...]

    def torch(self) -> Any:
        return tensor(*self.arguments)


class Core:
    """The calls of _core.WeightStream."""

    def __init__(self, target: Target, paths: list[str], wanted: Any, memory: tuple[int, int], slots: int, more: Any):
        """memory: for units on the GPU, and of the host. more: (joined tensors, {name: TensorInfo})."""
        joined, infos = more
        self._number = target.number
        self._dtypes = [[getattr(torch, str(infos[name].dtype)) for name in names] for _, names in wanted]
        self._core = _core.GpuWeightStream(paths, wanted, target.number, *memory, slots, joined)

    def acquire(self, unit: int) -> tuple[int, int]:
        """Makes the current stream of torch wait for the unit."""
        return 1, self._core.acquire(unit, current_stream(self._number))

    def tensors(self, unit: int) -> list[_Arrived]:
        found = zip(self._core.tensors(unit), self._dtypes[unit], strict=True)
        return [
            _Arrived((self._number, address, nbytes, dtype, shape, owner))
            for (address, nbytes, _, shape, owner), dtype in found
        ]

    def release(self, unit: int) -> None:
        """Releases the unit: its slot is reused after the current work of torch's stream."""
        self._core.release(unit, current_stream(self._number))

    def set_memory(self, memory: int, reserve: int | None) -> NoReturn:
        raise NotImplementedError(
            "set_memory: the budgets of weights on a GPU do not change; call unstream(), then penstock.stream() again"
        )

    def plan(self) -> dict[str, Any]:
        return self._core.plan()

    def stats(self) -> dict[str, Any]:
        return self._core.stats()

    def close(self) -> None:
        self._core.close()
