# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with parts of their own: computed positions, parameters that ignore the meta device."""

import json
import re

import penstock
import pytest
import torch
import transformers

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 600}
BERT = {**SMALL, "intermediate_size": 128}
LLAMA = {**BERT, "num_key_value_heads": 2, "max_position_embeddings": 128}
OPT = {**SMALL, "ffn_dim": 128, "max_position_embeddings": 128, "word_embed_proj_dim": 64}
BART = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 600, "max_position_embeddings": 128,
}  # fmt: skip
WHISPER = {
    **BART, "max_source_positions": 20, "max_target_positions": 64, "num_mel_bins": 8, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
VISION = {**BERT, "image_size": 16, "patch_size": 8}
BLIP = {
    "image_token_index": 599, "num_query_tokens": 4, "vision_config": VISION,
    "qformer_config": {**BERT, "encoder_hidden_size": 64}, "text_config": {"model_type": "opt", **OPT},
}  # fmt: skip
WAV2VEC = {
    **BERT, "vocab_size": 32, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip


def ids(high=500):
    return torch.randint(3, high, (2, 6))


def both(high=500):
    return {"input_ids": ids(high), "decoder_input_ids": ids(high)[:, :4]}


def image_and_ids():
    tokens = torch.cat([torch.full((2, 4), 599), ids()], dim=1)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "pixel_values": torch.randn(2, 3, 16, 16)}


# Ids that are all smaller than the table of positions give no IndexError if they are taken for positions.
MODELS = {
    "opt": ("OPTForCausalLM", "OPTConfig", OPT, lambda: {"input_ids": ids()}),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART, both),
    "bart, small ids": ("BartForConditionalGeneration", "BartConfig", BART, lambda: both(90)),
    "whisper": (
        "WhisperForConditionalGeneration", "WhisperConfig", WHISPER,
        lambda: {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": ids(60)[:, :4]},
    ),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", BART, both),
    "xlnet": (
        "XLNetLMHeadModel", "XLNetConfig",
        {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128, "vocab_size": 600}, lambda: {"input_ids": ids()},
    ),
    "wav2vec2": ("Wav2Vec2ForCTC", "Wav2Vec2Config", WAV2VEC, lambda: {"input_values": torch.randn(2, 800)}),
    "marian": ("MarianMTModel", "MarianConfig", {**BART, "pad_token_id": 0, "decoder_start_token_id": 0}, both),
    "blip-2": ("Blip2ForConditionalGeneration", "Blip2Config", BLIP, image_and_ids),
}  # fmt: skip


def saved(name, folder):
    """A model of random weights that differ from those of a new model, as from_pretrained() gives it, and inputs."""
    cls, config, values, inputs = MODELS[name]
    torch.manual_seed(1)
    cls = getattr(transformers, cls)
    model = cls(getattr(transformers, config)(**values))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder, max_shard_size="100kB")
    return cls.from_pretrained(folder, dtype="auto").eval(), inputs()


def least_memory(model, folder):
    with pytest.raises(MemoryError) as refused:
        penstock.stream(model, folder, memory=0)
    return int(re.search(r"the least that works for this model is (\d+)", str(refused.value))[1])


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_tokens_are_those_of_the_model_in_memory(name, tmp_path):
    model, inputs = saved(name, tmp_path)
    with torch.no_grad():
        expected = model(**inputs).logits
    options = {"max_new_tokens": 4, "do_sample": False}
    options |= {key: value for key, value in inputs.items() if not key.startswith("decoder_")}
    tokens = model.generate(**options) if model.can_generate() else None
    total = sum(parameter.nbytes for parameter in model.parameters())
    least = least_memory(type(model), tmp_path)
    for memory in (least, max(least, total * 6 // 10), 2 * total + (1 << 20)):
        streamed = penstock.stream(type(model), tmp_path, memory=memory)
        for turn in ("streamed", "in memory again"):
            with torch.no_grad():
                assert torch.equal(streamed(**inputs).logits, expected), (memory, turn)
            if tokens is not None:
                assert torch.equal(streamed.generate(**options), tokens), (memory, turn)
            if turn == "streamed":
                streamed.unstream()


@pytest.fixture
def tiny(tmp_path):
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, "num_hidden_layers": 8}))
    model.save_pretrained(tmp_path, max_shard_size="100kB")
    return model.eval()


def test_an_auto_class_gives_the_class_that_it_gives_in_transformers(tiny, tmp_path):
    for automatic in (transformers.AutoModelForCausalLM, transformers.AutoModel):
        streamed = penstock.stream(automatic, tmp_path, memory="1GiB")
        model = automatic.from_pretrained(tmp_path, dtype="auto")
        assert type(streamed).__name__ == type(model).__name__
        with torch.no_grad():
            expected, found = (one(torch.tensor([[1, 2, 3]]))[0] for one in (model, streamed))
        assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="AutoModelForSeq2SeqLM has no model for the LlamaConfig of"):
        penstock.stream(transformers.AutoModelForSeq2SeqLM, tmp_path)


