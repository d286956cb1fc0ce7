# SPDX-License-Identifier: Apache-2.0
"""Makes the same calls on DeepSpeed's own op or on penstock.deepnvme, and prints what came of each as a line of JSON.

    calls.py theirs|ours [CASE...]        in a folder where it may make files

A case is a function of a Side; what it returns is compared.
"""

import contextlib
import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

import torch

KIB, MIB = 1 << 10, 1 << 20
SAME, DIFFERENT = {}, {}


def case(table, **cases):
    """Registers a function once for each name, with its arguments."""

    def register(function):
        for name, arguments in cases.items():
            table[f"{function.__name__}-{name}"] = (function, arguments)
        return function

    return register


class Side:
    def __init__(self, name):
        if name == "theirs":
            from deepspeed.ops.op_builder import AsyncIOBuilder, PinMemoryBuilder
            from deepspeed.ops.op_builder.utils import UtilsBuilder
        else:
            from penstock.deepnvme import AsyncIOBuilder, PinMemoryBuilder, UtilsBuilder
        self.aio = AsyncIOBuilder().load(verbose=False)
        self.pin = PinMemoryBuilder().load(verbose=False)
        self.utils = UtilsBuilder

    def handle(self, *arguments, **named):
        return self.aio.aio_handle(*arguments, **named)

    def tensor(self, size, kind, seed=1, dtype=torch.uint8):
        data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
        if kind == "locked":
            made = self.pin.pin_handle().new_cpu_locked_tensor(size, data)
            made.copy_(data)
            data = made
        return data.view(dtype)


def digest(thing):
    if isinstance(thing, torch.Tensor):
        thing = thing.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(thing, str):
        thing = Path(thing).read_bytes()
    return [len(thing), hashlib.sha256(thing).hexdigest()[:16]]


HANDLES = {
    "defaults": {},
    "small": {"block_size": 1024, "queue_depth": 2, "single_submit": True},
    "parallel": {"block_size": 64 * KIB, "queue_depth": 8, "overlap_events": True, "intra_op_parallelism": 4},
}


def handles_and_tensors():
    return {
        f"{handle}-{kind}-{size}": {"options": options, "kind": kind, "size": size}
        for handle, options in HANDLES.items()
        for kind in ("ordinary", "locked")
        for size in (4096, MIB, 3 * MIB + 8192)
    }


# ---- where both are right


@case(SAME, **{name: {"options": options} for name, options in HANDLES.items()})
def getters(side, options):
    h = side.handle(**options)
    return [
        h.get_block_size(),
        h.get_queue_depth(),
        h.get_single_submit(),
        h.get_overlap_events(),
        h.get_intra_op_parallelism(),
        h.get_alignment(),
    ]


@case(SAME, **handles_and_tensors())
def write_verbs(side, options, kind, size):
    h, data, out = side.handle(**options), side.tensor(size, kind), []
    calls = {
        "pwrite_sync": lambda f: h.pwrite(data, f, False, False),
        "pwrite_async": lambda f: h.pwrite(data, f, False, True),
        "pwrite_named": lambda f: h.pwrite(buffer=data, filename=f, validate=False, file_offset=0, **{"async": True}),
        "sync_pwrite": lambda f: h.sync_pwrite(data, f),
        "sync_named": lambda f: h.sync_pwrite(buffer=data, filename=f, file_offset=8192),
        "async_pwrite": lambda f: h.async_pwrite(data, f, 4096),
    }
    if kind == "locked":
        calls["write"] = lambda f: h.write(data, f, False)
    for name, call in calls.items():
        returned = call(name)
        waited = h.wait() if name in ("pwrite_async", "pwrite_named", "async_pwrite") else None
        out.append([name, returned, waited, digest(name), oct(os.stat(name).st_mode)])
        os.remove(name)
    return out


