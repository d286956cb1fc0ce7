# SPDX-License-Identifier: Apache-2.0
"""Memory that a model takes while stream() constructs it."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

# In a process of its own: what malloc() holds depends on all that ran before.
_PROGRAM = """
import ctypes
import torch
from penstock.weights import _construction

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena 1 2 3 4 5 6 7 8 9".split()]

libc = ctypes.CDLL(None)
if not hasattr(libc, "mallinfo2"):
    raise SystemExit(77)
libc.mallinfo2.restype = Info
# glibc takes blocks of this size from its heap once one of them was freed; until then each is a mapping.
del [torch.empty(31 << 20, dtype=torch.uint8)][:]
before = libc.mallinfo2().arena

def make():
    layers = torch.nn.ModuleList()
    for _ in range(20):
        layer = torch.nn.Module()
        layer.up = torch.nn.Linear(512, 2048)
        layer.weight = torch.nn.Parameter(torch.empty(1024, 4096, dtype=torch.bfloat16))
        layer.register_buffer("scale", torch.zeros(64))
        layer.register_buffer("mask", torch.zeros(1, 512, 512))
        layer.register_buffer("ones", torch.ones(512, 512))
        layer.register_buffer("grown", torch.zeros(256, 256).resize_(512, 256))
        layers.append(layer)
    return layers

model = _construction.with_buffers(make)
assert all(one.is_meta for one in model.parameters())
for layer in model:
    assert layer.weight.shape == (1024, 4096) and layer.weight.dtype is torch.bfloat16
    assert layer.mask.shape == (1, 512, 512) and not layer.mask.any() and layer.ones.all()
    assert layer.grown.shape == (512, 256) and not layer.grown[:256].any()
    layer.mask += 1  # it is memory of its own
assert all(bool(layer.mask.eq(1).all()) for layer in model)
print(libc.mallinfo2().arena - before)
"""


def test_parameters_leave_no_gaps_in_the_heap():
    """Each parameter has memory until it is registered. The heap grew by gaps where parameters had been (27 MB here,
    1.5 GB for a Llama of 2.2 GB), and computing filled them later."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("mallinfo2() is of glibc 2.33 and later")
    assert done.returncode == 0, done.stderr
    buffers = 20 * 3 * 512 * 512 * 4
    assert int(done.stdout) < buffers + (8 << 20)
