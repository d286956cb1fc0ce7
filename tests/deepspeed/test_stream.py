# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that are streamed give the bits of from_pretrained(dtype="auto")."""

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
}  # fmt: skip


def saved(name, dtype, folder):
    model, config, values = MODELS[name]
    torch.manual_seed(1)
    cls = getattr(transformers, model)
    cls(getattr(transformers, config)(**values)).to(dtype).save_pretrained(folder, max_shard_size="300kB")
    return cls, cls.from_pretrained(folder, dtype="auto").eval()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_tokens_are_those_of_the_model_in_memory(name, dtype, tmp_path):
    cls, model = saved(name, dtype, tmp_path)
    total = sum(parameter.nbytes for parameter in model.parameters())
    for batch in (1, 3):
        ids = torch.randint(0, 1000, (batch, 5))
        inputs = {"input_ids": ids, **({"decoder_input_ids": ids[:, :2]} if name == "t5" else {})}
        with torch.no_grad():
            expected = model(**inputs).logits
        for given, memory in ((None, total * 6 // 10), (cls, 2 * total)):
            streamed = penstock.stream(given, tmp_path, memory=memory)
            assert (streamed.device, streamed.dtype) == (model.device, model.dtype)
            with torch.no_grad():
                assert torch.equal(streamed(**inputs).logits, expected)
            if model.can_generate():
                options = {"max_new_tokens": 4, "do_sample": False}
                assert torch.equal(streamed.generate(ids, **options), model.generate(ids, **options))
            assert (streamed.stream_stats().bytes_read > 0) == (memory < total)


def test_without_a_config_the_model_is_asked_for(tmp_path):
    penstock.save({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(FileNotFoundError, match="config.json' does not exist; give the model"):
        penstock.stream(None, tmp_path)
