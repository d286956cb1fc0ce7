# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that are streamed give the bits of from_pretrained(dtype="auto")."""

import json
import re

import penstock
import pytest
import torch
import transformers

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}
DECODER = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 128}
IMAGE_TOKEN = 999
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
MODELS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER),
    "qwen3-tied": ("Qwen3ForCausalLM", "Qwen3Config", {**DECODER, "head_dim": 16, "tie_word_embeddings": True}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**DECODER, "head_dim": 16}),
    "bert": ("BertForMaskedLM", "BertConfig", SMALL),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 1000,
         "decoder_start_token_id": 0},
    ),
    "llava": (
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {"image_token_id": IMAGE_TOKEN, "configs": {
            "vision_config": ("CLIPVisionConfig", {**VISION, "image_size": 16, "patch_size": 8}),
            "text_config": ("LlamaConfig", DECODER)}},
    ),
}  # fmt: skip


def saved(name, dtype, folder):
    model, config, values = MODELS[name]
    torch.manual_seed(1)
    cls = getattr(transformers, model)
    values = dict(values)
    parts = {key: getattr(transformers, kind)(**some) for key, (kind, some) in values.pop("configs", {}).items()}
    cls(getattr(transformers, config)(**values, **parts)).to(dtype).save_pretrained(folder, max_shard_size="300kB")
    return cls, cls.from_pretrained(folder, dtype="auto").eval()


