# SPDX-License-Identifier: Apache-2.0
"""DeepNVMe's API on Penstock's engine: nothing to compile, and neither DeepSpeed nor libaio needed.

    from penstock.deepnvme import AsyncIOBuilder      # was: from deepspeed.ops.op_builder import AsyncIOBuilder

    handle = AsyncIOBuilder().load().aio_handle()
    handle.async_pwrite(tensor, "weights.bin")
    assert handle.wait() == 1

install() makes DeepSpeed itself use it. docs/deepnvme.md lists what is the same, what differs, and why.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from penstock.deepnvme._builders import AsyncIOBuilder, GDSBuilder, PinMemoryBuilder, UtilsBuilder
from penstock.deepnvme._functions import aio_read, aio_write, cast_to_byte_tensor, deepspeed_memcpy
from penstock.deepnvme._gds import gds_handle
from penstock.deepnvme._handle import aio_handle
from penstock.deepnvme._pinned import pin_handle

__all__ = [
    "AsyncIOBuilder",
    "FastFileWriter",
    "FastFileWriterConfig",
    "GDSBuilder",
    "PinMemoryBuilder",
    "UtilsBuilder",
    "aio_handle",
    "aio_read",
    "aio_write",
    "cast_to_byte_tensor",
    "deepspeed_memcpy",
    "gds_handle",
    "install",
    "installed",
    "pin_handle",
    "uninstall",
]

# Imported on demand: reading a tensor needs neither of them.
_LATER = {
    "FastFileWriter": "_fast_file_writer",
    "FastFileWriterConfig": "_fast_file_writer",
    "install": "_install",
    "installed": "_install",
    "uninstall": "_install",
}


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return __all__
