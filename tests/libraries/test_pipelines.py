# SPDX-License-Identifier: Apache-2.0
"""pipeline() of each task that a tiny model allows gives with a streamed model what it gives with the model in
memory."""

import json

import numpy
import penstock
import pytest
import torch
import transformers
from PIL import Image
from tiny_models import DECODER, SMALL, WORDS, budgets

TEXT = {**SMALL, "vocab_size": 64}
SOUND = {**SMALL, "vocab_size": len(WORDS), "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8),
         "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}  # fmt: skip
PATCHES = {**SMALL, "image_size": 32, "patch_size": 8}
CLIP = {"text_config": {**TEXT, "eos_token_id": 3}, "vision_config": PATCHES, "projection_dim": 32}
SEGFORMER = {"hidden_sizes": [8, 16, 16, 32], "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2],
             "decoder_hidden_size": 32}  # fmt: skip
DPT = {**PATCHES, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16,
       "reassemble_factors": [1, 1, 1, 1], "is_hybrid": False}  # fmt: skip
YOLOS = {**PATCHES, "image_size": [32, 32], "num_detection_tokens": 5}
SENTENCE = "the cat sat on the mat"
# Each task has a class, a part of the names of its config and of its processor, its config, and its inputs.
TASKS = {
    "text-generation": ("LlamaForCausalLM", "Llama", None, DECODER, ([SENTENCE],),
                        {"max_new_tokens": 4, "do_sample": False}),
    "text-classification": ("BertForSequenceClassification", "Bert", None, TEXT, ([SENTENCE, "a b"],), {}),
    "token-classification": ("BertForTokenClassification", "Bert", None, TEXT, (SENTENCE,), {}),
    "fill-mask": ("BertForMaskedLM", "Bert", None, TEXT, ("the [MASK] sat",), {}),
    "feature-extraction": ("BertModel", "Bert", None, TEXT, (SENTENCE,), {}),
    "zero-shot-classification": (
        "BertForSequenceClassification", "Bert", None, {**TEXT, "label2id": {"entailment": 0, "other": 1},
        "id2label": {0: "entailment", 1: "other"}}, (SENTENCE,), {"candidate_labels": ["cat", "mat"]},
    ),
    "audio-classification": ("Wav2Vec2ForSequenceClassification", "Wav2Vec2", "sound", SOUND, ("sound",), {}),
    "automatic-speech-recognition": ("Wav2Vec2ForCTC", "Wav2Vec2", "sound", SOUND, ("sound",), {}),
    "image-classification": ("ViTForImageClassification", "ViT", "ViT", PATCHES, ("image",), {}),
    "image-feature-extraction": ("ViTModel", "ViT", "ViT", PATCHES, ("image",), {}),
    "image-segmentation": (
        "SegformerForSemanticSegmentation", "Segformer", "Segformer", SEGFORMER, ("image",), {},
    ),
    "depth-estimation": ("DPTForDepthEstimation", "DPT", "DPT", DPT, ("image",), {}),
    "object-detection": ("YolosForObjectDetection", "Yolos", "Yolos", YOLOS, ("image",), {"threshold": 0.0}),
    "zero-shot-image-classification": (
        "CLIPModel", "CLIP", "CLIP", CLIP, ("image",), {"candidate_labels": ["cat", "mat"]},
    ),
}  # fmt: skip


def processors(kind, tokenizer):
    if kind == "sound":
        found = transformers.Wav2Vec2FeatureExtractor(sampling_rate=1000)
        return {"feature_extractor": found, "tokenizer": tokenizer}
    if kind is None:
        return {"tokenizer": tokenizer}
    own, size = getattr(transformers, f"{kind}ImageProcessorPil"), {"height": 32, "width": 32}
    if kind == "CLIP":
        return {"image_processor": own(size={"shortest_edge": 32}, crop_size=size), "tokenizer": tokenizer}
    return {"image_processor": own(size=size)}


def inputs(kind):
    if kind == "sound":
        return numpy.random.default_rng(1).standard_normal(2000).astype("float32")
    if kind == "image":
        return Image.fromarray(numpy.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype="uint8"))
    return kind


def plain(found):
    """What can be compared."""
    if isinstance(found, dict):
        return {name: plain(one) for name, one in found.items()}
    if isinstance(found, (list, tuple)):
        return [plain(one) for one in found]
    if isinstance(found, Image.Image):
        return numpy.asarray(found).tolist()
    return found.tolist() if isinstance(found, (torch.Tensor, numpy.ndarray)) else found


@pytest.mark.parametrize("task", TASKS)
def test_a_pipeline(task, tokenizer, tmp_path):
    name, family, kind, config, given, options = TASKS[task]
    torch.manual_seed(1)
    cls = getattr(transformers, name)
    cls(getattr(transformers, f"{family}Config")(**config)).save_pretrained(tmp_path)
    tools = processors(kind, tokenizer)

    def run(model):
        made = transformers.pipeline(task, model=model, device="cpu", **tools)
        return plain(made(*map(inputs, given), **options) if isinstance(given[0], str) else made(*given, **options))

    model = cls.from_pretrained(tmp_path, dtype="auto").eval()
    expected = run(model)
    for memory in budgets(None, tmp_path, model):
        streamed = penstock.stream(cls, tmp_path, memory=memory)
        assert json.dumps(run(streamed), default=float) == json.dumps(expected, default=float)
