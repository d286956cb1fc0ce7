# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's Python bindings of the driver, unmodified, on the fake: what they ask for is there and does what it says."""

COPIES = """
name = ok(cu.cuDeviceGetName(100, 0))
assert b"fake" in name, name
assert ok(cu.cuDriverGetVersion()) >= 12000
assert ok(cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0)) == 1

nbytes = 3_000_001
host = int(ok(cu.cuMemHostAlloc(nbytes, 0)))
sent = (ctypes.c_ubyte * nbytes).from_address(host)
data = os.urandom(nbytes)
sent[:] = data
memory = Memory(nbytes)
stream = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
event = ok(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
ok(cu.cuMemcpyHtoDAsync(memory.address, host, nbytes, stream))
ok(cu.cuEventRecord(event, stream))
ok(cu.cuEventSynchronize(event))
assert cu.cuEventQuery(event)[0] == cu.CUresult.CUDA_SUCCESS
assert memory.bytes(nbytes) == data

other = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
ok(cu.cuMemsetD32Async(memory.address, 0x01020304, nbytes // 4, stream))
ok(cu.cuEventRecord(event, stream))
ok(cu.cuStreamWaitEvent(other, event, 0))
ok(cu.cuMemcpyDtoHAsync(host, memory.address, nbytes, other))
ok(cu.cuStreamSynchronize(other))
assert bytes(sent[:4]) == b"\\x04\\x03\\x02\\x01" and sent[nbytes - 1] == data[-1]

kind, is_managed = ok(cu.cuPointerGetAttributes(
    2,
    [cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED],
    memory.address + 5,
))
assert int(kind) == 2 and not is_managed, (kind, is_managed)
base, size = ok(cu.cuMemGetAddressRange(memory.address + 5))
assert (int(base), size) == (memory.address, nbytes)

managed = int(ok(cu.cuMemAllocManaged(4096, cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)))
ctypes.memset(managed, 7, 4096)
ok(cu.cuMemcpyDtoD(memory.address, managed, 4096))
assert memory.bytes(4096) == b"\\7" * 4096
for made, free in ((stream, cu.cuStreamDestroy), (other, cu.cuStreamDestroy), (event, cu.cuEventDestroy)):
    ok(free(made))
for address in (memory.address, managed):
    ok(cu.cuMemFree(address))
assert cu.cuMemFree(memory.address)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
ok(cu.cuMemFreeHost(host))
"""

POOLS_AND_BATCHES = """
stream = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
pool = ok(cu.cuDeviceGetDefaultMemPool(0))
memory = int(ok(cu.cuMemAllocAsync(1 << 20, stream)))
host = int(ok(cu.cuMemHostAlloc(1 << 20, 0)))
ctypes.memset(host, 9, 1 << 20)
attributes = cu.CUmemcpyAttributes()
attributes.srcAccessOrder = cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
to = [cu.CUdeviceptr(memory + i * 5000) for i in range(50)]
source = [cu.CUdeviceptr(host + i * 5000) for i in range(50)]
ok(cu.cuMemcpyBatchAsync(to, source, [5000] * 50, 50, [attributes], [0], 1, stream))
back = bytearray(250_000)
ok(cu.cuMemcpyDtoHAsync(back, memory, len(back), stream))
assert bytes(back) == b"\\x09" * len(back)
ok(cu.cuMemFreeAsync(memory, stream))
ok(cu.cuStreamSynchronize(stream))
assert cu.cuMemFree(memory)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
made = ok(cu.cuCtxCreate(None, 0, 0))
assert int(ok(cu.cuCtxGetCurrent())) == int(made)
ok(cu.cuCtxDestroy(made))
assert cu.cuIpcGetMemHandle(Memory(4096).address)[0] == cu.CUresult.CUDA_ERROR_NOT_SUPPORTED
"""


def test_allocations_copies_streams_and_events(run):
    counted = run(COPIES)
    assert counted["unpinned_async_copies"] == 0
    assert counted["missing_contexts"] == 0
    assert counted["pinned_bytes_max"] == 3_000_001


def test_the_same_with_delays_and_streams_that_take_turns_at_random(run):
    for seed in (1, 2, 3):
        run(COPIES, FAKE_GPU_SEED=seed, FAKE_GPU_DELAY_US=2000)


def test_pools_batches_and_contexts(run):
    # A copy to a bytearray is one of memory that is not pinned.
    assert run(POOLS_AND_BATCHES)["unpinned_async_copies"] == 1
