# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU from Python: `python -m benchmarks.gpu_jobs JOB --key=value ...`. Prints one JSON object; ends with
77 and the reason where something it needs is not there.

`--gpu=PATH` is the driver's library: NVIDIA's `libcuda.so.1`, or the fake one with `--copy_rate` bytes a second.
"""

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.feature_jobs import written
from benchmarks.job_tools import Meter, figures, need, run_job, skip

_WARM_BYTES = 4 << 20
_ROW = 4096


class _Driver:
    """The calls that memory of a GPU takes. What is loaded by its path here is what others get for `libcuda.so.1`."""

    def __init__(self, path, copy_rate):
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            skip(f"no CUDA driver: {error}")
        self.fake = hasattr(self._library, "fake_gpu_set_rate")
        if copy_rate and not self.fake:
            skip(f"{path} is not the fake driver, so its copies have the rate they have")
        if copy_rate:
            self._library.fake_gpu_set_rate(ctypes.c_double(copy_rate), ctypes.c_double(copy_rate), ctypes.c_uint32(0))
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if self._library.cuInit(0) != 0 or self._library.cuDeviceGet(ctypes.byref(device), 0) != 0:
            skip("no GPU")
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 127, device)
        self.name = ("FAKE: " if self.fake else "") + name.value.decode()

    def call(self, name, *arguments):
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} = {result}")

    def synchronize(self):
        self.call("cuCtxSynchronize")

    def pinned(self, size):
        """Pinned memory of the host, as an array of bytes."""
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), 0)
        return need("numpy").frombuffer((ctypes.c_char * size).from_address(address.value), "u1")

    def copy_in(self, address, array):
        self.call(
            "cuMemcpyHtoD_v2",
            ctypes.c_uint64(address),
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes),
        )

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value


class _Array:
    """Memory of a GPU as other libraries take it."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


def kvikio(arguments):
    """One call of KvikIO at its defaults, but for direct I/O, which is on, and as many threads as --threads says."""
    for way in ("READ", "WRITE"):
        os.environ[f"KVIKIO_AUTO_DIRECT_IO_{way}"] = "ON"
    if "threads" in arguments:
        os.environ["KVIKIO_NTHREADS"] = arguments["threads"]
    driver = _Driver(arguments["gpu"], float(arguments.get("copy_rate", "0")))
    if driver.fake:
        os.environ["KVIKIO_COMPAT_MODE"] = "ON"  # where AUTO arrives without nvidia-fs
    module = need("kvikio")
    size, write = int(arguments["bytes"]), arguments.get("op", "read") == "write"
    address = driver.allocate(size)
    with module.CuFile(arguments["path"], "r+" if write else "r") as file:
        move = file.write if write else file.read
        move(_Array(address, min(size, _WARM_BYTES)))  # its threads and buffers come with the first
        with Meter() as meter:
            moved = move(_Array(address, size))
    assert moved == size, moved
    return meter.figures(size, of="kvikio", gpu=driver.name)


_HOST_WORK = """
import os, sys
import penstock
path, asked = sys.argv[1], sys.argv[2] == "1"
memory = bytearray(b"x" * (1 << 20))
penstock.write(path, memory)
assert penstock.read(path, memory) == len(memory)
with penstock.Engine() as engine:
    engine.read_async(path, memory).result()
    engine.describe()
if asked:
    penstock.gpus()
with open("/proc/self/maps") as maps:
    print(sum("libcuda" in line for line in maps))
threads = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
print(sum(name.startswith(("cuda", "penstock-gpu")) for name in threads))
"""


def absent(arguments):
    """Mappings of a CUDA driver, which is there to be found, in a process that moves memory of the host alone, its
    threads for GPUs, and the calls that the driver got. Handicap `asked`: gpus() is called once."""
    asked = "1" if arguments.get("handicap") == "asked" else "0"
    with tempfile.TemporaryDirectory() as folder:
        counters = Path(folder, "counters")
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(Path(arguments["gpu"]).parent),
            "FAKE_GPU_COUNTERS": str(counters),
        }
        words = [sys.executable, "-c", _HOST_WORK, str(Path(folder, "data")), asked]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        mapped, threads = map(int, done.stdout.split())
        calls = 0
        if counters.exists():
            calls = int(dict(map(str.split, counters.read_text().splitlines()))["calls"])
    return figures(value=mapped + threads + calls, mapped=mapped, threads=threads, calls=calls)


def rows(arguments):
    """100,000 distinct random rows of 4,096 bytes, 8,192 at a time, `to` a gpu or the host. Handicap wait_each: a MiB
    at a time, what a slot holds."""
    driver = _Driver(arguments["gpu"], 0)
    count, at_once = 100_000, 256 if arguments.get("handicap") == "wait_each" else 8192
    numpy, penstock = need("numpy"), need("penstock")
    written(arguments, count, _ROW)
    ids = numpy.random.default_rng(1).permutation(count)
    size = at_once * _ROW
    address = driver.allocate(size)
    on_host = numpy.empty(size, "u1")
    with penstock.FeatureStore.open(arguments["new"], ram=None) as store:
        with Meter() as meter:
            for first in range(0, count, at_once):
                some = ids[first : first + at_once]
                bytes_of = len(some) * _ROW
                out = _Array(address, bytes_of) if arguments["to"] == "gpu" else on_host[:bytes_of].data
                store["rows"].gather(some, out=out)
            driver.synchronize()
    return meter.figures(count * _ROW, count, gpu=driver.name)