def least_memory(given, folder):
    with pytest.raises(MemoryError) as refused:
        penstock.stream(given, folder, memory=0)
    return int(re.search(r"the least that works for this model is (\d+)", str(refused.value))[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_tokens_are_those_of_the_model_in_memory(name, dtype, tmp_path):
    cls, model = saved(name, dtype, tmp_path)
    total = sum(parameter.nbytes for parameter in model.parameters())
    dtypes = {key: parameter.dtype for key, parameter in model.named_parameters(remove_duplicate=False)}
    least = least_memory(cls, tmp_path)
    assert least < total * 6 // 10 or "t5" in name or "llava" in name
    streams = [penstock.stream(*given, memory=memory) for given, memory in (
        ((cls, tmp_path), least), ((None, tmp_path), max(least, total * 6 // 10)), ((cls, tmp_path), 2 * total)
    )]  # fmt: skip
    for batch in (1, 8):
        ids = torch.randint(0, 900, (batch, 5))
        inputs = {"input_ids": ids}
        if name == "t5":
            inputs["decoder_input_ids"] = ids[:, :2]
        if name == "llava":
            ids[:, :4] = IMAGE_TOKEN
            inputs["pixel_values"] = torch.randn(batch, 3, 16, 16, dtype=dtype)
        with torch.no_grad():
            expected = model(**inputs).logits
        for streamed in streams:
            assert (streamed.device, streamed.dtype) == (model.device, model.dtype)
            meant = streamed.named_parameters(remove_duplicate=False)
            assert {key: parameter.dtype for key, parameter in meant} == dtypes
            with torch.no_grad():
                assert torch.equal(streamed(**inputs).logits, expected)
            if model.can_generate():
                inputs.pop("decoder_input_ids", None)
                options = {"max_new_tokens": 4, "do_sample": False, **inputs}
                assert torch.equal(streamed.generate(**options), model.generate(**options))
                inputs |= {"decoder_input_ids": ids[:, :2]} if name == "t5" else {}
    assert [streamed.stream_stats().bytes_read > 0 for streamed in streams] == [True, True, False]


@pytest.mark.parametrize("name", MODELS)
def test_a_first_pass_reads_each_part_of_a_layer_once(name, tmp_path):
    cls, model = saved(name, torch.float32, tmp_path)
    inputs = {"input_ids": torch.arange(5).reshape(1, 5)}
    if name == "t5":
        inputs["decoder_input_ids"] = inputs["input_ids"][:, :2]
    if name == "llava":  # text alone: the parts of the image are listed first, and not used
        inputs["pixel_values"] = None
    streamed = penstock.stream(cls, tmp_path, memory=least_memory(cls, tmp_path))
    with torch.no_grad():
        assert torch.equal(streamed(**inputs).logits, model(**inputs).logits)
    stats = streamed.stream_stats()
    extra = 6 if name == "llava" else 2
    assert stats.bytes_read <= stats.plan["read_bytes"] + extra * stats.plan["slot_bytes"]


def test_beams_and_an_assistant_give_the_tokens_of_the_model_in_memory(tmp_path):
    cls, model = saved("llama", torch.float32, tmp_path / "large")
    small = {**DECODER, "num_hidden_layers": 1}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**small)).save_pretrained(tmp_path / "small")
    assistant = cls.from_pretrained(tmp_path / "small")
    total = sum(parameter.nbytes for parameter in model.parameters())
    streamed = penstock.stream(cls, tmp_path / "large", memory=total * 6 // 10)
    helper = penstock.stream(cls, tmp_path / "small", memory=least_memory(cls, tmp_path / "small"))
    ids = torch.randint(0, 1000, (1, 5))
    for options, ours in (
        ({"num_beams": 3, "num_return_sequences": 2}, {}),
        ({"assistant_model": assistant}, {}),
        ({"assistant_model": assistant}, {"assistant_model": helper}),
    ):
        options = {"max_new_tokens": 8, "do_sample": False, **options}
        assert torch.equal(streamed.generate(ids, **(options | ours)), model.generate(ids, **options))
    assert helper.stream_stats().bytes_read > 0


@pytest.fixture
def tiny(tmp_path):
    config = transformers.LlamaConfig(**DECODER)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path


def test_what_needs_all_weights_is_refused(tiny):
    streamed = penstock.stream(None, tiny, memory="1GiB")
    for name in ("save_pretrained", "push_to_hub", "to", "cuda", "half"):
        with pytest.raises(RuntimeError, match=rf"^{name}\(\): the weights of this model are streamed"):
            getattr(streamed, name)("somewhere")
    with pytest.raises(RuntimeError, match=r"^train\(\)"):
        streamed.train()
    with pytest.raises(RuntimeError, match=r"^backward\(\)"):
        streamed(torch.tensor([[1, 2]]), labels=torch.tensor([[1, 2]])).loss.backward()


def test_quantized_weights_are_refused_by_name(tiny):
    path = tiny / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(NotImplementedError, match=rf"'{tiny}.*' is quantized \(gptq\).*not quantized"):
        penstock.stream(None, tiny)


def test_a_model_of_another_dtype_than_from_pretrained_gives_is_refused(tiny):
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_pretrained(tiny))
    with pytest.raises(ValueError, match=r"model.embed_tokens.weight is torch.float32 .* gives torch.bfloat16"):
        penstock.stream(model, tiny)
    model = penstock.stream(model.to(torch.bfloat16), tiny, memory="1GiB")
    ids = torch.tensor([[1, 2, 3]])
    expected = transformers.LlamaForCausalLM.from_pretrained(tiny, dtype="auto")
    with torch.no_grad():
        assert torch.equal(model(ids).logits, expected(ids).logits)


def test_a_config_without_a_dtype_means_that_of_the_files(tiny):
    path = tiny / "config.json"
    values = json.loads(path.read_text())
    del values["dtype"]
    path.write_text(json.dumps(values))
    expected = transformers.LlamaForCausalLM.from_pretrained(tiny, dtype="auto")
    assert penstock.stream(None, tiny, memory="1GiB").dtype == expected.dtype == torch.bfloat16


def test_without_a_config_the_model_is_asked_for(tmp_path):
    penstock.save({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(FileNotFoundError, match="config.json' does not exist; give the model"):
        penstock.stream(None, tmp_path)


@pytest.mark.parametrize("share", [0.8, 3])
def test_torch_compile_runs_the_model_without_compiling_it(tiny, share):
    model = transformers.LlamaForCausalLM.from_pretrained(tiny, dtype="auto")
    total = sum(parameter.nbytes for parameter in model.parameters())
    compiled = torch.compile(penstock.stream(None, tiny, memory=int(share * total)), backend="eager")
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(compiled(ids).logits, model(ids).logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_instance_that_keeps_no_part_in_float32_is_refused_by_name(tmp_path, dtype):
    """T5 in float16 keeps some weights in float32, whatever type the files have."""
    config = transformers.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=1000)
    transformers.T5ForConditionalGeneration(config).to(dtype).save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(config).to(dtype)
    expected = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path, dtype="auto").eval()
    if dtype == torch.float16:
        with pytest.raises(ValueError, match=r"\.wo\.weight is torch.float16 .* gives torch.float32"):
            penstock.stream(model, tmp_path, memory="1GiB")
        model = None
    ids = {"input_ids": torch.tensor([[1, 2]]), "decoder_input_ids": torch.tensor([[3]])}
    with torch.no_grad():
        assert torch.equal(penstock.stream(model, tmp_path, memory="1GiB")(**ids).logits, expected(**ids).logits)


@pytest.mark.parametrize("memory", ["400KiB", "600KiB", "1GiB"])
def test_weights_that_the_config_ties_and_the_files_have_twice(tmp_path, memory):
    """from_pretrained() does not tie them if their values differ."""
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    expected = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype="auto").eval()
    assert not torch.equal(expected.lm_head.weight, expected.model.embed_tokens.weight)
    model = penstock.stream(None, tmp_path, memory=memory)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(model(ids).logits, expected(ids).logits)
        assert torch.equal(model.model.embed_tokens.weight[3:5], expected.model.embed_tokens.weight[3:5])
        try:
            assert torch.equal(model.lm_head.weight[3:5], expected.lm_head.weight[3:5])
        except RuntimeError as refused:  # it is not in memory
            assert memory != "1GiB" and "lm_head.weight was used by" in str(refused)
        model.unstream()
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, expected.get_parameter(name)), name
        assert torch.equal(model(ids).logits, expected(ids).logits)
