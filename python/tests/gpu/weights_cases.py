# SPDX-License-Identifier: Apache-2.0
"""Weights streamed to a GPU. test_gpu_memory.py runs this file in a process whose driver is the fake one.

torch's CPU build has no CUDA tensors, so what asks torch (penstock.weights._device) is replaced: a tensor of the GPU is
a copy of its bytes in host memory, made when it is asked for, by a write of that memory that comes after the stream."""

import cuda_memory
import penstock
import pytest
import torch
from penstock.weights import _device


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(48, 160), torch.nn.Linear(160, 48)
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, x):
        return x + self.scale * self.down(torch.relu(self.up(x)))


def made():
    return torch.nn.Sequential(torch.nn.Embedding(300, 48), *(Layer() for _ in range(6)), torch.nn.Linear(48, 300))


@pytest.fixture
def on_fake_gpu(monkeypatch, tmp_path):
    stream, asked = cuda_memory.cuda().stream(0), []

    class Bytes:
        def __init__(self, address, nbytes, owner):
            self.owner = owner
            self.__cuda_array_interface__ = {
                "shape": (nbytes,), "strides": None, "typestr": "|u1", "data": (address, False), "version": 3
            }  # fmt: skip

    def tensor(number, address, nbytes, dtype, shape, owner):
        asked.append(nbytes)
        path = tmp_path / "bytes"
        penstock.write(path, Bytes(address, nbytes, owner), stream=stream)
        return torch.frombuffer(bytearray(path.read_bytes()[:nbytes]), dtype=dtype).view(shape)

    monkeypatch.setattr(_device, "check_torch", lambda name: None)
    monkeypatch.setattr(_device, "current_stream", lambda number: stream)
    monkeypatch.setattr(_device, "tensor", tensor)
    monkeypatch.setattr(_device, "put", lambda number, value: value)
    return asked


def test_any_budgets_give_the_bits_of_the_model_in_memory(on_fake_gpu, tmp_path):
    torch.manual_seed(1)
    model = made()
    total = sum(parameter.nbytes for parameter in model.parameters())
    penstock.save(model.state_dict(), tmp_path / "model.safetensors")
    ids = torch.tensor([[5, 299, 0, 5]])
    with torch.no_grad():
        expected = model(ids)
    for on_device, in_host in ((0.6, 0), (0.6, 0.2), (0.6, 2), (2, 0)):
        with torch.device("meta"):
            empty = made()
        streamed = penstock.stream(
            empty,
            tmp_path / "model.safetensors",
            memory=int(in_host * total),
            device="cuda:0",
            device_memory=int(on_device * total),
        )
        for _ in range(3):
            with torch.no_grad():
                assert torch.equal(streamed(ids), expected)
        stats = streamed.stream_stats()
        assert stats.passes == 3
        assert stats.plan["device_bytes"] <= on_device * total
        assert stats.plan["host_bytes"] <= in_host * total
        assert (stats.plan["copied_bytes"] > 0) == (on_device < 1 and in_host > 0)
        with pytest.raises(NotImplementedError, match="do not change"):
            streamed.set_memory(total)
        whole = streamed.unstream()
        for one, other in zip(whole.parameters(), model.parameters(), strict=True):
            assert torch.equal(one, other)
    assert on_fake_gpu


def test_arguments_that_do_not_fit_are_refused_before_anything_is_read(tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(ValueError, match="without a GPU"):
        penstock.stream(made(), missing, device_memory="1GiB")
    with pytest.raises(ValueError, match="needs device_memory="):
        penstock.stream(made(), missing, device="cuda:0")
    with pytest.raises(ValueError, match="expected 'cpu', 'cuda'"):
        penstock.stream(made(), missing, device="xpu:1", device_memory="1GiB")
    if not torch.cuda.is_available():
        with pytest.raises(penstock.Unsupported, match="leave device out"):
            penstock.stream(made(), missing, device="cuda:0", device_memory="1GiB")
