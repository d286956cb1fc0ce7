# SPDX-License-Identifier: Apache-2.0
"""Devices of torch as callers name them: "cuda", "cuda:1", 1, torch.device("cuda", 1), "cpu"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock._base import arguments as _arguments

if TYPE_CHECKING:
    import torch

_EXPECTED = "'cpu', 'cuda', 'cuda:1', the number of a GPU or a torch.device"


def device_of(verb: str, name: str, device: Any) -> torch.device:
    """The device of the argument `name`. TypeError, ValueError."""
    import torch

    try:
        if isinstance(device, int) and not isinstance(device, bool):
            try:
                return torch.device(device)
            except RuntimeError:  # no GPU is here: the caller hears which one was asked for
                return torch.device("cuda", device)
        if isinstance(device, (str, torch.device)):
            return torch.device(device)
    except RuntimeError:
        raise ValueError(f"{verb}: {name}: expected {_EXPECTED}, got {_arguments.shown(device)}") from None
    raise TypeError(f"{verb}: {name}: expected {_EXPECTED}, got {_arguments.got(device)}")


def missing(device: torch.device) -> str | None:
    """Why the device is not here; None if it is."""
    import torch

    if device.type in ("cpu", "meta"):
        return None
    if device.type != "cuda":
        try:
            torch.empty(0, device=device)
        except Exception:  # of many types
            return f"torch {torch.__version__} has no such device here"
        return None
    if not torch.cuda.is_available():
        built = torch.version.cuda is not None or torch.version.hip is not None
        why = "sees none" if built else "was built without CUDA"
        return f"no GPU is here: torch {torch.__version__} {why}"
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        return "there is one GPU here, cuda:0" if count == 1 else f"there are {count} GPUs here, from cuda:0 on"
    return None


def check_here(verb: str, name: str, device: torch.device) -> None:
    """Raises ValueError if the device is not here."""
    why = missing(device)
    if why is not None:
        raise ValueError(f"{verb}: {name}={str(device)!r}: {why}; give {name}='cpu', or another device that is here")
