# SPDX-License-Identifier: Apache-2.0
"""Transformers and UNets of diffusers give the bits of from_pretrained(torch_dtype=...) with the dtype of the files."""

import json

import accelerate
import diffusers
import penstock
import pytest
import torch
from tiny_models import budgets

MODELS = {
    "pixart": (
        diffusers.PixArtTransformer2DModel,
        {"sample_size": 8, "num_layers": 4, "patch_size": 2, "attention_head_dim": 8, "num_attention_heads": 2,
         "caption_channels": 32, "in_channels": 4, "cross_attention_dim": 16, "out_channels": 8},
        lambda of: {"hidden_states": of(2, 4, 8, 8), "encoder_hidden_states": of(2, 7, 32),
                    "timestep": torch.tensor([3, 3]),
                    "added_cond_kwargs": {"aspect_ratio": None, "resolution": None}},
    ),
    "wan": (
        diffusers.WanTransformer3DModel,
        {"patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4,
         "out_channels": 4, "text_dim": 16, "freq_dim": 256, "ffn_dim": 32, "num_layers": 4, "cross_attn_norm": True,
         "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 32},
        lambda of: {"hidden_states": of(1, 4, 2, 16, 16), "timestep": torch.tensor([5]),
                    "encoder_hidden_states": of(1, 12, 16)},
    ),
    "flux": (
        diffusers.FluxTransformer2DModel,
        {"patch_size": 1, "in_channels": 4, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 16,
         "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32,
         "axes_dims_rope": [4, 4, 8]},
        lambda of: {"hidden_states": of(1, 16, 4), "encoder_hidden_states": of(1, 6, 32),
                    "pooled_projections": of(1, 32), "timestep": of(1), "img_ids": torch.zeros(16, 3),
                    "txt_ids": torch.zeros(6, 3)},
    ),
    "sd3": (
        diffusers.SD3Transformer2DModel,
        {"sample_size": 8, "patch_size": 1, "in_channels": 4, "num_layers": 3, "attention_head_dim": 8,
         "num_attention_heads": 4, "joint_attention_dim": 32, "caption_projection_dim": 32,
         "pooled_projection_dim": 64, "out_channels": 4, "pos_embed_max_size": 96},
        lambda of: {"hidden_states": of(2, 4, 8, 8), "encoder_hidden_states": of(2, 5, 32),
                    "pooled_projections": of(2, 64), "timestep": torch.tensor([4, 4])},
    ),
    "unet": (
        diffusers.UNet2DConditionModel,
        {"block_out_channels": (16, 32), "norm_num_groups": 8, "cross_attention_dim": 32, "attention_head_dim": 8,
         "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "layers_per_block": 2, "sample_size": 16,
         "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
        lambda of: {"sample": of(2, 4, 16, 16), "timestep": torch.tensor([10]),
                    "encoder_hidden_states": of(2, 4, 32)},
    ),
}  # fmt: skip


def saved(name, dtype, folder):
    cls, config, inputs = MODELS[name]
    torch.manual_seed(1)
    cls(**config).to(dtype).save_pretrained(folder, max_shard_size="50KB")
    return cls, cls.from_pretrained(folder, torch_dtype=dtype), inputs(lambda *shape: torch.randn(shape).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_a_folder_of_its_own(name, dtype, tmp_path):
    cls, model, inputs = saved(name, dtype, tmp_path)
    with torch.no_grad():
        expected = model(**inputs).sample
    for given, memory in zip((None, cls, None), budgets(None, tmp_path, model), strict=True):
        streamed = penstock.stream(given, tmp_path, memory=memory)
        for (_, one), (_, other) in zip(streamed.named_parameters(), model.named_parameters(), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
        for (_, one), (_, other) in zip(streamed.named_buffers(), model.named_buffers(), strict=True):
            assert one.dtype == other.dtype and torch.equal(one, other)
        assert streamed.to("cpu") is streamed and (streamed.dtype, streamed.device) == (model.dtype, model.device)
        with torch.no_grad():
            assert torch.equal(streamed(**inputs).sample, expected)
            assert torch.equal(streamed.unstream()(**inputs).sample, expected)


@pytest.mark.parametrize("name", ["pixart", "wan"])
def test_the_advice_for_a_model_that_computes_with_values_as_it_is_made(name, tmp_path):
    cls, model, inputs = saved(name, torch.float32, tmp_path)
    with pytest.raises(ValueError, match="in memory already.*or give its class if it is one of transformers or diff"):
        penstock.stream(cls(**MODELS[name][1]), tmp_path)
    with accelerate.init_empty_weights():
        empty = cls(**MODELS[name][1])
    streamed = penstock.stream(empty, tmp_path, memory="1GiB")
    with torch.no_grad():
        assert torch.equal(streamed(**inputs).sample, model(**inputs).sample)


def test_the_folder_of_a_pipeline_is_that_of_its_transformer(tmp_path):
    _, model, _ = saved("pixart", torch.float32, tmp_path / "alone")
    torch.manual_seed(2)
    folder = tmp_path / "pipeline"
    vae = diffusers.AutoencoderKL(block_out_channels=(16, 16), norm_num_groups=8, latent_channels=4,
                                  down_block_types=("DownEncoderBlock2D",) * 2,
                                  up_block_types=("UpDecoderBlock2D",) * 2)  # fmt: skip
    parts = {"tokenizer": None, "text_encoder": None, "vae": vae, "scheduler": diffusers.DDIMScheduler()}
    diffusers.PixArtAlphaPipeline(transformer=model, **parts).save_pretrained(folder)
    options = {"negative_prompt": None, "num_inference_steps": 2, "output_type": "np",
               "use_resolution_binning": False, "height": 16, "width": 16}  # fmt: skip
    embeds = {
        name: torch.randn(1, 7, 32) if "mask" not in name else torch.ones(1, 7)
        for name in (
            "prompt_embeds",
            "negative_prompt_embeds",
            "prompt_attention_mask",
            "negative_prompt_attention_mask",
        )
    }

    def images(transformer):
        made = diffusers.PixArtAlphaPipeline.from_pretrained(
            folder, transformer=transformer, tokenizer=None, text_encoder=None
        ).to("cpu")
        made.set_progress_bar_config(disable=True)
        return made(**options, **embeds, generator=torch.manual_seed(5)).images

    expected = images(model)
    streamed = penstock.stream(None, folder, memory=budgets(None, folder, model)[1])
    assert (images(streamed) == expected).all() and streamed.stream_stats().bytes_read > 0
    whole = penstock.weights.plan(folder, memory="1GiB")
    assert whole.token_bytes == penstock.weights.plan(folder / "transformer", memory="1GiB").token_bytes > 0
    assert isinstance(penstock.stream(None, folder / "vae", memory="1GiB"), diffusers.AutoencoderKL)


def test_a_class_that_diffusers_does_not_have_is_named(tmp_path):
    saved("pixart", torch.float32, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "_class_name": "OfTheFuture"}))
    with pytest.raises(ValueError, match="names the class OfTheFuture, and diffusers .* has no such model"):
        penstock.stream(None, tmp_path)
