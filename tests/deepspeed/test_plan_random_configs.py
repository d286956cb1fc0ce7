# SPDX-License-Identifier: Apache-2.0
"""Configs of odd numbers, of each type that penstock.plan counts: as many parameters as transformers builds."""

import random
import sys
from pathlib import Path

import penstock.plan as plan
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
models = pytest.importorskip("benchmarks.plan_models")
pytest.importorskip("transformers")

GATED = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text")


class Fields(random.Random):
    """Fields of a config of each type, by chance."""

    def flag(self):
        return self.random() < 0.5

    def some(self, **fields):
        """Each with half a chance: else it has the default."""
        return {name: value for name, value in fields.items() if self.flag()}

    def decoder(self):
        keys, width = self.choice((1, 2, 4)), self.choice((8, 10, 16, 24))
        heads = keys * self.choice((1, 2, 3))
        return {
            "hidden_size": heads * width * self.choice((1, 2)),
            "intermediate_size": self.randrange(10, 300),
            "num_hidden_layers": self.randrange(1, 7),
            "num_attention_heads": heads,
            "num_key_value_heads": keys,
            "vocab_size": self.randrange(10, 3000),
            "tie_word_embeddings": self.flag(),
            **self.some(head_dim=width),
        }

    def gated(self, kind):
        out = self.decoder() | self.some(attention_bias=self.flag(), sliding_window=self.choice((1, 17, 4096)))
        if kind == "llama":
            out["mlp_bias"] = self.flag()
        if kind in ("qwen2", "qwen3"):
            out |= {"use_sliding_window": self.flag(), "max_window_layers": self.randrange(9)}
        if kind == "phi3":
            out |= {"pad_token_id": 0}
            out.pop("head_dim", None)
        if kind in ("gemma2", "gemma3_text") and self.flag():
            names = ("full_attention", "sliding_attention")
            out["layer_types"] = [self.choice(names) for _ in range(out["num_hidden_layers"])]
        return out

    def mixtral(self):
        return self.decoder() | {"num_local_experts": self.randrange(2, 9), "sliding_window": self.choice((None, 5))}

    def qwen3_moe(self):
        out = self.decoder() | {"num_experts": self.randrange(2, 9), "moe_intermediate_size": self.randrange(5, 60)}
        out |= {"decoder_sparse_step": self.choice((1, 2, 3)), "attention_bias": self.flag()}
        return out | self.some(mlp_only_layers=[self.randrange(out["num_hidden_layers"])])

    def gpt_oss(self):
        return self.decoder() | {"num_local_experts": self.randrange(2, 9), "attention_bias": self.flag()}

    def deepseek_v3(self):
        groups = self.choice((1, 2, 4))
        out = self.decoder() | {
            "n_routed_experts": 4 * groups,
            "n_group": groups,
            "topk_group": 1,
            "num_experts_per_tok": 1,
            "n_shared_experts": self.randrange(1, 4),
            "moe_intermediate_size": self.randrange(5, 60),
            "first_k_dense_replace": self.randrange(8),
            "kv_lora_rank": self.randrange(3, 40),
            "q_lora_rank": self.choice((None, self.randrange(3, 40))),
            "qk_rope_head_dim": self.choice((4, 8)),
            "qk_nope_head_dim": self.randrange(4, 20),
            "v_head_dim": self.randrange(4, 30),
            "attention_bias": self.flag(),
        }
        out.pop("head_dim", None)
        return out | {"num_key_value_heads": out["num_attention_heads"]}

    def small(self, hidden="hidden_size", layers="num_hidden_layers", heads="num_attention_heads"):
        count = self.choice((1, 2, 6))
        return {hidden: count * 16, layers: self.randrange(1, 6), heads: count, "vocab_size": self.randrange(10, 2000)}

    def gpt2(self):
        out = self.small("n_embd", "n_layer", "n_head") | {"n_positions": self.randrange(5, 99)}
        return out | self.some(n_inner=self.randrange(5, 99), tie_word_embeddings=self.flag())

    def gptj(self):
        return self.small("n_embd", "n_layer", "n_head") | {"rotary_dim": 8} | self.some(n_inner=self.randrange(5, 99))

    def gpt_neox(self):
        out = self.small() | {"intermediate_size": self.randrange(5, 99)}
        return out | self.some(attention_bias=self.flag(), tie_word_embeddings=self.flag())

    def bloom(self):
        return self.small("hidden_size", "n_layer", "n_head") | self.some(tie_word_embeddings=self.flag())

    def opt(self):
        out = self.small() | {"ffn_dim": self.randrange(5, 99), "max_position_embeddings": self.randrange(5, 99)}
        names = ("enable_bias", "layer_norm_elementwise_affine", "do_layer_norm_before", "_remove_final_layer_norm")
        return out | self.some(word_embed_proj_dim=24, **{name: self.flag() for name in names})

    def falcon(self):
        names = ("new_decoder_architecture", "multi_query", "parallel_attn", "bias", "alibi", "tie_word_embeddings")
        out = self.small() | {name: self.flag() for name in names} | {"num_kv_heads": 1}
        more = {"num_ln_in_parallel_attn": self.choice((1, 2))} if out["new_decoder_architecture"] else {}
        return out | self.some(ffn_hidden_size=self.randrange(5, 99), **more)

    def encoder(self, name):
        out = self.small() | {"architectures": [name + self.choice(("Model", "ForMaskedLM"))]}
        out |= {"intermediate_size": self.randrange(5, 99), "max_position_embeddings": self.randrange(5, 99)}
        return out | {"type_vocab_size": self.randrange(1, 5)} | self.some(tie_word_embeddings=self.flag())

    def bert(self):
        return self.encoder("Bert")

    def roberta(self):
        return self.encoder("Roberta")

    def t5(self):
        names = {"d_model": 60, "d_kv": 20, "d_ff": 99, "num_heads": 6, "num_layers": 5, "num_decoder_layers": 5}
        out = {name: self.randrange(1, below) for name, below in names.items()}
        out |= {"architectures": ["T5ForConditionalGeneration"], "vocab_size": self.randrange(10, 2000)}
        out |= {"relative_attention_num_buckets": self.randrange(4, 40)}
        return out | {"feed_forward_proj": self.choice(("relu", "gated-gelu"))}

    def gemma3(self):
        vision = self.small() | {"intermediate_size": self.randrange(5, 50), "image_size": 28}
        vision |= {"patch_size": self.choice((7, 14)), "vision_use_head": self.flag()}
        del vision["vocab_size"]
        return {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": {"model_type": "gemma3_text"} | self.gated("gemma3_text"),
            "vision_config": {"model_type": "siglip_vision_model"} | vision,
        }


@pytest.mark.parametrize("kind", plan.model_types())
def test_odd_numbers_are_counted_as_transformers_builds_them(kind):
    draw = Fields(kind)
    for _ in range(6):
        fields = {"model_type": kind} | (draw.gated(kind) if kind in GATED else getattr(draw, kind)())
        assert plan.model(config=fields).parameters == models.count_of(dict(fields)), fields


@pytest.mark.parametrize("kind", ["olmo2", "granite", "starcoder2", "cohere", "stablelm", "qwen2_moe", "phi"])
def test_a_decoder_that_only_transformers_knows_has_its_head(kind):
    fields = {"model_type": kind, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 99}
    assert plan.model(config=fields).parameters == models.count_of(dict(fields))


def test_what_transformers_refuses_is_an_error_of_the_config():
    for more in ({"hidden_size": "x"}, {"num_hidden_layers": 10**9}, {"num_attention_heads": 0}, {"vocab_size": -1}):
        with pytest.raises(ValueError, match="config"):
            plan.model(config={"model_type": "olmo2", **more})
