# SPDX-License-Identifier: Apache-2.0
"""KvikIO, unmodified, reads files into memory of the fake and writes them from there; each byte is compared."""

import os

import pytest

HEAD = """
import kvikio, kvikio.defaults

path, nbytes, offset, skip = sys.argv[1], *map(int, sys.argv[2:5])
memory = Memory(nbytes + skip)
"""
# A view of device memory begins where it likes.
VIEW = """
class View:
    __cuda_array_interface__ = {
        "shape": (nbytes,), "typestr": "|u1", "data": (memory.address + skip, False), "version": 3, "strides": None
    }
"""
READ = """
with kvikio.CuFile(path, "r") as file:
    assert file.read(View(), nbytes, offset) == nbytes
with open(path, "rb") as file:
    file.seek(offset)
    assert memory.bytes(nbytes, skip) == file.read(nbytes)
"""
READ_IN_TASKS = """
with kvikio.CuFile(path, "r") as file:
    assert file.pread(View(), nbytes, offset, task_size=300_000).get() == nbytes
with open(path, "rb") as file:
    file.seek(offset)
    assert memory.bytes(nbytes, skip) == file.read(nbytes)
"""
WRITE = """
data = os.urandom(nbytes)
ok(cu.cuMemcpyHtoD(memory.address + skip, data, nbytes))
with kvikio.CuFile(path, "w") as file:
    assert file.write(View(), nbytes, offset) == nbytes
with open(path, "rb") as file:
    file.seek(offset)
    assert file.read() == data
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(os.urandom(9_000_000))
    return path


@pytest.mark.parametrize("program", [READ, READ_IN_TASKS], ids=["whole", "tasks"])
@pytest.mark.parametrize(
    ("nbytes", "offset", "skip"), [(8 << 20, 0, 0), (4 << 20, 4096, 512), (5_000_001, 777, 13)], ids=str
)
def test_reads(run, path, program, nbytes, offset, skip):
    counted = run(HEAD + VIEW + program, path, nbytes, offset, skip, KVIKIO_COMPAT_MODE="ON")
    assert counted["bytes_in"] == nbytes


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_and_delays(run, path, threads):
    environment = {"KVIKIO_COMPAT_MODE": "ON", "KVIKIO_NTHREADS": threads, "KVIKIO_AUTO_DIRECT_IO_READ": "ON"}
    for seed in (1, 2):
        run(
            HEAD + VIEW + READ_IN_TASKS, path, 8_000_000, 4096, 0, FAKE_GPU_SEED=seed, FAKE_GPU_DELAY_US=500,
            **environment,
        )  # fmt: skip


def test_writes(run, tmp_path):
    counted = run(HEAD + VIEW + WRITE, tmp_path / "new.bin", 5_000_001, 0, 13, KVIKIO_COMPAT_MODE="ON")
    assert counted["bytes_out"] == 5_000_001


def test_an_error_of_the_driver_arrives(run, path):
    failing = """
try:
    with kvikio.CuFile(path, "r") as file:
        file.read(View(), nbytes, offset)
    print("no error")
    sys.exit(1)
except RuntimeError as error:
    assert "ECC" in str(error), error
"""
    run(HEAD + VIEW + failing, path, 8 << 20, 0, 0, KVIKIO_COMPAT_MODE="ON", FAKE_GPU_FAIL_COPY=1)
