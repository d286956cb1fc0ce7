# SPDX-License-Identifier: Apache-2.0
"""DeepNVMe's model checkpoint example: torch.save through a FastFileWriter, compared with plain torch.save.

python examples/deepnvme/save_checkpoint.py [MIB] [FOLDER]

Theirs needs a patched torch for full speed and a GPU; this is torch as it comes, on the CPU. The file is durable when
close() returns; plain torch.save leaves it to the page cache, so here an fsync follows.
"""

import os
import sys
import time

import torch
from penstock.deepnvme import AsyncIOBuilder, FastFileWriter, FastFileWriterConfig


def save_plain(path, state):
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def save_fast(path, state):
    handle = AsyncIOBuilder().load().aio_handle(block_size=8 << 20, queue_depth=8)
    pinned = handle.new_cpu_locked_tensor(16 << 20, torch.empty(0, dtype=torch.uint8))
    writer = FastFileWriter(
        file_path=path,
        config=FastFileWriterConfig(dnvme_handle=handle, pinned_tensor=pinned, double_buffer=True),
    )
    torch.save(state, writer)
    writer.close()
    handle.free_cpu_locked_tensor(pinned)


def main(mib, folder):
    layer = (mib << 20) // 4 // 4
    state = {f"layers.{i}.weight": torch.randn(layer) for i in range(4)} | {"step": 7}
    for save in (save_plain, save_fast):
        path = os.path.join(folder, f"{save.__name__}.pt")
        start = time.perf_counter()
        save(path, state)
        seconds = time.perf_counter() - start
        back = torch.load(path)
        assert back.keys() == state.keys() and back["step"] == 7
        assert all(torch.equal(back[name], state[name]) for name in state if name != "step")
        print(f"{save.__name__}: {os.path.getsize(path)} bytes in {seconds:.3f} s")
        os.remove(path)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64, sys.argv[2] if len(sys.argv) > 2 else ".")
