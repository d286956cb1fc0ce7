# SPDX-License-Identifier: Apache-2.0
"""Waits for `import deepspeed`, and then calls a function, which installs penstock.deepnvme into it.

It has two callers. penstock.deepnvme.install() calls it if DeepSpeed is not imported yet. penstock_deepnvme.pth, which
every interpreter reads at start, calls arm() if the environment has PENSTOCK_DEEPNVME=1: so processes that are started
by spawn, forkserver and torchrun are covered too. For that reason this module imports little, and is outside the
package penstock.deepnvme, whose import costs more. It does not know that package: its callers give the function.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

PACKAGE = "deepspeed"


class _Finder:
    """Finds nothing itself. It adds a step at the end of loading to the DeepSpeed that the other finders find."""

    def __init__(self) -> None:
        self._asking = False
        self.then: Callable[[], None] = lambda: None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != PACKAGE or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            _follow(spec.loader)
        return spec


_finder = _Finder()


def _follow(loader: Any) -> None:
    """Makes the loader call us after its next load. The change is removed from the loader by then."""
    load = loader.exec_module

    def exec_module(module: Any) -> None:
        del loader.exec_module  # uncovers the method of its class
        load(module)
        if armed():
            _finder.then()

    loader.exec_module = exec_module


def arm(then: Callable[[], None]) -> None:
    """Makes the next import of DeepSpeed call `then` at its end. May be called again."""
    _finder.then = then
    if not armed():
        sys.meta_path.insert(0, _finder)


def disarm() -> None:
    """Undoes arm()."""
    if armed():
        sys.meta_path.remove(_finder)


def armed() -> bool:
    return any(finder is _finder for finder in sys.meta_path)
