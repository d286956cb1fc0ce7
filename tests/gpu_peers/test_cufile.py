# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's libcufile, unmodified, in its compatibility mode on the fake driver; KvikIO through it."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

CUFILE = """
class Error(ctypes.Structure):
    _fields_ = [("error", ctypes.c_int), ("cuda", ctypes.c_int)]

    def __bool__(self):
        return self.error == 0 and self.cuda == 0

class Descriptor(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_longlong), ("operations", ctypes.c_void_p)]

cufile = ctypes.CDLL(sys.argv[2])
for name in ("DriverOpen", "DriverClose_v2", "HandleRegister", "BufRegister", "BufDeregister"):
    getattr(cufile, "cuFile" + name).restype = Error
cufile.cuFileHandleDeregister.restype = None
cufile.cuFileRead.restype = cufile.cuFileWrite.restype = ctypes.c_ssize_t

def size(value):
    return ctypes.c_longlong(value)

path, nbytes = sys.argv[1], 8 << 20
data = open(path, "rb").read()
assert cufile.cuFileDriverOpen()
fd = os.open(path, os.O_RDWR)
file = ctypes.c_void_p()
assert cufile.cuFileHandleRegister(ctypes.byref(file), ctypes.byref(Descriptor(1, fd, None)))
memory = Memory(nbytes)
device = ctypes.c_void_p(memory.address)
for registered in (False, True):
    if registered:
        assert cufile.cuFileBufRegister(device, size(nbytes), 0)
    for offset, count, at in ((0, nbytes, 0), (777, 1_000_001, 13), (4096, 4096, 512), (nbytes - 100, 1000, 0)):
        ok(cu.cuMemsetD8(memory.address, 0, nbytes))
        ok(cu.cuCtxSynchronize())  # a fill may be done after its call, and cuFile has streams of its own
        got = cufile.cuFileRead(file, device, size(count), size(offset), size(at))
        assert got == min(count, nbytes - offset), (registered, offset, got)
        assert memory.bytes(got, at) == data[offset : offset + got], (registered, offset)
        # A short read leaves bytes of no meaning between what it says and what was asked for.
        asked = min(at + count, nbytes)
        assert not any(memory.bytes(at)) and not any(memory.bytes(nbytes - asked, asked)), (registered, offset)
changed = data[::-1]
ok(cu.cuMemcpyHtoD(memory.address, changed, nbytes))
assert cufile.cuFileWrite(file, device, size(1_000_001), size(777), size(5)) == 1_000_001
assert open(path, "rb").read() == data[:777] + changed[5:1_000_006] + data[1_000_778:]
assert cufile.cuFileBufDeregister(device)
cufile.cuFileHandleDeregister(file)
assert cufile.cuFileDriverClose_v2()
"""

KVIKIO = """
import kvikio, kvikio.defaults

path, nbytes = sys.argv[1], 8 << 20
assert not kvikio.defaults.is_compat_mode_preferred()
memory = Memory(nbytes)
with kvikio.CuFile(path, "r") as file:
    assert file.read(memory) == nbytes
assert memory.bytes(nbytes) == open(path, "rb").read()
"""


@pytest.fixture
def shm():
    """A folder on tmpfs: cuFile looks a file on a disk up in udev, which containers have not."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-cufile-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def environment(python, shm):
    """What cuFile needs to work here."""
    library = shm / "proc_modules.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, HERE / "proc_modules.c", "-ldl"], check=True)
    (shm / "modules").write_text("ext4 1 0 - Live 0x0\n")
    settings = {"logging": {"dir": str(shm)}, "properties": {"allow_compat_mode": True, "force_compat_mode": True}}
    (shm / "cufile.json").write_text(json.dumps(settings))
    return {
        "LD_PRELOAD": library,
        "PROC_MODULES": shm / "modules",
        "CUFILE_ENV_PATH_JSON": shm / "cufile.json",
    }


@pytest.fixture
def libcufile(python):
    found = sorted(Path(python).parents[1].glob("lib/python*/site-packages/nvidia/cu13/lib/libcufile.so.0"))
    assert found, "nvidia-cufile has no libcufile.so.0 where it had it"
    return found[0]


@pytest.fixture
def path(shm):
    path = shm / "file.bin"
    path.write_bytes(os.urandom(8 << 20))
    return path


def test_libcufile_reads_and_writes(run, path, environment, libcufile):
    counted = run(CUFILE, path, libcufile, **environment)
    assert counted["bytes_in"] >= 2 * (8 << 20)


def test_what_holds_for_the_fake_libcufile_holds_for_it(fake_gpu, environment, libcufile):
    program = fake_gpu.parent / "device_conformance_test"
    env = {name: str(value) for name, value in environment.items()}
    done = subprocess.run(
        [program, "--gtest_filter=CuFileConformance.*"],
        env={**os.environ, **env, "CONFORMANCE_LIBCUFILE": str(libcufile), "LD_LIBRARY_PATH": str(fake_gpu)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and "[  PASSED  ] 7 tests" in done.stdout, done.stdout + done.stderr


def test_kvikio_reads_through_it(run, path, environment, libcufile):
    run(KVIKIO, path, KVIKIO_COMPAT_MODE="OFF", **environment)
