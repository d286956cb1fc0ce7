# SPDX-License-Identifier: Apache-2.0
"""gds_handle: aio_handle for tensors in the memory of a GPU.

Bytes go through pinned memory of the engine and the GPU's copy engines, in a pipeline. cuFile (GPUDirect Storage) is
not used, so nothing has to be registered with it, no file is written to the working directory, and no variable is set.
Pinning a device tensor, as DeepNVMe calls it, is only recorded, for the answer of unpin_device_tensor().
"""

from __future__ import annotations

import operator
from typing import Any

from penstock import _core
from penstock._base.errors import Unsupported
from penstock.deepnvme._handle import ALIGNMENT_BYTES, aio_handle
from penstock.deepnvme._torch import is_tensor, torch

WAY = "by way of pinned memory and the GPU's copy engines; cuFile (GPUDirect Storage) is not used"

_pinned: set[tuple[int, int]] = set()  # (device, address); each access is one atomic operation


def why_not() -> str:
    """The reason why GPU memory cannot be transferred on this machine, and the fix; empty if it can."""
    report = _core.gpus()
    if report:
        return ""
    return f"no memory of a GPU can be moved here: {report.reason}; aio_handle moves tensors on the CPU"


def _place(verb: str, tensor: Any) -> tuple[int, int]:
    if not is_tensor(tensor):
        raise TypeError(f"{verb}: got {type(tensor).__name__}; give a torch tensor on a GPU")
    if not tensor.is_cuda:
        raise ValueError(
            f"{verb}: this tensor is on {tensor.device}; give one on a GPU, or use new_cpu_locked_tensor()"
        )
    return tensor.get_device(), tensor.data_ptr()


class gds_handle(aio_handle):  # noqa: N801 (DeepNVMe's name)
    """aio_handle for tensors on a GPU and on the CPU. Raises penstock.Unsupported (an OSError), with the reason, if no
    GPU can be used.

    Two things differ from aio_handle. async_pwrite() of a GPU tensor makes no copy: do not change it before wait().
    get_alignment() is 512 bytes for any intra_op_parallelism.
    """

    __slots__ = ()

    _COPIES_DEVICE_TENSORS = False

    def __init__(
        self,
        block_size: int = 1024 * 1024,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        if reason := why_not():
            raise Unsupported(f"gds_handle: {reason}", operation="gds_handle")
        super().__init__(block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism)

    def get_alignment(self) -> int:
        """512 bytes, the alignment of sizes that DeepNVMe requires. This handle accepts any size."""
        return ALIGNMENT_BYTES

    def new_pinned_device_tensor(self, num_elem: int, example_tenosr: Any) -> Any:
        """A 1-D tensor of `num_elem` elements of the dtype of the example, on torch's current GPU, not initialised. The
        second keyword has DeepNVMe's spelling."""
        if not is_tensor(example_tenosr):
            raise TypeError(f"example: got {type(example_tenosr).__name__}; give a torch tensor, whose dtype is taken")
        count = operator.index(num_elem)
        if count < 0:
            raise ValueError(f"num_elem: got {count}; expected 0 or more")
        tensor = torch().empty(count, dtype=example_tenosr.dtype, device="cuda")
        self.pin_device_tensor(tensor)
        return tensor

    def free_pinned_device_tensor(self, tensor: Any) -> bool:
        """As unpin_device_tensor(). The memory is freed with its last view."""
        return self.unpin_device_tensor(tensor)

    def pin_device_tensor(self, tensor: Any) -> bool:
        """Records a GPU tensor as pinned, for all handles. Returns True. Not needed, and makes nothing faster."""
        _pinned.add(_place("pin_device_tensor", tensor))
        return True

    def unpin_device_tensor(self, tensor: Any) -> bool:
        """Undoes pin_device_tensor(). Returns False if no tensor with that address was recorded."""
        place = _place("unpin_device_tensor", tensor)
        try:
            _pinned.remove(place)
        except KeyError:
            return False
        return True