def row_hits(arguments):
    """30,000 random rows of 4,096 bytes that are all in memory, to a GPU, ten times. `way`: `kept` in its memory;
    `pinned`, in pinned memory of the host; `host`, gathered there into pinned memory and copied; `copy`, no gather at
    all, but one copy of as much. Handicaps: `twice`, each gather is done twice; `copy_each`, each row is copied."""
    driver = _Driver(arguments["gpu"], 0)
    count, times, way = 30_000, 10, arguments["way"]
    numpy, penstock = need("numpy"), need("penstock")
    written(arguments, count, _ROW)
    ids = numpy.random.default_rng(1).permutation(count)
    size = count * _ROW
    address, pinned = driver.allocate(size), driver.pinned(size)
    memory = {"device_memory" if way == "kept" else "ram": "300MB"}
    with penstock.FeatureStore.open(arguments["new"], hot=ids, **memory) as store:

        def gather():
            out = pinned.data if way == "host" else _Array(address, size)
            store["rows"].gather(ids, out=out)
            if way == "host":
                driver.copy_in(address, pinned)

        def copy():
            step = _ROW if arguments.get("handicap") == "copy_each" else size
            for at in range(0, size, step):
                driver.copy_in(address + at, pinned[at : at + step])

        once = copy if way == "copy" or arguments.get("handicap") == "copy_each" else gather
        turns = times * (2 if arguments.get("handicap") == "twice" else 1)
        once()  # it loads the kernel and pins what is in memory
        driver.synchronize()
        with Meter() as meter:
            for _ in range(turns):
                once()
                driver.synchronize()
        stats = store.stats()
        assert once is copy or stats.rows_hit == (turns + 1) * count, stats
    return meter.figures(times * count * _ROW, times * count, gpu=driver.name)


# ---- the stall of a save in the background

_TENSORS = 16


class _Copy:
    """The floor: the same tensors by the driver into memory that it has pinned, one after the other on one stream."""

    def __init__(self, driver, places):
        self._driver, self._places = driver, places
        self._to, self._stream = ctypes.c_void_p(), ctypes.c_void_p()
        size = sum(size for _, size in places)
        driver.call("cuMemHostAlloc", ctypes.byref(self._to), ctypes.c_size_t(size), 0)
        driver.call("cuStreamCreate", ctypes.byref(self._stream), 1)

    def save(self):
        to = self._to.value
        for address, size in self._places:
            self._driver.call(
                "cuMemcpyDtoHAsync_v2",
                ctypes.c_void_p(to),
                ctypes.c_uint64(address),
                ctypes.c_size_t(size),
                self._stream,
            )
            to += size
        self._driver.call("cuStreamSynchronize", self._stream)

    def wait(self):
        pass


class _Save:
    """save_async() of the tensors. Handicap `unpinned`: they come to ordinary memory of the host first, as torch's own
    copies do, and are saved from there."""

    def __init__(self, driver, places, folder, handicap):
        torch = need("torch")
        self._penstock = need("penstock")
        self._driver, self._folder, self._unpinned = driver, folder, handicap == "unpinned"
        self._places = places

        class Tensor(torch.Tensor):
            """A CUDA tensor, of which the CPU build of torch has none."""

            @staticmethod
            def __new__(cls, address, size):
                made = torch.Tensor._make_wrapper_subclass(cls, (size,), dtype=torch.uint8, device="cuda:0")
                made.address = address
                return made

            @classmethod
            def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
                raise NotImplementedError(f"{function} of a tensor that is not torch's own")

            def data_ptr(self):
                return self.address

            def detach(self):
                return self

        self._state = {str(i): Tensor(*place) for i, place in enumerate(places)}
        self._host = [torch.empty(size, dtype=torch.uint8) for _, size in places] if self._unpinned else []

    def save(self):
        state = self._state
        if self._unpinned:
            for (address, size), host in zip(self._places, self._host, strict=True):
                self._driver.call(
                    "cuMemcpyDtoH_v2", ctypes.c_void_p(host.data_ptr()), ctypes.c_uint64(address), ctypes.c_size_t(size)
                )
            state = {str(i): host for i, host in enumerate(self._host)}
        self._pending = self._penstock.save_async(state, f"{self._folder}/a.safetensors")

    def wait(self):
        self._pending.result()
        os.unlink(f"{self._folder}/a.safetensors")


def stall(arguments):
    """Seconds until the tensors may change, the mean of --repeat saves after one that warms up. --way=ours|copy."""
    driver = _Driver(arguments["gpu"], float(arguments.get("copy_rate", "0")))
    size = int(arguments["bytes"]) // _TENSORS
    places = [(driver.allocate(size), size) for _ in range(_TENSORS)]
    stalls, repeat = [], int(arguments.get("repeat", "3"))
    below = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=below) as folder:
        if arguments["way"] == "copy":
            side = _Copy(driver, places)
        else:
            side = _Save(driver, places, folder, arguments.get("handicap"))
        for _ in range(repeat + 1):
            start = time.perf_counter()
            side.save()
            stalls.append(time.perf_counter() - start)
            side.wait()
    more = {"bytes": size * _TENSORS, "operations": repeat, "every_s": stalls, "gpu": driver.name}
    return figures(seconds=statistics.fmean(stalls[1:]), **more)


_JOBS = {"kvikio": kvikio, "absent": absent, "rows": rows, "row_hits": row_hits, "stall": stall}


def main():
    return run_job("gpu_jobs", _JOBS)


if __name__ == "__main__":
    sys.exit(main())