def test_an_instance_in_training_mode_computes_without_dropout(tmp_path):
    config = transformers.BertConfig(**BERT)
    model = transformers.BertForMaskedLM(config).eval()
    model.save_pretrained(tmp_path)
    with torch.device("meta"):
        empty = transformers.BertForMaskedLM(config)
    streamed = penstock.stream(empty.train(), tmp_path, memory="1GiB")
    inputs = ids()
    with torch.no_grad():
        assert torch.equal(streamed(inputs).logits, model(inputs).logits)
    assert not any(module.training for module in streamed.modules())


def test_a_name_means_the_model_in_the_local_cache_of_the_hub(tiny, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    made = cache / "models--me--tiny"
    for folder in ("blobs", "refs", "snapshots/abc"):
        (made / folder).mkdir(parents=True)
    (made / "refs" / "main").write_text("abc")
    for number, path in enumerate(path for path in tmp_path.iterdir() if path.is_file()):
        path.rename(made / "blobs" / str(number))  # the cache names the contents, and links to them
        (made / "snapshots" / "abc" / path.name).symlink_to(f"../../blobs/{number}")
    streamed = penstock.stream(None, "me/tiny", memory="1GiB")
    with torch.no_grad():
        assert torch.equal(streamed(torch.tensor([[1, 2, 3]])).logits, tiny(torch.tensor([[1, 2, 3]])).logits)
    assert penstock.weights.plan("me/tiny", "1GiB") == penstock.weights.plan(made / "snapshots" / "abc", "1GiB")
    for call in (penstock.stream, lambda _, folder: penstock.weights.plan(folder, memory="1GiB")):
        with pytest.raises(FileNotFoundError, match=rf"no file or folder 'me/other'.*\('{cache}'\).*`hf download me"):
            call(None, "me/other")


DTYPES = [("bfloat16", "float32", "Llama"), ("float32", "bfloat16", "Llama"), ("bfloat16", "float32", "Mixtral")]


@pytest.mark.parametrize(("files", "config", "kind"), DTYPES)
def test_tensors_of_another_dtype_are_cast_when_they_arrive(files, config, kind, tmp_path):
    torch.manual_seed(1)
    cls, values = getattr(transformers, f"{kind}ForCausalLM"), {**LLAMA, "num_hidden_layers": 8}
    cls(getattr(transformers, f"{kind}Config")(**values)).to(getattr(torch, files)).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dtype": config}))
    model = cls.from_pretrained(tmp_path, dtype="auto")
    assert str(model.dtype) == f"torch.{config}"
    if kind == "Mixtral":
        model.set_experts_implementation("eager")
    inputs, total = ids(), sum(parameter.nbytes for parameter in model.parameters())
    with pytest.raises(MemoryError, match=rf"; \d+ tensors are cast from {files} to {config} .*dtype of the files"):
        penstock.stream(None, tmp_path, memory=0)
    least = least_memory(None, tmp_path)
    assert least < total * 3 // 4
    for memory in (least, total * 3 // 4, 2 * total):
        streamed = penstock.stream(None, tmp_path, memory=memory)
        with torch.no_grad():
            assert torch.equal(streamed(inputs).logits, model(inputs).logits)
        loaded = streamed.unstream().state_dict()
        assert loaded.keys() == model.state_dict().keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())
        assert {parameter.dtype for parameter in streamed.parameters()} == {model.dtype}


def test_errors_name_the_tensor_and_its_shard(tiny, tmp_path):
    streamed = penstock.stream(None, tmp_path, memory=least_memory(None, tmp_path))
    shards = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    shard = tmp_path / shards["model.embed_tokens.weight"]
    whole = shard.read_bytes()
    with open(shard, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(
        penstock.EndOfFile, match=rf"^stream: rows of 'model.embed_tokens.weight': '{shard}' ends .*cut"
    ):
        streamed(torch.tensor([[500]]))
    shard.write_bytes(whole)
    missing = tmp_path / shards["model.layers.1.self_attn.q_proj.weight"]
    missing.unlink()
    names = r"'model.layers.*' and \d+ more tensors: download or copy it"
    with pytest.raises(FileNotFoundError, match=rf"^stream: the shard '{missing}' is missing; by the index .* {names}"):
        penstock.stream(None, tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"^plan: the shard '{missing}' is missing; by the index .* {names}"):
        penstock.weights.plan(tmp_path, "1GiB")
    with pytest.raises(FileNotFoundError, match=rf"^stream: folder: there is no file or folder '{tmp_path}/none'"):
        penstock.stream(None, tmp_path / "none")
