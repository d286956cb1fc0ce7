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


def made_on_meta():
    with torch.device("meta"):
        return made()


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
    monkeypatch.setattr(_device, "free_memory", lambda number: 1 << 40)
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
        for device_memory in (0.6, 2, 0.5, 1):
            streamed.set_memory(device_memory=int(device_memory * total) + (64 << 10))
            for _ in range(2):
                with torch.no_grad():
                    assert torch.equal(streamed(ids), expected)
            plan = streamed.stream_stats().plan
            assert plan["device_bytes"] <= int(device_memory * total) + (64 << 10)
        with pytest.raises(ValueError, match="expected device_memory= and nothing else"):
            streamed.set_memory(total)
        with pytest.raises(MemoryError, match="set_memory: device_memory=10: the least"):
            streamed.set_memory(device_memory=10)
        whole = streamed.unstream()
        for one, other in zip(whole.parameters(), model.parameters(), strict=True):
            assert torch.equal(one, other)
    assert on_fake_gpu


def test_an_auto_budget_takes_what_is_free_and_reports_progress(on_fake_gpu, tmp_path):
    torch.manual_seed(2)
    model = made()
    penstock.save(model.state_dict(), tmp_path / "model.safetensors")
    ids = torch.tensor([[5, 299, 0, 5]])
    seen = []
    streamed = penstock.stream(
        made_on_meta(),
        tmp_path / "model.safetensors",
        memory=0,
        device="cuda:0",
        device_memory="auto",
        progress=lambda done, total: seen.append((done, total)),
    )
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(streamed(ids), model(ids))
    stats = streamed.stream_stats()
    assert stats.plan["read_bytes"] == 0 and stats.plan["slots"] == 0
    assert seen and seen[-1][0] == seen[-1][1] > 0
    with pytest.raises(ValueError, match="have no device_memory="):
        penstock.stream(made_on_meta(), tmp_path / "model.safetensors").set_memory(device_memory=1 << 20)


def test_experts_are_read_one_by_one(on_fake_gpu, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.MixtralConfig(
        vocab_size=96, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2, **sizes
    )
    config._experts_implementation = "eager"
    model = transformers.MixtralForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    total = sum(parameter.nbytes for parameter in model.parameters())
    ids = torch.tensor([[5, 90, 0, 5]])
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
    streamed = penstock.stream(None, tmp_path, memory=0, device="cuda:0", device_memory=int(0.8 * total))
    for _ in range(3):
        with torch.no_grad():
            assert torch.equal(streamed(ids, use_cache=False).logits, expected)
    stats = streamed.stream_stats()
    assert stats.expert_hits + stats.expert_misses > 0
    assert 0 < stats.expert_bytes_read


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
