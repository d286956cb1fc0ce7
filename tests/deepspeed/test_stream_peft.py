# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT on a streamed model give the bits that they give on the model in memory."""

import re

import penstock
import pytest
import torch
import transformers

peft = pytest.importorskip("peft")

IDS = torch.tensor([[1, 2, 3, 4], [900, 1, 7, 7]])
OPTIONS = {"max_new_tokens": 4, "do_sample": False}


GIVEN = {"target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"}
LORA = {**GIVEN, "r": 4, "init_lora_weights": False}
ADAPTERS = {
    "lora": lambda: peft.LoraConfig(**LORA),
    "ia3": lambda: peft.IA3Config(**GIVEN, feedforward_modules=["down_proj"], init_ia3_weights=False),
    "dora": lambda: peft.LoraConfig(**LORA, use_dora=True),
}


def saved(adapter, folder):
    """A model with an adapter, in memory; both are in the folder."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=160, num_hidden_layers=4, num_attention_heads=4, vocab_size=1000
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model", max_shard_size="300kB")
    peft.get_peft_model(in_memory(folder), ADAPTERS[adapter]()).save_pretrained(folder / "adapter")
    return peft.PeftModel.from_pretrained(in_memory(folder), folder / "adapter").eval()


@pytest.fixture(params=["lora", "ia3"])
def tuned(request, tmp_path):
    return tmp_path, saved(request.param, tmp_path)


def in_memory(folder):
    return transformers.LlamaForCausalLM.from_pretrained(folder / "model", dtype="auto")


def budgets(folder, model):
    with pytest.raises(MemoryError) as refused:
        penstock.stream(None, folder / "model", memory=0)
    least = int(re.search(r"the least that works for this model is (\d+)", str(refused.value))[1])
    total = sum(parameter.nbytes for parameter in model.parameters())
    return least, total * 6 // 10, 2 * total


def test_an_adapter_gives_the_bits_that_it_gives_in_memory(tuned):
    folder, model = tuned
    with torch.no_grad():
        expected = model(IDS).logits
        with model.disable_adapter():
            without = model(IDS).logits
    assert not torch.equal(expected, without)
    for memory in budgets(folder, model):
        streamed = penstock.stream(None, folder / "model", memory=memory)
        adapted = peft.PeftModel.from_pretrained(streamed, folder / "adapter").eval()
        assert {parameter.device.type for parameter in adapted.parameters()} == {"cpu"}
        with torch.no_grad():
            assert torch.equal(adapted(IDS).logits, expected)
            with adapted.disable_adapter():
                assert torch.equal(adapted(IDS).logits, without)
        assert torch.equal(adapted.generate(input_ids=IDS, **OPTIONS), model.generate(input_ids=IDS, **OPTIONS))
        for merge in (adapted.merge_adapter, adapted.merge_and_unload):
            with pytest.raises(RuntimeError, match=r"^model\.layers\.\d\..*\.weight was used"):
                merge()


def test_an_adapter_that_transformers_loads(tuned):
    folder, model = tuned
    streamed = penstock.stream(None, folder / "model", memory=budgets(folder, model)[1])
    streamed.load_adapter(str(folder / "adapter"))
    streamed.eval()
    with torch.no_grad():
        assert torch.equal(streamed(IDS).logits, model(IDS).logits)


def test_an_adapter_is_saved_without_the_model(tuned):
    folder, model = tuned
    streamed = penstock.stream(None, folder / "model", memory=budgets(folder, model)[1])
    adapted = peft.PeftModel.from_pretrained(streamed, folder / "adapter")
    adapted.save_pretrained(folder / "again")
    for one, other in zip(*(penstock.load(next((folder / name).glob("*.safetensors"))).items()
                            for name in ("adapter", "again")), strict=True):  # fmt: skip
        assert one[0] == other[0] and torch.equal(one[1], other[1])
    with pytest.raises(RuntimeError, match=r"^save_pretrained\(\): the weights of this model are streamed"):
        adapted.get_base_model().save_pretrained(folder / "model-again")
    streamed.unstream()
    with torch.no_grad():
        assert torch.equal(adapted(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("whole", [["lm_head"], ["embed_tokens", "norm", "mlp"]])
def test_an_adapter_that_has_modules_of_its_own(tmp_path, monkeypatch, whole):
    monkeypatch.setitem(ADAPTERS, "whole", lambda: peft.LoraConfig(**LORA, modules_to_save=whole))
    model = saved("whole", tmp_path)
    for memory in budgets(tmp_path, model):
        streamed = penstock.stream(None, tmp_path / "model", memory=memory)
        adapted = peft.PeftModel.from_pretrained(streamed, tmp_path / "adapter").eval()
        assert adapted.to("cpu") is adapted
        with torch.no_grad():
            for _ in range(2):
                assert torch.equal(adapted(IDS).logits, model(IDS).logits)
            with adapted.disable_adapter(), model.disable_adapter():
                assert torch.equal(adapted(IDS).logits, model(IDS).logits)
            streamed.unstream()
            assert torch.equal(adapted(IDS).logits, model(IDS).logits)


def test_an_adapter_that_is_computed_from_weights_needs_them_in_memory(tmp_path):
    model = saved("dora", tmp_path)
    _, some, everything = budgets(tmp_path, model)
    streamed = penstock.stream(None, tmp_path / "model", memory=some)
    with pytest.raises(RuntimeError, match=r"^model\.layers\.0\.self_attn\.q_proj\.weight was used by"):
        peft.PeftModel.from_pretrained(streamed, tmp_path / "adapter")
    streamed = penstock.stream(None, tmp_path / "model", memory=everything)
    adapted = peft.PeftModel.from_pretrained(streamed, tmp_path / "adapter").eval()
    with torch.no_grad():
        assert torch.equal(adapted(IDS).logits, model(IDS).logits)
