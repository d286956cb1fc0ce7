# SPDX-License-Identifier: Apache-2.0
"""DeepNVMe's file access examples for CPU tensors: load and store, by plain Python and by a handle, with their speed.

python examples/deepnvme/load_and_store.py [MIB] [LOOPS] [FOLDER]

The speed of plain Python is that of the page cache, of the handle that of the device: neither syncs.
"""

import os
import sys
import time

import torch
from penstock.deepnvme import AsyncIOBuilder

GIB = 1 << 30


def load_by_python(path, tensor):
    with open(path, "rb") as file:
        file.readinto(tensor.numpy())


def store_by_python(path, tensor):
    with open(path, "wb") as file:
        file.write(tensor.numpy())


class ByHandle:
    """The same by a handle, and by locked memory where `locked`: then a copy comes on top."""

    def __init__(self, num_bytes, locked):
        self.handle = AsyncIOBuilder().load().aio_handle(1 << 20, 128, False, True, 1)
        self.bounce = None
        if locked:
            self.bounce = self.handle.new_cpu_locked_tensor(num_bytes, torch.empty(0, dtype=torch.uint8))

    def load(self, path, tensor):
        self.handle.sync_pread(tensor if self.bounce is None else self.bounce, path)
        if self.bounce is not None:
            tensor.copy_(self.bounce)

    def store(self, path, tensor):
        if self.bounce is not None:
            tensor = self.bounce.copy_(tensor)
        self.handle.sync_pwrite(tensor, path)

    def close(self):
        if self.bounce is not None:
            self.handle.free_cpu_locked_tensor(self.bounce)


def timed(name, loops, num_bytes, call, *arguments):
    seconds = []
    for _ in range(loops):
        start = time.perf_counter()
        call(*arguments)
        seconds.append(time.perf_counter() - start)
    best = min(seconds)
    print(f"{name}: {num_bytes / best / GIB:.2f} GiB/s, the best of {loops}")


def main(mib, loops, folder):
    source = torch.randint(0, 256, (mib << 20,), dtype=torch.uint8)
    path = os.path.join(folder, f"tensor_{mib}MiB.bin")
    plain, locked = ByHandle(source.nbytes, False), ByHandle(source.nbytes, True)
    for name, store, load in (
        ("python", store_by_python, load_by_python),
        ("handle", plain.store, plain.load),
        ("handle, locked memory", locked.store, locked.load),
    ):
        timed(f"{name}, store", loops, source.nbytes, store, path, source)
        target = torch.zeros_like(source)
        timed(f"{name}, load", loops, source.nbytes, load, path, target)
        assert torch.equal(target, source)
    plain.close()
    locked.close()
    os.remove(path)


if __name__ == "__main__":
    sizes = [int(argument) for argument in sys.argv[1:3]]
    main(*(sizes + [64, 3][len(sizes) :]), sys.argv[3] if len(sys.argv) > 3 else ".")
