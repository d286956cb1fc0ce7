# SPDX-License-Identifier: Apache-2.0
"""Programs that are not ours, each in a process of its own that finds the fake CUDA driver first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import gpu_peers  # noqa: E402

# Each program begins with this.
HEAD = """
import ctypes, os, sys
from cuda.bindings import driver as cu


def ok(result):
    assert result[0] == cu.CUresult.CUDA_SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]


ok(cu.cuInit(0))
context = ok(cu.cuDevicePrimaryCtxRetain(0))
ok(cu.cuCtxSetCurrent(context))


class Memory:
    # Device memory, as arrays of other libraries show it.
    def __init__(self, nbytes):
        self.address = int(ok(cu.cuMemAlloc(nbytes)))
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3, "strides": None
        }

    def bytes(self, nbytes, offset=0):
        found = bytearray(nbytes)
        ok(cu.cuMemcpyDtoH(found, self.address + offset, nbytes))
        return bytes(found)
"""


@pytest.fixture(scope="session")
def python():
    return gpu_peers.python()


@pytest.fixture(scope="session")
def fake_gpu():
    """The folder of the fake's libcuda.so.1: of the release build, or $PENSTOCK_FAKE_GPU."""
    folder = Path(os.environ.get("PENSTOCK_FAKE_GPU", ROOT / "build" / "release" / "tests" / "fake_gpu"))
    assert (folder / "libcuda.so.1").exists(), f"{folder} has no libcuda.so.1: build the target fake_cuda"
    return folder


@pytest.fixture
def run(python, fake_gpu, tmp_path):
    """Runs a program on the fake: (program, **environment) -> what the driver counted, by name."""

    def run_program(text, *arguments, **environment):
        counters = tmp_path / "counters"
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(fake_gpu),
            "FAKE_GPU_COUNTERS": str(counters),
            **{name: str(value) for name, value in environment.items()},
        }
        done = subprocess.run(
            [python, "-c", HEAD + text, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return {name: int(value) for name, value in map(str.split, counters.read_text().splitlines())}

    return run_program
