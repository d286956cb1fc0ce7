# SPDX-License-Identifier: Apache-2.0
"""Trainer and accelerate with a streamed model: the results that they give with the model in memory."""

import accelerate
import penstock
import pytest
import torch
import transformers
from accelerate import hooks

LLAMA = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
IDS = torch.arange(8).reshape(1, 8)
DATA = [{"input_ids": torch.arange(8) + 3 * number, "labels": torch.arange(8) + number} for number in range(4)]


@pytest.fixture
def saved(tmp_path):
    return save(torch.float32, tmp_path)


def save(dtype, tmp_path):
    """A folder, its model in memory, and a budget for about half of its weights."""
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).to(dtype).save_pretrained(tmp_path / "m")
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "m", dtype="auto").eval()
    return tmp_path / "m", model, sum(parameter.nbytes for parameter in model.parameters()) * 6 // 10


def same(streamed, model):
    with torch.no_grad():
        return torch.equal(streamed(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trainer_evaluates_and_predicts(dtype, tmp_path):
    folder, model, memory = save(dtype, tmp_path)
    mixed = {"bf16": True} if model.dtype == torch.float32 else {"bf16_full_eval": True}
    for options in ({}, mixed):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"), report_to="none", use_cpu=True, disable_tqdm=True, **options
        )
        model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype="auto").eval()
        streamed = penstock.stream(None, folder, memory=memory)
        one, other = (transformers.Trainer(each, arguments, eval_dataset=DATA) for each in (model, streamed))
        assert one.evaluate()["eval_loss"] == other.evaluate()["eval_loss"]
        for mine, theirs in zip(one.predict(DATA).predictions, other.predict(DATA).predictions, strict=True):
            assert (mine == theirs).all()
        assert streamed.stream_stats().bytes_read > 0


def test_what_would_change_the_type_in_a_trainer_is_refused(saved, tmp_path):
    folder, model, memory = saved
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), report_to="none", use_cpu=True, disable_tqdm=True, fp16_full_eval=True
    )
    streamed = penstock.stream(None, folder, memory=memory)
    with pytest.raises(RuntimeError, match=r"^to\(\): the weights of this model are streamed"):
        transformers.Trainer(streamed, arguments, eval_dataset=DATA).evaluate()
    assert same(streamed, model)


@pytest.mark.parametrize("mixed", ["no", "bf16"])
def test_accelerator_prepares_and_unwraps(saved, mixed):
    folder, model, memory = saved
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=mixed)
    streamed = penstock.stream(None, folder, memory=memory)
    prepared = accelerator.prepare(streamed)
    assert accelerator.unwrap_model(prepared) is streamed
    in_memory = accelerator.prepare(model)
    assert same(prepared, in_memory)
    for wrapped in (prepared, in_memory):
        accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
    assert same(streamed, model)
    assert same(streamed.unstream(), model)


def on_layers(model):
    for layer in model.model.layers:
        hooks.add_hook_to_module(layer, hooks.AlignDevicesHook(execution_device="cpu", io_same_device=True))


HOOKS = {
    "model": lambda m: hooks.add_hook_to_module(m, hooks.AlignDevicesHook(execution_device="cpu", io_same_device=True)),
    "layers": on_layers,
    "all modules": lambda m: hooks.attach_align_device_hook(m, execution_device="cpu"),
    "dispatch": lambda m: accelerate.dispatch_model(m, {"": "cpu"}),
}


@pytest.mark.parametrize("how", HOOKS)
@pytest.mark.parametrize("removed", [False, True])
def test_hooks_of_accelerate(saved, how, removed):
    folder, model, memory = saved
    streamed = penstock.stream(None, folder, memory=memory)
    HOOKS[how](streamed)
    assert same(streamed, model)
    if removed:
        hooks.remove_hook_from_submodules(streamed)
        assert same(streamed, model)
    streamed.unstream()
    assert same(streamed, model)


def test_what_moves_weights_in_accelerate_is_refused(saved, tmp_path):
    folder, model, memory = saved
    streamed = penstock.stream(None, folder, memory=memory)
    for offload in (
        lambda: accelerate.cpu_offload(streamed, execution_device="cpu"),
        lambda: accelerate.disk_offload(streamed, tmp_path / "offload", execution_device="cpu"),
    ):
        with pytest.raises(RuntimeError, match=r"was used by"):
            offload()
    assert same(streamed, model)
