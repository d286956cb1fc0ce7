# SPDX-License-Identifier: Apache-2.0
"""A configuration of DeepSpeed with `"use_gds": true` after install(): its swapper of parameters runs on our
gds_handle, with tensors of the fake GPU, and says what is missing where there is no GPU."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "build" / "release" / "tests" / "fake_gpu"

# DeepSpeed on the CPU, told that its accelerator is CUDA: what it does then with its configuration and its op.
SWAPPER = f"""
import sys, types
sys.path.insert(0, {str(ROOT / "python" / "tests" / "gpu")!r})
import torch
from penstock.deepnvme import install
install()
import deepspeed
from deepspeed.runtime.swap_tensor import aio_config, partitioned_param_swapper as swapping

cuda = types.SimpleNamespace(device_name=lambda: "cuda")
aio_config.get_accelerator = swapping.get_accelerator = lambda: cuda
swapping.dist = types.SimpleNamespace(get_rank=lambda: 0)

def configured(folder):
    offload = types.SimpleNamespace(nvme_path=folder, buffer_size=100_000, buffer_count=3)
    config = types.SimpleNamespace(
        zero_config=types.SimpleNamespace(offload_param=offload),
        aio_config=aio_config.get_aio_config({{"aio": {{"use_gds": True, "block_size": 1 << 20}}}}),
    )
    assert config.aio_config["use_gds"] is True
    made = object.__new__(swapping.AsyncPartitionedParameterSwapper)
    made.dtype = torch.float32
    made._configure_aio(config)
    return made
"""


@pytest.mark.skipif(not (FAKE / "libcuda.so.1").exists(), reason="the fake CUDA driver is not built (target fake_cuda)")
def test_the_swapper_of_deepspeed_runs_on_our_gds_handle(run_script, tmp_path):
    run_script(
        SWAPPER
        + """
from cuda_memory import Memory, Tensor
from penstock import deepnvme

empty = torch.empty
def on_gpu(count, *, dtype, device, requires_grad=False):
    if device == "cpu":
        return empty(count, dtype=dtype)
    return Tensor(Memory(count * dtype.itemsize), dtype)
torch.empty = on_gpu

made = configured(sys.argv[1])
for handle in (made.aio_read_handle, made.aio_write_handle):
    assert type(handle) is deepnvme.gds_handle, type(handle)
    assert handle.get_block_size() == 1 << 20
assert made.buffers.is_cuda and made.buffers.numel() >= 300_000
assert made.aio_read_handle.unpin_device_tensor(made.buffers) is True  # it was pinned by DeepSpeed

path = f"{made.swap_folder}/param"
values = torch.arange(100_000, dtype=torch.float32)
made.aio_write_handle.async_pwrite(Tensor.of(values), path, 0)
assert made.aio_write_handle.wait() == 1
back = Tensor(Memory(values.nbytes), torch.float32)
made.aio_read_handle.async_pread(back, path, 0)
assert made.aio_read_handle.wait() == 1
assert back.raw() == values.numpy().tobytes()
""",
        tmp_path / "swap",
        env={"LD_LIBRARY_PATH": str(FAKE)},
    )


def test_without_a_gpu_it_says_what_is_missing(run_script, tmp_path):
    run_script(
        SWAPPER
        + """
import penstock
if penstock.gpus():
    sys.exit(0)  # a machine with a GPU has nothing to say
try:
    configured(sys.argv[1])
except penstock.Unsupported as error:
    assert penstock.gpus().reason in str(error), error
    assert "aio_handle moves tensors on the CPU" in str(error), error
else:
    raise SystemExit("a gds_handle without a GPU")
""",
        tmp_path / "swap",
    )
