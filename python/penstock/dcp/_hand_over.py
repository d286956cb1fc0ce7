# SPDX-License-Identifier: Apache-2.0
"""What is torch's own: the functions and classes as they were before install(), and what is handed over to them."""

from __future__ import annotations

import inspect
import os
from typing import Any

from torch.distributed import checkpoint
from torch.distributed.checkpoint import default_planner, filesystem, state_dict_loader, state_dict_saver

save = state_dict_saver.save
async_save = state_dict_saver.async_save
load = state_dict_loader.load
FileSystemWriter = filesystem.FileSystemWriter
FileSystemReader = filesystem.FileSystemReader

METADATA = ".metadata"  # of torch's checkpoints
MANIFEST = "manifest.json"  # of ours


def is_plain_save(planner: Any) -> bool:
    """Whether a planner does what a save without one does. Its caches and its choice of ranks change no result."""
    return planner is None or (type(planner) is default_planner.DefaultSavePlanner and planner.flatten_state_dict)


def is_plain_load(planner: Any) -> bool:
    return planner is None or (type(planner) is default_planner.DefaultLoadPlanner and planner.flatten_state_dict)


def is_local(path: Any) -> bool:
    """Whether a checkpoint_id is a path of this machine, as torch tells it from a URL."""
    return "://" not in os.fspath(path)


def is_ours(path: Any) -> bool:
    """Whether a folder has a checkpoint of ours, and none of torch that was saved over it."""
    path = os.fspath(path)
    return os.path.isfile(os.path.join(path, MANIFEST)) and not os.path.isfile(os.path.join(path, METADATA))


def call(function: Any, state_dict: Any, **keywords: Any) -> Any:
    """Of torch's own, with the keywords that this version of torch has."""
    known = inspect.signature(function).parameters
    return function(state_dict, **{name: value for name, value in keywords.items() if name in known})


_MODULES = (checkpoint, state_dict_saver, state_dict_loader, filesystem)
_replaced: list[tuple[Any, str, Any]] = []


def put(**by_name: Any) -> None:
    """Puts objects in the place of torch's own in all modules that have them."""
    if _replaced:
        return
    own = {"save": save, "async_save": async_save, "load": load}
    own |= {"FileSystemWriter": FileSystemWriter, "FileSystemReader": FileSystemReader}
    for module in _MODULES:
        for name, other in by_name.items():
            if getattr(module, name, None) is own[name]:
                _replaced.append((module, name, own[name]))
                setattr(module, name, other)


def put_back() -> None:
    while _replaced:
        setattr(*_replaced.pop())


def standing_for(theirs: type, ours: type) -> type:
    """A class that makes objects of ours. A subclass of it is one of torch's own."""

    class Standing(theirs):  # type: ignore[valid-type, misc]
        def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
            if cls is Standing:
                path = arguments[0] if arguments else keywords.get("path")
                return ours(path) if path is None or is_local(path) else theirs(*arguments, **keywords)
            return super().__new__(cls)

    Standing.__name__ = Standing.__qualname__ = theirs.__name__
    Standing.__module__ = theirs.__module__
    return Standing
