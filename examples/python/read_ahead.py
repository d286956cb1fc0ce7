# SPDX-License-Identifier: Apache-2.0
"""Works on one part of a file while the next one comes in, on two buffers in turns.

python examples/python/read_ahead.py [FILE]
"""

import sys

import numpy as np
import penstock

PART = 1 << 20


def parts(engine, file):
    """The parts of the file, each as an array that is good until the next one is asked for."""
    buffers = [penstock.empty(PART), penstock.empty(PART)]
    count = -(-file.size // PART)
    ahead = engine.read_async(file, buffers[0], 0, allow_short=True)
    for i in range(count):
        size = ahead.result()
        if i + 1 < count:
            ahead = engine.read_async(file, buffers[(i + 1) % 2], (i + 1) * PART, allow_short=True)
        yield buffers[i % 2].numpy()[:size]


def main(path):
    data = np.random.default_rng(1).integers(0, 256, 5 * PART + 1000, dtype=np.uint8)
    penstock.write(path, data)
    with penstock.Engine() as engine, penstock.File(path) as file:
        total = sum(int(part.sum(dtype=np.int64)) for part in parts(engine, file))
    assert total == data.sum(dtype=np.int64)
    print(f"{data.nbytes} bytes, their sum is {total}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data.bin")
