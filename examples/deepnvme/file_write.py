# SPDX-License-Identifier: Apache-2.0
"""DeepNVMe's first tutorial: a tensor to a file, blocking, not blocking, in parallel, and from locked memory.

python examples/deepnvme/file_write.py [MIB] [FOLDER]

Its programs write 1 GiB from the GPU; here it is CPU memory, and what was written is looked at.
"""

import os
import sys
import time

import torch
from penstock.deepnvme import AsyncIOBuilder, PinMemoryBuilder  # was: from deepspeed.ops.op_builder import ...


def blocking(tensor, path):
    handle = AsyncIOBuilder().load().aio_handle()
    assert handle.sync_pwrite(tensor, path) == 1


def not_blocking(tensor, path):
    handle = AsyncIOBuilder().load().aio_handle()
    handle.async_pwrite(tensor, path)
    # Anything may be done here, but `tensor` is not to be changed before wait().
    assert handle.wait() == 1


def parallel(tensor, path):
    # Theirs splits the tensor over 4 threads; one engine needs no such help, and takes sizes that 4 does not divide.
    handle = AsyncIOBuilder().load().aio_handle(intra_op_parallelism=4)
    handle.async_pwrite(tensor[:-1], path)
    handle.async_pwrite(tensor[-1:], path, tensor.numel() - 1)
    assert handle.wait() == 2


def from_locked_memory(tensor, path):
    handle = AsyncIOBuilder().load().aio_handle()
    locked = handle.new_cpu_locked_tensor(tensor.numel(), tensor)
    locked.copy_(tensor)
    handle.async_pwrite(locked, path)
    assert handle.wait() == 1
    assert handle.free_cpu_locked_tensor(locked)


def from_memory_that_another_handle_locked(tensor, path):
    pin = PinMemoryBuilder().load().pin_handle()
    locked = pin.new_cpu_locked_tensor(tensor.numel(), torch.empty(0, dtype=torch.uint8))
    locked.copy_(tensor)
    handle = AsyncIOBuilder().load().aio_handle()
    assert handle.is_pinned(locked)
    handle.sync_pwrite(locked, path)
    assert pin.free_cpu_locked_tensor(locked)


def main(mib, folder):
    tensor = torch.randint(0, 256, (mib << 20,), dtype=torch.uint8)
    for program in (
        blocking,
        not_blocking,
        parallel,
        from_locked_memory,
        from_memory_that_another_handle_locked,
    ):
        path = os.path.join(folder, f"test_{mib}MiB.pt")
        start = time.perf_counter()
        program(tensor, path)
        seconds = time.perf_counter() - start
        assert os.path.getsize(path) == mib << 20
        assert torch.equal(torch.from_file(path, size=mib << 20, dtype=torch.uint8), tensor)
        os.remove(path)
        print(f"{program.__name__}: {mib} MiB in {seconds:.3f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64, sys.argv[2] if len(sys.argv) > 2 else ".")
