# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's builders of its operators. Here nothing is built: load() returns an existing module."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from penstock.deepnvme import _functions, _gds, _handle, _pinned


def _module(name: str, **members: Any) -> ModuleType:
    made = ModuleType(f"penstock.deepnvme.{name}", f"What DeepSpeed's {name} has, on Penstock's engine.")
    vars(made).update(members)
    return made


_ASYNC_IO = _module(
    "async_io",
    aio_handle=_handle.aio_handle,
    aio_read=_functions.aio_read,
    aio_write=_functions.aio_write,
    deepspeed_memcpy=_functions.deepspeed_memcpy,
)
_GDS = _module("gds", gds_handle=_gds.gds_handle)
_PIN_MEMORY = _module("pin_memory", pin_handle=_pinned.pin_handle)
_UTILS = _module("utils", cast_to_byte_tensor=_functions.cast_to_byte_tensor)


class _Builder:
    """The methods of a builder that DeepSpeed uses. Making one and load() cost nothing; a process has one module."""

    NAME = ""
    BUILD_VAR = ""
    _OP = ""  # the name of the module in DeepSpeed
    _MODULE: ModuleType

    def __init__(self) -> None:
        self.name = self.NAME
        self.error_log: str | None = None

    def absolute_name(self) -> str:
        return f"deepspeed.ops.{self._OP}_op"

    def sources(self) -> list[str]:
        """None: there is nothing to compile."""
        return []

    def include_paths(self) -> list[str]:
        return []

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether its functions work on this machine."""
        return True

    def load(self, verbose: bool = False) -> ModuleType:
        """Returns the module. Compiles nothing; `verbose` is for compatibility and has no effect."""
        return self._MODULE


class AsyncIOBuilder(_Builder):
    """load() has aio_handle, aio_read, aio_write and deepspeed_memcpy."""

    NAME = "async_io"
    BUILD_VAR = "DS_BUILD_AIO"
    _OP = "aio.async_io"
    _MODULE = _ASYNC_IO


class GDSBuilder(AsyncIOBuilder):
    """load() has gds_handle. The module can be loaded on any machine; a handle needs a GPU."""

    NAME = "gds"
    BUILD_VAR = "DS_BUILD_GDS"
    _OP = "gds.gds"
    _MODULE = _GDS

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether this machine has a GPU whose memory can be transferred. With `verbose` the path, or the reason, is
        logged; `error_log` has the reason as well. Loads NVIDIA's driver, if there is one."""
        reason = _gds.why_not()
        self.error_log = reason or None
        if verbose:
            import logging

            log = logging.getLogger("penstock.deepnvme")
            if reason:
                log.warning("%s is not compatible: %s", self.NAME, reason)
            else:
                log.info("%s: tensors on a GPU are moved %s", self.NAME, _gds.WAY)
        return not reason


class PinMemoryBuilder(_Builder):
    """load() has pin_handle."""

    NAME = "pin_memory"
    BUILD_VAR = "DS_BUILD_PIN_MEMORY"
    _OP = "pin_memory.pin_memory"
    _MODULE = _PIN_MEMORY


class UtilsBuilder(_Builder):
    """load() has cast_to_byte_tensor."""

    NAME = "utils"
    BUILD_VAR = "DS_BUILD_UTILS"
    _OP = "utils"
    _MODULE = _UTILS
