# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of verbs: DeepNVMe's."""

import warnings
from pathlib import Path

import penstock
import torch
from penstock import deepnvme
from verbs import DATA, OLD, SIZE, verb


def handle():
    return deepnvme.aio_handle(1 << 20, 8, False, True, 1)


@verb(
    "deepnvme.aio_handle", "deepnvme.aio_handle.sync_pread", "deepnvme.aio_handle.read", "deepnvme.aio_handle.pread",
    "deepnvme.aio_handle.get_alignment", "deepnvme.aio_handle.get_block_size",
    "deepnvme.aio_handle.get_intra_op_parallelism", "deepnvme.aio_handle.get_overlap_events",
    "deepnvme.aio_handle.get_queue_depth", "deepnvme.aio_handle.get_single_submit",
)  # fmt: skip
def handle_reads(box):
    path, parts = box.file(), [torch.zeros(SIZE, dtype=torch.uint8) for _ in range(3)]
    with box.call():
        made = handle()
        made.sync_pread(parts[0], path)
        made.read(parts[1], path, True)
        made.pread(parts[2], path, False, False)
    assert all(part.numpy().tobytes() == DATA for part in parts)
    assert (made.get_block_size(), made.get_queue_depth(), made.get_alignment()) == (1 << 20, 8, 512)
    assert (made.get_single_submit(), made.get_overlap_events(), made.get_intra_op_parallelism()) == (False, True, 1)


@verb("deepnvme.aio_handle.sync_pwrite", "deepnvme.aio_handle.write", "deepnvme.aio_handle.pwrite")
def handle_writes(box):
    paths, data = [box.path() for _ in range(3)], torch.frombuffer(bytearray(DATA), dtype=torch.uint8)
    with box.call():
        made = handle()
        made.sync_pwrite(data, paths[0])
        made.write(data, paths[1], False)
        made.pwrite(data, paths[2], False, False)
    assert all(Path(path).read_bytes() == DATA for path in paths)


@verb("deepnvme.aio_handle.async_pread", "deepnvme.aio_handle.async_pwrite", "deepnvme.aio_handle.wait")
def handle_async(box):
    path, copy = box.file(), box.path()
    data, into = torch.frombuffer(bytearray(DATA), dtype=torch.uint8), torch.zeros(SIZE, dtype=torch.uint8)
    made = handle()
    with box.call():
        try:
            made.async_pread(into, path)
            made.async_pwrite(data, copy)
        finally:
            done = made.wait()
    assert done == 2 and into.numpy().tobytes() == DATA and Path(copy).read_bytes() == DATA


@verb(
    "deepnvme.pin_handle", "deepnvme.aio_handle.new_cpu_locked_tensor", "deepnvme.aio_handle.free_cpu_locked_tensor",
    "deepnvme.aio_handle.is_pinned", "deepnvme.pin_handle.new_cpu_locked_tensor",
    "deepnvme.pin_handle.free_cpu_locked_tensor", "deepnvme.pin_handle.free_cpu_locked_tensor_by_ptr",
    "deepnvme.pin_handle.is_pinned",
)  # fmt: skip
def locked(box):
    with box.call():
        made, pins = handle(), deepnvme.pin_handle()
        first = made.new_cpu_locked_tensor(1000, torch.zeros(1))
        second = pins.new_cpu_locked_tensor(1000, torch.zeros(1))
        known = made.is_pinned(second) and pins.is_pinned(first)
        freed = made.free_cpu_locked_tensor(first)
        freed = pins.free_cpu_locked_tensor_by_ptr(second.data_ptr()) and freed
        again = pins.free_cpu_locked_tensor(second)
    assert known and freed and not again


@verb("deepnvme.aio_read", "deepnvme.aio_write")
def functions(box):
    path, data = box.path(), torch.frombuffer(bytearray(DATA), dtype=torch.uint8)
    into = torch.zeros(SIZE, dtype=torch.uint8)
    with box.call():
        deepnvme.aio_write(data, path, 1 << 20, 8, False, True, True)
        deepnvme.aio_read(into, path, 1 << 20, 8, False, True, False)
    assert torch.equal(into, data)


@verb("deepnvme.deepspeed_memcpy", "deepnvme.cast_to_byte_tensor")
def copies(box):
    into = torch.zeros(1000)
    with box.call():
        deepnvme.deepspeed_memcpy(into, OLD["a"])
        seen = deepnvme.cast_to_byte_tensor(into)
    assert torch.equal(into, OLD["a"]) and seen.numel() == 4000


@verb(
    "deepnvme.FastFileWriter", "deepnvme.FastFileWriterConfig", "deepnvme.FastFileWriter.write",
    "deepnvme.FastFileWriter.flush", "deepnvme.FastFileWriter.close", "deepnvme.FastFileWriter.fileno",
    "deepnvme.FastFileWriter.file_path", "deepnvme.FastFileWriter.save_torch_storage_object_list",
)  # fmt: skip
def fast_file_writer(box):
    path = box.path()
    config = deepnvme.FastFileWriterConfig(handle(), torch.zeros(1 << 20, dtype=torch.uint8))
    with box.call():
        file = deepnvme.FastFileWriter(path, config)
        try:
            file.write(DATA)
            file.flush()
            file.fileno()
            file.save_torch_storage_object_list([(OLD["a"].untyped_storage(), torch.float32)], False)
        finally:
            file.close()
    assert file.file_path() == path and Path(path).read_bytes() == DATA + OLD["a"].numpy().tobytes()


def builder(name):
    """load() of a builder, and what DeepSpeed asks of it."""
    members = ("absolute_name", "include_paths", "is_compatible", "load", "sources")

    @verb(f"deepnvme.{name}", *(f"deepnvme.{name}.{member}" for member in members))
    def run(box):
        with box.call():
            made = getattr(deepnvme, name)()
            module, compatible = made.load(), made.is_compatible()
        assert (
            module
            and compatible is (name != "GDSBuilder" or bool(penstock.gpus()))
            and made.sources() == [] == made.include_paths()
        )
        assert made.absolute_name()


for _name in ("AsyncIOBuilder", "GDSBuilder", "PinMemoryBuilder", "UtilsBuilder"):
    builder(_name)


@verb("deepnvme.gds_handle")
def gds(box):
    there = bool(penstock.gpus())
    with box.call():
        try:
            made = deepnvme.gds_handle()
        except penstock.Unsupported:
            assert not there
            return
    assert there and made.wait() == 0


@verb("deepnvme.install", "deepnvme.installed", "deepnvme.uninstall", alone=True)
def install(box):
    # DeepSpeed has a Python of its own (tests/deepspeed); here it is put under one that may come yet.
    with box.call(deepnvme.uninstall), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package is in no site-packages while it is developed
        deepnvme.install()
        there = deepnvme.installed()
        deepnvme.uninstall()
    assert there is True and deepnvme.installed() is False
