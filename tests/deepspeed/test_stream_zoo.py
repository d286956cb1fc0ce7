# SPDX-License-Identifier: Apache-2.0
"""Architectures of transformers, small and with random weights: streamed, they give the bits of from_pretrained at the
smallest budget, at 60 % and with everything in memory, or the error that CANNOT lists."""

import re

import penstock
import pytest
import torch
import transformers

HEADS = {"num_hidden_layers": 2, "num_attention_heads": 4}
PLAIN = {**HEADS, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 600}
GROUPED = {**PLAIN, "num_key_value_heads": 2, "max_position_embeddings": 128}
SHORT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 600, "n_positions": 128}
BART = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 600,
        "max_position_embeddings": 128}  # fmt: skip
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 600,
      "decoder_start_token_id": 0}  # fmt: skip
IMAGES = {**HEADS, "hidden_size": 64, "intermediate_size": 128, "image_size": 16, "patch_size": 8}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
          "linear_value_head_dim": 16}  # fmt: skip
FEW = {"num_experts": 8, "num_experts_per_tok": 2}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
SPEECH = {**PLAIN, "vocab_size": 32, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
          "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}  # fmt: skip
RESNET = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1]}


def words(high=500):
    return {"input_ids": torch.randint(3, high, (2, 6))}


def both():
    return {**words(90), "decoder_input_ids": torch.randint(3, 90, (2, 4))}


def picture(size=16):
    return {"pixel_values": torch.randn(2, 3, size, size)}


def pictures_in_words(count, **more):
    ids = torch.randint(3, 500, (2, count + 4))
    ids[:, :count] = 599
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


def words_and_picture():
    return {**words(), **picture()}


def one_tile():
    ones = {"aspect_ratio_ids": (2, 1), "aspect_ratio_mask": (2, 1, 1), "attention_mask": (2, 6)}
    return {
        **words(),
        **{name: torch.ones(shape, dtype=torch.long) for name, shape in ones.items()},
        "pixel_values": torch.randn(2, 1, 1, 3, 16, 16),
        "cross_attention_mask": torch.ones(2, 6, 1, 1, dtype=torch.long),
    }


