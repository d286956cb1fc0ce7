# SPDX-License-Identifier: Apache-2.0
"""gds_handle: what DeepNVMe has for GPU memory. Not in this version: everything of it says so."""

from __future__ import annotations

from typing import Any

from penstock._errors import Unsupported
from penstock.deepnvme._handle import aio_handle

GDS_REASON = (
    "this version of Penstock moves CPU tensors only: GPUDirect Storage (cuFile) is not in it; "
    "use AsyncIOBuilder().load().aio_handle() with a CPU tensor, and copy to the GPU from there"
)


def _refuse(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported(f"gds_handle.{name}: {GDS_REASON}", operation=name)

    refuse.__name__ = name
    refuse.__qualname__ = f"gds_handle.{name}"
    refuse.__doc__ = "Raises penstock.Unsupported with the reason."
    return refuse


class gds_handle:  # noqa: N801 (DeepNVMe's name)
    """DeepNVMe's handle for GPU tensors. Not in this version: making one, and every verb, raises penstock.Unsupported
    (an OSError) with the reason."""

    def __init__(
        self,
        block_size: int = 1024 * 1024,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        raise Unsupported(f"gds_handle: {GDS_REASON}", operation="gds_handle")


for _name in (
    *(name for name in vars(aio_handle) if not name.startswith("_")),
    "new_pinned_device_tensor",
    "free_pinned_device_tensor",
    "pin_device_tensor",
    "unpin_device_tensor",
):
    setattr(gds_handle, _name, _refuse(_name))
del _name
