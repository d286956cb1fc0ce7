# SPDX-License-Identifier: Apache-2.0
"""Devices of torch as callers name them ("cuda", "cuda:1", 1, torch.device("cuda", 1), "cpu"), and storages on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock import _core
from penstock._base.arguments import got, shown
from penstock._base.arrays import torch_for_states as _torch

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
        raise ValueError(f"{verb}: {name}: expected {_EXPECTED}, got {shown(device)}") from None
    raise TypeError(f"{verb}: {name}: expected {_EXPECTED}, got {got(device)}")


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


# ---- storages


def placing(verb: str, map_location: Any, device: Any, into: Any) -> Any:
    """The map_location to use, with `device` taken into account. A device that is not here is an error at once."""
    if device is None:
        if map_location is None or isinstance(map_location, (str, Mapping)) or callable(map_location):
            return map_location  # a string may be of a device that only torch's own loader knows
        return device_of(verb, "map_location", map_location)
    if map_location is not None:
        raise ValueError(f"{verb}: device or map_location, not both")
    if isinstance(device, str) and device == "cpu":  # needs no torch
        return device
    where = device_of(verb, "device", device)
    if into is not None and where.type != "cpu":
        raise ValueError(f"{verb}: into: the tensors say where they are; leave out device")
    check_here(verb, "device", where)
    return "cpu" if where.type == "cpu" else where


def _asked_for(location: str, map_location: Any) -> Any:
    """Where map_location, which is no function, puts a storage of `location`."""
    where = map_location.get(location, location) if isinstance(map_location, Mapping) else map_location
    return location if where is None else where


def _not_here(location: str, where: Any, map_location: Any, path: str) -> ValueError | None:
    """The error for a storage of `location` that is to come to a device which is not here."""
    try:
        why = missing(_torch().device(where))
    except RuntimeError:
        why = "torch knows no such device"
    if why is None:
        return None
    of_file = map_location is None or (isinstance(map_location, Mapping) and location not in map_location)
    what = f"a storage in it is of the device {shown(location)}" if of_file else f"map_location={str(where)!r}"
    return ValueError(f"load: '{path}': {what}: {why}; give map_location='cpu', or another device that is here")


def gpu_of(location: str, map_location: Any) -> Any:
    """The CUDA device on which map_location puts a storage of `location`. None: the storage is read to host memory, and
    torch moves it."""
    torch = _torch()
    where = _asked_for(location, map_location)
    if not isinstance(where, (str, torch.device)) or not str(where).startswith("cuda"):
        return None
    if torch.version.hip is not None or not torch.cuda.is_available():
        return None
    try:
        device = torch.device(where)
    except RuntimeError:  # not a device; torch raises the error later
        return None
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    reached = _core.gpu_count() == torch.cuda.device_count()
    return device if reached and device.index < torch.cuda.device_count() else None


def gpus_of(locations: Iterable[str], map_location: Any, path: str) -> list[Any]:
    """gpu_of() of each. A missing GPU is an error before anything is read."""
    known: dict[str, Any] = {}
    for location in (locations := list(locations)):
        if location not in known:
            if not callable(map_location):
                where = _asked_for(location, map_location)
                if str(where).startswith("cuda") and (error := _not_here(location, where, map_location, path)):
                    raise error
            known[location] = gpu_of(location, map_location)
    return [known[location] for location in locations]


def relocated(storage: Any, location: str, map_location: Any, path: str) -> Any:
    """The storage on the device that map_location selects, as in torch.load."""
    if (kind := storage.device.type) == "cuda" or (kind == location == "cpu" and map_location is None):
        return storage  # it was read to the GPU of gpu_of(), or is where it was
    torch = _torch()
    restore = torch.serialization._get_restore_location(map_location)
    try:
        there = restore(storage, location)
    except Exception as error:  # torch raises many types
        if callable(map_location) or isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
            raise
        where = _asked_for(location, map_location)
        known = _not_here(location, where, map_location, path)
        raise known or ValueError(
            f"load: '{path}': map_location: torch cannot put a storage of {shown(location)} on {shown(str(where))}; "
            "give map_location='cpu', or another device that is here"
        ) from error
    return there if isinstance(there, torch.UntypedStorage) else there._untyped_storage


def host_copies(storages: list[Any]) -> list[Any]:
    """Copies storages of devices to host memory, all concurrently. The copies are complete when it returns. For CUDA
    devices the memory is locked, and torch keeps it for the next save."""
    torch = _torch()
    copies, devices = [], set()
    for storage in storages:
        cuda = storage.device.type == "cuda"
        copy = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=cuda)
        there = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        copy.copy_(there, non_blocking=cuda)
        copies.append(copy.untyped_storage())
        if cuda:
            devices.add(storage.device)
    for device in devices:
        torch.cuda.synchronize(device)
    return copies