@case(SAME, **handles_and_tensors())
def read_verbs(side, options, kind, size):
    h, out = side.handle(**options), []
    Path("data").write_bytes(side.tensor(size, "ordinary", 2).numpy().tobytes())
    Path("longer").write_bytes(bytes(4096) + Path("data").read_bytes() + bytes(512))
    calls = {
        "pread_sync": lambda t: h.pread(t, "data", False, False),
        "pread_async": lambda t: h.pread(t, "longer", False, True, 4096),
        "pread_named": lambda t: h.pread(buffer=t, filename="data", validate=False, file_offset=0, **{"async": True}),
        "sync_pread": lambda t: h.sync_pread(t, "longer", 4096),
        "sync_named": lambda t: h.sync_pread(buffer=t, filename="data"),
        "async_pread": lambda t: h.async_pread(t, "data"),
    }
    if kind == "locked":
        calls["read"] = lambda t: h.read(t, "data", False)
    for name, call in calls.items():
        into = side.tensor(size, kind)
        returned = call(into)
        waited = h.wait() if name in ("pread_async", "pread_named", "async_pread") else None
        out.append([name, returned, waited, digest(into)])
    return out


@case(SAME, one={"parts": [1, 1, 1]}, two={"parts": [1, 2, 1]}, three={"parts": [2, 1, 1]})
def parts_of_a_file_by_descriptor(side, parts):
    h, data = side.handle(1024, 2, False, False, 2), side.tensor(4096 * sum(parts), "locked")
    with contextlib.suppress(FileNotFoundError):
        os.remove("f")
    fd = os.open("f", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    at, out = 0, []
    for part in parts:
        out.append(h.async_pwrite(data[at : at + part * 4096], fd, at))
        at += part * 4096
    out.append(h.wait())
    os.close(fd)
    return [out, digest("f")]


@case(SAME, queue2={"count": 2}, queue3={"count": 3}, queue40={"count": 40})
def several_operations_and_one_wait(side, count):
    h, out = side.handle(1 * MIB, 8, False, True, 2), []
    tensors = [side.tensor(64 * KIB, "locked" if i % 2 else "ordinary", i) for i in range(count)]
    out += [h.async_pwrite(t, f"f{i}") for i, t in enumerate(tensors)]
    out.append(h.wait())
    back = [torch.zeros_like(t) for t in tensors]
    out += [h.async_pread(t, f"f{i}") for i, t in enumerate(back)]
    out.append(h.sync_pread(back[0], "f0"))  # waits for all
    return [out, [digest(t) for t in back]]


@case(SAME, float32={"dtype": torch.float32}, bfloat16={"dtype": torch.bfloat16}, int64={"dtype": torch.int64})
def dtypes(side, dtype):
    h, data = side.handle(), side.tensor(64 * KIB, "ordinary", dtype=dtype)
    into = torch.zeros_like(data)
    return [h.sync_pwrite(data, "f"), h.sync_pread(into, "f"), digest(into), str(into.dtype)]


@case(SAME, all={})
def overwriting_keeps_the_longer_file(side):
    Path("f").write_bytes(b"x" * MIB)
    returned = side.handle().sync_pwrite(side.tensor(4096, "locked"), "f")
    return [returned, digest("f")]


@case(SAME, aio_handle={"aio": True}, pin_handle={"aio": False})
def locked_tensors(side, aio):
    h, pin = side.handle(), side.pin.pin_handle()
    make = h if aio else pin
    tensor = make.new_cpu_locked_tensor(5000, torch.empty(0, dtype=torch.float16))
    out = [list(tensor.shape), str(tensor.dtype), str(tensor.device), tensor.data_ptr() % 4096, tensor.requires_grad]
    out += [h.is_pinned(tensor), pin.is_pinned(tensor), h.is_pinned(torch.narrow(tensor, 0, 100, 50))]
    out += [h.is_pinned(torch.zeros(10)), make.free_cpu_locked_tensor(tensor[1:]), make.free_cpu_locked_tensor(tensor)]
    out += [make.free_cpu_locked_tensor(tensor), pin.free_cpu_locked_tensor_by_ptr(tensor.data_ptr())]
    other = pin.new_cpu_locked_tensor(num_elem=10, example_tensor=torch.empty(0))
    out.append(pin.free_cpu_locked_tensor_by_ptr(address=other.data_ptr()))
    named = h.new_cpu_locked_tensor(num_elem=10, example_tenosr=torch.empty(0))
    return [*out, h.free_cpu_locked_tensor(tensor=named)]


@case(SAME, all={})
def module_functions(side):
    data, into = side.tensor(64 * KIB, "locked"), side.tensor(64 * KIB, "locked", 2)
    with contextlib.suppress(FileNotFoundError):
        os.remove("f")  # theirs aborts when the file is longer
    out = [side.aio.aio_write(data, "f", MIB, 8, False, True, False)]
    out += [side.aio.aio_read(into, "f", MIB, 8, False, True, False), digest(into)]
    dest, src = torch.zeros(4096), torch.arange(4096.0)
    return [*out, side.aio.deepspeed_memcpy(dest, src), digest(dest)]


# ---- where theirs goes wrong: ours by its result, theirs by what it does (also "exit status N")


@case(DIFFERENT, all={})
def wait_with_nothing_pending(side):
    return side.handle().wait()


@case(DIFFERENT, all={})
def the_tail_behind_the_last_512_bytes(side):
    return [side.handle().sync_pwrite(side.tensor(MIB + 100, "locked"), "f"), os.path.getsize("f")]


@case(DIFFERENT, all={})
def a_size_that_the_threads_do_not_divide(side):
    data = side.tensor(1049600, "locked")
    return [side.handle(intra_op_parallelism=4).sync_pwrite(data, "f"), digest("f") == digest(data)]


@case(DIFFERENT, all={})
def an_unaligned_offset(side):
    Path("f").write_bytes(side.tensor(MIB, "ordinary", 2).numpy().tobytes())
    into = side.tensor(4096, "locked")
    return [side.handle().sync_pread(into, "f", 100), digest(into) == digest(Path("f").read_bytes()[100:4196])]


@case(DIFFERENT, all={})
def a_missing_file(side):
    try:
        return side.handle().async_pread(side.tensor(4096, "locked"), "none")
    except OSError as error:
        return type(error).__name__


@case(DIFFERENT, all={})
def a_file_that_is_too_short(side):
    Path("f").write_bytes(bytes(MIB))
    try:
        return side.handle().sync_pread(side.tensor(2 * MIB, "locked"), "f")
    except OSError as error:
        return type(error).__name__


@case(DIFFERENT, all={})
def an_ordinary_tensor_of_two_dimensions(side):
    data = side.tensor(MIB, "ordinary").view(1024, 1024)
    try:
        return [side.handle().sync_pwrite(data, "f"), digest("f") == digest(data)]
    except RuntimeError as error:
        return type(error).__name__


@case(DIFFERENT, all={})
def write_of_an_ordinary_tensor(side):
    data = side.tensor(MIB + 64, "ordinary")[64:]  # at no multiple of 512, as torch's allocator gives it
    return [side.handle().write(data, "f", False), digest("f") == digest(data)]


@case(DIFFERENT, all={})
def read_into_an_ordinary_tensor(side):
    data, into = side.tensor(MIB, "ordinary", 2), side.tensor(MIB + 64, "ordinary")[64:]
    Path("f").write_bytes(data.numpy().tobytes())
    return [side.handle().read(into, "f", False), digest(into) == digest(data)]


@case(DIFFERENT, all={})
def a_path_that_is_no_str(side):
    try:
        return side.handle().sync_pwrite(side.tensor(4096, "locked"), Path("f"))
    except TypeError as error:
        return type(error).__name__


def main(name, *wanted):
    warnings.simplefilter("ignore")
    side = Side(name)
    sys.stdout.flush()
    # Redirects the output of their op, so that it does not mix with ours.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for key, (function, arguments) in {**SAME, **DIFFERENT}.items():
        if key in wanted or (not wanted and key in SAME):
            print(json.dumps([key, function(side, **arguments)]), file=results, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
