# SPDX-License-Identifier: Apache-2.0
"""gds_handle: aio_handle for tensors in the memory of a GPU, written from where they lie.

Bytes go by way of pinned memory of the engine and the GPU's copy engines, in a pipeline: cuFile (GPUDirect Storage) is
not used, so nothing has to be registered with it, no file is written into the working directory, and no variable is
set. What DeepNVMe calls pinning a device tensor is kept as a note, which the opposite call answers by.
"""

from __future__ import annotations

import operator
from typing import Any

from penstock import _core
from penstock._errors import Unsupported
from penstock.deepnvme._handle import ALIGNMENT_BYTES, aio_handle
from penstock.deepnvme._torch import is_tensor, torch

WAY = "by way of pinned memory and the GPU's copy engines; cuFile (GPUDirect Storage) is not used"

_pinned: set[tuple[int, int]] = set()  # (device, address); each step on it is one operation


def why_not() -> str:
    """The reason why no memory of a GPU can be moved here, and the cure; nothing where it can."""
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
    """aio_handle for tensors on a GPU, and on the CPU as there. Raises penstock.Unsupported (an OSError) where no GPU
    can be used, with the reason.

    Two things differ from aio_handle. async_pwrite() of a GPU tensor makes no copy: leave the tensor be till wait().
    get_alignment() is 512 bytes whatever intra_op_parallelism is.
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
        """512 bytes: what DeepNVMe demands of sizes. This handle takes any."""
        return ALIGNMENT_BYTES

    def new_pinned_device_tensor(self, num_elem: int, example_tenosr: Any) -> Any:
        """A 1-D tensor of `num_elem` elements of the dtype of the example, on torch's current GPU, not initialised; the
        second keyword is spelt as DeepNVMe spells it."""
        if not is_tensor(example_tenosr):
            raise TypeError(f"example: got {type(example_tenosr).__name__}; give a torch tensor, whose dtype is taken")
        count = operator.index(num_elem)
        if count < 0:
            raise ValueError(f"num_elem: got {count}; expected 0 or more")
        tensor = torch().empty(count, dtype=example_tenosr.dtype, device="cuda")
        self.pin_device_tensor(tensor)
        return tensor

    def free_pinned_device_tensor(self, tensor: Any) -> bool:
        """As unpin_device_tensor(). Its memory goes with its last view."""
        return self.unpin_device_tensor(tensor)

    def pin_device_tensor(self, tensor: Any) -> bool:
        """Notes a GPU tensor as pinned, for all handles: True. It need not be, and nothing is faster for it."""
        _pinned.add(_place("pin_device_tensor", tensor))
        return True

    def unpin_device_tensor(self, tensor: Any) -> bool:
        """The opposite. False when no tensor that begins there was noted."""
        place = _place("unpin_device_tensor", tensor)
        try:
            _pinned.remove(place)
        except KeyError:
            return False
        return True
