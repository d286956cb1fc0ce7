# SPDX-License-Identifier: Apache-2.0
"""Waits for `import deepspeed`, and then lets penstock.deepnvme put itself under it.

Two come here: penstock.deepnvme.install() when DeepSpeed is not imported yet, and penstock_deepnvme.pth, which every
interpreter reads when it starts: where the environment has PENSTOCK_DEEPNVME=1 it calls arm(). That is how processes
that spawn, forkserver and torchrun start have it too. So this module imports little, and lies outside the package
penstock.deepnvme, whose import costs more.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from typing import Any

PACKAGE = "deepspeed"


class _Finder:
    """Finds nothing itself: what the others find of DeepSpeed gets our step at the end of its loading."""

    def __init__(self) -> None:
        self._asking = False

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
    """Lets the loader load once more as it does, then calls us. Nothing of this stays in the loader."""
    load = loader.exec_module

    def exec_module(module: Any) -> None:
        del loader.exec_module  # the method of its class is under it
        load(module)
        if armed():
            from penstock.deepnvme import _install

            _install.deepspeed_was_imported()

    loader.exec_module = exec_module


def arm() -> None:
    """From here on the next import of DeepSpeed ends with ours underneath. Again is fine."""
    if not armed():
        sys.meta_path.insert(0, _finder)


def disarm() -> None:
    """Takes that back."""
    if armed():
        sys.meta_path.remove(_finder)


def armed() -> bool:
    return any(finder is _finder for finder in sys.meta_path)
