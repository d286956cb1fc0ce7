# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU, allocated through the driver itself, and the faces that frameworks give it.

The driver is whichever libcuda.so.1 this process loads: NVIDIA's, or the fake one of tests/fake_gpu. Nothing here uses
Penstock. torch's CPU build makes no CUDA tensors, so Tensor is a subclass of torch.Tensor that says where it is and
answers what a CUDA tensor answers.
"""

import ctypes
import math

import torch

DLPACK_CUDA = 2
DLPACK_CUDA_MANAGED = 13
_INTERFACE_TYPES = {torch.uint8: "|u1", torch.float32: "<f4", torch.int64: "<i8", torch.float16: "<f2"}


class CudaError(RuntimeError):
    pass


class Cuda:
    """The calls of the driver that tests make, with the primary context of a device current."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self._contexts = {}

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise CudaError(f"{name}: {result}")

    def use(self, device):
        if device not in self._contexts:
            number, context = ctypes.c_int(), ctypes.c_void_p()
            self.call("cuDeviceGet", ctypes.byref(number), device)
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
            self._contexts[device] = context
        self.call("cuCtxSetCurrent", self._contexts[device])

    def devices(self):
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def stream(self, device=0, blocking=False):
        self.use(device)
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 0 if blocking else 1)
        return stream.value


_cuda = None


def cuda():
    global _cuda
    if _cuda is None:
        _cuda = Cuda()
    return _cuda


def last_device():
    """The number of the second GPU, or of the only one."""
    return min(1, cuda().devices() - 1)


class Memory:
    """So many bytes of a device, until it is dropped or freed."""

    def __init__(self, num_bytes, device=0, managed=False):
        self.device, self.nbytes, self.address = device, num_bytes, 0
        cuda().use(device)
        address = ctypes.c_uint64()
        if managed:
            cuda().call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(num_bytes), 1)
        elif num_bytes:
            cuda().call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(num_bytes))
        self.address = address.value

    def free(self):
        if self.address:
            cuda().use(self.device)
            cuda().call("cuMemFree_v2", ctypes.c_uint64(self.address))
            self.address = 0

    def __del__(self):
        if self.address:
            self.free()

    def put(self, data, at=0):
        cuda().use(self.device)
        source = ctypes.create_string_buffer(bytes(data), len(data))
        cuda().call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address + at), source, ctypes.c_size_t(len(data)))
        return self

    def get(self, at=0, num_bytes=None):
        cuda().use(self.device)
        size = self.nbytes - at if num_bytes is None else num_bytes
        out = ctypes.create_string_buffer(size)
        if size:
            cuda().call("cuMemcpyDtoH_v2", out, ctypes.c_uint64(self.address + at), ctypes.c_size_t(size))
        return out.raw


def _strides(shape):
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


class InterfaceArray:
    """What CuPy and Numba have: __cuda_array_interface__."""

    def __init__(self, memory, **entries):
        self.memory = memory
        self.entries = {
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "data": (memory.address, False),
            "strides": None,
            "version": 3,
            **entries,
        }

    @property
    def __cuda_array_interface__(self):
        return self.entries


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_CAPSULE_NAME = b"dltensor"


class DlpackArray:
    """What JAX and CuPy have: DLPack of before 1.0, one-dimensional bytes. `asked` has the streams that came."""

    def __init__(self, memory, kind=DLPACK_CUDA, begin=0, strides=None):
        self.memory, self.kind, self.asked = memory, kind, []
        self._shape = (ctypes.c_int64 * 1)((memory.nbytes - begin) // (strides or 1))
        self._strides = (ctypes.c_int64 * 1)(strides or 1)
        self._managed = _Managed(
            _Tensor(memory.address, kind, memory.device, 1, 1, 8, 1, self._shape, self._strides, begin), None, None
        )

    def __dlpack_device__(self):
        return self.kind, self.memory.device

    def __dlpack__(self, *, stream=None):
        self.asked.append(stream)
        return _new_capsule(ctypes.addressof(self._managed), _CAPSULE_NAME, None)


class _Storage:
    def __init__(self, memory):
        self._memory = memory

    def data_ptr(self):
        return self._memory.address

    def nbytes(self):
        return self._memory.nbytes


class Tensor(torch.Tensor):
    """A torch tensor on cuda:n whose bytes are those of a Memory from byte `begin` on."""

    @staticmethod
    def __new__(cls, memory, dtype=torch.uint8, shape=None, strides=None, begin=0):
        shape = ((memory.nbytes - begin) // dtype.itemsize,) if shape is None else shape
        made = torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=strides or _strides(shape), dtype=dtype, device=f"cuda:{memory.device}"
        )
        made.memory, made.begin = memory, begin
        return made

    @classmethod
    def of(cls, values, device=0):
        """A copy of a tensor on the CPU."""
        data = values.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if values.numel() else b""
        return cls(Memory(len(data), device).put(data) if data else Memory(0, device), values.dtype, values.shape)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        raise NotImplementedError(f"{function} of a tensor that is not torch's own")

    def data_ptr(self):
        return self.memory.address + self.begin

    def untyped_storage(self):
        return _Storage(self.memory)

    def raw(self):
        return self.memory.get(self.begin, self.nbytes)

    # These are what penstock.deepnvme asks of a tensor.

    def detach(self):
        return Tensor(self.memory, self.dtype, self.shape, self.stride(), self.begin)

    def clone(self):
        return Tensor(Memory(self.nbytes, self.memory.device).put(self.raw()), self.dtype, self.shape)

    def contiguous(self):
        return Tensor.of(self.cpu(), self.memory.device)

    def cpu(self):
        if self.numel() == 0:
            return torch.zeros(self.shape, dtype=self.dtype)
        size = (1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride()))) * self.dtype.itemsize
        data = torch.frombuffer(bytearray(self.memory.get(self.begin, size)), dtype=self.dtype)
        return data.as_strided(self.shape, self.stride()).contiguous()

    def copy_(self, source):
        self.memory.put(source.contiguous().view(-1).view(torch.uint8).numpy().tobytes(), self.begin)
        return self

    def __getitem__(self, part):
        first, last, _ = part.indices(self.shape[0])
        return Tensor(self.memory, self.dtype, (last - first,), None, self.begin + first * self.dtype.itemsize)

    def interface(self):
        """The same memory as CuPy or Numba would have it."""
        return InterfaceArray(
            self.memory,
            shape=tuple(self.shape),
            typestr=_INTERFACE_TYPES[self.dtype],
            data=(self.data_ptr(), False),
        )


class Stream:
    """A stream as torch's is: its handle is `cuda_stream`."""

    def __init__(self, handle, device=0):
        self.cuda_stream, self.device_index = handle, device


class ProtocolStream:
    """A stream as cuda.core's is."""

    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return 0, self._handle