# {a test: [(class, config, values, inputs)]}; a model is used with words if no inputs are given
ZOO = {
    "decoders": [
        ("OPTForCausalLM", "OPTConfig", {**PLAIN, "ffn_dim": 128, "max_position_embeddings": 128,
                                         "word_embed_proj_dim": 64}),
        ("GPT2LMHeadModel", "GPT2Config", SHORT),
        ("GPTJForCausalLM", "GPTJConfig", {**SHORT, "rotary_dim": 8}),
        ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**PLAIN, "max_position_embeddings": 128}),
        ("FalconForCausalLM", "FalconConfig", PLAIN),
        ("BloomForCausalLM", "BloomConfig", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 600}),
        ("MptForCausalLM", "MptConfig", {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 600,
                                         "max_seq_len": 128}),
        ("Phi3ForCausalLM", "Phi3Config", {**GROUPED, "pad_token_id": 0, "eos_token_id": 1}),
        ("Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, "head_dim": 16}),
        ("Gemma3nForCausalLM", "Gemma3nTextConfig", {
            **GROUPED, "num_hidden_layers": 4, "head_dim": 16, "vocab_size_per_layer_input": 600,
            "hidden_size_per_layer_input": 16, "laurel_rank": 8, "altup_num_inputs": 2, "num_kv_shared_layers": 1,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "activation_sparsity_pattern": [0.0] * 4,
            "intermediate_size": [128] * 4}),
        ("Gemma4ForCausalLM", "Gemma4TextConfig", {
            **GROUPED, "num_hidden_layers": 4, "head_dim": 16, "vocab_size_per_layer_input": 600,
            "hidden_size_per_layer_input": 16}),
        ("BioGptForCausalLM", "BioGptConfig", {**PLAIN, "max_position_embeddings": 128}),
        ("XGLMForCausalLM", "XGLMConfig", {"d_model": 64, "ffn_dim": 128, "num_layers": 2, "attention_heads": 4,
                                           "vocab_size": 600, "max_position_embeddings": 128}),
    ],
    "recurrent": [
        ("MambaForCausalLM", "MambaConfig", {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 600,
                                             "state_size": 8}),
        ("Mamba2ForCausalLM", "Mamba2Config", {
            "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 600, "state_size": 16, "num_heads": 8,
            "head_dim": 16, "n_groups": 1, "chunk_size": 8}),
        ("FalconMambaForCausalLM", "FalconMambaConfig", {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 600,
                                                         "state_size": 8}),
        ("JambaForCausalLM", "JambaConfig", {
            **GROUPED, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4,
            "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4,
            "use_mamba_kernels": False}),
        ("BambaForCausalLM", "BambaConfig", {**GROUPED, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16,
                                             "attn_layer_indices": [1]}),
        ("Zamba2ForCausalLM", "Zamba2Config", {
            **GROUPED, "num_hidden_layers": 3, "mamba_d_state": 16, "mamba_ngroups": 1, "n_mamba_heads": 8,
            "mamba_headdim": 16, "hybrid_layer_ids": [1], "num_mem_blocks": 1, "use_mamba_kernels": False,
            "layers_block_type": ["mamba", "hybrid", "mamba"]}),
        ("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", {**GROUPED, "num_hidden_layers": 3, "head_dim": 16,
                                                               "lru_width": 64}),
        ("Lfm2ForCausalLM", "Lfm2Config", {**GROUPED, "num_hidden_layers": 3, "full_attn_idxs": [1]}),
        ("Qwen3NextForCausalLM", "Qwen3NextConfig", {
            **GROUPED, **FEW, **LINEAR, "num_hidden_layers": 4, "head_dim": 16, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32}),
        ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", {**GROUPED, **LINEAR, "num_hidden_layers": 4, "head_dim": 16}),
    ],
    "experts": [
        ("DeepseekV3ForCausalLM", "DeepseekV3Config", {
            **PLAIN, "num_hidden_layers": 3, "num_key_value_heads": 4, "moe_intermediate_size": 32,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "kv_lora_rank": 16,
            "q_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "qk_nope_head_dim": 16,
            "first_k_dense_replace": 1, "n_shared_experts": 1}),
        ("Llama4ForCausalLM", "Llama4TextConfig", {
            **GROUPED, "head_dim": 16, "intermediate_size_mlp": 128, "num_local_experts": 4,
            "interleave_moe_layer_step": 1, "pad_token_id": 0}),
        ("OlmoeForCausalLM", "OlmoeConfig", {**GROUPED, **FEW}),
        ("GraniteMoeForCausalLM", "GraniteMoeConfig", {**GROUPED, **LOCAL}),
        ("Qwen2MoeForCausalLM", "Qwen2MoeConfig", {**GROUPED, **FEW, "moe_intermediate_size": 32,
                                                   "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1}),
        ("SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", {
            **T5, "num_decoder_layers": 2, "num_experts": 4, "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1}, both),
    ],
    "encoders and decoders": [
        ("BartForConditionalGeneration", "BartConfig", BART, both),
        ("PegasusForConditionalGeneration", "PegasusConfig", BART, both),
        ("M2M100ForConditionalGeneration", "M2M100Config", BART, both),
        ("MarianMTModel", "MarianConfig", {**BART, "pad_token_id": 0, "decoder_start_token_id": 0}, both),
        ("LEDForConditionalGeneration", "LEDConfig", {
            **BART, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64,
            "attention_window": 8}, both),
        ("MT5ForConditionalGeneration", "MT5Config", T5, both),
        ("ProphetNetForConditionalGeneration", "ProphetNetConfig", {
            "hidden_size": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "num_encoder_layers": 2,
            "num_decoder_layers": 2, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4,
            "vocab_size": 600, "max_position_embeddings": 64}, both),
        ("WhisperForConditionalGeneration", "WhisperConfig", {
            **BART, "max_source_positions": 20, "max_target_positions": 64, "num_mel_bins": 8, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
         lambda: {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": torch.randint(3, 60, (2, 4))}),
    ],
    "encoders": [
        ("AlbertForMaskedLM", "AlbertConfig", {**PLAIN, "embedding_size": 32, "num_hidden_layers": 3}),
        ("DistilBertForMaskedLM", "DistilBertConfig", {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4,
                                                       "vocab_size": 600}),
        ("DebertaV2ForMaskedLM", "DebertaV2Config", {**PLAIN, "relative_attention": True, "position_buckets": 16,
                                                     "pos_att_type": ["p2c", "c2p"]}),
        ("XLNetLMHeadModel", "XLNetConfig", {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128,
                                             "vocab_size": 600}),
        ("Wav2Vec2ForCTC", "Wav2Vec2Config", SPEECH, lambda: {"input_values": torch.randn(2, 800)}),
        ("FunnelForMaskedLM", "FunnelConfig", {"d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128,
                                               "block_sizes": [1, 1], "num_decoder_layers": 1, "vocab_size": 600}),
        ("ModernBertForMaskedLM", "ModernBertConfig", {**PLAIN, "pad_token_id": 0, "bos_token_id": 1,
                                                       "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}),
        ("BertForSequenceClassification", "BertConfig", {**PLAIN, "num_labels": 3}),
    ],
    "pictures": [
        ("ViTForImageClassification", "ViTConfig", IMAGES, picture),
        ("SwinModel", "SwinConfig", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1],
                                     "num_heads": [2, 2], "window_size": 4}, lambda: picture(32)),
        ("DetrModel", "DetrConfig", {
            "use_timm_backbone": False, "backbone": None, "d_model": 64, "encoder_layers": 1, "decoder_layers": 1,
            "backbone_config": {"model_type": "resnet", **RESNET, "out_features": ["stage2"]}, "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_queries": 5},
         lambda: picture(64)),
        ("CLIPModel", "CLIPConfig", {
            "text_config": {**PLAIN, "max_position_embeddings": 32, "eos_token_id": 2}, "vision_config": IMAGES},
         words_and_picture),
        ("SiglipModel", "SiglipConfig", {"text_config": {**PLAIN, "max_position_embeddings": 32},
                                         "vision_config": IMAGES}, words_and_picture),
        ("Idefics3ForConditionalGeneration", "Idefics3Config", {
            "image_token_id": 599, "scale_factor": 2, "vision_config": IMAGES,
            "text_config": {**GROUPED, "model_type": "llama", "pad_token_id": 0}},
         lambda: pictures_in_words(1, pixel_values=torch.randn(2, 1, 3, 16, 16))),
        ("MllamaForConditionalGeneration", "MllamaConfig", {
            "image_token_index": 599,
            "text_config": {**GROUPED, "num_hidden_layers": 3, "cross_attention_layers": [1], "pad_token_id": 0,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
            "vision_config": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                              "num_global_layers": 1, "attention_heads": 4, "image_size": 16, "patch_size": 8,
                              "max_num_tiles": 1, "supported_aspect_ratios": [[1, 1]],
                              "intermediate_layers_indices": [0], "vision_output_dim": 128}}, one_tile),
    ],
}  # fmt: skip
CANNOT = {
    "changes its weights in each pass": (
        ("RwkvForCausalLM", "RwkvConfig", {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 600,
                                           "context_length": 64}),
        RuntimeError, r"attention\.output\.weight was used by aten\.div_.*do not change",
    ),
}  # fmt: skip


def saved(folder, name, config, values):
    torch.manual_seed(1)
    cls = getattr(transformers, name)
    made = cls(getattr(transformers, config)(**values))
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    made.save_pretrained(folder)
    model = cls.from_pretrained(folder, dtype="auto").eval()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    return cls, model


def tensors(value):
    if torch.is_tensor(value):
        return [torch.nan_to_num(value)]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for one in values for tensor in tensors(one)]


def results(model, inputs):
    """The output of a pass, and tokens."""
    with torch.no_grad():
        out = tensors(model(**inputs))
    if model.can_generate():
        given = {name: one for name, one in inputs.items() if not name.startswith("decoder_")}
        out.append(model.generate(**given, max_new_tokens=3, do_sample=False))
    return out


@pytest.mark.parametrize("kind", ZOO)
def test_any_budget_gives_the_bits_of_the_model_in_memory(kind, tmp_path):
    wrong = []
    for name, config, values, *given in ZOO[kind]:
        cls, model = saved(tmp_path / name, name, config, values)
        inputs = (given[0] if given else words)()
        expected = results(model, inputs)
        total = sum(parameter.nbytes for parameter in model.parameters())
        with pytest.raises(MemoryError, match="the least that works") as refused:
            penstock.stream(cls, tmp_path / name, memory=0)
        least = int(re.search(r"this model is (\d+)", str(refused.value))[1])
        budgets = [2 * total + (1 << 20), max(least, total * 6 // 10), least]
        ways = [(memory, penstock.stream(cls, tmp_path / name, memory=memory)) for memory in budgets]
        for memory, streamed in [*ways, (least, ways[0][1]), (budgets[0], ways[0][1])]:
            if streamed is ways[0][1]:
                streamed.set_memory(memory)
            found = results(streamed, inputs)
            if not all(map(torch.equal, found, expected)) or len(found) != len(expected):
                wrong.append((name, memory / total, streamed is ways[0][1]))
    assert not wrong


@pytest.mark.parametrize("what", CANNOT)
def test_an_architecture_that_cannot_be_streamed_says_so(what, tmp_path):
    given, error, message = CANNOT[what]
    cls, _ = saved(tmp_path, *given)
    with pytest.raises(error, match=message):
        penstock.stream(cls, tmp_path, memory="1GiB")(**words())
