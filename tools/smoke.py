#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A first look at an installed package, with nothing but Python: reads, writes, saves and loads in a folder of its own,
and asks the program for its version. `make smoke`, and tools/fresh.sh in a machine that has nothing else."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main():
    import penstock

    with tempfile.TemporaryDirectory(prefix="penstock-smoke-", dir=".") as folder:
        data = os.urandom(3 << 20)
        path = Path(folder) / "data"
        assert penstock.write(path, data, sync=True) == len(data)
        into = bytearray(len(data))
        transfer = penstock.read_async(path, into)
        assert transfer.result() == len(data) and into == data and path.read_bytes() == data
        into = bytearray(1000)
        assert penstock.read(path, into, 12345) == 1000 and into == data[12345:13345]

        state = {"step": 7, "name": "smoke", "data": data[:100_000], "list": [1.5, None, True]}
        with penstock.CheckpointStore(Path(folder) / "runs" / "store", keep=2) as store:
            for step in range(3):
                saved = store.save({**state, "step": step}, step=step)
            pending = store.save_async(state, step=7)
            assert saved.step == 2 and pending.result().step == 7
            assert store.load() == state and [info.step for info in store.list()] == [2, 7]

    program = Path(sys.executable).parent / "penstock"
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"penstock {penstock.__version__}\n", done.stdout
    subprocess.run([program, "doctor", "."], check=True, stdout=subprocess.DEVNULL)
    backend = penstock.default_engine().describe().backend
    print(f"smoke: penstock {penstock.__version__} reads, writes, saves and loads, through {backend}")


if __name__ == "__main__":
    main()
