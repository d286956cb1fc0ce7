# SPDX-License-Identifier: Apache-2.0
"""Configs of all types that penstock.plan counts, and what transformers builds of them: for plan.params, and for
tests/deepspeed/test_plan_configs.py.

    .venv-deepspeed/bin/python -m benchmarks.plan_models        # the counts of transformers, as JSON
"""

import json

GEMMA3_TEXT = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 14}
CONFIGS = {
    "llama-3-8b": dict(
        model_type="llama",
        architectures=["LlamaForCausalLM"],
        intermediate_size=14336,
        vocab_size=128256,
        num_key_value_heads=8,
    ),
    "llama-3.2-1b": dict(
        model_type="llama",
        hidden_size=2048,
        num_hidden_layers=16,
        intermediate_size=8192,
        vocab_size=128256,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
    ),
    "llama with biases": dict(
        model_type="llama", num_hidden_layers=3, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "llama without a head": dict(model_type="llama", architectures=["LlamaModel"], num_hidden_layers=2),
    "mistral-7b": dict(model_type="mistral"),
    "mixtral-8x7b": dict(model_type="mixtral", num_local_experts=8),
    "qwen2-0.5b": dict(
        model_type="qwen2",
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "qwen3-8b": dict(
        model_type="qwen3", intermediate_size=12288, num_hidden_layers=36, num_key_value_heads=8, head_dim=128
    ),
    "qwen3-30b-a3b": dict(
        model_type="qwen3_moe",
        num_hidden_layers=48,
        head_dim=128,
        moe_intermediate_size=768,
        num_experts=128,
        mlp_only_layers=[],
    ),
    "qwen3-moe, some layers dense": dict(
        model_type="qwen3_moe", num_hidden_layers=7, num_experts=4, decoder_sparse_step=2, mlp_only_layers=[1, 3]
    ),
    "gemma-2b": dict(
        model_type="gemma",
        hidden_size=2048,
        intermediate_size=16384,
        num_hidden_layers=18,
        num_attention_heads=8,
        num_key_value_heads=1,
    ),
    "gemma2-2b": dict(model_type="gemma2"),
    "gemma3-1b": dict(
        model_type="gemma3_text",
        vocab_size=262144,
        hidden_size=1152,
        intermediate_size=6912,
        num_attention_heads=4,
        num_key_value_heads=1,
    ),
    "gemma3-4b": dict(
        model_type="gemma3",
        architectures=["Gemma3ForConditionalGeneration"],
        text_config=GEMMA3_TEXT,
        vision_config={**SIGLIP, "num_hidden_layers": 27, "image_size": 896, "vision_use_head": False},
    ),
    "gemma3 with a vision head": dict(
        model_type="gemma3",
        architectures=["Gemma3ForConditionalGeneration"],
        text_config={**GEMMA3_TEXT, "num_hidden_layers": 2},
        vision_config=SIGLIP,
    ),
    "gpt2": dict(model_type="gpt2", architectures=["GPT2LMHeadModel"]),
    "gpt2-xl": dict(model_type="gpt2", n_embd=1600, n_layer=48, n_head=25),
    "gpt-j": dict(model_type="gptj"),
    "gpt-neox-20b": dict(model_type="gpt_neox"),
    "bloom-560m": dict(model_type="bloom", hidden_size=1024, n_layer=24, n_head=16),
    "opt-350m": dict(
        model_type="opt",
        hidden_size=1024,
        word_embed_proj_dim=512,
        ffn_dim=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        do_layer_norm_before=False,
    ),
    "opt-125m": dict(model_type="opt"),
    "falcon-7b": dict(model_type="falcon"),
    "falcon-40b": dict(
        model_type="falcon",
        hidden_size=8192,
        num_attention_heads=128,
        num_kv_heads=8,
        num_hidden_layers=60,
        new_decoder_architecture=True,
    ),
    "falcon-rw-1b": dict(
        model_type="falcon",
        hidden_size=2048,
        num_attention_heads=32,
        num_hidden_layers=24,
        multi_query=False,
        parallel_attn=False,
        bias=True,
    ),
    "phi-3": dict(model_type="phi3"),
    "bert-base": dict(model_type="bert", architectures=["BertForMaskedLM"]),
    "bert-large": dict(
        model_type="bert",
        architectures=["BertForPreTraining"],
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    ),
    "bert without a head": dict(model_type="bert", architectures=["BertModel"]),
    "bert, head not tied": dict(model_type="bert", architectures=["BertForMaskedLM"], tie_word_embeddings=False),
    "roberta-base": dict(
        model_type="roberta", architectures=["RobertaForMaskedLM"], max_position_embeddings=514, type_vocab_size=1
    ),
    "t5-base": dict(
        model_type="t5",
        architectures=["T5ForConditionalGeneration"],
        d_model=768,
        d_ff=3072,
        num_layers=12,
        num_heads=12,
    ),
    "t5, gated": dict(
        model_type="t5",
        architectures=["T5ForConditionalGeneration"],
        d_model=256,
        num_layers=3,
        num_decoder_layers=5,
        feed_forward_proj="gated-gelu",
    ),
    "t5, encoder alone": dict(model_type="t5", architectures=["T5EncoderModel"], num_layers=3, num_decoder_layers=5),
    "gpt-oss-120b": dict(model_type="gpt_oss"),
    "deepseek-v3": dict(model_type="deepseek_v3"),
    "deepseek, whole queries": dict(
        model_type="deepseek_v3",
        num_hidden_layers=4,
        q_lora_rank=None,
        n_routed_experts=8,
        n_shared_experts=2,
        first_k_dense_replace=1,
    ),
}


def count_of(fields):
    """The parameters of the model that transformers builds, on the meta device; tied ones once."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**fields)
    with torch.device("meta"):
        if "architectures" in fields:
            model = getattr(transformers, fields["architectures"][0])(config)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return sum({id(one): one.numel() for one in model.parameters()}.values())


if __name__ == "__main__":
    print(json.dumps({name: count_of(fields) for name, fields in CONFIGS.items()}))
