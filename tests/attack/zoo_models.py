# SPDX-License-Identifier: Apache-2.0
"""Small models of transformers, with random weights: name, class, configuration."""

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 256,
}
TWO_HEADS = {**TINY, "num_key_value_heads": 2}
HEADS_16 = {**TWO_HEADS, "head_dim": 16}
T5_LIKE = {"d_model": 64, "vocab_size": 320}
BART_LIKE = {
    **T5_LIKE,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
CLIP_TEXT = {**TINY, "num_hidden_layers": 2, "max_position_embeddings": 64, "eos_token_id": 2}

# name: (prefix of the class and of its configuration, what the model does, options)
MODELS = {
    "llama": ("Llama", "CausalLM", TWO_HEADS),
    "llama_tied": ("Llama", "CausalLM", {**TINY, "tie_word_embeddings": True}),
    "gpt2": ("GPT2", "LMHeadModel", {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 320, "n_positions": 256}),
    "qwen3": ("Qwen3", "CausalLM", HEADS_16),
    "gemma2": ("Gemma2", "CausalLM", {**TINY, "num_key_value_heads": 1, "head_dim": 16}),
    "mixtral": ("Mixtral", "CausalLM", {**TWO_HEADS, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "qwen3moe": (
        "Qwen3Moe",
        "CausalLM",
        {**HEADS_16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "phi3": ("Phi3", "CausalLM", {**TWO_HEADS, "pad_token_id": 0}),
    "mamba": ("Mamba", "CausalLM", {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 320, "state_size": 8}),
    "opt": ("OPT", "CausalLM", {**TINY, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "bloom": ("Bloom", "CausalLM", {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 320}),
    "neox": ("GPTNeoX", "CausalLM", TINY),
    "falcon": ("Falcon", "CausalLM", {**TINY}),
    "gptoss": (
        "GptOss",
        "CausalLM",
        {**HEADS_16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    "olmoe": ("Olmoe", "CausalLM", {**TINY, "num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 2}),
    "t5": (
        "T5",
        "ConditionalGeneration",
        {**T5_LIKE, "d_ff": 128, "num_layers": 3, "num_heads": 4, "d_kv": 16, "decoder_start_token_id": 0},
    ),
    "bart": ("Bart", "ConditionalGeneration", {**BART_LIKE, "max_position_embeddings": 256}),
    "bert": ("Bert", "MaskedLM", TINY),
    "roberta": ("Roberta", "SequenceClassification", {**TINY, "num_labels": 3}),
    "vit": ("ViT", "ImageClassification", VISION),
    "clip": ("CLIP", "Model", {"text_config": CLIP_TEXT, "vision_config": VISION, "projection_dim": 32}),
    "whisper": (
        "Whisper",
        "ConditionalGeneration",
        {
            **BART_LIKE,
            "max_source_positions": 50,
            "max_target_positions": 64,
            "num_mel_bins": 16,
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
            "eos_token_id": 2,
            "bos_token_id": 1,
        },
    ),
}
ENCODER_DECODERS = ("t5", "bart")


def of(transformers, name):
    """(class, configuration)."""
    prefix, task, options = MODELS[name]
    form = task if task in ("LMHeadModel", "Model") else f"For{task}"
    return getattr(transformers, prefix + form), getattr(transformers, prefix + "Config")(**options)


def inputs(torch, name, batch, length):
    generator = torch.Generator().manual_seed(batch * 100 + length)
    ids = torch.randint(3, 300, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    if batch > 1:
        mask[0, : length // 3] = 0
    if name == "vit":
        return {"pixel_values": torch.randn(batch, 3, 32, 32, generator=generator)}
    if name == "clip":
        ids[:, -1] = 2
        return {"input_ids": ids, "pixel_values": torch.randn(batch, 3, 32, 32, generator=generator)}
    if name == "whisper":
        return {"input_features": torch.randn(batch, 16, 100, generator=generator), "decoder_input_ids": ids}
    if name in ENCODER_DECODERS:
        return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, : max(1, length // 2)]}
    return {"input_ids": ids, "attention_mask": mask}
